"""``model.generate`` of the transformers library with drafted trees and any verifier of this project.

    model.generate(**inputs, custom_generate=generate, draft_model=draft, algorithm="pbv", paths=4, depth=8)

The library prepares inputs, logits processors and stopping criteria as for its own loops and calls `generate` in place
of them; the engine (`lpverify.decode.engine`) drafts, scores and verifies. Every logits processor changes the rows of
target and draft at every node of the drafted tree, each by the node's own prefix. So a text has the distribution that
the target's own ``generate`` would have with the same options, and without sampling it is the same text.

The folder `FOLDER` has the form of a repository of the hub, for ``custom_generate=str(FOLDER)`` and
``trust_remote_code=True``.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers.generation import EosTokenCriteria, MaxLengthCriteria, StoppingCriteriaList, StopStringCriteria
from transformers.generation.utils import GenerateDecoderOnlyOutput

from lpverify import errors
from lpverify.decode.engine import Settings
from lpverify.decode.metrics import Generation
from lpverify.decode.models import Pair
from lpverify.decode.sampling import Sampling
from lpverify.decode.transformer import TransformersModel, TransformersTokenizer
from lpverify.integrations.transformers_options import call_of_generate, check_options, padding_widths
from lpverify.integrations.transformers_text import RowProcess, Stream, Text, for_row
from lpverify.verifiers import Verifier, names
from lpverify.verifiers import verifier as verifier_of

FOLDER = Path(__file__).with_name("hub")
_CHECKED: WeakKeyDictionary[Any, tuple[Any, ...]] = WeakKeyDictionary()  # module -> what it was like when checked


@dataclass
class VerifiedOutput(GenerateDecoderOnlyOutput):
    """What the library's own loops return, without the cache, and the record of each row.

    Rows that end early are padded; there ``scores`` and ``logits`` have all mass on the padding token.
    """

    runs: tuple[Generation, ...] | None = None  # for `lpverify.decode.metrics.summarize`


def generate(
    model: Any,
    input_ids: torch.Tensor,
    logits_processor: Sequence[Any] = (),
    stopping_criteria: Sequence[Any] = (),
    generation_config: Any = None,
    *,
    draft_model: Any = None,
    algorithm: str | Verifier = "pbv",
    paths: int = 4,
    depth: int = 8,
    streamer: Any = None,
    stop_strings: str | list[str] | None = None,
    text_tokenizer: Any = None,
    draft_tokenizer: Any = None,
    **model_kwargs: Any,
) -> Any:
    """The decoding loop for ``model.generate(..., custom_generate=generate, draft_model=draft)``.

    Every row of the batch is decoded by itself and without its padding, so its text does not depend on other rows.
    With sampling each row draws a seed from torch's global generator: a batch continues as its prompts do one after
    the other. Both models compute in evaluation mode.

    Args:
        model, input_ids, logits_processor, stopping_criteria, generation_config, model_kwargs: as the library passes
            them. A processor of your own must be a function of the prefix and the logits of each row. Stopping criteria
            are asked after every token, for each row by itself.
        draft_model: a causal model with the tokens of ``model``.
        algorithm: the name of a verifier, or a `lpverify.verifiers.Verifier`.
        paths, depth: K drafted paths of L tokens. Without sampling all paths would be one, so one is drafted.
        streamer: gets the prompt, every token and the end. It may be bound (`functools.partial`) or, as usual, be an
            argument of ``model.generate``.
        stop_strings: end a text; needs ``text_tokenizer``, because ``tokenizer`` is not passed on by the library.
        text_tokenizer, draft_tokenizer: of ``model`` and ``draft_model``. With both their token strings are compared,
            and the numbers of logits may differ.

    Returns:
        (B, T) tokens, padded on the right, or with ``return_dict_in_generate`` a `VerifiedOutput`.

    Raises:
        InputError: with the name of an option or a model that cannot be used; a text that may outgrow a model's
            context; logits that are NaN or infinite.

    >>> from lpverify.decode.load import load_tiny, quiet
    >>> quiet()
    >>> (model, tokenizer), (draft, _) = load_tiny("target"), load_tiny("draft")
    >>> prompt = tokenizer("def add(a, b):", return_tensors="pt")
    >>> texts = [model.generate(**prompt, max_new_tokens=8)]
    >>> texts += [model.generate(**prompt, max_new_tokens=8, custom_generate=generate, draft_model=draft, depth=4)]
    >>> torch.equal(*texts)
    True
    """
    call = call_of_generate()
    check_options(model, generation_config, logits_processor, call, model_kwargs)
    if not isinstance(draft_model, torch.nn.Module):
        got, expected = errors.shown(draft_model), "a loaded causal model with the tokens of the model"
        raise errors.fail("draft_model", got=got, expected=expected)
    if not isinstance(algorithm, Verifier):
        algorithm = verifier_of(errors.choice("algorithm", algorithm, names()))
    criteria = _criteria(stopping_criteria, stop_strings, text_tokenizer)
    pad = _padding_token(generation_config, criteria, len(input_ids))
    settings = _settings(generation_config, criteria, input_ids.shape[1], paths, depth)
    widths = padding_widths(input_ids, model_kwargs)
    with _evaluation(model, draft_model):
        pair = _pair(model, draft_model, text_tokenizer, draft_tokenizer)
        pair.check_tree(settings.num_paths, settings.depth)
        for width in widths:
            pair.check_context(input_ids.shape[1] - width, settings.max_new_tokens)
        given = call.get("streamer")  # it has been given the prompt
        if given is None and streamer is not None:
            streamer.put(input_ids.cpu())
        stream = Stream(streamer if given is None else given)
        texts = []
        for row, width in enumerate(widths):
            prompt = row // (generation_config.num_return_sequences or 1)
            processors = [for_row(one, row, prompt) for one in logits_processor]
            ids, eos = input_ids[row : row + 1], tuple(settings.eos)
            process = RowProcess(processors, ids[:, :width], ids.shape[1] - width, eos, pair.target.vocab_size)
            seed = int(torch.randint(2**63 - 1, ())) if generation_config.do_sample else 0
            outputs = {kind: _is_asked_for(kind, generation_config) for kind in ("scores", "logits")}
            texts.append(Text(pair, algorithm, replace(settings, seed=seed), ids, process, criteria, **outputs))
        while not all(text.ended for text in texts):
            for text in texts:
                if not text.ended:
                    text.advance()
            stream.put(texts, pad)
        stream.end()
    return _output(texts, input_ids, pad, generation_config)


def generate_from_folder(
    model: Any, *, draft_model: Any = None, assistant_model: Any = None, tokenizer: Any = None, **arguments: Any
) -> Any:
    """``model.generate(..., custom_generate=str(FOLDER), trust_remote_code=True)``, with `generate` as its loop.

    All arguments arrive here, so they have their usual names: ``assistant_model`` is another name of ``draft_model``,
    and ``tokenizer`` finds the stop strings, those of the configuration too. Others, results and errors are those of
    `generate`.
    """
    if draft_model is not None and assistant_model is not None:
        raise errors.fail("assistant_model", got="a draft_model too", expected="one of the two")
    config: Any = arguments.get("generation_config")
    if getattr(config, "stop_strings", None) is not None:  # the library would look for a tokenizer that it dropped
        arguments["generation_config"] = config = copy.deepcopy(config)
        arguments.setdefault("stop_strings", config.stop_strings)
        config.stop_strings = None
    draft = assistant_model if draft_model is None else draft_model
    arguments.setdefault("text_tokenizer", tokenizer)
    return model.generate(custom_generate=partial(generate, draft_model=draft), **arguments)


def _criteria(given: Sequence[Any], stop_strings: Any, tokenizer: Any) -> StoppingCriteriaList:
    criteria = StoppingCriteriaList(given)
    if stop_strings is not None:
        if tokenizer is None:
            expected = "text_tokenizer=... (transformers does not pass tokenizer on)"
            raise errors.fail("stop_strings", got="no tokenizer", expected=expected)
        criteria.append(StopStringCriteria(tokenizer=tokenizer, stop_strings=stop_strings))
    return criteria


def _padding_token(config: Any, criteria: StoppingCriteriaList, batch: int) -> int | None:
    """The token after the end of a text, None if no text can end before another."""
    pad = getattr(config, "_pad_token_tensor", None)
    if pad is None and batch > 1 and not all(isinstance(one, MaxLengthCriteria) for one in criteria):
        raise errors.fail("pad_token_id", got=f"none for {batch} texts", expected="a token for those that end early")
    return None if pad is None else int(pad)


def _settings(config: Any, criteria: StoppingCriteriaList, prompt: int, paths: int, depth: int) -> Settings:
    """Settings of the engine. Filters are logits processors here; the limits and ends are those of the criteria."""
    ends = [one.eos_token_id.tolist() for one in criteria if isinstance(one, EosTokenCriteria)]
    limit = config.max_length if criteria.max_length is None else criteria.max_length
    sampling = Sampling(temperature=1.0 if config.do_sample else 0.0)
    settings = Settings(paths, depth, sampling, max(limit - prompt, 1), eos=frozenset(sum(ends, [])))
    return settings if config.do_sample else replace(settings, num_paths=1)


def _pair(model: Any, draft_model: Any, *tokenizers: Any) -> Pair:
    """Both models for the engine. A module is checked in its first call, and again if it has changed."""
    wrapped: list[TransformersModel] = []
    for module in (model, draft_model):
        if not hasattr(module, "config"):
            got = f"a {type(module).__name__}"
            raise errors.fail("draft_model", got=got, expected="a causal model of transformers")
        state = (module.config._attn_implementation, module.dtype, module.device)
        name = getattr(module, "name_or_path", "") or type(module).__name__
        wrapped.append(TransformersModel(name, module, check=_CHECKED.get(module) != state))
        _CHECKED[module] = state
    target, draft = wrapped
    if all(one is not None for one in tokenizers):
        return Pair.checked(target, draft, *(TransformersTokenizer(one) for one in tokenizers))
    if target.vocab_size != draft.vocab_size:
        got = f"{draft.vocab_size} logits, {target.vocab_size} of the model"
        expected = "as many, or text_tokenizer=... and draft_tokenizer=... with the same token strings"
        raise errors.fail("draft_model", got=got, expected=expected)
    return Pair(target, draft)


@contextmanager
def _evaluation(*modules: Any) -> Iterator[None]:
    """Evaluation mode, undone afterwards."""
    training = [part for module in modules for part in module.modules() if part.training]
    try:
        for part in training:
            part.training = False
        yield
    finally:
        for part in training:
            part.training = True


def _is_asked_for(kind: str, config: Any) -> bool:
    return bool(config.return_dict_in_generate and getattr(config, f"output_{kind}"))


def _output(texts: Sequence[Text], input_ids: Any, pad: int | None, config: Any) -> Any:
    longest = max(len(text.new) for text in texts)
    sequences = input_ids.new_full((len(texts), input_ids.shape[1] + longest), 0 if pad is None else pad)
    for row, text in zip(sequences, texts, strict=True):
        row[: text.ids.shape[1]] = text.ids[0]
    if not config.return_dict_in_generate:
        return sequences
    outputs: dict[str, Any] = {}
    for kind in ("scores", "logits"):
        if _is_asked_for(kind, config):
            rows = [getattr(text, kind) for text in texts]
            padded = torch.full_like(rows[0][0], -torch.inf)
            if pad is not None and pad < padded.shape[1]:
                padded[:, pad] = 0
            steps = [[row[i] if i < len(row) else padded for row in rows] for i in range(longest)]
            outputs[kind] = tuple(torch.cat(step) for step in steps)
    return VerifiedOutput(sequences, runs=tuple(text.run() for text in texts), **outputs)
