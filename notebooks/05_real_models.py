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
# The verifiers of the other notebooks are summed over drafts there and drawn from here: the same functions of a drafted
# tree. `lv.open_pair` opens a target and a draft; `tiny` is a pair that comes with the package, two small models that
# were trained on Python's standard library. They need no network and no GPU. What works for them works for any pair of
# transformers models with one vocabulary: `lv.open_pair("org/large", "org/small")`.

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
# A round drafts $K$ paths of $L$ tokens, scores all their prefixes in one call of the target, accepts a prefix and adds
# one more token. The text has the target's law, whatever the verifier does; only the number of calls differs. (One
# text says nothing about which verifier needs fewer.)

# %%
stats, texts = pair.decode(PROMPTS[:1], ["pbv", "bv"], num_paths=4, depth=8, max_new_tokens=48, seed=1)
print(PROMPTS[0] + texts[0])
print({run.algorithm: f"{run.committed_tokens} tokens in {run.rounds} calls" for run in stats})

# %% [markdown]
# ## Verifiers side by side
#
# *Sampled* is committed tokens per target call; *Rao-Blackwell* replaces every round's count by its expectation given
# the drafted tree, which is the same number with less noise. `se` is the standard error over prompts.


# %%
def table(temperature: float = 1.0, paths: int = 4, algorithms: tuple[str, ...] = ("bv", "gbv", "pbv")) -> pd.DataFrame:
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


frame = table(algorithms=("autoregressive", "token", "bv", "specinfer", "traversal", "gbv", "tgbv", "pbv"))
assert frame.loc["autoregressive", "sampled"] == 1
assert (frame["sampled"].drop("autoregressive") > 1).all()
frame.head(10)

# %% [markdown]
# Four prompts say little: compare the standard errors with the differences. And more tokens a call are not more tokens
# a second: with models this small the draft costs nearly as much as the target, and verification itself takes time.
#
# ## Where several paths pay
#
# Move the sliders. At temperature 0 all paths are the same one; at temperature 1 the greedy skewing of GBV can lose to
# a single path.

# %%
_ = interact(
    table,
    temperature=FloatSlider(1.0, min=0.0, max=1.5, step=0.2, continuous_update=False),
    paths=IntSlider(4, 1, 6, continuous_update=False),
    algorithms=SelectMultiple(options=["token", "bv", "traversal", "gbv", "tgbv", "pbv"], value=("bv", "gbv", "pbv")),
)

# %% [markdown]
# Decoding with each verifier writes a text of its own, so the rounds begin in different places. `pair.bound` compares
# in the *same* contexts, places in texts that the target itself wrote, and reuses one drafted tree for every $K$. Over
# temperature, $K = 3$:

# %%
cells = {
    temperature: pair.bound(PROMPTS, ["bv", "gbv", "pbv"], num_paths=[3], temperature=temperature, contexts=3)[0]
    for temperature in (0.2, 0.6, 1.0)
}
fig, ax = plt.subplots(figsize=(7, 4), layout="constrained")
for name, marker in (("bv", "s"), ("gbv", "<"), ("pbv", "*")):
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
ax.set_ylabel("tokens per target call")
ax.legend(frameon=False)
plt.show()

# %% [markdown]
# The error bars are those of the values; most of what makes them wide moves all lines alike. The published figures
# (`paper_figs/real_*.md`) have more prompts and paired differences. From the command line the same is
# `lpverify decode --target tiny --draft tiny --prompts FILE --compare bv,gbv,pbv` and `lpverify bound`.
