"""The transformers library's assisted generation as a baseline: plain speculative decoding of fixed length."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from test_decode_models import model  # noqa: E402
from transformers import GenerationConfig  # noqa: E402

from lpverify.decode.baselines import assisted  # noqa: E402
from lpverify.decode.engine import Request, Settings  # noqa: E402
from lpverify.decode.load import load_model  # noqa: E402
from lpverify.decode.models import Pair  # noqa: E402
from lpverify.decode.sampling import Sampling  # noqa: E402


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def committed(pair: Pair, prompt: tuple[int, ...], sampling: Sampling, **settings: Any) -> list[int]:
    chosen = Settings(1, 4, sampling, max_new_tokens=22, **settings)
    return [record.committed for record in assisted(pair, Request(prompt, "x"), chosen).rounds]


@pytest.mark.parametrize("sampling", [Sampling(0), Sampling(0.7), Sampling(1), Sampling(0.9, top_k=40, top_p=0.9)])
@pytest.mark.parametrize("eos", [frozenset(), frozenset({1})])
def test_a_target_that_drafts_for_itself_accepts_all_drafts(sampling: Sampling, eos: frozenset[int]) -> None:
    """Its drafts of L tokens are its own texts: L + 1 tokens a call, the last call what is left of the limit.

    So target and draft are sampled alike; with the temperature in the library's configuration the draft's is squared.

    The prompt begins with token 0, the begin-of-text token: were it taken for padding, the draft would not see it.
    """
    target, tokenizer = load_model("tiny", "target", dtype="float32", device="cpu")
    itself, _ = load_model("tiny", "target", dtype="float32", device="cpu")
    prompt = tuple(tokenizer.encode("def add(a, b):"))
    assert prompt[0] == 0
    assert committed(Pair(target, itself), prompt, sampling, eos=eos) == [5, 5, 5, 5, 2]


@pytest.mark.parametrize(
    "defaults",
    [
        {"assistant_confidence_threshold": 0.99},
        {"num_assistant_tokens": 2, "num_assistant_tokens_schedule": "heuristic"},
        {"eos_token_id": list(range(0, 64, 2))},
        {"pad_token_id": 3},
        {"repetition_penalty": 1.5},
    ],
)
def test_defaults_of_the_models_do_not_count(defaults: dict[str, Any]) -> None:
    target, itself = model("llama"), model("llama")
    prompt = (1, 2, 3)
    expected = committed(Pair(target, itself), prompt, Sampling(0))
    assert expected == [5, 5, 5, 5, 2]
    for who in (target, itself):
        who.module.generation_config = GenerationConfig(**defaults)
    kept = itself.module.generation_config
    assert committed(Pair(target, itself), prompt, Sampling(0)) == expected
    assert itself.module.generation_config is kept
