"""Functions with the tensor contracts of serving engines under audit: right ones pass, known faults are found."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import engine_functions as e
import numpy as np
import pytest
from typer.testing import CliRunner

from lpverify.auditing.audit import audit
from lpverify.auditing.choices import UNIFORMS, SampledChoices
from lpverify.cli import app
from lpverify.errors import InputError
from lpverify.integrations.contract import Arrays, Request
from lpverify.integrations.engines import CONTRACTS, adapt
from lpverify.report.audit_page import SIGNATURE, page
from lpverify.testing import assert_lossless

SHORT = ["one step", "coin", "block residual", "target lacks a token", "sure draft", "tree of 3"]
CHAINS = ["one step", "coin", "block residual K=1", "target lacks a token K=1", "tree of 3 K=1"]
FUNCTIONS = Path(__file__).with_name("engine_functions.py")

RIGHT = {
    "target-only tree": (e.tree, "sglang-tree"),
    "the same on a chain": (e.tree, "sglang-chain"),
    "token rule": (e.chain, "flashinfer-chain"),
    "block verification": (e.block, "flashinfer-chain"),
    "token rule, ragged": (e.ragged, "vllm-chain"),
    "q = 1 rule, ragged": (e.ragged, "vllm-ngram"),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_functions_pass_in_fractions(name: str) -> None:
    function, contract = RIGHT[name]
    report = audit(adapt(function, contract, arrays="numpy"), cases=SHORT)
    assert report.lossless, report.findings
    assert all(row.mode == "exact" and row.rational and row.total_variation == 0 for row in report.cases)
    assert {row.num_paths for row in report.cases} == ({1, 2, 3} if contract == "sglang-tree" else {1})
    assert {row.rounds for row in report.cases} == {1, 2}


@pytest.mark.heavy
@pytest.mark.parametrize("name", RIGHT)
def test_right_functions_pass_the_whole_table(name: str) -> None:
    function, contract = RIGHT[name]
    report = audit(adapt(function, contract, arrays="numpy"))
    assert report.lossless, report.findings
    assert {row.mode for row in report.cases} == {"exact"}


CAUSES = {
    "inclusive": "boundary",
    "coins shared by requests": "rounds",
    "uniforms shared by requests": "rounds",
    "row of the child": "acceptance",
    "rejected siblings stay": "residual",
    "residual is p": "residual",
    "q taken as 1": "residual",
    "token residual": "residual",
}
UNUSABLE = {
    "index in the request", "counts the next token", "stale index", "zeros after the end", "start of the first request",
    "bonus after a rejection", "continues after a rejection",
}  # fmt: skip
MUTANTS = [
    *((e.tree, "sglang-tree", fault) for fault in e.TREE_FAULTS),
    *((e.chain, "flashinfer-chain", fault) for fault in e.CHAIN_FAULTS),
    *((e.block, "flashinfer-chain", fault) for fault in ("token residual", "stops at the first")),
    *((e.ragged, "vllm-chain", fault) for fault in e.VLLM_FAULTS),
]


@pytest.mark.parametrize(
    ("function", "contract", "fault"), MUTANTS, ids=lambda value: getattr(value, "__name__", value)
)
def test_faults_are_found(function: Any, contract: str, fault: str) -> None:
    """Each is a change of a function that passes; all but one are found without a draw."""
    report = audit(adapt(partial(function, fault=fault), contract, arrays="numpy"), cases=SHORT, stop_early=True)
    [(_, finding)] = report.findings
    assert report.cases[-1].mode == "exact"
    unusable = "returned" if fault in UNUSABLE else "changed its input" if fault == "writes to the target" else ""
    assert (finding.kind == unusable) == bool(unusable), finding.message
    assert finding.cause == CAUSES.get(fault, finding.cause)


def test_block_rule_without_draft_probabilities_is_found() -> None:
    """S5, the first token is right: only the joint distribution is off."""
    report = audit(adapt(e.block_without_q, "vllm-ngram", arrays="numpy"), cases=["one step K=1", "coin K=1"])
    assert [case for case, _ in report.findings] == ["coin K=1"]


def test_one_hot_drafts_pass_the_rule_without_probabilities() -> None:
    """The "q = 1" rule is lossless for any drafts, and the rule with draft probabilities is not if they are missing."""
    assert audit(adapt(e.ragged, "vllm-ngram", arrays="numpy"), cases=CHAINS).lossless
    wrong = partial(e.ragged, fault="q taken as 1")
    assert not audit(adapt(wrong, "vllm-chain", arrays="numpy"), cases=CHAINS).lossless


# tensors

TORCH = [
    (e.vectorised, "flashinfer-chain", ""),
    (e.tree, "sglang-tree", ""),
    (e.own_recovered, "vllm-chain", ""),
    (e.vectorised, "flashinfer-chain", "inclusive"),
    (e.tree, "sglang-tree", "inclusive"),
    (e.vectorised, "flashinfer-chain", "residual is p"),
    (e.vectorised, "flashinfer-chain", "not renormalised"),
    (e.own_recovered, "vllm-chain", "target's row"),
]


@pytest.mark.parametrize(("function", "contract", "fault"), TORCH, ids=lambda value: getattr(value, "__name__", value))
def test_tensors_are_sampled_in_batches(function: Any, contract: str, fault: str) -> None:
    """In single precision, with the ends of [0, 1) as single precision has them."""
    pytest.importorskip("torch")
    program = adapt(partial(function, fault=fault), contract)
    report = audit(program, cases=["one step K=1", "target lacks a token K=1"], draws=8_000)
    assert {row.mode for row in report.cases} == {"sampled"}
    assert {row.note for row in report.cases} == {UNIFORMS}
    assert report.lossless == (not fault), report.findings
    if fault == "inclusive":
        [(case, finding)] = report.findings
        assert (case, finding.cause) == ("target lacks a token K=1", "boundary")


def test_requests_that_share_a_coin_are_found_in_a_sample() -> None:
    pytest.importorskip("torch")
    program = adapt(partial(e.tree, fault="coins shared by requests"), "sglang-tree")
    [(_, finding)] = audit(program, cases=["one step K=1 two rounds"], draws=8_000).findings
    assert finding.kind == "law"


def test_noise_of_its_own_is_sampled() -> None:
    """As later versions of FlashInfer draw it."""
    torch = pytest.importorskip("torch")

    def function(draft_probs: Any, draft_token_ids: Any, target_probs: Any, generator: Any = None) -> Any:
        assert generator is None
        uniforms = torch.rand(draft_token_ids.shape[0], draft_token_ids.shape[1] + 1)
        return e.vectorised(draft_probs, draft_token_ids, uniforms, target_probs)

    [row] = audit(adapt(function, "flashinfer-chain"), cases=["one step K=1"], draws=4_000).cases
    assert (row.mode, row.finding, row.note) == ("sampled", None, "it brings randomness of its own")


# the tensors


def rows(text: str) -> Any:
    return lambda prefix: np.array([float(x) for x in text.split()])


def made(contract: str, *drafts: Any) -> dict[str, Any]:
    requests = [Request.of(paths, rows(".2 .4 .4"), rows(".6 .3 .1")) for paths in drafts]
    makers = CONTRACTS[contract].tensors(requests, Arrays("numpy"), SampledChoices(0))
    return {name: make() for name, make in makers.items()}


def test_tree_tensors() -> None:
    """Node 0, then level by level; a smaller tree has nodes that nothing leads to."""
    tensors = made("sglang-tree", [(2,)], [(0, 1), (0, 2), (1, 1), (0, 1)])
    assert tensors["candidates"].tolist() == [[0, 2, 0, 0, 0, 0], [0, 0, 1, 1, 2, 1]]
    assert tensors["retrieve_next_token"].tolist() == [[1, -1, -1, -1, -1, -1], [1, 3, 5, -1, -1, -1]]
    assert tensors["retrieve_next_sibling"].tolist() == [[-1] * 6, [-1, 2, -1, 4, -1, -1]]
    assert tensors["retrieve_index"].tolist() == [list(range(6)), list(range(6, 12))]
    assert tensors["accept_index"].shape == (2, 3)
    assert tensors["target_probs"].shape == tensors["draft_probs"].shape == (2, 6, 3)
    assert (tensors["draft_probs"] == 0).all()
    assert tensors["uniform_samples"][0].tolist() == [0.5] * 6


def test_ragged_tensors() -> None:
    tensors = made("vllm-chain", [()], [(0, 1)], [(2, 2)])
    assert tensors["num_draft_tokens"] == [0, 2, 2]
    assert tensors["cu_num_draft_tokens"].tolist() == [0, 2, 4]
    assert tensors["draft_token_ids"].tolist() == [0, 1, 2, 2]
    assert tensors["target_probs"].shape == tensors["draft_probs"].shape == (4, 3)
    assert tensors["output_token_ids"].tolist() == [[-1] * 3] * 3
    assert set(tensors["recovered_token_ids"].tolist()) <= {1, 2}
    assert np.allclose(tensors["q"].shape, (3, 3))
    assert made("vllm-ngram", [()], [(0, 1)])["draft_probs"] is None


def test_chain_tensors() -> None:
    tensors = made("flashinfer-chain", [(0, 0)], [(0, 1)])
    assert tensors["draft_probs"].shape == (2, 2, 3)
    assert tensors["target_probs"].shape == (2, 3, 3)
    assert tensors["uniform_samples"].shape == (2, 3)
    assert made("sglang-chain", [(0, 0)], [(0, 1)])["draft_probs"].shape == (2, 2, 3)


def test_single_precision_has_no_uniform_of_one() -> None:
    pytest.importorskip("torch")
    tensor = Arrays("torch").uniforms([0.0, 1 - 2**-53])
    assert tensor.tolist() == [0.0, 1 - 2**-24]


# what is not a function of the tensors


@pytest.mark.parametrize(
    ("function", "contract", "message"),
    [
        (3, "sglang-tree", "verifier: got 3, expected a function of tensors"),
        (e.tree, "nosuch", "adapter: got 'nosuch', expected one of sglang-tree, sglang-chain, vllm-chain"),
        (
            lambda candidates, nosuch: None,
            "sglang-tree",
            "got a function with the parameter nosuch, expected parameters",
        ),
        (dict.get, "sglang-tree", "verifier: got a function with the parameter self"),
    ],
)
def test_bad_functions(function: Any, contract: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        adapt(function, contract, arrays="numpy")


def test_bad_answers() -> None:
    def first(row: Any) -> Any:
        return lambda draft_token_ids: np.array([row] * len(draft_token_ids))

    for function, message in [
        (lambda draft_token_ids: None, "returned None, expected output_token_ids"),
        (first([-1, -1]), r"output_token_ids is \[-1, -1\], expected a prefix of"),
        (first([7, 0]), r"output_token_ids is \[7, 0\]"),
        (first([9, -1]), "a next token in 0..2"),
        (lambda draft_token_ids: (1, 2, 3, 4), "returned .*, expected output_token_ids, output_accepted"),
        (lambda draft_token_ids: 1 // 0, "raised ZeroDivisionError"),
    ]:
        [(_, finding)] = audit(adapt(function, "flashinfer-chain", arrays="numpy"), cases=["one step K=1"]).findings
        assert finding.kind == ("raised" if "raised" in message else "returned")
        with pytest.raises(AssertionError, match=message):
            raise AssertionError(finding.message)


def test_chains_are_audited_with_one_path() -> None:
    with pytest.raises(InputError, match="cases: got only cases of more paths, expected a case of at most 1 path"):
        audit(adapt(e.chain, "flashinfer-chain", arrays="numpy"), cases=["coin K=2"])


# in tests


def test_assertion_and_its_message() -> None:
    assert assert_lossless("bv", cases=["coin"]).lossless
    assert assert_lossless(e.chain, adapter="flashinfer-chain", arrays="numpy", cases=["coin"]).lossless
    wrong = partial(e.chain, fault="residual is p")
    with pytest.raises(AssertionError) as raised:
        assert_lossless(wrong, adapter="flashinfer-chain", arrays="numpy", cases=["one step K=1", "coin K=1"])
    first, second, third = str(raised.value).splitlines()
    assert first == "partial is NOT lossless: 2 of 2 cases"
    assert second.startswith('one step K=1: the emitted distribution differs from the target at "2": probability 13/50')
    assert third.startswith("coin K=1: ")
    with pytest.raises(AssertionError, match="bv is not decided: 0 of 1 cases lossless, 1 not decided\n.* K=8: enum"):
        assert_lossless("bv", cases=["tree-v3-l4:8"])


TESTS = """
from engine_functions import block, chain

def test_right(assert_lossless):
    assert_lossless(chain, adapter="flashinfer-chain", arrays="numpy", cases=["coin"])

def test_wrong(assert_lossless):
    def wrong(draft_probs, draft_token_ids, uniform_samples, target_probs):
        return block(draft_probs, draft_token_ids, uniform_samples, target_probs, fault="token residual")

    assert_lossless(wrong, adapter="flashinfer-chain", arrays="numpy", cases=["block residual"])
"""


def test_pytest_plugin(tmp_path: Path) -> None:
    """A project of somebody else with two tests: one passes, one fails with the finding as its message."""
    (tmp_path / "test_mine.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "lpverify.pytest_plugin", "-q"]
    paths = f"import sys; sys.path[:0] = {[str(FUNCTIONS.parent), str(FUNCTIONS.parents[1])]!r}\n"
    (tmp_path / "conftest.py").write_text(paths)
    environment = {"PYTHONPATH": str(FUNCTIONS.parents[1]), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "wrong is NOT lossless: 1 of 1 cases" in done.stdout
    assert 'differs from the target at "2 0": probability 1/10, expected 2/25' in done.stdout
    assert "audit.py" not in done.stdout  # the traceback is that of the test


# the command and the page


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["audit", *arguments])


class Page(HTMLParser):
    """Checks that every element is closed and that nothing is loaded."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        assert tag not in ("script", "link", "img", "iframe", "object", "a")
        assert not {"src", "href", "onload"} & {name for name, _ in attrs}
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data.strip())


def test_command_with_an_adapter(tmp_path: Path) -> None:
    right = run(f"{FUNCTIONS}:tree", "--adapter", "sglang-tree", "--arrays", "numpy", "--cases", "one step,coin K=2")
    assert right.exit_code == 0, right.output
    assert "tree is lossless on 5 cases" in right.output
    place, out = tmp_path / "page.html", tmp_path / "out.json"
    (tmp_path / "mine.py").write_text(
        "from engine_functions import chain as right\n"
        "def chain(draft_probs, draft_token_ids, uniform_samples, target_probs):\n"
        "    return right(draft_probs, draft_token_ids, uniform_samples, target_probs, fault='one uniform')\n"
    )
    wrong = run(
        f"{tmp_path / 'mine.py'}:chain", "--adapter", "flashinfer-chain", "--arrays", "numpy",
        "--cases", "coin", "--report", str(place), "--json", str(out),
    )  # fmt: skip
    assert wrong.exit_code == 1, wrong.output
    document = json.loads(out.read_text())
    assert (document["adapter"], document["lossless"]) == ("flashinfer-chain", False)
    text = " ".join(Page(place.read_text()).text)
    assert "Audit of" in text
    assert "as flashinfer-chain" in text
    assert "NOT lossless: 2 of 2 cases" in text
    assert "it accepts the last token of" in text
    again = run("bv", "--cases", "coin", "--report", str(place))
    assert again.exit_code == 0, again.output
    assert "bv is lossless on 3 cases" in " ".join(Page(place.read_text()).text)


def test_page_of_a_sampled_and_of_an_undecided_audit() -> None:
    pytest.importorskip("torch")
    report = audit(adapt(e.vectorised, "flashinfer-chain"), cases=["one step K=1"], draws=200)
    text = " ".join(Page(page("<b>mine</b>", report)).text)
    assert "<b>mine</b> is lossless on 1 cases" in text
    assert "with probability at most 1e-06" in text
    assert "could be missed: losses below 'finds'" in text
    assert UNIFORMS in text
    assert "bv is not decided" in " ".join(Page(page("bv", audit("bv", cases=["tree-v3-l4:8"]))).text)


def test_page_has_a_width_of_a_phone() -> None:
    """The rows of the table become blocks with the headings in them, and long words break."""
    text = page("x" * 500, audit("bv", cases=["coin"]))
    assert 'name="viewport" content="width=device-width' in text
    assert "@media (max-width: 40rem)" in text
    assert "white-space" not in text
    assert 'data-name="total variation"' in text


def test_pages_overwrite_nothing(tmp_path: Path) -> None:
    program = f"{FUNCTIONS}:chain"
    notes = tmp_path / "notes.html"
    notes.write_text("<html>mine</html>")
    arguments = ("--cases", "coin K=1", "--adapter", "flashinfer-chain", "--arrays", "numpy")
    for place, message in [
        (str(notes), "notes.html, which is a file of another kind"),
        (str(FUNCTIONS), "the same file as verifier"),
        ("-", "--report: got -, expected a file name"),
        (str(tmp_path / "no" / "page.html"), "a file in a directory that exists"),
    ]:
        before = FUNCTIONS.read_bytes()
        done = run(program, *arguments, "--report", place)
        assert done.exit_code == 2, done.output
        [line] = done.stderr.splitlines()
        assert message in line
        assert FUNCTIONS.read_bytes() == before
    assert notes.read_text() == "<html>mine</html>"
    place = str(tmp_path / "one")
    done = run(program, *arguments, "--report", place, "--json", place)
    assert (done.exit_code, "the same file as" in done.stderr) == (2, True)
    assert SIGNATURE in page("bv", audit("bv", cases=["coin K=1"]))[:200]


def test_bad_options() -> None:
    for arguments, message in [
        ((f"{FUNCTIONS}:tree", "--adapter", "nosuch"), "adapter: got 'nosuch', expected one of sglang-tree"),
        (
            (f"{FUNCTIONS}:tree", "--adapter", "sglang-tree", "--arrays", "jax"),
            "arrays: got 'jax', expected one of torch",
        ),
        ((f"{FUNCTIONS}:tree", "--arrays", "numpy"), "--arrays: got numpy, expected no such option without --adapter"),
        (("bv", "--adapter", "sglang-tree"), "--adapter: got sglang-tree for bv, expected a function of your own"),
        ((f"{FUNCTIONS}:tree", "--adapter", "vllm-chain"), "got a function with the parameter predicts, expected"),
    ]:
        done = run(*arguments)
        assert done.exit_code == 2, done.output
        [line] = done.stderr.splitlines()
        assert message in line
