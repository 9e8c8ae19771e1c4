"""The prior predictive distribution of a model: a posterior whose guide is the prior."""

import copy
from typing import Any

import torch
from pyro import poutine
from pyro.nn import PyroModule
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pyrobnn._core.modes import plain_tensors, under
from pyrobnn._core.random import seeded
from pyrobnn._torch.inputs import X, as_inputs, shape_of
from pyrobnn._torch.pyro import local_parameters
from pyrobnn.bnn import BNN
from pyrobnn.data.given import as_loader
from pyrobnn.data.in_memory import Data, Scaler
from pyrobnn.data.loader import Loader
from pyrobnn.inference.data import make_source
from pyrobnn.inference.network_checks import tried
from pyrobnn.nets import leftovers
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.prediction import Prediction


class PriorGuide(PyroModule):
    """A guide that draws every latent site of a model from its prior."""

    def __init__(self, bnn: BNN) -> None:
        with local_parameters():
            super().__init__()
            self._latents = poutine.block(bnn, hide_fn=lambda node: node["is_observed"] or site_is_subsample(node))

    def forward(self, x: X, y: Tensor) -> None:
        """Draw the sites; given targets, the model draws none."""
        self._latents(x, y)


@under(plain_tensors)
def predict_from_prior(bnn: BNN, x: Any, *, num_draws: int, seed: int) -> Prediction:
    """Predict as `Posterior.predict` does, with draws from the prior; see `BNN.sample_prior_predictive`."""
    model = copy.deepcopy(bnn, leftovers(bnn)).eval()
    given = as_loader(x)
    if isinstance(given, Data):
        source = make_source(given, model, None, seed=0)
        model.scale_targets(source.target_scale)
        prior = source.posterior(model, PriorGuide(model), source.example(model), seed=0)
        return prior.predict(given.x, num_draws=num_draws, seed=seed)
    first = next(given.one_pass(given.inputs_of)) if isinstance(given, Loader) else as_inputs(given)
    return prior_posterior(model, first).predict(given, num_draws=num_draws, seed=seed)


def prior_posterior(model: BNN, x: X) -> Posterior:
    """Return a posterior whose guide is the prior of a model, of inputs in its units."""
    example = model.cast_inputs(x[:2].clone())
    with torch.no_grad(), local_parameters(), seeded(0, "example"), poutine.block():
        y = model.likelihood(tried(model, model.initial_values, example, shape_of(x)).detach()).sample()
    units: dict[str, Any] = {"x_scaler": Scaler.identity(), "y_scaler": Scaler.identity()}
    return Posterior(model, PriorGuide(model), example=(example, y), seed=0, **units)
