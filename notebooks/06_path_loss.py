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
# # Where the error is large the variance should be large. Why is it not?
#
# A transmitter stands among buildings, and somebody measures the received power at many places. A Bayesian network
# learns the map of this power. Then one draws two maps side by side, the error $|y - \hat y|$ and the predicted
# standard deviation, and hopes that they look alike. Often they do not. This notebook takes the reasons apart, one at a
# time. They are the noise model, the approximation of the posterior, what the model cannot know, and the randomness of
# the error itself. Measured data come at the end.
#
# It takes two to seven minutes on two cores.
#
# ![Three methods on a curve with a gap: which of them are less sure inside the gap](attachment:cover.png)

# %%
import os

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pyro.distributions as dist
import torch
from matplotlib.patches import Patch, Rectangle
from scipy.stats import spearmanr
from torch.nn.functional import softplus

import pyrobnn as bnn

plt.style.use("pyrobnn.plots.style")  # letters that a phone shows, and the colours of bnn.plots
BLUE, ORANGE, GREY, LIGHT_BLUE, INK, PALE = (f"C{place}" for place in range(6))
FAST = os.environ.get("PYROBNN_NB_FAST") == "1"  # a few steps only, to check that everything runs
STEPS, POINT_STEPS, MEMBERS, CHAIN, DEPTH, NUM_DRAWS = (20, 20, 2, 4, 2, 20) if FAST else (8000, 3000, 5, 100, 7, 200)


def svi(guide, steps, **settings):
    return bnn.SVI(guide=guide, steps=steps, lr=0.01, schedule="cosine_annealing_lr", **settings)


METHODS = {
    "mean-field": svi("mean_field", STEPS),
    "ensemble": bnn.Ensemble(svi("map", POINT_STEPS), members=MEMBERS),
    "NUTS": bnn.NUTS(num_draws=CHAIN, warmup=CHAIN, num_chains=2, max_tree_depth=DEPTH, init="net"),
}

# %% [markdown]
# ## First by hand
#
# *Bayes by Backprop* (Blundell et al. 2015) draws $w = \mu + \sigma\varepsilon$ with $\sigma = \log(1 + e^\rho)$ and
# descends
#
# $$f(w, \mu, \rho) = \log q(w \mid \mu, \rho) - \log p(w)\, p(D \mid w).$$
#
# The paper writes the gradients out:
#
# $$d_\mu = \frac{\partial f}{\partial w} + \frac{\partial f}{\partial \mu}, \qquad
# d_\rho = \frac{\partial f}{\partial w}\, \frac{\varepsilon}{1 + e^{-\rho}} + \frac{\partial f}{\partial \rho}.$$
#
# For one weight, $y = w x$ with noise 1 and the prior $N(0, 1)$, each term is one line of algebra. Automatic
# differentiation should agree to the last digits.

# %%
x, y = torch.tensor([0.5, -1.0, 2.0]).double(), torch.tensor([1.0, -1.5, 2.5]).double()
mu, rho, noise = (torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in (0.3, -1.0, 0.7))
sigma = softplus(rho)
w = mu + sigma * noise
f = dist.Normal(mu, sigma).log_prob(w) - dist.Normal(0, 1).log_prob(w) - dist.Normal(w * x, 1).log_prob(y).sum()
by_autograd = torch.autograd.grad(f, (mu, rho))

slope = 1 / (1 + torch.exp(-rho))  # d sigma / d rho
df_dw = -noise / sigma + w - ((y - w * x) * x).sum()
d_mu = df_dw + noise / sigma
d_rho = df_dw * noise * slope + (noise**2 - 1) / sigma * slope
for name, hand, auto in zip(("d_mu ", "d_rho"), (d_mu, d_rho), by_autograd, strict=True):
    print(f"{name} by hand {hand.item():.12f}, autograd {auto.item():.12f}")

# %% [markdown]
# ## The question in one dimension
#
# The data are points of $y = -x^4 + 3x^2 + 1$ with known noise 0.5, and none between −0.8 and 0.8. Three methods
# approximate the same posterior of the same ten tanh units: mean-field, an ensemble of five point estimates, and NUTS,
# the reference. The dark bands are ±2 standard deviations of the curve; the light ones include the noise.

# %% tags=["cover"]
everywhere = bnn.datasets.quartic()
toy = everywhere[everywhere.x[:, 0].abs() > 0.8]
x_toy = torch.linspace(-2.3, 2.3, 185)[:, None]
truth = bnn.datasets.quartic_curve(x_toy)[:, 0]
toy_model = bnn.BNN(
    bnn.MLP(1, [10], 1, activation="tanh"),
    prior=bnn.priors.Normal(1.0),
    likelihood=bnn.likelihoods.Gaussian(scale=0.5),
)
gap = x_toy[:, 0].abs() < 0.8
seen = ~gap & (x_toy[:, 0].abs() <= 2)
figure, axes = plt.subplots(1, 3, figsize=(5.6, 3.6), sharey=True)
rows = {}
for axis, (name, method) in zip(axes, METHODS.items(), strict=True):
    fitted = bnn.fit(toy_model, toy, method, seed=0, progress=False)
    view = fitted.predict(x_toy, num_draws=NUM_DRAWS)
    if name == "NUTS" and not FAST:
        print(f"NUTS: {bnn.function_rhat(fitted, x_toy)}")
    bnn.plots.fit_1d(fitted, toy, x_toy, bnn.datasets.quartic_curve, num_draws=NUM_DRAWS, ax=axis)
    axis.get_legend().remove()
    axis.set(title=name, ylim=(-6, 8), xticks=(-2, 0, 2))
    axis.label_outer()
    error = (view.mean - truth).square()
    rows[name] = {
        "RMSE among the data": error[seen].mean().sqrt(),
        "RMSE in the gap": error[gap].mean().sqrt(),
        "sd among the data": view.epistemic_std[seen].mean(),
        "sd in the gap": view.epistemic_std[gap].mean(),
    }
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
plt.show()
pd.DataFrame(rows).T.astype(float).round(2)

# %% [markdown]
# Mean-field draws a flat line across the gap. It is wrong there by 1.95 and claims a standard deviation of 0.27, *less*
# than among the data (0.30). The five members of the ensemble all make the same mistake. NUTS has the same network,
# prior and data. Its band opens to 0.51 in the gap, 2.5 times as wide as among the data, and its mean is better. So
# here the approximation is to blame. A guide with independent weights cannot represent several curves that all fit the
# data. It settles for one.
#
# There is a second cause. The error of NUTS in the gap, 1.13, is still twice its standard deviation. Under the prior
# $N(0, 1)$ with ten units, a flat bridge is likelier than a deep dip. No inference method can repair that.

# %% [markdown]
# ## The simulator
#
# The field has 100 m × 100 m, an anchor and four buildings. The power received at the place $p$ is, in dBm,
#
# $$y = P_T - P_0 - 10\,\lambda \log_{10} \frac{d(p)}{d_0} - \sum_{j \text{ crossed}} \phi_j + \text{noise},$$
#
# where $d$ is the distance to the anchor and $\lambda = 2$. The straight line to the anchor loses $\phi_j$, between 8
# and 15 dB, in each building that it crosses. The noise has a standard deviation of 1 dB where the anchor is in view.
# Behind buildings it has 4 dB, since power arrives by many weak paths. The data are 300 measurements, none inside
# buildings and none in two *blind* regions. The region on the right covers nearly all of a building's shadow. The one
# at the top left is open ground. In the maps the triangle is the anchor, hatched boxes are buildings, dashed ones blind
# regions, and dots measurements.

# %%
SIDE, ANCHOR, EXPONENT, POWER = 100.0, torch.tensor([18.0, 45.0]), 2.0, -30.0
# left, bottom, right, top
BUILDINGS = torch.tensor([[30.0, 18, 46, 32], [34, 60, 44, 84], [58, 40, 68, 56], [72, 72, 90, 80]])
LOSS = torch.tensor([10.0, 12, 15, 8])
BLIND = torch.tensor([[69.0, 30, 98, 62], [2, 68, 28, 98]])


def inside(p, boxes):
    return ((p[:, None] > boxes[:, :2]) & (p[:, None] < boxes[:, 2:])).all(-1).any(-1)


def crossed(p):
    """Whether the line from the anchor to each place meets each building."""
    way = p - ANCHOR
    way = torch.where(way.abs() < 1e-6, 1e-6, way)[:, None]
    ends = (BUILDINGS[:, :2] - ANCHOR) / way, (BUILDINGS[:, 2:] - ANCHOR) / way
    enter, leave = torch.minimum(*ends).amax(-1), torch.maximum(*ends).amin(-1)
    return (enter < leave) & (leave > 0) & (enter < 1)


def power(p):
    return POWER - 10 * EXPONENT * (p - ANCHOR).norm(dim=-1).clamp_min(1).log10() - crossed(p).float() @ LOSS


def noise_sd(p):
    return torch.where(crossed(p).any(-1), 4.0, 1.0)


def measure(p, seed):
    return power(p) + noise_sd(p) * torch.randn(len(p), generator=torch.Generator().manual_seed(seed))


p = SIDE * torch.rand(2000, 2, generator=torch.Generator().manual_seed(0))
p = p[~inside(p, BUILDINGS) & ~inside(p, BLIND)][:300]
data = bnn.Data(p, measure(p, seed=1), standardize=True)
ticks = torch.linspace(1, 99, 50)
grid = torch.stack(torch.meshgrid(ticks, ticks, indexing="xy"), -1).reshape(-1, 2)
outdoors = ~inside(grid, BUILDINGS)
places = grid[outdoors]
observed = measure(places, seed=2)
blind = inside(places, BLIND)


def draw_map(axis, values, title, *, limits=(0, 12), cmap="Blues"):
    image = np.full(len(grid), np.nan)
    image[outdoors] = values
    shown = axis.imshow(image.reshape(50, 50), origin="lower", extent=(0, SIDE, 0, SIDE), clim=limits, cmap=cmap)
    for left, bottom, right, top in BUILDINGS.tolist():
        size = right - left, top - bottom
        axis.add_patch(Rectangle((left, bottom), *size, facecolor="white", edgecolor=INK, hatch="////", linewidth=0.8))
    for left, bottom, right, top in BLIND.tolist():
        axis.add_patch(Rectangle((left, bottom), right - left, top - bottom, fill=False, edgecolor=INK, linestyle="--"))
    axis.plot(*ANCHOR, "^", color=INK, markeredgecolor="white", markersize=6)
    axis.spines[:].set_visible(False)
    axis.set(title=title, xticks=(), yticks=())
    return shown


KEY = [
    plt.Line2D([], [], color=INK, marker="^", markersize=6, linestyle="", label="anchor"),
    Patch(facecolor="white", edgecolor=INK, hatch="////", label="building"),
    Patch(fill=False, edgecolor=INK, linestyle="--", label="blind region"),
]


figure, axes = plt.subplots(1, 2, figsize=(5.6, 4.2))
shown = draw_map(axes[0], power(places), "power without noise", limits=(-95, -45), cmap="cividis")
axes[0].plot(*data.x.T, ".", color="white", markeredgecolor=INK, markeredgewidth=0.4, markersize=4)
figure.colorbar(shown, ax=axes[0], label="dBm", location="bottom")
figure.colorbar(draw_map(axes[1], noise_sd(places), "sd of the noise"), ax=axes[1], label="dB", location="bottom")
for axis in axes:
    axis.set(xticks=(0, 50, 100), yticks=(0, 50, 100), xlabel="m")
axes[0].set_ylabel("m")
figure.legend(handles=KEY, loc="outside lower center", ncols=3)
plt.show()

# %% [markdown]
# The network sees the two coordinates only: no distance, no buildings. It has two layers of ten tanh units. We try
# three noise models: 2 dB everywhere, fixed; one level, inferred with the weights; and a level that depends on the
# place, a second output of the network. The posterior comes from mean-field, from the ensemble, or from NUTS. The last
# row of the table is no fit: it has the mean and standard deviation of the simulator.

# %%
NOISES = {"fixed": 2.0, "one level": {"type": "half_normal", "scale": 5.0}, "by place": "heteroscedastic"}


def make_model(noise, inputs=2, hidden=(10, 10)):
    net = bnn.MLP(inputs, hidden, 2 if noise == "heteroscedastic" else 1, activation="tanh")
    return bnn.BNN(net, prior=bnn.priors.Normal(1.0), likelihood=bnn.likelihoods.Gaussian(scale=noise))


views = {}
for noise, scale in NOISES.items():
    for name, method in METHODS.items():
        if (noise, name) == ("fixed", "NUTS"):
            continue  # to save time
        fitted = bnn.fit(make_model(scale), data, method, seed=0, progress=False)
        views[noise, name] = fitted.predict(places, num_draws=NUM_DRAWS)
        if name == "NUTS" and not FAST:
            print(f"NUTS, {noise}: {bnn.function_rhat(fitted, places)}")
views["the simulator", ""] = bnn.Prediction(dist.Normal(power(places)[None], noise_sd(places)[None]))

# %%
SHOWN = [(noise, method) for noise in ("one level", "by place") for method in ("mean-field", "NUTS")]
SHOWN.insert(3, ("by place", "ensemble"))


def parts(view):
    return {
        "error |y − ŷ|": (view.mean - observed).abs(),
        "predicted sd": view.std,
        "epistemic part": view.epistemic_std,
        "aleatoric part": view.aleatoric_std,
    }


figure, axes = plt.subplots(len(SHOWN), 4, figsize=(5.6, 8.4))
for row, key in zip(axes, SHOWN, strict=True):
    for axis, (title, values) in zip(row, parts(views[key]).items(), strict=True):
        shown = draw_map(axis, values, title if key == SHOWN[0] else "")
    row[0].set_ylabel("\n".join(key))
figure.colorbar(shown, ax=axes, label="dB", location="bottom", aspect=40, extend="max")
figure.legend(handles=KEY, loc="outside upper center", ncols=3)
plt.show()


# %% [markdown]
# The first row shows the problem. The error has a shape: the shadow in the blind region on the right, the edges of the
# other shadows, the anchor. The predicted standard deviation has no such shape. Nearly all of it is the aleatoric part,
# which is constant in this model. The epistemic part should grow in the blind regions, but it is darker among the data.
#
# The second row has the same noise model and NUTS. Now the epistemic part opens in both blind regions. In the upper one
# the errors are small all the same. That is no mistake: without measurements they could have been large. In the lower
# three rows the noise depends on the place, and the predicted standard deviation looks like the error.

# %% [markdown]
# ## The scores
#
# *AUSE* measures how well the predicted sd orders the errors. Leave out the places with the largest predicted sd, step
# by step, and follow the RMSE of the rest. The AUSE is the area between this curve and the curve of the best order
# (largest errors first). 0 is the best order. *At random* is the AUSE of a random order. *If right* is the AUSE of the
# same predictions for targets drawn from the prediction itself. *Rank correlation* compares error and predicted sd.

# %%
def scores(view, y=observed, blind=blind):
    found = bnn.score(view, y)
    curves = bnn.metrics.sparsification(view, y)
    if_right = bnn.metrics.sparsification(view, view.sample(1, seed=0)[0]).excess
    error, covered = (view.mean - y).square(), (2 * view.cdf(y) - 1).abs() <= 0.95
    row = {"RMSE": found["rmse"].value, "log score": found["log_likelihood"].value, "AUSE": found["ause"].value}
    row |= {"at random": (curves.random - curves.oracle).mean(), "if right": if_right}
    row |= {"rank correlation": spearmanr(view.std, error)[0]}
    if blind is None:
        return row | {
            "of epistemic": spearmanr(view.epistemic_std, error)[0],
            "of aleatoric": spearmanr(view.aleatoric_std, error)[0] if view.aleatoric_std.std() > 1e-3 else np.nan,
            "95 % interval": found["coverage_95"].value,
            "epistemic": view.epistemic_std.mean().item(),
            "aleatoric": view.aleatoric_std.mean().item(),
        }
    for name, part in {"seen": ~blind, "blind": blind}.items():
        row |= {
            f"RMSE, {name}": error[part].mean().sqrt().item(),
            f"epistemic, {name}": view.epistemic_std[part].mean().item(),
            f"aleatoric, {name}": view.aleatoric_std[part].mean().item(),
            f"95 % interval, {name}": covered[part].double().mean().item(),
        }
    return row


table = pd.DataFrame({key: scores(view) for key, view in views.items()}).T
table.iloc[:, :6].round(2)

# %%
table.iloc[:, 6:].round(2)

# %% [markdown]
# The causes, one by one:
#
# * **The noise.** With one level, fixed or inferred, no method orders the places well. The AUSE is 0.50 to 0.98, NUTS
#   included (0.53); a random order has about 0.7. The aleatoric part is the largest and is the same everywhere. With
#   noise by place the AUSE falls to 0.21 to 0.30, about what the simulator itself gets (0.27).
# * **Mean-field.** With one level of noise its epistemic standard deviation is 1.9 dB where there are data. In the
#   blind regions it is 1.3 dB, with errors of 10 dB. For NUTS it goes up, from 1.5 to 2.8 dB, with errors of 4.5 dB.
#   The 95 % intervals of NUTS hold 96 % of the blind targets, the intervals of mean-field 64 %. The ensemble lies
#   between (0.7 and 1.4 dB, 83 %). Mean-field also underfits, and takes the misfit for noise: it infers 5.0 dB where
#   NUTS has 3.5.
# * **Fixed noise.** 2 dB is too little behind the buildings. The 95 % intervals hold about 80 % even where there are
#   data, and the prediction does not show it.
# * **Chance.** The simulator knows everything. Still the rank correlation of its standard deviation with the error is
#   only 0.56, and its AUSE 0.27. An error is a single draw: where the standard deviation is 4 dB, a third of the errors
#   is below 1.7 dB. A map of errors is speckled; a map of standard deviations is smooth.
#
# AUSE judges the order only, and relative to the model's own errors. Mean-field with noise by place has the best AUSE
# of all, better than the simulator. Nearly all of its large errors are in one region (11.8 dB in the blind ones), and
# its standard deviation is large there. But it is not large enough: only 72 % of the blind targets lie in its 95 %
# intervals. The log score sees both, and prefers NUTS (−2.47 against −2.99).
#
# NUTS is a rough reference on this map. It has two chains of 100 draws. Their largest R-hat, printed above the maps, is
# 1.4 with one level of noise and 1.9 with noise by place. So at some places the chains still disagree. In the
# one-dimensional problem it is 1.06.

# %%
figure, (above, below) = plt.subplots(2, 1, figsize=(5.6, 7.6))
keys = [*SHOWN, ("the simulator", "")]
colors, lines = (ORANGE, "#7a4a12", "#0b2f57", "#3f86c4", "#8fc1e8", INK), ("-", "-", "-", "-", "-", ":")
for key, color, line, marker in zip(keys, colors, lines, "sPovD^", strict=True):
    view, label = views[key], ", ".join(filter(None, key))
    curves = bnn.metrics.sparsification(view, observed)
    style = {"linestyle": line, "color": color, "marker": marker, "markersize": 4}
    above.plot(1 - curves.coverage, curves.error, markevery=0.15, label=label, **style)
    error = (view.mean - observed).square()
    groups = view.std.argsort().chunk(8)
    level = [view.variance[group].mean().sqrt() for group in groups]
    below.plot(level, [error[group].mean().sqrt() for group in groups], **style)
best = bnn.metrics.sparsification(views[SHOWN[-1]], observed)
above.plot(1 - best.coverage, best.oracle, color=PALE, linewidth=4, label="by place, NUTS, best order", zorder=1)
above.set(title="sparsification", xlabel="share of places left out", ylabel="RMSE of the rest / of all")
above.set(xlim=(0, 1), ylim=(0, 2))
figure.legend(loc="outside lower center", ncols=2)
below.axline((0, 0), slope=1, color=PALE, linewidth=4, zorder=1)
below.set(title="eight groups of places by sd", xlabel="predicted sd (dB)", ylabel="RMSE (dB)")
below.set(xlim=(0, None), ylim=(0, None))
plt.show()

# %% [markdown]
# Above, the curve of mean-field with one level of noise *rises*: its most uncertain places have smaller errors
# than the rest. The lower panel answers the question better. It shows the RMSE of groups of places with similar
# standard deviations, not single errors. If the standard deviations are right, the groups lie on the diagonal. The
# groups of NUTS with noise by place do, from 1 to 8 dB. The ensemble is a little overconfident where it is most certain
# (0.7 dB, with an RMSE of 1.6). Mean-field with noise by place has a standard deviation of 8 dB in the group that
# matters, and an RMSE of 16.

# %%
bnn.plots.pit(views["by place", "NUTS"], observed, layout="column")

# %% [markdown]
# The probability integral transforms $F(y)$ of NUTS with noise by place are nearly flat: the spread is right. They lean
# a little to the left, so predictions are a little too high. The test rejects them, but it is too strict. It takes the
# 2308 places for independent, while neighbours share the error of the map.
#
# ## Why the variance does not follow the error
#
# 1. Most of the predicted standard deviation is noise, and the model keeps the noise constant. Let the noise depend on
#    the place.
# 2. The epistemic part depends on the approximation. Mean-field keeps it small between and beyond the data. With
#    ensembles it grows a little there, with NUTS it grows.
# 3. The prior may not allow for the truth. In the one-dimensional problem the dip is deeper than the prior expects, and
#    even NUTS is overconfident in the gap. On the map this cause is small: the intervals of NUTS are right in the blind
#    regions.
# 4. An error is one draw from the distribution that the standard deviation describes. Compare groups of places, not
#    single ones.
#
# On this map the first cause counts most for the order of places, the second for the intervals in the blind regions.
# One caution: the aleatoric part in a blind region is not measured. It is extrapolated from the noise around the
# region. Here the extrapolation is right in direction, since four measurements lie at the edges of that shadow.

# %% [markdown]
# ## Measured data
#
# Oliveira et al. (2023) measured the power that a LoRa gateway received on a campus. Of their five runs, two moved
# along streets, on foot and by car; three stood at one place. The network sees position and distance. Each of the two
# moving runs is left out in turn. (A single place has only one uncertainty, so no order.)

# %%
lora_fits = {"mean-field": svi("mean_field", POINT_STEPS, batch_size=256)}
lora_fits["ensemble"] = bnn.Ensemble(svi("map", POINT_STEPS, batch_size=256), members=MEMBERS)
rows, lora_views = {}, {}
if next(entry for entry in bnn.datasets.info() if entry.name == "lora-path-loss").available:
    lora = bnn.datasets.load("lora-path-loss")
    for split, run in enumerate(("on foot", "by car")):
        train, test = lora.split(split)
        for noise in ("one level", "by place"):
            for name, method in lora_fits.items():
                fitted = bnn.fit(make_model(NOISES[noise], 3, (20,)), train, method, seed=0, progress=False)
                view = fitted.predict(test.x, num_draws=NUM_DRAWS)
                rows[run, noise, name] = scores(view, test.y, blind=None)
                lora_views[run, noise, name] = view, test
else:
    print("The LoRa measurements are not on this machine; bnn.datasets.load says where they belong.")
pd.DataFrame(rows).T.round(2)

# %%
if lora_views:
    figure, axes = plt.subplots(1, 2, figsize=(5.6, 3.8), sharey=True)
    for axis, run in zip(axes, ("on foot", "by car"), strict=True):
        keys = [key for key in lora_views if key[0] == run]
        for key, color, line in zip(keys, (ORANGE, ORANGE, BLUE, BLUE), ("-", "--", "-", "--"), strict=True):
            curves = bnn.metrics.sparsification(lora_views[key][0], lora_views[key][1].y)
            axis.plot(1 - curves.coverage, curves.error, line, color=color, label=", ".join(key[1:]))
        axis.axhline(1, color=INK, linewidth=0.8, linestyle=":")
        axis.set(title=f"tested on the run {run}", xlabel="share left out", xlim=(0, 1), ylim=(0, 1.7))
    axes[0].set_ylabel("RMSE of the rest / of all")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    plt.show()

# %% [markdown]
# Noise by place gives the better order on both runs. The AUSE is 0.37 and 0.39 on foot against 0.48 and 0.72, and 0.18
# and 0.16 by car against 0.38. The aleatoric part helps. Its rank correlation with the error is 0.4 on foot and 0.7 to
# 0.8 by car. The epistemic part has only 0.2 on foot and 0.4 to 0.6 by car. Where the power varies much in the other
# runs, it is hard to predict in a new one.
#
# Both parts are too small. The RMSE is 10 to 11 dB on foot and 16 to 20 dB by car. By car the power of the whole run
# has a standard deviation of only 7.5 dB, so the predictions are off as a whole. Half of the places by car are more
# than 159 m from any of the other runs, the farthest more than 2 km. The epistemic part should show this, but is only 2
# to 4 dB. On foot half of the places are within 16 m of another run, and the RMSE is still 10 dB. Runs differ by more
# than the place, and neither part includes that. The 95 % intervals hold 59 to 89 %. By car the ensemble has the widest
# epistemic part and the best log score (−3.87); on foot it is overconfident and has the worst (−4.70). Two runs are
# few, so the order of the methods may be chance. The short intervals are not: all of them are too short on a new run.

# %% [markdown]
# ## Try it
#
# * Move a building, or give the network the distance to the anchor as a third input. Which errors go away?
# * `bnn.Ensemble(..., anchored=True)` pulls the members to different draws of the prior. Do the blind regions open?
# * `bnn.guides.Laplace(structure="full")` instead of mean-field, in one dimension and on the map.
