"""A folder of extracted problems: one file a context, so a rerun goes on where the last one stopped.

``settings.json`` says what the problems were made with; a rerun with other settings is refused, not mixed in. More
prompts or contexts may be added to a folder: neither changes a problem that is there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lpverify import errors
from lpverify.core.problem import FOLDER_SETTINGS, VerifyProblem, problem_folder, save_problem
from lpverify.decode.engine import Request
from lpverify.decode.prompts import Prompt
from lpverify.decode.session import LoadedPair
from lpverify.files import JsonLines
from lpverify.studies.extract import Settings, extract
from lpverify.studies.text import Context, contexts, text_length

SCHEMA = "lpverify/extract@1"
TAIL = 40
"""Characters of the context that a description ends with."""


@dataclass(frozen=True)
class Outcome:
    """Problems written now and found there, for the contexts asked for."""

    written: int
    found: int


def extract_folder(
    opened: LoadedPair,
    prompts: Sequence[Prompt],
    settings: Settings,
    folder: Path,
    *,
    chat: bool = False,
    versions: dict[str, Any] | None = None,
    report: Callable[[int], None] = lambda contexts: None,
) -> Outcome:
    """Write ``KEY-POSITION.json`` for every context of every prompt that ``folder`` lacks.

    All prompts are checked before anything is written; ``report`` is told how many contexts a step dealt with. Raises
    InputError as `checked_requests` and for a folder with other content; SizeError as `extract`.
    """
    requests = checked_requests(opened, prompts, settings, chat)
    last = text_length(settings.contexts, settings.stride)
    written = existing = 0
    with folder_settings(folder, opened.describe(settings, chat=chat), versions or {}):
        for request in requests:
            paths = [_path(folder, request, at) for at in range(0, last + 1, settings.stride)]
            if all(path.exists() for path in paths):  # no need for the text
                existing += settings.contexts
                report(settings.contexts)
                continue
            contexts = own_contexts(opened, request, settings)
            for context in contexts:
                path = _path(folder, request, context.position)
                if path.exists():
                    existing += 1
                else:
                    save_problem(problem(opened, context, request, settings, chat), path)
                    written += 1
                report(1)
            report(settings.contexts - len(contexts))
    return Outcome(written, existing)


def checked_requests(opened: LoadedPair, prompts: Sequence[Prompt], settings: Settings, chat: bool) -> list[Request]:
    """The prompts as tokens. Raises InputError if a context and the tree below it may not fit into a model."""
    length = max(text_length(settings.contexts, settings.stride), 1)
    requests = opened.requests(prompts, chat=chat)
    for request in requests:
        opened.models.check_context(len(request.tokens), length, settings.depth)
    return requests


def own_contexts(opened: LoadedPair, request: Request, settings: Settings) -> list[Context]:
    """The contexts in the target's text after one prompt."""
    many = (settings.contexts, settings.stride, settings.sampling, settings.seed)
    return contexts(opened.models, request, *many, opened.tokenizer.eos)


def problem(opened: LoadedPair, context: Context, request: Request, settings: Settings, chat: bool) -> VerifyProblem:
    """The problem below one context, with a description of where it is from."""
    made, decode = extract(opened.models, context, settings), opened.tokenizer.decode
    given = opened.describe(settings, chat=chat).items()
    said = ", ".join(f"{name} {value}" for name, value in given if value is not None and value is not False)
    labels = ", ".join(repr(decode([token])) for token in made.tokens)
    text = (
        f"{said}; prompt {request.key}, {context.position} tokens into the target's text, after "
        f"{decode(context.tokens)[-TAIL:]!r}; draftable at the root, by slot: {labels}"
    )
    return VerifyProblem(made.pair, 1, f"{request.key}-{context.position}", text)


def check_folder(folder: Path) -> None:
    """Raise InputError now if `folder_settings` could not make or use ``folder`` later."""
    if folder.is_dir():
        ready = os.access(folder, os.W_OK)
    else:
        ready = not folder.exists() and folder.parent.is_dir() and os.access(folder.parent, os.W_OK)
    if not ready:
        raise errors.fail("--output", got=str(folder), expected="a folder that can be written, or made where one is")


def folder_settings(folder: Path, description: dict[str, Any], versions: dict[str, Any]) -> JsonLines:
    """Make ``folder`` if it does not exist, and lock and check its settings file.

    Returns the open settings file; closing it releases the lock. Raises InputError for a folder of other settings, for
    one with problem files but no settings, and for one that another process is extracting into.
    """
    path = folder / FOLDER_SETTINGS
    try:
        folder.mkdir(exist_ok=True)
    except (OSError, ValueError) as error:  # ValueError: the name contains a NUL
        reason = getattr(error, "strerror", None) or str(error)
        raise errors.fail(str(folder), got=reason, expected="a folder that can be written") from error
    problems = [] if path.exists() else problem_folder(folder)
    if problems:
        got = f"{problems[0].name} but no {FOLDER_SETTINGS}"
        raise errors.fail(str(folder), got=got, expected="a new folder or one of an extraction")
    lines = JsonLines(path, SCHEMA, description, instead="another folder (or delete this one to extract it again)")
    try:
        if not lines.rows:
            lines.append({"versions": versions})
    except BaseException:
        lines.close()
        raise
    return lines


def _path(folder: Path, request: Request, position: int) -> Path:
    return folder / f"{request.key}-{position}.json"
