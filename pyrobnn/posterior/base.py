"""What the results of a fit, a posterior and a mixture, have in common: their record, their words, and `save`."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from pyrobnn._core.errors import counted
from pyrobnn._core.settings import in_short, kind_of
from pyrobnn.bnn import BNN
from pyrobnn.data.in_memory import Scaler
from pyrobnn.posterior.record import FitRecord

Draws = Mapping[str, Tensor]
"""Values of latent sites by name; every tensor has the draws on its leading axes."""


class AbstractPosterior:
    """Base of the results of a fit, `Posterior` and `Mixture`: a model, the record of its fit, and its units."""

    bnn: BNN
    record: FitRecord
    x_scaler: Scaler

    def note(self, **fields: Any) -> None:
        """Replace fields of the record."""
        self.record = dataclasses.replace(self.record, **fields)

    @property
    def _title(self) -> str:
        """What it is, in a word or two."""
        return type(self).__name__

    @property
    def _network(self) -> str:
        """The network in a line: of a module, its class."""
        net = self.bnn.settings["net"]
        return in_short(net) if dataclasses.is_dataclass(net) else type(self.bnn.net).__name__

    def __repr__(self) -> str:
        return f"<{self._title}: {self._network}; {in_short(self.bnn.settings['likelihood'])}>"

    def __str__(self) -> str:
        settings, record = self.bnn.settings, self.record
        guide = record.methods[-1].get("guide") if record.methods and record.methods[-1].get("type") == "svi" else None
        if record.laplace is not None:
            guide = record.laplace.setting
        methods = " of ".join(kind_of(table) for table in record.methods if "type" in table)
        steps = "" if record.num_steps is None else f", {counted(record.num_steps, 'step')}"
        rows = {
            "method": methods + (f" with guide {kind_of(guide)}" if guide else ""),
            "network": f"{self._network}; {self.bnn.num_weights:,} weights",
            "prior": in_short(settings["prior"]).removesuffix("()"),
            "likelihood": in_short(settings["likelihood"]).removesuffix("()"),
            "fitted to": "" if record.num_data is None else counted(record.num_data, "example"),
            "took": "" if record.seconds is None else f"{record.seconds:.1f} s{steps}",
        }
        return "\n".join([self._title, *(f"  {name:<10} {text}" for name, text in rows.items() if text)])

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: FBT001  # as IPython calls it
        printer.text(str(self))

    def save(self, path: str | Path, *, body: bool = True) -> Path:
        """Write it to a new file for `pyrobnn.load`; same as `pyrobnn.save(posterior, path)`.

        Args:
            path: the new file.
            body: write the frozen parameters of the network, too.

        Examples:
            >>> posterior = bnn.BNN(bnn.MLP(1, [10], 1)).fit(bnn.datasets.sinusoid(), steps=20, seed=0, progress=False)
            >>> file = posterior.save("posterior.safetensors")
            >>> torch.equal(bnn.load(file).predict([[0.3]]).mean, posterior.predict([[0.3]]).mean)
            True
        """
        from pyrobnn.storage.save import save

        return save(self, path, body=body)  # type: ignore[arg-type]  # it is a Posterior or a Mixture
