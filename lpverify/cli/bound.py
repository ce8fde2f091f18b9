"""``lpverify bound``: how close verifiers come to what is possible, on real models at full vocabulary."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from lpverify import errors
from lpverify.cli.options import Contexts, ModelOptions, Recompute, Records, Stride, check_packages, option
from lpverify.cli.output import Output, check_rows, plural, with_error
from lpverify.files import JsonLines


def run(
    *,
    models: ModelOptions,
    contexts: Contexts = 4,
    stride: Stride = 16,
    paths: Annotated[str, option("K,K,...", "Numbers of draft paths: 1,2,4 or 1..8.", "--paths", "-k")] = "1,2,3,4",
    depth: Annotated[str, option("L,L,...", "Tokens of each draft path: 4,8 or 1..8.", "--depth", "-l")] = "8",
    algorithms: Annotated[str | None, option("A,B,...", "Verifiers; default: all but ot.")] = None,
    output: Output,
    records: Records = None,
    recompute: Recompute = False,
) -> None:
    """Block efficiency of verifiers beside an upper bound on all lossless ones, for every K and L.

    Contexts are positions, every S tokens, in texts that the target samples itself after each prompt. Standard errors
    are over prompts, so many prompts with few contexts each are the most informative.
    """
    output.check("lpverify/bound@", models.files, records=records)
    check_packages("bound")
    from lpverify.cli.progress import bar
    from lpverify.decode.run import versions
    from lpverify.studies import bound

    check_rows("--records", records, bound.RECORD_SCHEMA)
    chosen = bound.DEFAULT_ALGORITHMS if algorithms is None else algorithms
    names = errors.choices("--algorithms", chosen, bound.ALGORITHMS)
    shape = (errors.integers("--paths", paths, min=1), errors.integers("--depth", depth, min=1))
    settings = bound.BoundSettings(*shape, contexts, stride, models.sampling, models.seed)
    prompts = models.load_prompts()
    opened = models.open_pair()
    settings = replace(settings, eos=opened.tokenizer.eos)
    description = opened.describe(settings, chat=models.chat) | {"algorithms": list(names)}
    total = len(prompts) * contexts
    identity = opened.identity(settings, chat=models.chat, algorithms=list(names))
    store = JsonLines(records, bound.RECORD_SCHEMA, identity, recompute=recompute)
    with store as lines, bar("contexts", total) as update:

        def report(completed: int) -> None:
            update(completed=completed)

        requests = opened.requests(prompts, chat=models.chat)
        results = bound.measure_all(opened, names, requests, settings, lines, report)
    described = description | {"prompts": models.prompts, "content": identity["content"]}
    document: dict[str, Any] = {"schema": "lpverify/bound@1", "settings": described, "prompts": len(results)}
    document |= {"contexts": sum(len(result.positions) for result in results), "cells": bound.summarize(results)}
    document |= {"versions": versions()}
    output.write(document, lambda: _print(document))


def _print(document: dict[str, Any]) -> None:
    from lpverify.report.tables import show, table

    rows = []
    for cell in document["cells"]:
        shape = (str(cell["paths"]), str(cell["depth"]))
        rows.append((*shape, "upper bound", with_error(cell["upper_bound"], cell["upper_bound_se"]), "", ""))
        for name, entry in cell["algorithms"].items():
            value = with_error(entry["block_efficiency"], entry["se"])
            shares = [with_error(entry[key], entry[f"{key}_se"], 100, 1) for key in ("share", "on_path_share")]
            rows.append(("", "", name, value, *shares))
    headings = ("K", "L", "algorithm", "tokens/call", "% of bound", "on the text, %")
    prompts = plural(document["prompts"], "prompt")
    caption = f"{document['contexts']} contexts of {prompts}; +- standard error over prompts"
    if document["prompts"] == 1:
        caption += ": unknown for one, so no share of the bound is given; use more prompts"
    title = "Tokens per target call, beside an upper bound"
    show(table(headings, rows, right=(0, 1, 3, 4, 5), title=title, caption=caption))
