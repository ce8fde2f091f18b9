"""What ``lpverify advise`` measures on a pair of models: rounds of whole runs, and seconds of the parts of a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from lpverify import errors
from lpverify.cli.options import ModelOptions, check_packages

if TYPE_CHECKING:
    from lpverify.studies.throughput import Cell


class Bench:
    """An open pair of models and the prompts to measure on. Creating one raises InputError for bad options."""

    def __init__(self, options: ModelOptions) -> None:
        check_packages("advise", instead=", or give DOCUMENT and --costs")
        self.sampling, self.seed = options.sampling, errors.integer("--seed", options.seed, min=0)
        prompts = options.load_prompts()
        self.pair = options.open_pair()
        self.requests = self.pair.requests(prompts, chat=options.chat)
        names = {"target": options.target, "draft": options.draft, "prompts": options.prompts}
        drawn = {"prompt_count": len(prompts), "chat": options.chat, **asdict(self.sampling), "seed": self.seed}
        device = str(self.pair.models.target.device)
        self.settings: dict[str, Any] = names | drawn | {"dtype": self.pair.dtype, "device": device}
        self.settings["content"] = self.pair.content()

    def runs(
        self, algorithms: str | None, num_paths: tuple[int, ...], depths: tuple[int, ...], tokens: int
    ) -> dict[str, Any]:
        """Measure block efficiency in whole runs; the document ``lpverify/runs@1``.

        ``algorithms`` is the option; None stands for every algorithm of block verification with a closed form.
        """
        from lpverify.cli.progress import bar
        from lpverify.studies import rounds
        from lpverify.verifiers import verifier

        names = tuple(name for name in rounds.ALGORITHMS if verifier(name).closed_form == "block")
        if algorithms is not None:
            names = errors.choices("--algorithms", algorithms, rounds.ALGORITHMS)
        eos = self.pair.tokenizer.eos
        settings = rounds.RunSettings(num_paths, depths, tokens, sampling=self.sampling, seed=self.seed, eos=eos)
        with bar("texts", len(self.requests)) as update:
            advance = partial(update, advance=1)
            document = rounds.measure_runs(self.pair.models, names, self.requests, settings, advance=advance)
        return document | {"settings": self.settings | {"tokens": tokens}}

    def costs(self, cells: Sequence[Cell], context: int, repeats: int) -> dict[str, Any]:
        """Measure the seconds that ``cells`` need; the document ``lpverify/costs@1``."""
        from lpverify.cli.progress import bar
        from lpverify.studies import costs

        shape = (errors.integer("--repeats", repeats, min=1), errors.integer("--context", context, min=1))
        names = list(dict.fromkeys(cell.algorithm for cell in cells))
        num_paths, depths = {cell.num_paths for cell in cells}, {cell.depth for cell in cells}
        pair, sampling = self.pair.models, self.sampling
        with bar("seconds", 2 * repeats + 1) as update:
            options: dict[str, Any] = {"seed": self.seed, "advance": partial(update, advance=1)}
            contexts = costs.typical_contexts(pair, self.requests, *shape, max(depths), sampling, **options)
            document = costs.measure(pair, contexts, names, num_paths, depths, sampling, **options)
        return document | {"settings": self.settings | {"context": context, "repeats": repeats}}
