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
# # How would I know that my posterior is wrong?
#
# A wrong posterior looks like a right one: it has draws, predictions and a band. No single test tells them apart.
# Several tests do, and each sees something else. This notebook applies them to two posteriors of one small network. The
# first is good where there are data. The second is a copy with all standard deviations divided by five. It has the
# right mean and is far too narrow.
#
# It takes at most four minutes on two cores.
#
# ![Four seeds at three places: the good fits overlap, the narrow ones contradict each other](attachment:cover.png)

# %%
import copy
import os
import warnings

import arviz as az
import matplotlib.pyplot as plt
import pandas as pd
import torch
from torch.nn.functional import softplus

import pyrobnn as bnn

plt.style.use("pyrobnn.plots.style")  # letters that a phone shows, and the colours of bnn.plots
BLUE, ORANGE, GREY, LIGHT_BLUE, INK, PALE = (f"C{place}" for place in range(6))
FAST = os.environ.get("PYROBNN_NB_FAST") == "1"  # a few steps only, to check that everything runs
ENGINE = "eager" if FAST else "auto"
warnings.filterwarnings("ignore", message="Estimated shape parameter")  # the table of section 3 shows it
STEPS, REFIT_STEPS, SIMULATIONS, NUM_DRAWS = (20, 20, 20, 100) if FAST else (5000, 2000, 50, 1000)

# %% [markdown]
# ## The two posteriors
#
# The data are 16 noisy points of a sine with a gap in the middle. The network has five tanh units, priors $N(0, 1)$ and
# known noise of 0.1. The good guide is `full_rank`, a normal with all correlations. The narrow one is a copy with every
# standard deviation divided by five. 200 further points are held out. They are spread evenly over $[-1, 1]$, and so
# also over the gap.

# %%
generator = torch.Generator().manual_seed(0)


def make_data(x):
    return bnn.Data(x, torch.sin(3 * x[:, 0]) + 0.1 * torch.randn(len(x), generator=generator))


train = make_data(torch.cat([torch.linspace(-1, -0.4, 8), torch.linspace(0.4, 1, 8)])[:, None])
test = make_data(2 * torch.rand(200, 1, generator=generator) - 1)
net, likelihood = bnn.MLP(1, [5], 1, activation="tanh"), bnn.likelihoods.Gaussian(scale=0.1)
model = bnn.BNN(net, prior=bnn.priors.Normal(1.0), likelihood=likelihood)


def full_rank(steps):
    return bnn.SVI(guide="full_rank", steps=steps, lr=0.01, schedule="cosine_annealing_lr")


def narrowed(posterior, factor=5):
    narrow = copy.deepcopy(posterior)
    with torch.no_grad():
        narrow.guide.rho.copy_((softplus(posterior.guide.rho) / factor).expm1().log())  # scales are softplus(rho)
    return narrow


good = bnn.fit(model, train, full_rank(STEPS), seed=0, progress=False)
fits = {"good": good, "narrow": narrowed(good)}

# %%
x_wide = torch.linspace(-1.5, 1.5, 121)[:, None]
figure, axes = plt.subplots(1, 2, figsize=(5.6, 3.6), sharex=True, sharey=True)
for axis, (name, posterior) in zip(axes, fits.items(), strict=True):
    bnn.plots.fit_1d(posterior, train, x_wide, lambda x: (3 * x).sin(), num_draws=NUM_DRAWS, ax=axis)
    axis.get_legend().remove()
    axis.set(title=name, ylim=(-2, 2), xticks=(-1, 0, 1))
    axis.label_outer()
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
plt.show()

# %% [markdown]
# Near the data the two look alike. In the gap the truth leaves the narrow band. Beyond ±1, where no data are, it leaves
# both: "good" says that a fit is good between them, and no more. Usually the truth is unknown. Which tests find the
# fault without it?

# %% [markdown]
# ## 1. First ask for everything at once
#
# `bnn.diagnose` looks at the fit, and at held-out targets if there are any. Its tests have one common rate of false
# alarms. They compare the targets with targets simulated from the posterior. We add a third posterior, a guide that
# starts narrow and is stopped after 300 steps.

# %%
method = bnn.SVI(guide=bnn.guides.MeanField(init_rho=-7.0), steps=min(300, STEPS), lr=0.01)
stopped = bnn.fit(model, train, method, seed=0, engine="eager", progress=False)
diagnoses = {
    name: bnn.diagnose(posterior, train, test) for name, posterior in {**fits, "stopped early": stopped}.items()
}
print(diagnoses["narrow"])
pd.DataFrame({name: {one.name: one.kind for one in each.findings} for name, each in diagnoses.items()}).fillna("")

# %% [markdown]
# Read the table by columns. The good fit has no warning; the narrow one has six. For the fit that was stopped early,
# the warning gives a lower bound of the distance to convergence, in nats. Read the warnings by kind. "elbo" says *train
# longer*: a copy of the fit that went on at a constant rate rose. A wrong spread or coverage says *the width is wrong*.
# "noise" says that errors change with the prediction, "surprise" that targets are less likely than the posterior
# expects. No warning is not a proof. The tests see only the places with held-out data, here none beyond ±1, and with 16
# points instead of 200 they would have seen less.

# %% [markdown]
# ## 2. k-hat: are these the right weights?
#
# Draws of a guide can be reweighted by $p(w, D) / q(w)$ into draws of the posterior. If a few draws carry all the
# weight, the guide is far from the posterior. *k-hat* measures this by the tail of the weights; below 0.7 they can be
# used. The table has k-hat for the network, and for a straight line with the same two guides. For the line the
# posterior is normal and the evidence $p(D)$ has a formula.

# %%
line = bnn.BNN(bnn.MLP(1, [], 1), prior=bnn.priors.Normal(1.0), likelihood=likelihood)
slope = bnn.Data(train.x, 0.8 * train.x[:, 0] + 0.1 * torch.randn(len(train), generator=generator))
good_line = bnn.fit(line, slope, full_rank(REFIT_STEPS), seed=0, progress=False)
rows = {}
for problem, data, posterior in (("line", slope, good_line), ("network", train, good)):
    for name, each in {"good": posterior, "narrow": narrowed(posterior)}.items():
        weights = bnn.importance_weights(each, data, num_draws=NUM_DRAWS)
        evidence = weights.log_evidence
        rows[f"{problem}, {name}"] = (weights.khat, weights.ess, weights.is_reliable, evidence.mean, evidence.stderr)
inputs = torch.cat([slope.x, torch.ones(len(slope), 1)], 1)
law = torch.distributions.MultivariateNormal(torch.zeros(len(slope)), inputs @ inputs.T + 0.01 * torch.eye(len(slope)))
print(f"exact log evidence of the line {law.log_prob(slope.y):.2f}")
pd.DataFrame(rows, index=["k-hat", "effective draws", "reliable", "log evidence", "its standard error"]).T

# %% [markdown]
# On the line k-hat works as intended. It accepts the good guide (-0.08), and the evidence is exact, 10.01. It rejects
# the narrow one (0.93): 28 of its 1000 draws are left, and the evidence is 3 standard errors off.
#
# On the network k-hat rejects the good posterior as well, as for nearly every network. One reason is symmetry. The five
# units can be exchanged and their signs flipped in $5!\, 2^5 = 3840$ ways, and a guide covers one of them. The other
# reason is that errors in each of the 16 weights multiply, so a joint distribution is hard to match. A good k-hat is
# good news. A bad one says that the *weights* are wrong, and nothing about predictions. Here the narrow posterior even
# has the lower k-hat (1.06 against 1.15). Do not choose by it.

# %% [markdown]
# ## 3. LOO believes the posterior, held-out data do not
#
# Leave-one-out cross-validation needs no refit if the draws come from the posterior. Draws of a guide do not, so
# `bnn.loo` calls the result *LOO under q*. The table also has K-fold cross-validation, where a fit predicts the quarter
# of the data that it has not seen, and the 200 held-out points. All values are nats per example; higher is better. The
# narrow posterior is a copy and not the result of a method, so it has no folds.

# %%
methods = {"good": full_rank(REFIT_STEPS), "stopped early": method}
fits["stopped early"] = stopped
loos = {name: bnn.loo(posterior, train, num_draws=NUM_DRAWS) for name, posterior in fits.items()}
folds = {
    name: bnn.kfold(model, train, each, folds=4, seed=0, engine=ENGINE, progress=False)
    for name, each in methods.items()
}
held_out = {name: bnn.heldout_elpd(posterior, test) for name, posterior in fits.items()}
pd.DataFrame(
    {
        name: {
            "LOO under q": loos[name].elpd / len(train),
            "... examples with k-hat above 0.7": int((loos[name].pareto_k > 0.7).sum()),
            "... effective parameters": loos[name].p,
            "4-fold": folds[name].elpd / len(train) if name in folds else None,
            "held out": held_out[name].elpd / len(test),
        }
        for name in fits
    }
).round(2)

# %%
bnn.compare(held_out)[["rank", "elpd", "elpd_diff", "dse", "weight"]].round(2)

# %% [markdown]
# LOO under q prefers the narrow posterior by far (0.88 against -0.50), and held-out data say the opposite (-0.92
# against 0.20). The draws of a narrow posterior hardly differ, so leaving out an example changes nothing. It seems to
# use 0.2 parameters, and no k-hat of an example warns. The good posterior gets the warnings (10 of 16), and its LOO is
# too low. Its folds (0.06) and its held-out data (0.20) are close. So compare guides by held-out data or folds, and never by LOO
# under q. (The posterior that was stopped early has a stacking weight of 0.29. It predicts some points better, but that
# does not make it good.)

# %% [markdown]
# ## 4. Simulate: does the method find what is true?
#
# Draw weights from the prior, simulate targets from them, fit, and count the share of the fit's draws below the truth.
# Over many simulations this share must be uniform. `bnn.vsbc` does it for values of the curve, here in the gap, among
# the data and outside. The line of each panel is the distribution function of the share minus the uniform one. It
# should stay near zero.

# %%
probes, PLACES = torch.tensor([[0.0], [0.7], [1.5]]), ["in the gap", "data", "outside"]
reports = {
    name: bnn.vsbc(
        model, train.x, each, probes=probes, num_simulations=SIMULATIONS, seed=0, engine=ENGINE, progress=False
    )
    for name, each in methods.items()
}
for name, report in reports.items():
    print(f"{name}: {report}\n")
    tree = report.tree.copy()
    tree["prior_sbc"] = tree["prior_sbc"].to_dataset().assign_coords(probe=[f"{name}: {place}" for place in PLACES])
    az.plot_ecdf_pit(
        tree,
        group="prior_sbc",
        sample_dims=["simulation"],
        visuals={"p_value_text": False, "ecdf_lines": {"color": BLUE}},
        figure_kwargs={"figsize": (5.6, 3.3), "layout": "constrained"},
    )
    figure = plt.gcf()
    for axis, place in zip(figure.axes, PLACES, strict=True):
        axis.set(xlabel="", ylim=(-0.55, 0.55), xticks=(0, 0.5, 1))
        axis.set_title(place, fontsize=10)
        axis.tick_params(labelsize=10)
    figure.suptitle(name, fontsize=10, x=0.01, ha="left")
    figure.axes[0].set_ylabel("its distribution\nless uniform", fontsize=10)
    figure.axes[1].set_xlabel("share of draws below the truth", fontsize=10)
    looks = [{"color": BLUE}, {"color": GREY, "linestyle": "--"}, {"color": ORANGE, "marker": "o", "linestyle": ""}]
    names = "simulations", "uniform", "strongest evidence against it"
    handles = [plt.Line2D([], [], label=label, **look) for label, look in zip(names, looks, strict=True)]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, columnspacing=1.2)
plt.show()


# %% [markdown]
# If a line rises first and then falls far below zero, the shares crowd at 0 and 1: the draws are too narrow. A line on
# one side of zero would be a bias. Dots mark the simulations with the strongest evidence against uniformity. The fit
# that was stopped early fails everywhere. The good one is worse than it looked. Among the data nothing speaks against
# it. In the gap and outside it is too narrow as well (spreads of 1.26 and 1.44, where 1 is right). One normal cannot
# represent the different curves through the same points. Held-out data cannot show this at $x = 1.5$, where there are
# none; a simulation knows its truth. It judges a method for a model, not this fit.

# %% [markdown]
# ## 5. Would another prior say something else?
#
# The prior decides whatever the data leave open. `az.psense_summary` reweights draws as if prior and likelihood were
# raised to powers close to one. It reports how much a quantity moves; above 0.05 it is called sensitive. Here the
# quantities are values of the curve. The last columns come from a new fit under the prior $N(0, 2^2)$ and show how far
# the mean moves.

# %%
def curve(posterior):
    tree = bnn.to_datatree(posterior, train, x_pred=probes, num_draws=NUM_DRAWS, prior=False)
    tree["posterior"]["curve"] = tree["predictions"]["mu"].assign_coords(pred_id=PLACES)
    return tree


wide_model = bnn.BNN(net, prior=bnn.priors.Normal(2.0), likelihood=likelihood)
wide = bnn.fit(wide_model, train, full_rank(STEPS), seed=0, progress=False)
tables = {name: az.psense_summary(curve(fits[name]), var_names=["curve"]) for name in ("good", "narrow")}
table = pd.concat(tables, axis=1)
refitted = {"N(0, 1)": good, "N(0, 4)": wide}
for name, posterior in refitted.items():
    prediction = posterior.predict(probes, num_draws=NUM_DRAWS)
    table[("refit", name)] = [
        f"{mean:.2f} ± {std:.2f}"
        for mean, std in zip(prediction.mean.flatten(), prediction.epistemic_std.flatten(), strict=True)
    ]
table

# %% [markdown]
# For the good posterior the curve depends on the prior most in the gap (0.048, just below the limit) and least among
# the data (0.018). The new fits agree. In the gap the mean moves from -0.37 to -0.69, by one and a half standard
# deviations; among the data it moves by 0.01. ArviZ calls it a "conflict" if a quantity depends on both prior and likelihood. For the narrow
# posterior nothing seems to depend on anything. Its draws are all alike, so reweighting cannot
# move them. A low sensitivity therefore means something only after the other tests. A new fit with another prior is the
# safer test.

# %% [markdown]
# ## 6. Fit again: is it the same curve?
#
# The cheapest test is another seed. `to_datatree` takes several fits as chains. R-hat then compares the distance
# between the fits with their width; 1 means that they agree. Weights have symmetries, so test the curve.

# %%
again = {f"seed {seed}": bnn.fit(model, train, full_rank(STEPS), seed=seed, progress=False) for seed in range(1, 4)}
seeds = {"seed 0": good, **again}
chains = {
    "good": curve(bnn.Mixture([*seeds.values()])),
    "narrow": curve(bnn.Mixture([narrowed(posterior) for posterior in seeds.values()])),
}
table = pd.DataFrame(
    {name: az.rhat(tree, var_names=["curve"])["curve"].values.flatten() for name, tree in chains.items()},
    index=PLACES,
)
weights_rhat = az.rhat(chains["good"], var_names=["0.weight"])["0.weight"]
print(f"largest R-hat of the first layer's weights, good: {float(weights_rhat.max()):.1f}")
table.round(2)

# %% tags=["cover"]
figure, axes = plt.subplots(1, 2, figsize=(5.6, 4.2), sharex=True, sharey=True)
rows = {f"{place}, {seed}": (i, j) for j, place in enumerate(PLACES) for i, seed in enumerate(seeds)}
for axis, (name, tree) in zip(axes, chains.items(), strict=True):
    for height, (seed, place) in enumerate(rows.values()):
        draws = tree["posterior"]["curve"].isel(chain=seed, pred_id=place)
        low, first, middle, third, high = draws.quantile([0.03, 0.25, 0.5, 0.75, 0.97]).values
        axis.hlines(height, low, high, color=GREY, linewidth=1, label="" if height else "94 % of the draws")
        axis.hlines(height, first, third, color=BLUE, linewidth=3, label="" if height else "half of them")
        axis.plot(middle, height, "o", color="white", mec=BLUE, ms=4, label="" if height else "median")
    axis.set(title=name, xlabel="value of the curve, y", yticks=range(len(rows)), yticklabels=rows)
axes[0].invert_yaxis()
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
plt.show()

# %% [markdown]
# Each row is a seed at one place; its thick part holds half of the draws. The good fits overlap
# in the gap and among the data (R-hat 1.02 in both) and differ somewhat outside (1.18). The narrow ones contradict
# each other (1.3 to 2.0): each is certain of something else. The weights have an R-hat of 2.7 although the curves
# agree, again because of the symmetries. Seeds that agree may still share a mistake, as section 4 showed.

# %% [markdown]
# ## Which test for your fit
#
# | question | ask | what it cannot see |
# |---|---|---|
# | Is anything wrong at all? | `bnn.diagnose` with held-out data | places without held-out data |
# | Are these the right weights? | `bnn.importance_weights` | that predictions may be fine all the same |
# | Which posterior predicts better? | `bnn.heldout_elpd`, `bnn.kfold`, then `bnn.compare` | widths where there are no data |
# | Is the method right for my model? | `bnn.vsbc` at probes | whether the model is right for the data |
# | Does the prior decide? | `az.psense_summary`, a second prior | anything, if the posterior is too narrow |
# | Was it chance? | several seeds as chains, R-hat of the curve | mistakes that all seeds share |
#
# ## Try it
#
# * Divide the widths by 1.5 instead of 5. Which tests still notice?
# * Multiply them by 5. What do `diagnose` and LOO say now?
# * `bnn.Ensemble` of `full_rank` in section 4: is the gap calibrated now?
