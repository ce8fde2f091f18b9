"""Prompts of the figures about real models: built-in ones, so that nothing is fetched, or sets that a user names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lpverify import errors

if TYPE_CHECKING:
    from lpverify.decode.prompts import Prompt

CODE = (
    'def read_lines(path):\n    """Return the lines of a text file without their line ends."""\n',
    "def is_prime(n):\n    if n < 2:\n        return False\n",
    'def merge(left, right):\n    """Merge two sorted lists into one sorted list."""\n    result = []\n',
    "class Stack:\n    def __init__(self):\n        self._items = []\n\n    def push(self, item):\n",
    "def count_words(text):\n    counts = {}\n    for word in text.split():\n",
    "import os\nimport sys\n\n\ndef main(argv=None):\n    if argv is None:\n",
    'def flatten(items):\n    """Yield the elements of nested lists, in order."""\n    for item in items:\n',
    "class Node:\n    def __init__(self, value, parent=None):\n        self.value = value\n",
    'def parse_header(line):\n    """Split a header line into its name and its value."""\n    name, sep, value =',
    "def copy_tree(source, target):\n    for name in os.listdir(source):\n",
    "class Reader:\n    def __init__(self, stream, encoding=None):\n        self.stream = stream\n",
    'def median(data):\n    """Return the median of numeric data."""\n    data = sorted(data)\n    n = len(data)\n',
    "def format_time(seconds):\n    minutes, seconds = divmod(seconds, 60)\n",
    'def quote(text):\n    """Escape what a shell would read as special."""\n    if not text:\n        return',
    "try:\n    from _json import scanstring\nexcept ImportError:\n",
    "class TestParser(unittest.TestCase):\n    def test_empty(self):\n",
    "def walk(top, topdown=True):\n    dirs = []\n    nondirs = []\n",
    'def clamp(value, low, high):\n    """Return value, or the bound that it is beyond."""\n',
    "def gcd(a, b):\n    while b:\n",
    "class Cache:\n    def __init__(self, maxsize=128):\n        self.maxsize = maxsize\n        self._data = {}\n",
    "def find_config(name):\n    for folder in sys.path:\n        path = os.path.join(folder, name)\n",
    'def unique(values):\n    """Values without repetitions, in the order of their first one."""\n    seen = set()\n',
    "def close(self):\n    if self._closed:\n        return\n",
    "with open(filename, 'rb') as fp:\n    data = fp.read()\n",
)
QUESTIONS = (
    "A shop sells pens at 3 for 2 euros. How much do 12 pens cost? Explain step by step.",
    "Write a Python function that returns the n-th Fibonacci number.",
    "What is the capital of Australia, and why is it not Sydney?",
    "A train travels 180 km in 2 hours and then 60 km in 1 hour. What is its average speed?",
    "Explain photosynthesis to a ten-year-old.",
    "What is the derivative of x^2 sin(x)?",
    "Write a short story about a lighthouse keeper who finds a letter.",
    "Tom has 5 boxes with 8 apples each and gives away 13 apples. How many are left?",
    "Give three tips for learning a new language.",
    "Write a Python function that checks whether a string is a palindrome.",
    "Summarise the causes of the First World War in one paragraph.",
    "The sum of two numbers is 20 and their difference is 4. Which numbers are they?",
    "What is the difference between a list and a tuple in Python?",
    "How many ways are there to arrange the letters of the word LEVEL?",
    "Describe how a bill becomes law in a parliament.",
    "A recipe for 4 people needs 300 g of rice. How much is needed for 10 people?",
    "Write a Python function that removes duplicates from a list and keeps the order.",
    "Why is the sky blue?",
    "Find the area of a triangle with sides 3, 4 and 5.",
    "Explain what a hash table is and when to use one.",
    "Maria reads 15 pages a day. When will she have read a book of 240 pages?",
    "List the planets of the solar system with one fact about each.",
    "What is the probability of at least one six in four throws of a die?",
    "Write a polite letter that asks a landlord to repair the heating.",
)
BUILT_IN: dict[str, tuple[str, ...]] = {"code": CODE, "questions": QUESTIONS}


def prompt_sets(sources: Sequence[str]) -> dict[str, list[str]]:
    """Label -> texts of ``sources``, each ``SOURCE`` or ``LABEL=SOURCE``.

    A source is a name of `BUILT_IN`, the name of a public set (gsm8k, humaneval, math500: from the hub) or a file, as
    in `lpverify.decode.prompts`. The label of a file is its name up to the first "-" or ".". Raises InputError for a
    file that is not there and for a label that comes twice.

    >>> list(prompt_sets(["code"])), prompt_sets(["mine=code"])["mine"][3][:11]
    (['code'], 'class Stack')
    """
    found: dict[str, list[str]] = {}
    for text in sources:
        label, source = _split(text)
        if label in found:
            raise errors.fail("--prompts", got=f"the label {label} twice", expected="each label once")
        found[label] = list(BUILT_IN[source]) if source in BUILT_IN else _loaded(source)
    return found


def mixed(sets: Mapping[str, Sequence[str]], count: int) -> list[tuple[str, Prompt]]:
    """The first ``count`` prompts taken from the sets in turn, each with its set's label.

    Fewer where the sets end; a larger ``count`` begins with the same prompts.
    """
    from lpverify.decode.prompts import keyed

    longest = max(map(len, sets.values()), default=0)
    order = [(label, texts[i]) for i in range(longest) for label, texts in sets.items() if i < len(texts)][:count]
    return list(zip([label for label, _ in order], keyed([text for _, text in order]), strict=True))


def _split(text: str) -> tuple[str, str]:
    label, sign, source = text.partition("=")
    if sign and re.fullmatch(r"[\w.-]+", label):
        return label, source
    return re.split(r"[-.]", Path(text).name)[0] or text, text


def _loaded(source: str) -> list[str]:
    from lpverify.decode.prompts import SETS, load_prompts

    if source not in SETS and not Path(source).is_file():
        expected = "a file, or one of " + ", ".join([*BUILT_IN, *SETS])
        raise errors.fail("--prompts", got=source, expected=expected)
    return [prompt.text for prompt in load_prompts(source)]
