"""Whether predictions rank labels better than guessing."""

from torch import Tensor

from pyrobnn.posterior.prediction import Prediction

RARE = 0.2
"""Share of the labels up to which a class is rare."""
_SURE = 0.05
"""The p-value below which an order may be better than guessing, so that a fit is not called of no use."""


def rarest_class(y: Tensor) -> tuple[int, bool]:
    """Return the rarest label that occurs in y (N,), and whether it is rare."""
    labels, counts = y.unique(return_counts=True)
    return int(labels[counts.argmin()]), float(counts.min()) <= RARE * len(y)


def ranks_better(prediction: Prediction, y: Tensor, label: int) -> bool:
    """Return whether the examples of a class have larger probabilities of it than the others, by Mann and Whitney."""
    from scipy.stats import mannwhitneyu

    probs, is_one = prediction.class_probs[:, label].cpu().double(), y.cpu() == label
    if bool(is_one.all()):
        return False
    p_value = mannwhitneyu(probs[is_one].numpy(), probs[~is_one].numpy(), alternative="greater").pvalue
    return bool(p_value < _SURE)
