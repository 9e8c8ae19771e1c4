"""The second fit of a small table: to all its rows, for predictions of new rows."""

import dataclasses

from torch import Tensor

from pyrobnn.bnn import BNN
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.prediction import Prediction
from pyrobnn.runs.spec import Prepared

_MOST_ROWS_OF_A_SECOND_FIT = 2000
"""On 60, 150, 400 and 1,000 rows of Friedman's function (1991) a fit to all has 0.59, 0.92, 0.99 and 0.99 times the
error of a fit to the training part, and takes 1 to 7 s."""
_FAR_IN_EPISTEMIC_DEVIATIONS = 1.5
"""In 12 runs on six tables the two fits were 0.14 to 1.03 epistemic deviations apart."""
_FAR_IN_PREDICTIVE_DEVIATIONS = 0.25
_TOLERATED_LOSS = 0.1
"""Nats an example by which draws and other starts may lower a log score on rows that were learned."""


def with_all_rows(prepared: Prepared, judged: Posterior | Mixture) -> Prepared | None:
    """Return the run with all rows in its training part, or None where the fit to the training part stays the last.

    That is so for large tables, and for data sets by name, whose test part is there for comparisons. The fit to all
    rows repeats the starts that the fit that was judged has kept. The test part has the same rows as before.
    """
    spec = prepared.spec
    if prepared.dataset.encoder is None or len(prepared.dataset.data) > _MOST_ROWS_OF_A_SECOND_FIT:
        return None
    dataset = spec.data.load(prepared.dataset.task, all_rows=True)
    _, test = dataset.split(spec.data.split)
    train, validation, net = dataset.to_fit(), None, spec.net
    if spec.data.validation is not None:
        train, validation = train.split(spec.data.validation, seed=spec.fit.seed)
    if (width := train.num_inputs) != prepared.train.num_inputs:  # the others have another category
        net = dataclasses.replace(net, in_features=width)
    spec = dataclasses.replace(spec, net=net)
    bnn = BNN(net, prior=spec.prior, likelihood=spec.likelihood)
    return dataclasses.replace(
        prepared, spec=spec, dataset=dataset, train=train, validation=validation, test=test, bnn=bnn, earlier=judged
    )


def is_sound(scores: Tensor, judged: Tensor) -> bool:
    """Return whether a fit that learned the test part is no worse there, by log scores (N,), than one that did not."""
    return float(scores.mean()) >= float(judged.mean()) - _TOLERATED_LOSS


def far_apart(final: Prediction, judged: Prediction) -> str:
    """Say how far the fit to all rows is from the fit that was judged, where that is more than expected; else nothing.

    The square of a move is on average the epistemic variance that further rows take away; two modes may be further
    apart. Moves far below the predictive deviation do not matter.
    """
    if not judged.has_moments:
        return ""
    moves = (final.mean - judged.mean).double().square()
    of_epistemic = (moves / judged.epistemic_variance).nan_to_num(0.0).mean().sqrt()
    of_all = (moves / judged.variance).nan_to_num(0.0).mean().sqrt()
    if not (float(of_epistemic) > _FAR_IN_EPISTEMIC_DEVIATIONS and float(of_all) > _FAR_IN_PREDICTIVE_DEVIATIONS):
        return ""
    what = f"their means are {float(of_all):.2f} predictive standard deviations apart (root mean square)"
    if judged.is_classification:
        what = f"their probabilities of a class differ by {float(moves.sqrt().mean()):.2f} on average"
    return (
        f"The two fits differ by more than {len(judged)} further rows explain: at the held-out rows {what}. So the "
        "scores may not hold for predictions of new rows. Other seeds, as by `--set fit.seed=1`, may agree."
    )
