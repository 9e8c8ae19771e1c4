"""Likelihoods: settings whose `build` gives a module from outputs to a distribution, and functions that do so."""

import copy
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.nn import PyroModule
from torch import Tensor
from torch.distributions import Distribution, constraints

from pyrobnn._core.errors import REFUSALS, InputError, counted, shown
from pyrobnn._core.random import seeded
from pyrobnn._core.settings import Registry
from pyrobnn.data.in_memory import Data
from pyrobnn.distributions.support import base_of, log_prob
from pyrobnn.distributions.units import Scaler

OPEN = ("tuned", "learned")
"""Placeholders for numbers of a likelihood that are estimated from the data."""
_NUM_ROWS = 3
_MOST_OUTPUTS = 100
_ROUNDING = 1e-3
NoiseKind = Literal["known", "tuned", "learned", "inferred", "heteroscedastic"]


@runtime_checkable
class Likelihood(Protocol):
    """A likelihood setting: the distribution of targets given the network's outputs.

    See docs/how-to/likelihoods.md for which likelihood to choose.

    Attributes:
        standardizes_targets: whether real-valued targets may be centred and scaled before training.
        integer_targets: whether targets are labels or counts (int64) rather than floats of the network's precision.

    Examples:
        >>> likelihood = bnn.likelihoods.Gaussian(scale=2.0)
        >>> isinstance(likelihood, bnn.likelihoods.Likelihood), likelihood.num_outputs(torch.zeros(10, 3))
        (True, 3)
    """

    standardizes_targets: ClassVar[bool]
    integer_targets: ClassVar[bool]

    def build(self, like: Tensor, target_scale: Tensor) -> PyroModule:
        """Return a `PyroModule` from outputs to the distribution of targets.

        Args:
            like: a tensor with the dtype and device of the network.
            target_scale: original units per unit of the model's targets, () or (K,).

        Returns:
            A module whose `forward(f)` maps outputs f (..., N, outputs) to a distribution of batch shape (..., N), each
            row depending only on its outputs. Its `PyroParam`s are learned with the guide, its `PyroSample`s are
            inferred.
        """
        ...

    def num_outputs(self, y: Tensor) -> int:
        """Return the number of network outputs that targets y (N,) or (N, K) need."""
        ...

    def check_targets(self, y: Tensor, outputs: int) -> None:
        """Raise `InputError` for targets that this likelihood cannot produce from that number of outputs."""
        ...


class BaseLikelihood:
    """The interface of a likelihood setting beside `Likelihood`; a setting that does not inherit has these defaults.

    Attributes:
        has_labels: whether targets are labels of classes.
        has_positions: whether targets are (N, *positions), such as the labels of the pixels of images.
        is_symmetric: whether numbers lie around their mean alike on both sides, given the outputs.
        offset: the name of a column of x that `shifted` adds to outputs, and that the network does not see, or None.
        link: whether outputs are log odds or logs, of which 0 is a fixed point, or logits that others shift; None for
            others, such as locations. A last layer that limits such outputs is warned of.

    Examples:
        >>> bnn.likelihoods.StudentT(scale=0.5).noise, bnn.likelihoods.Ordinal(5).noise
        ('known', None)
    """

    has_labels: ClassVar[bool] = False
    has_positions: ClassVar[bool] = False
    is_symmetric: ClassVar[bool] = True
    offset: str | None = None
    link: ClassVar[Literal["logits", "log odds", "logs"] | None] = None

    @property
    def noise(self) -> NoiseKind | None:
        """How its field `scale` gives the noise around real targets; None without such noise."""
        return None

    @property
    def is_normal(self) -> bool:
        """Whether targets are normal around the outputs, with a scale that is the same for all inputs."""
        return False

    @property
    def varies_normally(self) -> bool:
        """Whether targets are normal around the first outputs, with a scale that is another output."""
        return False

    @property
    def num_ordered(self) -> int | None:
        """The number of labels, where these have an order; None where they have none."""
        return None

    def opened(self) -> "BaseLikelihood":
        """Return the setting with the number of its noise learned, even if it was known."""
        if self.noise in (None, "heteroscedastic"):
            return self
        return dataclasses.replace(self, scale="learned")  # type: ignore[type-var]

    def flat_outputs(self, f: Tensor) -> Tensor:
        """Return what the network gives, (N, ...), as outputs (N, outputs); by default it has to have this form."""
        return f

    def shifted(self, f: Tensor, offset: Tensor) -> Tensor:
        """Return outputs (N, outputs) with the offset (N, 1) in them; by default it is added to all."""
        return f + offset

    def target_units(self, standard: Scaler) -> Scaler | None:
        """Return the map of targets to the units of the model, from the one that centres and scales them.

        None stands for that map where the setting `standardizes_targets`, and for no change elsewhere.
        """
        return None


class LikelihoodModule(PyroModule):
    """The interface of a built likelihood beside `forward`; only a module that inherits can have these methods.

    Examples:
        >>> module = bnn.likelihoods.Categorical().build(torch.zeros(()), torch.tensor(1.0))
        >>> isinstance(module, bnn.likelihoods.LikelihoodModule), module.fisher_columns(torch.zeros(5, 3)).shape
        (True, torch.Size([2, 5, 3]))
    """

    def fisher_columns(self, f: Tensor) -> Tensor | None:
        """Return columns v (K, B, outputs) whose outer products over K sum to the Fisher information in outputs f.

        None where it is to be derived from the distribution, or drawn.
        """
        return None

    def fisher_diagonal(self, f: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return d and v, both (B, outputs), where the Fisher information is diag(d) - v v^T; else None."""
        return None

    def present(self, y: Tensor) -> Tensor | None:
        """Return which outputs have a target, (B, outputs), for targets (B, *positions); None where all do."""
        return None


_BEYOND_FORWARD = ("fisher_columns", "fisher_diagonal", "present")


def as_likelihood(likelihood: Any) -> BaseLikelihood:
    """Return the interface of a setting: itself, or the defaults if it does not inherit from the base."""
    return likelihood if isinstance(likelihood, BaseLikelihood) else BaseLikelihood()


def opened(likelihood: Any) -> Any:
    """Return `BaseLikelihood.opened` of a setting; a setting that does not inherit stays as it is."""
    return likelihood.opened() if isinstance(likelihood, BaseLikelihood) else likelihood


def as_module(module: Any) -> LikelihoodModule:
    """Return the interface of a built likelihood: itself, or the defaults if it does not inherit from the base."""
    if isinstance(module, LikelihoodModule):
        return module
    unused = [name for name in _BEYOND_FORWARD if name in dir(module)]
    if unused:
        base = "pyrobnn.likelihoods.LikelihoodModule: inherit from it in place of PyroModule"
        fault = f"{type(module).__name__}.{unused[0]} is used only of a module that inherits from"
        raise InputError(f"{fault} {base}.", page="how-to/own-part")
    return LikelihoodModule()


def with_offset(likelihood: Any, data: Any) -> Any:
    """Return data whose column of the offset, if a likelihood has one, is no input of the network."""
    name = as_likelihood(likelihood).offset
    if name is None:
        return data
    if not isinstance(data, Data):
        fault = f"The offset {name!r} is a column of data in memory, and a loader has no names"
        raise InputError(f"{fault}: pass Data(x, y), as bnn.Loader(loader).in_memory() makes of a loader.", page=PAGE)
    return data.with_offset(name)


def target_units(likelihood: Any, standard: Scaler) -> Scaler:
    """Return the map of targets to the units of the model, from the one that centres and scales them."""
    usual = standard if likelihood.standardizes_targets else Scaler.identity()
    return as_likelihood(likelihood).target_units(standard) or usual


def check_width(likelihood: Any, y: Tensor, outputs: int) -> None:
    """Refuse a network whose number of outputs does not fit the targets."""
    needed = likelihood.num_outputs(y)
    if outputs == needed:
        return
    width = counted(needed, "network output")
    is_column = not as_likelihood(likelihood).has_labels and num_columns(y) == 1 and y.ndim <= 2
    if is_column and bool((y >= 0).all() and (y < outputs).all() and (y == y.round()).all() and y.any()):
        fault = f"The targets are labels 0 to {int(y.max())} and the network has {outputs} outputs"
        numbers = f"For numbers, {likelihood!r} needs {width}: change the width of the last layer"
        raise InputError(f"{fault}: pass likelihood='categorical' for classes. {numbers}.", page=PAGE)
    needed = f"{likelihood!r} needs {width} for targets of shape {tuple(y.shape)}"
    raise InputError(f"{needed}, the network has {outputs}: change the width of its last layer.", page=PAGE)


def num_columns(y: Tensor) -> int:
    """Return the number of target columns K of y (N,) or (N, K)."""
    return 1 if y.ndim == 1 else y.shape[1]


def require_whole(y: Tensor, name: str, what: str = "labels") -> None:
    """Refuse targets, labels or counts, that are not whole numbers from 0 up."""
    if y.is_floating_point() and not torch.equal(y, y.round()):
        odd = float(y[y != y.round()][0])
        raise InputError(f"{name} needs whole-number {what}, got values such as {odd:g}.", page=PAGE)
    if bool((y < 0).any()):
        raise InputError(f"{name} needs {what} from 0 up, got {int(y.min())}.", page=PAGE)


def require_order(labels: Sequence[Any], num: int | None, *, is_ordered: bool) -> None:
    """Refuse labels for a likelihood of `num` ordered ones: texts without an order, and others than there are."""
    if num is not None and not is_ordered and len(labels) > 2 and isinstance(labels[0], str):
        lacks = f"Ordered labels need an order, and texts such as {labels[0]!r} and {labels[1]!r} have none"
        ordered = "ordered categories, pd.Categorical(y, [first, ..., last], ordered=True)"
        raise InputError(f"{lacks}: pass {ordered}, or the numbers 0, 1, ...")
    if num not in (None, len(labels)):
        raise InputError(f"The likelihood has {num} ordered labels, got {len(labels)}: set `num_classes` to that.")


def squeeze_single(f: Tensor) -> tuple[Tensor, int]:
    """Return f with a single column dropped, and the number of event dimensions that remain (0 or 1)."""
    return (f[..., 0], 0) if f.shape[-1] == 1 else (f, 1)


def limited(f: Tensor, least: float | None, largest: float) -> Tensor:
    """Return outputs inside limits, with the gradient of f everywhere, so that outputs beyond come back."""
    return f.clamp(least, largest).detach() + (f - f.detach())


PAGE = "how-to/likelihoods"
registry = Registry("likelihood", accepts=lambda value: isinstance(value, Likelihood), page=PAGE)
"""Likelihoods by name; `register` adds a likelihood.

Examples:
    >>> "student_t" in bnn.likelihoods.registry.names
    True
"""


def open_numbers(likelihood: Any, values: tuple[str, ...] = OPEN) -> list[str]:
    """Return the names of a likelihood's numbers that are estimated from the data, such as "scale"."""
    fields = dataclasses.fields(likelihood) if dataclasses.is_dataclass(likelihood) else ()
    numbers = ((field.name, getattr(likelihood, field.name)) for field in fields)
    return [name for name, value in numbers if isinstance(value, str) and value in values]


def closed_numbers(before: Any, after: Any) -> list[str] | None:
    """Return the names of the numbers that one likelihood leaves open, and another does not; None if there are none."""
    still_open = open_numbers(after)
    return [name for name in open_numbers(before) if name not in still_open] or None


@dataclasses.dataclass(frozen=True)
class FromFunction(BaseLikelihood):
    """A likelihood made by a function, such as `lambda f: dist.Gumbel(f[..., 0], 1.0)`.

    A plain function given as `likelihood=` becomes one. Whole-number targets are recognised by the distribution. It
    cannot be saved: for that, register a class of settings.

    Attributes:
        function: maps outputs (..., N, outputs) to a distribution of batch shape (..., N).
        outputs: the number of outputs that it takes; if None, the least with which it runs and fits the targets.
        standardizes_targets: whether real targets are centred and scaled with `standardize=True`: only if no number in
            the function has their units.

    Examples:
        >>> import pyro.distributions as dist
        >>> model = bnn.BNN(bnn.MLP(1, [5], 2), likelihood=lambda f: dist.Gumbel(f[..., 0], f[..., 1].exp()))
        >>> posterior = model.fit([[0.0], [1.0], [2.0]], [0.3, 0.1, 0.7], steps=20, seed=0, progress=False)
    """

    function: Callable[[Tensor], Any]
    outputs: int | None = None
    standardizes_targets: bool = False

    def as_dict(self) -> dict[str, Any]:
        remedy = "write a class of settings with `build`, and register it in pyrobnn.likelihoods.registry"
        text = f"{self!r} cannot be written to a file, since it is no setting"
        raise InputError(f"{text}: {remedy}.", page="how-to/own-part")

    @functools.cached_property
    def integer_targets(self) -> bool:
        """Whether the distribution is of whole numbers; the Bernoulli of torch takes floats."""
        widths = range(1, _MOST_OUTPUTS + 1) if self.outputs is None else [self.outputs]
        laws = (self._law(width) for width in widths)
        first = next((law for law in laws if isinstance(law, Distribution)), None)
        support = constraints.real if first is None else base_of(first).support
        return bool(support.is_discrete) and support is not constraints.boolean

    def num_outputs(self, y: Tensor) -> int:
        """Return the number that was given, or the least, up to 100, with which the function fits the targets."""
        if self.outputs is not None:
            return self.outputs
        expected = ((_NUM_ROWS,), tuple(y.shape[1:]))
        for width in range(1, _MOST_OUTPUTS + 1):
            if _shapes(self._law(width)) == expected:
                return width
        text = f"The function given as a likelihood gives no distribution for targets of shape {tuple(y.shape)} with 1"
        raise InputError(f"{text} to {_MOST_OUTPUTS} outputs. With one output it gives {self._law(1)!r}.", page=PAGE)

    def check_targets(self, y: Tensor, outputs: int) -> None:
        if self.outputs not in (None, outputs):
            needed = counted(self.outputs, "network output")
            raise InputError(f"The function given as a likelihood needs {needed}, got {outputs}.", page=PAGE)
        many = _pyro(_tried(self.function, torch.zeros(len(y), outputs, dtype=torch.float64)))
        if _shapes(many) == ((len(y),), tuple(y.shape[1:])):  # else `require_rows` refuses it
            scores = log_prob(many, y if self.integer_targets else y.double())
            if bool((scores == -torch.inf).any()):
                value, name = y[(scores == -torch.inf).nonzero()[0, 0]].tolist(), type(base_of(many)).__name__
                raise InputError(f"Targets such as {value} are impossible under {name}.", page=PAGE)

    def build(self, like: Tensor, target_scale: Tensor) -> PyroModule:
        return Function(self.function)

    def _law(self, width: int) -> Any:
        return _tried(self.function, torch.zeros(_NUM_ROWS, width, dtype=torch.float64))


def _tried(function: Callable[[Tensor], Any], f: Tensor) -> Any:
    """Return the distribution for outputs, or what the function raises."""
    try:
        with seeded(0, "law"):
            return function(f)
    except (*REFUSALS, AttributeError) as error:
        return error


def _shapes(law: Any) -> Any:
    return (tuple(law.batch_shape), tuple(law.event_shape)) if isinstance(law, Distribution) else None


def require_rows(likelihood: Any, function: Callable[[Tensor], Any], y: Tensor, like: Tensor) -> None:
    """Refuse a function or module that gives no distribution for each row by itself, with leading axes too."""
    event, width, first = tuple(y.shape[1:]), like.shape[-1], torch.empty(0)
    some = torch.arange(2.0 * _NUM_ROWS * width).sin().view(2, _NUM_ROWS, width).to(like) / 10
    for f in (some[0], some[0, :1], some, some[:, :1]):
        law, score = _tried(function, f), None
        if _shapes(law) == (tuple(f.shape[:-1]), event):
            score = log_prob(_pyro(law), y[torch.arange(f.shape[-2]) % len(y)]).flatten()
            first = first if len(first) else score[:1]
        if score is None or not torch.allclose(score[:1], first, _ROUNDING, equal_nan=True):
            raise InputError(
                f"The likelihood ({type(likelihood).__name__}) must map outputs (..., N, {width}) to a distribution of "
                f"batch shape (..., N) and event shape {event}, which the targets have, for one row and for several "
                "draws too, each row by itself: f[..., 0] keeps the axes, f[:, 0] and f.squeeze() do not. For outputs "
                f"{tuple(f.shape)} it gives {shown(law) if score is None else 'the first row another score'}.",
                page=PAGE,
            )


class Function(PyroModule):
    """The module of `FromFunction`."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, f: Tensor) -> TorchDistributionMixin:
        return _pyro(self._function(f))


def _pyro(distribution: Any) -> Any:
    """Return a distribution of PyTorch as one of Pyro; other values as they are."""
    if isinstance(distribution, TorchDistributionMixin) or not isinstance(distribution, Distribution):
        return distribution
    new = copy.copy(distribution)
    kind: Any = type(distribution)
    new.__class__ = _with_mixin(kind)
    return new


@functools.cache
def _with_mixin(kind: Any) -> type:
    return type(kind.__name__, (kind, TorchDistributionMixin), {})


def resolve(likelihood: Any) -> Any:
    """Return the likelihood that a name, a table with its `type`, a function, or an object stands for.

    Examples:
        >>> bnn.likelihoods.resolve("poisson")
        Poisson(offset=None)
    """
    if callable(likelihood) and not isinstance(likelihood, (type, Likelihood)):
        return FromFunction(likelihood)
    return registry.resolve(likelihood)
