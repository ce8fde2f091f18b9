"""Sweeps: which problems and algorithms a configuration asks for, and the rows that one task gives.

A configuration is a TOML file. A list where one value is expected crosses its values with all others; every key of
`COMMON` may stand at the top, for all families, or in a family, for that one:

    vocab = [3, 4]              # V
    depth = 2                   # L
    paths = [1, 2, 4]           # K
    seeds = 5                   # seeds 0..4; or a list of seeds
    algorithms = ["bv", "gbv"]  # default: all, with the optimum, the best single ranking and the node relaxation
    tolerance = 1e-9            # certified gap of the optimum to stop at
    time_limit = 60             # seconds of one solve; default: none
    max_terms = 1_000_000       # most terms of an algorithm's exact evaluation; default: the limit of the method

    [[family]]
    name = "dirichlet"          # a name of `lpverify.core.families.FAMILIES` and its parameters
    alpha = [0.5, 1.0]

    [[family]]
    name = "folder"             # every problem file of a folder, for example one of `lpverify extract`;
    path = "trees"              # no vocab, depth or seeds. Relative to the configuration file.

A task is one problem with K; it solves for the optimum once and gives one row an algorithm. A row is a JSON object that
says everything it depends on, and its ``key`` is a hash of that: rows of different sweeps can share a file. A problem
of a folder is known by its file's name and content, wherever the folder is. ``certified`` says whether the optimum's
certificate held when it was checked without the solver.
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

from lpverify import errors
from lpverify.core import families as make
from lpverify.core import problem_files as files
from lpverify.core.model_pair import ModelPair
from lpverify.core.problem import MAX_PATHS, VerifyProblem
from lpverify.core.results import LpSolution
from lpverify.exact import compare
from lpverify.files import provenance
from lpverify.lp import certify
from lpverify.lp.solve import solve

SCHEMA = "lpverify/sweep@1"
NAMES = (*compare.REFERENCES, *compare.ALGORITHMS)
"""What a row can be about."""

FOLDER = "folder"
"""The family that is a folder of problem files."""

SIZES = ("vocab", "depth", "paths", "seeds")
COMMON = (*SIZES, "algorithms", "tolerance", "time_limit", "max_drafts", "max_terms")
PACKAGES = ("numpy", "scipy", "highspy")


@dataclass(frozen=True)
class Task:
    """One problem with K paths; ``names`` are the rows wanted, in `NAMES`. ``source``: its file, in a `FOLDER`."""

    family: str
    parameters: Mapping[str, float | int | str]
    vocab: int
    depth: int
    paths: int
    seed: int | None
    names: tuple[str, ...] = NAMES
    tolerance: float = 1e-9
    time_limit: float | None = None
    max_drafts: int = compare.MAX_DRAFTS
    max_terms: int | None = None
    source: str | None = field(default=None, compare=False)
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
            **({} if self.max_terms is None else {"max_terms": self.max_terms}),
        }

    def pair(self) -> ModelPair:
        """The problem's laws. Raises InputError as what makes or reads them."""
        if self.source is None:
            assert self.seed is not None
            return make.family(self.family, self.vocab, self.depth, self.seed, **self.parameters)
        if _digest(self.source) != self.parameters["sha256"]:
            raise errors.fail(self.source, got="another content", expected="that from when the sweep began")
        return files.load_problem(self.source).pair

    def without(self, done: Iterable[str]) -> Task:
        """The same task without the rows whose keys are ``done``."""
        known = set(done)
        return replace(self, names=tuple(name for name in self.names if self.keys[name] not in known))


def run_task(task: Task) -> list[dict[str, Any]]:
    """The task's rows. What fails is a row with ``error`` set; nothing is raised but KeyboardInterrupt and the like."""
    began = time.perf_counter()
    try:
        problem = VerifyProblem(task.pair(), task.paths)
        optimum = solve(problem, tolerance=task.tolerance, time_limit=task.time_limit)
        certified = _certified(problem.pair, optimum)
    except Exception as error:  # a sweep goes on, whatever one of its tasks does
        return [_row(task, name, _message(error), began) for name in task.names]
    rows = []
    for name in task.names:
        try:
            result = compare.measure(problem, name, optimum, task.max_drafts, task.max_terms)
        except Exception as error:
            rows.append(_row(task, name, _message(error), began, optimum, certified))
        else:
            rows.append(_row(task, name, None, began, optimum, certified, result))
        began = time.perf_counter()
    return rows


def failed(task: Task, error: BaseException) -> list[dict[str, Any]]:
    """The rows of a task that never came back, for example because its worker died."""
    return [_row(task, name, _message(error), time.perf_counter()) for name in task.names]


def _certified(pair: ModelPair, optimum: LpSolution) -> bool | None:
    """Does the certificate prove the optimum's bounds? None where there is none (closed forms)."""
    if optimum.certificate is None:
        return None
    found = certify.check(pair, optimum.certificate)
    lower, upper = found.lower_bound - optimum.lower_bound, found.upper_bound - optimum.upper_bound
    return found.valid and lower >= -certify.RELATIVE and upper <= certify.RELATIVE


def _row(
    task: Task,
    name: str,
    error: str | None,
    began: float,
    optimum: LpSolution | None = None,
    certified: bool | None = None,
    result: compare.AlgorithmResult | None = None,
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
        "certified": certified,
        "error": error,
        "seconds": time.perf_counter() - began,
        "provenance": provenance(*PACKAGES),
    }


def _message(error: BaseException) -> str:
    text = errors.one_line(str(error)) or "no message"
    return text if isinstance(error, errors.InputError) else f"{type(error).__name__}: {text}"


def load_tasks(path: str) -> list[Task]:
    """The tasks that a configuration file asks for, without repeats.

    Raises InputError that names the file and the place in it.
    """
    try:
        config = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise errors.fail(path, got=error.strerror or error, expected="a TOML file that can be read") from error
    except (tomllib.TOMLDecodeError, ValueError) as error:  # ValueError: not UTF-8, a NUL in the name
        raise errors.fail(path, got=f"no TOML ({error})", expected="a sweep configuration in TOML") from error
    return tasks(config, path, Path(path).parent)


def tasks(config: Mapping[str, Any], place: str = "config", base: Path | None = None) -> list[Task]:
    """The tasks of a parsed configuration; ``place`` names it in messages, folders are relative to ``base``.

    >>> config = {"vocab": 2, "depth": 2, "paths": [1, 2], "seeds": 3, "family": [{"name": "markov"}]}
    >>> len(tasks(config))
    6
    """
    _known(place, config, ("family", *COMMON))
    families = config.get("family")
    if not isinstance(families, list) or not families or not all(isinstance(f, dict) for f in families):
        raise errors.fail(f"{place} family", got=_kind(families), expected="at least one [[family]] table")
    top = {key: config[key] for key in COMMON if key in config}
    for key, value in top.items():  # also where every family has its own
        _values(f"{place} {key}", key, value)
    found: dict[tuple[str, ...], Task] = {}
    for number, entry in enumerate(families, start=1):
        where = f"{place} family {number}"
        if entry.get("name") == FOLDER:
            listed = _folder(where, place, top, entry, base or Path())
        else:
            listed = _family(where, place, top, entry)
        for task in listed:
            found.setdefault(tuple(task.keys.values()), task)
    return list(found.values())


def _family(where: str, top_place: str, top: Mapping[str, Any], entry: Mapping[str, Any]) -> Iterable[Task]:
    name = entry.get("name")
    if not isinstance(name, str):
        expected = "one of " + ", ".join((*make.FAMILIES, FOLDER))
        raise errors.fail(f"{where} name", got="nothing" if name is None else repr(name), expected=expected)
    errors.choice(f"{where} name", name, (*make.FAMILIES, FOLDER))
    takes = make.PARAMETERS.get(name, ())
    _known(where, entry, ("name", *takes, *COMMON))
    wanted, names, singles = _wanted(where, top_place, top, entry, SIZES)
    axes = [_numbers(f"{where} {key}", entry[key]) for key in takes if key in entry]
    given = [key for key in takes if key in entry]
    for values in itertools.product(*axes):
        parameters = dict(zip(given, values, strict=True))
        try:
            make.family(name, 2, 1, 0, **parameters)
        except errors.InputError as error:
            raise type(error)(f"{where}: {error}") from error
        for vocab, depth, paths, seed in itertools.product(*(wanted[key] for key in SIZES)):
            yield Task(name, parameters, vocab, depth, paths, seed, names, **singles)


def _folder(where: str, top_place: str, top: Mapping[str, Any], entry: Mapping[str, Any], base: Path) -> Iterable[Task]:
    """A task for every problem file and K; each file is read once here, so that a bad one is refused at once."""
    _known(where, entry, ("name", "path", "paths", *COMMON[len(SIZES) :]))
    folder = entry.get("path")
    if not isinstance(folder, str):
        raise errors.fail(f"{where} path", got=_kind(folder), expected="the name of a folder of problem files")
    shared = {key: value for key, value in top.items() if key not in SIZES or key == "paths"}
    wanted, names, singles = _wanted(where, top_place, shared, entry, ("paths",))
    found = files.problem_folder(base / folder)
    if not found:
        raise errors.fail(f"{where} path {base / folder}", got="no problem file", expected="at least one .json file")
    for source in map(str, found):
        parameters = {"file": Path(source).name, "sha256": _digest(source)}
        pair = files.load_problem(source).pair
        for paths in wanted["paths"]:
            sizes = (pair.vocab_size, pair.depth, paths, None)
            yield Task(FOLDER, parameters, *sizes, names, **singles, source=source)


def _digest(source: str) -> str:
    return hashlib.sha256(Path(source).read_bytes()).hexdigest()


def _wanted(
    where: str, top_place: str, top: Mapping[str, Any], entry: Mapping[str, Any], needed: Iterable[str]
) -> tuple[dict[str, list[Any]], tuple[str, ...], dict[str, Any]]:
    """The values of every key of `COMMON` that is given, the rows wanted, and the settings that have one value."""
    settings = {**top, **{key: entry[key] for key in COMMON if key in entry}}
    for key in needed:
        if key not in settings:
            raise errors.fail(f"{where} {key}", got="nothing", expected=f"{key} in the family or at the top")
    wanted = {key: _values(f"{where if key in entry else top_place} {key}", key, settings[key]) for key in settings}
    names = tuple(wanted.get("algorithms", NAMES))
    return wanted, names, {key: wanted[key][0] for key in COMMON[len(SIZES) + 1 :] if key in wanted}


def _values(where: str, key: str, value: Any) -> list[Any]:
    """The values of a key of `COMMON`, checked."""
    if key == "algorithms":
        if not isinstance(value, list) or not value:
            raise errors.fail(where, got=_kind(value), expected="a list of names, at least one")
        for name in value:
            errors.choice(where, name, NAMES)
        return list(dict.fromkeys(value))
    if key in ("tolerance", "time_limit"):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
            raise errors.fail(where, got=repr(value), expected="a positive number")
        return [float(value)]
    if key in ("max_drafts", "max_terms"):
        return [errors.integer(where, value, least=1)]
    if key == "seeds":
        if isinstance(value, list):
            return _integers(where, value, 0, None)
        return list(range(errors.integer(where, value, least=1)))
    return _integers(where, value, 1, MAX_PATHS if key == "paths" else None)


def _integers(where: str, value: Any, least: int, most: int | None) -> list[int]:
    values = value if isinstance(value, list) else [value]
    if not values:
        raise errors.fail(where, got="an empty list", expected="at least one value")
    return list(dict.fromkeys(errors.integer(where, entry, least=least, most=most) for entry in values))


def _numbers(where: str, value: Any) -> list[float | int]:
    values = value if isinstance(value, list) else [value]
    for entry in values:
        if isinstance(entry, bool) or not isinstance(entry, (int, float)):
            raise errors.fail(where, got=repr(entry), expected="a number")
    if not values:
        raise errors.fail(where, got="an empty list", expected="at least one value")
    return list(dict.fromkeys(values))


def _known(where: str, table: Mapping[str, Any], keys: tuple[str, ...]) -> None:
    for key in table:
        if key not in keys:
            raise errors.fail(where, got=f"the unknown key {key!r}", expected="one of " + ", ".join(keys))


def _kind(value: Any) -> str:
    return "nothing" if value is None else "an empty list" if value == [] else repr(value)
