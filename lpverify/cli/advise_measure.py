"""What ``lpverify advise`` measures on a pair: rounds of whole runs, and seconds of the parts of a round."""

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

DEFAULT_ALGORITHMS = ("bv", "gbv", "tgbv", "pbv")


@dataclass(frozen=True)
class Bench:
    """An open pair with prompts to measure after; ``settings`` describe them."""

    pair: OpenPair
    sampling: Sampling
    requests: list[Request]
    seed: int
    settings: dict[str, Any]

    @classmethod
    def open(cls, options: ModelOptions) -> Bench:
        """Check what was asked for and load the models. Raises InputError."""
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
        self, names: Sequence[str] | None, paths: tuple[int, ...], depths: tuple[int, ...], tokens: int
    ) -> dict[str, Any]:
        """Block efficiency of whole runs: the document ``lpverify/runs@1``."""
        from lpverify import errors
        from lpverify.cli.progress import bar
        from lpverify.studies import rounds as renewal

        wanted = DEFAULT_ALGORITHMS if names is None else names
        for name in wanted:
            errors.choice("--algorithms", name, renewal.ALGORITHMS)
        eos = self.pair.tokenizer.eos
        settings = renewal.RunSettings(paths, depths, tokens, sampling=self.sampling, seed=self.seed, eos=eos)
        with bar("texts", len(self.requests)) as update:
            found = renewal.measure_runs(
                self.pair.models, wanted, self.requests, settings, advance=partial(update, advance=1)
            )
        return found | {"settings": self.settings | {"tokens": tokens}}

    def costs(self, cells: Sequence[Cell], context: int, repeats: int) -> dict[str, Any]:
        """Seconds of all that ``cells`` need: the document ``lpverify/costs@1``."""
        from lpverify import errors
        from lpverify.cli.progress import bar
        from lpverify.studies import costs

        errors.integer("--context", context, min=1)
        errors.integer("--repeats", repeats, min=1)
        names = list(dict.fromkeys(cell.algorithm for cell in cells))
        paths, depths = {cell.paths for cell in cells}, {cell.depth for cell in cells}
        models, law = self.pair.models, self.sampling
        with bar("seconds", 2 * repeats + 1) as update:
            shape = (repeats, context, max(depths))
            advance = partial(update, advance=1)
            after = costs.typical_contexts(models, self.requests, *shape, law, seed=self.seed, advance=advance)
            found = costs.measure(models, after, names, paths, depths, law, seed=self.seed, advance=advance)
        return found | {"settings": self.settings | {"context": context, "repeats": repeats}}
