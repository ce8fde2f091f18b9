"""One row of a batch inside ``model.generate``: its logits processors, its text, and the stream of all rows."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers.generation.logits_process import (
    EncoderNoRepeatNGramLogitsProcessor,
    EncoderRepetitionPenaltyLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
)

from lpverify.decode.engine import ActiveRequest, Request, Settings, decoding_round
from lpverify.decode.metrics import Generation, RoundRecord
from lpverify.decode.models import Pair
from lpverify.verifiers import Verifier

Processor = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, eq=False)
class RowProcess:
    """The logits processors of one row of the batch, as a `lpverify.decode.sampling.Process`.

    Processors see the prefix with the row's padding, as in the library's own loops. After an end of text they are not
    asked: no text goes on there, and they may have no answer. All mass is then on token 0, for target and draft.
    """

    processors: Sequence[Processor]
    padding: torch.Tensor  # (1, P) the row's tokens before its prompt
    prompt: int  # number of tokens of the prompt, without the padding
    eos: tuple[int, ...]  # tokens that end a text
    vocab_size: int  # of the target: processors get its number of logits for the draft too

    def __call__(self, tokens: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        device, missing = self.padding.device, self.vocab_size - logits.shape[1]
        scores = logits.to(device=device, dtype=torch.float32, copy=True)  # processors may write to it
        if missing:
            scores = torch.nn.functional.pad(scores, (0, missing), value=-torch.inf)  # or cut, if it is negative
        ids = torch.cat([self.padding.expand(len(tokens), -1), tokens.to(device)], dim=1)
        new = tokens[:, self.prompt :].to(device)
        ended = torch.isin(new, torch.tensor(self.eos, device=device, dtype=new.dtype)).any(dim=1)
        if not new.numel() or not bool(ended.any()):
            return self._apply(ids, scores)
        result = torch.full_like(scores, -torch.inf)
        result[:, 0] = 0
        if not bool(ended.all()):
            result[~ended] = self._apply(ids[~ended], scores[~ended])
        return result

    def _apply(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        for processor in self.processors:
            scores = processor(ids, scores)
        return scores


def for_row(processor: Processor, row: int, prompt: int) -> Processor:
    """``processor`` for prefixes of one row of the batch, which is number ``prompt`` of the prompts.

    Some of the library's processors hold one entry for each row or prompt, and expect one prefix for each.
    """
    one = copy.copy(processor)
    if isinstance(one, PrefixConstrainedLogitsProcessor):
        allowed = one._prefix_allowed_tokens_fn
        one._prefix_allowed_tokens_fn = lambda _, tokens: allowed(prompt, tokens)
        one._num_beams = 1
    elif isinstance(one, RepetitionPenaltyLogitsProcessor):
        ignored = getattr(one, "prompt_ignore_length", None)
        one.prompt_ignore_length = int(ignored[row]) if isinstance(ignored, torch.Tensor) else ignored
    elif isinstance(one, EncoderNoRepeatNGramLogitsProcessor):
        one.generated_ngrams, one.batch_size = [one.generated_ngrams[prompt]], 1
    elif isinstance(one, EncoderRepetitionPenaltyLogitsProcessor):
        prompts: Any = one.encoder_input_ids[prompt : prompt + 1]

        def penalise(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            one.encoder_input_ids = prompts.expand(len(ids), -1)
            processed: torch.Tensor = one(ids, scores)
            return processed

        return penalise
    else:
        return processor
    return one


class Text:
    """One row of the batch while it is decoded.

    ``ids`` (1, T) is the text with its padding, ``new`` its new tokens; ``scores`` and ``logits`` have a row (1, V) for
    each of them, processed and raw, if they are asked for.
    """

    def __init__(
        self,
        pair: Pair,
        verifier: Verifier,
        settings: Settings,
        ids: torch.Tensor,
        process: RowProcess,
        criteria: Callable[..., Any],
        *,
        scores: bool,
        logits: bool,
    ) -> None:
        self.ids, self.new, self.ended = ids, list[int](), False
        self.scores: tuple[torch.Tensor, ...] | None = () if scores else None
        self.logits: tuple[torch.Tensor, ...] | None = () if logits else None
        self._verifier, self._settings, self._process, self._criteria = verifier, settings, process, criteria
        self._rounds: list[RoundRecord] = []
        self._width = process.padding.shape[1]
        tokens = tuple(ids[0, self._width :].tolist())
        request = Request(tokens, "generate")
        self._active = ActiveRequest(
            pair, request, settings.sampling, settings.seed, process, keep_logits=scores or logits
        )

    def advance(self) -> None:
        """One decoding round; the text ends with the first token after which a stopping criterion says so."""
        active, room = self._active, self._settings.max_new_tokens - len(self.new)
        with torch.inference_mode():
            tokens, record = decoding_round(active, self._verifier, self._settings, len(self._rounds), room)
        for i, token in enumerate(tokens):
            raw = active.logits[i : i + 1]
            if self.scores is not None:
                self.scores += (self._process(self.ids[:, self._width :], raw),)
            if self.logits is not None:
                self.logits += (raw.to(device=self.ids.device, dtype=torch.float32, copy=True),)
            self.ids = torch.cat([self.ids, self.ids.new_tensor([[token]])], dim=1)
            self.new.append(token)
            if bool(self._criteria(self.ids, self.scores)):
                self.ended = True
                tokens = tokens[: i + 1]
                break
        self.ended = self.ended or len(self.new) == self._settings.max_new_tokens
        self._rounds.append(replace(record, accepted=min(record.accepted, len(tokens)), committed=len(tokens)))

    def run(self) -> Generation:
        """What decoding the text took."""
        return Generation.measured(self._verifier.name, "generate", self.new, self._rounds, self._active.watch)


class Stream:
    """Passes the tokens of all texts on to a streamer, the tokens of one position at once; None: there is none."""

    def __init__(self, streamer: Any) -> None:
        self._streamer, self._shown = streamer, 0

    def put(self, texts: Sequence[Text], pad: int | None) -> None:
        """Pass on the positions that every text has reached or ended before, the latter as padding."""
        if self._streamer is None:
            return
        reached = [len(text.new) for text in texts]
        running = [length for length, text in zip(reached, texts, strict=True) if not text.ended]
        for position in range(self._shown, min(running, default=max(reached))):
            tokens = [text.new[position] if position < len(text.new) else pad for text in texts]
            self._streamer.put(torch.tensor(tokens))
            self._shown = position + 1

    def end(self) -> None:
        if self._streamer is not None:
            self._streamer.end()
