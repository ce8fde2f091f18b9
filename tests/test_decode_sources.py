"""Where models and prompts come from, and what is shown meanwhile: device maps, public sets, the progress bar."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from test_decode_cli import TABLES, call  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

import lpverify.decode  # noqa: E402
from lpverify import InputError  # noqa: E402
from lpverify.decode.engine import Request, Settings, generate  # noqa: E402
from lpverify.decode.load import load_model  # noqa: E402
from lpverify.decode.models import Pair  # noqa: E402
from lpverify.decode.prompts import load_prompts  # noqa: E402
from lpverify.decode.transformer import TransformersModel  # noqa: E402
from lpverify.verifiers import verifier  # noqa: E402

BUNDLED = Path(lpverify.decode.__file__).parent / "bundled"


def test_models_placed_by_accelerate_give_the_same_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """By ``device_map``, which the CPU alone makes trivial; and with weights brought layer by layer when they are used,
    as for layers that do not fit: then no weight is where its module runs."""
    accelerate = pytest.importorskip("accelerate")
    torch.set_num_threads(1)
    maps = []
    original = AutoModelForCausalLM.from_pretrained

    def loading(*arguments: Any, **options: Any) -> Any:
        maps.append(options.get("device_map"))
        return original(*arguments, **options)

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", loading)

    def text(device_map: str | None, offload: bool) -> tuple[int, ...]:
        models: list[Any] = []
        for role in ("target", "draft"):
            made, tokenizer = load_model(str(BUNDLED / role), dtype="float32", device="cpu", device_map=device_map)
            assert isinstance(made, TransformersModel)
            if offload:
                accelerate.cpu_offload(made.module, execution_device=torch.device("cpu"))
                assert made.module.get_input_embeddings().weight.device.type == "meta"
            assert made.device == torch.device("cpu")
            models.append(made)
        request = Request(tuple(tokenizer.encode("class Reader:\n    def ")), "x")
        return generate(Pair(*models), verifier("gbv"), request, Settings(3, 4, max_new_tokens=20)).tokens

    expected = text(None, offload=False)
    assert text("auto", offload=False) == expected
    assert text("auto", offload=True) == expected
    assert maps == [None, None, "auto", "auto", "auto", "auto"]


@pytest.mark.parametrize("name", ["tiny", "smollm2", "markov-3"])
def test_what_has_one_place_takes_no_device_map(name: str) -> None:
    with pytest.raises(InputError, match=f"--device-map: got auto for {name}"):
        load_model(name, device_map="auto")


def test_progress_is_drawn_on_terminals_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = [*TABLES, "--prompts", "A", "--algorithm", "bv", "--compare", "pbv", "--json", "-"]
    code, plain, err = call(capsys, *arguments)
    assert (code, err) == (0, "")
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes the stream for a terminal
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    code, out, err = call(capsys, *arguments)
    assert code == 0
    assert "loading" in err
    assert "tokens a call" in err
    assert "2/2" in err
    assert "\x1b[" not in out  # what is asked for on stdout stays clean
    assert len(out.splitlines()) == len(plain.splitlines())


FIELDS = {
    "gsm8k": (("openai/gsm8k", "main"), {"question": "How many?", "answer": "4"}, "How many?"),
    "humaneval": (
        ("openai/openai_humaneval", None),
        {"task_id": "HumanEval/0", "prompt": "def f():", "canonical_solution": "pass", "test": "", "entry_point": "f"},
        "def f():",
    ),
    "math500": (
        ("HuggingFaceH4/MATH-500", None),
        {"problem": "Solve x.", "solution": "x", "answer": "1", "subject": "Algebra", "level": 2, "unique_id": "a"},
        "Solve x.",
    ),
}
"""Name -> (dataset and configuration, a row with the fields that the set has, its prompt)."""


@pytest.mark.parametrize("name", FIELDS)
def test_public_sets_by_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    source, row, text = FIELDS[name]
    asked = []

    def load_dataset(*arguments: Any, **options: Any) -> Any:
        asked.append((arguments, options))
        field = next(key for key, value in row.items() if value == text)
        return datasets.Dataset.from_list([row, row | {field: "second"}, row | {field: "third"}])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert [prompt.text for prompt in load_prompts(name)] == [text, "second", "third"]
    assert [prompt.text for prompt in load_prompts(name, 2)] == [text, "second"]
    assert [prompt.text for prompt in load_prompts(name, 9)] == [text, "second", "third"]
    assert asked == [(source, {"split": "test"})] * 3


def test_a_set_that_cannot_be_had_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")

    def offline(*_: Any, **__: Any) -> Any:
        raise ConnectionError("no route to the hub\nmore")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(InputError, match=r"^prompts gsm8k: got no route to the hub, expected openai/gsm8k") as caught:
        load_prompts("gsm8k")
    assert "\n" not in str(caught.value)


def test_prompts_that_are_not_unicode_are_refused() -> None:
    """Red before: an internal error, found by generated command lines."""
    with pytest.raises(InputError, match="prompts: got .*half of a surrogate pair"):
        load_prompts("\ud800")
