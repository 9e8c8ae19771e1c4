"""Classes that a fit never predicts."""

import math
from collections.abc import Sequence

from torch import Tensor

from pyrobnn._core.remedies import Remedy
from pyrobnn.diagnostics.findings import CLASSES, TOO_FEW, Finding
from pyrobnn.posterior.prediction import Prediction
from pyrobnn.verdict.judgement import RARE

_MOST_NAMED = 3
_NORMAL = 1.96
"""Standard deviations that hold 95 % of a normal distribution."""


def _counted(hits: Tensor) -> tuple[str, str]:
    """Return how many of the rows are True, and the share of all rows that this says, as words.

    The share has 95 % confidence (Wilson 1927).
    """
    num, hit = len(hits), int(hits.sum())
    near = (hit + _NORMAL**2 / 2) / (num + _NORMAL**2)
    half = _NORMAL * math.sqrt(hit * (num - hit) / num + _NORMAL**2 / 4) / (num + _NORMAL**2)
    return f"{hit} of {num}", f"{max(0.0, near - half):.0%} to {min(1.0, near + half):.0%}".replace("%", " %")


def never_predicted(
    prediction: Prediction, y: Tensor, labels: Tensor, class_names: Sequence[str] = ()
) -> list[Finding]:
    """Note the classes among targets y (N,) that are the most probable class of none of the N predictions.

    The remedy is a threshold for the rarest of them that training has, if it is rare: its share of the training labels
    (M,). There is none if no example of the class is above it.
    """
    predicted = set(prediction.label.unique().tolist())
    missed = [int(label) for label in y.unique() if int(label) not in predicted]
    if not missed:
        return []
    shares = {label: float((labels == label).double().mean()) for label in missed}
    rarest = min((label for label in missed if shares[label]), key=shares.__getitem__, default=None)
    names = {label: repr(class_names[label]) if class_names else str(label) for label in missed}
    others = f" and {len(missed) - _MOST_NAMED} others" if len(missed) > _MOST_NAMED else ""
    listed = ", ".join([*names.values()][:_MOST_NAMED]) + others
    number = sum(int((y == label).sum()) for label in missed)
    text = (
        f"No example is predicted as {listed}, though {number} of {len(y)} {'is one' if number == 1 else 'are'}: "
        "another class is more probable each time."
    )
    plain = f"the most probable class is never {listed}, so the classes alone are of no use to find it"
    if rarest is None or shares[rarest] > RARE:
        return [Finding(CLASSES, "note", text, plain=plain)]
    limit = f"{shares[rarest]:.2g}"
    said, is_one = prediction.class_probs[:, rarest].cpu() > float(limit), y.cpu() == rarest
    usual = f"This is usual for a rare class: its share in training is {limit}."
    if not (said & is_one).any():
        return [Finding(CLASSES, "note", f"{text} {usual}", plain=plain)]
    caught, called = _counted(said[is_one]), _counted(said[~is_one])
    price = f"to find {caught[0]} ({caught[1]} of those to come), and call {called[0]} others so ({called[1]})"
    column = f"prob_{class_names[rarest]}" if class_names else "its probability"
    rule = Remedy(
        f"say {names[rarest]} where `prediction.class_probs[:, {rarest}] > {limit}`, {price}",
        f"say {names[rarest]} where {column} is above {limit}, {price}",
    )
    found = (
        f"the most probable class is never {listed}: say {names[rarest]} above a probability of {limit}, which finds "
        f"{caught[0]}{', too few to tell how many of those to come' if int(is_one.sum()) < TOO_FEW else ''}"
    )
    return [Finding(CLASSES, "note", f"{text} {usual}", remedies=(rule,), plain=found)]
