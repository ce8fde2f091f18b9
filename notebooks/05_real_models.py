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
# # Real models
#
# A verifier is a function of a drafted tree. The other notebooks sum it over all drafts; here it is drawn from.
# `lv.open_pair` opens a target and a draft. `tiny` is a bundled pair of small models that were trained on Python's
# standard library; it needs no network and no GPU. What works for it works for any pair of transformers models with the
# same vocabulary: `lv.open_pair("org/large", "org/small")`.

# %%
import matplotlib.pyplot as plt
import pandas as pd
from ipywidgets import FloatSlider, IntSlider, SelectMultiple, interact

import lpverify as lv

pair = lv.open_pair("tiny", "tiny")
PROMPTS = [
    "def read_lines(path):\n",
    "class Stack:\n    def __init__(self):\n",
    "import os\nimport sys\n\n\ndef main(argv=None):\n",
    "def merge(left, right):\n    result = []\n",
]

# %% [markdown]
# ## One text
#
# A decoding round drafts $K$ paths of $L$ tokens, scores all their prefixes in one target pass, accepts a prefix and
# adds one more token. The text has the target's distribution with every verifier; only the number of target passes
# differs. (One text says nothing about which verifier needs fewer.)

# %%
stats, texts = pair.decode(PROMPTS[:1], ["ebv", "bv"], num_paths=4, depth=8, max_new_tokens=48, seed=1)
print(PROMPTS[0] + texts[0])
print({run.algorithm: f"{run.committed_tokens} tokens in {run.rounds} target passes" for run in stats})

# %% [markdown]
# ## Verifiers side by side
#
# *Sampled* is committed tokens per target pass. *Rao-Blackwell* replaces every round's count by its expectation given
# the drafted tree, which estimates the same number with less noise. `se` is the standard error over prompts.


# %%
def table(temperature: float = 1.0, paths: int = 4, algorithms: tuple[str, ...] = ("bv", "gbv", "ebv")) -> pd.DataFrame:
    stats, _ = pair.decode(PROMPTS, algorithms, num_paths=paths, depth=8, temperature=temperature, max_new_tokens=32)
    rows = [
        {
            "algorithm": run.algorithm,
            "sampled": run.block_efficiency,
            "Rao-Blackwell": run.rao_blackwell,
            "se": run.rao_blackwell_se,
            "tokens/s": run.tokens_per_second,
        }
        | {f"{stage} %": 100 * s / sum(run.stage_seconds.values()) for stage, s in run.stage_seconds.items()}
        for run in stats
    ]
    return pd.DataFrame(rows).set_index("algorithm").round(2)


frame = table(algorithms=("autoregressive", "token", "bv", "specinfer", "traversal", "gbv", "tgbv", "pbv", "ebv"))
assert frame.loc["autoregressive", "sampled"] == 1
assert (frame["sampled"].drop("autoregressive") > 1).all()
frame.head(10)

# %% [markdown]
# Four prompts say little: compare the standard errors with the differences. More tokens per pass are not more tokens
# per second: with models this small the draft costs nearly as much as the target, and verification takes time too.
#
# ## Where several paths pay
#
# Move the sliders. At temperature 0 all paths are equal. At temperature 1 the greedy skewing of GBV can lose to a
# single path.

# %%
_ = interact(
    table,
    temperature=FloatSlider(1.0, min=0.0, max=1.5, step=0.2, continuous_update=False),
    paths=IntSlider(4, 1, 6, continuous_update=False),
    algorithms=SelectMultiple(options=["token", "bv", "traversal", "gbv", "pbv", "ebv"], value=("bv", "gbv", "ebv")),
)

# %% [markdown]
# Each verifier writes a text of its own, so its rounds begin at other positions. `pair.bound` compares verifiers in the
# *same* contexts, which are positions in texts that the target itself wrote, and reuses one drafted tree for every $K$.
# Over temperature, $K = 3$:

# %%
cells = {
    temperature: pair.bound(PROMPTS, ["bv", "gbv", "ebv"], num_paths=[3], temperature=temperature, contexts=3)[0]
    for temperature in (0.2, 0.6, 1.0)
}
fig, ax = plt.subplots(figsize=(7, 4), layout="constrained")
for name, marker in (("bv", "s"), ("gbv", "<"), ("ebv", "*")):
    values = [cell["algorithms"][name] for cell in cells.values()]
    ax.errorbar(
        list(cells),
        [value["block_efficiency"] for value in values],
        [value["se"] for value in values],
        marker=marker,
        capsize=3,
        label=name,
    )
ax.set_xlabel("temperature")
ax.set_ylabel("tokens per target pass")
ax.legend(frameon=False)
plt.show()

# %% [markdown]
# The error bars are those of the single values. Most of the noise moves all lines alike, so differences are more
# certain than the bars suggest. The published figures
# (`paper_figs/real_*.md`) have more prompts and paired differences. From the command line the same is
# `lpverify decode --target tiny --draft tiny --prompts FILE --compare bv,gbv,ebv` and `lpverify bound`.
