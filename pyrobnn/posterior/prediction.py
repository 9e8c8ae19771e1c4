"""Predictions: the exact equal-weight mixture, over posterior draws, of the likelihood's distributions."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from pyrobnn._core.checks import as_targets, as_tensor
from pyrobnn._core.errors import InputError
from pyrobnn._core.random import seeded
from pyrobnn.distributions import support
from pyrobnn.distributions.quantiles import count_quantile, real_quantile
from pyrobnn.distributions.targets import LabelOrIgnored
from pyrobnn.likelihoods.base import require_whole
from pyrobnn.posterior.classes import OfClasses
from pyrobnn.posterior.draws import rest_on_few, tell_of_few_draws, variance_over_draws

if TYPE_CHECKING:
    import pandas as pd

_NEAREST_LEVEL = 1e-15
"""How near to 0 and 1 the level of a quantile may come: distribution functions are rounded by 1e-16."""


class Prediction(OfClasses):
    """The predictive distribution of the targets at N inputs: a mixture of S distributions for each input.

    p(y | x) = 1/S sum_s p(y | x, w_s). Everything is in the original units of y. It is in float64 where targets were
    standardised, so that targets far from zero keep their digits. Shapes are for K target columns; with a single column
    the axis K is absent. Class labels count as one-hot vectors: C classes give means and variances (N, C). Bernoulli
    targets count as 0 and 1.

    Args:
        distribution: the likelihood's distribution for each draw and input in the model's units, batch shape (S, N).
        scaler: the map between the units of the model and the original units, if targets were standardised.

    Attributes:
        distribution: as given.
        scaler: as given, or the map that changes nothing.
        first_row: the number of the first input, for warnings: not 0 for a later block of a table.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(2, [10], 3), likelihood="categorical")
        >>> posterior = model.fit([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]], [0, 1, 2], steps=20, seed=0, progress=False)
        >>> prediction = posterior.predict([[0.5, 0.5]], num_draws=100)
        >>> prediction
        Prediction(Categorical, num_draws=100, num_inputs=1)
        >>> prediction.class_probs.shape, prediction.label.shape
        (torch.Size([1, 3]), torch.Size([1]))
    """

    first_row = 0

    @property
    def draw_means(self) -> Tensor:
        """The mean of the targets under each draw, (S, N, K)."""
        return self._original(self._component_means)

    @property
    def mean(self) -> Tensor:
        """The mean of the mixture, (N, K).

        For counts and positive targets it may lie far above most draws. If its logarithm is uncertain by more than 1,
        as is common under a Laplace approximation, a few draws with large means make up the mean. A warning names these
        inputs. The median, `quantile(0.5)`, does not depend on such draws.

        Raises:
            InputError: a distribution whose mean is not known.

        Warns:
            FewDrawsWarning: `rests_on_few_draws` at some input.
        """
        self._require("mean")
        tell_of_few_draws(self.rests_on_few_draws, self.num_draws, self.first_row)
        return self._original(self.by_rows(lambda part: part._component_means.mean(0)))

    @property
    def rests_on_few_draws(self) -> Tensor:
        """The inputs (N,) where less than a fifth of the draws make up the mean; nowhere for targets with negatives.

        The effective number of draws, (sum m)^2 / sum m^2 of the means m under each draw (Kish 1965), is below S / 5
        where the deviation of m is above twice its mean.

        Examples:
            >>> from pyro.distributions import Poisson
            >>> rates = torch.tensor([[1.0, 1.0]] * 9 + [[1.0, 99.0]])  # ten draws at two inputs, the tenth far off
            >>> bnn.Prediction(Poisson(rates)).rests_on_few_draws
            tensor([False,  True])
        """
        if not self._is_positive:
            return torch.zeros(len(self), dtype=torch.bool, device="cpu")
        return self.by_rows(lambda part: rest_on_few(part._component_means))

    @property
    def epistemic_variance(self) -> Tensor:
        """The variance over draws of their means, (N, K): the part that more data would remove."""
        return self._original_variance(self._epistemic)

    @property
    def _epistemic(self) -> Tensor:
        self._require("mean")
        return self.by_rows(lambda part: variance_over_draws(part._component_means))

    @property
    def aleatoric_variance(self) -> Tensor:
        """The mean over draws of their variances, (N, K): the part that stays (Kendall & Gal 2017).

        Infinite, and the total variance with it, for Student-t targets with at most 2 degrees of freedom.
        """
        return self._original_variance(self._aleatoric)

    @property
    def _aleatoric(self) -> Tensor:
        if self.is_classification:
            return self.by_rows(lambda part: (part._probs * (1 - part._probs)).mean(0))
        self._require("variance")
        return self.by_rows(lambda part: part.distribution.variance.mean(0))

    @property
    def variance(self) -> Tensor:
        """The variance of the mixture, (N, K): epistemic + aleatoric, by the law of total variance."""
        return self.epistemic_variance + self.aleatoric_variance

    @property
    def epistemic_std(self) -> Tensor:
        """Square root of the epistemic variance, (N, K)."""
        return self._original_std(self._epistemic)

    @property
    def aleatoric_std(self) -> Tensor:
        """Square root of the aleatoric variance, (N, K)."""
        return self._original_std(self._aleatoric)

    @property
    def std(self) -> Tensor:
        """Square root of the variance, (N, K)."""
        return self._original_std(self._epistemic + self._aleatoric)

    def log_prob(self, y: ArrayLike) -> Tensor:
        """Return the log score of targets under the mixture, log 1/S sum_s p(y_n | x_n, w_s), per example (N,).

        It is -inf for targets without density under any draw, such as negative targets under a log-normal likelihood.

        Args:
            y: targets in original units, (N,) or (N, K).

        Raises:
            InputError: not numeric, not finite, not one row per input, labels out of range, or counts that are negative
                or not whole.

        Examples:
            >>> model = bnn.BNN(bnn.MLP(1, [10], 1), likelihood=bnn.likelihoods.Gaussian(scale=1.0))
            >>> data = bnn.datasets.sinusoid()
            >>> posterior = model.fit(data, guide="laplace", steps=50, seed=0, progress=False)
            >>> posterior.predict(data.x).log_prob(data.y).shape  # in nats; the mean is the log score
            torch.Size([32])
        """
        targets = self._checked(y)
        total = self.by_rows(lambda part, rows: torch.logsumexp(part._log_prob(rows), 0), targets)
        return total - math.log(self.num_draws)

    def draw_log_prob(self, y: ArrayLike) -> Tensor:
        """Return the log density (or probability) of targets under each draw, (S, N)."""
        return self.by_rows(lambda part, rows: part._log_prob(rows), self._checked(y), dim=1)

    def _log_prob(self, targets: Tensor) -> Tensor:
        """Return the log density of targets in original units that were checked, under each draw, (S, N)."""
        if self.is_classification:
            return self._unchecked.log_prob(targets)
        return self.scaler.inverse_log_prob(support.log_prob(self._unchecked, self._scaled(targets)))

    def _checked(self, y: ArrayLike) -> Tensor:
        """Return targets that were checked: in original units, and labels as the distribution takes them."""
        targets = self._targets(y)
        if self.is_count and self._is_nonnegative:
            require_whole(targets, type(self._base).__name__, "counts")
        if not self.is_classification:
            return targets
        labels = targets
        if isinstance(self._base, LabelOrIgnored):
            labels = torch.where(targets == self._base.ignore_index, 0, targets)
        require_whole(labels, "A classification likelihood")
        if int(labels.max()) >= self._num_classes:
            raise InputError(f"Labels must lie below the {self._num_classes} classes, got {int(labels.max())}.")
        return targets.to(self._like)

    def _scaled(self, targets: Tensor) -> Tensor:
        """Return targets in the units and the precision of the model."""
        return self.scaler.transform(targets).to(self._like)

    def sample(self, num_samples: int | None = None, *, seed: int) -> Tensor:
        """Draw targets from the mixture; all inputs of a sample share a posterior draw.

        Args:
            num_samples: number of samples T, at least 1, or None for one per draw, in the order of the draws.
            seed: seed of the random numbers.

        Returns:
            Targets in original units, (T, N, K) or (S, N, K).

        Examples:
            >>> model = bnn.BNN(bnn.MLP(1, [10], 1), likelihood="poisson")
            >>> posterior = model.fit([[0.0], [1.0]], [1, 3], steps=20, seed=0, progress=False)
            >>> posterior.predict([[0.0], [0.5], [1.0]]).sample(10, seed=0).shape
            torch.Size([10, 3])
        """
        if num_samples is not None and (num_samples < 1 or num_samples != int(num_samples)):
            raise InputError(f"`num_samples` must be a whole number, 1 or more, or None; got {num_samples}.")
        rounds = 1 if num_samples is None else math.ceil(num_samples / self.num_draws)
        with seeded(seed, "targets"):
            values = self.distribution.sample((rounds,)).flatten(0, 1)
            if num_samples is not None:
                values = values[torch.randperm(len(values))[: int(num_samples)].to(values.device)]
        return self._original(values)

    def cdf(self, y: ArrayLike) -> Tensor:
        """Return the distribution function P(Y <= y) of the mixture at targets, (N, K).

        It is 0 below all possible targets and 1 above them, and uniform on (0, 1) for calibrated predictions of targets
        with a density (`is_continuous`).

        Args:
            y: targets in original units, (N,) or (N, K).

        Raises:
            InputError: not the shape of the predictions, or a likelihood without a distribution function.

        Examples:
            >>> from pyro.distributions import Normal
            >>> prediction = bnn.Prediction(Normal(torch.zeros(2, 1), 1.0))  # two equal draws at one input
            >>> prediction.cdf([0.0])
            tensor([0.5000])
        """
        self._require_quantiles("Values of the distribution function")
        return self.by_rows(
            lambda part, y: support.cdf(support.base_of(part._unchecked), part._scaled(y)).mean(0), self._targets(y)
        )

    def quantile(self, q: float | Sequence[float]) -> Tensor:
        """Return quantiles of the mixture by its distribution function: for counts, the smallest y with P(Y <= y) >= q.

        Args:
            q: a level in (0, 1), or several, at least 1e-15 from 0 and 1.

        Returns:
            (N, K) for a single level, (len(q), N, K) for several.

        Raises:
            InputError: a level outside that range, or a likelihood without a distribution function.

        Examples:
            >>> from pyro.distributions import Normal
            >>> prediction = bnn.Prediction(Normal(torch.tensor([[-3.0], [3.0]]), 1.0))  # two draws at one input
            >>> prediction.quantile([0.25, 0.75]).round(decimals=2)
            tensor([[-3.],
                    [ 3.]])
        """
        levels = as_tensor(q, "q").double().cpu()
        nearest = torch.minimum(levels, 1 - levels)
        if not levels.numel() or levels.ndim > 1 or not bool((nearest >= _NEAREST_LEVEL).all()):
            least = f"{_NEAREST_LEVEL:g} away from 0 and 1"
            raise InputError(f"Quantile levels must lie between 0 and 1, {least} or more, one or a list; got {q}.")
        self._require_quantiles("Quantiles")
        found = self.by_rows(lambda part: part._quantiles(levels.flatten().tolist()), dim=1).to(self._like)
        return self.scaler.inverse(found.reshape(*levels.shape, *found.shape[1:]))

    def _quantiles(self, levels: list[float]) -> Tensor:
        """Return the quantiles at some levels, (L, N, K), in the model's units."""
        components, eps = self.components, torch.finfo(self._like.dtype).eps
        if self.is_count:
            return torch.stack([count_quantile(components, level) for level in levels])
        return torch.stack([real_quantile(components, level, eps) for level in levels])

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Return the bounds (lower, upper) of the equal-tailed interval that holds `level` of the mixture, (N, K).

        For counts, and for censored targets at a limit, it holds at least `level`. It includes both bounds.

        Examples:
            >>> from pyro.distributions import Normal
            >>> prediction = bnn.Prediction(Normal(torch.zeros(1, 1), 1.0))  # one draw at one input
            >>> [round(float(bound), 2) for bound in prediction.interval(0.95)]
            [-1.96, 1.96]
        """
        if not 0 < level < 1:
            raise InputError(f"`level` must lie between 0 and 1, got {level}.")
        lower, upper = self.quantile([(1 - level) / 2, (1 + level) / 2])
        return lower, upper

    def to_frame(self, class_names: Sequence[str] | None = None) -> "pd.DataFrame":
        """Return a pandas table with a row for each input, for one target column.

        Of numbers it has the mean, standard deviations and the 95 % interval, and of counts and positive numbers first
        the median, which does not depend on a few large draws; of classes the most probable class, the probability of
        each, entropy and mutual information.

        Args:
            class_names: the names of the classes; their numbers if not given.

        Raises:
            InputError: several target columns, numbers without quantiles, or names that are too few or too many.

        Examples:
            >>> from pyro.distributions import Normal
            >>> prediction = bnn.Prediction(Normal(torch.zeros(2, 1), 1.0))  # two draws at one input
            >>> list(prediction.to_frame())
            ['mean', 'std', 'epistemic_std', 'aleatoric_std', 'lower_95', 'upper_95']
        """
        import pandas as pd

        shape = self.distribution.event_shape
        if shape:
            raise InputError(f"A table has one target column, got predictions of {tuple(shape)} targets an input.")
        if not self.is_classification:
            names = ("mean", "std", "epistemic_std", "aleatoric_std")
            lower, upper = self.interval(0.95)
            columns = {"median": self.quantile(0.5)} if self._is_positive else {}
            columns |= {name: getattr(self, name) for name in names} | {"lower_95": lower, "upper_95": upper}
            return pd.DataFrame({name: values.cpu().numpy() for name, values in columns.items()})
        probs = self.class_probs.cpu().numpy()
        labels = [str(number) for number in range(probs.shape[1])] if class_names is None else list(class_names)
        if len(labels) != probs.shape[1]:
            raise InputError(f"`class_names` must name {probs.shape[1]} classes, got {len(labels)} names.")
        frame = pd.DataFrame(probs, columns=[f"prob_{name}" for name in labels])
        frame.insert(0, "class", [labels[number] for number in self.label.tolist()])
        doubt = {"entropy": self.entropy, "mutual_information": self.mutual_information}
        return frame.assign(**{name: values.cpu().numpy() for name, values in doubt.items()})

    def _targets(self, y: ArrayLike) -> Tensor:
        targets = as_targets(y, len(self))
        expected = (len(self), *self.distribution.event_shape)
        if tuple(targets.shape) != expected:
            raise InputError(f"`y` must have the shape of the predictions, {expected}; got {tuple(targets.shape)}.")
        return targets

    def _require_quantiles(self, quantity: str) -> None:
        if not self.has_quantiles:
            raise InputError(
                f"{quantity} need real-valued targets or counts whose distribution function is known, not targets of "
                f"{type(self._base).__name__}: use quantiles of `sample`."
            )

    @property
    def _component_means(self) -> Tensor:
        """The mean under each draw in the model's units, (S, N, K)."""
        return self._probs if self.is_classification else self.distribution.mean

    def _original(self, values: Tensor) -> Tensor:
        """Return values in original units."""
        return values if self.is_classification else self.scaler.inverse(values)

    def _original_std(self, variance: Tensor) -> Tensor:
        """Return the square root in original units, where the variance itself may be beyond the precision's range."""
        return variance.sqrt() if self.is_classification else self.scaler.inverse_scale(variance.sqrt())

    def _original_variance(self, variance: Tensor) -> Tensor:
        """Return a variance in original units."""
        if self.is_classification:
            return variance
        return self.scaler.inverse_scale(self.scaler.inverse_scale(variance))
