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
# # How sure is the network where it has no data?
#
# A neural network answers every question with the same calm voice. Ask it about an input far from anything it has seen
# and it still returns one number. A Bayesian neural network returns a distribution instead: it keeps all the weights
# that explain the data, and where these weights disagree, it does not know.
#
# This notebook fits one to 32 noisy points by *Bayes by Backprop* (Blundell et al. 2015), in the setting of Martin
# Krasser's article *Variational inference in Bayesian neural networks* (2019). It takes about a minute.
#
# ![The mean of the fit with its band: narrow at the data, wide away from them](attachment:cover.png)

# %%
import os

import torch

import pyrobnn as bnn
from pyrobnn import plots

FAST = os.environ.get("PYROBNN_NB_FAST") == "1"  # a few steps only, to check that everything runs
STEPS, NUM_DRAWS = (20, 20) if FAST else (1500, 500)

# %% [markdown]
# ## The data
#
# Thirty-two even points on $[-0.5, 0.5]$ of $y = 10 \sin(2\pi x) + \varepsilon$ with $\varepsilon \sim N(0, 1)$. The
# question is what happens between 0.5 and 1.5 on either side, where there is nothing.

# %%
data = bnn.datasets.sinusoid()
x_wide = torch.linspace(-1.5, 1.5, 1000)[:, None]
data

# %% [markdown]
# ## The model
#
# Three parts make the model: a network, a prior on its weights, a likelihood for the targets.
#
# * The network has two hidden layers of 20 units.
# * The prior says that a weight comes from a wide normal with probability $\pi$ and from a narrow one otherwise,
#   $p(w) = \pi N(w; 0, \sigma_1^2) + (1 - \pi) N(w; 0, \sigma_2^2)$. Most weights may be nearly zero, a few may be large.
#   With `learnable=True`, $\pi$, $\sigma_1$ and $\sigma_2$ are fitted together with the posterior.
# * The likelihood is normal with the noise that we know, $\sigma = 1$.

# %%
likelihood = bnn.likelihoods.Gaussian(scale=1.0)


def make_model(*, learnable):
    prior = bnn.priors.ScaleMixture(pi=0.2, sigma1=1.0, sigma2=0.1, learnable=learnable)
    return bnn.BNN(bnn.MLP(1, [20, 20], 1), prior=prior, likelihood=likelihood)


model = make_model(learnable=True)

# %% [markdown]
# ## The fit
#
# The exact posterior has no formula, so we look for the closest member of a simple family: an independent normal for
# each weight, $q(w) = N(\mu, \operatorname{softplus}(\rho)^2)$. Each $\mu$ starts at a draw with the prior's variance
# and each $\rho$ at 0. Adam then raises the evidence lower bound (ELBO) for 1500 steps over all the data at once.

# %%
guide = bnn.guides.MeanField(init_loc="prior", init_rho=0.0)
posterior = model.fit(data, guide=guide, steps=STEPS, lr=0.03, seed=0, progress=False)
plots.elbo(posterior.history)

# %% [markdown]
# ## The answer
#
# Every draw of the weights gives a curve. The line is the mean over 500 of them, the blue band their spread (±2 standard
# deviations): this is the *epistemic* uncertainty, which more data would remove. The grey band adds the noise of the
# targets, the *aleatoric* part, which no amount of data removes.

# %% tags=["cover"]
plots.fit_1d(posterior, data, x_wide, truth=bnn.datasets.sinusoid_curve, num_draws=NUM_DRAWS)


# %% [markdown]
# The mean leaves the true curve as soon as the data end; nobody told the network about sines. What matters is that the
# band opens there. One number for it is the ratio of the mean epistemic standard deviation outside the data to that
# inside. A network that is as sure far away as at home has the ratio 1.

# %%
def spread(fitted):
    std = fitted.predict(x_wide, num_draws=NUM_DRAWS).epistemic_std
    inside = x_wide[:, 0].abs() <= 0.5
    return std[inside].mean().item(), std[~inside].mean().item()


inside, outside = spread(posterior)
print(f"epistemic sd inside {inside:.2f}, outside {outside:.2f}, ratio {outside / inside:.1f}")

# %% [markdown]
# The ratio grows with the distance from the data, so it depends on how far one looks. It is also a modest number for a
# place where the network knows nothing, and the true curve does leave the band. Mean-field posteriors are known for
# this: because each weight varies on its own, they tend to understate how differently good networks can continue.

# %% [markdown]
# ## What was optimised, audited
#
# The ELBO is a lower bound on the log evidence $\log p(D)$, and it has two parts:
#
# $$\text{ELBO} = \underbrace{E_q[\log p(D \mid w)]}_{\text{fit to the data}} -
# \underbrace{\text{KL}(q \,\|\, p)}_{\text{cost of leaving the prior}}$$
#
# During the fit each step sees one noisy draw of it. `elbo_report` estimates every term afterwards from many draws, with
# standard errors, for each group of weights. Read the KL column as the number of nats that the data wrote into a layer.
# A scale mixture has no closed-form KL, hence the dashes in the last column.

# %%
print(bnn.elbo_report(posterior, data, num_draws=NUM_DRAWS))


# %% [markdown]
# ## What the prior learned
#
# The three numbers of the prior started at $\pi = 0.2$, $\sigma_1 = 1$ and $\sigma_2 = 0.1$.

# %%
def prior_parameters(fitted):
    return {name: round(getattr(fitted.bnn.prior, name).item(), 3) for name in ("pi", "sigma1", "sigma2")}


prior_parameters(posterior)

# %% [markdown]
# The narrow component widened: a prior that is itself fitted moves towards the posterior, to make the KL cheap. Many
# weights have stayed so close to their prior that the data hardly speak about them, which shows as a signal-to-noise
# ratio far below 1.

# %%
plots.weights(posterior)

# %% [markdown]
# ## Fixed or learned?
#
# Blundell et al. keep the prior fixed. With the same start, does learning it pay? The ELBO bounds the evidence of each
# model, so the two may be compared by it (with the caution that a fitted prior has used the data to choose itself).

# %%
fixed = make_model(learnable=False).fit(data, guide=guide, steps=STEPS, lr=0.03, seed=0, progress=False)
for name, fitted in {"learned": posterior, "fixed": fixed}.items():
    report = bnn.elbo_report(fitted, data, num_draws=NUM_DRAWS)
    inside, outside = spread(fitted)
    print(f"{name:8} ELBO {report.elbo}  KL {report.kl}  epistemic sd inside {inside:.2f}, outside {outside:.2f}")

# %% [markdown]
# In this run the learned prior wins by far. The fixed one expects four weights in five within 0.1 or so of zero, and 32
# points do not argue loudly enough against it: the posterior pays more KL, and the band hardly opens outside the data.
# A prior that is too tight makes a network sure of what it has never seen.

# %% [markdown]
# ## One pass instead of 500
#
# Where uncertainty is not needed, one forward pass with every weight at its posterior mean is 500 times cheaper. It is
# not the same function as the mean over draws, because the network is not linear in its weights. Among the data the two
# should be close; far away they may part.

# %%
one_pass = posterior.predict(x_wide, at_mean=True).mean
average = posterior.predict(x_wide, num_draws=NUM_DRAWS).mean
difference = (one_pass - average).abs()
near = x_wide[:, 0].abs() <= 0.5
print(f"mean |difference| inside {difference[near].mean():.2f}, outside {difference[~near].mean():.2f}")

# %% [markdown]
# ## Try it
#
# * Another seed: how much of the picture is luck?
# * `guide="AutoMultivariateNormal"` lets weights vary together. Does the band open further?
# * `bnn.likelihoods.Gaussian()` learns the noise instead of knowing it.
