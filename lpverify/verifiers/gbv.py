"""GBV, greedy multi-path block verification: the *ordered split* of rank measures (theory 4).

Children rank by p/q descending, ties to the smaller token; the best of the K paths is selected and block-verified. A
large vocabulary is merged into buckets of p/q, inside which the order is neutral; ``blocks=None`` keeps the order of
single tokens. GBV is neither monotone in K nor better than BV on every instance.

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
