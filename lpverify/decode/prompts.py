"""Where prompts come from: text, a file, or a public set by name."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from lpverify import errors

FIELDS = ("question", "prompt", "problem", "text")
"""Names under which a line of JSON may hold its prompt."""

SETS = {
    "gsm8k": ("openai/gsm8k", "main", "test"),
    "humaneval": ("openai/openai_humaneval", None, "test"),
    "math500": ("HuggingFaceH4/MATH-500", None, "test"),
}
"""Name -> (dataset on the hub, configuration, split)."""


@dataclass(frozen=True)
class Prompt:
    """``key`` depends on the text and on how often it came before, not on the other prompts."""

    text: str
    key: str


def load_prompts(source: str, limit: int | None = None) -> list[Prompt]:
    """Prompts of ``source``, at most ``limit``: the name of a public set, a file, else ``source`` itself is the text.

    A ``.jsonl`` file has one prompt a line, a JSON object with one of `FIELDS`; any other file is one prompt. Raises
    InputError, naming file and line.
    """
    if source in SETS:
        texts = _from_hub(source, limit)
    elif source.endswith(".jsonl") or Path(source).is_file():
        texts = _from_file(source)
    else:
        texts = [source]
    texts = texts[:limit]
    if not texts:
        raise errors.fail(f"prompts {source}", got="no prompt", expected="at least one")
    return keyed(texts)


def keyed(texts: list[str]) -> list[Prompt]:
    """Prompts with their keys.

    >>> [prompt.key == other.key for prompt, other in zip(keyed(["a", "a"]), keyed(["b", "a"]))]
    [False, False]
    >>> keyed(["a", "b"])[1] == keyed(["b"])[0]
    True
    """
    seen: Counter[str] = Counter()
    prompts = []
    for text in texts:
        seen[text] += 1
        prompts.append(Prompt(text, f"{blake2b(text.encode(), digest_size=8).hexdigest()}-{seen[text]}"))
    return prompts


def _from_file(path: str) -> list[str]:
    try:
        content = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise errors.fail(f"prompts {path}", got=reason, expected="a readable text file") from error
    if not path.endswith(".jsonl"):
        return [content]
    texts = []
    for number, line in enumerate(content.splitlines(), start=1):
        if line.strip():
            texts.append(_text_of(line, f"{path} line {number}"))
    return texts


def _text_of(line: str, where: str) -> str:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise errors.fail(where, got=f"{error.msg} at column {error.colno}", expected="a JSON object") from error
    found = [entry[name] for name in FIELDS if isinstance(entry, dict) and name in entry]
    if not found or not isinstance(found[0], str):
        got = f"fields {', '.join(entry)}" if isinstance(entry, dict) and not found else "no text"
        raise errors.fail(where, got=got, expected="text in a field " + ", ".join(FIELDS))
    return found[0]


def _from_hub(name: str, limit: int | None) -> list[str]:
    repository, configuration, split = SETS[name]
    try:
        from datasets import load_dataset

        rows: Any = load_dataset(repository, configuration, split=split)
    except Exception as error:  # offline, not installed, renamed: many libraries below
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        expected = f"{repository} from the hub, or a local .jsonl file"
        raise errors.fail(f"prompts {name}", got=reason, expected=expected) from error
    field = next(field for field in FIELDS if field in rows.column_names)
    return [str(row[field]) for row in rows.select(range(min(len(rows), limit or len(rows))))]
