"""Has the fit come to its end? Asked of its record, or of its Markov chains."""

import math

import numpy as np

from pyrobnn.diagnostics.chains import Chains
from pyrobnn.diagnostics.convergence import FEWEST_DRAWS
from pyrobnn.diagnostics.findings import Finding
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.record import Convergence

_LARGEST_RHAT = 1.01
_SMALLEST_ESS = 400
_LARGEST_ROUGH_RHAT, _SMALLEST_ROUGH_ESS = 1.1, 50
"""Limits for chains with fewer draws than the effective draws required; their R-hat exceeds 1.01 by chance."""


def ending_finding(posterior: Posterior) -> Finding | None:
    """Report the ending of a fit of automatic length; None for other fits."""
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
    return Finding("length", "warning", f"{text} To mend it, raise `max_steps`.")


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
            "posterior is too narrow for the step size and not explored. Raise `target_accept` (of MCLMC "
            "`warmup`), lower a `step_size` that was given, or choose a smoother prior."
        )
        findings.append(Finding("divergences", "warning", text))
    return findings


def _agreement(chains: Chains) -> Finding:
    convergence = chains.convergence
    if convergence is None:
        text = (
            f"Nothing tells whether the Markov chains have converged: R-hat needs two or more chains of at least "
            f"{FEWEST_DRAWS} draws, here there are {chains.num_chains} of {chains.num_draws}. Raise `num_chains` or "
            "`num_draws`."
        )
        return Finding("chains", "warning", text)
    rhat, ess = float(np.max(convergence.rhat)), float(min(np.min(convergence.ess_bulk), np.min(convergence.ess_tail)))
    if not math.isfinite(rhat):
        text = "R-hat cannot be computed: at some input the predictions of the chains never change. They are stuck."
        return Finding("chains", "warning", text)
    draws = chains.num_chains * chains.num_draws
    if draws < _SMALLEST_ESS and rhat <= _LARGEST_ROUGH_RHAT and ess >= _SMALLEST_ROUGH_ESS:
        text = (
            f"The Markov chains are short, and agree roughly: the largest R-hat is {rhat:.3f}, and {draws} draws are "
            f"worth as little as {ess:.0f} independent draws. Draw more to compare them closely."
        )
        return Finding("chains", "note", text)
    if rhat > _LARGEST_RHAT:
        text = (
            f"The Markov chains do not agree yet in their predictions: the largest R-hat is {rhat:.3f}, above "
            f"{_LARGEST_RHAT}. Draw more, or warm up longer."
        )
        return Finding("chains", "warning", text)
    if ess < _SMALLEST_ESS:
        text = (
            f"The draws of the Markov chains are worth as little as {ess:.0f} independent draws for some prediction; "
            f"{_SMALLEST_ESS} or more are enough. Draw more."
        )
        return Finding("chains", "warning", text)
    text = (
        f"The Markov chains agree in their predictions: R-hat at most {rhat:.3f}, effective draws at least {ess:.0f}."
    )
    return Finding("chains", "fine", text)
