"""What may mend a fit, by the settings that it has: nothing that it has already, and a further value of a number."""

import dataclasses
from collections.abc import Callable, Iterable

from torch import Tensor, nn

from pyrobnn import nets
from pyrobnn._core.remedies import Remedy
from pyrobnn._core.settings import described
from pyrobnn._torch.inputs import X
from pyrobnn.guides.built import built
from pyrobnn.likelihoods.base import OPEN, as_likelihood
from pyrobnn.likelihoods.base import registry as likelihoods
from pyrobnn.posterior.mixture import Mixture, members_of
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.record import Table
from pyrobnn.priors.base import as_prior
from pyrobnn.priors.by_name import by_site

_TIMES_LONGER, _TIMES_NARROWER = 4, 3.0
_NARROWEST = 0.05
_FEW_UNITS, _UNITS = 10, 50
_FEW_WEIGHTS = 1000
_HEAVY = 2.5
"""Degrees of freedom of a Student-t with heavy tails; the variance is finite above 2."""
_OF_MODES = {"evidence_framework", "marginal_likelihood"}
_OF_DEFAULT = ("fit.type=default",)
"""Modes, with outputs of their own for the noise, make it far too small. The marginal likelihood tunes only Gaussian
noise; other noise is trained along, and networks memorise targets. The default for the likelihood does neither."""
_NUMBERS = {
    "gaussian": "scale",
    "laplace": "scale",
    "student_t": "scale",
    "log_normal": "log_scale",
    "gamma": "dispersion",
}
"""The number that may be an output of the network, by likelihood."""
STANDARDISE = Remedy(
    "standardise the data, `bnn.Data(x, y, standardize=True)`", "standardise the data", ("data.standardize=true",)
)
_FAR_FROM_UNITS = 10.0
"""Root mean square of an input from which on its units are far from those that priors of weights are for."""
OTHER_ROWS = Remedy(
    "hold out other examples, `data.split(0.25, seed=1)`, to see whether this was chance",
    "hold out other examples, to see whether this was chance",
    ("data.split=1",),
)
_SOME_SKEW = 1.0
"""Skewness from which a log-normal is tried for positive targets."""


@dataclasses.dataclass(frozen=True, eq=False)
class Fitted:
    """A fit and its targets, as remedies look at them.

    Attributes:
        posterior: the fit.
        y: its training targets, where they matter.
        x: its training inputs, likewise.
    """

    posterior: Posterior | Mixture
    y: Tensor | None = None
    x: X | None = None

    @property
    def methods(self) -> list[Table]:
        """The tables of the method and those inside it."""
        return members_of(self.posterior)[0].record.methods

    @property
    def types(self) -> set[str]:
        """The names of the methods."""
        return {str(table.get("type")) for table in [*self.methods, *self.posterior.record.methods]}

    @property
    def has_chains(self) -> bool:
        """Whether the fit holds draws of Markov chains."""
        return built(members_of(self.posterior)[0].guide).chains() is not None

    @property
    def takes_evidence(self) -> bool:
        """Whether the marginal likelihood takes the prior, which must be normal, and has not been tried."""
        bnn = self.posterior.bnn
        priors = by_site(bnn.settings["prior"], bnn.site_names).values()
        return not self.types & _OF_MODES and all(as_prior(prior).is_normal for prior in priors)

    @property
    def is_linear(self) -> bool:
        """Whether the network is a linear layer."""
        net = self.posterior.bnn.settings["net"]
        return isinstance(net, nn.Linear) or (isinstance(net, nets.MLP) and len(net.hidden) == 0)

    @property
    def section(self) -> str:
        """The section of a spec that has the settings of the innermost method, such as SVI in an ensemble."""
        return ".".join(["fit", *["method"] * (len(self.posterior.record.methods) - 1)])

    @property
    def likelihood(self) -> str:
        """The type of the likelihood; empty for one that is no setting."""
        return str(self.table("likelihood").get("type", ""))

    @property
    def of_other_noise(self) -> tuple[str, ...]:
        """The changes to the method that noise other than Gaussian needs; none where it measures such noise."""
        return _OF_DEFAULT if "marginal_likelihood" in self.types else ()

    def table(self, part: str) -> Table:
        """Return the settings of a part; an empty table for one that is no setting."""
        told = described(self.posterior.bnn.settings[part])
        return told if isinstance(told, dict) else {}

    @property
    def noise(self) -> str | None:
        """How the noise around real targets is given: "known" where somebody gave its number."""
        noise = as_likelihood(self.posterior.bnn.settings["likelihood"]).noise
        return "tuned" if noise == "known" and "scale" in (self.posterior.record.measured or ()) else noise

    @property
    def lengths(self) -> dict[str, int]:
        """The lengths in steps or epochs that were given for the fit; none of one whose chains only start at it.

        Nor are lengths that defaults or rows held out chose, or those of the rounds of `MarginalLikelihood`, which have
        a length whether somebody gave it or not.
        """
        record = self.posterior.record
        is_chosen = record.chose_length or record.automatic is not None
        is_other = is_chosen or self.has_chains or "marginal_likelihood" in self.types
        svi = {} if is_other else next((table for table in self.methods if "max_steps" in table), {})
        return {name: svi[name] for name in ("steps", "epochs") if svi.get(name)}


Try = Callable[[Fitted], Remedy | None]
"""A remedy of a fit; None where the fit has it already, or cannot take it."""


def open_to(fit: Fitted, tries: Iterable[Try]) -> tuple[Remedy, ...]:
    """Return the remedies that a fit has not had yet."""
    return tuple(remedy for remedy in (one(fit) for one in tries) if remedy is not None)


def longer(fit: Fitted) -> Remedy | None:
    """Return a longer training, of a fit of given length."""
    more = [f"{name}={_TIMES_LONGER * value}" for name, value in fit.lengths.items()]
    if not more:
        return None
    given = " and ".join(f"`{name}`" for name in fit.lengths)
    shown = ", ".join(f"`{one}`" for one in more)
    return Remedy(
        f"train longer, {shown}, or leave out {given}", "train longer", tuple(f"{fit.section}.{one}" for one in more)
    )


def narrower(fit: Fitted) -> Remedy | None:
    """Return a narrower prior, in place of a normal prior whose scale was given."""
    prior = fit.table("prior")
    given = prior.get("scale") if prior.get("type") == "normal" else None
    scale = float(f"{given / _TIMES_NARROWER:.1g}") if isinstance(given, float) else 0.0
    if scale < _NARROWEST:
        return None
    return Remedy(
        f"narrow the prior, `prior=bnn.priors.Normal({scale:g})`", "narrow the prior", (f"prior.scale={scale:g}",)
    )


def measured_noise(fit: Fitted) -> Remedy | None:
    """Return noise that is measured, in place of a number or of noise that is trained."""
    if fit.noise == "known":
        words = "let the noise be measured: leave out its number"
        return Remedy(words, "let the noise be measured", ("likelihood.scale=tuned",))
    given = list(fit.lengths) if fit.noise in OPEN else []
    if fit.noise != "learned" and not given:
        return None
    tuned = ["scale='tuned' for the noise"] if fit.noise == "learned" else []
    words = f"measure the noise first: {', '.join([*tuned, *(f'no `{name}`' for name in given)])}"
    if not tuned:  # no option takes a length away
        more = tuple(f"{fit.section}.{name}={_TIMES_LONGER * fit.lengths[name]}" for name in given)
        return Remedy(words, "train longer, so that the noise is learned", more)
    return Remedy(words, "measure the noise first", ("likelihood.scale=tuned",))


def varying_noise(fit: Fitted) -> Remedy | None:
    """Return noise that depends on the inputs, in place of one number for all."""
    number = _NUMBERS.get(fit.likelihood)
    if number is None or fit.table("likelihood").get(number) == "heteroscedastic":
        return None
    varying = likelihoods.resolve({"type": fit.likelihood, number: "heteroscedastic"})
    words = "let the noise depend on the inputs"
    num = None if fit.y is None else varying.num_outputs(fit.y)
    return Remedy(
        f"{words}, `likelihood=bnn.likelihoods.{type(varying).__name__}('heteroscedastic')` and "
        f"{num or 'twice as many'} outputs",
        words,
        (
            f"likelihood.type={fit.likelihood}",
            f"likelihood.{number}=heteroscedastic",
            *(_OF_DEFAULT if fit.types & _OF_MODES else ()),
        ),
    )


def amounts(fit: Fitted) -> Remedy | None:
    """Return a log-normal, in place of a Gaussian of one scale for positive targets."""
    if fit.likelihood != "gaussian" or fit.noise == "heteroscedastic" or fit.y is None or not _is_positive(fit.y):
        return None
    words = "take a log-normal, whose errors are in per cent, as all targets are positive"
    return Remedy(
        f"{words}, `likelihood=bnn.likelihoods.LogNormal()`", words, ("likelihood.type=log_normal", *fit.of_other_noise)
    )


def other_noise(fit: Fitted) -> Remedy | None:
    """Return another shape than a Gaussian: log-normal for skewed amounts, or else one with heavy tails."""
    if fit.likelihood != "gaussian":
        return None
    if fit.y is not None and _is_positive(fit.y) and _skewness(fit.y) > _SOME_SKEW and (remedy := amounts(fit)):
        return remedy
    return Remedy(
        "look for outliers, and take noise with heavy tails, `likelihood=bnn.likelihoods.StudentT()`",
        "look for outliers, and take noise with heavy tails",
        ("likelihood.type=student_t", *fit.of_other_noise),
    )


def heavier_tails(fit: Fitted) -> Remedy | None:
    """Return heavier tails, in place of a Student-t of more degrees of freedom."""
    df = fit.table("likelihood").get("df")
    if fit.likelihood != "student_t" or (isinstance(df, float) and df <= _HEAVY):
        return None
    words = "let the noise have heavier tails"
    return Remedy(
        f"{words}, `likelihood=bnn.likelihoods.StudentT(df={_HEAVY:g})`", words, (f"likelihood.df={_HEAVY:g}",)
    )


def _is_positive(y: Tensor) -> bool:
    """Return whether targets are a column of positive numbers."""
    return y.ndim == 1 and bool((y > 0).all())


def _skewness(y: Tensor) -> float:
    y = y.double()
    return float(((y - y.mean()) / y.std()).pow(3).mean())


def spread_counts(fit: Fitted) -> Remedy | None:
    """Return counts that may spread more, in place of Poisson counts."""
    if fit.likelihood != "poisson":
        return None
    return Remedy(
        "take counts that may spread more, `likelihood=bnn.likelihoods.NegativeBinomial()`",
        "take counts that may spread more",
        ("likelihood.type=negative_binomial",),
    )


def other_guide(fit: Fitted) -> Remedy | None:
    """Return the mean-field guide, in place of another; Markov chains have no guide."""
    guides = [(table.get("guide") or {}).get("type") for table in fit.methods]
    if fit.has_chains or "mean_field" in guides:
        return None
    return Remedy('take another guide, `guide="mean_field"`', "take another guide", ("guide.type=mean_field",))


def ensemble(fit: Fitted) -> Remedy | None:
    """Return an ensemble, in place of a single fit."""
    if isinstance(fit.posterior, Mixture):
        return None
    return Remedy("average several networks, `bnn.Ensemble()`", "average several networks", ("fit.type=ensemble",))


def smaller(fit: Fitted) -> Remedy | None:
    """Return a small network, in place of a large one of dense layers."""
    net = fit.posterior.bnn.settings["net"]
    if not isinstance(net, nets.MLP) or len(net.hidden) == 0 or (len(net.hidden) == 1 and net.hidden[0] <= _FEW_UNITS):
        return None
    words = "take one small hidden layer"
    return Remedy(f"{words}, `bnn.MLP(..., [{_FEW_UNITS}], ...)`", words, (f"net.hidden=[{_FEW_UNITS}]",))


def larger(fit: Fitted) -> Remedy | None:
    """Return a layer of 50 units, in place of a network that is linear or has fewer."""
    net = fit.posterior.bnn.settings["net"]
    if not isinstance(net, nets.MLP) or sum(net.hidden) >= _UNITS:
        return None
    words = f"take a hidden layer of {_UNITS} units"
    return Remedy(f"{words}, `bnn.MLP(..., [{_UNITS}], ...)`", words, (f"net.hidden=[{_UNITS}]",))


def without_hidden(fit: Fitted) -> Remedy | None:
    """Return a network without hidden layers, which is a linear model, in place of one with them."""
    if fit.is_linear or not isinstance(fit.posterior.bnn.settings["net"], nets.MLP):
        return None
    words = "keep the linear model, a network without hidden layers"
    return Remedy(f"{words}, `bnn.MLP(..., [], ...)`", words, ("net.hidden=[]",))


def standardised(fit: Fitted) -> Remedy | None:
    """Return data in standard units, in place of inputs far from them."""
    if not isinstance(fit.x, Tensor) or not members_of(fit.posterior)[0].x_scaler.is_identity:
        return None
    x = fit.x.double().flatten(1)
    return STANDARDISE if float(x.square().mean(0).max()) > _FAR_FROM_UNITS**2 else None


def other_start(fit: Fitted) -> Remedy | None:
    """Return another seed, from which a network with hidden layers may end elsewhere."""
    if fit.is_linear:
        return None
    seed = fit.posterior.seed + 1
    return Remedy(f"try another start, `seed={seed}`", "try another start", (f"fit.seed={seed}",))


def other_rows(_: Fitted) -> Remedy:
    """Return other rows held out, to see whether an alarm was chance."""
    return OTHER_ROWS


def tuned_prior(fit: Fitted) -> Remedy | None:
    """Return a prior that is measured, for a fit that has not measured it."""
    is_measured = any(member.record.evidence is not None for member in members_of(fit.posterior))
    if is_measured or not fit.takes_evidence:
        return None
    return Remedy("tune the prior, `bnn.MarginalLikelihood()`", "tune the prior", ("fit.type=marginal_likelihood",))


def around_modes(fit: Fitted) -> Remedy | None:
    """Return prior and noise by the marginal likelihood, in place of bounds and dropout, for Gaussian noise."""
    if not fit.takes_evidence or fit.has_chains or fit.likelihood != "gaussian" or fit.noise == "heteroscedastic":
        return None
    words = "fit by the marginal likelihood"
    return Remedy(f"{words}, `bnn.MarginalLikelihood()`", words, ("fit.type=marginal_likelihood",))


def laplace(fit: Fitted) -> Remedy | None:
    """Return the Laplace approximation around the mode that a guide of the evidence framework was trained from."""
    if "evidence_framework" not in fit.types or fit.posterior.record.laplace is not None:
        return None
    words = "take the Laplace approximation"
    return Remedy(f'{words}, `guide="laplace"`', words, ("guide.type=laplace",))


def sampled(fit: Fitted) -> Remedy | None:
    """Return Markov chains, for few weights that were not sampled."""
    if fit.has_chains or fit.posterior.bnn.num_weights > _FEW_WEIGHTS:
        return None
    return Remedy("draw from the posterior by Markov chains, `bnn.NUTS()`", "draw by Markov chains", ("fit.type=nuts",))


OF_BAD_PREDICTIONS: tuple[Try, ...] = (standardised, measured_noise, smaller, tuned_prior, sampled)
"""What to try where a fit predicts no better than a constant, or worse than a linear model, or has memorised."""
OF_MISSED_FUNCTION: tuple[Try, ...] = (longer, laplace, around_modes, larger, sampled)
"""What to try where a fit is too smooth for its targets."""
