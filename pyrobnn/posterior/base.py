"""What the results of a fit, a posterior and a mixture, have in common: the record, the words, predictions, `save`."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from pyrobnn._core.errors import InputError, counted
from pyrobnn._core.modes import plain_tensors
from pyrobnn._core.settings import in_short
from pyrobnn.bnn import BNN
from pyrobnn.distributions.units import Scaler
from pyrobnn.posterior.prediction import Prediction, batch_by_batch
from pyrobnn.posterior.predictor import Predictor
from pyrobnn.posterior.record import FitRecord

Draws = Mapping[str, Tensor]
"""Values of latent sites by name; every tensor has the draws on its leading axes."""


class AbstractPosterior(ABC):
    """Base of the results of a fit, `Posterior` and `Mixture`: a model, the record of its fit, and its units."""

    bnn: BNN
    record: FitRecord
    x_scaler: Scaler
    y_scaler: Scaler

    @abstractmethod
    def _predict(self, *args: Any, **kwargs: Any) -> Prediction:
        """Predict at inputs that are in memory, as `predict`."""

    @abstractmethod
    def shares(self, num_draws: int, *, seed: int | None = None) -> list[tuple[Any, int, int]]:
        """Return each member with its number of draws and the seed of these."""

    @abstractmethod
    def num_distinct(self, num_draws: int) -> int:
        """Return how many of so many draws differ."""

    def note(self, **fields: Any) -> None:
        """Replace fields of the record."""
        self.record = dataclasses.replace(self.record, **fields)

    @property
    def _title(self) -> str:
        return type(self).__name__

    @property
    def _network(self) -> str:
        net = self.bnn.settings["net"]
        return in_short(net) if dataclasses.is_dataclass(net) else type(self.bnn.net).__name__

    def __repr__(self) -> str:
        return f"<{self._title}: {self._network}; {in_short(self.bnn.settings['likelihood'])}>"

    def __str__(self) -> str:
        settings, record = self.bnn.settings, self.record
        of_svi = [table.get("guide") for table in record.methods[-1:] if table.get("type") == "svi"]
        guide = record.laplace.setting if record.laplace is not None else of_svi[0] if of_svi else None
        methods = " of ".join(table["type"] for table in record.methods if "type" in table)
        kind = guide.get("name", guide.get("type", "by name")) if isinstance(guide, dict) else guide
        steps = "" if record.num_steps is None else f", {counted(record.num_steps, 'step')}"
        parts = {name: in_short(settings[name]).removesuffix("()") for name in ("prior", "likelihood")}
        rows = {
            "method": f"{methods} with guide {kind}" if guide else methods,
            "network": f"{self._network}; {self.bnn.num_weights:,} weights",
            **parts,
            "fitted to": "" if record.num_data is None else counted(record.num_data, "example"),
            "took": "" if record.seconds is None else f"{record.seconds:.1f} s{steps}",
        }
        return "\n".join([self._title, *(f"  {name:<10} {text}" for name, text in rows.items() if text)])

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: FBT001  # as IPython calls it
        printer.text(str(self))

    @batch_by_batch
    @plain_tensors()
    def predict(
        self,
        x: Any,
        *,
        num_draws: int = 500,
        seed: int | None = None,
        draws: Draws | None = None,
        at_mean: bool = False,
        linearized: bool | None = None,
    ) -> Prediction:
        """Predict targets at inputs x (N, *in), given in original units.

        Args:
            x: inputs with the same columns as in training, or a loader of them, whose targets are left aside.
            num_draws: number of draws S; of a mixture, at least one per member. Chains that store fewer give each
                stored draw once, and a mixture of points each point. Linearised predictions of large networks at few
                inputs draw the outputs directly: joint over these inputs, independent of those of other calls.
            seed: seed of the draws; the fit's if not given.
            draws: draws to use in place of new draws, as `draw` returns them.
            at_mean: predict with the posterior mean of the weights in one forward pass (S = 1), of each member.
            linearized: linearise the network around the posterior mean m: the outputs of a draw w are f(m) + J (w - m)
                (Immer et al. 2021). If not given, the guide decides: Laplace guides linearise.

        Raises:
            InputError: other columns than in training, draws that lack a site, or a loader that shuffles.

        Examples:
            >>> posterior = bnn.BNN(bnn.MLP(1, [10], 1)).fit(bnn.datasets.sinusoid(), steps=20, seed=0, progress=False)
            >>> prediction = posterior.predict([[0.0], [0.25], [1.5]], num_draws=200)
            >>> prediction.mean.shape, prediction.epistemic_std.shape
            (torch.Size([3]), torch.Size([3]))
        """
        options: Any = {"draws": draws, "at_mean": at_mean, "linearized": linearized}
        return self._predict(x, num_draws=num_draws, seed=seed, **options).named_as(x)

    def predictor(self, num_draws: int = 100, *, seed: int | None = None) -> Predictor:
        """Return a module that predicts with draws that stay, to deploy or to predict again and again.

        Args:
            num_draws: number of draws S; of a mixture, at least one per member.
            seed: seed of the draws; the fit's if not given.

        Raises:
            InputError: a likelihood without a known mean and variance.
        """
        shares = self.shares(self.num_distinct(num_draws), seed=seed)
        return Predictor([member.fixed_draws(count, seed=part_seed) for member, count, part_seed in shares])

    def save(self, path: str | Path, *, body: bool = True) -> Path:
        """Write it to a new file for `pyrobnn.load`; same as `pyrobnn.save(posterior, path)`.

        Examples:
            >>> posterior = bnn.BNN(bnn.MLP(1, [10], 1)).fit(bnn.datasets.sinusoid(), steps=20, seed=0, progress=False)
            >>> file = posterior.save("posterior.safetensors")
            >>> torch.equal(bnn.load(file).predict([[0.3]]).mean, posterior.predict([[0.3]]).mean)
            True
        """
        from pyrobnn.storage.save import save

        return save(self, path, body=body)  # type: ignore[arg-type]  # it is a Posterior or a Mixture


def require_posterior(given: Any) -> None:
    """Refuse what is no result of a fit, such as an estimator."""
    if not isinstance(given, AbstractPosterior):
        said = f"`posterior` must be a posterior or a mixture, got {type(given).__name__}: pass the result of `bnn.fit`"
        raise InputError(f"{said}, of a fitted estimator its `.posterior_`, of several fits `bnn.Mixture(fits)`.")
