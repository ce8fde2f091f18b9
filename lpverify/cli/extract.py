"""``lpverify extract``: the whole prefix tree below contexts of a real pair, as problem files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from lpverify import errors
from lpverify.cli.options import Contexts, ModelOptions, Recompute, Stride, check_packages, option
from lpverify.files import distinct


@dataclass(frozen=True)
class ExtractOptions(ModelOptions):
    """The tree is only small after top-k."""

    top_k: Annotated[int, option("N", "Keep the N most probable tokens, 2 to 8.")] = 4


def run(
    *,
    output: Annotated[str, option("FOLDER", "Folder of problem files; interrupted runs resume.", "--output", "-o")],
    models: ExtractOptions,
    contexts: Contexts = 4,
    stride: Stride = 16,
    depth: Annotated[int, option("L", "Depth of the tree, in tokens.", "--depth", "-l")] = 4,
    nodes: Annotated[int, option("N", "Maximum number of nodes of a problem.")] = 20_000,
    recompute: Recompute = False,
) -> None:
    """Conditional distributions of real models as problem files: one file a context, exact for every verifier.

    Contexts are positions, every S tokens, in texts that the target samples itself after each prompt. Below each
    context, both models score the whole tree of the tokens that top-k keeps. Files that exist are kept, so interrupted
    runs resume. `lpverify solve FOLDER/FILE` solves one, `lpverify sweep` all of them (a family "folder").
    """
    from lpverify.cli.progress import bar

    check_packages("extract")
    from lpverify.decode.run import versions
    from lpverify.studies.extract import Settings
    from lpverify.studies.extract_folder import check_folder, extract_folder

    if not output:
        raise errors.fail("--output", got="nothing", expected="the name of a folder")
    folder = Path(output)
    check_folder(folder)
    distinct({f"--output, {file.name}": file for file in folder.glob("*.json")}, models.files)
    settings = Settings(depth, models.sampling, contexts, stride, models.seed, max_nodes=nodes)
    prompts = models.load_prompts()
    opened = models.open_pair()
    with bar("contexts", len(prompts) * contexts) as update:
        options: Any = {"chat": models.chat, "versions": versions(), "recompute": recompute}
        options["report"] = lambda count: update(advance=count)
        outcome = extract_folder(opened, prompts, settings, folder, **options)
    print(f"{folder}: {outcome.written} problems written, {outcome.existing} found")
