# /// script
# requires-python = "==3.12.*"
# dependencies = ["tyxe==0.0.2", "pyro-ppl==1.9.2", "torch==2.15.*", "numpy>=2"]
# ///
"""TyXe: VariationalBNN with its AutoNormal guide, Trace_ELBO and pyro.optim.Adam, stepped by its own `fit`.

TyXe 0.0.2 asks Pyro for a helper that later versions of Pyro no longer have; `pyro.util.deep_getattr` is put back here.
Its guide keeps the logarithm of the scale, not softplus.
"""

from collections.abc import Iterator
from functools import partial
from operator import attrgetter

import pyro
import torch
import tyxe
from torch import Tensor

from benchmarks.peers import cases
from benchmarks.peers.cases import INIT_SCALE, LEARNING_RATE, NOISE, NUM_DRAWS, Case, prediction_inputs
from benchmarks.peers.protocol import Built, serve
from benchmarks.peers.pyro_prior import ScaleMixture
from benchmarks.peers.torch_parts import Batches, Loop, make_net, set_up

pyro.util.deep_getattr = lambda module, name: attrgetter(name)(module)


def make_bnn(case: Case, device: torch.device) -> tyxe.VariationalBNN:
    """Return TyXe's network with the common prior, likelihood and starting values."""
    net = make_net(case, device)
    start = tyxe.guides.PretrainedInitializer.from_net(net)
    guide = partial(tyxe.guides.AutoNormal, init_loc_fn=start, init_scale=INIT_SCALE)
    if case.task == "regression":
        likelihood = tyxe.likelihoods.HomoskedasticGaussian(case.num_data, scale=NOISE)
    else:
        likelihood = tyxe.likelihoods.Categorical(case.num_data)
    return tyxe.VariationalBNN(net, tyxe.priors.IIDPrior(ScaleMixture()), likelihood, guide)


class Fit:
    """Epochs of TyXe's `fit`, over a loader that draws random rows."""

    def __init__(self, case: Case, device: torch.device) -> None:
        self._bnn = make_bnn(case, device)
        self._batches, self._device = Batches(case, device), device
        self._optimizer = pyro.optim.Adam({"lr": LEARNING_RATE})
        self._loss = torch.nan
        self._regression = case.task == "regression"

    def run(self, num_steps: int) -> int:
        """Fit for one epoch of that many batches."""
        loader = self._loader(num_steps)
        self._bnn.fit(loader, self._optimizer, 1, callback=self._note, closed_form_kl=False)
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        return num_steps

    def _loader(self, num_batches: int) -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(num_batches):
            x, y = self._batches.draw()
            yield x, y[:, None] if self._regression else y

    def _note(self, _bnn: object, _epoch: int, loss: float) -> None:
        self._loss = loss

    def elbo(self) -> float:
        """Return the mean over the last epoch."""
        return -self._loss

    def predict(self) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation of the targets at the inputs of the prediction case."""
        return self._bnn.predict(torch.from_numpy(prediction_inputs()).to(self._device), num_predictions=NUM_DRAWS)


def build(case: Case) -> Built:
    """Build a case."""
    device = set_up(case)
    pyro.enable_validation(is_validate=False)
    fit = Fit(case, device)
    if case.kind == "step":
        return fit
    fit.run(cases.STEPS_BEFORE_PREDICTION)
    return Loop(fit.predict, device, has_loss=False)


if __name__ == "__main__":
    serve(build, ("tyxe", "pyro-ppl", "torch", "numpy"))
