"""``lpverify decode``: verifiers on real models, side by side."""

from __future__ import annotations

from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lpverify.cli.model_options import ModelOptions, Records, check_packages
from lpverify.cli.options import Json, integer

if TYPE_CHECKING:
    from lpverify.decode.metrics import DecodeStats
    from lpverify.decode.run import Progress

SHOWN = 600
"""Maximum number of characters shown of the text after one prompt."""


def run(
    *,
    models: ModelOptions,
    algorithm: Annotated[
        str | None, typer.Option(metavar="A", help="Verifier or baseline; default: bv, or none with --compare.")
    ] = None,
    compare: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="More of them, run on the same prompts.")
    ] = None,
    paths: Annotated[
        int, typer.Option("--paths", "-k", metavar="K", parser=integer, help="Number of i.i.d. draft paths.")
    ] = 4,
    depth: Annotated[
        int, typer.Option("--depth", "-l", metavar="L", parser=integer, help="Tokens of each draft path.")
    ] = 8,
    max_new_tokens: Annotated[
        int, typer.Option(metavar="N", parser=integer, help="Maximum length of the text after a prompt, in tokens.")
    ] = 128,
    json: Json = None,
    records: Records = None,
) -> None:
    """Tokens per target call and per second of verifiers on real models.

    Baselines: autoregressive is the target alone, assisted the assisted generation of the transformers library. Only
    one path is drafted for a verifier that looks at the first path only (token, bv).
    """
    from lpverify import errors
    from lpverify.cli.output import STDOUT, check_writable, write_json

    check_writable("--json", json)
    check_writable("--records", records, stdout=False)
    check_packages("decode")
    from lpverify.decode.engine import Settings
    from lpverify.decode.records import Records as RecordFile
    from lpverify.decode.run import ALGORITHMS, versions
    from lpverify.decode.run import compare as run_all

    names: tuple[str, ...] = ()
    if algorithm is not None or compare is None:
        names = errors.choices("--algorithm", algorithm or "bv", ALGORITHMS)
    if compare is not None:
        names = tuple(dict.fromkeys([*names, *errors.choices("--compare", compare, ALGORITHMS)]))
    settings = Settings(paths, depth, models.sampling, max_new_tokens, models.seed)
    prompts = models.load_prompts()
    opened = models.open_pair()
    tokenizer = opened.tokenizer
    settings = replace(settings, eos=tokenizer.eos)
    description = opened.describe(settings, chat=models.chat)
    total = len(names) * len(prompts)
    with RecordFile(records, description) as lines, DecodeProgress(total) as progress:
        requests = opened.requests(prompts, chat=models.chat)
        stats = run_all(opened, names, requests, settings, lines, progress)
    if json is not None:
        more = {"prompts": models.prompts, "prompt_count": len(prompts), "versions": versions()}
        write_json(json, to_json(description | {"algorithms": names} | more, stats))
    if json != STDOUT:
        shown = lines.get(names[0], prompts[0].key)
        assert shown is not None
        _print(prompts[0].text, names[0], tokenizer.decode(shown.tokens), stats)


def to_json(settings: dict[str, Any], stats: list[DecodeStats]) -> dict[str, Any]:
    """The document ``lpverify/decode@1``."""
    from dataclasses import asdict

    return {"schema": "lpverify/decode@1", "settings": settings, "runs": [asdict(entry) for entry in stats]}


class DecodeProgress:
    """A bar on standard error, where that is a terminal; call it with every `Progress`."""

    def __init__(self, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar = Bar(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("loading", total=total)

    def __enter__(self) -> DecodeProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def __call__(self, now: Progress) -> None:
        efficiency = f"{now.tokens / now.rounds:.2f} tokens a call" if now.rounds else ""
        text = f"{now.algorithm}: {now.tokens} tokens, {efficiency}"
        self._bar.update(self._task, completed=now.finished, description=text)


def _print(prompt: str, algorithm: str, text: str, stats: list[DecodeStats]) -> None:
    from lpverify.decode.metrics import STAGES
    from lpverify.report.tables import show, table

    print(f"prompt:  {_short(prompt)}")
    print(f"{algorithm}:  {_short(text)}")

    def with_error(value: float | None, error: float | None) -> str:
        if value is None:
            return "-"
        return f"{value:.3f}" if error is None else f"{value:.3f} +- {error:.3f}"

    rows = []
    for entry in stats:
        seconds = sum(entry.stage_seconds.values()) or 1.0
        shares = " ".join(f"{100 * entry.stage_seconds[stage] / seconds:.0f}" for stage in STAGES)
        sampled = with_error(entry.block_efficiency, entry.block_efficiency_se)
        smooth = with_error(entry.rao_blackwell, entry.rao_blackwell_se)
        rows.append((entry.algorithm, sampled, smooth, f"{entry.tokens_per_second:.1f}", shares))
    headings = ("algorithm", "tokens/call", "Rao-Blackwell", "tokens/s", "time %")
    of = f"{stats[0].prompts} prompt" + ("s" if stats[0].prompts > 1 else "")
    caption = f"{of}; +- standard error over prompts; time %: {', '.join(STAGES)}"
    show(table(headings, rows, right=(1, 2, 3, 4), title="Committed tokens per target call", caption=caption))


def _short(text: str) -> str:
    return text if len(text) <= SHOWN else text[:SHOWN] + " ..."
