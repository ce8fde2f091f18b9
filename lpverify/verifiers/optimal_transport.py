"""OT: at every node the coupling that maximises the probability that the chosen token is drafted (theory 6).

The tokens drafted at a node form a set S of probability pi(S). A maximum flow F from sets to their members, with supply
pi(S) and demand p(x), has the value 1 + min_H [p(H) - q(H)^k], minimum over sets H of tokens (theory 2.6). y is x with
probability F(S, x) / pi(S), else drawn from what is left of p, normalised. The optimum is not unique; tokens are tried
in the order of p/q descending (ties: larger p, then smaller id), so relabelling tokens relabels the distribution unless
two tokens share both p and q. Over several levels it is greedy, not optimal.

References: Khisti et al., arXiv 2410.18234; Hu et al., arXiv 2502.18779; Thomas & Pal, arXiv 2511.15898.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import comb
from typing import Any

import numpy as np

from lpverify import errors
from lpverify.core.draft_tree import DraftTree
from lpverify.numerics import Array, one, zero
from lpverify.verifiers.base import StopDistribution, Verifier
from lpverify.verifiers.residual import residual_distribution
from lpverify.verifiers.rows import on_host
from lpverify.verifiers.top_down import verify_by_rule

MAX_SETS = 5_000  # of drafted tokens at one node: 31 tokens of positive draft probability at k = 3, 99 at k = 2


@dataclass(frozen=True, eq=False)
class TransportRule:
    """An optimal coupling at one node: for every set of drafted tokens its relative flow to each, and its slack."""

    shares: dict[frozenset[int], tuple[tuple[int, ...], Array, Any]]  # tokens, F(S, .) / pi(S), 1 - their sum
    otherwise: Array  # (V,)

    def conditional(self, drafted: Any) -> Array:
        """Distribution of y for each row of ``drafted`` (T, k), shape (T, V)."""
        chosen = []
        for row in np.asarray(drafted).tolist():
            tokens, flows, slack = self.shares[frozenset(row)]
            chosen.append(slack * self.otherwise)
            chosen[-1][list(tokens)] += flows
        return np.stack(chosen)


def node_rule(target: Array, draft: Array, count: int) -> TransportRule:
    """The optimal coupling of ``target`` with the set of ``count`` draws from ``draft``. Raises SizeError."""
    p, q = target, draft
    tokens = [int(x) for x in np.flatnonzero(q > 0)]
    size = sum(comb(len(tokens), size) for size in range(1, count + 1))
    if size > MAX_SETS:
        what = f"ot with {count} paths at one node and {len(tokens)} draftable tokens"
        instead = "use spectr or specinfer, or fewer paths or tokens"
        raise errors.too_large(what, size=f"{size} sets of drafted tokens", limit=f"{MAX_SETS}", instead=instead)
    with np.errstate(over="ignore"):
        tokens.sort(key=lambda x: (-p[x] / q[x], -p[x], x))
    supply = set_probabilities([q[x] for x in tokens], count)
    sets = sorted(supply)
    flow, slack, left = max_flow(sets, [supply[s] for s in sets], [p[x] for x in tokens])
    shares = {}
    for s, members in enumerate(sets):
        mass = supply[members]
        named = tuple(tokens[x] for x in members)
        amounts = np.array([flow[x].get(s, zero(p)) for x in members], dtype=p.dtype)
        shares[frozenset(named)] = (named, amounts / mass, slack[s] / mass) if mass > 0 else (named, amounts, one(p))
    residual = p.copy()
    residual[tokens] = left
    return TransportRule(shares, residual_distribution(residual, p))


def set_probabilities(masses: list[Any], count: int) -> dict[tuple[int, ...], Any]:
    """pi(S) = Pr(the set of ``count`` i.i.d. draws is S) for every S of at most ``count`` indices, all terms positive.

    The n-th entry of a list is Pr(n draws hit S and nothing else, every member at least once); the last member x is
    drawn i >= 1 times among them, which C(n, i) q_x^i counts.

    >>> from fractions import Fraction
    >>> {s: str(mass) for s, mass in set_probabilities([Fraction(1, 4), Fraction(3, 4)], 2).items()}
    {(0,): '1/16', (1,): '9/16', (0, 1): '3/8'}
    """
    unit = one(masses[0])
    powers = [[mass**i for i in range(count + 1)] for mass in masses]
    result = {}
    hits: dict[tuple[int, ...], list[Any]] = {(): [unit] + [zero(unit)] * count}
    for size in range(1, min(count, len(masses)) + 1):
        longer = {}
        for members in combinations(range(len(masses)), size):
            old, power = hits[members[:-1]], powers[members[-1]]
            longer[members] = [
                sum((comb(n, i) * power[i] * old[n - i] for i in range(1, n + 1)), zero(unit)) for n in range(count + 1)
            ]
            result[members] = longer[members][count]
        hits = longer
    return result


def max_flow(
    sets: list[tuple[int, ...]], supply: list[Any], demand: list[Any]
) -> tuple[list[dict[int, Any]], list[Any], list[Any]]:
    """A maximum flow from sets to their members by shortest augmenting paths (Edmonds & Karp).

    Exact for Fractions; amounts are only ever moved, by the smallest capacity on the way, so floats stay feasible to
    the last bit. Returns the flow (one dict set -> amount per token), what is left of the supply and of the demand.
    """
    flow: list[dict[int, Any]] = [{} for _ in demand]
    supply, demand = list(supply), list(demand)
    for start in range(len(sets)):
        while supply[start] > 0 and (way := _augmenting_path(sets, flow, demand, start)):
            given_back = [(s, x) for (_, x), (s, _) in pairwise(way)]  # each later set leaves the token before it
            amount = min([supply[start], demand[way[-1][1]]] + [flow[x][s] for s, x in given_back])
            supply[start] -= amount
            demand[way[-1][1]] -= amount
            for s, x in way:
                flow[x][s] = flow[x][s] + amount if s in flow[x] else amount
            for s, x in given_back:
                flow[x][s] -= amount
                if flow[x][s] == 0:
                    del flow[x][s]
    return flow, supply, demand


def _augmenting_path(
    sets: list[tuple[int, ...]], flow: list[dict[int, Any]], demand: list[Any], start: int
) -> list[tuple[int, int]]:
    """The edges (set, token) that gain flow on a shortest path from set ``start`` to an unfilled token; [] if none."""
    queue: deque[tuple[int, list[tuple[int, int]]]] = deque([(start, [])])
    seen, reached = {start}, set()
    while queue:
        s, way = queue.popleft()
        for x in sets[s]:
            if x in reached:
                continue
            reached.add(x)
            if demand[x] > 0:
                return [*way, (s, x)]
            for other in flow[x]:
                if other not in seen:
                    seen.add(other)
                    queue.append((other, [*way, (s, x)]))
    return []


def verify(tree: DraftTree) -> StopDistribution:
    """Stop distribution of OT; rows on a device are brought to the host."""
    return verify_by_rule(on_host(tree), node_rule)


def verifier() -> Verifier:
    """The verifier ``ot``."""
    text = "at every node the coupling that most often chooses a drafted child"
    source = "Khisti et al., arXiv 2410.18234; Hu et al., arXiv 2502.18779; Thomas and Pal, arXiv 2511.15898"
    options: dict[str, Any] = {"path_order": False, "node_rule": node_rule, "any_vocabulary": False}
    return Verifier("ot", verify, text, source, needs="independent children", **options)
