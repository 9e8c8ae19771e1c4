"""The warning at the end of a fit: the first of the findings on its predictions that warns."""

from typing import Any

import torch
from pyro import poutine

from pyrobnn._core.errors import PoorFitWarning, warn_user
from pyrobnn._core.modes import gradients, under
from pyrobnn._core.random import seeded
from pyrobnn._core.remedies import mended
from pyrobnn._core.waiting import waiting
from pyrobnn._torch.devices import threads_for
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn.data.in_memory import Data
from pyrobnn.guides.base import registry
from pyrobnn.guides.divergence import quadrature_kl
from pyrobnn.guides.given import narrowed
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.record import FitRecord
from pyrobnn.verdict.baselines import fit_baselines
from pyrobnn.verdict.comparison import BaselineComparison, Evaluation, compare_with_baselines
from pyrobnn.verdict.finding import Finding
from pyrobnn.verdict.left_out import behind_mode, learned_nothing, left_out_scores, memorised_targets, missed_function
from pyrobnn.verdict.remedies import OF_BAD_PREDICTIONS, Fitted, longer, measured_noise, open_to, slower, standardised

SEE = "See docs/how-to/warnings.md."
"""Where the warnings at the end of a fit are explained."""
_CHECKED_ROWS = 500
_FEWEST_CHECKED_ROWS = 20
_CHECKED_DRAWS = 100
_FEWEST_CHECKED_DRAWS = 10
_PRODUCTS_OF_A_CHECK = 500_000_000
_PRODUCTS_IN_A_LOOP = 50_000_000
"""Products of a weight and an activation that the end of a fit may take, about .1 s; fewer in loops of fits."""
_LAST_GAIN_NATS = 0.02
_LAST_GAIN_ERRORS = 3.0
"""Nats an example that the last cycle of a fit may gain though it took all its steps, and their standard errors."""
_SHARE_OF_FIT = 0.05
_SIGNIFICANCE = 0.01
_NATS_OF_NOTHING_LEARNED = 0.02
_NATS_OF_A_LEARNED_WEIGHT = 0.25
"""Nats a weight, in the mean, below which a site has learned nothing, and of a single weight above which it has."""


def tell(posterior: Any, data: Any, validation: Data | None = None, *, progress: bool) -> None:
    """Warn with the `complaint` about a fit."""
    with waiting("checking", shown=progress):
        text = complaint(posterior, data, validation)
    if text is not None:
        warn_user(f"{text} {SEE}", PoorFitWarning)


@under(gradients)
def complaint(posterior: Any, data: Any, validation: Data | None = None, *, briefly: bool | None = None) -> str | None:
    """Report a fit that predicts no better than a constant, worse than a linear model, or was cut short; else None.

    It uses up to 500 examples of the validation data, or of the training data, none of loaders. `briefly` is to compare
    with a constant and one linear fit, in a text without numbers, which Python can show once for the line of a loop: by
    default where nothing was measured, and the length was given.
    """
    if not (isinstance(posterior, (Posterior, Mixture)) and isinstance(data, Data)):
        return None
    if len(data) == 1:
        return "There is one training example: predictions rest on it and on the prior alone. Collect more."
    if data.y.numel() and bool((data.y == data.y[:1]).all()):
        return "The target is constant in all training examples: inputs say nothing of it. Choose another target."
    record = posterior.record
    is_open = any(part is not None for part in (record.convergence, record.choice, record.evidence))
    is_brief = briefly or (briefly is None and not is_open)
    with threads_for(posterior.bnn.net, _CHECKED_ROWS):
        baselines = fit_baselines(posterior.bnn, data, most_rows=_CHECKED_ROWS, folds=not is_brief)
        rows, draws = _affordable(posterior, _PRODUCTS_IN_A_LOOP if is_brief else _PRODUCTS_OF_A_CHECK)
        fit = Evaluation(posterior, data, validation, baselines, draws, rows)
        compared = compare_with_baselines(fit, _SIGNIFICANCE)
        if compared is not None and compared.kind == "warning":
            lost = () if is_brief else sites_at_prior(posterior)
            layers = f" The guide has gone back to the prior at {', '.join(lost)}." if lost else ""
            tries = (slower, standardised, measured_noise, longer) if is_brief else OF_BAD_PREDICTIONS
            words = f"{compared.lead}." if is_brief else f"{compared.text}{layers}"
            return mended(words, open_to(Fitted(posterior, data.y, data.x), tries))
        if (fault := fault_at_end_of_fit(fit, compared, briefly=is_brief)) is not None:
            return mended(f"{fault.plain}." if is_brief else fault.text, fault.remedies)
        return None if is_brief else _not_converged(posterior)


def fault_at_end_of_fit(fit: Evaluation, compared: BaselineComparison | None, *, briefly: bool) -> Finding | None:
    """Say whether a fit that does not lose to a baseline has memorised its targets, learned nothing, or lost its mode.

    Without data held out, rows left out tell, `briefly` of dense networks and few rows, and whether they memorised.
    """
    fault, is_asked = None, not briefly or Fitted(fit.posterior).hidden is not None
    if is_asked and fit.baselines and fit.held_out is None and (compared is None or compared.kind != "fine"):
        left_out = left_out_scores(fit.posterior, fit.train, briefly=briefly)
        fault = memorised_targets(fit, left_out) or (None if briefly else learned_nothing(fit, left_out))
    return fault or behind_mode(fit)


def fault_in_full(fit: Evaluation, compared: BaselineComparison | None) -> Finding | None:
    """Say whether a fit has memorised its targets or, unless it loses to a baseline, missed what inputs say."""
    kind, fault = None if compared is None else compared.kind, None
    if fit.baselines and kind != "fine":
        left_out = left_out_scores(fit.posterior, fit.train) if fit.held_out is None else None
        fault = memorised_targets(fit, left_out)
    return fault if fault is not None or kind == "warning" else behind_mode(fit) or missed_function(fit)


def _not_converged(posterior: Posterior | Mixture) -> str | None:
    """Say if a fit of open length ended at its last step before its guide, which starts narrow, had widened."""
    record = posterior.members[0].record
    guide = record.guide or {}
    is_over = not any(needs_steps(member.record) for member in posterior.members)
    if is_over or guide.get("type") not in registry.names:
        return None
    if "evidence_framework" in Fitted(posterior).types or narrowed(registry.resolve(guide)) == registry.resolve(guide):
        return None
    return (
        f"The fit ended before it had converged ({record.stop_reason}), so its uncertainty may be far too small: give "
        "SVI a larger `max_steps`."
    )


def needs_steps(record: FitRecord) -> bool:
    """Whether a fit of open length took `max_steps`, and the last cycle gained more than noise and what matters."""
    end = record.convergence
    if end is None or end.converged or record.stopped_by not in (None, "steps"):
        return False
    matters = max(_LAST_GAIN_NATS * (record.num_data or 0), end.tolerance)
    return end.gain is None or end.gain - _LAST_GAIN_ERRORS * (end.elbo_error or 0.0) > matters


def _affordable(posterior: Posterior | Mixture, products: int) -> tuple[int, int]:
    """Return numbers of examples and draws that take a small share of the time of the fit, or that many products."""
    history = posterior.history
    steps = 0 if history is None else len(history) * min(_CHECKED_ROWS, posterior.record.num_data or 0)
    passes = max(products // posterior.bnn.num_weights, int(_SHARE_OF_FIT * steps))
    draws = max(min(_CHECKED_DRAWS, max(_FEWEST_CHECKED_DRAWS, passes // _CHECKED_ROWS)), len(posterior.members))
    return min(_CHECKED_ROWS, max(_FEWEST_CHECKED_ROWS, passes // draws)), draws


def sites_at_prior(posterior: Posterior | Mixture) -> tuple[str, ...]:
    """Return the weights that have learned nothing from the data: KL(q || p) below 0.02 nats per entry, at most 0.25.

    Biases are left out, since many good fits do not need them, and so are sites whose KL has no closed form and no
    quadrature. In a mixture, all members must agree.
    """
    first, *others = [_at_prior(member) for member in posterior.members]
    return tuple(name for name in first if all(name in names for names in others))


def _at_prior(posterior: Posterior) -> list[str]:
    with seeded(posterior.seed, "sites"), fast_pyro(), torch.no_grad():
        guide = posterior.trace(posterior.guide)
        model = posterior.trace(poutine.replay(posterior.bnn, trace=guide))
        unlearned = []
        for name in posterior.bnn.site_names:
            if model.nodes[name]["value"].ndim < 2:
                continue
            try:
                divergence = quadrature_kl(guide.nodes[name]["fn"], model.nodes[name]["fn"])
            except NotImplementedError:
                continue
            size = model.nodes[name]["value"].numel()
            has_learned = divergence.numel() == size and float(divergence.max()) > _NATS_OF_A_LEARNED_WEIGHT
            if float(divergence.sum()) < _NATS_OF_NOTHING_LEARNED * size and not has_learned:
                unlearned.append(name)
        return unlearned
