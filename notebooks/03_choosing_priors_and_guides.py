# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Which prior, which guide?
#
# A Bayesian neural network leaves two choices open. The *prior* is the distribution of the weights before there are
# data. The *guide* is the family in which the posterior is sought. Both change what the network predicts far from the
# data. The problems here are small, so long runs of NUTS give the exact posterior prediction, up to the error of
# sampling. Everything else is compared with it.
#
# It takes about five minutes.
#
# ![Twelve fits of the same points. Where the blue band stays inside of the dashed lines of NUTS, the fit is too sure](attachment:cover.png)

# %%
import functools
import math
import os
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pyro.distributions as dist
import torch
from sklearn.datasets import make_moons

import pyrobnn as bnn

plt.style.use("pyrobnn.plots.style")  # letters that a phone shows, and the colours of bnn.plots
BLUE, ORANGE, GREY, LIGHT_BLUE, INK, PALE = (f"C{place}" for place in range(6))
FAST = os.environ.get("PYROBNN_NB_FAST") == "1"  # a few steps only, to check that everything runs
MEMBERS, NUM_DRAWS = (2, 50) if FAST else (10, 1000)
RESULTS = Path("../benchmarks/results")

# %% [markdown]
# ## The problem
#
# The data are 32 points of a sine with a gap in the middle and known noise of standard deviation 0.1. The network has
# ten tanh units. Every weight and bias has the prior $N(0, 1)$. The reference is 1000 draws of NUTS, made by
# `benchmarks/tasks/nuts_reference.py` with four long chains.

# %%
generator = torch.Generator().manual_seed(0)
x = torch.cat([torch.linspace(-1, -0.3, 16), torch.linspace(0.3, 1, 16)])[:, None]
data = bnn.Data(x, torch.sin(3 * x[:, 0]) + 0.1 * torch.randn(32, generator=generator))
x_test = torch.linspace(-1.5, 1.5, 61)[:, None]


def make_model(prior):
    net = bnn.MLP(1, [10], 1, activation="tanh")
    return bnn.BNN(net, prior=prior, likelihood=bnn.likelihoods.Gaussian(scale=0.1))


def nuts_draws(name, key):
    return torch.tensor(np.load(RESULTS / "nuts" / f"{name}.npz")[key].astype(np.float32))


model = make_model(bnn.priors.Normal(1.0))
nuts = bnn.Prediction(dist.Normal(nuts_draws("sinusoid", "mean"), nuts_draws("sinusoid", "std")))


# %% [markdown]
# ## Every guide beside NUTS
#
# All fits have default settings, and end when they have converged. The ensembles have ten members.

# %%
def svi(guide):
    return bnn.SVI(guide=guide, steps=20 if FAST else None)


guides = bnn.guides
METHODS = {
    "map": svi("map"),
    "laplace": svi(guides.Laplace(structure="full")),
    "mean_field": svi("mean_field"),
    "radial": svi("radial"),
    "matrix_normal": svi("matrix_normal"),
    "low_rank": svi(guides.LowRank(rank=5)),
    "full_rank": svi("full_rank"),
    "flow": svi("flow"),
    "dropout": svi(guides.Dropout(rate=0.1)),
    "swag": bnn.SWAG(svi("map")),
    "ensemble of map": bnn.Ensemble(svi("map"), members=MEMBERS),
    "ensemble of mean_field": bnn.Ensemble(svi("mean_field"), members=MEMBERS),
}
fits, seconds = {}, {}
for name, method in METHODS.items():
    started = time.perf_counter()
    fits[name] = bnn.fit(model, data, method, seed=0, progress=False)
    seconds[name] = time.perf_counter() - started
predictions = {name: fitted.predict(x_test, num_draws=NUM_DRAWS) for name, fitted in fits.items()}

# %% [markdown]
# The *total variation* distance compares two predictive distributions of a target. It is half of
# $\int |p(y) - q(y)|\, dy$: 0 if they are equal, 1 if they do not overlap. The *Wasserstein* distance tells how far
# probability has to be moved, in units of $y$. It is given for the targets and, without the noise, for the curves. All
# distances are means over 61 inputs between -1.5 and 1.5.

# %%
EDGES = torch.linspace(-4, 4, 201)


@functools.cache
def distribution_function(prediction):
    scaled = (EDGES - prediction.draw_means.reshape(prediction.num_draws, -1, 1)) / (0.1 * math.sqrt(2))
    return 0.5 * (1 + torch.erf(scaled)).mean(0)


def total_variation(prediction, reference):
    cells = []
    for cdf in map(distribution_function, (prediction, reference)):
        ends = torch.zeros(len(cdf), 1)
        cells.append(torch.cat([ends, cdf, ends + 1], -1).diff())
    return 0.5 * (cells[0] - cells[1]).abs().sum(-1).mean().item()


def wasserstein(prediction, reference):
    difference = distribution_function(prediction) - distribution_function(reference)
    return (difference.abs().sum(-1) * (EDGES[1] - EDGES[0])).mean().item()


def wasserstein_of_curves(prediction, reference):
    levels = (torch.arange(500) + 0.5) / 500
    a, b = (each.draw_means.reshape(each.num_draws, -1).quantile(levels, 0) for each in (prediction, reference))
    return (a - b).abs().mean().item()


distance = {name: total_variation(prediction, nuts) for name, prediction in predictions.items()}

# %% [markdown]
# The blue bands below hold 95 % of the guide's predictions. The dashed orange lines show the same band of NUTS. Where
# the blue stays inside of the lines, the guide is too sure. The number is the total variation.

# %% tags=["cover"]
figure, axes = plt.subplots(4, 3, figsize=(5.6, 7.6), sharex=True, sharey=True)
low, high = (bound.flatten() for bound in nuts.interval(0.95))
for axis, (name, prediction) in zip(axes.flat, predictions.items(), strict=True):
    guide_low, guide_high = (bound.flatten() for bound in prediction.interval(0.95))
    axis.fill_between(x_test[:, 0], guide_low, guide_high, color=LIGHT_BLUE, linewidth=0, label="guide, 95 %")
    for bound, label in zip((low, high), ("NUTS, 95 %", None), strict=True):
        axis.plot(x_test[:, 0], bound, "--", color=ORANGE, label=label)
    axis.plot(data.x[:, 0], data.y, ".", color=INK, markersize=3, label="data")
    axis.text(0.96, 0.04, f"{distance[name]:.2f}", transform=axis.transAxes, ha="right")
    axis.set(ylim=(-2.2, 2.2), xlim=(-1.5, 1.5), xticks=(-1, 0, 1), title=name.replace(" of ", "\nof "))
figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
figure.supxlabel("x", fontsize=10)
figure.supylabel("y", fontsize=10)
plt.show()

# %%
means, stds = (nuts_draws("sinusoid", key).chunk(2) for key in ("mean", "std"))
halves = [bnn.Prediction(dist.Normal(mean, std)) for mean, std in zip(means, stds, strict=True)]
rows = {"half of NUTS to the other": (*halves, math.nan)}
rows |= {name: (prediction, nuts, seconds[name]) for name, prediction in predictions.items()}
pd.DataFrame(
    {
        name: {
            "total variation": total_variation(a, b),
            "Wasserstein": wasserstein(a, b),
            "Wasserstein of curves": wasserstein_of_curves(a, b),
            "seconds": took,
        }
        for name, (a, b, took) in rows.items()
    }
).T.round(3)

# %% [markdown]
# The first row is the distance between two runs that differ by chance only; differences of 0.01 mean nothing. Near the
# data all guides but dropout and `matrix_normal` are fine; the differences lie at the edges. Guides come closer the more
# correlations they can express: from `mean_field` (0.15) over `low_rank` and `full_rank` (0.08) to `flow` (0.06). The
# weights of a network are correlated. A guide without correlations has a band that is too narrow where it should open.
# Linearised `laplace` (0.09) is as close as `full_rank`. `matrix_normal` ended at a poorer optimum (0.34), as with two of
# four seeds; the others have 0.13. Dropout at a rate of 0.1 removes a tenth of the ten units at each draw, which is a
# large change for so small a network.
#
# The benchmark `benchmarks/suites/nuts.toml` compares fits of fixed length on three problems. They are this one, the
# motorcycle data with noise that depends on the input, and two moons. "function" is the Wasserstein distance of the
# curves (in standard deviations of the targets) or of the class probabilities.

# %%
records = pd.read_json(RESULTS / "nuts" / "rows.jsonl", lines=True)
table = pd.DataFrame([row for rows in records["rows"] for row in rows])
order = list(dict.fromkeys(table["entry"]))
table.pivot(index="entry", columns="data", values=["predictive", "function"]).loc[order].round(3)

# %% [markdown]
# No guide wins everywhere. On the motorcycle data, MAP predicts targets better (0.16) than `mean_field` (0.23),
# although its curve is worse (0.10 against 0.06). There the variational guides get the noise wrong. Linearised Laplace
# is the closest single fit on all three problems. Anchored ensembles of MAP do well everywhere too (0.13, 0.13 and
# 0.06); their members are pulled to different draws of the prior. Two results need an explanation. Some ensembles are
# no better than a single fit, and on two moons MAP beats all variational guides. For both we look at the moons.

# %%
moons_x, moons_y = make_moons(100, noise=0.2, random_state=0)
moons = bnn.Data(torch.tensor(moons_x, dtype=torch.float32), torch.tensor(moons_y))
net = bnn.MLP(2, [8], 2, activation="tanh")
moons_model = bnn.BNN(net, prior=bnn.priors.Normal(1.0), likelihood="categorical")
side = torch.linspace(-2, 3, 15)
grid = torch.stack(torch.meshgrid(side, side - 0.5, indexing="xy"), -1).reshape(-1, 2)
nuts_class = nuts_draws("moons", "probs").mean(0)
moons_fits = {
    "map": bnn.fit(moons_model, moons, METHODS["ensemble of map"], seed=0, progress=False),
    "mean_field": bnn.fit(moons_model, moons, METHODS["ensemble of mean_field"], seed=0, progress=False),
}


def class_probability(posterior):
    return posterior.predict(grid, num_draws=NUM_DRAWS).class_probs[:, 1]


def moons_distance(posterior):
    return (class_probability(posterior) - nuts_class).abs().mean().item()


def sinusoid_distance(posterior):
    return total_variation(posterior.predict(x_test, num_draws=NUM_DRAWS), nuts)


# %% [markdown]
# ## Is an ensemble better than its guide?
#
# An ensemble predicts the mean of its members' distributions, and total variation is convex:
#
# $$\text{TV}\Big(\frac1K \sum_k q_k,\ p\Big) \le \frac1K \sum_k \text{TV}(q_k, p).$$
#
# So an ensemble is never farther from NUTS than its members are *on average*. One member may still be closer by chance.

# %%
singles, whole = {}, {}
for guide in ("map", "mean_field"):
    mixtures = {"sinusoid": fits[f"ensemble of {guide}"], "moons": moons_fits[guide]}
    for problem, to_nuts in {"sinusoid": sinusoid_distance, "moons": moons_distance}.items():
        name = f"{problem}, {guide}"
        singles[name] = [to_nuts(member) for member in mixtures[problem].members]
        whole[name] = to_nuts(mixtures[problem])

figure, (above, below) = plt.subplots(2, 1, figsize=(5.6, 6.2))
for place, (name, values) in enumerate(singles.items()):
    mean, std = np.mean(values), np.std(values, ddof=1)
    above.plot(values, np.full(len(values), place - 0.18), "o", color=GREY, markersize=4, alpha=0.6, label="members")
    above.errorbar(mean, place, xerr=std, fmt="|", color=INK, markersize=12, capsize=3, label="their mean ± sd")
    above.plot(whole[name], place + 0.2, "D", color=BLUE, markersize=6, label="ensemble")
    print(f"{name:21} members {mean:.3f} ± {std:.3f}, ensemble {whole[name]:.3f}")
above.set(yticks=range(4), yticklabels=singles, xlabel="total variation distance to NUTS", xlim=(0, None))
above.invert_yaxis()
handles = dict(zip(*above.get_legend_handles_labels()[::-1], strict=True))
above.legend(handles.values(), handles, loc="lower left", bbox_to_anchor=(0, 1), ncols=3, columnspacing=1.2)

members = [member.predict(x_test, num_draws=NUM_DRAWS) for member in fits["ensemble of mean_field"].members]
for k, member in enumerate(members):
    label = None if k else "members"
    below.plot(x_test[:, 0], member.epistemic_std.flatten(), color=GREY, linewidth=0.7, label=label)
together = predictions["ensemble of mean_field"].epistemic_std.flatten()
below.plot(x_test[:, 0], together, color=BLUE, label="their ensemble")
below.plot(x_test[:, 0], nuts.epistemic_std.flatten(), color=ORANGE, linestyle="--", label="NUTS")
below.set(xlabel="x", ylabel="sd of the curves (units of y)", ylim=(0, None))
below.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, columnspacing=1.2)
plt.show()

# %%
apart = torch.stack([member.mean.flatten() for member in members])
print(f"sd between the members' mean curves {apart.std(0).mean():.3f}")
print(f"distance of their mean to NUTS's    {(apart.mean(0) - nuts.mean.flatten()).abs().mean():.3f}")

# %% [markdown]
# The inequality holds up to the sampling error of 1000 draws, some thousandths. The gain of an ensemble depends on how
# its members differ:
#
# * On the sinusoid all members of MAP found nearly the same curve, and the mixture (0.171) is little better than one of
#   them (0.180).
# * On the moons eight of ten members did, at 0.090. Two found another mode, at 0.049, and beat the ensemble (0.074).
#   They had a lucky start. So had the single MAP in the benchmark, with the same 0.049. Without NUTS nobody can tell
#   which members these are.
# * All mean-field members are as far from NUTS as their mixture.
#
# Why is the mixture of good mean-field members no better? The lower panel shows it: all members make the same mistake.
# Their curves spread by about 0.08 everywhere. This is too much near the data and far too little outside, where NUTS
# opens to 0.4. Their mean curves differ by 0.003, but the average of these is 0.035 from the mean of NUTS. Averaging
# removes the errors that differ between members. The errors that they share stay.
#
# ## Why does MAP look so good on two moons?
#
# Luck is one reason, as we saw: a typical MAP (0.090) is hardly closer than mean-field (0.094). The plot shows the
# other. It draws the log odds of the classes against the log odds of NUTS, with a point for each input of a grid.

# %%
order = np.argsort(singles["moons, map"])
shown = {
    "map, typical member": moons_fits["map"].members[order[len(order) // 2]],
    "map, closest member": moons_fits["map"].members[order[0]],
    "mean_field": moons_fits["mean_field"].members[0],
}
figure, axes = plt.subplots(1, 3, figsize=(5.6, 3.0), sharex=True, sharey=True)
for axis, (name, posterior) in zip(axes, shown.items(), strict=True):
    probability = class_probability(posterior)
    a, b = torch.logit(nuts_class, 1e-6), torch.logit(probability, 1e-6)
    slope = (a * b).sum() / a.square().sum()
    axis.axline((0, 0), slope=1, color=GREY, linewidth=0.9)
    axis.plot(a, b, "o", color=BLUE, markersize=2, alpha=0.5)
    axis.set_title(f"{name}\nslope {slope:.2f}")
    error, sure = (probability - nuts_class).abs(), (nuts_class - 0.5).abs() > 0.45
    parts = f"{error[sure].mean():.3f} where NUTS is sure, {error[~sure].mean():.3f} elsewhere"
    print(f"{name:24} distance {error.mean():.3f}: {parts}")
print(f"NUTS is sure (0.95 and more for one class) at {sure.float().mean():.0%} of the inputs")
axes[0].set_ylabel("log odds of class 1, guide")
figure.supxlabel("log odds of class 1, NUTS", fontsize=10)
plt.show()

# %% [markdown]
# NUTS is sure of the class at 57 % of the inputs, and mean-field is not. Its log odds stop at about 3, however far from
# the data, while NUTS goes on to 5. Mean-field underfits, so its probabilities are less extreme. That costs it 0.043
# there, against 0.015 for MAP. Points that spread sideways, where NUTS is unsure, show a boundary in another place.
# There mean-field (0.161) is closer than a typical MAP (0.192), which is too extreme, with a slope above 1. So MAP
# leads where the answer is easy, and by a lucky mode. The benchmark's Laplace sits on that mode as well (0.04); an
# ensemble of Laplace has 0.07.

# %% [markdown]
# ## Curves under a prior
#
# A prior on weights is a prior on curves. Each panel of the left column has twelve curves, before any data. The right
# column shows the posterior with the guide `full_rank`: 95 % of the curves, drawn to twice the distance.

# %%
PRIORS = {
    "Normal(1)": bnn.priors.Normal(1.0),
    'Normal("fan_in")': bnn.priors.Normal("fan_in"),
    "ScaleMixture()": bnn.priors.ScaleMixture(),
    "StudentT()": bnn.priors.StudentT(),
    "Laplace()": bnn.priors.Laplace(),
}
x_wide = torch.linspace(-3, 3, 121)[:, None]
figure, axes = plt.subplots(5, 2, figsize=(5.6, 8.2), sharex=True)
rows = {}
for (left, right), (name, prior) in zip(axes, PRIORS.items(), strict=True):
    candidate = make_model(prior)
    before = candidate.sample_prior_predictive(x_wide, num_draws=NUM_DRAWS, seed=0).draw_means.reshape(NUM_DRAWS, -1)
    fitted = bnn.fit(candidate, data, METHODS["full_rank"], seed=0, progress=False)
    after = fitted.predict(x_wide, num_draws=NUM_DRAWS).draw_means.reshape(NUM_DRAWS, -1)
    left.plot(x_wide[:, 0], before[:12].T, color=BLUE, linewidth=0.8)
    left.set(title=name, ylim=(-9, 9), ylabel="y")
    low, high = after.quantile(torch.tensor([0.025, 0.975]), 0)
    right.fill_between(x_wide[:, 0], low, high, color=LIGHT_BLUE, linewidth=0)
    right.plot(x_wide[:, 0], after.mean(0), color=BLUE)
    right.plot(data.x[:, 0], data.y, ".", color=INK, markersize=2.5)
    right.set(title="after the data", ylim=(-2.6, 2.6), xlim=(-3, 3))
    rows[name] = {
        "before, at 3": (before[:, -1].quantile(0.75) - before[:, -1].quantile(0.25)).item() / 1.349,
        "after, at 0": after[:, 60].std().item(),
        "after, at 1.5": after[:, 90].std().item(),
        "after, at 3": after[:, -1].std().item(),
        "mean at 3": after[:, -1].mean().item(),
    }
for axis in axes[-1]:
    axis.set_xlabel("x")
plt.show()

# %%
pd.DataFrame(rows).T.round(2)

# %% [markdown]
# Before the data the curves of `Normal(1)` have a spread of about 2.6 at $x = 3$, and more units would widen it. (The
# spread comes from the quartiles, since heavy tails make standard deviations unstable.) `"fan_in"` divides by the
# number of inputs of a layer, so its spread of 1.4 is the same at every width. The other three have open scales: those of
# `"he"` before a fit, which then measures them. `StudentT()` and `Laplace()` let single weights be large, so that their
# curves have steps.
#
# After the fit all five agree near the data. Outside they do not. At $x = 3$ the tight prior `"fan_in"` is back near
# zero (-0.35 ± 0.21). `Normal(1)` levels off at -1.31 ± 0.33, and the scale mixture goes on to -2.06 ± 0.25. No data
# can tell which is right: the prior decides. Where that matters, look at the left column first. In the gap the
# priors with measured scales are wider (0.18 and 0.19 against 0.09).
#
# The bands on the right depend on the guide as well. At 1.5, `full_rank` has 0.22 under `Normal(1)` where NUTS has more than
# 0.4. That error is larger than any difference between the five priors there. So improve the guide before the prior.

# %% [markdown]
# ## When few inputs matter
#
# Now there are 200 inputs and only 150 examples. Twenty inputs matter, with weights of size 1 to 2. A normal prior has
# one width for the large weights and for the zeros. The *regularised horseshoe* (Piironen & Vehtari 2017) gives each
# weight its width and pulls nearly all of them to zero. Its scale follows from the guess that 20 inputs matter.

# %%
USEFUL, INPUTS, TRAIN = 20, 200, 150
generator = torch.Generator().manual_seed(0)
truth = torch.zeros(INPUTS)
signs = torch.where(torch.rand(USEFUL, generator=generator) < 0.5, -1.0, 1.0)
truth[:USEFUL] = signs * (1 + torch.rand(USEFUL, generator=generator))
inputs = torch.randn(TRAIN + 2000, INPUTS, generator=generator)
sparse = bnn.Data(inputs, inputs @ truth + torch.randn(len(inputs), generator=generator))
train, test = sparse[:TRAIN], sparse[TRAIN:]

scale = USEFUL / (INPUTS - USEFUL) / math.sqrt(TRAIN)
shrinkage = {
    "Normal(1)": bnn.priors.Normal(1.0),
    f"RegularizedHorseshoe({scale:.3f})": bnn.priors.RegularizedHorseshoe(scale),
}
figure, axes = plt.subplots(2, 1, figsize=(5.6, 4.8), sharex=True, sharey=True)
for axis, (name, prior) in zip(axes, shrinkage.items(), strict=True):
    linear = bnn.BNN(bnn.MLP(INPUTS, [], 1, bias=False), prior=prior, likelihood=bnn.likelihoods.Gaussian(1.0))
    posterior = bnn.fit(linear, train, METHODS["mean_field"], seed=0, progress=False)
    score = posterior.predict(test.x, num_draws=500).log_prob(test.y).mean()
    size = posterior.mean()[next(iter(linear.initial_values))][0].abs()
    print(f"{name:28} test log-likelihood {score:.2f}, largest |weight| of a useless input {size[USEFUL:].max():.2f}")
    axis.vlines(range(USEFUL, INPUTS), 0, size[USEFUL:], color=GREY, linewidth=1, label="no use")
    axis.vlines(range(USEFUL), 0, size[:USEFUL], color=BLUE, linewidth=1.4, label="useful")
    axis.plot(range(USEFUL), truth[:USEFUL].abs(), "_", color=ORANGE, markersize=4, label="true weight")
    axis.set_title(name)
    axis.set(ylim=(0, 2.4), ylabel="|posterior mean|")
axes[0].legend(ncols=3, loc="upper right")
axes[1].set_xlabel("number of the input")
plt.show()

# %% [markdown]
# Under the normal prior the useless inputs explain noise, and the useful ones are shrunk to make room. The horseshoe
# does not shrink the large weights. Over ten data sets an earlier version (`benchmarks/results/horseshoe.md`) had
# log-likelihoods of -6.54 ± 0.3 under `Normal(1)` and -1.57 ± 0.01 under the horseshoe; the true weights reach -1.42. The error of useless
# weights falls from 0.279 to 0.029. `StudentT(3, 0.1)` has no extra scales to infer and gets most of the gain: -1.65 ±
# 0.008.

# %% [markdown]
# ## Which, then?
#
# The cost is relative to the training of a point estimate; $D$ is the number of weights.
#
# | when | guide | cost, and what to know |
# |---|---|---|
# | a first look, or predictions without uncertainty of the weights | `map` | 1; no epistemic band |
# | a trained network needs a band | `Laplace(structure="full")`, `"kron"` for many weights | 1 and one sweep over the data; the closest single fit of the benchmark on all three problems, with luck on the moons |
# | a few hundred weights | `full_rank` | $D^2 / 2$ numbers; of the variational normals the closest on sinusoid and motorcycle data |
# | more weights | `low_rank`, `matrix_normal`, then `mean_field` | a small multiple of 1, but several times the steps; too narrow outside the data |
# | regression or classes, without much tuning | `Ensemble(SVI(guide="map"), anchored=True)` | the number of members, side by side; 0.13, 0.13 and 0.06 to NUTS |
# | fits that sometimes go wrong | an ensemble of the guide | insurance against a bad start, no cure for a bias that members share |
# | a small problem that must be right | `NUTS` | the reference of all the above |
# | an existing dropout network | `dropout` | 1; for wide layers only, far off here |
#
# | when | prior |
# |---|---|
# | narrow networks on standardised data | `Normal(1)` |
# | wide networks, or a comparison of widths | `Normal("fan_in")` |
# | single large weights, steps in the curve | `StudentT()`, `Laplace()` |
# | few of many inputs matter | `RegularizedHorseshoe(scale)`, or `StudentT(3, 0.1)` for less |
# | many small weights and a few large ones | `ScaleMixture()`; look at its curves first |
#
# ## Try it
#
# * Fit `anchored=True` ensembles here. Does the band open at the edges?
# * `METHODS["laplace"]` with `linearized=False` predicts with the network itself. What happens outside the data?
# * Draw the priors for `bnn.MLP(1, [100], 1)`. Which rows change?
