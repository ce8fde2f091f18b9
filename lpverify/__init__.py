"""How good can speculative-decoding verification be, and how close does an algorithm get?

The public names are listed in ``__all__``. They are imported on first use, so that ``import lpverify`` is cheap and
loads no solver, no plotting and no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lpverify._check import InputError, SizeError
    from lpverify.dist import make
    from lpverify.dist.files import examples, save_problem
    from lpverify.dist.pair import DistPair
    from lpverify.exact.audit import audit
    from lpverify.problem import VerifyProblem, load_problem
    from lpverify.result import AuditReport, Certificate, LpSolution, RankTable, Round

__all__ = [
    "AuditReport",
    "Certificate",
    "DistPair",
    "InputError",
    "LpSolution",
    "RankTable",
    "Round",
    "SizeError",
    "VerifyProblem",
    "audit",
    "examples",
    "load_problem",
    "make",
    "save_problem",
]

_HOME = {
    "AuditReport": "lpverify.result",
    "Certificate": "lpverify.result",
    "DistPair": "lpverify.dist.pair",
    "InputError": "lpverify._check",
    "LpSolution": "lpverify.result",
    "RankTable": "lpverify.result",
    "Round": "lpverify.result",
    "SizeError": "lpverify._check",
    "VerifyProblem": "lpverify.problem",
    "audit": "lpverify.exact.audit",
    "examples": "lpverify.dist.files",
    "load_problem": "lpverify.problem",
    "make": "lpverify.dist",
    "save_problem": "lpverify.dist.files",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(_HOME[name])
    value = getattr(module, name, None) or import_module(f"{_HOME[name]}.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
