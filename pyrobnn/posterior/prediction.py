"""Predictions: the exact equal-weight mixture, over posterior draws, of the likelihood's distributions."""

import functools
import math
from collections.abc import Callable, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, cast

import torch
from numpy.typing import ArrayLike
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution

from pyrobnn._core.checks import as_targets, as_tensor
from pyrobnn._core.errors import FewDrawsWarning, InputError, warn_user
from pyrobnn._core.random import seeded
from pyrobnn._core.remedies import Remedy, current_spelling
from pyrobnn.data.in_memory import row_index
from pyrobnn.data.loader import Loader, as_loader
from pyrobnn.distributions import support
from pyrobnn.distributions.latents import concatenate
from pyrobnn.distributions.parts import converted, in_double, take_apart
from pyrobnn.distributions.quantiles import count_quantile, real_quantile
from pyrobnn.distributions.support import Components
from pyrobnn.distributions.targets import CensoredNormal, LabelOrIgnored
from pyrobnn.distributions.units import Scaler
from pyrobnn.likelihoods.base import require_whole
from pyrobnn.tables.column_reader import rows_of

if TYPE_CHECKING:
    import pandas as pd

_NEAREST_LEVEL = 1e-15
"""How near to 0 and 1 the level of a quantile may come: distribution functions are rounded by 1e-16."""
_AT_ONCE = 2**18
"""Numbers, one per draw and input, computed at a time: they stay in the cache, without fresh memory pages."""
_WIDEST = 2.0
"""Deviation over draws of the mean of counts, as a multiple of that mean, above which the mean is unreliable."""
_FEWEST = 4
"""Effective draws of a variance, and draws beyond a quantile, below which their error is as large as they are."""
MEDIAN = Remedy("take the median in place of the mean", python="`prediction.quantile(0.5)`")
"""What to do where a few draws make up the mean."""
_MOST_OUTCOMES = 1024


class Prediction:
    """The predictive distribution of the targets at N inputs: a mixture of S distributions for each input.

    p(y | x) = 1/S sum_s p(y | x, w_s), in the original units of y, and in float64 where targets were standardised.
    Shapes are for K target columns; with one, the axis K is absent. C classes count as one-hot vectors (N, C).

    Args:
        distribution: the likelihood's distribution for each draw and input in the model's units, batch shape (S, N).
        scaler: the map between the units of the model and the original units, if targets were standardised.

    Attributes:
        scaler: as given; the map that changes nothing if not given, and for classes.
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
    index: Any = None

    def __init__(self, distribution: TorchDistributionMixin, scaler: Scaler | None = None) -> None:
        self.distribution: Any = distribution
        self._told: set[str] = set()
        self.scaler = Scaler.identity() if scaler is None or self.is_classification else scaler

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self._base).__name__}, num_draws={self.num_draws}, num_inputs={len(self)})"

    def __len__(self) -> int:
        return int(self.distribution.batch_shape[1])

    def __getitem__[P: "Prediction"](self: P, rows: Any) -> P:
        """Return the prediction at some inputs: a slice, a boolean mask of length N, or row numbers in one dimension.

        Raises:
            InputError: rows of another kind or beyond N, or a distribution without its arguments as attributes.
        """
        index = row_index(rows, len(self))
        return self._at(converted(self.distribution, lambda values: values[:, index]), index).named_as(self, index)

    def _at[P: "Prediction"](self: P, distribution: Any, rows: Tensor | slice) -> P:
        """Return this prediction at some rows, of which this is the distribution."""
        return type(self)(distribution, self.scaler)

    def named_as[P: "Prediction"](self: P, inputs: Any, rows: Tensor | slice = slice(None)) -> P:
        """Return this prediction with the index of a frame of its inputs, or with rows of that of another."""
        index = inputs.index if hasattr(inputs, "iloc") or isinstance(inputs, Prediction) else None
        self.index = None if index is None else index[rows.numpy() if isinstance(rows, Tensor) else rows]
        return self

    @property
    def by_target[P: "Prediction"](self: P) -> P:
        """The prediction of labels with each target as an input: of K columns or positions, N x K inputs in order.

        Entropy, mutual information and scores are then those of single targets, not of all jointly.
        """
        self._require_classes("Predictions by target")
        last = 1 + len(self.distribution.event_shape)
        return type(self)(converted(self._base, lambda values: values.flatten(1, last)))

    def by_rows(self, function: Callable[..., Tensor], *rows: Tensor, dim: int = 0, width: int = 1) -> Tensor:
        """Return a function of the predictions, applied to a few inputs at a time, so that its memory is bounded.

        Args:
            function: takes a prediction at n of the inputs, and as many rows of each tensor, to a tensor.
            rows: tensors (N, ...) that go with the inputs.
            dim: the axis of its results that counts the inputs.
            width: how many numbers it computes for each number of the distribution.
        """
        if self._parts is None or len(self) == 0:
            return function(self, *rows)
        largest = max(tensor.numel() for tensor in self._parts[0]) // len(self)
        size = max(1, _AT_ONCE // max(1, largest * width))
        if size >= len(self):
            return function(self, *rows)
        slices = [slice(start, start + size) for start in range(0, len(self), size)]
        return torch.cat([function(self[part], *(values[part] for values in rows)) for part in slices], dim)

    @property
    def draw_means(self) -> Tensor:
        """The mean of the targets under each draw, (S, N, K)."""
        return self.scaler.inverse(self._component_means)

    @property
    def mean(self) -> Tensor:
        """The mean of the mixture, (N, K).

        Raises:
            InputError: a distribution whose mean is not known.

        Warns:
            FewDrawsWarning: `rests_on_few_draws` at some input, once for moments and once for outer quantiles.
        """
        self._require("mean")
        self._tell_of_few()
        return self.scaler.inverse(self.by_rows(lambda part: part._component_means.mean(0)))

    def _tell_of_few(self, what: str = "mean, and with it the deviation,") -> None:
        """Warn once of quantities where they rest on a few draws."""
        is_few = self.rests_on_few_draws
        if what not in self._told and bool(is_few.any()):
            self._told.add(what)
            first = self.first_row + (current_spelling.get() == "command")  # rows count from 1 at the command line
            where = f"{int(is_few.sum())} of {len(self)} inputs ({rows_of((is_few.nonzero()[:, 0] + first).tolist())})"
            text = f"The {what} rests on less than a fifth of the {self.num_draws} draws at {where}"
            why = "a few draws predict far larger targets than the others. See docs/how-to/likelihoods.md."
            warn_user(f"{text}: {why}", FewDrawsWarning, remedy=MEDIAN)

    @functools.cached_property
    def rests_on_few_draws(self) -> Tensor:
        """The inputs (N,) where less than a fifth of the draws make up the mean; nowhere for limited targets.

        The effective number of draws (Kish 1965) is below S / 5 where means of positive targets deviate by twice their
        mean. Of real targets it is that of the variance, below 4.
        """
        is_positive, fewest = self.is_positive, min(_FEWEST, self.num_draws / 5)
        ends = support.ends(self._base.support)
        is_limited = not all(torch.as_tensor(end, device="cpu").isinf().all() for end in ends)
        if not is_positive and (fewest <= 1 or is_limited or not self.has_moments):
            return torch.zeros(len(self), dtype=torch.bool, device="cpu")

        def rest_on_few(part: "Prediction") -> Tensor:
            values = part._component_means.double().unsqueeze(-1).flatten(2)
            if is_positive:
                is_shared: Tensor = variance_over_draws(values).sqrt() <= _WIDEST * values.mean(0)
                return ~is_shared.all(1)  # means that are not finite count as few
            parts = (values - values.mean(0)).square() + part.distribution.variance.double().view_as(values)
            is_few = parts.sum(0).square() < fewest * parts.square().sum(0)
            return (is_few | ~values.isfinite().all(0)).any(1)

        return self.by_rows(rest_on_few)

    @property
    def epistemic_variance(self) -> Tensor:
        """The variance over draws of their means, (N, K): the part that more data would remove."""
        return self._original_variance(self._epistemic)

    @property
    def _epistemic(self) -> Tensor:
        self._require("mean")
        self._tell_of_few()
        return self.by_rows(lambda part: variance_over_draws(part._component_means))

    @property
    def aleatoric_variance(self) -> Tensor:
        """The mean over draws of their variances, (N, K): the part that stays (Kendall & Gal 2017)."""
        return self._original_variance(self._aleatoric)

    @property
    def _aleatoric(self) -> Tensor:
        if self.is_classification:
            return self.by_rows(lambda part: (part._probs * (1 - part._probs)).mean(0))
        self._require("variance")
        self._tell_of_few()
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

        Args:
            y: targets in original units, (N,) or (N, K).

        Raises:
            InputError: targets that are not finite, of another shape, or that the likelihood does not know.

        Examples:
            >>> from pyro.distributions import Normal
            >>> bnn.Prediction(Normal(torch.zeros(2, 1), 1.0)).log_prob([0.0])  # in nats; the mean is the log score
            tensor([-0.9189])
        """
        targets = self.checked(y)
        total = self.by_rows(lambda part, rows: torch.logsumexp(part._log_prob(rows), 0), targets)
        return total - math.log(self.num_draws)

    def draw_log_prob(self, y: ArrayLike) -> Tensor:
        """Return the log density (or probability) of targets under each draw, (S, N)."""
        return self.by_rows(lambda part, rows: part._log_prob(rows), self.checked(y), dim=1)

    def _log_prob(self, targets: Tensor) -> Tensor:
        """Return the log density of targets in original units that were checked, under each draw, (S, N)."""
        if self.is_classification:
            return self._unchecked.log_prob(targets)
        values = support.log_prob(self._unchecked, self._scaled(targets))
        return values if self.scaler.is_identity else values.double() - self.scaler.log_volume()

    def checked(self, y: ArrayLike) -> Tensor:
        """Return targets as a tensor in original units, labels as the distribution takes them; refuse others."""
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
        return self.scaler.transform(targets).to(self._like)

    def sample(self, num_samples: int | None = None, *, seed: int) -> Tensor:
        """Draw targets in original units, (T, N, K) or (S, N, K), from the mixture; inputs share a posterior draw.

        Args:
            num_samples: number of samples T, at least 1, or None for one per draw, in the order of the draws.
            seed: seed of the random numbers.

        Examples:
            >>> from pyro.distributions import Poisson
            >>> bnn.Prediction(Poisson(torch.ones(5, 3))).sample(10, seed=0).shape  # five draws at three inputs
            torch.Size([10, 3])
        """
        if num_samples is not None and (num_samples < 1 or num_samples != int(num_samples)):
            raise InputError(f"`num_samples` must be a whole number, 1 or more, or None; got {num_samples}.")
        rounds = 1 if num_samples is None else math.ceil(num_samples / self.num_draws)
        with seeded(seed, "targets"):
            values = self.distribution.sample((rounds,)).flatten(0, 1)
            if num_samples is not None:
                values = values[torch.randperm(len(values))[: int(num_samples)].to(values.device)]
        return self.scaler.inverse(values)

    def cdf(self, y: ArrayLike) -> Tensor:
        """Return the distribution function P(Y <= y) of the mixture at targets in original units, (N, K).

        It is uniform on (0, 1) for calibrated predictions of targets with a density (`is_continuous`).

        Raises:
            InputError: not the shape of the predictions, or a likelihood without a distribution function.

        Examples:
            >>> from pyro.distributions import Normal
            >>> bnn.Prediction(Normal(torch.zeros(2, 1), 1.0)).cdf([0.0])  # two equal draws at one input
            tensor([0.5000])
        """
        self._require_quantiles("Values of the distribution function")
        targets, base_of = self._targets(y), support.base_of
        return self.by_rows(lambda part, y: support.cdf(base_of(part._unchecked), part._scaled(y)).mean(0), targets)

    def quantile(self, q: float | Sequence[float]) -> Tensor:
        """Return quantiles of the mixture by its distribution function: for counts, the smallest y with P(Y <= y) >= q.

        Args:
            q: a level in (0, 1), for (N, K), or several, for (len(q), N, K), at least 1e-15 from 0 and 1.

        Raises:
            InputError: a level outside that range, or a likelihood without a distribution function.

        Examples:
            >>> from pyro.distributions import Normal
            >>> bnn.Prediction(Normal(torch.tensor([[-3.0], [3.0]]), 1.0)).quantile([0.25, 0.75]).round(decimals=2)
            tensor([[-3.],
                    [ 3.]])
        """
        levels = as_tensor(q, "q").double().cpu()
        nearest = torch.minimum(levels, 1 - levels)
        if not levels.numel() or levels.ndim > 1 or not bool((nearest >= _NEAREST_LEVEL).all()):
            least = f"{_NEAREST_LEVEL:g} away from 0 and 1"
            raise InputError(f"Quantile levels must lie between 0 and 1, {least} or more, one or a list; got {q}.")
        self._require_quantiles("Quantiles")
        if self.has_moments and self.num_draws * float(nearest.min()) < _FEWEST:
            self._tell_of_few("quantile")
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

        It includes both bounds, and holds at least `level` of counts.

        Examples:
            >>> from pyro.distributions import Normal
            >>> [round(float(bound), 2) for bound in bnn.Prediction(Normal(torch.zeros(1, 1), 1.0)).interval(0.95)]
            [-1.96, 1.96]
        """
        if not (isinstance(level, Real) and 0 < level < 1):
            raise InputError(f"`level` must lie between 0 and 1, got {level}.")
        lower, upper = self.quantile([(1 - level) / 2, (1 + level) / 2])
        return torch.minimum(lower, upper), upper

    def to_frame(self, class_names: Sequence[str] | None = None) -> "pd.DataFrame":
        """Return a pandas table with a row for each input, for one target column, with the index of their frame.

        Of numbers it has the mean, standard deviations and the 95 % interval, and of counts and positive numbers the
        median; of classes the most probable class, the probability of each, entropy and mutual information.

        Args:
            class_names: the names of the classes; their numbers if not given.
        """
        import pandas as pd

        shape = self.distribution.event_shape
        if shape:
            raise InputError(f"A table has one target column, got predictions of {tuple(shape)} targets an input.")
        if not self.is_classification:
            names = ("mean", "std", "epistemic_std", "aleatoric_std")
            lower, upper = self.interval(0.95)
            columns = {"median": self.quantile(0.5)} if self.is_positive else {}
            columns |= {name: getattr(self, name) for name in names} | {"lower_95": lower, "upper_95": upper}
            return pd.DataFrame({name: values.cpu().numpy() for name, values in columns.items()}, index=self.index)
        probs = self.class_probs.cpu().numpy()
        labels = [str(number) for number in range(probs.shape[1])] if class_names is None else list(class_names)
        if len(labels) != probs.shape[1]:
            raise InputError(f"`class_names` must name {probs.shape[1]} classes, got {len(labels)} names.")
        frame = pd.DataFrame(probs, columns=[f"prob_{name}" for name in labels], index=self.index)
        frame.insert(0, "class", [labels[number] for number in self.label.tolist()])
        doubt = {"entropy": self.entropy, "mutual_information": self.mutual_information}
        return frame.assign(**{name: values.cpu().numpy() for name, values in doubt.items()})

    @property
    def class_probs(self) -> Tensor:
        """Probabilities of the classes under the mixture, (N, C); for Bernoulli targets C = 2, (N, K, 2).

        Examples:
            >>> from pyro.distributions import Categorical
            >>> bnn.Prediction(Categorical(probs=torch.tensor([[[0.9, 0.1]], [[0.5, 0.5]]]))).class_probs  # two draws
            tensor([[0.7000, 0.3000]])
        """
        self._require_classes("Class probabilities")
        mean = self.mean
        return torch.stack([1 - mean, mean], -1) if self._is_binary else mean / mean.sum(-1, keepdim=True)

    @property
    def label(self) -> Tensor:
        """The most probable class, (N,), (N, K) for Bernoulli targets, or (N, *positions)."""
        return self.class_probs.argmax(-1)

    @property
    def entropy(self) -> Tensor:
        """Entropy of the mixture in nats, (N,): total uncertainty about the class.

        Several target columns have the joint entropy, up to 1024 joint outcomes; `by_target` has the entropy of each.
        """
        self._require_classes("Entropy")
        if self._num_outcomes > _MOST_OUTCOMES:
            text = f"{self!r} has more than {_MOST_OUTCOMES} joint outcomes an input, too many for their entropy"
            raise InputError(f"{text}: take that of each target, `prediction.by_target.entropy`.")
        if not self.distribution.event_shape:
            return torch.special.entr(self.class_probs).sum(-1)

        def listed(part: "Prediction") -> Tensor:
            probs = part._probs  # under each draw, of the classes of each column, (S, N, K, C)
            columns = (torch.stack([1 - probs, probs], -1) if part._is_binary else probs.flatten(2, -2)).unbind(2)
            joint = functools.reduce(lambda some, more: (some[..., None] * more[..., None, :]).flatten(2), columns)
            return torch.special.entr(joint.mean(0)).sum(-1)

        return self.by_rows(listed, width=self._num_outcomes)

    @property
    def mutual_information(self) -> Tensor:
        """Information in nats that the class would give about the weights (BALD, Houlsby et al. 2011), (N,).

        The entropy of the mixture less the mean entropy of its components: epistemic uncertainty, log S at most.
        Several target columns count jointly, as in `entropy`.

        Examples:
            >>> from pyro.distributions import Categorical
            >>> same, apart = [[0.5, 0.5], [0.5, 0.5]], [[1.0, 0.0], [0.0, 1.0]]  # two draws at each of two inputs
            >>> prediction = bnn.Prediction(Categorical(probs=torch.tensor([same, apart]).swapaxes(0, 1)))
            >>> prediction.entropy, prediction.mutual_information
            (tensor([0.6931, 0.6931]), tensor([0.0000, 0.6931]))
        """
        self._require_classes("Mutual information")
        given_weights = self.by_rows(lambda part: part._unchecked.entropy().mean(0))
        return (self.entropy - given_weights).clamp_min(0)

    @property
    def _num_outcomes(self) -> int:
        """The number of joint outcomes of several target columns; 1 for a single column."""
        shape = self.distribution.event_shape
        return int(self._num_classes ** shape.numel()) if shape else 1

    @property
    def _probs(self) -> Tensor:
        """The probabilities under each draw, (S, N, C) or (S, N, K)."""
        base = self._base
        if isinstance(base, Categorical) and "probs" not in vars(base):
            return base.logits.exp()  # they are normalised, and softmax over few classes takes many times longer
        return base.probs

    @property
    def is_divisible(self) -> bool:
        """Whether rows can be taken: whether the distribution keeps the arguments of its constructor as attributes."""
        return self._parts is not None

    @property
    def components(self) -> Components:
        """The distributions of single target columns in double precision, in the model's units, (S, N, K)."""
        distribution = self.distribution if self._parts is None else converted(self.distribution, in_double)
        return Components(support.base_of(distribution))

    @property
    def num_draws(self) -> int:
        """S, the number of posterior draws."""
        return int(self.distribution.batch_shape[0])

    @property
    def is_classification(self) -> bool:
        """Whether the targets are classes, so that class probabilities, entropy and mutual information exist."""
        return isinstance(self._base, (Bernoulli, Categorical))

    @property
    def is_continuous(self) -> bool:
        """Whether targets have a density everywhere: real numbers, without limits that hold probability themselves."""
        return not self._base.support.is_discrete and not isinstance(self._base, CensoredNormal)

    @property
    def has_quantiles(self) -> bool:
        """Whether the likelihood has the distribution function that quantiles and intervals rest on."""
        if self.is_classification or not support.has(self._base, "cdf"):
            return False
        if self.is_count or support.has(self._base, "icdf"):
            return True
        return self.has_moments and bool(self._base.variance.isfinite().all())

    @property
    def has_moments(self) -> bool:
        """Whether the mean and the variance of the likelihood's distribution are known."""
        return self._knows("mean") and self._knows("variance")

    def _knows(self, moment: str) -> bool:
        return self.is_classification or getattr(type(self._base), moment) is not getattr(Distribution, moment)

    def _require_classes(self, quantity: str) -> None:
        if not self.is_classification:
            raise InputError(f"{quantity} need a classification likelihood, got {type(self._base).__name__}.")

    def _require(self, moment: str) -> None:
        if not self._knows(moment):
            name = type(self._base).__name__
            raise InputError(f"The {moment} of {name} is not known: use quantiles, or quantiles of `sample`.")

    @property
    def _base(self) -> Any:
        """The distribution of single target columns."""
        return support.base_of(self.distribution)

    @property
    def is_count(self) -> bool:
        """Whether targets are whole numbers, and not classes."""
        return bool(self._base.support.is_discrete) and not self.is_classification

    @property
    def _is_nonnegative(self) -> bool:
        """Whether targets are numbers from 0 up."""
        lower = torch.as_tensor(support.ends(self._base.support)[0], device=self._like.device)
        return not self.is_classification and bool((lower >= 0).all())

    @property
    def is_positive(self) -> bool:
        """Whether targets are numbers from 0 up without an upper limit, such as counts and prices."""
        upper = torch.as_tensor(support.ends(self._base.support)[1], device=self._like.device)
        return self._is_nonnegative and bool(upper.isinf().all())

    @property
    def _is_binary(self) -> bool:
        return isinstance(self._base, Bernoulli)

    @property
    def _num_classes(self) -> int:
        return 2 if self._is_binary else int(self._base.param_shape[-1])

    @property
    def _like(self) -> Tensor:
        if isinstance(self._base, Categorical):
            return torch.empty(0, dtype=torch.int64, device=self._base.logits.device)
        if self._parts is None:
            return self._base.mean
        return next(tensor for tensor in self._parts[0] if tensor.is_floating_point())

    @property
    def device(self) -> torch.device:
        """Where the predictions are."""
        return self._like.device

    @functools.cached_property
    def _parts(self) -> tuple[list[Tensor], Callable[[Sequence[Tensor]], Any]] | None:
        """The tensors of the distribution and how to build it from them; None if it cannot be taken apart."""
        try:
            return take_apart(self.distribution)
        except InputError:
            return None

    @functools.cached_property
    def _unchecked(self) -> Any:
        """The distribution, without checks of values where it can be taken apart."""
        return self.distribution if self._parts is None else self._parts[1](self._parts[0])

    def _targets(self, y: ArrayLike) -> Tensor:
        targets = as_targets(y, len(self))
        expected = (len(self), *self.distribution.event_shape)
        if tuple(targets.shape) != expected:
            raise InputError(f"`y` must have the shape of the predictions, {expected}; got {tuple(targets.shape)}.")
        return targets

    def _require_quantiles(self, quantity: str) -> None:
        if not self.has_quantiles:
            words = f"need a likelihood with a known distribution function, got {type(self._base).__name__}"
            raise InputError(f"{quantity} {words}: use quantiles of `sample`.")

    @property
    def _component_means(self) -> Tensor:
        """The mean under each draw in the model's units, (S, N, K)."""
        return self._probs if self.is_classification else self.distribution.mean

    def _original_std(self, variance: Tensor) -> Tensor:
        """Return the square root in original units, where the variance itself may be beyond the precision's range."""
        return self.scaler.inverse_scale(variance.sqrt())

    def _original_variance(self, variance: Tensor) -> Tensor:
        return self.scaler.inverse_scale(self.scaler.inverse_scale(variance))


def variance_over_draws(values: Tensor) -> Tensor:
    """Return the population variance over the first axis, exactly 0 for equal values, quicker than `Tensor.var(0)`."""
    distances = values - values[0]
    return distances.sub_(distances.mean(0)).square_().mean(0)


def batch_by_batch[F: Callable[..., Prediction]](predict: F) -> F:
    """Return a method that predicts at inputs as one that takes a loader as well, whose targets it leaves aside.

    Each batch sees the same draws of the weights, so that predictions equal those at all inputs together up to
    rounding, unless the outputs are drawn.
    """

    @functools.wraps(predict)
    def predict_all(self: Any, x: Any, **options: Any) -> Prediction:
        loader = as_loader(x)
        if not isinstance(loader, Loader):
            return predict(self, x, **options)
        if loader.shuffles:
            fault = "The DataLoader takes its examples in random order, so nobody could tell which prediction is whose"
            raise InputError(f"{fault}: pass a DataLoader with shuffle=False.", page="how-to/large-data")
        parts = [predict(self, inputs, **options) for inputs in loader.one_pass(loader.inputs_of)]
        shapes = {tuple(part.distribution.event_shape) for part in parts}
        if len(shapes) > 1:
            words = f"of several shapes, {', '.join(map(str, sorted(shapes)))}, which are no table"
            raise InputError(f"Batches have targets {words}: predict batch by batch.", page="how-to/likelihoods")
        return joined(parts, 1)

    return cast(F, predict_all)


def joined(parts: Sequence[Prediction], dim: int = 0) -> Prediction:
    """Return one prediction of all draws (dim 0), or at all inputs (dim 1), of several in the same units."""
    return Prediction(concatenate([part.distribution for part in parts], dim), parts[0].scaler)
