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
# # Write your own verifier and audit it
#
# A verifier is a function `f(paths, target, draft, rng) -> (accepted_tokens, next_token)`:
#
# * `paths`: K tuples of L drafted tokens;
# * `target(prefix)`, `draft(prefix)`: rows of probabilities;
# * `rng.bernoulli(p)`, `rng.categorical(weights)`, `rng.uniform()`: the only sources of randomness.
#
# Because all randomness comes from `rng`, `lv.audit` can run every choice with its probability and compare the
# emitted distribution with the target's, in exact fractions. Functions that use `rng.uniform` are sampled, with stated
# error bounds.

# %%
import pandas as pd

import lpverify as lv

# %% [markdown]
# ## A right one: the token rule


# %%
def token_rule(paths, target, draft, rng):
    path, accepted = paths[0], ()
    for x in path:
        p, q = target(accepted), draft(accepted)
        if not rng.bernoulli(min(1, p[x] / q[x])):
            return accepted, rng.categorical([max(a - b, 0) for a, b in zip(p, q, strict=True)])
        accepted += (x,)
    return accepted, rng.categorical(target(accepted))


CASES = ["one step", "coin"]
report = lv.audit(token_rule, cases=CASES)
print("lossless:", report.lossless)
assert report.lossless
pd.DataFrame([vars(case) for case in report.cases])[["case", "num_paths", "depth", "mode", "count", "total_variation"]]

# %% [markdown]
# ## A wrong one: the naive correction
#
# The only change: after a rejection the token is drawn from `p`.


# %%
def naive(paths, target, draft, rng):
    path, accepted = paths[0], ()
    for x in path:
        p, q = target(accepted), draft(accepted)
        if not rng.bernoulli(min(1, p[x] / q[x])):
            return accepted, rng.categorical(p)
        accepted += (x,)
    return accepted, rng.categorical(target(accepted))


report = lv.audit(naive, cases=CASES)
print("lossless:", report.lossless)
for case, finding in report.findings:
    print(f"{case}: {finding.message}")
assert not report.lossless

# %% [markdown]
# ## A subtle one
#
# "Verify both paths with the token rule and keep the one with more accepted tokens." Each path alone is verified
# correctly, and more tokens are accepted. But the choice depends on what was accepted, so the result is not lossless.


# %%
def longer_of_two(paths, target, draft, rng):
    answers = [token_rule([path], target, draft, rng) for path in paths[:2]]
    return max(answers, key=lambda answer: len(answer[0]))


report = lv.audit(longer_of_two, cases=CASES, stop_early=True)
print("lossless:", report.lossless)
for case, finding in report.findings:
    print(f"{case}: {finding.message}")
assert not report.lossless

# %% [markdown]
# Never rank verifiers by accepted tokens before it is certain that they are lossless.
#
# ## A right one for several paths: recursive rejection
#
# One position at a time: try the children in turn; after each rejection the target becomes the residual.


# %%
def recursive_rejection(paths, target, draft, rng):
    accepted, alive = (), list(paths)
    while True:
        depth = len(accepted)
        p = list(target(accepted))
        if depth == len(paths[0]):
            return accepted, rng.categorical(p)
        q = draft(accepted)
        for path in alive:
            x = path[depth]
            if rng.bernoulli(min(1, p[x] / q[x])):
                accepted += (x,)
                alive = [other for other in alive if other[: depth + 1] == accepted]
                break
            p = [max(a - b, 0) for a, b in zip(p, q, strict=True)]
            p = [a / sum(p) for a in p]
        else:
            return accepted, rng.categorical(p)


report = lv.audit(recursive_rejection, cases=CASES)
print("lossless:", report.lossless)
assert report.lossless

# %% [markdown]
# The same from the command line: put the function into a file and run `lpverify audit file.py:recursive_rejection`. The
# exit code is 1 if it is not lossless. How good is it? This rule is SpecInfer's; its exact value and the optimum:

# %%
problem = lv.load_problem("coin-2", num_paths=2)
lv.compare(problem, algorithms=["specinfer", "gbv", "pbv", "ebv"])
