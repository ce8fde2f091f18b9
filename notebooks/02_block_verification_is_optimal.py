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
# # Block verification is optimal
#
# One drafted path of length $L$. Let $f(c)$ be the *prefix acceptance probability*, the probability that the accepted
# prefix passes through $c$. A lossless verifier has $f(cx) \le p(x|c)\, f(c)$. With one draft path $f(c) \le Q(c)$, the
# draft's probability of the prefix. Block efficiency, the expected number of tokens per target pass, is
# $\sum_c f(c)$:
#
# $$\max \sum_c f(c) \quad \text{s.t.} \quad f(\text{root}) = 1,\; 0 \le f(cx) \le p(x|c) f(c),\; f(c) \le Q(c).$$
#
# The largest feasible point is found in one pass from the root, $f(cx) = \min(p(x|c) f(c), Q(cx))$, and that pass
# *is* block verification (Sun et al. 2024). So no verifier for one path is better, not even one that sees all
# off-path probabilities (Thomas & Pal 2026).

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from ipywidgets import FloatSlider, IntSlider, interact

import lpverify as lv

# %% [markdown]
# ## In exact fractions

# %%
coin = lv.load_problem("coin-2")  # one path
optimum = lv.solve(coin, exact=True)
bv = lv.evaluate(coin, "bv")
token = lv.evaluate(coin, "token")
print("LP optimum", optimum.exact, " BV", bv.block_efficiency, " token rule", token.block_efficiency)
print("total variation from the target", bv.law_error, token.law_error)
assert optimum.exact == bv.block_efficiency > token.block_efficiency
assert bv.law_error == token.law_error == 0

# %% [markdown]
# The value comes with a certificate: a feasible $f$ and multipliers that prove the upper bound, checked without a
# solver.

# %%
check = lv.certify.check(coin.pair, optimum.certificate, exact=True)
print(check.valid, check.lower_bound, check.upper_bound)
assert check.valid
assert check.lower_bound == check.upper_bound == bv.block_efficiency

# %% [markdown]
# ## The same program in cvxpy, to change
#
# `lv.cvx` gives the program with named variables and constraints.

# %%
pair = lv.make.softmax(3, 3, seed=1, draft_noise=0.8)
program = lv.cvx.single_path_program(pair)
value = program.solve()
print(value, lv.block_efficiency(pair, "bv"))
assert np.isclose(value, lv.block_efficiency(pair, "bv"), atol=1e-6)

# %% [markdown]
# What does it cost if the first drafted token may be accepted only half as often?

# %%
first = program.variables["prefix_acceptance"][1]
share = float(first.value.sum())
limited = program.with_constraints([sum(first) <= share / 2]).solve()
print(f"first token accepted with probability {share:.3f}: {value:.4f} tokens per pass; half of that: {limited:.4f}")
assert limited < value

# %% [markdown]
# ## Over depth and draft quality


# %%
def gain(depth: int, seeds: range, **options: float) -> pd.Series:
    rows = []
    for seed in seeds:
        pair = lv.make.softmax(3, depth, seed, **options)
        rows.append({name: float(lv.block_efficiency(pair, name)) for name in ("token", "bv")})
        rows[-1]["optimum"] = lv.solve(lv.VerifyProblem(pair, 1)).upper_bound
    return pd.DataFrame(rows).mean()


frame = pd.DataFrame({depth: gain(depth, range(10), draft_noise=0.5) for depth in range(1, 6)}).T
assert np.allclose(frame["bv"], frame["optimum"])
frame.round(4)


# %%
def show(draft_noise: float = 0.5, temperature: float = 1.0, seeds: int = 5) -> None:
    depths = range(1, 6)
    options = {"draft_noise": draft_noise, "temperature": temperature}
    frame = pd.DataFrame({depth: gain(depth, range(seeds), **options) for depth in depths}).T
    fig, ax = plt.subplots(figsize=(5.5, 3.5), layout="constrained")
    ax.plot(frame.index, frame["optimum"], color="#d55e00", linewidth=5, alpha=0.6, label="LP optimum")
    ax.plot(frame.index, frame["bv"], "s", color="black", markerfacecolor="white", label="BV")
    ax.plot(frame.index, frame["token"], "o-", color="#0072b2", label="token rule")
    ax.set_xticks(list(depths))
    ax.set_xlabel("draft depth L")
    ax.set_ylabel("tokens per target pass")
    ax.legend(frameon=False)
    plt.show()


_ = interact(
    show,
    draft_noise=FloatSlider(0.5, min=0.0, max=3.0, step=0.1),
    temperature=FloatSlider(1.0, min=0.1, max=2.0, step=0.1),
    seeds=IntSlider(5, 1, 20),
)
