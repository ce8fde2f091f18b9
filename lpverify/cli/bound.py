"""``lpverify bound``: how close verifiers come to what is possible, on real models at full vocabulary."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from lpverify.cli import model_options as _models
from lpverify.cli.parsing import integer, integers

SCHEMA = "lpverify/bound@1"


def run(
    target: _models.Target = "tiny",
    draft: _models.Draft = "tiny",
    prompts: _models.Prompts = "def main():",
    chat: _models.Chat = False,
    limit: _models.Limit = None,
    contexts: Annotated[int, typer.Option(metavar="C", parser=integer, help="Most contexts of each prompt.")] = 4,
    stride: _models.Stride = 16,
    paths: Annotated[str, typer.Option("--paths", "-k", metavar="K,K,...", help="Numbers of draft paths.")] = "1,2,3,4",
    depth: Annotated[str, typer.Option("--depth", "-l", metavar="L,L,...", help="Tokens of each path.")] = "8",
    algorithms: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="Verifiers; default: all but nss, spectr and ot.")
    ] = None,
    temperature: _models.Temperature = 1.0,
    top_k: _models.TopK = None,
    top_p: _models.TopP = None,
    seed: _models.Seed = 0,
    device: _models.Device = "auto",
    device_map: _models.DeviceMap = None,
    dtype: _models.Dtype = "auto",
    json: _models.Json = None,
    records: _models.Records = None,
) -> None:
    """Block efficiency of verifiers beside an upper bound on all lossless ones, for every K and L.

    Contexts are positions, every S tokens, in texts that the target samples itself after each prompt. Standard errors
    are over prompts, so more prompts with few contexts each say most.
    """
    from lpverify import errors
    from lpverify.cli.output import STDOUT, check_writable, write_json
    from lpverify.cli.progress import time_left

    check_writable("--json", json)
    check_writable("--records", records)
    if records == STDOUT:
        raise errors.fail("--records", got="-", expected="a file name")
    _models.check_packages("bound")
    from lpverify.decode.prompts import load_prompts
    from lpverify.decode.records import Lines
    from lpverify.decode.run import parse_names, versions
    from lpverify.decode.sampling import Sampling
    from lpverify.studies import bound
    from lpverify.studies.session import open_pair

    names: tuple[str, ...] = bound.DEFAULT_ALGORITHMS
    if algorithms is not None:
        names = tuple(parse_names("--algorithms", algorithms, bound.ALGORITHMS))
    if limit is not None:
        errors.integer("--limit", limit, least=1)
    shape = (integers("--paths", paths), integers("--depth", depth))
    sampling = Sampling(temperature, top_k, top_p)
    settings = bound.BoundSettings(*shape, contexts, stride, sampling, seed)
    loaded = load_prompts(prompts, limit)
    opened = open_pair(target, draft, dtype=dtype, device=device, device_map=device_map)
    settings = bound.BoundSettings(*shape, contexts, stride, sampling, seed, opened.tokenizer.eos)
    description = {
        "target": target,
        "draft": draft,
        "dtype": dtype,
        "device": str(opened.models.target.device),
        "chat": chat,
        "algorithms": list(names),
        **bound.describe(settings),
    }
    kept = Lines(records, bound.RECORD_SCHEMA, description)
    with time_left() as progress:
        bar = progress.add_task("contexts", total=len(loaded) * contexts)
        found = bound.measure_all(
            opened.models,
            opened.tokenizer,
            names,
            loaded,
            settings,
            kept,
            chat=chat,
            report=lambda done: progress.update(bar, completed=done),
        )
    document = {
        "schema": SCHEMA,
        "settings": description | {"prompts": prompts},
        "prompts": len(found),
        "contexts": sum(len(prompt.positions) for prompt in found),
        "cells": bound.summarize(found),
        "versions": versions(),
    }
    if json is not None:
        write_json(json, document)
    if json != STDOUT:
        _print(document)


def _print(document: dict[str, Any]) -> None:
    from lpverify.report.tables import show, table

    def with_error(value: float, error: float | None, scale: float = 1, digits: int = 3) -> str:
        text = f"{scale * value:.{digits}f}"
        return text if error is None else f"{text} +- {scale * error:.{digits}f}"

    rows = []
    for cell in document["cells"]:
        shape = (str(cell["paths"]), str(cell["depth"]))
        rows.append((*shape, "upper bound", with_error(cell["upper_bound"], cell["upper_bound_se"]), "", ""))
        for name, entry in cell["algorithms"].items():
            value, share = (
                (entry[key], entry[error]) for key, error in (("block_efficiency", "se"), ("share", "share_se"))
            )
            on_path = "-"
            if entry["on_path_share"] is not None:
                on_path = with_error(entry["on_path_share"], entry["on_path_share_se"], 100, 1)
            rows.append(("", "", name, with_error(*value), with_error(*share, 100, 1), on_path))
    headings = ("K", "L", "algorithm", "tokens/call", "% of bound", "on the text, %")
    prompts = f"{document['prompts']} prompt" + ("s" if document["prompts"] > 1 else "")
    caption = f"{document['contexts']} contexts of {prompts}; +- standard error over prompts"
    title = "Tokens per target call, beside an upper bound"
    show(table(headings, rows, right=(0, 1, 3, 4, 5), title=title, caption=caption))
