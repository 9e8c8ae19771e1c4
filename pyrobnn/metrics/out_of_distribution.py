"""How well the predicted uncertainty separates inputs of another kind from the data."""

import numpy as np

from pyrobnn._core.errors import InputError, did_you_mean
from pyrobnn.metrics.base import Score, Scores, as_columns, bootstrap
from pyrobnn.metrics.curves import receiver_operating
from pyrobnn.posterior.prediction import Prediction

_OF_CLASSES = ("mutual_information", "entropy", "max_prob")
_OF_NUMBERS = ("epistemic_std", "std")


def score_ood(inside: Prediction, outside: Prediction, *, by: str = "all") -> Scores:
    """Score how well uncertainty separates inputs outside the data from inputs inside (Hendrycks 2017).

    For each measure of uncertainty, as entropy: "auroc_entropy", the area under the receiver operating characteristic;
    "aupr_entropy", the average precision with the outside inputs as positives, which depends on their share;
    "fpr_95_entropy", the share of inside inputs above the threshold that 95 % of the outside inputs reach. Standard
    errors come from 200 bootstrap resamples of either group under a fixed seed.

    Args:
        inside: predictions at inputs like the data.
        outside: predictions of the same posterior at other inputs.
        by: "all", or for classes "mutual_information", "entropy" or "max_prob" (1 less the probability of the most
            probable class), for real targets and counts "epistemic_std" or "std", of several columns relative to their
            mean variance inside.

    Raises:
        InputError: another measure, or predictions of different kinds.

    Examples:
        >>> data = bnn.datasets.sinusoid()
        >>> posterior = bnn.BNN(bnn.MLP(1, [10], 1)).fit(data, guide="laplace", steps=50, seed=0, progress=False)
        >>> inside, outside = posterior.predict(data.x), posterior.predict(data.x + 3)
        >>> bnn.score_ood(inside, outside, by="epistemic_std")["auroc_epistemic_std"].value > 0.9
        True
    """
    values = ood_measures(inside, outside, by=by)
    positive = np.repeat([False, True], [len(inside), len(outside)])
    functions = {
        f"{name}_{measure}": of
        for measure, number in values.items()
        for name, of in receiver_operating(positive, number).items()
    }
    errors = bootstrap(functions, (len(inside), len(outside)))
    everyone = np.ones(len(positive))
    return Scores(
        {name: Score(of(everyone), errors[name], not name.startswith("fpr")) for name, of in functions.items()}
    )


def ood_measures(inside: Prediction, outside: Prediction, *, by: str = "all") -> dict[str, np.ndarray]:
    """Return measures of uncertainty by name at the inputs inside and then outside the data, (N inside + N outside,).

    Arguments and errors are as in `score_ood`.

    Examples:
        >>> data = bnn.datasets.sinusoid()
        >>> posterior = bnn.BNN(bnn.MLP(1, [10], 1)).fit(data, steps=20, seed=0, progress=False)
        >>> measures = bnn.metrics.ood_measures(posterior.predict(data.x), posterior.predict(data.x[:8] + 3))
        >>> {name: values.shape for name, values in measures.items()}
        {'epistemic_std': (40,), 'std': (40,)}
    """
    if inside.is_classification != outside.is_classification:
        raise InputError(f"Predictions inside and outside must be of the same kind, got {inside!r} and {outside!r}.")
    known = _OF_CLASSES if inside.is_classification else _OF_NUMBERS
    if by not in ("all", *known):
        raise InputError(f"`by` must be 'all' or one of {list(known)}, got {by!r}.{did_you_mean(by, known)}")
    measure = _class_measure if inside.is_classification else _real_measure
    return {name: measure(name, inside, outside) for name in (known if by == "all" else (by,))}


def _class_measure(name: str, *predictions: Prediction) -> np.ndarray:
    if name == "max_prob":
        return np.concatenate([1 - as_columns(each.class_probs.amax(-1)).mean(1) for each in predictions])
    return np.concatenate([as_columns(getattr(prediction, name))[:, 0] for prediction in predictions])


def _real_measure(name: str, inside: Prediction, outside: Prediction) -> np.ndarray:
    variances = [as_columns(getattr(prediction, name)) ** 2 for prediction in (inside, outside)]
    if variances[0].shape[1] != variances[1].shape[1]:
        raise InputError(f"Predictions inside and outside must have as many columns, got {inside!r} and {outside!r}.")
    usual = variances[0].mean(0)
    return np.sqrt((np.concatenate(variances) / np.where(usual > 0, usual, 1.0)).mean(1))
