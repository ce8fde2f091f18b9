"""What ``lpverify advise`` measures on a pair of models: rounds of whole runs, and seconds of the parts of a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lpverify.cli.model_options import ModelOptions
    from lpverify.decode.engine import Request
    from lpverify.decode.sampling import Sampling
    from lpverify.studies.session import OpenPair
    from lpverify.studies.throughput import Cell


@dataclass(frozen=True)
class Bench:
    """An open pair of models and the prompts to measure on; ``settings`` describes them for the document."""

    pair: OpenPair
    sampling: Sampling
    requests: list[Request]
    seed: int
    settings: dict[str, Any]

    @classmethod
    def open(cls, options: ModelOptions) -> Bench:
        """Check the options and load the models. Raises InputError."""
        from lpverify import errors
        from lpverify.cli.model_options import check_packages

        check_packages("advise", instead=", or give DOCUMENT and --costs")
        sampling = options.sampling
        errors.integer("--seed", options.seed, min=0)
        loaded = options.load_prompts()
        pair = options.open_pair()
        requests = pair.requests(loaded, chat=options.chat)
        settings: dict[str, Any] = {"target": options.target, "draft": options.draft, "prompts": options.prompts}
        settings |= {"prompt_count": len(loaded), "chat": options.chat, **asdict(sampling), "seed": options.seed}
        settings |= {"dtype": pair.dtype, "device": str(pair.models.target.device)}
        return cls(pair, sampling, requests, options.seed, settings)

    def runs(
        self, algorithms: str | None, num_paths: tuple[int, ...], depths: tuple[int, ...], tokens: int
    ) -> dict[str, Any]:
        """Measure block efficiency in whole runs; the document ``lpverify/runs@1``.

        ``algorithms`` is the option; None stands for every algorithm of block verification with a closed form.
        """
        from lpverify import errors
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
        from lpverify import errors
        from lpverify.cli.progress import bar
        from lpverify.studies import costs

        errors.integer("--context", context, min=1)
        errors.integer("--repeats", repeats, min=1)
        names = list(dict.fromkeys(cell.algorithm for cell in cells))
        num_paths, depths = {cell.num_paths for cell in cells}, {cell.depth for cell in cells}
        pair, sampling = self.pair.models, self.sampling
        with bar("seconds", 2 * repeats + 1) as update:
            advance = partial(update, advance=1)
            shape = (repeats, context, max(depths))
            contexts = costs.typical_contexts(pair, self.requests, *shape, sampling, seed=self.seed, advance=advance)
            document = costs.measure(
                pair, contexts, names, num_paths, depths, sampling, seed=self.seed, advance=advance
            )
        return document | {"settings": self.settings | {"context": context, "repeats": repeats}}
