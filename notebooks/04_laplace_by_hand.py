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
# # What does a Laplace approximation see?
#
# Find the mode of the posterior, measure the curvature there, and replace the posterior by the normal distribution with
# the same curvature. That is the whole method (MacKay 1992; Bishop, *Pattern Recognition and Machine Learning*, ch.
# 5.7). It sees one mode and its second derivatives. This notebook computes them by hand for a small network. It shows
# the predictions that follow, and what one mode misses. And it shows the evidence, a number that compares models and
# comes for free. It takes about half a minute.
#
# ![Three ways to take second derivatives of a small network: they agree in the last two layers, and differ in the first](attachment:cover.png)

# %%
import math
import os
from itertools import pairwise
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from IPython.display import Markdown
from scipy.optimize import least_squares
from torch import nn
from torch.func import functional_call, grad, hessian, jacrev

import pyrobnn as bnn

plt.style.use("pyrobnn.plots.style")  # letters that a phone shows, and the colours of bnn.plots
BLUE, ORANGE, GREY, LIGHT_BLUE, INK, PALE = (f"C{place}" for place in range(6))
FAST = os.environ.get("PYROBNN_NB_FAST") == "1"  # a few steps only, to check that everything runs
NUM_DRAWS, ROUNDS, WIDTHS = (20, 2, (1, 3)) if FAST else (500, 10, (1, 2, 3, 5, 10, 20))
torch.set_num_threads(1)  # the matrices are small


# %% [markdown]
# ## Network, data, mode
#
# The network is simple: linear, sigmoid, linear, no biases. A second input that is always 1 replaces the bias of the
# hidden units. The data are 32 points of a sine with a gap. All numbers are float64.

# %%
def make_net(*widths):
    layers = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs, bias=False, dtype=torch.float64), nn.Sigmoid()]
    return nn.Sequential(*layers[:-1])


def with_one(x):
    return torch.stack([x, torch.ones_like(x)], 1)


def make_data(x, noise, seed):
    generator = torch.Generator().manual_seed(seed)
    y = torch.sin(math.pi * x) + noise * torch.randn(len(x), generator=generator, dtype=torch.float64)
    return bnn.Data(with_one(x), y)


ALPHA, BETA = 0.25, 1 / 0.1**2
x = torch.cat([torch.linspace(-1, -0.2, 20), torch.linspace(0.5, 1, 12)]).double()
data = make_data(x, noise=0.1, seed=0)


# %% [markdown]
# With the prior $N(0, \alpha^{-1})$ on each weight and noise of precision $\beta$, minus the log posterior is, up to a
# constant,
#
# $$S(w) = \frac\beta2 \sum_n \big(f(x_n, w) - y_n\big)^2 + \frac\alpha2 \sum_i w_i^2,$$
#
# a sum of squares of the residuals times $\sqrt\beta$ and of the weights times $\sqrt\alpha$. The Levenberg-Marquardt
# method is made for such sums and finds a mode in a second or two. (`model.fit(data, guide=Laplace())` does both
# phases, the first with Adam; `around` takes a known mode.)

# %%
def named(net, w):
    shapes = {name: weight.shape for name, weight in net.named_parameters()}
    pieces = w.split([shape.numel() for shape in shapes.values()])
    return {name: piece.view(shape) for (name, shape), piece in zip(shapes.items(), pieces, strict=True)}


def find_mode(net, data, alpha, beta, start):
    def residuals(w):
        errors = functional_call(net, named(net, w), data.x)[:, 0] - data.y
        return torch.cat([math.sqrt(beta) * errors, math.sqrt(alpha) * w])

    def as_array(function):
        return lambda w: function(torch.from_numpy(w)).detach().numpy()

    found = least_squares(as_array(residuals), start, as_array(jacrev(residuals)), method="lm", max_nfev=2000)
    return torch.from_numpy(found.x)


def start(net, seed):
    size = sum(weight.numel() for weight in net.parameters())
    return 2 * torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make_model(net, alpha, beta):
    likelihood = bnn.likelihoods.Gaussian(scale=beta**-0.5)
    return bnn.BNN(net, prior=bnn.priors.Normal(alpha**-0.5), likelihood=likelihood)


def laplace(net, data, alpha, beta, w, **settings):
    guide = bnn.guides.Laplace(**settings)
    return guide.around(make_model(net, alpha, beta), data, weights=named(net, w), progress=False)


# %% [markdown]
# ## Three diagonals
#
# The normal around the mode has the precision $A = \alpha I + H$, with $H$ the second derivatives of
# $E = \frac\beta2 \sum_n (f_n - y_n)^2$. Large networks can afford its diagonal only. Three different quantities go by
# this name.
#
# **By back-propagation** (Becker & LeCun 1989; Bishop 1992). Let $a_j = \sum_i w_{ji} z_i$ be the input of unit $j$ and
# $z_j = h(a_j)$ its output.
#
# 1. Only $a_j$ depends on $w_{ji}$, and linearly:
#    $\partial^2 E / \partial w_{ji}^2 = z_i^2\; \partial^2 E / \partial a_j^2$.
# 2. One layer back, $a_j$ acts through all $a_k$ of the next, with slope $w_{kj} h'(a_j)$. The chain rule gives
#    $\partial^2 E / \partial a_j^2 = h'(a_j)^2 \sum_k \sum_l w_{kj} w_{lj}\, \partial^2 E / \partial a_k \partial a_l + h''(a_j) \sum_k w_{kj}\, \partial E / \partial a_k$.
# 3. Keep $k = l$ only. Then one number for each unit is enough:
#    $\partial^2 E / \partial a_j^2 \approx h'(a_j)^2 \sum_k w_{kj}^2\, \partial^2 E / \partial a_k^2 + h''(a_j) \sum_k w_{kj}\, \partial E / \partial a_k$.
#
# It starts at the output with $\partial E / \partial f = \beta (f - y)$ and $\partial^2 E / \partial f^2 = \beta$.

# %%
def recursion(weights, data, beta):
    """Return the diagonal for a network of linear layers with sigmoids between, layer by layer."""
    z = [data.x]
    for w in weights[:-1]:
        z.append(torch.sigmoid(z[-1] @ w.T))
    first = beta * (z[-1] @ weights[-1].T - data.y[:, None])
    second = torch.full_like(first, beta)
    diagonal = []
    for w, out in zip(reversed(weights), reversed(z), strict=True):
        diagonal.append(second.T @ out**2)
        slope = out * (1 - out)  # h' of the sigmoid below, and h'' = h' (1 - 2 h)
        first, second = first @ w, second @ w**2
        first, second = slope * first, slope**2 * second + slope * (1 - 2 * out) * first
    return torch.cat([part.flatten() for part in reversed(diagonal)])


# %% [markdown]
# **The exact diagonal** comes from automatic differentiation and includes the terms $k \neq l$. **Gauss-Newton** (GGN)
# leaves out the *residual term*, the one with $h''$. Its diagonal is $\beta \sum_n (\partial f_n / \partial w_i)^2$.
# This is the exact curvature of a network that is linear in its weights.
#
# With one hidden layer and one output there is only one $k$, so the recursion is exact. To see a difference, the next
# network has two hidden layers of three units. The noise is larger, 0.5, since the GGN leaves out the residuals.

# %%
noisy, beta = make_data(x, noise=0.5, seed=0), 1 / 0.5**2
deep = make_net(2, 3, 3, 1)
w = find_mode(deep, noisy, ALPHA, beta, start(deep, 0))


def energy(w):
    return 0.5 * beta * (functional_call(deep, named(deep, w), noisy.x)[:, 0] - noisy.y).square().sum()


jacobian = jacrev(lambda w: functional_call(deep, named(deep, w), noisy.x)[:, 0])(w)
by_hand = {
    "exact": hessian(energy)(w).diagonal(),
    "recursion": recursion(list(named(deep, w).values()), noisy, beta),
    "Gauss-Newton": beta * jacobian.square().sum(0),
}
library = {
    name: laplace(deep, noisy, ALPHA, beta, w, curvature=curvature, structure="diag").guide.spread() ** -2 - ALPHA
    for name, curvature in {"exact": "hessian", "recursion": "recursion", "Gauss-Newton": "ggn"}.items()
}
for name, values in by_hand.items():
    print(
        f"{name:13} largest relative difference to guides.Laplace {((values - library[name]) / values).abs().max():.0e}"
    )
print(f"largest gradient of the log posterior {(grad(energy)(w) + ALPHA * w).abs().max():.0e}")

# %% tags=["cover"]
MARKS = {
    "exact": {"marker": "_", "markersize": 13, "markeredgewidth": 2.2, "color": INK},
    "recursion": {"marker": "o", "markersize": 6, "markerfacecolor": "white", "color": BLUE},
    "Gauss-Newton": {"marker": "x", "markersize": 6, "color": ORANGE, "markeredgewidth": 1.8},
}
figure, (above, below) = plt.subplots(2, 1, figsize=(5.6, 5.2), sharex=True, height_ratios=(1.3, 1))
for name, style in MARKS.items():
    above.plot(by_hand[name], linestyle="", label=name, **style)
    below.plot(by_hand[name] / by_hand["exact"], linestyle="", **style)
for axis in (above, below):
    for edge in (5.5, 14.5):
        axis.axvline(edge, color=PALE, zorder=0)
above.set(yscale="log", ylabel="second derivative of E")
figure.legend(loc="outside upper center", ncols=3)
below.set(ylim=(0, 1.15), ylabel="share of the exact one", xlabel="number of the weight", xticks=range(len(w)))
for middle, label in {2.5: "first layer", 10: "second layer", 16: "last layer"}.items():
    above.annotate(label, (middle, 1.02), xycoords=("data", "axes fraction"), ha="center")
plt.show()

# %% [markdown]
# In the last two layers nothing is dropped, so the recursion is the exact diagonal. In the first layer it finds only 40
# to 65 % of the curvature. A unit there acts through the three units of the next layer. The dropped pairs $k \neq l$
# are together about as large as the squares that are kept. Half the precision means a standard deviation 1.4 times too
# wide. A deeper network drops such pairs at every layer.
#
# Gauss-Newton is close where the residuals average out. In the first layer it misses up to four tenths. Its advantage
# is that it is never negative. At a true mode the exact diagonal plus the prior's $\alpha$ is never negative either,
# but the recursion can be. So `curvature="ggn"` is the default.

# %% [markdown]
# ## Prediction along the tangent
#
# Now we use a network with five hidden units, around its mode. For predictions, its tangent replaces the network,
# $f(x, w) \approx f(x, w_\text{MAP}) + g^T (w - w_\text{MAP})$ with $g = \partial f / \partial w$. The outputs are then
# normal, like the weights. A target has the variance $\beta^{-1} + g^T A^{-1} g$, and no draws are needed.
# `bnn.functional` gives the second part; by hand it takes two lines.

# %%
net = make_net(2, 5, 1)
mode = find_mode(net, data, ALPHA, BETA, start(net, 2))
grid = torch.linspace(-1.5, 1.5, 121).double()


def gradients(at):
    return jacrev(lambda w: functional_call(net, named(net, w), with_one(at))[:, 0])(mode)


precision = ALPHA * torch.eye(len(mode)) + BETA * gradients(x).T @ gradients(x)
variance = (gradients(grid) @ torch.linalg.inv(precision) * gradients(grid)).sum(1)

tangent = bnn.functional(laplace(net, data, ALPHA, BETA, mode, structure="full"), with_one(grid))
print(f"largest relative difference of the variance {(variance / tangent.variance[:, 0] - 1).abs().max():.0e}")

figure, axis = plt.subplots()
mean = tangent.mean[:, 0]
bands = {"target, ±2 sd": (variance + 1 / BETA, PALE), "curve, ±2 sd": (variance, LIGHT_BLUE)}
for label, (part, shade) in bands.items():
    axis.fill_between(grid, mean - 2 * part.sqrt(), mean + 2 * part.sqrt(), color=shade, linewidth=0, label=label)
axis.plot(grid, mean, color=BLUE, label="at the mode")
axis.plot(grid, torch.sin(math.pi * grid), "--", color=ORANGE, label="truth")
axis.plot(x, data.y, ".", color=INK, markersize=4, label="data")
axis.set(xlabel="x", ylabel="y", xlim=(-1.5, 1.5), ylim=(-4, 4))
axis.legend(ncols=2, loc="lower left")
plt.show()

# %% [markdown]
# ## Beside the true posterior
#
# Is this right? We check it on a problem with a known answer, a network of ten tanh units with biases and priors
# $N(0, 1)$. For it, 1000 draws of four long NUTS chains are stored (notebook 03 compares other guides with them). The
# blue bands are ±2 standard deviations of the curve, without the noise. The dashed lines show the same band of NUTS.
# The upper row uses the tangent. The lower row takes the same normals and puts draws of the weights into the network
# itself (`predict(x, linearized=False)`).

# %%
generator = torch.Generator().manual_seed(0)
x_known = torch.cat([torch.linspace(-1, -0.3, 16), torch.linspace(0.3, 1, 16)])[:, None]
known = bnn.Data(
    x_known.double(), torch.sin(3 * x_known[:, 0]).add(0.1 * torch.randn(32, generator=generator)).double()
)
x_test = torch.linspace(-1.5, 1.5, 61).double()
reference = torch.tensor(np.load("../benchmarks/results/nuts/sinusoid.npz")["mean"]).double().reshape(-1, len(x_test))

tanh = nn.Sequential(nn.Linear(1, 10), nn.Tanh(), nn.Linear(10, 1)).double()
top = find_mode(tanh, known, 1.0, 100.0, start(tanh, 0) / 2)
fits = {name: laplace(tanh, known, 1.0, 100.0, top, structure=name) for name in ("diag", "kron", "full")}

figure, axes = plt.subplots(2, 3, figsize=(5.6, 4.6), sharex=True, sharey=True)
inside = x_test.abs() <= 1
bounds = [reference.mean(0) + sign * reference.std(0) for sign in (-2, 2)]
for column, (name, fitted) in zip(axes.T, fits.items(), strict=True):
    tangent = bnn.functional(fitted, x_test[:, None])
    draws = fitted.predict(x_test[:, None], num_draws=NUM_DRAWS, linearized=False).draw_means
    rows = {"tangent": (tangent.mean[:, 0], tangent.variance[:, 0].sqrt()), "sampled": (draws.mean(0), draws.std(0))}
    for axis, (how, (mean, std)) in zip(column, rows.items(), strict=True):
        axis.fill_between(x_test, mean - 2 * std, mean + 2 * std, color=LIGHT_BLUE, linewidth=0, label="Laplace")
        axis.plot(x_test, mean, color=BLUE)
        for bound, label in zip(bounds, ("NUTS", None), strict=True):
            axis.plot(x_test, bound, "--", color=ORANGE, label=label)
        axis.plot(known.x[:, 0], known.y, ".", color=INK, markersize=4, label="data")
        axis.set(ylim=(-4, 4), xlim=(-1.5, 1.5), title=f"{name}, {how}")
        print(f"{name}, {how}: sd inside {std[inside].mean():.2f}, outside {std[~inside].mean():.2f}")
gamma = 31 - fits["full"].guide.spread().square().sum()
print(f"NUTS:          sd inside {reference.std(0)[inside].mean():.2f}, outside {reference.std(0)[~inside].mean():.2f}")
print(f"directions that the data determine: {gamma:.1f} of 31")
figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
figure.supxlabel("x", fontsize=10)
figure.supylabel("y", fontsize=10)
plt.show()


# %% [markdown]
# Near the data all three tangents are about as wide as NUTS (0.06 against 0.05). Outside they differ. The band of
# `diag` does not open at all, since it takes each weight as if the others were fixed. The band of `kron` opens a
# little. The band of `full` opens more than NUTS (0.38 against 0.25), since a tangent does not saturate.
#
# The lower row is useless, near the data too, and correlations do not help. The normal is not at fault; leaving the
# tangent is. Thirty-two points determine 6 of 31 directions. Along the others the *tangent* does not move, so they keep
# the width of the prior. This is right for the tangent, but the network does move. An input weight of a unit with
# output weight 0 changes nothing, until a draw makes both large at once. Gauss-Newton curvature belongs to the
# linearised model (Immer et al. 2021), so predict with that model. `Laplace` does so by default.

# %% [markdown]
# ## Evidence
#
# The height of the mode times the volume under the normal estimates the evidence $p(D)$. This is the probability of the
# data under the model, averaged over the prior of the weights:
#
# $$\log p(D) \approx \log p(D \mid w) + \log p(w) + \tfrac D2 \log 2\pi - \tfrac12 \log\det A.$$
#
# The evidence rates models. Let $\gamma = D - \alpha \operatorname{tr} A^{-1}$ be the number of weights that the data
# determine. At the maximum in $\alpha$ and $\beta$, $\alpha = \gamma / \sum w^2$ and
# $\beta = (N - \gamma) / \sum (f_n - y_n)^2$ (MacKay 1992). The method repeats these two updates and the search for a
# mode. It uses no validation data. `bnn.tune_prior` takes such steps around one mode; `bnn.EvidenceFramework` runs the
# whole method.

# %%
def by_evidence(net, data, seed):
    w, alpha, beta = start(net, seed).numpy(), ALPHA, BETA
    for _ in range(ROUNDS):
        w = find_mode(net, data, alpha, beta, w).numpy()
        fitted = laplace(net, data, alpha, beta, torch.from_numpy(w), structure="full")
        gamma = len(w) - alpha * fitted.guide.spread().square().sum().item()
        errors = fitted.predict(data.x, at_mean=True).mean - data.y
        alpha, beta = gamma / (w**2).sum(), ((len(data) - gamma) / errors.square().sum()).item()
    return fitted, gamma


test = make_data(torch.linspace(-1, 1, 500).double(), noise=0.1, seed=1)
rows = []
for width in WIDTHS:
    candidate = make_net(2, width, 1)
    for seed in range(4):
        fitted, gamma = by_evidence(candidate, data, seed)
        scores = fitted.predict(test.x, num_draws=NUM_DRAWS).log_prob(test.y)
        noise = fitted.bnn.likelihood.scale.item()
        rows.append((width, seed, fitted.record.laplace.log_evidence, scores.mean().item(), gamma, noise))
table = pd.DataFrame(rows, columns=["units", "start", "log evidence", "test log score", "gamma", "noise"])
best = table.loc[table.groupby("units")["log evidence"].idxmax()].set_index("units").drop(columns="start")
best.round(3)

# %%
figure, axes = plt.subplots(1, 2, figsize=(5.6, 3.2))
units = {"log evidence": "nats", "test log score": "nats per point"}
for axis, (column, unit) in zip(axes, units.items(), strict=True):
    axis.plot(table["units"], table[column], "o", color=GREY, markerfacecolor="white", label="four starts")
    axis.plot(best[column], "D-", color=BLUE, markersize=5, label="start of largest evidence")
    axis.set(xscale="log", xlabel="hidden units", xticks=WIDTHS, xticklabels=WIDTHS, title=column, ylabel=unit)
    axis.minorticks_off()
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
plt.show()

# %% [markdown]
# One unit is 30 nats worse than three; two units are 6 nats worse. Their noise is too large: they explain the sine as
# noise. With three units the noise is found, 0.1. From there on the evidence is constant within a nat. The log score of
# 500 new points says nearly the same. It rises up to three units and gains a tenth from there to twenty. Evidence also
# ranks the modes of one width. Of two units, the start with the larger evidence is the better one. Of three, where
# starts differ by a nat or two, it is not. So evidence tells which networks are too small, without validation data.
#
# The evidence does not say that twenty units are too many. Weights that the data do not determine keep their prior. For
# them, the gain in $\log p(w)$ and the loss in $\log\det A$ cancel. So $\gamma$ stays at 6 or 7, with 9 weights or
# with 60. The evidence also sees one mode only. Permuting $K$ units gives $K!$ equivalent modes, for which MacKay adds
# $\log K!$. But where units are nearly unused these modes run into each other, and the term would count the same volume
# many times.

# %% [markdown]
# ## At scale
#
# A network 784-400-400-10 for MNIST has 478,410 weights. All their second derivatives are $2 \cdot 10^{11}$ numbers,
# which is too many. The diagonal has one number for each weight. `structure="kron"` has two small matrices for each
# layer, 1.3 million numbers in all. `sites="last_layer", structure="full"` has all correlations of the last 4,010
# weights, 16 million numbers; the layers before are fixed features. If the benchmark has been run, the table below
# shows their cost. It also has accuracy, log-likelihood and calibration before and after.

# %%
path = Path("../benchmarks/results/laplace-mnist.md")
Markdown(path.read_text()) if path.exists() else "no benchmarks/results/laplace-mnist.md yet"

# %% [markdown]
# ## Try it
#
# * `laplace(..., curvature="hessian", structure="full")` on the sine: where does it differ from Gauss-Newton?
# * `bnn.tune_prior(fitted, data, per="site")` tunes one precision for each layer. Does the evidence of 20 units rise?
# * `bnn.Ensemble` of Laplace approximations sees several modes. Is it closer to NUTS?
