"""What may mend a fit, by the settings that it has: nothing that it has already, and a further value of a number."""

import functools
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torch import Tensor

from pyrobnn import nets
from pyrobnn._core.remedies import Remedy
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.priors.base import as_prior
from pyrobnn.priors.given import by_site
from pyrobnn.verdict.evidence import Evidence

_TIMES_LONGER = 4
_TIMES_NARROWER = 3.0
_NARROWEST = 0.05
_FEW_UNITS = 10
_ADVISED_UNITS = 50
_MOST_WEIGHTS_FOR_CHAINS = 1000
_MOST_ROWS_FOR_EVIDENCE = 2000
_USUAL_RATE = 0.01
_TIMES_FASTER = 10
_NUMBERS = dict.fromkeys(("gaussian", "laplace", "student_t"), "scale") | {
    "log_normal": "log_scale",
    "gamma": "dispersion",
}
"""The number that may be an output of the network, by likelihood."""
_FAR_FROM_UNITS = 10.0
"""Root mean square of an input from which on its units are far from those that priors of weights are for."""
_SOME_SKEW = 1.0
"""Skewness from which a log-normal is tried for positive targets."""
_MOST_STEPS = 150_000
_CHAINS, _ACCEPTANCE = 4, 0.95


@functools.cache
def _rows() -> dict[str, dict[str, Any]]:
    return tomllib.loads((Path(__file__).parent / "remedies.toml").read_text(encoding="utf-8"))


def first(evidence: Evidence, names: Iterable[str]) -> Remedy | None:
    """Return the first of some remedies, by their names in remedies.toml and here, that a fit has not had yet."""
    return next((found for name in names if (found := _remedy(evidence, name)) is not None), None)


def _remedy(evidence: Evidence, name: str) -> Remedy | None:
    if name in _NUMBERED:
        return _NUMBERED[name](evidence)
    row = _rows()[name]
    is_open = "when" not in row or _WHEN[row["when"]](evidence)
    return Remedy(row["words"], tuple(row.get("settings", ())), row.get("python", "")) if is_open else None


def _takes_evidence(evidence: Evidence) -> bool:
    """Return whether the evidence framework takes the prior, which must be normal, and has not been tried."""
    fit = evidence.posterior
    priors = by_site(fit.bnn.settings["prior"], fit.bnn.site_names).values()
    is_tuned = any(member.record.evidence is not None for member in fit.members)
    is_small = (fit.record.num_data or 0) <= _MOST_ROWS_FOR_EVIDENCE
    return is_small and not is_tuned and not evidence.has_chains and all(as_prior(one).is_normal for one in priors)


def _is_unscaled(evidence: Evidence) -> bool:
    x = evidence.train.x
    if not isinstance(x, Tensor) or not evidence.posterior.members[0].x_scaler.is_identity:
        return False
    return float(x.double().flatten(1).square().mean(0).max()) > _FAR_FROM_UNITS**2


def _hidden(evidence: Evidence) -> list[int]:
    net = evidence.posterior.bnn.settings["net"]
    return list(net.hidden) if isinstance(net, nets.MLP) else []


_WHEN: dict[str, Callable[[Evidence], bool]] = {
    "unscaled": _is_unscaled,
    "noise is given or trained": lambda e: e.noise in ("known", "learned"),
    "large": lambda e: len(_hidden(e)) > 1 or sum(_hidden(e)) > _FEW_UNITS,
    "small": lambda e: 0 < sum(_hidden(e)) < _ADVISED_UNITS,
    "hidden": lambda e: bool(_hidden(e)),
    "takes evidence": _takes_evidence,
    "sampled soon": lambda e: not e.has_chains and e.posterior.bnn.num_weights <= _MOST_WEIGHTS_FOR_CHAINS,
    "other guide": lambda e: not e.has_chains and (e.setting("guide") or {}).get("type") != "mean_field",
    "single": lambda e: not isinstance(e.posterior, Mixture),
    "prior is not normal": lambda e: e.part("prior").get("type") != "normal",
    "poisson": lambda e: e.likelihood == "poisson",
    "quantiles": lambda e: e.prediction.has_quantiles,
    "finds nothing": lambda e: e.comparison is None or not e.comparison.linear_finds,
    "few chains": lambda e: (e.setting("num_chains") or _CHAINS) < _CHAINS,
    "low acceptance": lambda e: (e.setting("target_accept") or _ACCEPTANCE) < _ACCEPTANCE,
}
"""When a fit may take a remedy, by the names of remedies.toml."""


def _longer(evidence: Evidence) -> Remedy | None:
    more = [f"{name}={_TIMES_LONGER * value}" for name, value in evidence.lengths.items()]
    given, shown = (" and ".join(f"`{name}`" for name in evidence.lengths), ", ".join(f"`{one}`" for one in more))
    settings = tuple(f"{evidence.section}.{one}" for one in more)
    return Remedy("train longer", settings, f"{shown}, or leave out {given}") if more else None


def _more_steps(evidence: Evidence) -> Remedy:
    steps = max(_MOST_STEPS, *(2 * (member.record.num_steps or 0) for member in evidence.posterior.members))
    is_framework = any(table.get("type") == "evidence_framework" for table in evidence.methods)
    name = "guide_steps" if is_framework else "max_steps"
    return Remedy("train longer", (f"{evidence.section}.{name}={steps}",))


def _slower(evidence: Evidence) -> Remedy | None:
    rates = evidence.setting("lr") or 0.0
    is_high = max(rates.values() if isinstance(rates, dict) else [rates]) >= _TIMES_FASTER * _USUAL_RATE
    return Remedy("lower the learning rate", (f"{evidence.section}.lr={_USUAL_RATE:g}",)) if is_high else None


def _narrower(evidence: Evidence) -> Remedy | None:
    prior = evidence.part("prior")
    given = prior.get("scale") if prior.get("type") == "normal" else None
    scale = float(f"{given / _TIMES_NARROWER:.1g}") if isinstance(given, float) else 0.0
    return None if scale < _NARROWEST else Remedy("narrow the prior", (f"prior.scale={scale:g}",))


def _varying_noise(evidence: Evidence) -> Remedy | None:
    kind, number = evidence.likelihood, _NUMBERS.get(evidence.likelihood)
    if number is None or evidence.part("likelihood").get(number) == "heteroscedastic":
        return None
    settings = (f"likelihood.type={kind}", f"likelihood.{number}=heteroscedastic")
    return Remedy("let the noise depend on the inputs, by twice as many outputs", settings)


def _amounts(evidence: Evidence) -> Remedy | None:
    y = evidence.train.y
    is_open = evidence.likelihood == "gaussian" and evidence.noise != "heteroscedastic"
    if not is_open or y.ndim != 1 or not bool((y > 0).all()):
        return None
    return Remedy("take a log-normal, as all targets are positive", ("likelihood.type=log_normal",))


def _other_noise(evidence: Evidence) -> Remedy | None:
    y, remedy = evidence.train.y.double(), _amounts(evidence)
    if remedy is not None and float(((y - y.mean()) / y.std()).pow(3).mean()) > _SOME_SKEW:
        return remedy
    heavy = Remedy("look for outliers, and take noise with heavy tails", ("likelihood.type=student_t",))
    return heavy if evidence.likelihood == "gaussian" else None


def _raised(words: str, name: str, times: int, usual: int) -> Callable[[Evidence], Remedy]:
    return lambda evidence: Remedy(words, (f"fit.{name}={times * int(evidence.setting(name) or usual)}",))


_NUMBERED: dict[str, Callable[[Evidence], Remedy | None]] = {
    "longer": _longer,
    "more_steps": _more_steps,
    "slower": _slower,
    "narrower": _narrower,
    "varying_noise": _varying_noise,
    "amounts": _amounts,
    "other_noise": _other_noise,
    "more_draws": _raised("draw more", "num_draws", 4, 250),
    "longer_warmup": _raised("warm up longer", "warmup", 2, 1000),
}
"""Remedies whose words or numbers depend on the fit."""
