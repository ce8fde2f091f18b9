"""The audit for functions of serving engines: one table of tensor contracts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lpverify import errors
from lpverify.integrations import flashinfer, sglang, vllm
from lpverify.integrations.contract import ARRAYS, Arrays, Contract, EngineProgram

CONTRACTS: Mapping[str, Contract] = {
    contract.name: contract
    for contract in (sglang.Tree(), sglang.Chain(), vllm.Chain(), vllm.Ngram(), flashinfer.Chain())
}


def adapt(function: Callable[..., Any], contract: str, *, arrays: str = "torch") -> EngineProgram:
    """A function of a serving engine as a verifier that `lpverify.audit` takes.

    Args:
        function: a function of tensors. Its parameters have the names of tensors of the contract, and get them; the
            modules `lpverify.integrations.sglang`, `vllm` and `flashinfer` list them. What it writes to or returns are
            the outputs of the contract.
        contract: ``sglang-tree``, ``sglang-chain``, ``vllm-chain``, ``vllm-ngram`` or ``flashinfer-chain``.
        arrays: ``torch``: tensors on the CPU in single precision; the audit samples. ``numpy``: arrays of Fractions
            where the case has them, else float64; uniforms that are compared with numbers only need not be drawn, and
            the audit is exact.

    Returns:
        The verifier. Chains are audited on the cases of one path.

    Raises:
        InputError: no function, an unknown contract, a parameter that is no tensor of it, or torch is not installed.

    >>> import numpy as np
    >>> from lpverify import audit
    >>> def first_only(draft_token_ids, target_probs, uniform_samples):  # the "q = 1" rule for one token
    ...     output = np.full(uniform_samples.shape, -1)
    ...     for b, (drafted, p, u) in enumerate(zip(draft_token_ids, target_probs, uniform_samples)):
    ...         accepted = [drafted[0]] if u[0] < p[0][drafted[0]] else []
    ...         row = p[1] if accepted else p[0] * (np.arange(len(p[0])) != drafted[0])
    ...         token = next(x for x, below in enumerate(np.cumsum(row)) if u[1] * row.sum() < below)
    ...         output[b, : len(accepted) + 1] = [*accepted, token]
    ...     return output
    >>> report = audit(adapt(first_only, "flashinfer-chain", arrays="numpy"), cases=["one step", "coin"])
    >>> report.lossless, {case.mode for case in report.cases}, report.cases[0].total_variation
    (True, {'exact'}, Fraction(0, 1))
    """
    check(contract, arrays)
    if not callable(function):
        raise errors.fail("verifier", got=errors.shown(function), expected="a function of tensors")
    return EngineProgram(function, CONTRACTS[contract], Arrays("torch" if arrays == "torch" else "numpy"))


def check(contract: str, arrays: str) -> None:
    """Raise InputError for a name that is not in the table, and where torch is asked for and not installed."""
    errors.choice("adapter", contract, tuple(CONTRACTS))
    errors.choice("arrays", arrays, ARRAYS)
    if arrays == "torch":
        errors.need("arrays", "torch", extra="decode", instead=", or use numpy arrays")
