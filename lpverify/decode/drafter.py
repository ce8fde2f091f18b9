"""K i.i.d. paths of length L from the draft, and the rows they were drawn from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch

from lpverify import errors
from lpverify.core.draft_tree import Topology, topology
from lpverify.decode.models import Model, State, padded
from lpverify.decode.rng import Keys, Role
from lpverify.decode.sampling import Sampling, probabilities
from lpverify.numerics import Array
from lpverify.verifiers.sample import pick_each


@dataclass(frozen=True, eq=False)
class Draft:
    """Drafted paths as a tree, and for every node that has children the row its children were drawn from."""

    tree: Topology
    rows: torch.Tensor  # (inner, V), float64


def draft_paths(
    model: Model,
    state: State,
    pending: int,
    paths: int,
    depth: int,
    sampling: Sampling,
    keys: Keys,
    round_: int,
    size: int,
) -> Draft:
    """Draw ``paths`` paths of ``depth`` tokens after ``pending`` from rows of ``size`` tokens.

    ``state`` is left with the pending token and all drafted ones but the last of each path. Paths with a common prefix
    draw from one row, that of the first of them: kernels need not give all rows of a batch the same last bits, and the
    row that a token was drawn from must be the one that verification gets. Tokens come to the host once, at the end.
    Raises InputError where logits are not numbers.
    """
    device = model.device
    uniforms = torch.tensor(
        [[keys.uniform(round_, Role.DRAFT, path, i) for path in range(paths)] for i in range(depth)],
        dtype=torch.float64,
        device=device,
    )
    logits = state.append(torch.tensor([pending], device=device))
    rows = probabilities(padded(logits, size), sampling).expand(paths, size)
    same = torch.ones((paths, paths), dtype=torch.bool, device=rows.device)
    uniforms = uniforms.to(rows.device)
    every_row, tokens = [rows], [_pick(rows, uniforms[0])]
    for i in range(1, depth):
        same = same & (tokens[-1][:, None] == tokens[-1][None, :])
        first = same.to(torch.uint8).argmax(dim=1)  # of the paths with the same prefix
        logits = state.append(tokens[-1].to(device))
        rows = probabilities(padded(logits, size), sampling)[first]
        every_row.append(rows)
        tokens.append(_pick(rows, uniforms[i]))
    drafted = torch.stack(tokens, dim=1).cpu().numpy()
    if (drafted < 0).any():
        raise errors.fail(f"draft {model.name}", got="logits that are NaN or infinite", expected="numbers")
    tree = topology(drafted)
    places = first_places(tree, depth)
    return Draft(tree, torch.cat([every_row[i][paths_] for i, paths_ in enumerate(places)]))


def _pick(rows: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    return cast(torch.Tensor, pick_each(cast(Array, rows), cast(Array, uniforms)))


def first_places(tree: Topology, depth: int) -> list[list[int]]:
    """For every depth < ``depth`` the first path through each of its nodes, in node order.

    >>> first_places(topology([[5, 7], [5, 8], [4, 7]]), 2)
    [[0], [0, 2]]
    """
    places = []
    for column in tree.node_of.T[:depth].tolist():
        first: dict[int, int] = {}
        for path, node in enumerate(column):
            first.setdefault(node, path)
        places.append(list(first.values()))
    return places
