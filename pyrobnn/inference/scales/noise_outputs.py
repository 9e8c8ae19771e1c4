"""Normal noise that is an output of the network, at a mode: the same for all rows first, and free after that."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn.functional import softplus

from pyrobnn.likelihoods.noise import SMALLEST_SCALE


class NoiseOutputs:
    """The weights that lead to the noise alone, and how uncertain the locations are under which they are fitted.

    Residuals of a mode are too small to tell the noise by, as the mode was fitted to the targets. So the energy has the
    mean of log p(y | f) over the posterior of the locations, which is (log p(y | f + d) + log p(y | f - d)) / 2 for
    normal noise, d the posterior deviation of f. Where noise is the same for all rows, it is least at MacKay's fixed
    point. First the noise is held the same for all rows, so that it cannot explain what the locations have yet to fit.

    Args:
        weights: values by site.
        columns: number of target columns K where the network has 2 K outputs; 0 where noise is no output.
        num: number of rows.

    Attributes:
        columns: K, or 0.
        belongs: which weights lead to the noise alone, flat over the sites.
        is_held: whether the noise is the same for all rows.
    """

    def __init__(self, weights: Mapping[str, Tensor], columns: int, num: int) -> None:
        like = next(iter(weights.values()))
        self.columns, self.is_held = columns, False
        self._deviation = like.new_zeros(num, 2 * columns)
        wide = {name: value.ndim for name, value in weights.items() if columns and len(value) == 2 * columns}
        last = {num_axes: name for name, num_axes in wide.items() if num_axes in (1, 2)}
        self._matrix, self._bias = last.get(2), last.get(1)
        masks = {name: torch.zeros_like(value, dtype=torch.bool) for name, value in weights.items()}
        for name in last.values():
            masks[name][columns:] = True
        self.belongs = torch.cat([mask.reshape(-1) for mask in masks.values()])

    def hold(self, weights: Mapping[str, Tensor], scale: Tensor) -> None:
        """Give all rows the noise of a standard deviation for each column, (K,), by the bias of the last layer.

        The noise of a network without a last layer of weights and biases stays as it is.
        """
        if self._matrix is None or self._bias is None:
            return
        self.is_held = True
        weights[self._matrix][self.columns :] = 0
        weights[self._bias][self.columns :] = _output_of(scale).to(weights[self._bias])

    def with_scale(self, f: Tensor, scale: Tensor) -> Tensor:
        """Return outputs (N, 2 K) with noise of a standard deviation for each column, (K,)."""
        return torch.cat([f[:, : self.columns], _output_of(scale).to(f).expand(len(f), -1)], 1)

    def look(self, f: Tensor, covariance: Tensor) -> Tensor:
        """Take in the posterior covariance of the outputs, (N, 2 K, 2 K).

        Args:
            f: the outputs, (N, 2 K).
            covariance: of the outputs of each row.

        Returns:
            The share of each location's variance in that of the noise, (N, K).
        """
        variance = covariance.diagonal(dim1=1, dim2=2)[:, : self.columns].clamp_min(0)
        self._deviation[:, : self.columns] = variance.sqrt().to(self._deviation)
        noise = softplus(f[:, self.columns :].double()) + SMALLEST_SCALE
        return variance / noise.square()

    def over_locations(self, log_prob: Callable[[Tensor], Tensor], f: Tensor) -> Tensor:
        """Return the mean of a log density of normal targets over the posterior of the locations around outputs f."""
        if not self.columns:
            return log_prob(f)
        return (log_prob(f + self._deviation) + log_prob(f - self._deviation)) / 2

    def free(self, values: Tensor) -> Tensor:
        """Return numbers for each weight, (P,), with 0 for those of noise that is held."""
        return values.masked_fill(self.belongs.to(values.device), 0) if self.is_held else values

    def held_in(self, slope: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Return a function's value and gradient, first that of the weights, which leaves held noise where it is."""

        def masked() -> Tensor:
            found, end = slope(), 1 + len(self.belongs)
            return torch.cat([found[:1], self.free(found[1:end]), found[end:]])

        return masked if self.is_held else slope


def _output_of(scale: Tensor) -> Tensor:
    """Return the output whose softplus, above the smallest scale, is a standard deviation."""
    return (scale.double() - SMALLEST_SCALE).clamp_min(SMALLEST_SCALE / 10).expm1().log()
