"""``lpverify decode``: verifiers on real models, side by side."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lpverify.cli import model_options as _models
from lpverify.cli.parsing import integer

if TYPE_CHECKING:
    from lpverify.decode.metrics import DecodeStats
    from lpverify.decode.run import Progress

SHOWN = 600
"""Characters of the text shown for one prompt."""


def run(
    target: _models.Target = "tiny",
    draft: _models.Draft = "tiny",
    prompts: _models.Prompts = "def main():",
    algorithm: Annotated[str | None, typer.Option(metavar="A", help="Verifier; default: bv.")] = None,
    compare: Annotated[str | None, typer.Option(metavar="A,B,...", help="More of them, on the same prompts.")] = None,
    paths: Annotated[int, typer.Option("--paths", "-k", metavar="K", parser=integer, help="I.i.d. draft paths.")] = 4,
    depth: Annotated[int, typer.Option("--depth", "-l", metavar="L", parser=integer, help="Tokens of each path.")] = 8,
    temperature: _models.Temperature = 1.0,
    top_k: _models.TopK = None,
    top_p: _models.TopP = None,
    max_new_tokens: Annotated[int, typer.Option(metavar="N", parser=integer, help="Longest continuation.")] = 128,
    seed: _models.Seed = 0,
    limit: _models.Limit = None,
    chat: _models.Chat = False,
    device: _models.Device = "auto",
    device_map: _models.DeviceMap = None,
    dtype: _models.Dtype = "auto",
    json: _models.Json = None,
    records: _models.Records = None,
) -> None:
    """Tokens per target call and per second of verifiers on real models.

    Algorithms: those of `lpverify solve` but policy; autoregressive (the target alone) and assisted (the transformers
    library's own) are baselines. token and bv look at one path and are drafted one.
    """
    from lpverify import errors
    from lpverify.cli.output import STDOUT, check_writable, write_json

    check_writable("--json", json)
    check_writable("--records", records)
    if records == STDOUT:
        raise errors.fail("--records", got="-", expected="a file name")
    _models.check_packages("decode")
    from lpverify.decode.engine import Settings
    from lpverify.decode.prompts import load_prompts
    from lpverify.decode.records import Records
    from lpverify.decode.run import compare as run_all
    from lpverify.decode.run import parse_names, versions
    from lpverify.decode.sampling import Sampling
    from lpverify.studies.session import open_pair

    names = [] if compare is None else parse_names("--compare", compare)
    if algorithm is not None or compare is None:
        names = list(dict.fromkeys([*parse_names("--algorithm", algorithm or "bv"), *names]))
    if limit is not None:
        errors.integer("--limit", limit, least=1)
    sampling = Sampling(temperature, top_k, top_p)
    settings = Settings(paths, depth, sampling, max_new_tokens, seed)
    loaded = load_prompts(prompts, limit)
    opened = open_pair(target, draft, dtype=dtype, device=device, device_map=device_map)
    tokenizer = opened.tokenizer
    settings = Settings(paths, depth, sampling, max_new_tokens, seed, tokenizer.eos)
    description = opened.describe(settings, chat=chat)
    kept = Records(records, description)
    with DecodeProgress(len(names) * len(loaded)) as progress:
        stats = run_all(opened.models, tokenizer, names, loaded, settings, kept, chat=chat, report=progress)
    if json is not None:
        more = {"algorithms": names, "prompts": prompts, "prompt_count": len(loaded), "versions": versions()}
        write_json(json, to_json(description | more, stats))
    if json != STDOUT:
        shown = kept.get(names[0], loaded[0].key)
        assert shown is not None
        _print(loaded[0].text, names[0], tokenizer.decode(shown.tokens), stats)


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
        self._bar.update(self._task, completed=now.done, description=text)


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
