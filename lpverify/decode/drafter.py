"""Drafting: K i.i.d. paths of L tokens, and the rows they were drawn from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from lpverify.core.draft_tree import Topology, topology
from lpverify.decode.models import Pair, State
from lpverify.decode.sampling import Sampling, check_defined, probabilities
from lpverify.verifiers.sample import pick_each


@dataclass(frozen=True, eq=False)
class DraftedPaths:
    """Drafted paths as a tree, and the row that the children of each inner node were drawn from."""

    tree: Topology
    rows: torch.Tensor  # (inner nodes, V), float64


def draft_paths(
    pair: Pair,
    state: State,
    pending: int,
    uniforms: npt.NDArray[np.float64],
    sampling: Sampling,
    process: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
) -> DraftedPaths:
    """Draw K paths of L tokens after the pending token in L draft steps; they come to the host once, after the last.

    Paths with a common prefix draw from one row, that of the first of them: kernels need not give all rows of a batch
    the same last bits, and the verifier must get the row that a token was drawn from.

    Args:
        state: of the draft. Afterwards it has K branches, fed with the pending token and all drafted tokens but the
            last of each path.
        uniforms: (L, K) in [0, 1), one for each drafted token (`lpverify.decode.rng.Keys.drafting`).
        process: changes logits (R, n), given the tokens (R, i) drafted before them
            (`lpverify.decode.engine.ActiveRequest.processed`).

    Raises:
        InputError: the draft's logits are NaN or infinite.
    """
    model, (depth, num_paths) = pair.draft, uniforms.shape
    if depth == 0:
        empty = topology(np.zeros((num_paths, 0), dtype=np.int64))
        return DraftedPaths(empty, torch.empty((0, pair.vocab_size), dtype=torch.float64))
    tokens: list[torch.Tensor] = []

    def rows_after(fed: torch.Tensor) -> torch.Tensor:
        logits = state.append(fed.to(model.device))
        if process is not None:  # the placeholder of a row that is NaN, which is found below, is no token
            drafted = torch.stack(tokens, dim=1).clamp_min(0) if tokens else fed.new_empty((1, 0))
            logits = process(drafted, logits)
        return probabilities(logits, sampling, pair.vocab_size)

    rows = rows_after(torch.tensor([pending])).expand(num_paths, -1)
    steps = torch.tensor(uniforms, device=rows.device)  # of a spread model not the device of its tokens
    every_row = [rows]
    tokens.append(pick_each(rows, steps[0]))
    same = torch.ones((num_paths, num_paths), dtype=torch.bool, device=rows.device)  # paths with a common prefix
    for i in range(1, depth):
        same = same & (tokens[-1][:, None] == tokens[-1][None, :])
        first = same.to(torch.uint8).argmax(dim=1)
        rows = rows_after(tokens[-1])[first]
        every_row.append(rows)
        tokens.append(pick_each(rows, steps[i]))
    drafted = torch.stack(tokens, dim=1).cpu().numpy()
    if (drafted < 0).any():  # drawn from a row that is NaN
        check_defined(torch.cat(every_row), f"draft {model.name}")
    tree = topology(drafted)
    inner = zip(every_row, tree.first_paths[:depth], strict=True)
    return DraftedPaths(tree, torch.cat([rows[paths] for rows, paths in inner]))
