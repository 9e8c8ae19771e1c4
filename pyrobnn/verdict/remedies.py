"""What may mend a fit, by the settings that it has: nothing that it has already, and a further value of a number."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyrobnn._core.remedies import Remedy
from pyrobnn._core.settings import described
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.posterior.record import Table
from pyrobnn.priors.base import as_prior
from pyrobnn.priors.given import by_site
from pyrobnn.verdict.evidence import Evidence
from pyrobnn.verdict.finding import WORDS

_TIMES_LONGER = 4
_TIMES_NARROWER = 3.0
_NARROWEST = 0.05
_FEW_UNITS, _ADVISED_UNITS = 10, 50
_MOST_FOR_CHAINS, _MOST_FOR_EVIDENCE = 1000, 2000  # weights, and rows
_FAST_RATE = 0.1
_SCALES = dict.fromkeys(("gaussian", "laplace", "student_t"), "scale")
_SCALES |= {"log_normal": "log_scale", "gamma": "dispersion"}
"""The number that may be an output of the network, by likelihood."""
_FAR_FROM_UNITS = 10.0  # root mean square of an input from which on its units are not those of priors of weights
_SOME_SKEW = 1.0  # from which a log-normal is tried for positive targets
_LEAST_DISPERSION = 0.5
_MOST_STEPS = 150_000


class Rule(NamedTuple):
    """The settings that a remedy changes, and whether a fit may take it; words.toml has its words.

    `python` stands in for the settings in Python, unless it is empty.
    """

    settings: tuple[str, ...] | Callable[[Evidence], tuple[str, ...]] = ()
    applies: Callable[[Evidence], bool] = lambda evidence: True
    python: str = ""


def first(evidence: Evidence, names: Iterable[str]) -> Remedy | None:
    """Return the first of some remedies, by the names of their rules, that a fit has not had yet."""
    name = next((name for name in names if RULES[name].applies(evidence)), None)
    if name is None:
        return None
    rule = RULES[name]
    settings = rule.settings(evidence) if callable(rule.settings) else rule.settings
    return Remedy(WORDS["remedies"][name], settings, rule.python)


def _setting(evidence: Evidence, name: str) -> Any:
    """Return a setting of the method or of one inside it; None where none has it."""
    tables = evidence.posterior.members[0].record.methods
    return next((table[name] for table in tables if table.get(name) is not None), None)


def _longer(evidence: Evidence) -> dict[str, int]:
    """Return four times the steps or epochs that somebody gave; nothing where chains only start at the fit."""
    choice = evidence.posterior.record.choice
    if evidence.has_chains or (choice is not None and choice.chose_length):
        return {}
    methods = evidence.posterior.members[0].record.methods
    svi = next((table for table in methods if "max_steps" in table), {})
    return {name: _TIMES_LONGER * svi[name] for name in ("steps", "epochs") if svi.get(name)}


def _more_steps(evidence: Evidence) -> tuple[str, ...]:
    most = max(_MOST_STEPS, *(2 * (member.record.num_steps or 0) for member in evidence.posterior.members))
    return _of_method(evidence, max_steps=most)


def _of_method(evidence: Evidence, **settings: float) -> tuple[str, ...]:
    """Return settings of the innermost method, such as SVI in an ensemble, as changes of a spec."""
    section = ".".join(["fit", *["method"] * (len(evidence.posterior.record.methods) - 1)])
    return tuple(f"{section}.{name}={value}" for name, value in settings.items())


def _part(evidence: Evidence, name: str) -> Table:
    """Return the settings of a part; an empty table for one that is no setting."""
    told = described(evidence.posterior.bnn.settings[name])
    return told if isinstance(told, dict) else {}


def _guide(evidence: Evidence) -> str:
    return str((_setting(evidence, "guide") or {}).get("type", ""))


def _likelihood(evidence: Evidence) -> str:
    return str(_part(evidence, "likelihood").get("type", ""))


def _noise(evidence: Evidence) -> str | None:
    """Return how the noise around real targets is given: "known" where somebody gave its number."""
    noise = evidence.likelihood.noise
    return "tuned" if noise == "known" and "scale" in (evidence.posterior.record.measured or ()) else noise


def _is_tuned_or_sampled(evidence: Evidence) -> bool:
    """Return whether a prior was tuned by evidence, or chains took the place of a fit."""
    return evidence.has_chains or any(member.record.evidence is not None for member in evidence.posterior.members)


def _takes_evidence(evidence: Evidence) -> bool:
    """Return whether the evidence framework takes the prior, which must be normal, and has not been tried."""
    bnn, num = evidence.posterior.bnn, evidence.posterior.record.num_data or 0
    priors = [as_prior(prior) for prior in by_site(bnn.settings["prior"], bnn.site_names).values()]
    return num <= _MOST_FOR_EVIDENCE and not _is_tuned_or_sampled(evidence) and all(p.is_normal for p in priors)


def _is_uncompared(evidence: Evidence) -> bool:
    """Return whether no other likelihood was compared by its evidence, which would have taken a better one."""
    records = [member.record.evidence for member in evidence.posterior.members]
    return not any(record is not None and len(record.likelihoods) > 1 for record in records)


def _targets_look_like_counts(evidence: Evidence) -> bool:
    """Return whether real targets are whole numbers from 0 on, whose spread may be that of counts."""
    y = evidence.train.y.double()
    is_whole = y.ndim == 1 and torch.equal(y, y.round()) and float(y.min()) == 0
    return evidence.likelihood.noise is not None and is_whole and float(y.var()) >= _LEAST_DISPERSION * float(y.mean())


def _classes_look_like_counts(evidence: Evidence) -> bool:
    """Return whether classes are named 0, 1, 2 and so on, and the last is at most half as frequent as another."""
    names = [*evidence.class_names]
    if len(names) <= 2 or names != [*map(str, range(len(names)))]:
        return False
    counts = evidence.train.class_counts(len(names))
    return 2 * counts[-1] <= max(counts)


def _is_unscaled(evidence: Evidence) -> bool:
    x = evidence.train.x
    if not isinstance(x, Tensor) or not evidence.posterior.members[0].x_scaler.is_identity:
        return False
    return float(x.double().flatten(1).square().mean(0).max()) > _FAR_FROM_UNITS**2


def _is_fast(evidence: Evidence) -> bool:
    rates = _setting(evidence, "lr") or 0.0
    return bool(max(rates.values() if isinstance(rates, dict) else [rates]) >= _FAST_RATE)


def _narrower(evidence: Evidence) -> float:
    prior = _part(evidence, "prior")
    given = prior.get("scale") if prior.get("type") == "normal" else None
    return float(f"{given / _TIMES_NARROWER:.1g}") if isinstance(given, float) else 0.0


def _are_amounts(evidence: Evidence) -> bool:
    """Return whether real targets are positive and skewed, around a noise that is one number."""
    y = evidence.train.y.double()
    is_one = _likelihood(evidence) == "gaussian" and _noise(evidence) != "heteroscedastic"
    is_positive = is_one and _is_uncompared(evidence) and y.ndim == 1 and bool((y > 0).all())
    return is_positive and float(((y - y.mean()) / y.std()).pow(3).mean()) > _SOME_SKEW


def _is_large(evidence: Evidence) -> bool:
    hidden = evidence.hidden or ()
    return len(hidden) > 1 or sum(hidden) > _FEW_UNITS


def _finds_nothing(evidence: Evidence) -> bool:
    """Return whether neither a small or tuned network nor a linear model finds anything in the inputs."""
    linear = None if evidence.comparison is None else evidence.comparison.linear
    return (_is_tuned_or_sampled(evidence) or not _is_large(evidence)) and (linear is None or not linear.is_shown)


def _has_one_noise(evidence: Evidence) -> bool:
    name = _likelihood(evidence)
    return name in _SCALES and _part(evidence, "likelihood").get(_SCALES[name]) != "heteroscedastic"


def _varying_noise(evidence: Evidence) -> tuple[str, ...]:
    name = _likelihood(evidence)
    return f"likelihood.type={name}", f"likelihood.{_SCALES[name]}=heteroscedastic"


RULES: dict[str, Rule] = {
    "rescaled": Rule(("data.standardize=true",), _is_unscaled),
    "measured_noise": Rule(("likelihood.scale=tuned",), lambda e: _noise(e) in ("known", "learned")),
    "smaller": Rule(("net.hidden=[10]",), lambda e: _is_large(e) and _guide(e) != "dropout"),
    "larger": Rule(("net.hidden=[50]",), lambda e: 0 < sum(e.hidden or ()) < _ADVISED_UNITS),
    "without_hidden": Rule(("net.hidden=[]",), lambda e: bool(e.hidden)),
    "by_evidence": Rule(("fit.type=evidence_framework",), _takes_evidence),
    "sampled": Rule(("fit.type=nuts",), lambda e: not e.has_chains and e.posterior.bnn.num_weights <= _MOST_FOR_CHAINS),
    "sampled_groups": Rule(("fit.type=nuts",), lambda e: e.train.groups is not None and RULES["sampled"].applies(e)),
    "other_guide": Rule(("guide.type=mean_field",), lambda e: not e.has_chains and _guide(e) != "mean_field"),
    "spread": Rule(("guide.type=laplace",), lambda e: _guide(e) == "map"),
    "ensemble": Rule(("fit.type=ensemble",), lambda e: not isinstance(e.posterior, Mixture)),
    "smoother": Rule(("prior.type=normal",), lambda e: _part(e, "prior").get("type") != "normal"),
    "spread_counts": Rule(("likelihood.type=negative_binomial",), lambda e: _likelihood(e) == "poisson"),
    "counts": Rule(("likelihood.type=poisson",), _targets_look_like_counts),
    "counted_classes": Rule(("data.task=regression", "likelihood.type=poisson"), _classes_look_like_counts),
    "median": Rule((), lambda e: e.prediction.has_quantiles and e.prediction.is_positive, "`prediction.quantile(0.5)`"),
    "other_inputs": Rule((), _finds_nothing),
    "hold_out": Rule(("data.test=0.25",)),
    "hold_out_last": Rule(("data.test_last=0.2",)),
    "more_chains": Rule(("fit.num_chains=4",), lambda e: (_setting(e, "num_chains") or 4) < 4),
    "smaller_steps": Rule(("fit.target_accept=0.95",), lambda e: (_setting(e, "target_accept") or 0.95) < 0.95),
    "slower": Rule(lambda e: _of_method(e, lr=0.01), _is_fast),
    "longer": Rule(lambda e: _of_method(e, **_longer(e)), lambda e: bool(_longer(e))),
    "more_steps": Rule(_more_steps),
    "narrower": Rule(lambda e: (f"prior.scale={_narrower(e):g}",), lambda e: _narrower(e) >= _NARROWEST),
    "varying_noise": Rule(_varying_noise, lambda e: _is_uncompared(e) and _has_one_noise(e)),
    "amounts": Rule(("likelihood.type=log_normal",), _are_amounts),
    "heavy_tails": Rule(("likelihood.type=student_t",), lambda e: _is_uncompared(e) and _likelihood(e) == "gaussian"),
    "calibrated": Rule(python="`bnn.calibrate(posterior, data)`"),
    "more_draws": Rule(lambda e: (f"fit.num_draws={4 * int(_setting(e, 'num_draws') or 250)}",)),
    "longer_warmup": Rule(lambda e: (f"fit.warmup={2 * int(_setting(e, 'warmup') or 1000)}",)),
}
