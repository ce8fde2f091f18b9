"""GBV, greedy multi-path block verification (theory 4).

Rank the children of every node by p/q descending (ties to the smaller token id); this orders the leaves
lexicographically. Select the best of the K paths. With better(c) the draft mass of all paths ranked before every path
through c the selected path has the distribution

    Q*(c) = (1 - better(c))^K - (1 - better(c) - Q(c))^K,      q*(x|c) = Q*(cx) / Q*(c),

and block verification of it with the rows q* is valid. In rank measures (theory 5) this is the *ordered split*. A large
vocabulary is merged into buckets of p/q, inside which the order is neutral; ``blocks=None`` keeps the order of single
tokens. GBV is neither monotone in K nor better than BV on every instance.

Reference: Thomas and Pal, arXiv 2602.16961.
"""

from lpverify.verifiers.base import Verifier
from lpverify.verifiers.rank_selection import selecting_verifier
from lpverify.verifiers.splits import ordered_split
from lpverify.verifiers.token_buckets import BUCKETS


def verifier(blocks: int | None = BUCKETS) -> Verifier:
    """The verifier ``gbv``; see `selecting_verifier` for ``blocks``."""
    text = "greedy multi-path: block verification of the best path by p/q"
    return selecting_verifier("gbv", ordered_split, blocks, text, "Thomas and Pal, arXiv 2602.16961")
