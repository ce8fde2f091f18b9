"""How good can speculative-decoding verification be, and how close does an algorithm get?

The public names are listed in ``__all__``. They are imported on first use, so that ``import lpverify`` is cheap and
loads no solver, no plotting and no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lpverify._check import InputError, SizeError
    from lpverify.decode.session import open_pair
    from lpverify.dist import make
    from lpverify.dist.files import examples, save_problem
    from lpverify.dist.pair import DistPair
    from lpverify.exact.audit import audit
    from lpverify.exact.balance import balance
    from lpverify.exact.budgets import block_efficiency
    from lpverify.exact.compare import compare
    from lpverify.exact.evaluate import evaluate
    from lpverify.lp import certify, cvx
    from lpverify.lp.solve import solve
    from lpverify.problem import VerifyProblem, load_problem
    from lpverify.report import plots, tables
    from lpverify.result import AuditReport, Certificate, Evaluation, LpSolution, RankTable, Round
    from lpverify.verify import verifier

__all__ = [
    "AuditReport",
    "Certificate",
    "DistPair",
    "Evaluation",
    "InputError",
    "LpSolution",
    "RankTable",
    "Round",
    "SizeError",
    "VerifyProblem",
    "audit",
    "balance",
    "block_efficiency",
    "certify",
    "compare",
    "cvx",
    "evaluate",
    "examples",
    "load_problem",
    "make",
    "open_pair",
    "plots",
    "save_problem",
    "solve",
    "tables",
    "verifier",
]

_HOME = {
    "AuditReport": "lpverify.result",
    "Certificate": "lpverify.result",
    "DistPair": "lpverify.dist.pair",
    "Evaluation": "lpverify.result",
    "InputError": "lpverify._check",
    "LpSolution": "lpverify.result",
    "RankTable": "lpverify.result",
    "Round": "lpverify.result",
    "SizeError": "lpverify._check",
    "VerifyProblem": "lpverify.problem",
    "audit": "lpverify.exact.audit",
    "balance": "lpverify.exact.balance",
    "block_efficiency": "lpverify.exact.budgets",
    "certify": "lpverify.lp",
    "compare": "lpverify.exact.compare",
    "cvx": "lpverify.lp",
    "evaluate": "lpverify.exact.evaluate",
    "examples": "lpverify.dist.files",
    "load_problem": "lpverify.problem",
    "make": "lpverify.dist",
    "open_pair": "lpverify.decode.session",
    "plots": "lpverify.report",
    "save_problem": "lpverify.dist.files",
    "solve": "lpverify.lp.solve",
    "tables": "lpverify.report",
    "verifier": "lpverify.verify",
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
