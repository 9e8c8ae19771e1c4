"""The images with the most uncertain classes."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from pyrobnn._core.checks import as_tensor, check_inputs
from pyrobnn._core.errors import InputError, did_you_mean
from pyrobnn.data.in_memory import Data
from pyrobnn.plots._colors import INK, ORANGE
from pyrobnn.plots._given import class_name
from pyrobnn.plots._style import as_array, first_column, grid
from pyrobnn.posterior.prediction import Prediction

_IMAGES_ACROSS = 4
_PANEL_INCHES = (1.5, 2.05)
_FEW_PIXELS = 16  # on a side, below which images are smoothed: single pixels hide what they show

_MEASURES: dict[str, tuple[str, Callable[[Prediction], np.ndarray]]] = {
    "entropy": ("entropy", lambda prediction: as_array(prediction.entropy)),
    "mutual_information": ("mutual inf.", lambda prediction: as_array(prediction.mutual_information)),
    "confidence": ("confidence", lambda prediction: as_array(prediction.class_probs.amax(-1))),
}


def images(
    x: ArrayLike | Data, prediction: Prediction, *, by: str = "entropy", num: int = 12, class_names: Sequence[str] = ()
) -> Figure:
    """Draw the images with the least certain class, most uncertain first, with label, prediction and uncertainty.

    Wrong predictions have a thick frame.

    Args:
        x: images (N, H, W), (N, 1, H, W), (N, 3, H, W), or rows of the pixels of square grey images, (N, H * H); or
            `Data`, so that the labels are known.
        prediction: the prediction of their classes.
        by: "entropy"; "mutual_information", its epistemic part; or "confidence", the probability of the predicted
            class, least first.
        num: number of images.
        class_names: names of the classes; their numbers if not given.

    Raises:
        InputError: another measure, real or several targets, inputs that are not images, or not the inputs of the
            prediction.

    Examples:
        >>> digits = bnn.datasets.load("digits").data[:50]
        >>> model = bnn.BNN(bnn.MLP(64, [10], 10), likelihood="categorical")
        >>> posterior = model.fit(digits, guide="map", steps=20, seed=0, progress=False)
        >>> figure = bnn.plots.images(digits, posterior.predict(digits.x, num_draws=1), num=4)
    """
    if by not in _MEASURES:
        known = tuple(_MEASURES)
        raise InputError(f"`by` must be one of {list(known)}, got {by!r}.{did_you_mean(by, known)}")
    if not prediction.is_classification or prediction.label.ndim != 1:
        raise InputError(f"`images` needs predictions of a single class each, got {prediction!r}: fit a classifier.")
    labels = first_column(x.y).astype(int) if isinstance(x, Data) else None
    pixels = _pixels(x.x if isinstance(x, Data) else x, len(prediction))
    short, measure = _MEASURES[by]
    values = measure(prediction)
    rows = np.argsort(values if by == "confidence" else -values, kind="stable")[: max(1, num)]
    predicted = as_array(prediction.label).astype(int)
    figure, axes = grid(len(rows), _IMAGES_ACROSS, _PANEL_INCHES)
    smooth = "bicubic" if max(pixels.shape[1:3]) < _FEW_PIXELS else None
    limits = {"vmin": pixels[rows].min(), "vmax": pixels[rows].max()}
    for axis, row in zip(axes, rows, strict=True):
        axis.imshow(pixels[row], cmap="gray", interpolation=smooth, **limits)
        axis.set(xticks=[], yticks=[])
        axis.spines[:].set_visible(labels is not None and bool(labels[row] != predicted[row]))
        axis.spines[:].set(color=ORANGE, linewidth=3)
        named = [class_name(int(codes[row]), class_names, "") for codes in (labels, predicted) if codes is not None]
        axis.set_title(f"{' → '.join(named)}\n{short} {values[row]:.2f}", fontsize=8.5, color=INK)
    heading = "prediction" if labels is None else "label → prediction, framed if wrong"
    unit = f"; {short} in nats" if by in ("entropy", "mutual_information") else ""
    figure.suptitle(f"{heading}{unit}", fontsize=9, x=0.01, ha="left")
    return figure


def _pixels(x: Any, num: int) -> np.ndarray:
    """Return grey images (N, H, W), or coloured images (N, H, W, 3) with values in [0, 1]."""
    given = as_tensor(x, "x")
    check_inputs(given)
    if len(given) != num:
        raise InputError(f"`x` must hold the {num} images of the prediction, got {len(given)}.")
    values = as_array(given)
    side = round(values[0].size ** 0.5)
    if values.ndim == 2 and side * side == values.shape[1]:
        return values.reshape(num, side, side)
    if values.ndim == 3:
        return values
    if values.ndim == 4 and values.shape[1] in (1, 3):
        moved = np.moveaxis(values, 1, -1)
        return moved[..., 0] if values.shape[1] == 1 else (moved - moved.min()) / max(np.ptp(moved), 1e-12)
    expected = "images (N, H, W), (N, 1 or 3, H, W), or rows of square images"
    raise InputError(f"`x` must be {expected}, got shape {tuple(values.shape)}: reshape it.")
