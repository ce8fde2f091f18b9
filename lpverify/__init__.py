"""How good can speculative-decoding verification be, and how close does an algorithm get?

The public names are listed in ``__all__``. They are imported on first use, so that ``import lpverify`` is cheap and
loads no solver, no plotting and no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lpverify.auditing.audit import audit
    from lpverify.core import families as make
    from lpverify.core.draft_tree import DraftTree
    from lpverify.core.model_pair import ModelPair
    from lpverify.core.problem import VerifyProblem, load_problem
    from lpverify.core.problem_files import examples, save_problem
    from lpverify.core.results import AuditReport, Certificate, Evaluation, LpSolution, RankTable
    from lpverify.errors import InputError, SizeError
    from lpverify.exact.breakdown import balance
    from lpverify.exact.closed_form import block_efficiency
    from lpverify.exact.compare import compare
    from lpverify.exact.evaluate import evaluate
    from lpverify.lp import certify, cvx
    from lpverify.lp.solve import solve
    from lpverify.report import plots, tables
    from lpverify.studies.session import open_pair
    from lpverify.verifiers import StopDistribution, Verifier, verifier
    from lpverify.verifiers.sample import sample

__all__ = [
    "AuditReport",
    "Certificate",
    "DraftTree",
    "Evaluation",
    "InputError",
    "LpSolution",
    "ModelPair",
    "RankTable",
    "SizeError",
    "StopDistribution",
    "Verifier",
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
    "sample",
    "save_problem",
    "solve",
    "tables",
    "verifier",
]

_HOME = {
    "AuditReport": "core.results",
    "Certificate": "core.results",
    "DraftTree": "core.draft_tree",
    "Evaluation": "core.results",
    "InputError": "errors",
    "LpSolution": "core.results",
    "ModelPair": "core.model_pair",
    "RankTable": "core.results",
    "SizeError": "errors",
    "StopDistribution": "verifiers.base",
    "Verifier": "verifiers.base",
    "VerifyProblem": "core.problem",
    "audit": "auditing.audit",
    "balance": "exact.breakdown",
    "block_efficiency": "exact.closed_form",
    "certify": "lp.certify",
    "compare": "exact.compare",
    "cvx": "lp.cvx",
    "evaluate": "exact.evaluate",
    "examples": "core.problem_files",
    "load_problem": "core.problem",
    "make": "core.families",
    "open_pair": "studies.session",
    "plots": "report.plots",
    "sample": "verifiers.sample",
    "save_problem": "core.problem_files",
    "solve": "lp.solve",
    "tables": "report.tables",
    "verifier": "verifiers",
}
"""Public name -> module that defines it (or that it is)."""


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{_HOME[name]}")
    value = getattr(module, name, module)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
