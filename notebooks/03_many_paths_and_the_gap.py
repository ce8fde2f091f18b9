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
# # Many paths, and the gap
#
# $K$ i.i.d. draft paths. Losslessness asks the same as before. What changes is how much the draft can cover: for every
# antichain $A$ of prefixes $\sum_{c \in A} f(c) \le 1 - (1 - Q(A))^K$. lpverify solves this program with certified
# bounds, so that "how far from optimal is this algorithm" is a number.

# %%
import matplotlib.pyplot as plt
import numpy as np
from ipywidgets import Dropdown, FloatSlider, IntSlider, interact

import lpverify as lv

ALGORITHMS = ["token", "bv", "specinfer", "spectr", "ot", "traversal", "gbv", "tgbv", "pbv", "ebv"]

# %% [markdown]
# ## One problem, every algorithm

# %%
problem = lv.load_problem("coin-2", num_paths=3)
optimum = lv.solve(problem)
print(optimum.lower_bound, optimum.upper_bound, optimum.status)
print("checked without the solver:", lv.certify.check(problem.pair, optimum.certificate).valid)
lv.compare(problem, algorithms=ALGORITHMS)

# %% [markdown]
# `law_error` is the total variation between the emitted distribution and the target's, summed over all drafts: every
# algorithm here is lossless. Never compare block efficiencies before that is certain. A verifier that is not lossless
# often looks faster.
#
# ## Over the number of paths

# %%
larger = lv.VerifyProblem(lv.load_problem("tree-v3-l2-a").pair.floats)
frame = lv.compare(larger, range(1, 6), algorithms=ALGORITHMS, max_drafts=1)  # without the law error
fig, ax = plt.subplots(figsize=(8, 4.5), layout="constrained")
lv.plots.against_paths(frame, ax, title="Block efficiency against K")
plt.show()

# %%
wide = frame.pivot(index="paths", columns="name", values="block_efficiency").astype(float)
assert (wide["optimum"].diff().dropna() >= -1e-8).all()
assert (wide[ALGORITHMS].max(axis=1) <= wide["optimum"] + 1e-8).all()

# %% [markdown]
# ## Greedy is not always good
#
# GBV orders the paths by $p/q$ and always takes the best. With a perfect draft there is nothing to gain, and the
# greedy choice only makes the selected path unlike the target: with $p = q = (\frac12, \frac12)$ and $L = 2$ block
# verification emits 3 tokens per target pass, GBV 2.4375 with $K = 2$, and fewer with more paths.

# %%
fair = lv.ModelPair.from_levels([[[0.5, 0.5]], [[0.5, 0.5]] * 2], [[[0.5, 0.5]], [[0.5, 0.5]] * 2])
for num_paths in (1, 2, 3):
    names = ("bv", "gbv", "tgbv", "pbv", "ebv")
    print(num_paths, {name: round(float(lv.block_efficiency(fair, name, num_paths)), 4) for name in names})
assert np.isclose(lv.block_efficiency(fair, "gbv", 2), 2.4375)
assert np.isclose(lv.block_efficiency(fair, "pbv", 2), 3)

# %% [markdown]
# TGBV, PBV and EBV skew only as far as it helps. Move the sliders: at which temperature and draft noise does GBV lose?


# %%
def show(family: str = "softmax", temperature: float = 1.0, draft_noise: float = 0.5, seed: int = 0) -> None:
    if family == "softmax":
        pair = lv.make.softmax(3, 3, seed, temperature=temperature, draft_noise=draft_noise)
    else:
        pair = lv.make.dirichlet(3, 3, seed, alpha=0.5)
    frame = lv.compare(lv.VerifyProblem(pair), range(1, 5), algorithms=["bv", "gbv", "pbv", "ebv"], max_drafts=1)
    _, ax = plt.subplots(figsize=(7, 4), layout="constrained")
    lv.plots.against_paths(frame, ax)
    plt.show()


_ = interact(
    show,
    family=Dropdown(options=["softmax", "dirichlet"]),
    temperature=FloatSlider(1.0, min=0.1, max=2.0, step=0.1),
    draft_noise=FloatSlider(0.5, min=0.0, max=3.0, step=0.1),
    seed=IntSlider(0, 0, 20),
)

# %% [markdown]
# ## The optimum can be run
#
# The solution of the program is a verifier: `policy` draws a rank for each path, selects the path of smallest rank, and
# runs block verification on it.

# %%
small = lv.load_problem("coin-2", num_paths=2)
policy = lv.evaluate(small, "policy")
best = lv.solve(small, exact=True)
print(float(policy.block_efficiency), best.exact, float(best.exact), policy.law_error)
assert policy.law_error == 0
assert np.isclose(float(policy.block_efficiency), float(best.exact), atol=1e-8)
