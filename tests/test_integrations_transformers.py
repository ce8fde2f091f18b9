"""`generate` inside ``model.generate``: the target's processed distribution; without sampling, plain generate's text.

The models are random and tiny, or the bundled pair. References come from the transformers library itself: its own
loops, and its logits processors on plain passes over whole prefixes.
"""

from __future__ import annotations

import queue
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial
from inspect import signature
from itertools import product
from math import log, sqrt
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from lpverify import InputError  # noqa: E402
from lpverify.decode import drafter  # noqa: E402
from lpverify.decode.load import load_tiny, quiet  # noqa: E402
from lpverify.decode.metrics import summarize  # noqa: E402
from lpverify.decode.transformer import CACHE_ARGUMENTS  # noqa: E402
from lpverify.integrations import transformers_text  # noqa: E402
from lpverify.integrations.transformers import FOLDER, VerifiedOutput, generate  # noqa: E402
from lpverify.verifiers import names, verifier  # noqa: E402

LogitsProcessor: Any = transformers.LogitsProcessor
StoppingCriteria: Any = transformers.StoppingCriteria
FALSE_ALARM = 1e-6
BASIC = {"pad_token_id": 0, "eos_token_id": 1, "max_new_tokens": 16}
SHAPE: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
BANS = {
    "plain": {},
    "repetition": {"repetition_penalty": 1.5},
    "n-gram": {"no_repeat_ngram_size": 2},
    "bad words": {"bad_words_ids": [[7], [11, 12], [3, 5, 9]]},
    "minimum": {"min_new_tokens": 12, "eos_token_id": [1, 2, 4, 6, 8, 10]},
    "together": {
        "repetition_penalty": 1.3,
        "no_repeat_ngram_size": 3,
        "bad_words_ids": [[7], [11, 12]],
        "min_new_tokens": 8,
    },
}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    quiet()
    torch.set_num_threads(1)


@cache
def model_of(kind: str = "llama", vocab_size: int = 24, noise: float = 0.0, context: int = 64) -> Any:
    """A random model; with ``noise`` a draft for the one without."""
    from transformers import LlamaConfig, LlamaForCausalLM, OPTConfig, OPTForCausalLM, Qwen3Config, Qwen3ForCausalLM

    shared = {"vocab_size": vocab_size, "max_position_embeddings": context, "bos_token_id": 0, "eos_token_id": 1}
    shared |= {"pad_token_id": 0} | SHAPE
    if kind == "opt":
        config, build = OPTConfig(**shared, ffn_dim=32, word_embed_proj_dim=16, init_std=0.5), OPTForCausalLM
    elif kind == "qwen3":
        config = Qwen3Config(**shared, intermediate_size=32, num_key_value_heads=1, head_dim=8, initializer_range=0.5)
        build = Qwen3ForCausalLM
    else:
        config, build = LlamaConfig(**shared, intermediate_size=32, initializer_range=0.5), LlamaForCausalLM
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = build(config).eval()
        with torch.no_grad():
            for weights in model.parameters():
                weights += noise * weights.std() * torch.randn_like(weights)
    return model


@cache
def bundled() -> tuple[Any, Any, Any]:
    """Target, draft and tokenizer."""
    (target, tokenizer), (draft, _) = load_tiny("target"), load_tiny("draft")
    return target, draft, tokenizer


def loop(draft: Any = None, **options: Any) -> dict[str, Any]:
    """The arguments that ask for `generate`."""
    draft = model_of(noise=0.3) if draft is None else draft
    return {"custom_generate": generate, "draft_model": draft, "paths": 3, "depth": 4} | options


def prompts(*rows: list[int]) -> dict[str, Any]:
    """Rows of tokens, padded on the left."""
    longest = max(map(len, rows))
    ids = [[0] * (longest - len(row)) + row for row in rows]
    mask = [[0] * (longest - len(row)) + [1] * len(row) for row in rows]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


PROMPT = prompts([2, 14, 9, 21])
BATCH = prompts([2, 14, 9, 21], [5], [3, 3, 17, 8, 20, 5])


# Without sampling: token for token


@pytest.mark.parametrize("bans", BANS)
@pytest.mark.parametrize("name", names())
def test_without_sampling_the_text_is_that_of_plain_generate(name: str, bans: str) -> None:
    model, options = model_of(), BASIC | BANS[bans]
    plain = model.generate(**PROMPT, **options)
    assert torch.equal(model.generate(**PROMPT, **options, **loop(algorithm=name)), plain)


@pytest.mark.parametrize("kind", ["opt", "qwen3"])
def test_other_architectures(kind: str) -> None:
    model, draft = model_of(kind), model_of(kind, noise=0.3)
    options = BASIC | BANS["together"]
    assert torch.equal(model.generate(**BATCH, **options, **loop(draft)), model.generate(**BATCH, **options))


@pytest.mark.parametrize("bans", ["plain", "together"])
def test_the_bundled_pair(bans: str) -> None:
    model, draft, tokenizer = bundled()
    prompt = tokenizer("def add(a, b):\n", return_tensors="pt")
    options = {"max_new_tokens": 40} | BANS[bans]
    output = model.generate(**prompt, **options, **loop(draft, depth=8), return_dict_in_generate=True)
    assert torch.equal(output.sequences, model.generate(**prompt, **options))
    assert summarize(output.runs).block_efficiency > 1.5


def allowed(prompt: int, tokens: Any) -> list[int]:
    """Depends on the prompt and on the token before."""
    return [3 + prompt, 7, 9, 11 + int(tokens[-1]) % 7, 20]


PROCESSORS: dict[str, dict[str, Any]] = {
    "sequence_bias": {"sequence_bias": {(7,): 3.0, (9, 4): 5.0, (12, 4): -10.0}},
    "encoder_repetition_penalty": {"encoder_repetition_penalty": 2.0},
    "encoder_no_repeat_ngram_size": {"encoder_no_repeat_ngram_size": 1},
    "min_length": {"min_length": 15, "eos_token_id": list(range(1, 20))},
    "forced_eos_token_id": {"forced_eos_token_id": 5},
    "forced_bos_token_id": {"forced_bos_token_id": 5},
    "exponential_decay": {"exponential_decay_length_penalty": (3, 1.5)},
    "suppress_tokens": {"suppress_tokens": [3, 4, 5, 20]},
    "begin_suppress_tokens": {"begin_suppress_tokens": [17, 22, 9, 4, 2]},
    "prefix_allowed_tokens_fn": {"prefix_allowed_tokens_fn": allowed},
    "remove_invalid_values": {"remove_invalid_values": True},
    "renormalize_logits": {"renormalize_logits": True},
    "watermarking": {"watermarking_config": {"greenlist_ratio": 0.5, "bias": 3.0, "context_width": 1}},
}


@pytest.mark.parametrize("option", PROCESSORS)
def test_every_processor_in_a_batch(option: str) -> None:
    """Compared with the library's own loop on the same padded batch."""
    model, options = model_of(), BASIC | PROCESSORS[option]
    plain = model.generate(**BATCH, **options)
    assert torch.equal(model.generate(**BATCH, **options, **loop()), plain)
    if option not in ("remove_invalid_values", "renormalize_logits", "forced_bos_token_id"):
        assert not torch.equal(plain, model.generate(**BATCH, **BASIC)), "the option has no effect here"


# With sampling: the target's processed distribution


LAWS: dict[str, dict[str, Any]] = {
    "repetition": {"repetition_penalty": 3.0, "top_k": 0},
    "n-gram": {"no_repeat_ngram_size": 2, "top_k": 0},
    "bad words": {"bad_words_ids": [[1, 2], [0, 0, 2]], "top_k": 0},
    "bias": {"sequence_bias": {(1, 2): 2.0, (0, 1, 0): -4.0}, "top_k": 0},
    "minimum": {"min_new_tokens": 2, "eos_token_id": 0, "top_k": 0},
    "filters": {"repetition_penalty": 2.0, "temperature": 0.8, "top_k": 2, "top_p": 0.9},
    "more filters": {"no_repeat_ngram_size": 3, "min_p": 0.1, "typical_p": 0.9, "top_k": 0},
    "cut-offs": {"repetition_penalty": 2.0, "epsilon_cutoff": 0.05, "eta_cutoff": 0.3, "top_k": 0},
}
SMALL = prompts([1, 1])
SAMPLED: dict[str, Any] = {"max_new_tokens": 8, "do_sample": True, "pad_token_id": 2, "eos_token_id": None}


@cache
def flat(noise: float = 0.0) -> Any:
    """A model of 3 tokens, none of which is rare."""
    model = model_of(vocab_size=3, noise=noise)
    with torch.no_grad():
        model.lm_head.weight *= 0.4
    return model


class Begun(Exception):
    """Raised in place of the first decoding round."""


def begun(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The request of the engine as `generate` makes it, before its first round."""

    def stop(active: Any, *_: Any) -> None:
        raise Begun(active)

    model, draft = flat(), flat(noise=0.4)
    with monkeypatch.context() as patch:
        patch.setattr(transformers_text, "decoding_round", stop)
        with pytest.raises(Begun) as caught:
            model.generate(**SMALL, **options, **loop(draft))
    return caught.value.args[0]


def processed_rows(options: dict[str, Any]) -> Callable[[tuple[int, ...]], np.ndarray]:
    """The reference: prefix -> the target's processed distribution, by the library on plain passes."""
    caught: list[Any] = []

    def catch(model: Any, input_ids: Any, logits_processor: Any = None, **_: Any) -> Any:
        caught.append(logits_processor)
        return input_ids

    model = flat()
    model.generate(**SMALL, **options, custom_generate=catch)

    @cache
    def row(prefix: tuple[int, ...]) -> np.ndarray:
        ids = torch.cat([SMALL["input_ids"], torch.tensor([prefix], dtype=torch.long).reshape(1, -1)], dim=1)
        with torch.no_grad():
            scores = caught[0](ids, model(ids).logits[:, -1].float())
        return torch.softmax(scores.double(), dim=-1)[0].numpy()

    return row


def text_law(row: Callable[[tuple[int, ...]], np.ndarray], eos: int | None, length: int) -> Counter[tuple[int, ...]]:
    """Text -> probability, of texts of ``length`` tokens or up to their end."""
    law: Counter[tuple[int, ...]] = Counter()

    def walk(prefix: tuple[int, ...], mass: float) -> None:
        if len(prefix) == length or (prefix and prefix[-1] == eos):
            law[prefix] += mass
            return
        for token, probability in enumerate(row(prefix)):
            if probability > 0:
                walk((*prefix, token), mass * probability)

    walk((), 1.0)
    return law


def law_errors(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, commit: tuple[int, ...] = ()
) -> dict[str, float]:
    """Verifier -> total variation between the text after one round, continued by the reference, and the reference.

    Exact: summed over all drafts of 2 paths of 2 tokens. With ``commit`` the round is the second, after a first one
    that ended with these tokens.
    """
    num_paths, depth, eos = 2, 2, options.get("eos_token_id")
    active, row = begun(options, monkeypatch), processed_rows(options)
    monkeypatch.setattr(drafter, "pick_each", lambda rows, tokens: tokens.long())  # uniforms name the tokens

    def tree_of(paths: Any) -> Any:
        active.keys = SimpleNamespace(drafting=lambda *_: np.array(paths, dtype=float).T)
        return active.draft_tree(num_paths, depth, 0)

    with torch.inference_mode():
        if commit:
            tree = tree_of([commit[:-1], commit[:-1]])
            active.commit(tree, tree.size - 1, commit[-1])
        length, trees = active.target.length, []
        for flat in product(range(3), repeat=num_paths * depth):
            tree = tree_of(np.reshape(flat, (num_paths, depth)))
            active.forget(length)
            mass = 1.0
            for path, nodes in zip(tree.paths.tolist(), tree.node_of.tolist(), strict=True):
                for token, node in zip(path, nodes, strict=False):
                    mass *= float(tree.draft[tree.draft_row[node], token])
            if mass > 0:
                trees.append((mass, tree))
    assert sum(mass for mass, _ in trees) == pytest.approx(1, abs=1e-9)
    reference = text_law(lambda prefix: row(commit + prefix), eos, depth + 1)
    errors = {}
    for name in names():
        law: Counter[tuple[int, ...]] = Counter()
        for mass, tree in trees:
            stops = verifier(name)(tree)
            for node, stop in enumerate(np.asarray(stops.stop).tolist()):
                if stop <= 0:
                    continue
                path = int((tree.node_of == node).any(axis=1).argmax())
                accepted = tree.paths[path, : tree.depth[node]].tolist()
                for token, probability in enumerate(np.asarray(stops.next_token(node)).tolist()):
                    text = (*accepted, token)
                    end = text.index(eos) + 1 if eos in text else len(text)
                    law[text[:end]] += mass * stop * probability
        longest: Counter[tuple[int, ...]] = Counter()
        for text, mass in law.items():
            rest = depth + 1 - len(text)
            ended = text[-1] == eos
            after = {(): 1.0} if ended else text_law(lambda prefix, text=text: row(commit + text + prefix), eos, rest)
            for more, probability in after.items():
                longest[text + more] += mass * probability
        errors[name] = sum(abs(longest[text] - reference[text]) for text in longest | reference) / 2
    return errors


@pytest.mark.parametrize("law", LAWS)
def test_sampled_texts_have_the_processed_distribution(law: str, monkeypatch: pytest.MonkeyPatch) -> None:
    errors = law_errors(SAMPLED | LAWS[law], monkeypatch)
    assert max(errors.values()) < 1e-5, errors


@pytest.mark.parametrize("law", ["repetition", "bias"])
def test_so_they_do_in_the_second_round(law: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = SAMPLED | LAWS[law]
    assert max(law_errors(options, monkeypatch, commit=(2, 2, 0)).values()) < 1e-5


@pytest.mark.parametrize("law", ["repetition", "n-gram", "bad words", "bias", "minimum"])
def test_rows_without_the_prefix_of_their_node_fail_the_same_test(law: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = transformers_text.RowProcess.__call__

    def committed_only(self: Any, tokens: Any, logits: Any) -> Any:
        return right(self, tokens[:, : self.prompt], logits)

    monkeypatch.setattr(transformers_text.RowProcess, "__call__", committed_only)
    errors = law_errors(SAMPLED | LAWS[law], monkeypatch)
    assert min(errors.values()) > 1e-3, errors


def test_a_text_that_is_not_kept_up_fails_in_the_second_round(monkeypatch: pytest.MonkeyPatch) -> None:
    right = transformers_text.RowProcess.__call__

    def without_the_first_round(self: Any, tokens: Any, logits: Any) -> Any:
        tokens = torch.cat([tokens[:, : self.prompt], tokens[:, self.prompt + 3 :]], dim=1)
        return right(self, tokens, logits)

    options = SAMPLED | LAWS["repetition"]
    monkeypatch.setattr(transformers_text.RowProcess, "__call__", without_the_first_round)
    assert min(law_errors(options, monkeypatch, commit=(2, 2, 0)).values()) > 1e-3


@pytest.mark.parametrize("name", ["bv", "traversal", "pbv"])
def test_whole_texts_have_the_processed_distribution(name: str) -> None:
    """Sampled: exceeds the mean bound on the total variation by McDiarmid's with probability `FALSE_ALARM` at most."""
    options = SAMPLED | {"max_new_tokens": 4} | LAWS["minimum"] | {"repetition_penalty": 2.0}
    reference = text_law(processed_rows(options), 0, 4)
    model, draft, count = flat(), flat(noise=0.4), 250
    torch.manual_seed(0)
    texts = model.generate(
        **SMALL, **options, **loop(draft, algorithm=name, paths=2, depth=2), num_return_sequences=count
    )
    seen: Counter[tuple[int, ...]] = Counter()
    for text in texts[:, SMALL["input_ids"].shape[1] :].tolist():
        seen[tuple(text[: text.index(0) + 1] if 0 in text else text)] += 1
    distance = sum(abs(seen[text] / count - reference[text]) for text in seen | reference) / 2
    bound = sum(sqrt(p * (1 - p) / count) for p in reference.values()) / 2 + sqrt(log(1 / FALSE_ALARM) / (2 * count))
    assert distance <= bound


# Batches, seeds


@pytest.mark.parametrize("options", [{}, {"do_sample": True, "repetition_penalty": 1.3}, BANS["together"]])
def test_a_batch_equals_its_prompts(options: dict[str, Any]) -> None:
    model, options = model_of(), BASIC | options
    rows = [row[mask > 0] for row, mask in zip(*BATCH.values(), strict=True)]
    torch.manual_seed(5)
    batch = model.generate(**BATCH, **options, **loop())
    torch.manual_seed(5)
    for row, whole in zip(rows, batch, strict=True):
        [alone] = model.generate(row[None], **options, **loop())
        new = alone[len(row) :].tolist()
        padded = whole[BATCH["input_ids"].shape[1] :].tolist()
        assert padded == new + [0] * (len(padded) - len(new))


def test_seeds_are_torch_s(monkeypatch: pytest.MonkeyPatch) -> None:
    model, options = model_of(), BASIC | {"do_sample": True, "eos_token_id": None}
    texts = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        texts.append(model.generate(**PROMPT, **options, **loop(), num_return_sequences=2))
    assert torch.equal(texts[0], texts[1])
    assert not torch.equal(texts[0], texts[2])
    assert not torch.equal(texts[0][0], texts[0][1])
    before = torch.get_rng_state()
    model.generate(**PROMPT, **BASIC, **loop())
    assert torch.equal(torch.get_rng_state(), before)


# Streamers and stopping criteria


class Recorder:
    def __init__(self) -> None:
        self.puts: list[Any] = []
        self.ends = 0

    def put(self, tokens: Any) -> None:
        assert self.ends == 0
        self.puts.append(tokens.tolist())

    def end(self) -> None:
        self.ends += 1


@pytest.mark.parametrize("bound", [False, True])
@pytest.mark.parametrize("prompt", [PROMPT, BATCH])
def test_streamers_get_what_plain_generate_gives_them(bound: bool, prompt: dict[str, Any]) -> None:
    model, options = model_of(), BASIC | {"eos_token_id": [1, 2, 4, 6]}
    plain, ours = Recorder(), Recorder()
    model.generate(**prompt, **options, streamer=plain)
    if bound:
        model.generate(**prompt, **options, **loop(custom_generate=partial(generate, streamer=ours)))
    else:
        model.generate(**prompt, **options, **loop(), streamer=ours)
    assert ours.puts == plain.puts
    assert len(ours.puts) > 1
    assert ours.ends == plain.ends == 1


def test_a_text_iterator_ends() -> None:
    model, draft, tokenizer = bundled()
    prompt = tokenizer("import os", return_tensors="pt")
    streamer = transformers.TextIteratorStreamer(tokenizer, timeout=0.0, skip_prompt=True)
    text = model.generate(**prompt, **loop(draft), streamer=streamer, max_new_tokens=12)
    assert "".join(streamer) == tokenizer.decode(text[0, prompt["input_ids"].shape[1] :])
    with pytest.raises(queue.Empty):
        next(streamer)


def test_criteria_are_asked_after_every_token() -> None:
    """One of one's own that needs the scores, and the library's limit of length."""
    asked: list[tuple[int, int]] = []

    class Likely(StoppingCriteria):
        def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
            asked.append((input_ids.shape[1], len(scores)))
            return torch.softmax(scores[-1], -1).amax(-1) > 0.9

    model = model_of()
    options = BASIC | {"output_scores": True, "return_dict_in_generate": True}
    criteria = transformers.StoppingCriteriaList([Likely()])
    plain = model.generate(**PROMPT, **options, stopping_criteria=criteria)
    once = asked.copy()
    asked.clear()
    ours = model.generate(**PROMPT, **options, **loop(), stopping_criteria=criteria)
    assert torch.equal(ours.sequences, plain.sequences)
    assert asked == once
    assert 4 < ours.sequences.shape[1] < 24
    [run] = ours.runs
    assert sum(record.committed for record in run.rounds) == ours.sequences.shape[1] - 4
    long = transformers.StoppingCriteriaList([transformers.MaxLengthCriteria(30)])
    plain = model.generate(**PROMPT, **BASIC | {"eos_token_id": None}, stopping_criteria=long)
    assert plain.shape[1] == 30
    assert torch.equal(
        model.generate(**PROMPT, **BASIC | {"eos_token_id": None}, stopping_criteria=long, **loop()), plain
    )


def test_stop_strings_and_time() -> None:
    model, draft, tokenizer = bundled()
    prompt = tokenizer("def add(a, b):\n", return_tensors="pt")
    plain = model.generate(**prompt, max_new_tokens=40)
    stop = tokenizer.decode(plain[0, -12:-9])
    ours = model.generate(
        **prompt, **loop(draft, depth=6), max_new_tokens=40, stop_strings=[stop], text_tokenizer=tokenizer
    )
    expected = model.generate(**prompt, max_new_tokens=40, stop_strings=[stop], tokenizer=tokenizer)
    assert torch.equal(ours, expected)
    assert ours.shape[1] < plain.shape[1]
    with pytest.raises(InputError, match="stop_strings: got no tokenizer, expected text_tokenizer="):
        model.generate(**prompt, **loop(draft), max_new_tokens=9, stop_strings=[stop], tokenizer=tokenizer)
    timed = model.generate(**prompt, **loop(draft), max_new_tokens=40, max_time=0.0)
    assert timed.shape[1] == prompt["input_ids"].shape[1] + 1


def test_nothing_is_asked_of_a_prefix_that_no_text_has() -> None:
    """Processors may have no answer after an end of text or beyond the limit."""
    length, eos = PROMPT["input_ids"].shape[1], [1, 4, 6]

    class Careful(LogitsProcessor):
        def __call__(self, input_ids: Any, scores: Any) -> Any:
            new = input_ids[:, length:]
            assert new.shape[1] < 6
            assert not torch.isin(new, torch.tensor(eos)).any()
            return scores.mul_(0.5)  # written to, as some do

    model = model_of()
    options = BASIC | {"eos_token_id": eos, "max_new_tokens": 6, "do_sample": True, "num_return_sequences": 20}
    torch.manual_seed(0)
    texts = model.generate(**PROMPT, **options, **loop(depth=8), logits_processor=[Careful()])[:, length:]
    ended = torch.isin(texts, torch.tensor(eos)).any(dim=1)
    assert 0 < int(ended.sum()) < 20


# Results


@pytest.mark.parametrize("prompt", [PROMPT, BATCH])
def test_scores_and_logits_are_those_of_plain_generate(prompt: dict[str, Any]) -> None:
    model = model_of()
    options = BASIC | BANS["together"] | {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    plain = model.generate(**prompt, **options)
    ours = model.generate(**prompt, **options, **loop())
    assert isinstance(ours, VerifiedOutput)
    assert torch.equal(ours.sequences, plain.sequences)
    ended = (plain.sequences[:, prompt["input_ids"].shape[1] :] == 1).cumsum(dim=1)
    for kind in ("scores", "logits"):
        right, rows = plain[kind], ours[kind]
        assert len(rows) == len(right)
        for i, (row, expected) in enumerate(zip(rows, right, strict=True)):
            running = ended[:, i - 1] == 0 if i else ended[:, 0] >= 0
            torch.testing.assert_close(row[running], expected[running], rtol=1e-3, atol=1e-4)
            assert not row.is_inference()
            assert (row[~running][:, 0] == 0).all()
            assert torch.isneginf(row[~running][:, 1:]).all()
    stats = summarize(ours.runs)
    assert stats.committed_tokens == sum(len(run.tokens) for run in ours.runs)
    assert stats.block_efficiency > 1


def test_logits_of_sampled_texts_are_those_along_the_text() -> None:
    """Not those of other drafted nodes."""
    model, options = model_of(), SAMPLED | {"max_new_tokens": 12, "return_dict_in_generate": True}
    torch.manual_seed(0)
    output = model.generate(**PROMPT, **options, output_logits=True, **loop(paths=4))
    with torch.no_grad():
        plain = model(output.sequences).logits[0, 3:-1]
    torch.testing.assert_close(torch.cat(output.logits), plain, rtol=1e-3, atol=1e-4)


def test_models_are_left_as_they_were() -> None:
    model, draft = model_of("opt"), model_of("opt", noise=0.3)  # OPT drops 10 % in training mode
    expected = model.generate(**PROMPT, **BASIC)
    model.train()
    try:
        assert torch.equal(model.generate(**PROMPT, **BASIC, **loop(draft)), expected)
        assert all(part.training for part in model.modules())
        assert not any(part.training for part in draft.modules())
    finally:
        model.eval()


def test_modules_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from lpverify.decode import transformer

    checked: list[str] = []
    monkeypatch.setattr(transformer, "check_passes", lambda model: checked.append(model.name))
    model, draft = model_of("qwen3", vocab_size=12), model_of("qwen3", vocab_size=12, noise=0.1)
    for _ in range(2):
        model.generate(torch.tensor([[2, 3]]), **BASIC, **loop(draft))
    assert len(checked) == 2
    draft.to(torch.float64)
    model.generate(torch.tensor([[2, 3]]), **BASIC, **loop(draft))
    assert len(checked) == 3


def test_a_draft_with_another_number_of_logits() -> None:
    """The token strings are compared where both tokenizers are given."""
    model, draft, tokenizer = bundled()
    size = model.config.vocab_size
    prompt, options = tokenizer("import os", return_tensors="pt"), {"max_new_tokens": 10, "repetition_penalty": 1.2}
    expected = model.generate(**prompt, **options)
    for padded in (size + 8, size + 64):
        larger = model_of("llama", vocab_size=padded, context=128)
        with pytest.raises(
            InputError, match=f"draft_model: got {padded} logits, {size} of the model, expected as many"
        ):
            model.generate(**prompt, **options, **loop(larger))
        both = {"text_tokenizer": tokenizer, "draft_tokenizer": tokenizer}
        assert torch.equal(model.generate(**prompt, **options, **loop(larger), **both), expected)
        backwards = larger.generate(**prompt, **options, **loop(draft), **both)
        assert torch.equal(backwards, larger.generate(**prompt, **options))


# What is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": 2}, "num_beams: got 2, expected 1 "),
        ({"penalty_alpha": 0.6, "top_k": 4}, "penalty_alpha: got 0.6, expected none"),
        ({"dola_layers": "low"}, "dola_layers: got 'low', expected none"),
        ({"guidance_scale": 1.5}, "guidance_scale: got 1.5, expected none"),
        ({"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens: got 3, expected none"),
        ({"assistant_model": "the target"}, "assistant_model: got a LlamaForCausalLM, expected draft_model="),
        ({"use_cache": False}, "use_cache: got False, expected True"),
        ({"cache_implementation": "static"}, "cache_implementation: got 'static', expected none"),
        ({"cache": "a cache"}, "(cache|past_key_values): got a DynamicCache, expected none"),
        ({"output_attentions": True}, "output_attentions: got True, expected False"),
        ({"output_hidden_states": True}, "output_hidden_states: got True, expected False"),
        ({"synced_gpus": True}, "synced_gpus: got True, expected False"),
        ({"watermarking_config": "synthid"}, "logits_processor: got a SynthIDTextWatermarkLogitsProcessor"),
        ({"draft_model": None}, "draft_model: got None, expected a loaded causal model"),
        ({"draft_model": "gpt2"}, "draft_model: got 'gpt2', expected a loaded causal model"),
        ({"algorithm": "best"}, "algorithm: got 'best', expected one of token, bv"),
        ({"algorithm": "policy"}, "algorithm: got 'policy', expected one of"),
        ({"paths": 0}, r"paths \(K\): got 0, expected an integer >= 1"),
        ({"depth": 0}, r"depth \(L\): got 0, expected an integer >= 1"),
        ({"max_new_tokens": 100}, "target .*: got 4 prompt . 100 new tokens, expected at most 64"),
        ({"attention_mask": torch.tensor([[1, 1, 1, 0]])}, "attention_mask: got a gap after the first token"),
        ({"position_ids": torch.tensor([[0, 1, 2, 4]])}, "position_ids: got other positions"),
        ({"inputs_embeds": torch.zeros(1, 4, 16)}, "inputs_embeds: got a Tensor, expected none"),
        ({"input_ids": BATCH["input_ids"], "attention_mask": None, "pad": None}, "pad_token_id: got none for 3 texts"),
    ],
)
def test_options_that_cannot_be_honoured_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    model, options = model_of(), dict(options)
    arguments = PROMPT | BASIC | loop()
    if options.get("watermarking_config"):
        keys = {"ngram_len": 3, "keys": [3, 5]}
        options["watermarking_config"] = transformers.SynthIDTextWatermarkingConfig(**keys)
    if options.pop("cache", None):
        name = next(name for name in CACHE_ARGUMENTS if name in signature(model.forward).parameters)
        options[name] = transformers.DynamicCache()
    if options.get("assistant_model"):
        options["assistant_model"] = model
    if "pad" in options:
        del options["pad"]
        never = type("Never", (StoppingCriteria,), {"__call__": lambda *_, **__: False})
        arguments |= {"pad_token_id": None, "eos_token_id": None, "stopping_criteria": [never()]}
    with pytest.raises(InputError, match=message) as caught:
        model.generate(**arguments | options)
    assert "\n" not in str(caught.value)


def test_a_call_without_the_library_is_refused() -> None:
    with pytest.raises(InputError, match="generate: got no generation configuration, expected a call by"):
        generate(model_of(), PROMPT["input_ids"], draft_model=model_of())


def test_undefined_logits_are_refused() -> None:
    model = model_of("llama", vocab_size=9)
    bans = {"bad_words_ids": [[token] for token in range(9) if token != 1], "min_new_tokens": 5}
    with pytest.raises(InputError, match="got logits that are NaN or infinite"):
        model.generate(torch.tensor([[2]]), **BASIC | bans, **loop(model), do_sample=True)


# The folder in the form of a repository of the hub


@pytest.fixture
def modules_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The library copies the folder's code before it runs it."""
    import sys

    from transformers import dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path))
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    for name in [name for name in sys.modules if name.startswith("transformers_modules")]:
        del sys.modules[name]


def test_one_text_asks_for_the_folder(modules_cache: None) -> None:
    model, draft, tokenizer = bundled()
    prompt, options = tokenizer("import os", return_tensors="pt"), {"max_new_tokens": 30} | BANS["together"]
    plain = model.generate(**prompt, **options)
    stop = tokenizer.decode(plain[0, -12:-9])
    expected, streamer = model.generate(**prompt, **options, stop_strings=stop, tokenizer=tokenizer), Recorder()
    assert expected.shape[1] < plain.shape[1]
    folder = {"custom_generate": str(FOLDER), "trust_remote_code": True, "algorithm": "gbv", "paths": 2, "depth": 3}
    ours = model.generate(
        **prompt, **options, **folder, assistant_model=draft, stop_strings=stop, tokenizer=tokenizer, streamer=streamer
    )
    assert torch.equal(ours, expected)
    assert [token for puts in streamer.puts[1:] for token in puts] == ours[0, prompt["input_ids"].shape[1] :].tolist()
    assert streamer.ends == 1
    config = transformers.GenerationConfig(**options, stop_strings=stop)
    for given in ({"generation_config": config}, {"generation_config": config, "stop_strings": None}):
        text = model.generate(**prompt, **folder, **given, draft_model=draft, tokenizer=tokenizer)
        assert torch.equal(text, expected if len(given) == 1 else plain)
    assert config.stop_strings == stop
    with pytest.raises(InputError, match="assistant_model: got a draft_model too"):
        model.generate(**prompt, **folder, draft_model=draft, assistant_model=draft)


def test_the_folder_has_what_the_hub_asks_for() -> None:
    assert sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*") if path.is_file()) == [
        "README.md",
        "custom_generate/generate.py",
        "custom_generate/requirements.txt",
    ]
    assert "- custom_generate" in (FOLDER / "README.md").read_text()
