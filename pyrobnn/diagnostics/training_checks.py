"""Has the fit come to its end? Asked of its record, or of its Markov chains."""

import math

import numpy as np

from pyrobnn._core.remedies import Remedy, change
from pyrobnn.diagnostics.chains import Chains
from pyrobnn.diagnostics.convergence import FEWEST_DRAWS
from pyrobnn.diagnostics.findings import Finding
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.record import Convergence

_LARGEST_RHAT = 1.01
_SMALLEST_ESS = 400
_LARGEST_ROUGH_RHAT, _SMALLEST_ROUGH_ESS = 1.1, 50
"""Limits for chains with fewer draws than the effective draws required; their R-hat exceeds 1.01 by chance."""
_MORE_DRAWS = (Remedy("draw more: raise `num_draws`", f"draw more {change('fit.num_draws=4000')}"),)
_LONGER_CHAINS = (
    *_MORE_DRAWS,
    Remedy("run more chains: raise `num_chains`", f"run more chains {change('fit.num_chains=4')}"),
    Remedy("warm up longer: raise `warmup`", f"warm up longer {change('fit.warmup=2000')}"),
)
_SMOOTHER = Remedy("choose a smoother prior", f"choose a smoother prior {change('prior.type=normal')}")
_SMALLER_STEPS = (
    Remedy(
        "raise `target_accept` (of MCLMC `warmup`)",
        f"take smaller steps {change('fit.target_accept=0.95')}, or with mclmc {change('fit.warmup=2000')}",
    ),
    Remedy("lower a `step_size` that was given", "leave out fit.step_size, if it is set"),
    _SMOOTHER,
)
_UNSTUCK = (Remedy("leave out `step_size`", "leave out fit.step_size"), _LONGER_CHAINS[-1], _SMOOTHER)


def section_of(posterior: Posterior | Mixture) -> str:
    """Return the section of a spec that has the settings of the innermost method, such as SVI in an ensemble."""
    return ".".join(["fit", *["method"] * (len(posterior.record.methods) - 1)])


def ending_finding(posterior: Posterior, section: str = "fit") -> Finding | None:
    """Report the ending of a fit of automatic length; None for other fits. `section` is that of its settings."""
    record = posterior.record
    convergence = record.convergence
    if convergence is None:
        return None
    ending = "ended" if convergence.converged else "did not end"
    text = f"The fit {ending} by itself: {record.stop_reason}. {_elbo(convergence)}"
    if convergence.converged:
        return Finding("length", "fine", text)
    if not str(record.stop_reason).startswith("not converged"):
        return Finding("length", "note", text)
    steps = 2 * (record.num_steps or 0)
    more = Remedy("raise `max_steps`", f"train longer {change(f'{section}.max_steps={steps}')}")
    return Finding("length", "warning", text, remedies=(more,))


def _elbo(convergence: Convergence) -> str:
    """Return a sentence with the ELBO, its standard error, and the gain of the last cycle."""
    error = "" if convergence.elbo_error is None else f" ± {convergence.elbo_error:.2g}"
    gain = "there was no second cycle" if convergence.gain is None else f"the last cycle gained {convergence.gain:.2g}"
    matters = f"gains below {convergence.tolerance:.2g} do not matter"
    return f"Its ELBO is {convergence.elbo:.2f}{error} nats; {gain}, and {matters}."


def chain_findings(chains: Chains) -> list[Finding]:
    """Judge Markov chains by R-hat and effective sample sizes of their predictions (Vehtari et al. 2021)."""
    findings = [_agreement(chains)]
    if chains.num_diverging:
        text = (
            f"{chains.num_diverging} of {chains.num_chains * chains.num_draws} draws diverged: some region of the "
            "posterior is too narrow for the step size and not explored."
        )
        findings.append(Finding("divergences", "warning", text, remedies=_SMALLER_STEPS))
    return findings


def _agreement(chains: Chains) -> Finding:
    convergence = chains.convergence
    if convergence is None:
        text = (
            f"Nothing tells whether the Markov chains have converged: R-hat needs two or more chains of at least "
            f"{FEWEST_DRAWS} draws, here there are {chains.num_chains} of {chains.num_draws}."
        )
        return Finding("chains", "warning", text, remedies=_LONGER_CHAINS)
    rhat, ess = float(np.max(convergence.rhat)), float(min(np.min(convergence.ess_bulk), np.min(convergence.ess_tail)))
    if not math.isfinite(rhat):
        text = "R-hat cannot be computed: at some input the predictions of the chains never change. They are stuck."
        return Finding("chains", "warning", text, remedies=_UNSTUCK)
    draws = chains.num_chains * chains.num_draws
    if draws < _SMALLEST_ESS and rhat <= _LARGEST_ROUGH_RHAT and ess >= _SMALLEST_ROUGH_ESS:
        text = (
            f"The Markov chains are short, and agree roughly: the largest R-hat is {rhat:.3f}, and {draws} draws are "
            f"worth as little as {ess:.0f} independent draws."
        )
        return Finding("chains", "note", text, remedies=_MORE_DRAWS)
    if rhat > _LARGEST_RHAT:
        text = (
            f"The Markov chains do not agree yet in their predictions: the largest R-hat is {rhat:.3f}, above "
            f"{_LARGEST_RHAT}."
        )
        return Finding("chains", "warning", text, remedies=_LONGER_CHAINS)
    if ess < _SMALLEST_ESS:
        text = (
            f"The draws of the Markov chains are worth as little as {ess:.0f} independent draws for some prediction; "
            f"{_SMALLEST_ESS} or more are enough."
        )
        return Finding("chains", "warning", text, remedies=_MORE_DRAWS)
    text = (
        f"The Markov chains agree in their predictions: R-hat at most {rhat:.3f}, effective draws at least {ess:.0f}."
    )
    return Finding("chains", "fine", text)
