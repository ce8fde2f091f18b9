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
# # One position
#
# A draft proposes a token of distribution $q$; the emitted token must have the target's distribution $p$. The token
# rule accepts $x$ with probability $\min(1, p(x)/q(x))$ and otherwise draws a token from the **residual**
# $r(x) = \max(p(x) - q(x), 0) / \sum_y \max(p(y) - q(y), 0)$. Then $x$ is emitted with probability
#
# $$\min(p(x), q(x)) + \Big(1 - \sum_y \min(p(y), q(y))\Big)\, r(x) = p(x),$$
#
# because the rejected mass equals the mass of the residual. This notebook checks it in exact fractions, and shows
# what goes wrong when the correction is drawn from $p$ itself.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from ipywidgets import FloatSlider, IntSlider, interact

import lpverify as lv

# %% [markdown]
# ## The example

# %%
pair = lv.load_problem("one-position").pair
balance = lv.balance(pair)
pd.DataFrame(
    {
        "target p": balance.target,
        "draft q": balance.draft,
        "accepted min(p, q)": balance.accepted,
        "residual p - min(p, q)": balance.residual,
        "emitted": balance.emitted,
        "naive": balance.naive,
    },
    index=list(pair.tokens),
)

# %%
print("accepted mass", balance.accepted_mass, " rejected mass", balance.rejected_mass)
print("total variation from the target: residual", balance.law_error, " naive", balance.naive_law_error)
assert balance.law_error == 0
assert (balance.emitted == balance.target).all()
assert balance.naive_law_error > 0

# %% [markdown]
# The entries are fractions, so this is an identity and no rounding is involved. The naive correction emits
# $\min(p, q) + (1 - \sum \min(p, q))\, p$: tokens that the draft likes too much come too often.
#
# ## Turn the knobs
#
# How much is accepted, and how far off the naive rule is, for random distributions and drafts of varying quality.


# %%
def show(seed: int = 0, draft_noise: float = 1.0, temperature: float = 1.0) -> None:
    pair = lv.make.softmax(6, 1, seed, temperature=temperature, draft_noise=draft_noise)
    balance = lv.balance(pair)
    tokens = np.arange(pair.vocab_size)
    fig, axes = plt.subplots(1, 2, figsize=(9, 3), sharey=True, layout="constrained")
    for ax, total, title in ((axes[0], balance.emitted, "residual"), (axes[1], balance.naive, "naive")):
        ax.bar(tokens, total, color="#e69f00", hatch="//", edgecolor="white", label="corrected")
        ax.bar(tokens, balance.accepted, color="#0072b2", label="accepted")
        ax.hlines(balance.target, tokens - 0.45, tokens + 0.45, color="#d55e00", linewidth=2, label="target p")
        error = abs(total - balance.target).sum() / 2
        ax.set_title(f"{title}: accepted {balance.accepted_mass:.2f}, tv {error:.2f}", loc="left")
    axes[0].legend(frameon=False)
    axes[0].set_ylabel("probability")
    plt.show()


_ = interact(
    show,
    seed=IntSlider(0, 0, 20),
    draft_noise=FloatSlider(1.0, min=0.0, max=3.0, step=0.1),
    temperature=FloatSlider(1.0, min=0.1, max=2.0, step=0.1),
)

# %% [markdown]
# ## One position, several paths
#
# With $K$ i.i.d. drafted tokens more can be accepted. The optimum at depth 1 is a small transport problem;
# `lv.compare` puts every rule beside it.

# %%
problem = lv.load_problem("one-position")
frame = lv.compare(problem, [1, 2, 3, 4], algorithms=["token", "specinfer", "spectr", "ot", "gbv", "pbv", "ebv"])
frame.pivot(index="name", columns="paths", values="block_efficiency").astype(float).round(4)

# %%
wide = frame.pivot(index="paths", columns="name", values="block_efficiency").astype(float)
assert (wide["optimum"].diff().dropna() >= 0).all()  # never falls in K
assert (wide[["token", "specinfer", "spectr", "ot", "gbv", "pbv", "ebv"]].max(axis=1) <= wide["optimum"] + 1e-9).all()
