"""The target's and the draft's next-token distributions at every prefix: the tables of a problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from lpverify import errors
from lpverify.core import prefix_tree as tree
from lpverify.core.rows import as_rows, check_rows, check_tokens, softmax
from lpverify.numerics import Array, Levels, as_float, as_fractions, is_exact, ones

MAX_TABLE_ENTRIES = 50_000_000  # largest V + V^2 + ... + V^L of one table that is ever built (0.4 GB in float64)
MAX_DEPTH = 1_000  # only a vocabulary of one token comes near it before MAX_TABLE_ENTRIES

Labels = Sequence[str] | None  # of the tokens; None for the numbers 0..V-1
Tables = Sequence[Any]  # one (V**i, V) array of rows for each level i
Chain = tuple[Any, Any]  # first row (V,) and transition rows (V, V), one per last token


@dataclass(frozen=True, eq=False, repr=False)
class ModelPair:
    """Next-token distributions of target and draft at every prefix shorter than the depth L.

    Build one with `from_rows`, `from_levels`, `iid`, `markov` or `from_logits`, or draw one with `lpverify.make`. Rows
    may be lists, numpy arrays, torch tensors of any float type, on any device and with gradients, or pandas frames.
    Entries are numbers, Fractions or strings such as "1/3" and "0.2". Tables of Fractions and strings (and integers
    beside them) are kept as Fractions, so that all results are exact; all other tables are float64.

    Attributes:
        target: One array per level i = 0..L-1 of shape (V**i, V): row n is the distribution of the next token after
            prefix n of level i, in lexicographic order. float64, or objects of type Fraction; read-only.
        draft: Likewise.
        bonus: The target's distribution after a drafted path, of shape (V,), (V, V) (row x: after a path that ends in
            token x) or (V**L, V). It completes the distribution of L + 1 tokens. No value or bound depends on it, since
            whatever is accepted, the token after a whole path is drawn from it. Uniform unless given.
        tokens: V labels for display.

    >>> ModelPair.iid(["1/5", "1/2", "3/10"], ["3/5", "3/10", "1/10"], depth=2, tokens="ABC")
    ModelPair(V = 3, L = 2, 12 nodes, rational)
    """

    target: Levels
    draft: Levels
    bonus: Array
    tokens: tuple[str, ...]

    @classmethod
    def from_levels(
        cls, target: Tables, draft: Tables, *, bonus: Any = None, tokens: Labels = None, normalize: bool = False
    ) -> ModelPair:
        """Tables with one ``(V**i, V)`` array of rows for each level i.

        Args:
            target, draft: L arrays each, see the class.
            bonus: The target's rows after a path, see the class; None for uniform.
            tokens: V different labels; None for the numbers 0..V-1.
            normalize: Divide every row by its sum. Rows of a float32 softmax need this: their sums differ from 1 by
                1e-7. Without it such a row is refused.

        Raises:
            InputError: A wrong shape, an entry that is no probability, a row that does not sum to 1, Fractions in some
                rows and floats in others. The message names level, row and entry, counted from 0.
            SizeError: More than MAX_TABLE_ENTRIES entries.

        >>> ModelPair.from_levels([[[0.5, 0.5]], [[0.2, 0.8], [1, 0]]], [[[0.9, 0.1]], [[0.5, 0.5]] * 2]).depth
        2
        """
        for name, levels in (("target", target), ("draft", draft)):
            if isinstance(levels, str | Mapping) or not hasattr(levels, "__len__"):
                raise errors.fail(name, got=errors.shown(levels), expected="one array of rows per level")
        if not len(target):
            raise errors.fail("target", got="no level", expected="a depth of at least 1")
        if len(target) != len(draft):
            raise errors.fail("draft", got=f"{len(draft)} levels", expected=f"{len(target)} as in the target")
        tables = {"target": target, "draft": draft}
        blocks = {f"{name} level {i}": rows for name, levels in tables.items() for i, rows in enumerate(levels)}
        blocks |= {} if bonus is None else {"bonus": bonus}
        rows = list(_checked(blocks, tokens, normalize).values())
        return cls._of(rows[: len(target)], rows[len(target) : 2 * len(target)], rows[2 * len(target) :], tokens)

    @classmethod
    def from_rows(
        cls, target: Any, draft: Any, *, bonus: Any = None, tokens: Labels = None, normalize: bool = False
    ) -> ModelPair:
        """Tables with one row per prefix: the empty prefix first, then longer ones, each length in lexicographic order.

        Args:
            target, draft: Arrays of shape (1 + V + ... + V**(L-1), V), for V = 2 and L = 2 the rows after the prefixes
                "", "0", "1". A pandas frame has one line per prefix and one column per token, which names the token.
            bonus, tokens, normalize: As in `from_levels`.

        Raises:
            InputError: As `from_levels`, or a number of rows that belongs to no depth.

        >>> ModelPair.from_rows([[0.5, 0.5], [0.2, 0.8], [1, 0]], [[0.9, 0.1], [0.5, 0.5], [0.5, 0.5]])
        ModelPair(V = 2, L = 2, 6 nodes, float64)
        """
        columns = getattr(target, "columns", None)
        if tokens is None and columns is not None and list(columns) != list(range(len(columns))):
            tokens = [str(column) for column in columns]
        blocks = {"target": target, "draft": draft} | ({} if bonus is None else {"bonus": bonus})
        rows, draft_rows, *after = _checked(blocks, tokens, normalize).values()
        if rows.shape != draft_rows.shape:
            raise errors.fail("draft", got=_shape(draft_rows), expected=f"{_shape(rows)} as in the target")
        ends, size = [0], rows.shape[1]
        while ends[-1] < len(rows):
            ends.append(ends[-1] + size ** (len(ends) - 1))
        if ends[-1] != len(rows):
            expected = f"1 + V + ... + V^(L-1), {ends[-2]} or {ends[-1]} for V = {size}"
            raise errors.fail("target", got=f"{len(rows)} rows", expected=expected)
        spans = [slice(begin, end) for begin, end in zip(ends, ends[1:], strict=False)]
        return cls._of([rows[span] for span in spans], [draft_rows[span] for span in spans], after, tokens)

    @classmethod
    def iid(cls, target: Any, draft: Any, depth: int, *, tokens: Labels = None, normalize: bool = False) -> ModelPair:
        """The same target row and the same draft row, of shape (V,), at every prefix. Raises as `from_levels`.

        >>> ModelPair.iid([0.2, 0.5, 0.3], [0.6, 0.3, 0.1], depth=3).target[2].shape
        (9, 3)
        """
        rows, draft_rows = _checked({"target": target, "draft": draft}, tokens, normalize, depth).values()
        for name, array in (("target", rows), ("draft", draft_rows)):
            if len(array) != 1:
                raise errors.fail(name, got=_shape(array), expected="one row, shape (V,)")
        return cls._of(iid_levels(rows[0], depth), iid_levels(draft_rows[0], depth), [rows[0]], tokens)

    @classmethod
    def markov(
        cls, target: Chain, draft: Chain, depth: int, *, tokens: Labels = None, normalize: bool = False
    ) -> ModelPair:
        """Markov chains: each table is a pair of the first row (V,) and the transition rows (V, V), one per last token.

        Raises as `from_levels`.

        >>> draft = ([0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]])
        >>> ModelPair.markov(([0.5, 0.5], [[0.5, 0.5], [1, 0]]), draft, depth=3).draft[2][:, 0].tolist()
        [0.9, 0.2, 0.9, 0.2]
        """
        blocks: dict[str, Any] = {}
        for name, table in (("target", target), ("draft", draft)):
            if not isinstance(table, tuple | list) or len(table) != 2:
                raise errors.fail(name, got=errors.shown(table), expected="a pair (first row, transition rows)")
            blocks |= {f"{name} first row": [table[0]], f"{name} transition": table[1]}
        first, transition, draft_first, draft_transition = _checked(blocks, tokens, normalize, depth).values()
        for name, rows in (("target transition", transition), ("draft transition", draft_transition)):
            if len(rows) != rows.shape[1]:
                raise errors.fail(name, got=_shape(rows), expected="(V, V), a row for each last token")
        levels = markov_levels(first[0], transition, depth)
        return cls._of(levels, markov_levels(draft_first[0], draft_transition, depth), [transition], tokens)

    @classmethod
    def from_logits(
        cls, target: Any, draft: Any, *, temperature: float = 1.0, depth: int | None = None, tokens: Labels = None
    ) -> ModelPair:
        """Rows softmax(logits / T), in float64.

        Args:
            target, draft: Logits, one row per prefix as in `from_rows`; or, with ``depth`` L, one row (V,) for every
                prefix. -inf excludes a token.
            temperature: T > 0; 0 gives probability 1 to the first of the largest logits.

        Raises:
            InputError: As `from_rows`; logits that are NaN or +inf, or a row of -inf.

        >>> ModelPair.from_logits([2.0, 1.0], [1.0, 1.0], depth=1, temperature=0).target[0].tolist()
        [[1.0, 0.0]]
        """
        temperature = errors.number("temperature", temperature, min=0)
        rows = {name: softmax(name, logits, temperature) for name, logits in (("target", target), ("draft", draft))}
        if depth is None:
            return cls.from_rows(rows["target"], rows["draft"], tokens=tokens)
        return cls.iid(rows["target"], rows["draft"], depth, tokens=tokens)

    @classmethod
    def _of(cls, target: Sequence[Array], draft: Sequence[Array], bonus: Sequence[Array], tokens: Any) -> ModelPair:
        """From validated rows: checks how many there are, and makes everything read-only."""
        size = target[0].shape[1]
        check_size("tables", size, len(target))
        for name, levels in (("target", target), ("draft", draft)):
            for i, rows in enumerate(levels):
                if rows.shape != (tree.level_size(size, i), size):
                    expected = f"{(tree.level_size(size, i), size)} (rows, tokens)"
                    raise errors.fail(f"{name} level {i}", got=_shape(rows), expected=expected)
        after = bonus[0] if bonus else ones(size, target[0]) / (ones(1, target[0]) * size)
        if after.ndim == 2 and len(after) == 1:
            after = after[0]
        shapes = ((size,), (size, size), (tree.level_size(size, len(target)), size))
        if after.shape not in shapes:
            raise errors.fail("bonus", got=_shape(after), expected=f"one of {shapes}")
        frozen = [tuple(map(_frozen, levels)) for levels in (target, draft)]
        return cls(frozen[0], frozen[1], _frozen(after), check_tokens("tokens", tokens, size))

    def __eq__(self, other: object) -> bool:
        """Equal labels and equal tables in the same arithmetic."""
        if not isinstance(other, ModelPair):
            return NotImplemented
        if (self.tokens, self.depth, self.rational) != (other.tokens, other.depth, other.rational):
            return False
        own, others = ((*pair.target, *pair.draft, pair.bonus_rows) for pair in (self, other))
        return all(map(np.array_equal, own, others))

    def __hash__(self) -> int:
        return hash((self.tokens, self.depth, self.rational))

    def __repr__(self) -> str:
        arithmetic = "rational" if self.rational else "float64"
        return f"ModelPair(V = {self.vocab_size}, L = {self.depth}, {self.nodes} nodes, {arithmetic})"

    @property
    def vocab_size(self) -> int:
        """V."""
        return int(self.target[0].shape[1])

    @property
    def depth(self) -> int:
        """L, the number of tokens of a drafted path."""
        return len(self.target)

    @property
    def nodes(self) -> int:
        """Number of prefixes of 1 to L tokens."""
        return tree.node_count(self.vocab_size, self.depth)

    @property
    def rational(self) -> bool:
        """True if the rows are Fractions; results are then exact."""
        return is_exact(self.target[0])

    @cached_property
    def floats(self) -> ModelPair:
        """The same pair in float64 (itself if it is already)."""
        if not self.rational:
            return self
        target, draft = (tuple(_frozen(as_float(rows)) for rows in levels) for levels in (self.target, self.draft))
        return ModelPair(target, draft, _frozen(as_float(self.bonus)), self.tokens)

    @cached_property
    def target_paths(self) -> Levels:
        """P(c), the product of the target's probabilities along c: one (V**i,) array per level i = 0..L."""
        return path_probabilities(self.target)

    @cached_property
    def draft_paths(self) -> Levels:
        """Q(c), likewise with the draft's probabilities."""
        return path_probabilities(self.draft)

    @property
    def bonus_rows(self) -> Array:
        """The target's rows after all drafted paths, shape (V**L, V)."""
        leaves = tree.level_size(self.vocab_size, self.depth)
        if self.bonus.ndim == 1:
            return np.broadcast_to(self.bonus, (leaves, self.vocab_size))
        return self.bonus if len(self.bonus) == leaves else np.tile(self.bonus, (leaves // len(self.bonus), 1))


def path_probabilities(levels: Sequence[Array]) -> Levels:
    """Products of the rows' entries along every path: level 0 is ``[1]``, level i has V**i entries."""
    result = [ones(1, levels[0])]
    for rows in levels:
        result.append((result[-1][:, None] * rows).reshape(-1))
    return tuple(result)


def iid_levels(row: Array, depth: int) -> list[Array]:
    """The same ``row`` (V,) at every prefix: one (V**i, V) array for each i < depth."""
    return [np.tile(row, (len(row) ** i, 1)) for i in range(depth)]


def markov_levels(first: Array, transition: Array, depth: int) -> list[Array]:
    """``first`` (V,) at the root and row x of ``transition`` (V, V) after token x: (V**i, V) for i < depth.

    The last token of prefix n is n mod V, so level i repeats the transition rows V^(i-1) times.
    """
    return [first[None, :]] + [np.tile(transition, (len(first) ** (i - 1), 1)) for i in range(1, depth)]


def check_size(what: str, vocab_size: int, depth: int) -> None:
    """Raise SizeError for tables of more than MAX_TABLE_ENTRIES entries V + V^2 + ... + V^L, before any is built."""
    instead = "use a smaller vocabulary or depth"
    if depth > MAX_DEPTH:
        raise errors.too_large(what, size=f"a depth of {depth}", limit=str(MAX_DEPTH), instead=instead)
    for entries in accumulate(vocab_size**i for i in range(1, depth + 1)):
        if entries > MAX_TABLE_ENTRIES:
            size = f"a table of at least {entries} entries"
            raise errors.too_large(what, size=size, limit=str(MAX_TABLE_ENTRIES), instead=instead)


def _checked(blocks: Mapping[str, Any], tokens: Labels, normalize: bool, depth: int | None = None) -> dict[str, Array]:
    """The blocks of rows (n, V) by name, validated, all float64 or all Fractions; a ``depth`` is checked too."""
    arrays = {name: as_rows(name, values) for name, values in blocks.items()}
    size = next(iter(arrays.values())).shape[1]
    if depth is not None:
        check_size("tables", size, errors.integer("depth", depth, min=1))
    kinds = {array.dtype.kind for array in arrays.values()}
    if {"O", "f"} <= kinds:
        raise errors.fail("tables", got="Fractions in some rows and floats in others", expected="one kind of number")
    labels, rows = check_tokens("tokens", tokens, size), {}
    for name, array in arrays.items():
        if array.shape[1] != size:
            expected = f"{size} as in {next(iter(arrays))}"
            raise errors.fail(name, got=f"rows of {array.shape[1]} tokens", expected=expected)
        if array.dtype.kind == "i":
            array = as_fractions(array) if "O" in kinds else as_float(array)
        single = len(array) == 1 and not name.startswith(("target level", "draft level"))
        position = (lambda row, name=name: name) if single else (lambda row, name=name: f"{name} row {row}")
        rows[name] = check_rows(array, position, labels, normalize)
    return rows


def _frozen(array: Array) -> Array:
    array.setflags(write=False)
    return array


def _shape(array: Array) -> str:
    return f"an array of shape {array.shape}"
