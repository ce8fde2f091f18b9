"""Sweeps: which problems and algorithms a configuration asks for, and the rows that one task gives.

A configuration is a TOML file. A list where one value is expected crosses its values with all others; every key of
`COMMON` may stand at the top, for all families, or in a family, for that one:

    vocab = [3, 4]              # V
    depth = 2                   # L
    paths = [1, 2, 4]           # K
    seeds = 5                   # seeds 0..4; or a list of seeds
    algorithms = ["bv", "gbv"]  # default: all, with the optimum, the best single ranking and the node relaxation
    tolerance = 1e-9            # certified gap of the optimum to stop at

    [[family]]
    name = "dirichlet"          # a name of `lpverify.dist.make.FAMILIES` and its parameters
    alpha = [0.5, 1.0]

A task is one problem with K; it solves for the optimum once and gives one row an algorithm. A row is a JSON object that
says everything it depends on, and its ``key`` is a hash of that: rows of different sweeps can share a file.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import time
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lpverify import _check
from lpverify._provenance import provenance
from lpverify.dist import make
from lpverify.exact import compare
from lpverify.lp.solve import solve
from lpverify.problem import MAX_PATHS, VerifyProblem
from lpverify.result import LpSolution

SCHEMA = "lpverify/sweep@1"
NAMES = (*compare.REFERENCES, *compare.ALGORITHMS)
"""What a row can be about."""

COMMON = ("vocab", "depth", "paths", "seeds", "algorithms", "tolerance", "time_limit", "max_drafts")
PACKAGES = ("numpy", "scipy", "highspy")


@dataclass(frozen=True)
class Task:
    """One problem with K paths; ``names`` are the rows wanted, in `NAMES`."""

    family: str
    parameters: Mapping[str, float | int]
    vocab: int
    depth: int
    paths: int
    seed: int
    names: tuple[str, ...] = NAMES
    tolerance: float = 1e-9
    time_limit: float | None = None
    max_drafts: int = compare.MAX_DRAFTS
    keys: Mapping[str, str] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        keys = {}
        for name in self.names:
            text = json.dumps([SCHEMA, self.settings, name], sort_keys=True)
            keys[name] = hashlib.sha256(text.encode()).hexdigest()[:16]
        object.__setattr__(self, "keys", keys)

    @property
    def settings(self) -> dict[str, Any]:
        """All that a row depends on besides the algorithm."""
        return {
            "family": self.family,
            "parameters": dict(self.parameters),
            "vocab": self.vocab,
            "depth": self.depth,
            "paths": self.paths,
            "seed": self.seed,
            "tolerance": self.tolerance,
            "time_limit": self.time_limit,
            "max_drafts": self.max_drafts,
        }

    def without(self, done: Iterable[str]) -> Task:
        """The same task without the rows whose keys are ``done``."""
        known = set(done)
        return replace(self, names=tuple(name for name in self.names if self.keys[name] not in known))


def run_task(task: Task) -> list[dict[str, Any]]:
    """The task's rows. What fails is a row with ``error`` set; nothing is raised but KeyboardInterrupt and the like."""
    began = time.perf_counter()
    try:
        pair = make.family(task.family, task.vocab, task.depth, task.seed, **task.parameters)
        problem = VerifyProblem(pair, task.paths)
        optimum = solve(problem, tolerance=task.tolerance, time_limit=task.time_limit)
    except Exception as error:  # a sweep goes on, whatever one of its tasks does
        return [_row(task, name, _message(error), None, None, began) for name in task.names]
    rows = []
    for name in task.names:
        try:
            result = compare.measure(problem, name, optimum, task.max_drafts)
        except Exception as error:
            rows.append(_row(task, name, _message(error), None, optimum, began))
        else:
            rows.append(_row(task, name, None, result, optimum, began))
        began = time.perf_counter()
    return rows


def failed(task: Task, error: BaseException) -> list[dict[str, Any]]:
    """The rows of a task that never came back, for example because its worker died."""
    return [_row(task, name, _message(error), None, None, time.perf_counter()) for name in task.names]


def _row(
    task: Task,
    name: str,
    error: str | None,
    result: compare.AlgorithmResult | None,
    optimum: LpSolution | None,
    began: float,
) -> dict[str, Any]:
    value = None if result is None else result.block_efficiency
    gap = None if value is None or optimum is None else optimum.value - value
    return {
        "schema": SCHEMA,
        "key": task.keys[name],
        **task.settings,
        "name": name,
        "block_efficiency": value,
        "gap": gap,
        "relative_gap": None if gap is None or optimum is None else gap / optimum.value,
        "law_error": None if result is None else result.law_error,
        "method": None if result is None else result.method,
        "lower_bound": None if optimum is None else optimum.lower_bound,
        "upper_bound": None if optimum is None else optimum.upper_bound,
        "status": None if optimum is None else optimum.status,
        "error": error,
        "seconds": time.perf_counter() - began,
        "provenance": provenance(*PACKAGES),
    }


def _message(error: BaseException) -> str:
    text = _check.one_line(str(error)) or "no message"
    return text if isinstance(error, _check.InputError) else f"{type(error).__name__}: {text}"


def load_tasks(path: str) -> list[Task]:
    """The tasks that a configuration file asks for, without repeats.

    Raises InputError that names the file and the place in it.
    """
    try:
        config = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise _check.fail(path, got=error.strerror or error, expected="a TOML file that can be read") from error
    except (tomllib.TOMLDecodeError, ValueError) as error:  # ValueError: not UTF-8, a NUL in the name
        raise _check.fail(path, got=f"no TOML ({error})", expected="a sweep configuration in TOML") from error
    return tasks(config, path)


def tasks(config: Mapping[str, Any], place: str = "config") -> list[Task]:
    """The tasks of a parsed configuration; ``place`` names it in messages.

    >>> config = {"vocab": 2, "depth": 2, "paths": [1, 2], "seeds": 3, "family": [{"name": "markov"}]}
    >>> len(tasks(config))
    6
    """
    _known(place, config, ("family", *COMMON))
    families = config.get("family")
    if not isinstance(families, list) or not families or not all(isinstance(f, dict) for f in families):
        raise _check.fail(f"{place} family", got=_kind(families), expected="at least one [[family]] table")
    top = {key: config[key] for key in COMMON if key in config}
    for key, value in top.items():  # also where every family has its own
        _values(f"{place} {key}", key, value)
    found: dict[tuple[str, ...], Task] = {}
    for number, entry in enumerate(families, start=1):
        for task in _family(f"{place} family {number}", place, top, entry):
            found.setdefault(tuple(task.keys.values()), task)
    return list(found.values())


def _family(where: str, top_place: str, top: Mapping[str, Any], entry: Mapping[str, Any]) -> Iterable[Task]:
    name = entry.get("name")
    if not isinstance(name, str):
        expected = "one of " + ", ".join(make.FAMILIES)
        raise _check.fail(f"{where} name", got="nothing" if name is None else repr(name), expected=expected)
    _check.choice(f"{where} name", name, make.FAMILIES)
    takes = make.PARAMETERS.get(name, ())
    _known(where, entry, ("name", *takes, *COMMON))
    settings = dict(top)
    settings.update({key: entry[key] for key in COMMON if key in entry})
    for key in COMMON[:4]:
        if key not in settings:
            raise _check.fail(f"{where} {key}", got="nothing", expected=f"{key} in the family or at the top")
    wanted = {key: _values(f"{where if key in entry else top_place} {key}", key, settings[key]) for key in settings}
    wanted.setdefault("algorithms", list(NAMES))
    singles = {key: wanted[key][0] for key in COMMON[5:] if key in wanted}
    axes = [_numbers(f"{where} {key}", entry[key]) for key in takes if key in entry]
    given = [key for key in takes if key in entry]
    for values in itertools.product(*axes):
        parameters = dict(zip(given, values, strict=True))
        try:
            make.family(name, 2, 1, 0, **parameters)
        except _check.InputError as error:
            raise type(error)(f"{where}: {error}") from error
        for vocab, depth, paths, seed in itertools.product(*(wanted[key] for key in COMMON[:4])):
            yield Task(name, parameters, vocab, depth, paths, seed, tuple(wanted["algorithms"]), **singles)


def _values(where: str, key: str, value: Any) -> list[Any]:
    """The values of a key of `COMMON`, checked."""
    if key == "algorithms":
        if not isinstance(value, list) or not value:
            raise _check.fail(where, got=_kind(value), expected="a list of names, at least one")
        for name in value:
            _check.choice(where, name, NAMES)
        return list(dict.fromkeys(value))
    if key in ("tolerance", "time_limit"):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
            raise _check.fail(where, got=repr(value), expected="a positive number")
        return [float(value)]
    if key == "max_drafts":
        return [_check.integer(where, value, least=1)]
    if key == "seeds":
        if isinstance(value, list):
            return _integers(where, value, 0, None)
        return list(range(_check.integer(where, value, least=1)))
    return _integers(where, value, 1, MAX_PATHS if key == "paths" else None)


def _integers(where: str, value: Any, least: int, most: int | None) -> list[int]:
    values = value if isinstance(value, list) else [value]
    if not values:
        raise _check.fail(where, got="an empty list", expected="at least one value")
    return list(dict.fromkeys(_check.integer(where, entry, least=least, most=most) for entry in values))


def _numbers(where: str, value: Any) -> list[float | int]:
    values = value if isinstance(value, list) else [value]
    for entry in values:
        if isinstance(entry, bool) or not isinstance(entry, (int, float)):
            raise _check.fail(where, got=repr(entry), expected="a number")
    if not values:
        raise _check.fail(where, got="an empty list", expected="at least one value")
    return list(dict.fromkeys(values))


def _known(where: str, table: Mapping[str, Any], keys: tuple[str, ...]) -> None:
    for key in table:
        if key not in keys:
            raise _check.fail(where, got=f"the unknown key {key!r}", expected="one of " + ", ".join(keys))


def _kind(value: Any) -> str:
    return "nothing" if value is None else "an empty list" if value == [] else repr(value)
