# /// script
# requires-python = "==3.12.*"
# dependencies = ["pyro-ppl==1.9.2", "torch==2.15.*", "numpy>=2"]
# ///
"""Plain Pyro: sample statements, AutoDiagonalNormal, Trace_ELBO, pyro.optim.Adam, `svi.step`; validation off.

AutoDiagonalNormal, with one flat site behind the weights, was quicker than AutoNormal and than a guide written by hand
with two parameters a site, on nets of every size.
"""

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, Predictive, Trace_ELBO
from pyro.infer.autoguide import AutoDiagonalNormal, init_to_value
from pyro.nn import PyroModule
from torch import Tensor

from benchmarks.peers.cases import INIT_SCALE, LEARNING_RATE, NOISE, NUM_DRAWS, Case, layers, prediction_inputs
from benchmarks.peers.protocol import Built, serve
from benchmarks.peers.pyro_prior import ScaleMixture
from benchmarks.peers.torch_parts import (
    Batches,
    apply_layer,
    initial_parameters,
    loop_of,
    moments,
    set_up,
)


class Model(PyroModule):
    """The weights' prior, the network and the likelihood."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self._case, self._layers = case, layers(case)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """Draw the weights, return the outputs, and observe the targets of a batch."""
        f = x
        for index, layer in enumerate(self._layers):
            if layer.has_weights:
                weight = pyro.sample(f"{index}.weight", ScaleMixture().expand(layer.weight_shape).to_event())
                bias = pyro.sample(f"{index}.bias", ScaleMixture().expand((layer.outputs,)).to_event())
                f = apply_layer(layer, f, weight, bias)
            else:
                f = apply_layer(layer, f)
        regression = self._case.task == "regression"
        likelihood = dist.Normal(f[:, 0], NOISE) if regression else dist.Categorical(logits=f)
        with pyro.plate("data", self._case.num_data, subsample=x):
            pyro.sample("y", likelihood, obs=y)
        return f


def make_guide(case: Case, model: Model, device: torch.device) -> AutoDiagonalNormal:
    """Return a guide that starts where every engine starts."""
    indices = [index for index, layer in enumerate(layers(case)) if layer.has_weights]
    start = {
        f"{index}.{name}": value
        for index, pair in zip(indices, initial_parameters(case, device), strict=True)
        for name, value in zip(("weight", "bias"), pair, strict=True)
    }
    return AutoDiagonalNormal(model, init_loc_fn=init_to_value(values=start), init_scale=INIT_SCALE)


def build(case: Case) -> Built:
    """Build a case."""
    device = set_up(case)
    pyro.enable_validation(is_validate=False)
    batches, model = Batches(case, device), Model(case)
    guide = make_guide(case, model, device)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": LEARNING_RATE}), Trace_ELBO())
    inputs = torch.from_numpy(prediction_inputs()).to(device)
    predictive = Predictive(model, guide=guide, num_samples=NUM_DRAWS, return_sites=("_RETURN",))
    return loop_of(case, device, lambda: svi.step(*batches.draw()), lambda: moments(predictive(inputs)["_RETURN"]))


if __name__ == "__main__":
    serve(build, ("pyro-ppl", "torch", "numpy"))
