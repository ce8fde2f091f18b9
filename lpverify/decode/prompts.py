"""Prompts from a text, a file, or a public data set by name."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from dataclasses import dataclass
from difflib import get_close_matches
from hashlib import blake2b
from typing import Any

from lpverify import errors
from lpverify.core.rows import check_text
from lpverify.files import read_stdin, read_text

FIELDS = ("question", "prompt", "problem", "text")  # with the prompt in a line of JSON; the first one present counts
SETS = {  # name -> (dataset on the hub, configuration); the split is "test"
    "gsm8k": ("openai/gsm8k", "main"),
    "humaneval": ("openai/openai_humaneval", None),
    "math500": ("HuggingFaceH4/MATH-500", None),
}
EXPECTED = "a text file of prompts"
LONGEST_NAME = 200  # characters of what may be the name of a file


@dataclass(frozen=True)
class Prompt:
    """A prompt; its ``key`` depends on the text and its number of earlier occurrences, not on the other prompts."""

    text: str
    key: str


def load_prompts(source: str, limit: int | None = None) -> list[Prompt]:
    """The first ``limit`` prompts, or all, of a public set (`SETS`), a file, standard input, or else the text itself.

    A ``.jsonl`` file has one prompt per line, a JSON object with one of `FIELDS`; any other file is one prompt, and so
    is standard input, ``-``. What looks like the name of a file or set that is not there is never taken for a text.
    Raises InputError for that, for a file and line that cannot be used, and where there is no prompt.
    """
    check_text("prompts", source)
    if source in SETS:
        texts = _from_hub(source)
    elif source == "-":
        texts = [text for text in [read_stdin()] if text.strip()]
    elif source.endswith(".jsonl"):
        texts = _from_lines(source)
    elif os.path.exists(source):
        texts = [read_text(source, EXPECTED)]
    else:
        if meant := looks_like_a_name(source):
            expected = f"{meant}; a text that looks like one is read from a file, or from standard input (-)"
            raise errors.fail(f"prompts {source}", got="neither a file nor a set", expected=expected)
        texts = [source] if source.strip() else []
    texts = texts[:limit]
    if not texts:
        raise errors.fail(f"prompts {source}", got="no prompt", expected="at least one")
    return keyed(texts)


def looks_like_a_name(source: str) -> str:
    """What of a file or set ``source`` looks like the name of, as an error message expects it; empty: a text.

    >>> looks_like_a_name("gsm8"), looks_like_a_name("questions.txt"), looks_like_a_name("What is e.g. 3 / 4?")
    ('the set gsm8k', 'an existing file', '')
    """
    if close := get_close_matches(source, SETS, n=1, cutoff=0.75):
        return f"the set {close[0]}"
    one_word = len(source) <= LONGEST_NAME and not any(character.isspace() for character in source)
    return "an existing file" if one_word and re.search(r"[\w~.]/[A-Za-z]|\w\.[A-Za-z]\w{0,4}$|^~?/", source) else ""


def keyed(texts: list[str]) -> list[Prompt]:
    """Prompts with their keys. Raises InputError for a text that is not valid Unicode.

    >>> [prompt.key == other.key for prompt, other in zip(keyed(["a", "a"]), keyed(["b", "a"]))]
    [False, False]
    >>> keyed(["a", "b"])[1] == keyed(["b"])[0]
    True
    """
    seen: Counter[str] = Counter()
    prompts = []
    for text in texts:
        check_text("prompt", text)
        seen[text] += 1
        prompts.append(Prompt(text, f"{blake2b(text.encode(), digest_size=8).hexdigest()}-{seen[text]}"))
    return prompts


def _from_lines(path: str) -> list[str]:
    texts = []
    for number, line in enumerate(read_text(path, EXPECTED).split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{path} line {number}"
        try:
            entry = json.loads(line)
        except ValueError as error:
            raise errors.fail(where, got=str(error), expected="a JSON object") from error
        values = [entry[name] for name in FIELDS if isinstance(entry, dict) and name in entry]
        if not values or not isinstance(values[0], str):
            got = f"fields {', '.join(entry)}" if isinstance(entry, dict) and not values else "no text"
            raise errors.fail(where, got=got, expected="text in a field " + ", ".join(FIELDS))
        texts.append(values[0])
    return texts


def _from_hub(name: str) -> list[str]:
    repository, configuration = SETS[name]
    try:
        from datasets import load_dataset

        rows: Any = load_dataset(repository, configuration, split="test")
    except Exception as error:  # offline, not installed, renamed: each library raises its own
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        expected = f"{repository} from the hub, or a local .jsonl file"
        raise errors.fail(f"prompts {name}", got=reason, expected=expected) from error
    return [str(text) for text in rows[next(field for field in FIELDS if field in rows.column_names)]]
