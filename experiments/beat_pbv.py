"""Can PBV be beaten on-path? Candidates for the split of ranks, and what no split can do better.

    python experiments/beat_pbv.py toys                  50 instances of four families (about ten minutes)
    python experiments/beat_pbv.py trees                 the problems that experiments/real_trees.py extracted
    python experiments/beat_pbv.py texts [--target smollm2 --draft smollm2 --chat --prompts questions]
    python experiments/beat_pbv.py ceiling               the best first split there is when what follows is unknown
    python experiments/beat_pbv.py --print               the tables of the stored data

Every candidate splits a node's rank measure into its children's, so it is lossless by construction (THEORY 5). The
first two parts evaluate the closed form over the whole tree and give the gap to the certified optimum in percent, the
third gives tokens per target call on the target's own texts at full vocabulary, paired with PBV.

``ceiling`` fixes the two rows at the root and draws the rows below 16 times. The linear program over all 16 trees at
once, with ranks that may depend on the tree only below the first level, is the best first split for an algorithm that
does not know what follows (in hindsight: it has seen the 16 trees, so it flatters itself). Fixing that split to
PBV's or EBV's shows what they lose there.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

import lpverify as lv
from lpverify._array import Array, total
from lpverify._write import write_whole
from lpverify.exact.budgets import node_budgets, selected_levels
from lpverify.verify._entropic import coupled_split, coupling, entropic_split, spared_law
from lpverify.verify._proportional import minorant_groups, proportional_split, wanted_means
from lpverify.verify._ranks import RankMeasure, compact, mean_density, stacked, whole
from lpverify.verify._splits import Layout, Split, SplitRule, ordered_split
from lpverify.verify._tempered import tempered_split

FIGURES = Path(__file__).parent.parent / "paper_figs"
DATA = FIGURES / "beat_pbv.json"
Floats = npt.NDArray[np.float64]
INSTANCES = 50
FAMILIES: dict[str, tuple[int, Callable[[int], lv.DistPair]]] = {
    "unrelated draft": (3, lambda seed: lv.make.dirichlet(4, 3, seed, alpha=0.5)),
    "good draft": (3, lambda seed: lv.make.softmax(4, 3, seed, temperature=1.0, draft_noise=0.5)),
    "good draft, low temperature": (3, lambda seed: lv.make.softmax(4, 3, seed, temperature=0.3, draft_noise=0.5)),
    "Markov": (4, lambda seed: lv.make.markov(3, 4, seed, alpha=1.0)),
}
"""Name -> (K, seed -> problem)."""


def neutral_split(measure: RankMeasure, target: Array, draft: Array, weight: Array, paths: int) -> Split:
    """Every child gets its share of every rank: block verification of a random path."""
    place = np.broadcast_to(np.arange(draft.shape[1]), draft.shape)
    return Split(draft, place, lambda rows, tokens: measure[rows])


def pbv_law(layout: Layout, weight: Array) -> tuple[Array, Any]:
    """PBV's law c = r p, in groups of its own."""
    drafted = np.where(layout.draft > 0, layout.target, 0.0)
    group, slope = minorant_groups(layout.ordered, drafted)
    mean = np.divide(layout.ordered, layout.draft, out=np.zeros_like(layout.draft), where=layout.draft > 0)
    return wanted_means(slope, layout.target, layout.draft, mean) * layout.draft, group


def left_curtain(mu: Floats, phi: Floats, q: Floats, wanted: Floats) -> Floats:
    """The left-curtain martingale coupling (Beiglböck and Juillet 2016) of needed means and phi'.

    Children by needed mean ascending; each takes, of what is left, the interval of phi' with its mass and mean.
    """
    found = np.zeros((*q.shape, mu.shape[1]))
    for problem in range(len(q)):
        left = mu[problem].copy()
        by_phi = np.argsort(phi[problem], kind="stable")
        needed = np.divide(wanted[problem], q[problem], out=np.zeros_like(q[problem]), where=q[problem] > 0)
        for child in np.argsort(needed, kind="stable"):
            if q[problem, child] > 0:
                taken = _interval(left[by_phi], phi[problem, by_phi], q[problem, child], needed[child])
                found[problem, child, by_phi] = taken
                left[by_phi] = np.maximum(left[by_phi] - taken, 0.0)
    return found


def _interval(mass: Floats, phi: Floats, size: float, mean: float) -> Floats:
    """The part of consecutive ``mass``, ``size`` in all, with this mean of ``phi`` (ascending), or the nearest."""
    ends = np.concatenate([[0.0], np.cumsum(mass)])

    def part(start: float) -> Floats:
        stop = start + size
        taken: Floats = np.clip(np.minimum(ends[1:], stop) - np.maximum(ends[:-1], start), 0.0, None)
        return taken

    low, high = 0.0, max(ends[-1] - size, 0.0)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if (part(middle) * phi).sum() < mean * size else (low, middle)
    return part(low)


def either(measure: RankMeasure, target: Array, draft: Array, weight: Array, paths: int) -> Split:
    """TGBV's split where it loses nothing against PBV's on the next level, else PBV's: a rule of the node alone."""
    first, second = (split(measure, target, draft, weight, paths) for split in (tempered_split, proportional_split))
    value, best = (np.minimum(weight[:, None] * target, split.q_star).sum(axis=-1) for split in (first, second))
    mild = value >= best * (1 - 1e-12)

    def children(rows: Any, tokens: Any) -> RankMeasure:
        rows, tokens = np.asarray(rows), np.asarray(tokens)
        each = [
            (first if mild[r] else second).children(np.array([r]), np.array([t]))
            for r, t in zip(rows, tokens, strict=True)
        ]
        return stacked(each)

    return Split(np.where(mild[:, None], first.q_star, second.q_star), second.place, children)


CANDIDATES: dict[str, SplitRule] = {
    "BV (neutral)": neutral_split,
    "GBV (ordered)": ordered_split,
    "TGBV": tempered_split,
    "PBV": proportional_split,
    "TGBV where it loses nothing, else PBV": either,
    "PBV's law, left-curtain coupling": partial(coupled_split, wanted_law=pbv_law, couple=left_curtain),
    "PBV's law, largest entropy": partial(coupled_split, wanted_law=pbv_law, couple=coupling),
    "EBV: half the excess back, largest entropy": entropic_split,
    "all the excess back, largest entropy": partial(
        coupled_split, wanted_law=partial(spared_law, back=Fraction(1)), couple=coupling
    ),
}
ON_TEXTS = ("TGBV", "PBV", "PBV's law, largest entropy", "EBV: half the excess back, largest entropy",
            "all the excess back, largest entropy")  # fmt: skip


def value(pair: lv.DistPair, paths: int, split: SplitRule) -> float:
    return float(total(node_budgets(pair, selected_levels(pair, paths, split))))


def toys() -> list[dict[str, Any]]:
    rows = []
    for family, (paths, build) in FAMILIES.items():
        for seed in range(INSTANCES):
            pair = build(1000 + seed)
            best = lv.solve(lv.VerifyProblem(pair, paths), tolerance=1e-6).value
            for name, split in CANDIDATES.items():
                rows.append(
                    {"where": family, "unit": seed, "name": name, "gap": 100 * (1 - value(pair, paths, split) / best)}
                )
        print(family, flush=True)
    return rows


def trees(paths: int) -> list[dict[str, Any]]:
    known = json.loads((FIGURES / "real_trees.json").read_text())["rows"]
    rows = []
    for known_row in known:
        if known_row["name"] != "optimum" or known_row["paths"] != paths:
            continue
        label, file = known_row["pair"], known_row["file"]
        pair = lv.load_problem(str(FIGURES / ".records" / f"real_trees-{label}" / f"{file}.json")).pair
        for name, split in CANDIDATES.items():
            gap = 100 * (1 - value(pair, paths, split) / known_row["block_efficiency"])
            rows.append({"where": f"trees of {label}", "unit": known_row["prompt"], "name": name, "gap": gap})
    return rows


def texts(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Tokens per target call in contexts of the target's texts, K = 4, L = 8; one row a prompt and candidate."""
    from lpverify.decode.bound import BoundSettings, measure
    from lpverify.decode.engine import Request
    from lpverify.decode.sampling import Sampling
    from lpverify.decode.session import open_pair
    from lpverify.report.real_prompts import prompt_sets
    from lpverify.verify._blocks import MOST_BLOCKS
    from lpverify.verify._selection import SelectedPathLaw
    from lpverify.verify.base import Verifier

    opened = open_pair(options.target, options.draft)
    settings = BoundSettings((4,), (8,), options.contexts, 12, Sampling(1.0), 0, opened.tokenizer.eos)
    candidates = {
        name: Verifier(name, SelectedPathLaw(CANDIDATES[name], MOST_BLOCKS), path_order=False) for name in ON_TEXTS
    }
    [(_, prompts)] = prompt_sets([options.prompts]).items()
    rows = []
    for number, prompt in enumerate(prompts[: options.limit]):
        request = Request(tuple(opened.tokenizer.encode(prompt, chat=options.chat)), str(number))
        [cell] = measure(opened.models, candidates, request, settings).cells
        for kind, found in (("text", cell.on_path), ("drafts", cell.block_efficiency)):
            for name in ON_TEXTS:
                where = f"{options.target}, {kind}"
                rows.append({"where": where, "unit": str(number), "name": name, "tokens": float(np.mean(found[name]))})
        print(number, flush=True)
    return rows


FIRST = {
    "unrelated draft": lambda seed: lv.make.dirichlet(3, 3, seed, alpha=0.5),
    "good draft": lambda seed: lv.make.softmax(3, 3, seed, temperature=1.0, draft_noise=0.5),
    "two tokens, L = 5": lambda seed: lv.make.softmax(2, 5, seed, temperature=1.0, draft_noise=0.7),
}
DRAWN, FIRST_ROWS, GRID, CEILING_PATHS = 16, 6, 12, 3
FIRST_SPLITS = (*ON_TEXTS[:4], "GBV (ordered)", "PBV's law, left-curtain coupling")


def ceiling() -> list[dict[str, Any]]:
    rows = []
    for family, build in FIRST.items():
        for seed in range(FIRST_ROWS):
            first = build(5000 + seed)
            rest = [build(10_000 + 100 * seed + i) for i in range(DRAWN)]
            pairs = [
                lv.DistPair.from_levels([first.target[0], *below.target[1:]], [first.draft[0], *below.draft[1:]])
                for below in rest
            ]
            splits = {name: _first_measures(first, CANDIDATES[name]) for name in FIRST_SPLITS}
            ends = {0.0, 1.0, *np.linspace(0, 1, GRID + 1)} | {
                e for pieces in splits.values() for p in pieces for e in p[1:3]
            }
            edges = np.array(sorted({round(end, 10) for end in ends}))
            best = _common(pairs, edges, None)
            for name, pieces in splits.items():
                lost = 100 * (1 - _common(pairs, edges, _on_grid(pieces, edges, first.vocab_size)) / best)
                rows.append({"where": family, "unit": seed, "name": name, "lost": lost})
        print(family, flush=True)
    return rows


def _first_measures(pair: lv.DistPair, split: SplitRule) -> list[tuple[int, float, float, float]]:
    """(child, begin, end, mass) of the pieces that the root's children get."""
    tokens = np.arange(pair.vocab_size)
    done = split(whole(1, np.ones(1)), pair.target[0], pair.draft[0], np.ones(1), CEILING_PATHS)
    found = compact(done.children(np.zeros_like(tokens), tokens))
    above, width = found.above * found.scale[:, None], found.width * found.scale[:, None]
    pieces = []
    for child, row in enumerate(found.mass):
        for i in np.flatnonzero(row > 0):
            begin, end = round(float(1 - above[child, i] - width[child, i]), 10), round(float(1 - above[child, i]), 10)
            pieces.append((child, max(begin, 0.0), end, float(pair.draft[0][0, child] * row[i])))
    return pieces


def _on_grid(pieces: list[tuple[int, float, float, float]], edges: Floats, vocab: int) -> Floats:
    measures = np.zeros((vocab, len(edges) - 1))
    for child, begin, end, mass in pieces:
        inside = np.clip(np.minimum(edges[1:], end) - np.maximum(edges[:-1], begin), 0.0, None)
        if inside.sum() == 0:  # narrower than the rounding of the ends
            inside[min(np.searchsorted(edges, begin, side="right") - 1, len(inside) - 1)] = 1.0
        measures[child] += mass * inside / inside.sum()
    return measures


def _common(pairs: list[lv.DistPair], edges: Floats, measures: Floats | None) -> float:
    """Mean block efficiency over ``pairs`` of the program of THEORY 2.4 with one measure of each child of the root."""
    import cvxpy as cp

    width = np.diff(edges)
    density = mean_density(1 - edges[1:], 1 - edges[:-1], CEILING_PATHS)
    vocab, depth = pairs[0].vocab_size, pairs[0].depth
    shared: Any = cp.Variable((vocab, len(width)), nonneg=True) if measures is None else measures
    constraints = []
    if measures is None:
        constraints += [cp.sum(shared, axis=0) == width, cp.sum(shared, axis=1) == pairs[0].draft[0][0]]
    value: Any = 0
    for pair in pairs:
        leaves = vocab**depth
        ranks = cp.Variable((leaves, len(width)), nonneg=True)
        constraints += [cp.sum(ranks, axis=1) == pair.draft_paths[-1]]
        below = np.kron(np.eye(vocab), np.ones((1, leaves // vocab))) @ ranks
        # a given measure has the children's masses to rounding only: a little room instead of a presolve that objects
        constraints += [below == shared] if measures is None else [below <= shared + 1e-7]
        above: Any = np.ones(1)
        for level in range(1, depth + 1):
            budget = cp.Variable(vocab**level, nonneg=True)
            sums = np.kron(np.eye(vocab**level), np.ones((1, vocab ** (depth - level))))
            spread = np.kron(np.eye(vocab ** (level - 1)), np.ones((vocab, 1)))
            constraints += [budget <= sums @ (ranks @ density)]
            constraints += [budget <= cp.multiply(pair.target[level - 1].reshape(-1), spread @ above)]
            value += cp.sum(budget) / len(pairs)
            above = budget
    problem = cp.Problem(cp.Maximize(value), constraints)
    problem.solve(solver=cp.CLARABEL)  # HiGHS's presolve finds some of these infeasible
    assert problem.status == "optimal", problem.status
    return 1 + float(problem.value)


def table(rows: list[dict[str, Any]], column: str, digits: int) -> str:
    """Markdown: mean ± standard error over units (instances or prompts)."""
    frame = pd.DataFrame(rows)
    per_unit = frame.groupby(["where", "unit", "name"], sort=False)[column].mean().unstack("name")
    places = list(dict.fromkeys(frame["where"]))
    lines = ["| | " + " | ".join(places) + " |", "|---|" + "---:|" * len(places)]
    for name in dict.fromkeys(frame["name"]):
        cells = []
        for place in places:
            values = per_unit.loc[place][name]
            cell = f"{values.mean():.{digits}f} ± {values.sem():.{digits}f}"
            if name != "PBV" and "PBV" in per_unit:
                off = values - per_unit.loc[place]["PBV"]
                cell += f" ({off.mean():+.{digits}f} ± {off.sem():.{digits}f})"
            cells.append(cell)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


HEADINGS = {
    "toys": (
        "Gap to the optimum in percent, 50 instances a family; in brackets the paired difference to PBV",
        "gap",
        2,
    ),
    "trees": ("Gap to the optimum in percent on real truncated trees, K = 4, over prompts", "gap", 2),
    "texts": ("Tokens per target call at full vocabulary, K = 4, L = 8, T = 1, over prompts", "tokens", 3),
    "ceiling": ("Lost in percent against the best first split for 16 continuations, K = 3, 6 first rows", "lost", 3),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=("toys", "trees", "texts", "ceiling"))
    parser.add_argument("--target", default="tiny")
    parser.add_argument("--draft", default="tiny")
    parser.add_argument("--prompts", default="code")
    parser.add_argument("--chat", action="store_true")
    parser.add_argument("--limit", type=int, help="first prompts only")
    parser.add_argument("--contexts", type=int, default=6, help="of each prompt")
    parser.add_argument("--print", action="store_true", dest="only_print", help="print the tables of the stored data")
    options = parser.parse_args()
    document = json.loads(DATA.read_text()) if DATA.exists() else {}
    if options.part and not options.only_print:
        rows = {"toys": toys, "trees": partial(trees, 4), "texts": partial(texts, options), "ceiling": ceiling}[
            options.part
        ]()
        new = {row["where"] for row in rows}
        kept = [row for row in document.get(options.part, []) if row["where"] not in new]
        for row in rows:
            row |= {key: round(number, 6) for key, number in row.items() if isinstance(number, float)}
        document[options.part] = kept + rows
        parts = (
            f'"{key}": [\n' + ",\n".join(map(json.dumps, document[key])) + "\n]" for key in HEADINGS if key in document
        )
        write_whole(str(DATA), ("{\n" + ",\n".join(parts) + "\n}\n").encode())
    shown = [
        f"{heading}.\n\n{table(document[part], column, digits)}"
        for part, (heading, column, digits) in HEADINGS.items()
        if part in document
    ]
    write_whole(str(DATA.with_suffix(".md")), ("\n\n".join(shown) + "\n").encode())
    print("\n\n".join(shown))


if __name__ == "__main__":
    main()
