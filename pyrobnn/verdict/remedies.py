"""What may mend a fit, by the settings that it has: nothing that it has already, and a further value of a number."""

import dataclasses
from collections.abc import Callable, Iterable

from torch import Tensor, nn

from pyrobnn import nets
from pyrobnn._core.remedies import Remedy
from pyrobnn._core.settings import described
from pyrobnn._torch.inputs import X
from pyrobnn.guides.base import built
from pyrobnn.likelihoods.base import OPEN, as_likelihood
from pyrobnn.likelihoods.base import registry as likelihoods
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.record import Table
from pyrobnn.priors.base import as_prior
from pyrobnn.priors.given import by_site

_TIMES_LONGER = 4
_TIMES_NARROWER = 3.0
_NARROWEST = 0.05
_FEW_UNITS = 10
_ADVISED_UNITS = 50
_MOST_WEIGHTS_FOR_CHAINS = 1000
_MOST_ROWS_FOR_EVIDENCE = 2000
_USUAL_RATE = 0.01
_TIMES_FASTER = 10
_SCALED = ("gaussian", "laplace", "student_t")
_NUMBERS = dict.fromkeys(_SCALED, "scale") | {"log_normal": "log_scale", "gamma": "dispersion"}
"""The number that may be an output of the network, by likelihood."""
_FAR_FROM_UNITS = 10.0
"""Root mean square of an input from which on its units are far from those that priors of weights are for."""
_SOME_SKEW = 1.0
"""Skewness from which a log-normal is tried for positive targets."""


@dataclasses.dataclass(frozen=True, eq=False)
class Fitted:
    """A fit as remedies look at it, with its training targets and inputs where they matter."""

    posterior: Posterior | Mixture
    y: Tensor | None = None
    x: X | None = None

    @property
    def methods(self) -> list[Table]:
        """The tables of the method and those inside it."""
        return self.posterior.members[0].record.methods

    @property
    def types(self) -> set[str]:
        """The names of the methods."""
        return {str(table.get("type")) for table in [*self.methods, *self.posterior.record.methods]}

    @property
    def has_chains(self) -> bool:
        """Whether the fit holds draws of Markov chains."""
        return built(self.posterior.members[0].guide).chains() is not None

    @property
    def takes_evidence(self) -> bool:
        """Whether the evidence framework takes the prior, which must be normal, and has not been tried."""
        bnn, is_small = self.posterior.bnn, (self.posterior.record.num_data or 0) <= _MOST_ROWS_FOR_EVIDENCE
        priors = by_site(bnn.settings["prior"], bnn.site_names).values()
        is_tuned = any(member.record.evidence is not None for member in self.posterior.members)
        return is_small and not is_tuned and not self.has_chains and all(as_prior(one).is_normal for one in priors)

    @property
    def net(self) -> object:
        """The network as it was declared."""
        return self.posterior.bnn.settings["net"]

    @property
    def hidden(self) -> int | None:
        """The number of hidden units of a network of dense layers; None for another."""
        if isinstance(self.net, nn.Linear):
            return 0
        return sum(self.net.hidden) if isinstance(self.net, nets.MLP) else None

    @property
    def section(self) -> str:
        """The section of a spec that has the settings of the innermost method, such as SVI in an ensemble."""
        return ".".join(["fit", *["method"] * (len(self.posterior.record.methods) - 1)])

    @property
    def likelihood(self) -> str:
        """The type of the likelihood; empty for one that is no setting."""
        return str(self.table("likelihood").get("type", ""))

    @property
    def noise(self) -> str | None:
        """How the noise around real targets is given: "known" where somebody gave its number."""
        noise = as_likelihood(self.posterior.bnn.settings["likelihood"]).noise
        return "tuned" if noise == "known" and "scale" in (self.posterior.record.measured or ()) else noise

    @property
    def lengths(self) -> dict[str, int]:
        """The lengths in steps or epochs that somebody gave for the fit; none of one whose chains only start at it."""
        record = self.posterior.record
        is_other = self.has_chains or (record.choice is not None and record.choice.chose_length)
        svi = {} if is_other else next((table for table in self.methods if "max_steps" in table), {})
        return {name: svi[name] for name in ("steps", "epochs") if svi.get(name)}

    def table(self, part: str) -> Table:
        """Return the settings of a part; an empty table for one that is no setting."""
        told = described(self.posterior.bnn.settings[part])
        return told if isinstance(told, dict) else {}


Try = Callable[[Fitted], Remedy | None]
"""A remedy of a fit; None where the fit has it already, or cannot take it."""


def open_to(fit: Fitted, tries: Iterable[Try]) -> tuple[Remedy, ...]:
    """Return the remedies that a fit has not had yet."""
    return tuple(remedy for remedy in (one(fit) for one in tries) if remedy is not None)


def _row(words: str, call: str, setting: str, when: Callable[[Fitted], bool]) -> Try:
    """Return a remedy that fits may take: words, the call for a reader of Python, and the setting of a spec."""
    remedy = Remedy(f"{words}, `{call}`", words, (setting,))
    return lambda fit: remedy if when(fit) else None


def _has_other_guide(fit: Fitted) -> bool:
    return not fit.has_chains and all((table.get("guide") or {}).get("type") != "mean_field" for table in fit.methods)


def _is_large(fit: Fitted) -> bool:
    return isinstance(fit.net, nets.MLP) and (len(fit.net.hidden) > 1 or sum(fit.net.hidden) > _FEW_UNITS)


def _is_small(fit: Fitted) -> bool:
    return isinstance(fit.net, nets.MLP) and sum(fit.net.hidden) < _ADVISED_UNITS


def _is_unscaled(fit: Fitted) -> bool:
    if not isinstance(fit.x, Tensor) or not fit.posterior.members[0].x_scaler.is_identity:
        return False
    return float(fit.x.double().flatten(1).square().mean(0).max()) > _FAR_FROM_UNITS**2


def _left_the_mode(fit: Fitted) -> bool:
    return "evidence_framework" in fit.types and fit.posterior.record.laplace is None


def _is_sampled_soon(fit: Fitted) -> bool:
    return not fit.has_chains and fit.posterior.bnn.num_weights <= _MOST_WEIGHTS_FOR_CHAINS


other_guide = _row("take another guide", 'guide="mean_field"', "guide.type=mean_field", _has_other_guide)
ensemble = _row(
    "average several networks",
    "bnn.Ensemble()",
    "fit.type=ensemble",
    lambda fit: not isinstance(fit.posterior, Mixture),
)
smaller = _row("take one small hidden layer", "bnn.MLP(..., [10], ...)", "net.hidden=[10]", _is_large)
larger = _row("take a hidden layer of 50 units", "bnn.MLP(..., [50], ...)", "net.hidden=[50]", _is_small)
without_hidden = _row("keep the linear model", "bnn.MLP(..., [], ...)", "net.hidden=[]", lambda fit: bool(fit.hidden))
standardised = _row("standardise the data", "bnn.Data(x, y, standardize=True)", "data.standardize=true", _is_unscaled)
by_evidence = _row(
    "tune the prior", "bnn.EvidenceFramework()", "fit.type=evidence_framework", lambda fit: fit.takes_evidence
)
laplace = _row("take the Laplace approximation", 'guide="laplace"', "guide.type=laplace", _left_the_mode)
sampled = _row("draw by Markov chains", "bnn.NUTS()", "fit.type=nuts", _is_sampled_soon)
spread_counts = _row(
    "let counts spread",
    "bnn.likelihoods.NegativeBinomial()",
    "likelihood.type=negative_binomial",
    lambda fit: fit.likelihood == "poisson",
)


def longer(fit: Fitted) -> Remedy | None:
    """Return a longer training, of a fit of given length."""
    more = [f"{name}={_TIMES_LONGER * value}" for name, value in fit.lengths.items()]
    if not more:
        return None
    given, shown = (" and ".join(f"`{name}`" for name in fit.lengths), ", ".join(f"`{one}`" for one in more))
    words = f"train longer, {shown}, or leave out {given}"
    return Remedy(words, "train longer", tuple(f"{fit.section}.{one}" for one in more))


def slower(fit: Fitted) -> Remedy | None:
    """Return the usual learning rate, in place of one that is far above it."""
    rates = next((table["lr"] for table in fit.methods if table.get("lr") is not None), 0.0)
    if max(rates.values() if isinstance(rates, dict) else [rates]) < _TIMES_FASTER * _USUAL_RATE:
        return None
    setting = f"lr={_USUAL_RATE:g}"
    return Remedy(f"lower the learning rate, `{setting}`", "lower the learning rate", (f"{fit.section}.{setting}",))


def narrower(fit: Fitted) -> Remedy | None:
    """Return a narrower prior, in place of a normal prior whose scale was given."""
    prior = fit.table("prior")
    given = prior.get("scale") if prior.get("type") == "normal" else None
    scale = float(f"{given / _TIMES_NARROWER:.1g}") if isinstance(given, float) else 0.0
    if scale < _NARROWEST:
        return None
    words = "narrow the prior"
    return Remedy(f"{words}, `prior=bnn.priors.Normal({scale:g})`", words, (f"prior.scale={scale:g}",))


def measured_noise(fit: Fitted) -> Remedy | None:
    """Return noise that is measured, in place of a number or of noise that is trained."""
    if fit.noise == "known":
        words = "let the noise be measured"
        return Remedy(f"{words}: leave out its number", words, ("likelihood.scale=tuned",))
    given = list(fit.lengths) if fit.noise in OPEN else []
    if fit.noise != "learned" and not given:
        return None
    words, without = "measure the noise first", [f"no `{name}`" for name in given]
    if fit.noise == "learned":
        return Remedy(
            f"{words}: {', '.join(["scale='tuned' for the noise", *without])}", words, ("likelihood.scale=tuned",)
        )
    more = tuple(f"{fit.section}.{name}={_TIMES_LONGER * fit.lengths[name]}" for name in given)
    return Remedy(f"{words}: {', '.join(without)}", "train longer, so that the noise is learned", more)


def varying_noise(fit: Fitted) -> Remedy | None:
    """Return noise that depends on the inputs, in place of one number for all."""
    number = _NUMBERS.get(fit.likelihood)
    if number is None or fit.table("likelihood").get(number) == "heteroscedastic":
        return None
    varying = likelihoods.resolve({"type": fit.likelihood, number: "heteroscedastic"})
    words = "let the noise depend on the inputs"
    call = f"likelihood=bnn.likelihoods.{type(varying).__name__}('heteroscedastic')"
    num = "twice as many" if fit.y is None else varying.num_outputs(fit.y)
    settings = (f"likelihood.type={fit.likelihood}", f"likelihood.{number}=heteroscedastic")
    return Remedy(f"{words}, `{call}` and {num} outputs", words, settings)


def amounts(fit: Fitted) -> Remedy | None:
    """Return a log-normal, in place of a Gaussian of one scale for positive targets."""
    is_open = fit.likelihood == "gaussian" and fit.noise != "heteroscedastic"
    if not is_open or fit.y is None or fit.y.ndim != 1 or not bool((fit.y > 0).all()):
        return None
    words = "take a log-normal, whose errors are in per cent, as all targets are positive"
    return Remedy(f"{words}, `likelihood=bnn.likelihoods.LogNormal()`", words, ("likelihood.type=log_normal",))


def other_noise(fit: Fitted) -> Remedy | None:
    """Return another shape than a Gaussian: log-normal for skewed amounts, or else one with heavy tails."""
    if fit.likelihood != "gaussian":
        return None
    if fit.y is not None and (remedy := amounts(fit)) and skewness(fit.y) > _SOME_SKEW:
        return remedy
    words = "look for outliers, and take noise with heavy tails"
    return Remedy(f"{words}, `likelihood=bnn.likelihoods.StudentT()`", words, ("likelihood.type=student_t",))


def skewness(y: Tensor) -> float:
    """Return the mean cube of standardised numbers."""
    return float(((y.double() - y.double().mean()) / y.double().std()).pow(3).mean())


OF_BAD_PREDICTIONS: tuple[Try, ...] = (slower, standardised, measured_noise, smaller, by_evidence, sampled)
"""What to try where a fit predicts no better than a constant, or worse than a linear model, or has memorised."""
OF_MISSED_FUNCTION: tuple[Try, ...] = (longer, laplace, by_evidence, larger, sampled)
"""What to try where a fit is too smooth for its targets."""
