"""Priors of the scales that the evidence tunes: of precisions, and of noise."""

import dataclasses

_COUNTS, _ROWS_FOR_EACH_INPUT = 4.0, 6
"""Weights that the prior of a precision counts where rows are few, and from how many rows they are not."""
_PRIOR_SHARE, NOISE_SHARE = 0.02, 0.1
"""Mean square of counted weights, as a share of the declared variance, and of counted targets, as a share of theirs.
Weights that interpolate a few rows leave nothing to tell the noise by, and the noise then falls to its least value."""


@dataclasses.dataclass(frozen=True)
class Hyperprior:
    """What is believed of scales before the data: gamma priors of precisions, and the price of weights.

    Attributes:
        counts: weights that each group counts as well as what the data determine: the shape of the prior of its
            precision, in halves.
        share: mean square of the counted weights, as a share of the variance that the prior declares. A group then
            counts no more weights than it has. None for a mean square of 1, and no bound.
        noise_counts: targets that Gaussian noise counts likewise, of a mean square of a tenth of their variance.
        penalty: nats that the leave-one-out score loses for each weight that the data determine.
    """

    counts: float = 0.0
    share: float | None = None
    noise_counts: float = 0.0
    penalty: float = 0.0

    @classmethod
    def of_real_targets(cls, num_data: float, num_inputs: int, counts: float | None = None) -> "Hyperprior":
        """Return the prior for real targets: that of few rows below six for each input, unless counts are given."""
        if counts is None:
            counts = _COUNTS if num_data < _ROWS_FOR_EACH_INPUT * num_inputs else 0.0
        return cls(counts, _PRIOR_SHARE, min(counts, 1.0), penalty=1.0)


FLAT = Hyperprior()
