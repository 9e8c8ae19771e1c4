"""Is a method of inference calibrated for a model? Asked of data that were simulated from the model itself."""

import copy
import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from pyrobnn._core.checks import check_count
from pyrobnn._core.errors import InputError
from pyrobnn._core.random import derive
from pyrobnn._torch.inputs import X, as_inputs, shape_of
from pyrobnn.bnn import BNN
from pyrobnn.data.in_memory import Data
from pyrobnn.diagnostics.cross_validation import fit_each
from pyrobnn.inference.around import prior_posterior
from pyrobnn.nets import leftovers
from pyrobnn.posterior.base import Draws
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.posterior.posterior import Posterior

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

_FEWEST_SIMULATIONS = 20
_LEVEL = 0.05


@dataclasses.dataclass(frozen=True, eq=False)
class VsbcReport:
    """The position of the truth among the draws of each fit; str() states the conclusions.

    Attributes:
        tree: ArviZ DataTree with the shares p of draws below the truth in the group `prior_sbc`, with dimensions
            (simulation, ...), for `az.plot_ecdf_pit(tree, group="prior_sbc", sample_dims=["simulation"])`.
        table: a row for each quantity: `mean` of p (1/2 if unbiased; less if draws are too high), `spread`, the mean
            distance of p from 1/2 over that of a uniform p (1 if right; more if draws are too narrow), and p-values for
            p to be `symmetric` around 1/2 (Wilcoxon's signed ranks) and `uniform` (ArviZ).
        num_simulations: M.
        num_draws: S.
    """

    tree: "xr.DataTree"
    table: "pd.DataFrame"
    num_simulations: int
    num_draws: int

    @property
    def p_value(self) -> float:
        """The smallest p-value of the table times their number (Bonferroni): of all hypotheses together."""
        tests = self.table[["symmetric", "uniform"]]
        return min(1.0, float(tests.to_numpy().min()) * tests.size)

    @property
    def is_calibrated(self) -> bool:
        """Whether nothing speaks against calibration at the level 0.05, for all quantities together."""
        return self.p_value >= _LEVEL

    def __str__(self) -> str:
        said = "nothing speaks against calibration" if self.is_calibrated else "not calibrated"
        tests = f"p = {self.p_value:.2g} for {2 * len(self.table)} tests together, Bonferroni"
        head = f"{self.num_simulations} simulations, {self.num_draws} draws of each fit: {said} ({tests})"
        return f"{head}\n{self.table.to_string(float_format='{:.2g}'.format)}"


def vsbc(
    model: BNN,
    x: Any,
    method: Any,
    *,
    probes: Any,
    num_simulations: int = 100,
    num_draws: int = 500,
    seed: int = 0,
    device: str = "auto",
    engine: str = "auto",
    progress: bool = True,
) -> VsbcReport:
    """Check a method of inference by variational simulation-based calibration (Yao et al. 2018, algorithm 2).

    Each simulation draws the latents from the prior and targets at x from the likelihood, and fits the method to them;
    p is the share of the fit's draws below the truth, uniform if fits are exact. Compared are the means of targets or
    the probabilities of classes at the probes, and the latents of the likelihood, in the units of the model.

    Args:
        model: the model; every unknown must have a prior.
        x: inputs (N, *in) of every simulated data set.
        method: the method to check.
        probes: inputs (P, *in) at which functions are compared; a handful, inside and outside the data.
        num_simulations: number of simulations M, at least 20. A bias of half a standard deviation takes about 50.
        num_draws: draws S of each fit.
        seed: seed of the simulations, the fits and the ranks.
        device: as in `fit`.
        engine: as in `fit`.
        progress: show progress bars.

    Raises:
        InputError: too few simulations or draws, a parameter without a prior, or arguments that `fit` refuses.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [], 1), prior=bnn.priors.Normal(1.0), likelihood=bnn.likelihoods.Gaussian(1.0))
        >>> settings = {"probes": [[0.0], [1.0]], "num_simulations": 20, "num_draws": 20, "progress": False}
        >>> list(bnn.vsbc(model, [[-1.0], [0.0], [1.0]], bnn.SVI(guide="full_rank", steps=5), **settings).table.columns)
        ['mean', 'spread', 'symmetric', 'uniform']
    """
    if num_simulations < _FEWEST_SIMULATIONS:
        raise InputError(f"`num_simulations` must be at least {_FEWEST_SIMULATIONS}, got {num_simulations}.")
    check_count(num_draws, "num_draws")
    names = [name.removesuffix("_unconstrained") for name, value in model.named_parameters() if value.requires_grad]
    if names:
        said = f"A truth can be simulated only from a prior, and {', '.join(names)} would be optimised. Fix it, or"
        raise InputError(f'{said} give it a prior, as Gaussian({{"type": "half_normal", "scale": 1.0}}) for the noise.')
    inputs, places = as_inputs(x), as_inputs(probes, "probes")
    if shape_of(places[0]) != shape_of(inputs[0]):
        raise InputError(f"`probes` must have the columns of `x`, {shape_of(inputs[0])}, got {shape_of(places[0])}.")
    model = copy.deepcopy(model, leftovers(model))
    model.units = None  # the data are simulated in its units
    prior = prior_posterior(copy.deepcopy(model, leftovers(model)).eval(), inputs)
    truth = prior.draw(num_simulations, seed=derive(seed, "truth"))
    targets = prior.predict(inputs, draws=truth).sample(seed=derive(seed, "targets"))
    sets = [Data(inputs, y) for y in targets]
    fits = fit_each(model, method, sets, seed=derive(seed, "fits"), progress=progress, device=device, engine=engine)
    drawn = [_quantities(fit, places, fit.draw(num_draws)) for fit in fits]
    generator = np.random.default_rng(derive(seed, "ranks"))
    shares = {}
    for name, known in _quantities(prior, places, truth).items():
        pairs = zip(drawn, known, strict=True)
        shares[name] = np.stack([_share_below(each[name], at, generator) for each, at in pairs])
    return _report(shares, num_draws)


def _quantities(posterior: Posterior | Mixture, probes: X, draws: Draws) -> dict[str, np.ndarray]:
    """Return the quantities of each draw, (S, ...) by name."""
    prediction = posterior.predict(probes, draws=draws)
    values = {"probs" if prediction.is_classification else "mu": prediction.draw_means}
    values |= {name: value for name, value in draws.items() if name.startswith("likelihood.")}
    return {name: value.detach().double().cpu().numpy() for name, value in values.items()}


def _share_below(draws: np.ndarray, truth: Any, generator: np.random.Generator) -> Any:
    """Return the rank of the truth (...) among S draws (S, ...), from 0 to 1, with ties broken at random."""
    below, equal = (draws < truth).sum(0), (draws == truth).sum(0)
    return (below + generator.uniform(size=below.shape) * (equal + 1)) / (len(draws) + 1)


def _report(shares: dict[str, np.ndarray], num_draws: int) -> VsbcReport:
    """Return the report on the ranks of truths, from 0 to 1, (simulations, ...) by name."""
    import arviz as az
    import pandas as pd
    from scipy.stats import wilcoxon

    named = {"mu": ["probe", "target"], "probs": ["probe", "class"]}
    dims = {name: named[name][: values.ndim - 1] for name, values in shares.items() if name in named}
    tree = az.from_dict({"prior_sbc": shares}, dims=dims, sample_dims=["simulation"])
    uniform = tree["prior_sbc"].to_dataset().azstats.uniformity_test(dim="simulation")[0]
    rows = {}
    for name, values in shares.items():
        for place in np.ndindex(*values.shape[1:]):
            cell = values[(slice(None), *place)]
            rows[name + (str(list(place)) if place else "")] = {
                "mean": cell.mean(),
                "spread": 4 * np.abs(cell - 0.5).mean(),
                "symmetric": float(wilcoxon(cell - 0.5).pvalue),
                "uniform": float(uniform[name].values[place]),
            }
    return VsbcReport(tree, pd.DataFrame.from_dict(rows, orient="index"), len(next(iter(shares.values()))), num_draws)
