"""Predictions and their uncertainty over a plane of two inputs."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import AbstractPathEffect, withStroke
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from pyrobnn._core.checks import as_tensor
from pyrobnn._core.errors import REFUSALS, InputError
from pyrobnn._torch.inputs import Inputs, shape_of, single
from pyrobnn.data.in_memory import Data
from pyrobnn.plots._colors import INK, MARKERS, ORANGE, SHADES
from pyrobnn.plots._given import class_name, examples
from pyrobnn.plots._style import Layout, as_array, first_column, legend, panels, plain, title
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.prediction import Prediction

_GRID_SIDE = 80
_CONTOUR_LEVELS = 15
_MOST_POINTS = 400
_MOST_MARKED = 6
_MARK_COLORS = (ORANGE, "white", INK)
_HALO: list[AbstractPathEffect] = [withStroke(linewidth=3.0, foreground="white")]

Surface = tuple[str, np.ndarray, float, float]  # a heading, values at the points, and the ends of their scale


def decision_surface(
    posterior: Posterior | Mixture, data: Any, *, num_draws: int = 200, layout: Layout = "row"
) -> Figure:
    """Draw predictions over two inputs beside their uncertainty, with the data.

    Classes: the probability of class 1 (of the most probable class if there are more than two), with lines where the
    predicted class changes; the entropy; and its epistemic part, the mutual information of class and weights. Other
    targets: the mean, the standard deviation, and its epistemic part; of several, the first. At most 400 examples.

    Args:
        posterior: a posterior, or a mixture, over a network with two inputs.
        data: the training data: `Data`, a pair (x, y), or a loader.
        num_draws: number of posterior draws.
        layout: panels in a "row" or in a "column".

    Raises:
        InputError: no posterior, or not two inputs.

    Examples:
        >>> data = bnn.Data([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]], [0, 1, 1])
        >>> model = bnn.BNN(bnn.MLP(2, [10], 2), likelihood="categorical")
        >>> posterior = model.fit(data, steps=20, seed=0, progress=False)
        >>> figure = bnn.plots.decision_surface(posterior, data, num_draws=20)
    """
    data = examples([posterior], data)
    if isinstance(data.x, Inputs) or data.x.ndim != 2 or data.x.shape[1] != 2:
        others = "`reliability(posterior.predict(x), y)` or `observed_vs_predicted(posterior.predict(x), y)` for more"
        got = f"got x of shape {shape_of(data.x)}"
        raise InputError(f"`decision_surface` draws two inputs, {got}: use `fit_1d` for 1 input, and {others}.")
    plane = Plane.of(posterior, data, num_draws=num_draws)
    figure, axes = panels(len(plane.surfaces), layout)
    for number, axis in enumerate(axes):
        plane.draw(axis, number)
    return figure


@dataclasses.dataclass(frozen=True, eq=False)
class Plane:
    """Predictions over the plane of two inputs, to be drawn surface by surface, the last that of epistemic uncertainty.

    `mesh` has the coordinates of the points, each (side, side), `probs` the probabilities there, (side^2, C), or None.
    """

    data: Data
    mesh: Sequence[np.ndarray]
    surfaces: list[Surface]
    probs: np.ndarray | None
    class_names: Sequence[str] = ()

    @classmethod
    def of(
        cls, posterior: Posterior | Mixture, data: Data, *, num_draws: int, class_names: Sequence[str] = ()
    ) -> "Plane":
        """Predict over the range of two inputs and a third of it on either side, or at their values if need be."""
        x = single(data.x, "A plane")
        try:
            low, high = as_array(x.amin(0)).astype(np.float64), as_array(x.amax(0)).astype(np.float64)
            margin = np.where(high > low, 0.3 * (high - low), 1.0)
            mesh = np.meshgrid(*np.linspace(low - margin, high + margin, _GRID_SIDE).T)
            prediction = posterior.predict(_points(mesh, data), num_draws=num_draws)
        except REFUSALS:
            mesh = np.meshgrid(*(as_array(x[:, column].unique()) for column in range(2)))
            prediction = posterior.predict(_points(mesh, data), num_draws=num_draws)
        if prediction.is_classification:
            surfaces = _of_classes(prediction, class_name(1, class_names, "class "))
            return cls(data, mesh, surfaces, _probs(prediction), class_names)
        return cls(data, mesh, _of_numbers(prediction, plain(data.target_name)), None)

    def draw(self, axis: Axes, number: int) -> None:
        """Draw a surface with its colour scale and the data; on the first surface, also the lines between classes."""
        heading, values, low, high = self.surfaces[number]
        levels = np.linspace(low, max(high, low + 1e-6), _CONTOUR_LEVELS + 1)
        surface = axis.contourf(*self.mesh, values.reshape(self.mesh[0].shape), levels=levels, cmap=SHADES)
        axis.figure.colorbar(surface, ax=axis, ticks=MaxNLocator(5, steps=[1, 2, 5, 10]))
        title(axis, heading)
        axis.set(xlabel=plain(self.data.feature_names[0]), ylabel=plain(self.data.feature_names[1]))
        self._draw_points(axis)
        if number == 0 and self.probs is not None:
            for label in range(1 if self.probs.shape[1] == 2 else 0, self.probs.shape[1]):  # lines between classes
                margin = self.probs[:, label] - np.delete(self.probs, label, 1).max(1)
                if margin.min() < 0 < margin.max():
                    lines = axis.contour(*self.mesh, margin.reshape(self.mesh[0].shape), levels=[0.0], colors=[INK])
                    lines.set(linewidths=1.2, path_effects=_HALO)
            if axis.get_legend_handles_labels()[0]:
                legend(axis, loc="lower left", frameon=True, framealpha=0.85, handletextpad=0.2)

    def _draw_points(self, axis: Axes) -> None:
        rows = np.linspace(0, len(self.data) - 1, min(_MOST_POINTS, len(self.data))).round().astype(int)
        x, y = as_array(single(self.data.x, "A plane"))[rows], first_column(self.data.y)[rows]
        labels = np.unique(y).astype(int)
        if self.probs is None or len(labels) > _MOST_MARKED:
            axis.plot(*x.T, "o", color=ORANGE, mec=INK, mew=0.5, ms=3)
            return
        for label in labels:
            face, marker = _MARK_COLORS[label % len(_MARK_COLORS)], MARKERS[label % len(MARKERS)]
            edge, name = "white" if face == INK else INK, class_name(int(label), self.class_names, "class ")
            axis.plot(*x[y == label].T, marker, color=face, mec=edge, mew=0.6, ms=5, label=name)


def _points(mesh: Sequence[np.ndarray], data: Data) -> Tensor:
    return as_tensor(np.stack([side.ravel() for side in mesh], 1), "x").to(single(data.x, "A plane").dtype)


def _of_classes(prediction: Prediction, second: str) -> list[Surface]:
    probs = _probs(prediction)
    num_classes = probs.shape[1]
    if num_classes == 2:
        first = (f"Probability of {second}", probs[:, 1], 0.0, 1.0)
    else:
        first = ("Probability of the predicted class", probs.max(1), 1 / num_classes, 1.0)
    measures = {
        "Entropy (nats)": prediction.entropy,
        "Epistemic: mutual information (nats)": prediction.mutual_information,
    }
    return [first, *((heading, as_array(values), 0.0, float(values.max())) for heading, values in measures.items())]


def _probs(prediction: Prediction) -> np.ndarray:
    """Return the probabilities of the classes, (N, C); of several binary targets, of the first."""
    probs = as_array(prediction.class_probs)
    return probs if probs.ndim == 2 else probs[:, 0]


def _of_numbers(prediction: Prediction, target: str) -> list[Surface]:
    mean = first_column(prediction.mean)
    measures = {
        f"Standard deviation of {target}": prediction.std,
        f"Epistemic standard deviation of {target}": prediction.epistemic_std,
    }
    spreads = ((heading, first_column(values)) for heading, values in measures.items())
    each = [(heading, spread, 0.0, float(spread.max())) for heading, spread in spreads]
    return [(f"Mean of {target}", mean, float(mean.min()), float(mean.max())), *each]
