"""``lpverify extract``: the whole prefix tree below contexts of a real pair, as problem files."""

from __future__ import annotations

from typing import Annotated

import typer

from lpverify.cli import model_options as _models
from lpverify.cli.parsing import integer


def run(
    output: Annotated[str, typer.Option("--output", "-o", metavar="FOLDER", help="Folder of problem files.")],
    target: _models.Target = "tiny",
    draft: _models.Draft = "tiny",
    prompts: _models.Prompts = "def main():",
    chat: _models.Chat = False,
    limit: _models.Limit = None,
    contexts: Annotated[int, typer.Option(metavar="C", parser=integer, help="Contexts of each prompt.")] = 4,
    stride: _models.Stride = 16,
    depth: Annotated[int, typer.Option("--depth", "-l", metavar="L", parser=integer, help="Levels of the tree.")] = 4,
    temperature: _models.Temperature = 1.0,
    top_k: Annotated[int, typer.Option(metavar="N", parser=integer, help="Keep the N likeliest tokens, 2 to 8.")] = 4,
    top_p: _models.TopP = None,
    seed: Annotated[int, typer.Option(metavar="S", parser=integer, help="Seed of the texts.")] = 0,
    nodes: Annotated[int, typer.Option(metavar="N", parser=integer, help="Most nodes of a problem.")] = 20_000,
    device: _models.Device = "auto",
    device_map: _models.DeviceMap = None,
    dtype: _models.Dtype = "auto",
) -> None:
    """Real conditional laws as problem files: one file a context, exact for every verifier.

    Contexts are positions, every S tokens, in texts that the target samples itself after each prompt. Below each of
    them the whole tree of what top-k leaves is scored with both models. Files that are there are kept, so a rerun goes
    on; `lpverify solve FOLDER/FILE` solves one, `lpverify sweep` all of them (a family "folder").
    """
    from pathlib import Path

    from lpverify import errors
    from lpverify.cli.progress import time_left

    _models.check_packages("extract")
    from lpverify.decode.prompts import load_prompts
    from lpverify.decode.run import versions
    from lpverify.decode.sampling import Sampling
    from lpverify.studies.extract import Settings
    from lpverify.studies.extract_folder import check_folder, extract_folder
    from lpverify.studies.session import open_pair

    if not output:
        raise errors.fail("--output", got="nothing", expected="the name of a folder")
    folder = Path(output)
    check_folder(folder)
    if limit is not None:
        errors.integer("--limit", limit, least=1)
    settings = Settings(depth, Sampling(temperature, top_k, top_p), contexts, stride, seed, max_nodes=nodes)
    loaded = load_prompts(prompts, limit)
    opened = open_pair(target, draft, dtype=dtype, device=device, device_map=device_map)
    with time_left() as progress:
        bar = progress.add_task("contexts", total=len(loaded) * contexts)
        outcome = extract_folder(
            opened,
            loaded,
            settings,
            folder,
            chat=chat,
            versions=versions(),
            report=lambda done: progress.advance(bar, done),
        )
    print(f"{folder}: {outcome.written} problems written, {outcome.found} found")
