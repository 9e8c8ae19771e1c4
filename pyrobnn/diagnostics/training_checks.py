"""Has the fit come to its end? Asked of its record, or of its Markov chains."""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from pyrobnn._core.remedies import Remedy
from pyrobnn.diagnostics.chains import Chains
from pyrobnn.diagnostics.convergence import FEWEST_DRAWS
from pyrobnn.diagnostics.findings import Finding
from pyrobnn.inference.svi.svi import SVI
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.record import Convergence

_LARGEST_RHAT = 1.01
_SMALLEST_ESS = 400
_LARGEST_ROUGH_RHAT, _SMALLEST_ROUGH_ESS = 1.1, 50
"""Limits for chains with fewer draws than the effective draws required; their R-hat exceeds 1.01 by chance."""
_MOST_CHAINS = 4
_ACCEPTED = (0.95, 0.99)
"""Rates of acceptance to try one after the other."""
_SMOOTHER = Remedy("choose a smoother prior, `bnn.priors.Normal()`", "choose a smoother prior", ("prior.type=normal",))


def ending_finding(posterior: Posterior, section: str = "fit") -> Finding | None:
    """Report the ending of a fit of automatic length; None for other fits. `section` is that of its settings."""
    record = posterior.record
    convergence = record.convergence
    if convergence is None:
        return None
    if convergence.converged:
        text = f"The fit ended by itself: training longer gains nothing that matters ({_elbo(convergence)})."
        return Finding("length", "fine", text)
    if convergence.settled:
        text = f"The fit took all its steps, and nothing shows that more would gain ({record.stop_reason})."
        return Finding("length", "note", text)
    text = f"The fit did not end by itself: {record.stop_reason}. Its {_elbo(convergence)}."
    if not str(record.stop_reason).startswith("not converged"):
        return Finding("length", "note", text)
    steps = max(2 * (record.num_steps or 0), SVI().max_steps)
    name = "guide_steps" if any(table.get("type") == "evidence_framework" for table in record.methods) else "max_steps"
    more = Remedy(f"train longer, `{name}={steps}`", "train longer", (f"{section}.{name}={steps}",))
    return Finding("length", "warning", text, remedies=(more,))


def _elbo(convergence: Convergence) -> str:
    """Return a clause with the ELBO, its standard error, and the gain of the last cycle."""
    error = "" if convergence.elbo_error is None else f" ± {convergence.elbo_error:.2g}"
    gain = "there was no second cycle" if convergence.gain is None else f"the last cycle gained {convergence.gain:.2g}"
    matters = f"gains below {convergence.tolerance:.2g} do not matter"
    return f"ELBO is {convergence.elbo:.2f}{error} nats; {gain}, and {matters}"


def chain_findings(chains: Chains, settings: Mapping[str, Any] = MappingProxyType({})) -> list[Finding]:
    """Judge Markov chains by R-hat and effective sample sizes of their predictions (Vehtari et al. 2021).

    `settings` are those of the method; remedies go further than they do.
    """
    more = _raised("draw more", "num_draws", 4 * chains.num_draws)
    warmer = _raised("warm up longer", "warmup", 2 * int(settings.get("warmup") or 1000))
    findings = [_agreement(chains, more, warmer, _given_steps(settings, "leave out"))]
    if chains.num_diverging:
        text = (
            f"{chains.num_diverging} of {chains.num_chains * chains.num_draws} draws diverged: some region of the "
            "posterior is too narrow for the step size and not explored."
        )
        findings.append(Finding("divergences", "warning", text, remedies=_smaller_steps(settings)))
    return findings


def _raised(words: str, name: str, value: int | float) -> Remedy:
    """Return the remedy that a setting of the method gets a larger value."""
    return Remedy(f"{words}, `{name}={value!r}`", words, (f"fit.{name}={value!r}",))


def _smaller_steps(settings: Mapping[str, Any]) -> tuple[Remedy, ...]:
    """Return what to try where draws diverge: higher rates of acceptance one after the other, or more warm-up."""
    rate = settings.get("target_accept", _ACCEPTED[-1])
    smaller = [_raised("take smaller steps", "target_accept", value) for value in _ACCEPTED if value > rate][:1]
    warmer = [] if smaller else [_raised("warm up longer", "warmup", 2 * int(settings.get("warmup") or 1000))]
    return (*smaller, *warmer, *_given_steps(settings, "lower"), _SMOOTHER)


def _given_steps(settings: Mapping[str, Any], verb: str) -> list[Remedy]:
    """Return the remedy for a size of the steps that was given; none where it was adapted or measured."""
    size = settings.get("step_size")
    given = f"{verb} `step_size`, which was given as {size!r}"
    return [] if size is None else [Remedy(given, f"leave out fit.step_size, which was given as {size!r}")]


def _agreement(chains: Chains, more: Remedy, warmer: Remedy, given: Sequence[Remedy]) -> Finding:
    fewer = chains.num_chains < _MOST_CHAINS
    longer = (*([_raised("run more chains", "num_chains", _MOST_CHAINS)] if fewer else []), more, warmer)
    convergence = chains.convergence
    if convergence is None:
        text = (
            f"Nothing tells whether the Markov chains have converged: R-hat needs two or more chains of at least "
            f"{FEWEST_DRAWS} draws, here there are {chains.num_chains} of {chains.num_draws}."
        )
        return Finding("chains", "warning", text, remedies=longer)
    rhat, ess = float(np.max(convergence.rhat)), float(min(np.min(convergence.ess_bulk), np.min(convergence.ess_tail)))
    if not math.isfinite(rhat):
        text = "R-hat cannot be computed: at some input the predictions of the chains never change. They are stuck."
        return Finding("chains", "warning", text, remedies=(*given, warmer, _SMOOTHER))
    draws = chains.num_chains * chains.num_draws
    if draws < _SMALLEST_ESS and rhat <= _LARGEST_ROUGH_RHAT and ess >= _SMALLEST_ROUGH_ESS:
        text = (
            f"The Markov chains are short, and agree roughly: the largest R-hat is {rhat:.3f}, and {draws} draws are "
            f"worth as little as {ess:.0f} independent draws."
        )
        return Finding("chains", "note", text, remedies=(more,))
    if rhat > _LARGEST_RHAT:
        text = (
            f"The Markov chains do not agree yet in their predictions: the largest R-hat is {rhat:.3f}, above "
            f"{_LARGEST_RHAT}."
        )
        return Finding("chains", "warning", text, remedies=longer)
    if ess < _SMALLEST_ESS:
        text = (
            f"The draws of the Markov chains are worth as little as {ess:.0f} independent draws for some prediction; "
            f"{_SMALLEST_ESS} or more are enough."
        )
        return Finding("chains", "warning", text, remedies=(more,))
    text = (
        f"The Markov chains agree in their predictions: R-hat at most {rhat:.3f}, effective draws at least {ess:.0f}."
    )
    return Finding("chains", "fine", text)
