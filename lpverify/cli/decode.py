"""``lpverify decode``: verifiers on real models, side by side."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from lpverify import errors
from lpverify.cli.options import ModelOptions, Recompute, Records, check_packages, option
from lpverify.cli.output import Output, check_rows, plural, with_error

if TYPE_CHECKING:
    from lpverify.decode.metrics import DecodeStats

SHOWN = 600  # maximum number of characters of the text after one prompt


def run(
    *,
    models: ModelOptions,
    algorithm: Annotated[str | None, option("A", "Verifier or baseline; default: bv, or none with --compare.")] = None,
    compare: Annotated[str | None, option("A,B,...", "More of them, run on the same prompts.")] = None,
    paths: Annotated[int, option("K", "Number of i.i.d. draft paths.", "--paths", "-k")] = 4,
    depth: Annotated[int, option("L", "Tokens of each draft path.", "--depth", "-l")] = 8,
    max_new_tokens: Annotated[int, option("N", "Maximum length of the text after a prompt, in tokens.")] = 128,
    output: Output,
    records: Records = None,
    recompute: Recompute = False,
) -> None:
    """Tokens per target call and per second of verifiers on real models.

    Baselines: autoregressive is the target alone, assisted the assisted generation of the transformers library. Only
    one path is drafted for a verifier that looks at the first path only (token, bv).
    """
    output.check("lpverify/decode@", models.files, records=records)
    check_packages("decode")
    from lpverify.cli.progress import bar
    from lpverify.decode.engine import Settings
    from lpverify.decode.run import ALGORITHMS, RECORD_SCHEMA, Progress, versions
    from lpverify.decode.run import Records as RecordFile
    from lpverify.decode.run import compare as run_all

    check_rows("--records", records, RECORD_SCHEMA)
    names: tuple[str, ...] = ()
    if algorithm is not None or compare is None:
        names = errors.choices("--algorithm", algorithm or "bv", ALGORITHMS)
    if compare is not None:
        names = tuple(dict.fromkeys([*names, *errors.choices("--compare", compare, ALGORITHMS)]))
    settings = Settings(paths, depth, models.sampling, max_new_tokens, models.seed)
    prompts = models.load_prompts()
    opened = models.open_pair()
    settings = replace(settings, eos=opened.tokenizer.eos)
    description = opened.describe(settings, chat=models.chat)
    identity = opened.identity(settings, chat=models.chat)
    store = RecordFile(records, identity, recompute=recompute)
    with store as lines, bar("loading", len(names) * len(prompts)) as update:

        def report(now: Progress) -> None:
            rate = f", {now.tokens / now.rounds:.2f} tokens a call" if now.rounds else ""
            update(completed=now.finished, description=f"{now.algorithm}: {now.tokens} tokens{rate}")

        stats = run_all(opened, names, opened.requests(prompts, chat=models.chat), settings, lines, report)
    more = {"algorithms": names, "prompts": models.prompts, "prompt_count": len(prompts), "versions": versions()}
    more["content"] = identity["content"]
    document = {"schema": "lpverify/decode@1", "settings": description | more, "runs": stats}
    first = lines.get(names[0], prompts[0].key)
    assert first is not None
    output.write(document, lambda: _print(prompts[0].text, names[0], opened.tokenizer.decode(first.tokens), stats))


def _print(prompt: str, algorithm: str, text: str, stats: list[DecodeStats]) -> None:
    from lpverify.decode.metrics import STAGES
    from lpverify.report.tables import show, table

    for name, words in (("prompt", prompt), (algorithm, text)):
        print(f"{name}:  {words if len(words) <= SHOWN else words[:SHOWN] + ' ...'}")
    rows = []
    for entry in stats:
        seconds = sum(entry.stage_seconds.values()) or 1.0
        shares = " ".join(f"{100 * entry.stage_seconds[stage] / seconds:.0f}" for stage in STAGES)
        sampled = with_error(entry.block_efficiency, entry.block_efficiency_se)
        smooth = with_error(entry.rao_blackwell, entry.rao_blackwell_se)
        rows.append((entry.algorithm, sampled, smooth, f"{entry.tokens_per_second:.1f}", shares))
    headings = ("algorithm", "tokens/call", "Rao-Blackwell", "tokens/s", "time %")
    caption = f"{plural(stats[0].prompts, 'prompt')}; +- standard error over prompts; time %: {', '.join(STAGES)}"
    show(table(headings, rows, right=(1, 2, 3, 4), title="Committed tokens per target call", caption=caption))
