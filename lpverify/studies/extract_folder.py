"""A folder of extracted problems: one file a context, so a rerun goes on where the last one stopped.

``settings.json`` says what the problems were made with; a rerun with other settings is refused, not mixed in. More
prompts or contexts may be added to a folder: neither changes a problem that is there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lpverify import errors
from lpverify.core.problem_files import FOLDER_SETTINGS, problem_folder, save_problem
from lpverify.core.problem_format import ProblemFile
from lpverify.decode import engine
from lpverify.decode.engine import Request, check_context
from lpverify.decode.prompts import Prompt
from lpverify.files import write_whole
from lpverify.studies.contexts import Context, contexts, text_length
from lpverify.studies.extract import Settings, extract

if TYPE_CHECKING:
    from lpverify.studies.session import OpenPair

SCHEMA = "lpverify/extract@1"
TAIL = 40
"""Characters of the context that a description ends with."""


@dataclass(frozen=True)
class Outcome:
    """Problems written now and found there, for the contexts asked for."""

    written: int
    found: int


def extract_folder(
    opened: OpenPair,
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
    InputError as `engine.check_context` and for a folder with other content; SizeError as `extract`.
    """
    requests = checked_requests(opened, prompts, settings, chat)
    guard(folder, describe(opened, settings, chat), versions or {})
    last = text_length(settings.contexts, settings.stride)
    written = found = 0
    for request in requests:
        wanted = [_path(folder, request, at) for at in range(0, last + 1, settings.stride)]
        if all(path.exists() for path in wanted):  # no need for the text
            found += settings.contexts
            report(settings.contexts)
            continue
        places = own_contexts(opened, request, settings)
        for context in places:
            path = _path(folder, request, context.position)
            if path.exists():
                found += 1
            else:
                save_problem(problem(opened, context, request, settings, chat), path)
                written += 1
            report(1)
        report(settings.contexts - len(places))
    return Outcome(written, found)


def checked_requests(opened: OpenPair, prompts: Sequence[Prompt], settings: Settings, chat: bool) -> list[Request]:
    """The prompts as tokens. Raises InputError as `engine.check_context`."""
    length = max(text_length(settings.contexts, settings.stride), 1)
    requests = [Request(tuple(opened.tokenizer.encode(prompt.text, chat=chat)), prompt.key) for prompt in prompts]
    for request in requests:
        check_context(opened.models, request, engine.Settings(depth=settings.depth, max_new_tokens=length))
    return requests


def own_contexts(opened: OpenPair, request: Request, settings: Settings) -> list[Context]:
    """The contexts in the target's text after one prompt."""
    many = (settings.contexts, settings.stride, settings.sampling, settings.seed)
    return contexts(opened.models, request, *many, opened.tokenizer.eos)


def problem(opened: OpenPair, context: Context, request: Request, settings: Settings, chat: bool) -> ProblemFile:
    """The problem below one context, with a description of where it is from."""
    made, decode = extract(opened.models, context, settings), opened.tokenizer.decode
    given = describe(opened, settings, chat).items()
    said = ", ".join(f"{name} {value}" for name, value in given if value is not None and value is not False)
    labels = ", ".join(repr(decode([token])) for token in made.tokens)
    text = (
        f"{said}; prompt {request.key}, {context.position} tokens into the target's text, after "
        f"{decode(context.tokens)[-TAIL:]!r}; draftable at the root, by slot: {labels}"
    )
    return ProblemFile(made.pair, f"{request.key}-{context.position}", text)


def describe(opened: OpenPair, settings: Settings, chat: bool) -> dict[str, Any]:
    """All that a problem depends on besides its prompt and position."""
    target, draft = opened.names
    models = {"target": target, "draft": draft, "chat": chat}
    return models | settings.describe() | {"dtype": opened.dtype, "device": str(opened.models.target.device)}


def check_folder(folder: Path) -> None:
    """Raise InputError now if `guard` could not make or use ``folder`` later."""
    if folder.is_dir():
        ready = os.access(folder, os.W_OK)
    else:
        ready = not folder.exists() and folder.parent.is_dir() and os.access(folder.parent, os.W_OK)
    if not ready:
        raise errors.fail("--output", got=str(folder), expected="a folder that can be written, or made where one is")


def guard(folder: Path, description: dict[str, Any], versions: dict[str, Any]) -> None:
    """Make ``folder`` and its settings file, or see that it is of the same settings. Raises InputError if not."""
    path = folder / FOLDER_SETTINGS
    try:
        folder.mkdir(exist_ok=True)
        content = path.read_bytes() if path.exists() else None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or str(error)
        raise errors.fail(str(folder), got=reason, expected="a folder that can be written") from error
    if content is None:
        strange = problem_folder(folder)
        if strange:
            got = f"{strange[0].name} but no {FOLDER_SETTINGS}"
            raise errors.fail(str(folder), got=got, expected="a new folder or one of an extraction")
        document = {"schema": SCHEMA, "settings": description, "versions": versions}
        write_whole(path, (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode())
        return
    try:
        document = json.loads(content)
        known = document["settings"] if document["schema"] == SCHEMA else None
    except (ValueError, KeyError, TypeError):
        known = None
    if not isinstance(known, dict):
        raise errors.fail(str(path), got="something else", expected=f"the settings of an extraction ({SCHEMA})")
    for name in sorted(known.keys() | description.keys()):
        if known.get(name) != description.get(name):
            expected = f"{description.get(name)!r}, or another folder"
            raise errors.fail(str(path), got=f"{name} = {known.get(name)!r}", expected=expected)


def _path(folder: Path, request: Request, position: int) -> Path:
    return folder / f"{request.key}-{position}.json"
