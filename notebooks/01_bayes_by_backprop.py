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
# A neural network returns one number for every input, also for an input far from all training data. A Bayesian neural
# network returns a distribution. It keeps all weights that explain the data. Where these weights disagree, the
# prediction is uncertain.
#
# This notebook fits one to 32 noisy points by *Bayes by Backprop* (Blundell et al. 2015). The setting is from Martin
# Krasser's article *Variational inference in Bayesian neural networks* (2019). It takes about a minute.
#
# ![The mean of the fit with its band: narrow at the data, wide away from them](attachment:cover.png)

# %%
import os

import matplotlib.pyplot as plt
import torch

import pyrobnn as bnn

plt.style.use("pyrobnn.plots.style")  # letters that a phone shows, and the colours of bnn.plots
FAST = os.environ.get("PYROBNN_NB_FAST") == "1"  # a few steps only, to check that everything runs
STEPS, NUM_DRAWS = (20, 20) if FAST else (5000, 500)

# %% [markdown]
# ## The data
#
# The data are 32 evenly spaced points on $[-0.5, 0.5]$ of $y = 10 \sin(2\pi x) + \varepsilon$ with
# $\varepsilon \sim N(0, 1)$. The question is what the network predicts between 0.5 and 1.5 on either side, where there
# are no data.

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
# * The prior of a weight is a wide normal with probability $\pi$ and a narrow normal otherwise,
#   $p(w) = \pi N(w; 0, \sigma_1^2) + (1 - \pi) N(w; 0, \sigma_2^2)$. Most weights may be nearly zero, a few may be
#   large. With `learnable=True`, $\pi$, $\sigma_1$ and $\sigma_2$ are fitted together with the posterior.
# * The likelihood is normal with known noise, $\sigma = 1$.

# %%
likelihood = bnn.likelihoods.Gaussian(scale=1.0)


def make_model(*, learnable):
    prior = bnn.priors.ScaleMixture(pi=0.2, sigma1=1.0, sigma2=0.1, learnable=learnable)
    return bnn.BNN(bnn.MLP(1, [20, 20], 1), prior=prior, likelihood=likelihood)


model = make_model(learnable=True)

# %% [markdown]
# ## The fit
#
# The exact posterior has no formula. We look for the closest member of a simple family, an independent normal for each
# weight, $q(w) = N(\mu, \operatorname{softplus}(\rho)^2)$. Each $\mu$ starts at a draw with the prior's variance and
# each $\rho$ at -3, a standard deviation of 0.05. Adam then raises the evidence lower bound (ELBO) for 5000 steps, each over all the data.

# %%
guide = bnn.guides.MeanField(init_loc="prior", init_rho=-3.0)
posterior = model.fit(data, guide=guide, steps=STEPS, lr=0.03, seed=0, progress=False)
bnn.plots.elbo(posterior.history, layout="column")

# %% [markdown]
# ## The answer
#
# Every draw of the weights gives a curve. The line is the mean of 500 curves. The blue band is their spread (±2
# standard deviations), the *epistemic* uncertainty, which more data would reduce. The grey band adds the noise of the
# targets, the *aleatoric* uncertainty, which no amount of data removes.

# %% tags=["cover"]
bnn.plots.fit_1d(posterior, data, x_wide, truth=bnn.datasets.sinusoid_curve, num_draws=NUM_DRAWS)


# %% [markdown]
# The mean leaves the true curve where the data end, since the network knows nothing of sines. The band opens there, and
# that is the point. One number for it is the mean epistemic standard deviation outside the data, divided by the mean
# inside. A network that is as certain outside as inside has the ratio 1.

# %%
def spread(fitted):
    std = fitted.predict(x_wide, num_draws=NUM_DRAWS).epistemic_std
    inside = x_wide[:, 0].abs() <= 0.5
    return std[inside].mean().item(), std[~inside].mean().item()


inside, outside = spread(posterior)
print(f"epistemic sd inside {inside:.2f}, outside {outside:.2f}, ratio {outside / inside:.1f}")

# %% [markdown]
# The ratio grows with the distance from the data, so it depends on the range of inputs. It is small for a region
# without data, and the true curve leaves the band. Mean-field posteriors are known for this. Their weights vary
# independently, so they understate how differently good networks can continue.

# %% [markdown]
# ## The ELBO, term by term
#
# The ELBO is a lower bound on the log evidence $\log p(D)$, and it has two parts:
#
# $$\text{ELBO} = \underbrace{E_q[\log p(D \mid w)]}_{\text{fit to the data}} -
# \underbrace{\text{KL}(q \,\|\, p)}_{\text{cost of leaving the prior}}$$
#
# During the fit, each step sees one noisy draw of the ELBO. Afterwards `elbo_report` estimates every term from many
# draws, with standard errors, for each group of weights. The KL column tells how many nats a layer learned from the
# data. A scale mixture has no closed-form KL, hence the dashes in the last column.

# %%
print(bnn.elbo_report(posterior, data, num_draws=NUM_DRAWS))


# %% [markdown]
# ## The fitted prior
#
# The three numbers of the prior started at $\pi = 0.2$, $\sigma_1 = 1$ and $\sigma_2 = 0.1$.

# %%
def prior_parameters(fitted):
    return {name: round(getattr(fitted.bnn.prior, name).item(), 3) for name in ("pi", "sigma1", "sigma2")}


prior_parameters(posterior)

# %% [markdown]
# The narrow component widened: a fitted prior moves towards the posterior, which makes the KL small. Many weights
# stayed close to their prior, so the data say little about them. Their signal-to-noise ratio is far below 1.

# %%
bnn.plots.weights(posterior, layout="column")

# %% [markdown]
# ## Fixed or learned?
#
# Blundell et al. keep the prior fixed. Is a learned prior better, from the same start? The ELBO bounds the evidence of
# each model, so it can compare the two. One caution: the learned prior was chosen with the same data.

# %%
fixed = make_model(learnable=False).fit(data, guide=guide, steps=STEPS, lr=0.03, seed=0, progress=False)
for name, fitted in {"learned": posterior, "fixed": fixed}.items():
    report = bnn.elbo_report(fitted, data, num_draws=NUM_DRAWS)
    inside, outside = spread(fitted)
    print(f"{name:8} ELBO {report.elbo}  KL {report.kl}  epistemic sd inside {inside:.2f}, outside {outside:.2f}")

# %% [markdown]
# In this run the learned prior is far better. The fixed prior expects four weights in five within about 0.1 of zero,
# and 32 points are too few to overrule it. Its posterior pays more KL, and the band hardly opens outside the data. A
# prior that is too tight makes a network overconfident far from the data.

# %% [markdown]
# ## One pass instead of 500
#
# Where uncertainty is not needed, one forward pass with every weight at its posterior mean is 500 times cheaper. It is
# not the same function as the mean over draws, because the network is not linear in its weights. Near the data the two
# should be close; far away they may differ.

# %%
one_pass = posterior.predict(x_wide, at_mean=True).mean
average = posterior.predict(x_wide, num_draws=NUM_DRAWS).mean
difference = (one_pass - average).abs()
near = x_wide[:, 0].abs() <= 0.5
print(f"mean |difference| inside {difference[near].mean():.2f}, outside {difference[~near].mean():.2f}")

# %% [markdown]
# ## Try it
#
# * Use another seed. How much of the picture is chance?
# * `guide="AutoMultivariateNormal"` lets weights vary together. Does the band open further?
# * `bnn.likelihoods.Gaussian()` learns the noise.
