"""The contract of methods: their arguments from `fit`, results and declarations; and the method inside another."""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any, Literal, Protocol, get_args, runtime_checkable

from pyro.nn import PyroModule

from pyrobnn._core.errors import InputError, nearest, shown
from pyrobnn._core.settings import Registry, fields_of, in_short, snake_case
from pyrobnn.bnn import BNN
from pyrobnn.data.in_memory import Data
from pyrobnn.data.loader import Loader
from pyrobnn.guides.base import registry as guides
from pyrobnn.likelihoods.base import closed_numbers
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.record import ChoiceRecord, EvidenceRecord


@dataclasses.dataclass(frozen=True, eq=False)
class Progress:
    """The state of a fit for callbacks, after each block of 50 steps; a callback that returns True ends the fit.

    `step` and `num_steps` are the steps done and planned, `elbo` is the mean over the block, `bnn` and `guide` are in
    training. A callback runs between two steps, under the random states and Pyro's settings from outside the fit.
    """

    step: int
    num_steps: int
    elbo: float
    bnn: BNN
    guide: PyroModule


Callback = Callable[[Progress], object]
Engine = Literal["auto", "eager", "captured"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """The arguments of a run, as in `pyrobnn.fit`; fits inside a run have the time of the whole."""

    seed: int
    device: str = "auto"
    engine: Engine = "auto"
    progress: bool = True
    callbacks: Sequence[Callback] = ()
    validation: Data | Loader | None = None
    checkpoint: str | Path | None = None
    every: int = 1000
    start: Posterior | None = None
    choice: ChoiceRecord | None = None  # how the parts that nobody gave were chosen
    method: Any = None  # that `fit` was given: Ctrl-C ends its steps, but not those of a method inside another
    started: float = dataclasses.field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        if self.engine not in get_args(Engine):
            raise InputError(f"`engine` must be one of {', '.join(get_args(Engine))}, got {self.engine!r}.")

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started

    def note(self, posterior: Posterior | Mixture, likelihood: Any, evidence: EvidenceRecord | None) -> None:
        """Note on a result which open numbers of the likelihood, as it was given, are known now, and the choice."""
        closed = closed_numbers(likelihood, posterior.bnn.settings["likelihood"])
        if closed is None and self.start is not None:
            closed = self.start.record.measured
        fields = {"evidence": evidence, "measured": closed, "choice": self.choice}
        for one in dict.fromkeys((posterior, *posterior.members)):  # a member may have its own
            one.note(**{name: value for name, value in fields.items() if getattr(one.record, name) is None})


@dataclasses.dataclass(frozen=True)
class Offer:
    """The features of a method beside `infer`."""

    inner: Any = None  # the inner method, its field `method`, which has a default
    guide: Any = None  # that it trains; None if it trains none, as `NUTS`, or if the inner method does
    follows_validation: bool = False  # whether a run can follow a validation score
    resumable: bool = False  # whether a run can keep checkpoints
    goes_on: bool = False  # whether a run can begin at an earlier posterior
    callbacks: bool = True  # whether a run has steps for callbacks to see
    copies: int = 1  # the number of members or chains; each needs a draw to predict with
    wants_measured_scales: bool = False  # whether `pyrobnn.fit` measures the model's open scales before a run
    starts_at_mode: bool = False  # whether a run then starts at the mode with them; members of an ensemble do not
    spreads: bool = False  # whether the posterior spreads around the points of its guide


@runtime_checkable
class Method[R](Protocol):
    """A method, such as `SVI` or `NUTS`. `BaseMethod` has defaults for all but `infer`."""

    def infer(self, bnn: BNN, data: Any, run: Run) -> R:
        """Infer the posterior of a model, which is not changed, from `Data` or a `Loader`.

        It is a `Posterior`, a `Mixture` of several, or an object that draws and predicts like these, with a `record`
        (`FitRecord`): of the method with its settings and, under "guide", the setting that rebuilds the guide.
        """
        raise NotImplementedError

    def offer(self) -> Offer:
        """Return the features of the method beside `infer`."""
        return Offer()

    def check(self, bnn: BNN, data: Any, run: Run) -> None:
        """Refuse model and data that do not go with the method or its inner method, before work that takes seconds."""
        inner = self.offer().inner
        if inner is not None:
            inner.check(bnn, data, run)

    def bounded(self, steps: int) -> Any:
        """Return the method, or its inner method, with at most so many steps; without steps as it is."""
        of_any: Any = self
        inner = self.offer().inner
        return self if inner is None else dataclasses.replace(of_any, method=inner.bounded(steps))

    def learning_on(self) -> Any:
        """Return the method for more data: a single posterior, under the posterior so far as a prior that stays."""
        return self


@runtime_checkable
class SideBySide(Method[Posterior], Protocol):
    """A method that fits several posteriors of one shape at once, as the members of an `Ensemble`."""

    def side_by_side(self, bnn: BNN, data: Any, run: Run, *, replicates: int, bootstrap: bool) -> list[Posterior]:
        """Infer several posteriors from random starts, with arguments as in `fit_replicates`."""
        ...


registry = Registry("method", accepts=lambda value: isinstance(value, Method), page="how-to/guides")
resolve = registry.resolve


class BaseMethod[R](Method[R]):
    """Base of the methods: write `infer`, and `offer` for further features, such as an inner method."""


def checked_method(method: Any, data: Any) -> Any:
    """Return a method, given after the data, as it is or by its name."""
    if isinstance(data, Method):
        raise InputError("The data come before the method: fit(model, data, method, seed=0).")
    if isinstance(method, str):
        guide = nearest(method, guides.names)
        if guide is not None and nearest(method, registry.names) is None:
            raise InputError(f"{guide!r} is a guide, which a method trains: pass bnn.SVI(guide={guide!r}).")
        return registry.resolve(method)
    if isinstance(method, Sized) and not isinstance(method, (Mapping, Method)):
        raise InputError(f"Expected a method such as SVI(...), got {shown(method)}: pass data as a pair, (x, y).")
    if guides.holds(method):
        said = in_short(method)
        raise InputError(f"{said} is a guide, which a method trains: pass bnn.SVI(guide=bnn.guides.{said}).")
    if not isinstance(method, Method) or isinstance(method, type):
        remedy = f": pass {method.__name__}()" if isinstance(method, type) else ""
        got = f"{shown(method)}{remedy}"
        raise InputError(f"Expected a method such as SVI(...), got {got}. Others inherit from BaseMethod.")
    return method


def check_offered(method: Any, run: Run) -> None:
    """Refuse arguments that a method does not take."""
    offer, name = method.offer(), type(method).__name__
    if run.callbacks and not offer.callbacks:
        raise InputError(f"`callbacks` see the steps of SVI, and {name} has none: leave them out.")
    if run.validation is not None and not offer.follows_validation:
        raise InputError(f"`validation` is followed along steps of SVI, not by {name}: score the posterior afterwards.")
    if run.checkpoint is not None and not offer.resumable:
        raise InputError(f"{name} keeps no checkpoints, which are for SVI and an Ensemble of it: leave it out.")
    if run.start is not None and not offer.goes_on:
        raise InputError(f"{name} does not go on from a posterior, as SVI does: leave out `start`.")


def with_innermost(method: Any, change: Callable[[Any], Any]) -> Any:
    """Return a method with its innermost method, or itself, changed."""
    inner = method.offer().inner
    return change(method) if inner is None else dataclasses.replace(method, method=with_innermost(inner, change))


def guide_of(method: Any) -> Any:
    """Return the guide of a method or of its inner method; None if no guide is trained, as in `NUTS`."""
    offer = method.offer()
    return offer.guide if offer.inner is None else guide_of(offer.inner)


def with_guide(method: Any, guide: Any) -> Any:
    """Return the method with another guide, set in it or in its inner method."""

    def change(inner: Any) -> Any:
        if "guide" not in fields_of(type(inner)):
            name = snake_case(type(inner).__name__)
            raise InputError(f"{name} draws from the posterior itself and trains no guide, got {guide!r}: leave it out")
        return dataclasses.replace(inner, guide=guide)

    return with_innermost(method, change)
