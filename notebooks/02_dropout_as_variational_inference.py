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
# # Dropout, read as a posterior
#
# Dropout switches units of a network off at random during training, and usually not afterwards. Read as variational
# inference it gives more. Each pattern of missing units is one network. All patterns together are a distribution over
# networks, an approximate posterior (Gal & Ghahramani 2016, *Dropout as a Bayesian approximation*; notation of
# Mateo-García 2018). So dropout can express uncertainty, and even its rate can be learned.
#
# ![The band of a network with dropout: it grows away from the data](attachment:cover.png)

# %%
import math
import os

import matplotlib.pyplot as plt
import torch

import pyrobnn as bnn

plt.style.use("pyrobnn.plots.style")  # letters that a phone shows, and the colours of bnn.plots
FAST = os.environ.get("PYROBNN_NB_FAST") == "1"  # a few steps only, to check that everything runs
STEPS, NUM_DRAWS = (20, 20) if FAST else (1500, 500)

# %% [markdown]
# ## The model
#
# The data are 32 noisy points of a sine on $[-0.5, 0.5]$. The network has two hidden layers of 50 units, and every weight
# has the prior $N(0, s^2)$ with $s = 1$.

# %%
data = bnn.datasets.sinusoid()
x_wide = torch.linspace(-1.5, 1.5, 1000)[:, None]
S = 1.0
model = bnn.BNN(
    bnn.MLP(1, [50, 50], 1),
    prior=bnn.priors.Normal(S),
    likelihood=bnn.likelihoods.Gaussian(scale=1.0),
)


# %% [markdown]
# ## From dropout to a posterior
#
# Layer $l$ multiplies its inputs by a matrix $M_l$. Dropout multiplies input $i$ by $\varepsilon_{li}$ first, which is
# 0 with probability $p_l$ and 1 otherwise. This is the same as random weights:
# $w_l = M_l \operatorname{diag}(\varepsilon_l)$ has columns that are missing at random. Their distribution is the
# approximate posterior $q(w)$; biases are not random. It has finitely many values, and $\log q(w)$ is the log
# probability of the masks. The objective has three parts,
#
# $$\text{ELBO} = E_q[\log p(D \mid w)] + E_q[\log p(w)] - E_q[\log q(w)].$$
#
# Dropout training maximises the first part. The second is an L2 penalty under the prior $N(0, s^2)$, since a weight is
# present with probability $1 - p_l$. The third is the entropy of the masks, $H(p) = -p \log p - (1 - p) \log(1 - p)$
# for each unit. It is constant as long as the rates are. So **plain dropout training with weight decay is this
# variational inference**:
#
# $$E_q[\log p(w)] = -\sum_l \frac{1 - p_l}{2 s^2} \|M_l\|^2 - \sum_l \frac{1}{2 s^2} \|b_l\|^2 - \frac{K}{2} \log 2 \pi s^2.$$

# %%
def fit(guide):
    return model.fit(data, guide=guide, steps=STEPS, lr=0.02, schedule="cosine_annealing_lr", seed=0, progress=False)


RATE = 0.1
posterior = fit(bnn.guides.Dropout(RATE))

# %% [markdown]
# The report estimates both terms from draws, without the formulas. Here are both, with standard errors.

# %%
report = bnn.elbo_report(posterior, data, num_draws=NUM_DRAWS)
guide = posterior.guide
weights = {name: value / (1 - guide.rates().get(name, 0.0)) for name, value in guide.mean().items()}
kept = {name: 1 - float(guide.rates().get(name, 0.0)) for name in weights}
l2 = sum(kept[name] / (2 * S**2) * float(value.square().sum()) for name, value in weights.items())
log_prior = -l2 - model.num_weights / 2 * math.log(2 * math.pi * S**2)
entropy = 2 * 50 * (-RATE * math.log(RATE) - (1 - RATE) * math.log(1 - RATE))

print(f"E[log p(w)]   by draws {report.log_prior},  by formula {log_prior:.2f}")
print(f"-E[log q(w)]  by draws {report.entropy},  by formula {entropy:.2f}")

# %% [markdown]
# ## Averaging over masks
#
# A draw from this posterior is one mask for all inputs, so it is one curve. The band is the spread of the curves (±2
# standard deviations). The pale band adds the noise of the targets.

# %% tags=["cover"]
bnn.plots.fit_1d(posterior, data, x_wide, truth=bnn.datasets.sinusoid_curve, num_draws=NUM_DRAWS)

# %% [markdown]
# Look at the band outside the data. It does not open with the distance. A mask changes the curve only by the units that
# it removes, and an inactive unit contributes nothing. So where the band is narrow, the remaining active units matter
# little. The rates are the same everywhere and do not depend on what the data say about a weight.
#
# ## Rescaling instead
#
# The usual prediction keeps all units and multiplies the weights by $1 - p$, the mean of $q$. It takes one pass instead
# of 500. For a linear network it is the exact average. Here it is an approximation, and it has no band.

# %%
average = posterior.predict(x_wide, num_draws=NUM_DRAWS)
rescaled = posterior.predict(x_wide, at_mean=True)
difference = (rescaled.mean - average.mean).abs()
inside = x_wide[:, 0].abs() <= 0.5
for name, where in {"inside": inside, "outside": ~inside}.items():
    spread = average.epistemic_std[where].mean()
    print(f"{name:8} mean |rescaled - average| {difference[where].mean():.2f}, spread of the curves {spread:.2f}")

# %% [markdown]
# ## Which rate?
#
# The ELBO depends on the rates, so they can be fitted with the weights. A mask of zeros and ones has no derivative.
# During training the guide uses masks that are nearly 0 or 1 (*concrete dropout*, Gal, Hron & Kendall 2017). Draws and
# the reports below use masks of exact zeros and ones.

# %%
fits = {
    "rate 0.1": posterior,
    "rate 0.3": fit(bnn.guides.Dropout(0.3)),
    "learned": fit(bnn.guides.Dropout(RATE, learned=True)),
}
for name, fitted in fits.items():
    rates = ", ".join(f"{float(rate):.3f}" for rate in fitted.guide.rates().values())
    spread = fitted.predict(x_wide, num_draws=NUM_DRAWS).epistemic_std
    print(
        f"{name:10} ELBO {bnn.elbo_report(fitted, data, num_draws=NUM_DRAWS).elbo}  rates {rates}  "
        f"spread inside {spread[inside].mean():.2f}, outside {spread[~inside].mean():.2f}"
    )

# %%
bnn.plots.fit_1d(fits["learned"], data, x_wide, truth=bnn.datasets.sinusoid_curve, num_draws=NUM_DRAWS)

# %% [markdown]
# These ELBOs may be compared with each other, since all guides are masks on the same network. The rate of 0.3 costs
# about 30 nats. The learned rates, one for each layer, end near 0.1 with an ELBO as good. Do not compare these ELBOs
# with the evidence or with the ELBO of a normal guide. Here $q$ sits on finitely many points and has no density (as for
# maximum a posteriori, which is the rate 0).
#
# The picture above has as good an ELBO as the first one. Yet on one side, where the first was uncertain, it is flat and
# certain. The objective sees the data only. The band outside follows from the units that happen to be active there.
# Notebook 01 shows the same data under a guide that learns a width for each weight.
#
# ## Try it
#
# * `Dropout(0.1, per_example=True)` draws a mask for each example in training, as dropout layers do. Is the ELBO
#   steadier?
# * `{"2.weight": bnn.guides.Dropout(0.3), "4.weight": bnn.guides.Dropout(0.05), "*": "map"}` gives each layer its rate.
# * Make the prior narrower, $s = 0.3$. What happens to the learned rates?
