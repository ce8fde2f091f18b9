"""A folder of extracted problems, with one file for each context; an interrupted extraction resumes.

``settings.json`` says what the problems were computed from, and a rerun with other settings is refused. More prompts or
contexts can be added to a folder, as they do not change a problem that is there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from lpverify import errors
from lpverify.core.problem import FOLDER_SETTINGS, VerifyProblem, problem_folder, save_problem
from lpverify.decode.engine import Request
from lpverify.decode.load import LoadedPair
from lpverify.decode.prompts import Prompt
from lpverify.files import JsonLines
from lpverify.studies.extract import Settings, extract
from lpverify.studies.text import Context, contexts, text_length

SCHEMA = "lpverify/extract@1"
PROBLEM_FILE = re.compile(r"[0-9a-f]{16}-\d+-\d+\.json")  # the key of a prompt and a position
TAIL = 40  # characters of the context that a description ends with


class Outcome(NamedTuple):
    """How many of the requested problems were written now, and how many the folder already had."""

    written: int
    existing: int


def extract_folder(
    pair: LoadedPair,
    prompts: Sequence[Prompt],
    settings: Settings,
    folder: Path,
    *,
    chat: bool = False,
    versions: dict[str, Any] | None = None,
    recompute: bool = False,
    report: Callable[[int], None] = lambda contexts: None,
) -> Outcome:
    """Write ``KEY-POSITION.json`` for every context of every prompt (that has a key) that ``folder`` lacks.

    All prompts are checked before anything is written. A folder that does not exist is created, and ``versions`` are
    stored in it. With ``recompute``, a folder of other settings or models loses its problems first. ``report`` is
    called with the number of contexts that were just dealt with.

    Raises InputError as `checked_requests`, and for a folder of other settings, one with problem files but no settings,
    and one that another process is extracting into; SizeError as `extract`.
    """
    requests = checked_requests(pair, prompts, settings, chat)
    positions = range(0, text_length(settings.contexts, settings.stride) + 1, settings.stride)
    written = existing = 0
    row = {"models": pair.names, "versions": versions or {}}
    with _locked(folder, pair.identity(settings, chat=chat), row, recompute):
        for request in requests:
            paths = {position: folder / f"{request.key}-{position}.json" for position in positions}
            texts: list[Context] = []
            if all(path.exists() for path in paths.values()):  # the text is not needed
                existing += settings.contexts
            else:
                texts = contexts_after(pair, request, settings)
            for context in texts:
                path = paths[context.position]
                if path.exists():
                    existing += 1
                else:
                    save_problem(problem_below(pair, context, request, settings, chat), path)
                    written += 1
                report(1)
            report(settings.contexts - len(texts))
    return Outcome(written, existing)


def checked_requests(pair: LoadedPair, prompts: Sequence[Prompt], settings: Settings, chat: bool) -> list[Request]:
    """The prompts as tokens. Raises InputError if a context and the tree below it may not fit into a model."""
    length = max(text_length(settings.contexts, settings.stride), 1)
    requests = pair.requests(prompts, chat=chat)
    for request in requests:
        pair.models.check_context(len(request.tokens), length, settings.depth)
    return requests


def contexts_after(pair: LoadedPair, request: Request, settings: Settings) -> list[Context]:
    """The contexts in the target's own text after one prompt."""
    shape = (settings.contexts, settings.stride, settings.sampling, settings.seed)
    return contexts(pair.models, request, *shape, pair.tokenizer.eos)


def problem_below(
    pair: LoadedPair, context: Context, request: Request, settings: Settings, chat: bool
) -> VerifyProblem:
    """The problem below one context; its description says where it is from."""
    extracted, decode = extract(pair.models, context, settings), pair.tokenizer.decode
    described = pair.describe(settings, chat=chat).items()
    stated = ", ".join(f"{name} {value}" for name, value in described if value is not None and value is not False)
    labels = ", ".join(repr(decode([token])) for token in extracted.tokens)
    text = (
        f"{stated}; prompt {request.key}, {context.position} tokens into the target's text, after "
        f"{decode(context.tokens)[-TAIL:]!r}; draftable at the root, by slot: {labels}"
    )
    return VerifyProblem(extracted.pair, 1, f"{request.key}-{context.position}", text)


def check_folder(folder: Path) -> None:
    """Raise InputError now if `extract_folder` could not make or use ``folder`` later."""
    existing = folder if folder.exists() else folder.parent
    if not (existing.is_dir() and os.access(existing, os.W_OK)):
        expected = "a folder that can be written, or a new one in a folder that exists"
        raise errors.fail("--output", got=str(folder), expected=expected)


def _locked(folder: Path, identity: dict[str, Any], row: dict[str, Any], recompute: bool) -> JsonLines:
    """Make ``folder`` if it does not exist, check its settings file and lock it until it is closed."""
    path = folder / FOLDER_SETTINGS
    try:
        folder.mkdir(exist_ok=True)
    except (OSError, ValueError) as error:  # ValueError: the name contains a NUL
        reason = getattr(error, "strerror", None) or str(error)
        raise errors.fail(str(folder), got=reason, expected="a folder that can be written") from error
    stated = path.exists() and path.stat().st_size > 0
    lines = JsonLines(path, SCHEMA, identity, recompute=recompute)
    try:
        if not lines.rows:
            problems = problem_folder(folder)
            if problems and not (recompute and stated):
                got = f"{problems[0].name} but no settings in {FOLDER_SETTINGS}"
                raise errors.fail(str(folder), got=got, expected="a new folder or one of an extraction")
            for problem in problems:  # of another identity; the settings change when the last is gone
                if PROBLEM_FILE.fullmatch(problem.name):
                    problem.unlink()
            lines.append(row)
    except BaseException:
        lines.close()
        with suppress(OSError):  # it is not empty
            folder.rmdir()
        raise
    return lines
