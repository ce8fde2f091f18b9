"""Can PBV be beaten on-path? Candidates for the split of ranks, and what no split can do better.

    python experiments/beat_pbv.py toys                  50 instances of four families (about ten minutes)
    python experiments/beat_pbv.py trees                 the problems that experiments/real_trees.py extracted
    python experiments/beat_pbv.py texts [--target smollm2 --draft smollm2 --chat --prompts questions]
    python experiments/beat_pbv.py --print               the tables of the stored data

Every candidate splits a node's rank measure into its children's, so it is lossless by construction (THEORY 5). The
first two parts evaluate the closed form over the whole tree and give the gap to the certified optimum in percent, the
third gives tokens per target call on the target's own texts at full vocabulary, paired with PBV.
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
from experiments.figures import figures
from experiments.figures.captions import columns, markdown, pm
from lpverify.exact.closed_form import selection_distribution
from lpverify.files import write_whole
from lpverify.lp.coverage import prefix_acceptance
from lpverify.numerics import Array, total
from lpverify.verifiers.ebv import coupled_split, coupling, entropic_split, spared_row
from lpverify.verifiers.pbv import minorant_groups, proportional_row, proportional_split
from lpverify.verifiers.rank_measure import RankMeasure, stacked
from lpverify.verifiers.splits import Layout, Split, SplitRule, ordered_split
from lpverify.verifiers.tgbv import tempered_split

FIGURES = Path(__file__).parent.parent / "paper_figs"
DATA = FIGURES / "beat_pbv.json"
Floats = npt.NDArray[np.float64]
INSTANCES = 50
Rows = list[dict[str, Any]]
FAMILIES: dict[str, tuple[int, Callable[[int], lv.ModelPair]]] = {
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


def pbv_row(layout: Layout, weight: Array) -> tuple[Array, Any]:
    """PBV's row r p, in groups of its own."""
    drafted = np.where(layout.draft > 0, layout.target, 0.0)
    group, slope = minorant_groups(layout.ordered, drafted)
    return proportional_row(slope, layout.target, layout.draft, layout.ordered), group


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
    "PBV's row, left-curtain coupling": partial(coupled_split, wanted_row=pbv_row, couple=left_curtain),
    "PBV's row, largest entropy": partial(coupled_split, wanted_row=pbv_row, couple=coupling),
    "EBV: half the excess back, largest entropy": entropic_split,
    "all the excess back, largest entropy": partial(
        coupled_split, wanted_row=partial(spared_row, back=Fraction(1)), couple=coupling
    ),
}
IN_README = (*tuple(CANDIDATES)[3:],)
"""PBV and what was tried to beat it."""
ON_TEXTS = ("TGBV", "PBV", "PBV's row, largest entropy", "EBV: half the excess back, largest entropy",
            "all the excess back, largest entropy")  # fmt: skip


def value(pair: lv.ModelPair, paths: int, split: SplitRule) -> float:
    return float(total(prefix_acceptance(pair.target, selection_distribution(pair, paths, split))))


def toys() -> Rows:
    rows = []
    for family, (paths, build) in FAMILIES.items():
        for seed in range(INSTANCES):
            pair = build(1000 + seed)
            best = lv.solve(lv.VerifyProblem(pair, paths), tolerance=1e-6).value
            for name, split in CANDIDATES.items():
                rows.append(
                    {"where": family, "unit": seed, "name": name, "value": 100 * (1 - value(pair, paths, split) / best)}
                )
        print(family, flush=True)
    return rows


def trees(paths: int) -> Rows:
    known = json.loads((FIGURES / "real_trees.json").read_text())["rows"]
    rows = []
    for known_row in known:
        if known_row["name"] != "optimum" or known_row["paths"] != paths:
            continue
        label, file = known_row["pair"], known_row["file"]
        pair = lv.load_problem(str(FIGURES / ".records" / f"real_trees-{label}" / f"{file}.json")).pair
        for name, split in CANDIDATES.items():
            gap = 100 * (1 - value(pair, paths, split) / known_row["block_efficiency"])
            rows.append({"where": f"trees of {label}", "unit": known_row["prompt"], "name": name, "value": gap})
    return rows


def texts(options: argparse.Namespace) -> Rows:
    """Tokens per target call in contexts of the target's texts, K = 4, L = 8; one row a prompt and candidate."""
    from experiments.figures.real_prompts import prompt_sets
    from lpverify.decode.engine import Request
    from lpverify.decode.sampling import Sampling
    from lpverify.studies.bound import BoundSettings, measure
    from lpverify.studies.session import open_pair
    from lpverify.verifiers.base import Verifier
    from lpverify.verifiers.rank_selection import SelectedPath
    from lpverify.verifiers.token_buckets import MOST_BLOCKS

    opened = open_pair(options.target, options.draft)
    settings = BoundSettings((4,), (8,), options.contexts, 12, Sampling(1.0), 0, opened.tokenizer.eos)
    candidates = {
        name: Verifier(name, SelectedPath(CANDIDATES[name], MOST_BLOCKS), path_order=False) for name in ON_TEXTS
    }
    [(_, prompts)] = prompt_sets([options.prompts]).items()
    rows = []
    for number, prompt in enumerate(prompts[: options.limit]):
        request = Request(tuple(opened.tokenizer.encode(prompt, chat=options.chat)), str(number))
        [cell] = measure(opened.models, candidates, request, settings).cells
        for kind, found in (("text", cell.on_path), ("drafts", cell.block_efficiency)):
            for name in ON_TEXTS:
                where = f"{options.target}, {kind}"
                rows.append({"where": where, "unit": str(number), "name": name, "value": float(np.mean(found[name]))})
        print(number, flush=True)
    return rows


def summary(rows: Rows) -> Rows:
    """Mean and standard error over units (problems or prompts), for each group and candidate; paired with PBV."""
    frame = pd.DataFrame(rows)
    means: Rows = []
    for where, part in frame.groupby("where", sort=False):
        units = part.groupby(["unit", "name"], sort=False)["value"].mean().unstack("name")
        for name in units.columns:
            off = units[name] - units["PBV"]
            row = {
                "where": where,
                "name": name,
                "units": len(units),
                "value": units[name].mean(),
                "se": units[name].sem(),
            }
            means.append(row | {"off_pbv": off.mean(), "off_pbv_se": off.sem()})
    return means


def table(rows: Rows, digits: int) -> str:
    """Markdown; in brackets the paired difference to PBV."""

    def cell(row: Any) -> str:
        off = "" if row.name == "PBV" else f" ({row.off_pbv:+.{digits}f} ± {row.off_pbv_se:.{digits}f})"
        return pm(row.value, row.se, digits) + off

    return markdown(columns(pd.DataFrame(rows), "{where}", cell), "")


HEADINGS = {
    "toys": (
        "Gap to the optimum in percent, {units} problems in each family; in brackets the difference to PBV",
        2,
    ),
    "trees": ("Gap to the optimum in percent on real truncated trees, K = 4, over prompts", 2),
    "texts": ("Tokens per target call at full vocabulary, K = 4, L = 8, T = 1, over prompts", 3),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=("toys", "trees", "texts"))
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
        new = summary({"toys": toys, "trees": partial(trees, 4), "texts": partial(texts, options)}[options.part]())
        replaced = {row["where"] for row in new}
        document[options.part] = [row for row in document.get(options.part, []) if row["where"] not in replaced] + new
        write(document)
    shown = markdown_of(document)
    write_whole(DATA.with_suffix(".md"), shown.encode())
    print(shown, end="")


def write(document: dict[str, Rows]) -> None:
    """Store the means, one on each line."""
    parts = (
        f'"{key}": [\n' + ",\n".join(json.dumps(figures.rounded(row)) for row in document[key]) + "\n]"
        for key in HEADINGS
        if key in document
    )
    write_whole(DATA, ("{\n" + ",\n".join(parts) + "\n}\n").encode())


def markdown_of(document: dict[str, Rows]) -> str:
    """All tables with their headings."""
    parts = [
        f"{heading.format(units=document[part][0]['units'])}.\n\n{table(document[part], digits)}"
        for part, (heading, digits) in HEADINGS.items()
        if part in document
    ]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    main()
