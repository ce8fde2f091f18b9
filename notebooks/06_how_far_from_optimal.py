# ---
# jupyter:
#   jupytext:
#     cell_metadata_filter: -all
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
# ---

# %% [markdown]
# # How far from optimal, on a real model?
#
# Algorithms can be compared with each other by decoding. How far the best is from what is *possible* needs more:
#
# 1. at **full vocabulary** an upper bound that no lossless verifier with $K$ i.i.d. paths exceeds, estimated from the
#    target's own text;
# 2. on **truncated trees** (top-$k$ sampling, a few levels) the optimum itself, by the linear program, with a
#    certificate.

# %%
import matplotlib.pyplot as plt
import pandas as pd
from ipywidgets import FloatSlider, interact

import lpverify as lv

pair = lv.open_pair("tiny", "tiny")
PROMPTS = [
    "def read_lines(path):\n",
    "class Stack:\n    def __init__(self):\n",
    "import os\nimport sys\n\n\ndef main(argv=None):\n",
    "def merge(left, right):\n    result = []\n",
    "def count_words(text):\n    counts = {}\n",
    "class Node:\n    def __init__(self, value):\n",
]

# %% [markdown]
# ## The upper bound
#
# Let $f(c)$ be the probability that the accepted prefix passes through $c$. Losslessness asks $f(cx) \le p(x|c) f(c)$,
# and a prefix can only be accepted when it was drafted: $f(c) \le 1 - (1 - Q(c))^K$. The largest such $f$ is found from
# the root down; its sum bounds the block efficiency of every verifier. The sum runs over $V^L$ prefixes, but the
# target's own continuation $y$ is a sample of $P$, so
#
# $$\sum_{|c| = j} f(c) = E_{y \sim P}\left[\frac{f(y_1 \ldots y_j)}{P(y_1 \ldots y_j)}\right],$$
#
# and $f/P \in [0, 1]$ needs only the rows along the text. The closed forms of BV, GBV, TGBV, PBV and EBV are measured
# on the same texts; each is below the bound on every single text.

# %%
algorithms = ["bv", "gbv", "tgbv", "pbv", "ebv", "traversal"]
cells = pair.bound(PROMPTS, algorithms, num_paths=[1, 2, 4], depths=[8], contexts=3)
rows = [
    {"K": cell["paths"], "name": "upper bound", "tokens": cell["upper_bound"], "se": cell["upper_bound_se"]}
    for cell in cells
]
rows += [
    {"K": cell["paths"], "name": name, "tokens": values["on_path"], "se": values["on_path_se"]}
    | {"percent": 100 * values["on_path_share"], "percent se": 100 * values["on_path_share_se"]}
    for cell in cells
    for name, values in cell["algorithms"].items()
    if values["on_path"] is not None
]
frame = pd.DataFrame(rows)
wide = frame.pivot(index="K", columns="name", values="tokens")
assert (wide.drop(columns="upper bound").max(axis=1) <= wide["upper bound"] + 1e-9).all()
frame.round(2)

# %%
fig, ax = plt.subplots(figsize=(7, 4), layout="constrained")
for name in ("bv", "gbv", "tgbv", "pbv", "ebv"):
    ax.plot(wide.index, wide[name], marker="o", label=name)
ax.plot(wide.index, wide["upper bound"], color="#d55e00", linewidth=2.5, label="upper bound")
ax.set_xticks(wide.index)
ax.set_xlabel("draft paths K")
ax.set_ylabel("tokens per target pass")
ax.legend(frameon=False)
plt.show()

# %% [markdown]
# Tree verifiers such as Traversal have no closed form along a text. The block efficiency of any verifier is the mean,
# over drafted trees, of the expected number of tokens given the tree. For verifiers with a closed form that is a
# second, independent estimate of the same number:

# %%
last = cells[-1]["algorithms"]
pd.DataFrame(last).T[["block_efficiency", "se", "on_path", "on_path_se"]].astype(float).round(2)

# %% [markdown]
# ## The optimum, on a truncated tree
#
# Top-$k$ sampling leaves few continuations, so the whole tree below a context can be scored. It is an ordinary problem
# with the model's own conditional distributions. Tokens that the draft never proposes share one slot.

# %%
problems = pair.extract(PROMPTS[:3], top_k=3, depth=3, contexts=2, num_paths=3)
problem = problems[0]
print(problem.description)
print(f"{len(problems)} problems; this one has {problem.pair.nodes} nodes, V = {problem.pair.vocab_size}")

# %%
optimum = lv.solve(problem, tolerance=1e-8)
print(optimum.lower_bound, optimum.upper_bound, optimum.status)
print("checked without the solver:", lv.certify.check(problem.pair, optimum.certificate).valid)
lv.compare(problem, algorithms=["bv", "specinfer", "traversal", "gbv", "tgbv", "pbv", "ebv"], max_drafts=1)

# %% [markdown]
# Over all of them: the mean gap to the certified optimum in percent.

# %%
names = ["bv", "specinfer", "traversal", "gbv", "tgbv", "pbv", "ebv"]
frames = [lv.compare(each, algorithms=names, max_drafts=1).assign(problem=i) for i, each in enumerate(problems)]
gaps = pd.concat(frames).pivot(index="problem", columns="name", values="relative_gap") * 100
assert (gaps[names] >= -1e-4).all(axis=None)
gaps[names].agg(["mean", "sem", "max"]).T.sort_values("mean").round(2)

# %% [markdown]
# Temperature decides how much there is to gain. The same contexts at other temperatures:


# %%
def gap(temperature: float = 1.0) -> None:
    problems = pair.extract(PROMPTS[:3], top_k=3, depth=3, contexts=1, num_paths=3, temperature=temperature)
    frames = [lv.compare(each, algorithms=["bv", "gbv", "ebv"], max_drafts=1) for each in problems]
    print(pd.concat(frames).groupby("name", sort=False)[["block_efficiency", "relative_gap"]].mean().astype(float))


_ = interact(gap, temperature=FloatSlider(1.0, min=0.2, max=1.4, step=0.2, continuous_update=False))

# %% [markdown]
# `lpverify extract` writes such trees into a folder, `lpverify sweep` solves them all (`experiments/real_trees.py` does
# both and draws `paper_figs/real_gap.png`), `lpverify bound` measures at full vocabulary.
