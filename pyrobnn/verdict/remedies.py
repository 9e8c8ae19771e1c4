"""What may mend a fit, by the settings that it has: nothing that it has already, and a further value of a number."""

import functools
import re
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pyrobnn._core.remedies import Remedy
from pyrobnn._core.settings import described
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.posterior.record import Table
from pyrobnn.priors.base import as_prior
from pyrobnn.priors.given import by_site
from pyrobnn.verdict.evidence import Evidence

_TIMES_LONGER = 4
_TIMES_NARROWER = 3.0
_NARROWEST = 0.05
_FEW_UNITS, _ADVISED_UNITS = 10, 50
_MOST_WEIGHTS_FOR_CHAINS, _MOST_ROWS_FOR_EVIDENCE = 1000, 2000
_FAST_RATE = 0.1
_SCALES = dict.fromkeys(("gaussian", "laplace", "student_t"), "scale") | {
    "log_normal": "log_scale",
    "gamma": "dispersion",
}
"""The number that may be an output of the network, by likelihood."""
_FAR_FROM_UNITS = 10.0
"""Root mean square of an input from which on its units are far from those that priors of weights are for."""
_SOME_SKEW = 1.0
"""Skewness from which a log-normal is tried for positive targets."""
_LEAST_DISPERSION = 0.5
_MOST_STEPS = 150_000
_CHAINS, _ACCEPTANCE = 4, 0.95


@functools.cache
def _rows() -> dict[str, dict[str, Any]]:
    return tomllib.loads((Path(__file__).parent / "remedies.toml").read_text(encoding="utf-8"))


def first(evidence: Evidence, names: Iterable[str]) -> Remedy | None:
    """Return the first of some remedies, by their names in remedies.toml, that a fit has not had yet."""
    return next((found for name in names if (found := _remedy(evidence, name)) is not None), None)


def _remedy(evidence: Evidence, name: str) -> Remedy | None:
    if name == "longer":
        return _longer(evidence)
    row = _rows()[name]
    if "when" in row and not _WHEN[row["when"]](evidence):
        return None
    settings = (re.sub(r"\{(\w+)\}", lambda at: str(_FILLED[at[1]](evidence)), one) for one in row.get("settings", ()))
    return Remedy(row["words"], tuple(settings), row.get("python", ""))


def _longer(evidence: Evidence) -> Remedy | None:
    """Return more of the steps or epochs that somebody gave; none where chains only start at the fit."""
    record = evidence.posterior.record
    is_other = evidence.has_chains or (record.choice is not None and record.choice.chose_length)
    svi = {} if is_other else next((table for table in _methods(evidence) if "max_steps" in table), {})
    given = {name: svi[name] for name in ("steps", "epochs") if svi.get(name)}
    more = [f"{name}={_TIMES_LONGER * value}" for name, value in given.items()]
    code = f"{', '.join(f'`{one}`' for one in more)}, or leave out {' and '.join(f'`{name}`' for name in given)}"
    return Remedy("train longer", tuple(f"{_section(evidence)}.{one}" for one in more), code) if more else None


def _methods(evidence: Evidence) -> list[Table]:
    """Return the tables of the method and those inside it."""
    return evidence.posterior.members[0].record.methods


def _setting(evidence: Evidence, name: str) -> Any:
    return next((table[name] for table in _methods(evidence) if table.get(name) is not None), None)


def _section(evidence: Evidence) -> str:
    """Return the section of a spec that has the settings of the innermost method, such as SVI in an ensemble."""
    return ".".join(["fit", *["method"] * (len(evidence.posterior.record.methods) - 1)])


def _part(evidence: Evidence, name: str) -> Table:
    """Return the settings of a part; an empty table for one that is no setting."""
    told = described(evidence.posterior.bnn.settings[name])
    return told if isinstance(told, dict) else {}


def _likelihood(evidence: Evidence) -> str:
    return str(_part(evidence, "likelihood").get("type", ""))


def _noise(evidence: Evidence) -> str | None:
    """Return how the noise around real targets is given: "known" where somebody gave its number."""
    noise: str | None = evidence.kinds.noise
    return "tuned" if noise == "known" and "scale" in (evidence.posterior.record.measured or ()) else noise


def _is_tried(evidence: Evidence) -> bool:
    """Return whether a prior was tuned by evidence, or chains took the place of a fit."""
    return evidence.has_chains or any(member.record.evidence is not None for member in evidence.posterior.members)


def _takes_evidence(evidence: Evidence) -> bool:
    """Return whether the evidence framework takes the prior, which must be normal, and has not been tried."""
    bnn, num = evidence.posterior.bnn, evidence.posterior.record.num_data or 0
    priors = by_site(bnn.settings["prior"], bnn.site_names).values()
    return num <= _MOST_ROWS_FOR_EVIDENCE and not _is_tried(evidence) and all(as_prior(one).is_normal for one in priors)


def _are_counts(evidence: Evidence) -> bool:
    """Return whether real targets are whole numbers from 0 on, whose spread may be that of counts."""
    y = evidence.train.y.double()
    is_whole = y.ndim == 1 and torch.equal(y, y.round()) and float(y.min()) == 0
    return evidence.kinds.noise is not None and is_whole and float(y.var()) >= _LEAST_DISPERSION * float(y.mean())


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
    is_open = _likelihood(evidence) == "gaussian" and _noise(evidence) != "heteroscedastic"
    is_positive = is_open and y.ndim == 1 and bool((y > 0).all())
    return is_positive and float(((y - y.mean()) / y.std()).pow(3).mean()) > _SOME_SKEW


_WHEN: dict[str, Callable[[Evidence], bool]] = {
    "fast": _is_fast,
    "unscaled": _is_unscaled,
    "noise is given or trained": lambda e: _noise(e) in ("known", "learned"),
    "large": lambda e: len(e.hidden or ()) > 1 or sum(e.hidden or ()) > _FEW_UNITS,
    "small": lambda e: 0 < sum(e.hidden or ()) < _ADVISED_UNITS,
    "hidden": lambda e: bool(e.hidden),
    "takes evidence": _takes_evidence,
    "sampled soon": lambda e: not e.has_chains and e.posterior.bnn.num_weights <= _MOST_WEIGHTS_FOR_CHAINS,
    "other guide": lambda e: not e.has_chains and (_setting(e, "guide") or {}).get("type") != "mean_field",
    "single": lambda e: not isinstance(e.posterior, Mixture),
    "prior is not normal": lambda e: _part(e, "prior").get("type") != "normal",
    "prior is wide": lambda e: _narrower(e) >= _NARROWEST,
    "poisson": lambda e: _likelihood(e) == "poisson",
    "gaussian": lambda e: _likelihood(e) == "gaussian",
    "amounts": _are_amounts,
    "noise is one number": lambda e: (
        _likelihood(e) in _SCALES and _part(e, "likelihood").get(_SCALES[_likelihood(e)]) != "heteroscedastic"
    ),
    "quantiles": lambda e: e.prediction.has_quantiles,
    "finds nothing": lambda e: (
        (_is_tried(e) or not _WHEN["large"](e)) and (e.comparison is None or not e.comparison.linear_finds)
    ),
    "counts": _are_counts,
    "few chains": lambda e: (_setting(e, "num_chains") or _CHAINS) < _CHAINS,
    "low acceptance": lambda e: (_setting(e, "target_accept") or _ACCEPTANCE) < _ACCEPTANCE,
}
"""When a fit may take a remedy, by the names of remedies.toml."""
_FILLED: dict[str, Callable[[Evidence], object]] = {
    "section": _section,
    "most": lambda e: (
        "guide_steps" if any(table.get("type") == "evidence_framework" for table in _methods(e)) else "max_steps"
    ),
    "steps": lambda e: max(_MOST_STEPS, *(2 * (member.record.num_steps or 0) for member in e.posterior.members)),
    "narrower": lambda e: f"{_narrower(e):g}",
    "likelihood": _likelihood,
    "scale": lambda e: _SCALES[_likelihood(e)],
    "draws": lambda e: 4 * int(_setting(e, "num_draws") or 250),
    "warmup": lambda e: 2 * int(_setting(e, "warmup") or 1000),
}
"""What stands in braces in the settings of remedies.toml."""
