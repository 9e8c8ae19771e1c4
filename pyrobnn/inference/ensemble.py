"""Ensembles: several independent fits of one method, as an equal-weight mixture."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from pyrobnn import priors
from pyrobnn._errors import InputError
from pyrobnn._settings import setting, to_dict
from pyrobnn.bnn import BNN
from pyrobnn.inference.method import registry
from pyrobnn.inference.replicates import fit_replicates
from pyrobnn.inference.svi import SVI
from pyrobnn.inference.swag import SWAG
from pyrobnn.mixture import Mixture

_OF_A_MEMBER = ("replicate", "replicates", "rewinds")


@registry.register
@setting
class Ensemble:
    """K independent fits from random starts, side by side in one graph, and the equal-weight mixture of them.

    With `SVI(guide="map")` it is a deep ensemble (Lakshminarayanan et al. 2017), with other guides a mixture of
    variational posteriors that may cover several modes, with `SWAG()` multi-SWAG (Wilson & Izmailov 2020). Starting
    weights differ between members where the network is declared (`MLP(...)`); a `torch.nn.Module` starts from its own
    weights, so that only the guide, the noise and the mini-batches differ.

    Attributes:
        method: how each member is inferred.
        members: K.
        bootstrap: train each member on N examples drawn with replacement (Breiman 1996).
        anchored: centre each member's prior at a draw from the prior (Pearce et al. 2020), which keeps members apart
            where there are no data: for a wide linear model an ensemble of MAP members is then exact in the limit.
    """

    method: Annotated[SVI | SWAG, BeforeValidator(registry.resolve)] = SVI(guide="map")
    members: Annotated[int, Field(gt=0)] = 5
    bootstrap: bool = False
    anchored: bool = False

    def __post_init__(self) -> None:
        """Refuse an inner method that cannot run side by side."""
        inner = self.method.method if isinstance(self.method, SWAG) else self.method
        if inner.patience is not None:
            raise InputError("Ensemble: members run the same number of steps: leave `patience` out of the method.")

    @property
    def resumable(self) -> bool:
        """Whether the fit can keep checkpoints."""
        return isinstance(self.method, SVI)

    def run(self, bnn: BNN, data: Any, **arguments: Any) -> Mixture:
        """Fit the members and return their mixture; arguments are those of `fit_replicates`."""
        model = bnn.with_parts(prior=priors.Anchored(bnn.settings["prior"])) if self.anchored else bnn
        arguments |= {"replicates": self.members, "bootstrap": self.bootstrap}
        if isinstance(self.method, SWAG):
            posteriors = self.method.run_side_by_side(model, data, **arguments)
        else:
            posteriors = fit_replicates(model, self.method, data, **arguments)
        shared = {key: value for key, value in posteriors[0].info.items() if key not in _OF_A_MEMBER}
        return Mixture(posteriors, seed=arguments["seed"], info=shared | {"method": to_dict(self)})
