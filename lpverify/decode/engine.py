"""The decoding loop. Between rounds both states have been fed all committed tokens but the last, the pending one.

One round:

    draft    K paths of L tokens after the pending token, with the rows they were drawn from
    target   ONE pass over the pending token and the tree of the drafted prefixes: the target's row at every node
    verify   DraftTree -> law -> one draw: the node where the round stops, and one more token
    cache    commit the node's prefix and the token; keep exactly the committed tokens but the new pending one

Only the verifier differs between algorithms. A verifier that looks at the first path only is drafted one path and
charged for one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch

from lpverify import errors
from lpverify.core.draft_tree import DraftTree
from lpverify.decode.drafter import draft_paths
from lpverify.decode.metrics import Generation, RoundRecord, Stopwatch
from lpverify.decode.models import Pair, State, padded
from lpverify.decode.rng import Keys
from lpverify.decode.sampling import Sampling, probabilities
from lpverify.numerics import Array
from lpverify.verifiers import StopDistribution, Verifier
from lpverify.verifiers.sample import drawn


@dataclass(frozen=True)
class Settings:
    """K = ``paths``, L = ``depth``. ``eos``: ids that end a text. Raises InputError for impossible numbers."""

    paths: int = 1
    depth: int = 8
    sampling: Sampling = field(default_factory=Sampling)
    max_new_tokens: int = 128
    seed: int = 0
    eos: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        for name, value in (("paths (K)", self.paths), ("depth (L)", self.depth), ("new tokens", self.max_new_tokens)):
            errors.integer(name, value, least=1)
        errors.integer("seed", self.seed, least=0, most=2**63 - 1)


@dataclass(frozen=True)
class Request:
    """A prompt of at least one token; ``key`` identifies it to the random numbers."""

    tokens: tuple[int, ...]
    key: str


def generate(
    pair: Pair,
    verifier: Verifier,
    request: Request,
    settings: Settings,
    on_round: Callable[[RoundRecord], None] | None = None,
) -> Generation:
    """Continue one prompt. The result depends on nothing but the arguments.

    Raises InputError for an empty prompt, and where the context would outgrow a model.
    """
    check_context(pair, request, settings)
    paths = 1 if verifier.first_path_only else settings.paths
    keys = Keys(settings.seed, request.key)
    watch = Stopwatch(pair.target.device)
    with torch.inference_mode():
        with watch("prefill"):
            target = pair.target.start(request.tokens[:-1])
            draft = pair.draft.start(request.tokens[:-1])
        new: list[int] = []
        rounds: list[RoundRecord] = []
        while len(new) < settings.max_new_tokens and not (new and new[-1] in settings.eos):
            pending = new[-1] if new else request.tokens[-1]
            room = settings.max_new_tokens - len(new)
            states = (target, draft)
            emitted, record = _round(pair, verifier, states, pending, paths, room, settings, keys, len(rounds), watch)
            new += emitted
            rounds.append(record)
            if on_round is not None:
                on_round(record)
    return Generation.measured(verifier.name, request.key, new, rounds, watch)


def _round(
    pair: Pair,
    verifier: Verifier,
    states: tuple[State, State],
    pending: int,
    paths: int,
    room: int,
    settings: Settings,
    keys: Keys,
    round_: int,
    watch: Stopwatch,
) -> tuple[list[int], RoundRecord]:
    target, draft = states
    fed = target.length
    assert draft.length == fed
    depth, sampling = settings.depth, settings.sampling
    waiting_is_free = pair.target.device.type == "cpu"
    view = drafted_tree(pair, states, pending, paths, depth, sampling, keys, round_, watch, check=waiting_is_free)
    with watch("verify"):
        law = verifier(view)
        choice = cast(torch.Tensor, drawn(law, keys.verifying(round_)))
        node, token, broken = torch.cat([choice, no_numbers(view)]).cpu().tolist()  # the one transfer
        if broken:
            raise not_numbers(pair)
        assert node >= 0, f"{verifier.name}: no positive probability to stop"
        assert token >= 0, f"{verifier.name}: no token after node {node}"
    with watch("cache"):
        nodes = path_to(view, node)
        path = int((view.node_of[:, len(nodes) - 1] == node).argmax())
        target.keep_nodes(nodes)
        settle_draft(draft, fed, path, [int(view.token[c]) for c in nodes[1:]], depth, pair.draft.device)
    accepted = [int(view.token[c]) for c in nodes[1:]]
    emitted = cut([*accepted, token], room, settings.eos)
    record = RoundRecord(
        drafted=depth,
        nodes=len(view.parent) - 1,
        accepted=min(len(accepted), len(emitted)),
        committed=len(emitted),
        expected_committed=expected_committed(law, room, settings.eos),
    )
    return emitted, record


def drafted_tree(
    pair: Pair,
    states: tuple[State, State],
    pending: int,
    paths: int,
    depth: int,
    sampling: Sampling,
    keys: Keys,
    round_: int,
    watch: Stopwatch,
    *,
    check: bool = True,
) -> DraftTree:
    """Draft K = ``paths`` paths of L = ``depth`` tokens after ``pending`` and score their prefixes in one target pass.

    The target's state is left after its `State.tree`, the draft's as by `draft_paths`. Raises InputError where logits
    are not numbers; without ``check`` not for the target's, so that the device need not be waited for.
    """
    target, draft = states
    size = pair.vocab_size
    with watch("draft"):
        drafted = draft_paths(pair.draft, draft, pending, paths, depth, sampling, keys, round_, size)
    tree = drafted.tree
    with watch("target"):
        tokens = torch.as_tensor(tree.token, device=pair.target.device).clone()
        tokens[0] = pending
        logits = target.tree(tokens, tree.parent.tolist(), tree.depth.tolist())
        rows = probabilities(padded(logits, size), sampling)
    with watch("verify"):
        view = DraftTree(*tree.fields, cast(Array, rows), cast(Array, drafted.rows.to(rows.device)))
        if check and bool(no_numbers(view)):
            raise not_numbers(pair)
        return view


def no_numbers(view: DraftTree) -> torch.Tensor:
    """Is any target row NaN, (1,) on the device: `probabilities` makes such rows NaN as a whole."""
    return torch.isnan(cast(torch.Tensor, view.target)[:, :1]).any(dim=0)


def not_numbers(pair: Pair) -> errors.InputError:
    """What is raised then."""
    return errors.fail(f"target {pair.target.name}", got="logits that are NaN or infinite", expected="numbers")


def path_to(tree: DraftTree, node: int) -> list[int]:
    """The nodes from the root to ``node``, both included."""
    nodes = [node]
    while nodes[-1] != 0:
        nodes.append(int(tree.parent[nodes[-1]]))
    return nodes[::-1]


def settle_draft(draft: State, fed: int, path: int, accepted: Sequence[int], depth: int, device: torch.device) -> None:
    """Leave the draft with ``fed`` tokens, the old pending one and the accepted ones.

    It has been fed all drafted tokens but the last of each path; when that one is accepted it is fed now.
    """
    kept = min(len(accepted), depth - 1)
    draft.keep_branch(path, fed + 1 + kept)
    if len(accepted) == depth:
        draft.append(torch.tensor([accepted[-1]], device=device))


def cut(tokens: list[int], room: int, eos: frozenset[int]) -> list[int]:
    """The tokens up to the first that ends the text, that one included, and at most ``room``.

    >>> cut([7, 2, 9, 3], 10, frozenset({2})), cut([7, 2, 9, 3], 1, frozenset({2}))
    ([7, 2], [7])
    """
    for i, token in enumerate(tokens[:room]):
        if token in eos:
            return tokens[: i + 1]
    return tokens[:room]


def expected_committed(law: StopDistribution, room: int, eos: frozenset[int]) -> torch.Tensor:
    """Expected committed tokens given the tree (THEORY 8): `expected_accepted` + 1 but for the cut at the end."""
    tree = law.tree
    counts = []
    ended: list[int | None] = []
    for parent, token, depth in zip(tree.parent.tolist(), tree.token.tolist(), tree.depth.tolist(), strict=True):
        end = ended[parent] if parent >= 0 else None
        ended.append(depth if end is None and parent >= 0 and token in eos else end)
        counts.append(min(room, depth + 1 if ended[-1] is None else ended[-1]))
    stop = cast(torch.Tensor, law.stop)
    return (stop * torch.tensor(counts, dtype=stop.dtype, device=stop.device)).sum()


def check_context(pair: Pair, request: Request, settings: Settings) -> None:
    """Raise InputError when the prompt is empty, or it and what may follow do not fit into a model's context."""
    if not request.tokens:
        raise errors.fail("prompt", got="no token", expected="at least one (a begin-of-text token will do)")
    needed = len(request.tokens) + settings.max_new_tokens + settings.depth
    for role, model in (("target", pair.target), ("draft", pair.draft)):
        if model.limit is not None and needed > model.limit:
            parts = f"{len(request.tokens)} prompt + {settings.max_new_tokens} new + {settings.depth} drafted tokens"
            raise errors.fail(f"{role} {model.name}", got=parts, expected=f"at most {model.limit} in all")
