"""Tree pass and caches of transformers models, on small random ones of several architectures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from transformers import (  # noqa: E402
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from lpverify import InputError, SizeError  # noqa: E402
from lpverify.core.draft_tree import topology  # noqa: E402
from lpverify.decode import models  # noqa: E402
from lpverify.decode.baselines import autoregressive  # noqa: E402
from lpverify.decode.engine import ActiveRequest, Request, Settings, generate  # noqa: E402
from lpverify.decode.sampling import Sampling  # noqa: E402
from lpverify.decode.transformer import TransformersModel, TransformersState  # noqa: E402
from lpverify.studies import bound  # noqa: E402
from lpverify.verifiers import VERIFIERS, verifier  # noqa: E402

V = 37
ENDS: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
SIZE: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
GROUPED = SIZE | ENDS | {"intermediate_size": 24, "num_key_value_heads": 2}
NAMES = tuple(name for name in VERIFIERS if name not in ("policy", "ot"))


def module(kind: str, attention: str = "sdpa", seed: int = 0, vocab_size: int = V) -> Any:
    torch.manual_seed(seed)
    options: dict[str, Any] = {"vocab_size": vocab_size, "attn_implementation": attention, "initializer_range": 0.3}
    if kind == "llama":
        built: Any = LlamaForCausalLM(LlamaConfig(**GROUPED, **options))
    elif kind == "qwen3":
        built = Qwen3ForCausalLM(Qwen3Config(**GROUPED, head_dim=8, **options))
    else:
        options["init_std"] = options.pop("initializer_range")
        built = OPTForCausalLM(OPTConfig(**SIZE, **ENDS, ffn_dim=24, word_embed_proj_dim=16, **options))
    return built.eval()


def model(kind: str, attention: str = "sdpa", seed: int = 0, vocab_size: int = V) -> TransformersModel:
    return TransformersModel(kind, module(kind, attention, seed, vocab_size))


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield


PATHS = [[3, 5, 7], [3, 5, 8], [4, 5, 7], [3, 5, 7]]
KINDS = [(kind, attention) for kind in ("opt", "qwen3", "llama") for attention in ("sdpa", "eager")]


def plain(made: TransformersModel, tokens: list[int]) -> Any:
    """Logits after ``tokens`` by one forward pass without mask, positions or cache of ours."""
    return made.module(input_ids=torch.tensor([tokens])).logits[0, -1]


def same_cache(first: TransformersState, second: TransformersState, tolerance: float = 1e-5) -> None:
    assert first.length == second.length
    for ours, fresh in zip(first.cache.layers, second.cache.layers, strict=True):
        for name in ("keys", "values"):
            a, b = getattr(ours, name), getattr(fresh, name)
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("kind", "attention"), KINDS)
@pytest.mark.parametrize("prompt", [[9], [1, 2, 30, 4, 5, 6, 11]])
def test_every_row_of_the_tree_is_that_of_its_prefix(kind: str, attention: str, prompt: list[int]) -> None:
    made = model(kind, attention)
    tree = topology(PATHS)
    tokens = torch.tensor([prompt[-1], *tree.token[1:].tolist()])
    prefixes = [prompt]
    for parent, token in zip(tree.parent[1:], tree.token[1:], strict=True):
        prefixes.append([*prefixes[parent], int(token)])
    cached = made.start(prompt[:-1]).tree(tokens, tree.parent.tolist(), tree.depth.tolist())
    for node, prefix in enumerate(prefixes):
        torch.testing.assert_close(cached[node], plain(made, prefix), rtol=1e-5, atol=1e-5)

    # without a cache: the prompt is a chain in the same tree
    chain = len(prompt) - 1
    parents = [*range(-1, chain), *(int(p) + chain for p in tree.parent[1:])]
    depths = [*range(chain + 1), *(int(d) + chain for d in tree.depth[1:])]
    everything = torch.tensor([*prompt, *tree.token[1:].tolist()])
    whole = made.start([]).tree(everything, parents, depths)
    torch.testing.assert_close(whole[chain:], cached, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("kind", "attention"), KINDS)
@pytest.mark.parametrize("path", range(3))
@pytest.mark.parametrize("accepted", range(4))
def test_after_a_commit_both_caches_are_those_of_a_fresh_prefill(
    kind: str, attention: str, path: int, accepted: int
) -> None:
    """Fault S11, for every accepted length."""
    made, prompt = model(kind, attention), (1, 2, 30, 4, 5)
    active = ActiveRequest(models.Pair(made, made), Request(prompt, "x"), Sampling(), seed=1)
    tree = active.draft_tree(num_paths=3, depth=3, round_=0)
    tokens = tree.paths[path, :accepted].tolist()
    assert active.commit(tree, int(tree.node_of[path, accepted]), token=7) == [*tokens, 7]
    assert active.pending == 7
    fresh = made.start([*prompt, *tokens])
    same_cache(active.target, fresh)
    same_cache(active.draft, fresh)


def test_trims_of_the_published_example() -> None:  # fault S11: cache of 10, pending, 4 drafts
    made = model("llama")
    for accepted, length in ((1, 12), (4, 15)):
        active = ActiveRequest(models.Pair(made, made), Request(tuple(range(11)), "x"), Sampling(), seed=0)
        tree = active.draft_tree(num_paths=1, depth=4, round_=0)
        assert (active.target.length, active.draft.length) == (15, 14)
        active.commit(tree, accepted, token=0)
        assert (active.target.length, active.draft.length) == (length, length)
        fresh = made.start([*range(11), *tree.paths[0, :accepted].tolist()])
        same_cache(active.draft, fresh)
        same_cache(active.target, fresh)


@pytest.mark.parametrize("kind", ["opt", "qwen3", "llama"])
@pytest.mark.parametrize("name", NAMES)
def test_temperature_0_is_greedy_generation(kind: str, name: str) -> None:
    made, draft = model(kind), model(kind, seed=1)
    prompt = [1, 2, 30, 4, 5]
    expected = made.module.generate(
        torch.tensor([prompt]), do_sample=False, max_new_tokens=16, attention_mask=torch.ones(1, 5)
    )[0, 5:].tolist()
    settings = Settings(num_paths=2, depth=3, sampling=Sampling(temperature=0), max_new_tokens=16)
    for other in (draft, made):
        result = generate(models.Pair(made, other), verifier(name), Request(tuple(prompt), "x"), settings)
        assert list(result.tokens) == expected
    assert all(record.accepted == 3 for record in result.rounds[:-1])  # the target drafts for itself


def test_the_older_name_of_the_cache_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    class Older:
        def __init__(self, inner: Any, argument: str) -> None:
            self._inner, self._argument = inner, argument

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        def forward(self, position_ids: Any = None, past_key_values: Any = None, **others: Any) -> Any:
            options = {"position_ids": position_ids, self._argument: past_key_values}
            return self._inner(**options, **others)

        __call__ = forward

    made = model("llama")
    older = TransformersModel("older", Older(made.module, made.argument))
    assert older.argument == "past_key_values"
    request, settings = Request((1, 2, 3), "x"), Settings(num_paths=2, depth=3, max_new_tokens=12)
    results = [generate(models.Pair(m, m), verifier("traversal"), request, settings).tokens for m in (made, older)]
    assert results[0] == results[1]


def rope(**parameters: Any) -> dict[str, Any]:
    return GROUPED | {"rope_parameters": {"rope_theta": 10000.0} | parameters}


LONG = {"short_factor": [1.0, 1.0], "long_factor": [4.0, 4.0], "original_max_position_embeddings": 16, "factor": 4.0}
BIASED = SIZE | ENDS | {"intermediate_size": 24}
# architecture, configuration, longest context
RIGHT: dict[str, tuple[str, dict[str, Any], int]] = {
    "longrope": ("Llama", rope(rope_type="longrope", **LONG), 16),
    "longrope of Phi-3": (
        "Phi3",
        rope(rope_type="longrope", **LONG) | {"pad_token_id": 0, "original_max_position_embeddings": 16},
        16,
    ),
    "dynamic": ("Llama", rope(rope_type="dynamic", factor=4.0), 64),
    "dynamic, 16 positions": ("Llama", rope(rope_type="dynamic", factor=4.0) | {"max_position_embeddings": 16}, 16),
    "yarn": ("Llama", rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=16), 64),
    "linear": ("Llama", rope(rope_type="linear", factor=4.0), 64),
    "a window that slides": ("Mistral", GROUPED | {"sliding_window": 16}, 16),
    "a window that never slides": ("Mistral", GROUPED | {"sliding_window": 4096}, 64),
    "some windows": ("Gemma2", GROUPED | {"head_dim": 4, "sliding_window": 32}, 32),
    "learned positions": ("GPT2", ENDS | {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 64}, 64),
    "BERT as a decoder": ("Bert", BIASED | {"is_decoder": True, "pad_token_id": 0}, 64),
    "Falcon with rope": ("Falcon", SIZE | ENDS | {"alibi": False}, 64),
    "experts": ("Mixtral", GROUPED | {"num_local_experts": 2, "num_experts_per_tok": 1}, 64),
}
HEADS = {"GPT2": "GPT2LMHeadModel", "Bert": "BertLMHeadModel", "T5": "T5ForConditionalGeneration"}
WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "BERT": ("Bert", BIASED | {"pad_token_id": 0}, "BertLMHeadModel, whose logits over a tree after 1 tokens differ"),
    "RoBERTa": ("Roberta", BIASED | {"pad_token_id": 1}, "RobertaForCausalLM, whose logits over a tree"),
    "RoBERTa as a decoder": ("Roberta", BIASED | {"pad_token_id": 1, "is_decoder": True}, "RobertaForCausalLM, whose"),
    "XLM-R": ("XLMRoberta", BIASED | {"pad_token_id": 1}, "XLMRobertaForCausalLM, whose logits over a tree"),
    "Electra": ("Electra", BIASED | {"pad_token_id": 0, "embedding_size": 16}, "ElectraForCausalLM, whose logits"),
    "alibi": ("Falcon", SIZE | ENDS | {"alibi": True}, "FalconForCausalLM, whose pass over a drafted tree raises"),
    "local attention": (
        "GPTNeo",
        ENDS
        | {"hidden_size": 16, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]}
        | {"window_size": 4, "initializer_range": 0.3},
        "GPTNeoForCausalLM, whose logits over a tree",
    ),
    "no positions": ("Bloom", {"hidden_size": 8, "n_layer": 1, "n_head": 2}, "position ids"),
    "a recurrent state": (
        "Mamba",
        ENDS | {"hidden_size": 8, "num_hidden_layers": 1, "state_size": 4},
        "cache of mamba",
    ),
    "an encoder": ("T5", {"d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 1, "num_heads": 4}, "position ids"),
}


def built(architecture: str, options: dict[str, Any]) -> Any:
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{architecture}Config")(vocab_size=V, **options)
    return getattr(transformers, HEADS.get(architecture, f"{architecture}ForCausalLM"))(config).eval()


@pytest.mark.parametrize("kind", RIGHT)
def test_accepted_models_decode_as_they_generate(kind: str) -> None:  # faults T7, T21
    """At temperature 0 up to the longest context, and a context beyond it is refused before a token is emitted."""
    architecture, options, limit = RIGHT[kind]
    raw = built(architecture, options)
    made, prompt, new = TransformersModel("m", raw), tuple(range(1, 10)), limit - 9
    pair, settings = models.Pair(made, made), Settings(2, 4, Sampling(0.0), max_new_tokens=new)
    expected = raw.generate(
        torch.tensor([prompt]), do_sample=False, max_new_tokens=new, attention_mask=torch.ones(1, 9)
    )
    assert list(generate(pair, verifier("bv"), Request(prompt, "x"), settings).tokens) == expected[0, 9:].tolist()
    with pytest.raises(InputError, match=rf"9 prompt \+ {new + 1} new tokens, expected at most {limit} in all \(.+\)"):
        generate(pair, verifier("bv"), Request(prompt, "x"), replace(settings, max_new_tokens=new + 1))


@pytest.mark.parametrize("kind", WRONG)
def test_models_that_cannot_be_verified_with_are_refused_with_the_reason(kind: str) -> None:  # fault T8
    architecture, options, reason = WRONG[kind]
    with pytest.raises(InputError, match=reason):
        TransformersModel("m", built(architecture, options))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_is_not_taken_for_a_fault(dtype: Any) -> None:
    for seed in range(5):
        TransformersModel("m", module("llama", seed=seed).to(dtype))


def test_check_at_load_spans_the_change_of_a_position_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the limit of 16 the check itself refuses longrope."""
    monkeypatch.setattr("lpverify.decode.transformer._rope_lengths", lambda config: [])
    monkeypatch.setattr("lpverify.decode.transformer.CHECKED", 18)
    with pytest.raises(InputError, match="LlamaForCausalLM, whose logits over a tree after 15 tokens differ"):
        TransformersModel("m", built(*RIGHT["longrope"][:2]))


def test_a_context_that_would_be_too_long_is_refused_before_it_is_run() -> None:
    made = model("llama")
    with pytest.raises(InputError, match="55 prompt . 10 new tokens, expected at most 64"):
        generate(models.Pair(made, made), verifier("bv"), Request((1,) * 55, "x"), Settings(max_new_tokens=10))


@pytest.mark.parametrize("name", ["bv", "ebv", "traversal"])
def test_drafts_are_shorter_near_the_end_of_the_context(name: str) -> None:  # fault T21
    target, draft = model("llama"), model("llama", seed=1)
    pair, request = models.Pair(target, draft), Request((1,) * 55, "x")
    run = generate(pair, verifier(name), request, Settings(3, 8, Sampling(0.0), max_new_tokens=9))
    assert run.tokens == autoregressive(pair, request, Settings(1, 8, Sampling(0.0), max_new_tokens=9)).tokens
    assert len(run.tokens) == 9
    lengths = [55 + sum(record.committed for record in run.rounds[:i]) for i in range(len(run.rounds))]
    assert [record.drafted for record in run.rounds] == [min(8, 64 - length) for length in lengths]
    assert run.rounds[-1].drafted < 8


def test_trees_that_would_not_fit_into_memory_are_refused() -> None:  # fault T17
    made = model("llama")
    pair, request = models.Pair(made, made), Request((1,) * 5, "x")
    with pytest.raises(SizeError, match="drafted tree: got 10000000 paths of 8 tokens, expected at most 14510024"):
        generate(pair, verifier("pbv"), request, Settings(10_000_000, 8, max_new_tokens=9))
    with pytest.raises(SizeError, match="drafted tree"):
        bound.measure(pair, {"bv": verifier("bv")}, request, bound.BoundSettings((10_000_000,)))


def test_logits_that_are_not_numbers_are_refused() -> None:  # fault S6
    broken, sound = model("llama"), model("llama")
    broken.module.lm_head.weight.data[3] = torch.nan
    request, settings = Request((1, 2), "x"), Settings(depth=2, max_new_tokens=4)
    for pair, who in ((models.Pair(broken, sound), "target"), (models.Pair(sound, broken), "draft")):
        with pytest.raises(InputError, match=f"{who} llama: got logits that are NaN"):
            generate(pair, verifier("bv"), request, settings)


class Words:
    """A tokenizer with the given token strings."""

    eos: frozenset[int] = frozenset()

    def __init__(self, *tokens: str) -> None:
        self.vocabulary = {token: i for i, token in enumerate(tokens)}


def test_vocabularies_must_hold_the_same_strings() -> None:  # fault S10
    first, second = model("llama"), model("llama", vocab_size=V - 4)
    strings = [f"t{i}" for i in range(V - 4)]
    assert models.Pair.checked(first, second, Words(*strings), Words(*strings)).vocab_size == V
    with pytest.raises(InputError, match="33 tokens, 37 in the target"):
        models.Pair.checked(first, second)
    with pytest.raises(InputError, match="'c' with id None in the draft, 2 in the target"):
        models.Pair.checked(first, first, Words("a", "b", "c"), Words("a", "b", "other"))
    with pytest.raises(InputError, match="'a' with id 1 in the draft, 0 in the target"):
        models.Pair.checked(first, first, Words("a", "b"), Words("b", "a"))


@pytest.mark.parametrize(("target_size", "draft_size"), [(V, V - 4), (V - 4, V)])
def test_a_padded_vocabulary_changes_nothing_the_target_emits(target_size: int, draft_size: int) -> None:  # fault S10
    target, draft = model("llama", vocab_size=target_size), model("qwen3", vocab_size=draft_size)
    pair = models.Pair(target, draft)
    request, settings = Request((1, 2), "x"), Settings(num_paths=2, depth=3, max_new_tokens=20)
    for name in ("bv", "traversal", "specinfer"):
        tokens = generate(pair, verifier(name), request, settings).tokens
        assert len(tokens) == 20
        assert max(tokens) < target_size
    greedy = replace(settings, sampling=Sampling(temperature=0))
    expected = target.module.generate(torch.tensor([[1, 2]]), do_sample=False, max_new_tokens=20)[0, 2:].tolist()
    assert list(generate(pair, verifier("bv"), request, greedy).tokens) == expected
