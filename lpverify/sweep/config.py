"""Sweeps: which problems and algorithms a configuration asks for, and the rows of one task.

docs/command-line.md describes the configuration, a TOML file. A task is one problem with K paths. It solves for the
optimum once and gives one row for each algorithm. A row is a JSON object that says everything it depends on, and its
``key`` is a hash of that and of the versions that computed it, so rows of several sweeps and versions can share a file.
A problem of a folder is identified by the name and the content of its file, wherever the folder is. In a row
``certified`` says whether the certificate of the optimum was confirmed without the solver.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StrictFloat, StrictInt, TypeAdapter

from lpverify import errors
from lpverify.core import families as make
from lpverify.core.model_pair import ModelPair
from lpverify.core.problem import MAX_PATHS, VerifyProblem, load_problem, problem_folder
from lpverify.core.results import LpSolution
from lpverify.core.schema import came, expected, validate
from lpverify.exact import compare
from lpverify.files import provenance, read_text, software
from lpverify.lp import certify
from lpverify.lp.solve import solve

SCHEMA = "lpverify/sweep@1"
FOLDER = "folder"  # the family that consists of the problem files of a folder
NAMES = (*compare.REFERENCES, *compare.ALGORITHMS)  # what a row can be about
SIZES = ("vocab", "depth", "paths", "seeds")  # the keys that a folder does not have, but for ``paths``
MAX_TASKS = 1_000_000  # maximum number of problems of one family
PACKAGES = ("numpy", "scipy", "highspy")
VALUES = ("block_efficiency", "gap", "relative_gap", "law_error", "method")
BOUNDS = ("lower_bound", "upper_bound", "status", "certified")

T = TypeVar("T")
Several = Annotated[  # a value, or a list of them; each once
    list[T],
    BeforeValidator(lambda value: value if isinstance(value, list) else [value]),
    AfterValidator(lambda values: list(dict.fromkeys(values))),
    Field(min_length=1),
]
Count = Annotated[int, Field(ge=1, le=10**18)]
Integer = Annotated[Count, expected("an integer >= 1")]
Integers = Annotated[Several[Count], expected("an integer >= 1, or a list of them")]
Paths = Annotated[
    Several[Annotated[int, Field(ge=1, le=MAX_PATHS)]], expected(f"an integer in 1..{MAX_PATHS}, or a list of them")
]
Seeds = Annotated[
    Count | Annotated[list[Annotated[int, Field(ge=0, lt=2**128)]], Field(min_length=1)],
    expected("a number of seeds >= 1, or a list of seeds >= 0"),
]
Names = Annotated[
    list[Literal[NAMES]],  # type: ignore[valid-type]
    Field(min_length=1),
    expected("a list of one or more of " + ", ".join(NAMES)),
]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), expected("a positive number")]
Numbers = Annotated[Several[StrictInt | StrictFloat], expected("a number, or a list of them")]


class Settings(BaseModel):
    """The keys that a configuration and each of its families can have."""

    model_config = ConfigDict(strict=True)

    vocab: Integers | None = None
    depth: Integers | None = None
    paths: Paths | None = None
    seeds: Seeds | None = None
    algorithms: Names | None = None
    tolerance: Positive = 1e-9
    time_limit: Positive | None = None
    max_drafts: Integer = compare.MAX_DRAFTS
    max_terms: Integer | None = None


SETTINGS, PARAMETERS = TypeAdapter(Settings), TypeAdapter(dict[str, Numbers])


@dataclass(frozen=True)
class Task:
    """One problem with V = ``vocab``, L = ``depth`` and K = ``num_paths``, and the rows to compute."""

    family: str
    parameters: Mapping[str, float | int | str]  # of the family; ``file`` and ``sha256`` of a problem in a folder
    vocab: int
    depth: int
    num_paths: int
    seed: int | None  # None for a problem in a folder
    names: tuple[str, ...] = NAMES  # the rows to compute
    tolerance: float = 1e-9
    time_limit: float | None = None
    max_drafts: int = compare.MAX_DRAFTS
    max_terms: int | None = None
    source: str | None = field(default=None, compare=False)  # path of a problem in a folder
    versions: Mapping[str, Any] = field(default_factory=lambda: software(*PACKAGES), compare=False)  # that compute it
    keys: Mapping[str, str] = field(init=False, compare=False, repr=False)  # the key of the row for each of ``names``

    def __post_init__(self) -> None:
        texts = {
            name: json.dumps([SCHEMA, self.settings, name, dict(self.versions)], sort_keys=True) for name in self.names
        }
        keys = {name: hashlib.sha256(text.encode()).hexdigest()[:16] for name, text in texts.items()}
        object.__setattr__(self, "keys", keys)

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that a row depends on besides the algorithm."""
        data = {"family": self.family, "parameters": dict(self.parameters), "vocab": self.vocab, "depth": self.depth}
        data |= {"paths": self.num_paths, "seed": self.seed, "tolerance": self.tolerance}
        data |= {"time_limit": self.time_limit, "max_drafts": self.max_drafts}
        return data if self.max_terms is None else data | {"max_terms": self.max_terms}

    def pair(self) -> ModelPair:
        """Draw or read the target and draft tables. Raises InputError, also for a file that was changed meanwhile."""
        if self.source is None:
            assert self.seed is not None
            return make.family(self.family, self.vocab, self.depth, self.seed, **self.parameters)
        pair = load_problem(self.source).pair
        if _digest(self.source) != self.parameters["sha256"]:
            raise errors.fail(self.source, got="another content", expected="that from when the sweep began")
        return pair

    def without(self, keys: Iterable[str]) -> Task:
        """The same task without the rows that have these keys."""
        known = set(keys)
        return replace(self, names=tuple(name for name in self.names if self.keys[name] not in known))


def run_task(task: Task) -> list[dict[str, Any]]:
    """Compute the rows of a task. A failure becomes rows with ``error`` set; KeyboardInterrupt is raised."""
    began = time.perf_counter()
    try:
        if (here := software(*PACKAGES)) != task.versions:
            raise errors.fail(
                "worker", got=here, expected=f"{dict(task.versions)} as in the process that asks for rows"
            )
        problem = VerifyProblem(task.pair(), task.num_paths)
        optimum = solve(problem, tolerance=task.tolerance, time_limit=task.time_limit)
        certified = _certified(problem.pair, optimum)
        bounds = dict(zip(BOUNDS, (optimum.lower_bound, optimum.upper_bound, optimum.status, certified), strict=True))
    except Exception as error:  # a sweep continues whatever happens in one of its tasks
        return failed(task, error, began)
    rows = []
    for name in task.names:
        try:
            result = compare.measure(problem, name, optimum, task.max_drafts, task.max_terms)
            value = result.block_efficiency
            gap = None if value is None else optimum.value - value
            relative = None if gap is None else gap / optimum.value
            values = dict(zip(VALUES, (value, gap, relative, result.law_error, result.method), strict=True))
        except Exception as error:
            values = {"error": _message(error)}
        rows.append(_row(task, name, began, bounds | values))
        began = time.perf_counter()
    return rows


def failed(task: Task, error: BaseException, began: float | None = None) -> list[dict[str, Any]]:
    """The rows of a task that failed as a whole, for example because its worker died."""
    began = time.perf_counter() if began is None else began
    return [_row(task, name, began, {"error": _message(error)}) for name in task.names]


def _certified(pair: ModelPair, optimum: LpSolution) -> bool | None:
    """Does the certificate prove the bounds of the optimum? None for closed forms, which have no certificate."""
    if optimum.certificate is None:
        return None
    proof = certify.check(pair, optimum.certificate)
    lower, upper = proof.lower_bound - optimum.lower_bound, proof.upper_bound - optimum.upper_bound
    return proof.valid and lower >= -certify.RELATIVE and upper <= certify.RELATIVE


def _row(task: Task, name: str, began: float, values: dict[str, Any]) -> dict[str, Any]:
    row = {"schema": SCHEMA, "key": task.keys[name], **task.settings, "name": name}
    row |= dict.fromkeys((*VALUES, *BOUNDS, "error")) | values
    return row | {"seconds": time.perf_counter() - began, "provenance": provenance(*PACKAGES)}


def _message(error: BaseException) -> str:
    text = errors.one_line(str(error)) or "no message"
    return text if isinstance(error, errors.InputError) else f"{type(error).__name__}: {text}"


def load_tasks(path: str) -> list[Task]:
    """The tasks of a configuration file, each once. Raises InputError that names the file and the key."""
    text = read_text(path, "a sweep configuration in TOML")
    try:
        config = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise errors.fail(path, got=f"no TOML ({error})", expected="a sweep configuration in TOML") from error
    return tasks(config, path, Path(path).parent)


def tasks(config: Mapping[str, Any], where: str = "config", base: Path | None = None) -> list[Task]:
    """The tasks of a parsed configuration, each once; ``base`` is the directory that folders are relative to.

    Raises InputError, which starts with ``where``, for a key that is unknown, missing or has a wrong value and for a
    bad problem file; SizeError for more than `MAX_TASKS` problems of a family.

    >>> config = {"vocab": 2, "depth": 2, "paths": [1, 2], "seeds": 3, "family": [{"name": "markov"}]}
    >>> len(tasks(config))
    6
    """
    _known(where, config, ("family", *Settings.model_fields))
    families = config.get("family")
    if not isinstance(families, list) or not families or not all(isinstance(entry, dict) for entry in families):
        raise errors.fail(f"{where} family", got=came(families), expected="at least one [[family]] table")
    top = validate(SETTINGS, {key: value for key, value in config.items() if key != "family"}, where, " ")
    unique: dict[tuple[str, ...], Task] = {}
    for number, entry in enumerate(families, start=1):
        for task in _family(f"{where} family {number}", top, entry, base or Path()):
            unique.setdefault(tuple(task.keys.values()), task)
    return list(unique.values())


def _family(where: str, top: Settings, entry: Mapping[str, Any], base: Path) -> Iterator[Task]:
    """The tasks of one ``[[family]]`` table."""
    name, options = entry.get("name"), (*make.FAMILIES, FOLDER)
    if name not in options:
        raise errors.fail(f"{where} name", got=came(name), expected="one of " + ", ".join(options))
    takes = ("path",) if name == FOLDER else make.PARAMETERS.get(name, ())
    needed = ("paths",) if name == FOLDER else SIZES
    keys = [key for key in Settings.model_fields if key in needed or key not in SIZES]
    _known(where, entry, ("name", *takes, *keys))
    own = validate(SETTINGS, {key: entry[key] for key in keys if key in entry}, where, " ")
    merged = top.model_copy(update={key: getattr(own, key) for key in own.model_fields_set})
    for key in needed:
        if getattr(merged, key) is None:
            raise errors.fail(f"{where} {key}", got="nothing", expected=f"{key} in the family or at the top")
    shared = merged.model_dump(include={"tolerance", "time_limit", "max_drafts", "max_terms"})
    shared["names"] = tuple(dict.fromkeys(merged.algorithms or NAMES))
    counts = merged.paths or []
    if name == FOLDER:
        folder = entry.get("path")
        if not isinstance(folder, str):
            raise errors.fail(f"{where} path", got=came(folder), expected="the name of a folder of problem files")
        sources = problem_folder(base / folder)
        if not sources:
            raise errors.fail(f"{where} path {base / folder}", got="no problem file", expected="a .json file")
        _check_count(where, sources, counts)
        for source in sources:  # each is read now, so that a bad one is refused before the work starts
            identity = {"file": source.name, "sha256": _digest(str(source))}
            pair = load_problem(source).pair
            for num_paths in counts:
                sizes = (pair.vocab_size, pair.depth, num_paths, None)
                yield Task(name, identity, *sizes, **shared, source=str(source))
        return
    parameters = validate(PARAMETERS, {key: entry[key] for key in takes if key in entry}, where, " ")
    seeds = range(merged.seeds) if isinstance(merged.seeds, int) else merged.seeds or []
    axes = (merged.vocab or [], merged.depth or [], counts, seeds)
    _check_count(where, *parameters.values(), *axes)
    for point in itertools.product(*parameters.values()):
        chosen = dict(zip(parameters, point, strict=True))
        try:
            make.family(name, 2, 1, 0, **chosen)
        except errors.InputError as error:
            raise type(error)(f"{where}: {error}") from error
        for vocab, depth, num_paths, seed in itertools.product(*axes):
            yield Task(name, chosen, vocab, depth, num_paths, seed, **shared)


def _check_count(where: str, *axes: Sequence[Any]) -> None:
    if (count := math.prod(map(len, axes))) > MAX_TASKS:
        instead = "divide the sweep into several"
        raise errors.too_large(where, size=f"{count} problems", limit=f"{MAX_TASKS}", instead=instead)


def _digest(source: str) -> str:
    return hashlib.sha256(Path(source).read_bytes()).hexdigest()


def _known(where: str, table: Mapping[str, Any], keys: Sequence[str]) -> None:
    for key in table:
        if key not in keys:
            raise errors.fail(where, got=f"the unknown key {came(key)}", expected="one of " + ", ".join(keys))
