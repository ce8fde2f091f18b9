"""The bundled pair and SmolLM2 with its drafts: they load offline, share their tokens, and are as near as stated."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM  # noqa: E402

from experiments.token_acceptance import token_acceptance  # noqa: E402
from lpverify.decode import smollm2 as _smollm2  # noqa: E402
from lpverify.decode.load import FOLDER, load_tiny  # noqa: E402
from lpverify.decode.models import ROLES  # noqa: E402
from lpverify.decode.sampling import Sampling  # noqa: E402
from lpverify.decode.smollm2 import LEFT_OUT, cache_folder, gguf_file, leave_out, load_smollm2, save  # noqa: E402
from lpverify.errors import InputError  # noqa: E402

RANGE = (0.55, 0.85)  # token acceptance at temperature 1 that the pair was made for
MARGIN = 0.03  # a few hundred contexts: three standard errors of their mean, whose spread a context is about 0.2

UNSEEN = '''import csv


class Inventory:
    """Items in stock, by name."""

    def __init__(self, path):
        self.path = path
        self.items = {}

    def read(self):
        with open(self.path, newline="") as file:
            for row in csv.reader(file):
                if not row:
                    continue
                name, count = row[0], int(row[1])
                self.items[name] = self.items.get(name, 0) + count

    def remove(self, name, count=1):
        """Take items out; raise ValueError if there are not enough."""
        if self.items.get(name, 0) < count:
            raise ValueError("not enough %s" % name)
        self.items[name] -= count

    def __len__(self):
        return sum(self.items.values())


def main(argv=None):
    if argv is None:
        argv = sys.argv[1:]
    for path in argv:
        stock = Inventory(path)
        stock.read()
        print(path, len(stock))
'''


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="module")
def tiny() -> dict[str, tuple[Any, Any]]:
    return {role: load_tiny(role) for role in ROLES}


def llama(layers: int, vocab: int = 13) -> LlamaForCausalLM:
    """An untrained model small enough to do anything with."""
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
    )
    return LlamaForCausalLM(config).eval()


class OneLaw(torch.nn.Module):  # type: ignore[name-defined]
    """A model whose next token has the same law everywhere."""

    def __init__(self, law: list[float]) -> None:
        super().__init__()
        self.logits = torch.tensor(law).log()

    def forward(self, input_ids: torch.Tensor, use_cache: bool) -> SimpleNamespace:  # type: ignore[name-defined]
        return SimpleNamespace(logits=self.logits.expand(*input_ids.shape, -1))


def test_acceptance_of_known_laws() -> None:
    target, draft = OneLaw([0.2, 0.4, 0.4]), OneLaw([0.6, 0.3, 0.1])
    tokens = torch.zeros(2, 5, dtype=torch.long)
    found = token_acceptance(target, draft, tokens, skip=2)
    assert found.shape == (2, 3)
    torch.testing.assert_close(found, torch.full((2, 3), 0.6, dtype=torch.float64), rtol=1e-6, atol=0)
    colder = token_acceptance(target, draft, tokens, Sampling(temperature=0.5))[0, 0]
    torch.testing.assert_close(float(colder), 4 / 36 + 9 / 46 + 1 / 46, rtol=1e-6, atol=0)
    assert float(token_acceptance(target, draft, tokens, Sampling(temperature=0)).max()) == 0.0
    one = token_acceptance(draft, draft, tokens)
    torch.testing.assert_close(one, torch.ones_like(one))


@pytest.mark.parametrize("role", ROLES)
def test_plain_loading(role: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(FOLDER / role)
    tokenizer = AutoTokenizer.from_pretrained(FOLDER / role)
    assert model.dtype == torch.float32
    assert model.config.model_type == "llama"
    assert model.config.max_position_embeddings >= 512
    assert len(tokenizer) == model.config.vocab_size == model.get_output_embeddings().weight.shape[0]
    assert 512 <= len(tokenizer) <= 2048
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (model.config.bos_token_id, model.config.eos_token_id)
    wide = AutoModelForCausalLM.from_pretrained(FOLDER / role, dtype=torch.bfloat16)
    assert wide.dtype == torch.bfloat16
    assert wide.num_parameters() == json.loads((FOLDER / "report.json").read_text())["parameters"][role]


def test_one_tokenizer(tiny: dict[str, tuple[Any, Any]]) -> None:
    target, draft = (tiny[role][1] for role in ROLES)
    assert target.get_vocab() == draft.get_vocab()
    for file in ("tokenizer.json", "tokenizer_config.json"):
        assert (FOLDER / "target" / file).read_bytes() == (FOLDER / "draft" / file).read_bytes()


@settings(deadline=None, max_examples=50)
@given(text=st.text(st.characters(exclude_categories=("Cs",)), max_size=60))
def test_text_survives_the_tokenizer(tiny: dict[str, tuple[Any, Any]], text: str) -> None:
    tokenizer = tiny["target"][1]
    ids = tokenizer(text).input_ids
    assert ids[0] == tokenizer.bos_token_id
    assert max(ids) < len(tokenizer)
    specials = tokenizer.all_special_ids
    if not any(token in text for token in tokenizer.all_special_tokens):
        assert not set(ids[1:]) & set(specials)
    assert tokenizer.decode(ids[1:]) == text


def test_source_takes_few_tokens(tiny: dict[str, tuple[Any, Any]]) -> None:
    """At least two bytes a token on Python source: the merges are there."""
    assert len(tiny["target"][1](UNSEEN).input_ids) < len(UNSEEN) / 2


def test_size() -> None:
    files = [file for file in FOLDER.rglob("*") if file.is_file()]
    assert {file.name for file in files} >= {"model.safetensors", "config.json", "tokenizer.json", "README.md"}
    assert sum(file.stat().st_size for file in files) <= 12e6


def test_acceptance_on_unseen_text(tiny: dict[str, tuple[Any, Any]]) -> None:
    (target, tokenizer), (draft, _) = tiny["target"], tiny["draft"]
    tokens = tokenizer(UNSEEN, return_tensors="pt").input_ids
    found = float(token_acceptance(target, draft, tokens).mean())
    assert RANGE[0] - MARGIN <= found <= RANGE[1] + MARGIN
    torch.manual_seed(0)
    untrained = LlamaForCausalLM(draft.config).eval()
    assert float(token_acceptance(target, untrained, tokens).mean()) < RANGE[0] - MARGIN


def test_acceptance_on_samples(tiny: dict[str, tuple[Any, Any]]) -> None:
    (target, tokenizer), (draft, _) = tiny["target"], tiny["draft"]
    prompt = tokenizer("def read(", return_tensors="pt").input_ids.expand(4, -1)
    torch.manual_seed(0)
    tokens = target.generate(
        prompt, attention_mask=torch.ones_like(prompt), do_sample=True, top_k=0, max_new_tokens=96, eos_token_id=1024
    )
    found = float(token_acceptance(target, draft, tokens, skip=prompt.shape[1]).mean())
    assert RANGE[0] - MARGIN <= found <= RANGE[1] + MARGIN


def test_target_knows_python(tiny: dict[str, tuple[Any, Any]]) -> None:
    """Fewer than 2.2 bits a byte on unseen source (uniform bytes: 8), and the target is the better model of the two."""
    losses = []
    for role in ROLES:
        model, tokenizer = tiny[role]
        tokens = tokenizer(UNSEEN, return_tensors="pt").input_ids
        with torch.inference_mode():
            losses.append(float(model(input_ids=tokens, labels=tokens).loss) * tokens.shape[1] / len(UNSEEN))
    assert losses[0] < losses[1]
    assert losses[0] / 0.6931 < 2.2


def test_report_keeps_the_promise() -> None:
    report = json.loads((FOLDER / "report.json").read_text())
    for place in ("held_out_text", "target_samples"):
        assert RANGE[0] <= report["token_acceptance_at_1.0"][place] <= RANGE[1]


@pytest.mark.parametrize(("load", "word"), [(load_tiny, "tiny"), (load_smollm2, "smollm2")])
def test_unknown_role(load: Any, word: str) -> None:
    with pytest.raises(InputError, match=f"role of .*{word}.*'judge'.*target, draft"):
        load("judge")


def test_unknown_draft() -> None:
    with pytest.raises(InputError, match="'nearest'.*near, far, distilled"):
        load_smollm2("draft", draft="nearest")


@pytest.mark.parametrize("left", [(0,), (4,), (1, 3)])
def test_leaving_out_layers_that_do_nothing(left: tuple[int, ...]) -> None:
    """A layer that adds zero can go without any change, also when a cache is used."""
    torch.manual_seed(1)
    model = llama(5)
    for number in left:
        layer = model.model.layers[number]
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
        torch.nn.init.zeros_(layer.mlp.down_proj.weight)
    tokens = torch.arange(12).remainder(13)[None]
    with torch.inference_mode():
        whole = model(input_ids=tokens).logits
        short = leave_out(model, left)
        assert short.config.num_hidden_layers == 5 - len(left) == len(short.model.layers)
        torch.testing.assert_close(short(input_ids=tokens).logits, whole)
        first = short(input_ids=tokens[:, :7])
        assert first.past_key_values.get_seq_length() == 7
        greedy = short.generate(tokens, max_new_tokens=6, do_sample=False, pad_token_id=0)
        for length in range(12, greedy.shape[1]):
            assert int(short(input_ids=greedy[:, :length]).logits[0, -1].argmax()) == int(greedy[0, length])


def test_saving_leaves_nothing_half_written(tmp_path: Path) -> None:
    def broken(folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        save(tmp_path / "model", SimpleNamespace(save_pretrained=broken), None)
    assert list(tmp_path.iterdir()) == []


def test_saving_keeps_what_another_process_has_written(tmp_path: Path) -> None:
    def writer(text: str) -> Any:
        return SimpleNamespace(save_pretrained=lambda folder: (folder / "weights").write_text(text))

    nothing = SimpleNamespace(save_pretrained=lambda folder: None)
    save(tmp_path / "model", writer("old"), nothing)
    save(tmp_path / "model", writer("other process"), nothing)
    assert (tmp_path / "model" / "weights").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LPVERIFY_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("LPVERIFY_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "lpverify"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "lpverify"


def test_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(_smollm2.metadata, "files", missing)
    with pytest.raises(InputError, match=r"pip install 'lpverify\[smollm\]'"):
        gguf_file()


def test_missing_distilled_draft(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LPVERIFY_CACHE", str(tmp_path))
    monkeypatch.setattr(_smollm2, "target_folder", lambda: tmp_path)
    with pytest.raises(InputError, match="no folder .*smollm2-distilled.*make_smollm2_draft.py"):
        load_smollm2("draft", draft="distilled")


@pytest.mark.slow
def test_smollm2_and_its_drafts() -> None:
    """The further draft is further, both are near enough for depth 8 to say something."""
    pytest.importorskip("gguf")
    try:
        metadata.version(_smollm2.PACKAGE)
    except metadata.PackageNotFoundError:
        pytest.skip(f"{_smollm2.PACKAGE} is not installed")
    target, tokenizer = load_smollm2("target")
    assert target.dtype == torch.float32
    text = "The derivative of a function measures how fast its value changes when its argument changes a little."
    tokens = tokenizer(text, return_tensors="pt").input_ids
    means = {}
    for name, layers in LEFT_OUT.items():
        draft, other = load_smollm2("draft", draft=name)
        assert other.get_vocab() == tokenizer.get_vocab()
        assert draft.config.num_hidden_layers == target.config.num_hidden_layers - len(layers)
        means[name] = float(token_acceptance(target, draft, tokens).mean())
    assert 0.4 < means["far"] < means["near"] < 0.95
