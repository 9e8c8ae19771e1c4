"""A fit in progress: what its steps change, and a step through Pyro's ELBO, the eager engine."""

import dataclasses
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import BeforeValidator, Field
from pyro import infer, poutine
from pyro.nn import PyroModule
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from pyrobnn import guides
from pyrobnn._core.checks import check_range
from pyrobnn._core.errors import InputError
from pyrobnn._core.lock import ignored_warnings
from pyrobnn._core.random import derive, seeded
from pyrobnn._core.settings import Count, Positive, described, setting
from pyrobnn._torch.inputs import X, tensors_of
from pyrobnn._torch.per_example import Layer, attach
from pyrobnn.bnn import BNN
from pyrobnn.data.batches import Batch, StateDict
from pyrobnn.data.in_memory import Data
from pyrobnn.guides.base import NoiseSharing, as_guide, built, rate_factors
from pyrobnn.guides.divergence import DIVERGENCES, KL
from pyrobnn.guides.given import leaves_noise_open, noises_of, with_noise_chosen
from pyrobnn.guides.sites import latent_sites
from pyrobnn.inference import limits
from pyrobnn.inference.capture.objective import ELBO, WeightLatents, check_divergence, choose_kl
from pyrobnn.inference.data import Source, check_calls
from pyrobnn.inference.laplace import checked_setting
from pyrobnn.nets import is_custom
from pyrobnn.optimizers import Schedule, resolve_optimizer, resolve_schedule
from pyrobnn.posterior.posterior import Posterior, latent_names
from pyrobnn.priors.given import by_site
from pyrobnn.priors.scale_mixture import tabulate


@setting
class StochasticMethod:
    """The settings of a fit by stochastic steps; `SVI` says what each is."""

    guide: Annotated[Any, BeforeValidator(guides.resolve)] = guides.MeanField()
    steps: Count | None = None
    epochs: Count | None = None
    max_steps: Count = 150_000
    tolerance: Positive | None = None
    lr: Positive = 0.02
    batch_size: Count | Literal["all"] | None = None
    optimizer: Annotated[Any, BeforeValidator(resolve_optimizer)] = resolve_optimizer("adam")
    schedule: Annotated[Any, BeforeValidator(resolve_schedule)] = None
    num_particles: Count = 1
    loss: Any = None
    kl: KL = "auto"
    temperature: Positive = 1.0
    clip_norm: Positive | None = None
    kl_warmup: Annotated[int, Field(ge=0)] = 0
    patience: Count | None = None
    eval_every: Count = 100

    def __post_init__(self) -> None:
        if self.steps is not None and self.epochs is not None:
            raise InputError(f"{type(self).__name__}: give `steps` or `epochs`, not both.")
        if self.loss is not None and not isinstance(self.loss, infer.ELBO):
            raise InputError(f"`loss` must be an ELBO of pyro.infer, such as RenyiELBO(0.5), got {self.loss!r}.")
        usual = {"kl": "auto", "temperature": 1, "kl_warmup": 0, "num_particles": 1}
        given = [f"{name}={getattr(self, name)!r}" for name in usual if getattr(self, name) != usual[name]]
        given += [f"noise={noise!r}" for noise in noises_of(self.guide) if noise not in ("auto", "shared")]
        if self.loss is not None and given:
            text = "`loss` is Pyro's objective, of draws that all examples share, with `num_particles` of its own"
            raise InputError(f"{type(self).__name__}: {text}: leave out it or {', '.join(given)}.")

    def make_optimizer(self, bnn: BNN, guide: nn.Module, parameters: Sequence[Tensor], example: Batch) -> Optimizer:
        """Return the optimiser of the parameters of a model and its guide; the example is a row of data to run them."""
        optimizer: Optimizer = self.optimizer.build(parameters, lr=self.lr)
        return optimizer

    @property
    def ends_by_itself(self) -> bool:
        return self.steps is None and self.epochs is None

    def most_steps(self, batches_per_epoch: int) -> int:
        """Return the number of steps that a fit never exceeds, for an epoch of that many batches."""
        return self.steps or (self.max_steps if self.epochs is None else self.epochs * batches_per_epoch)

    def tolerance_for(self, num_data: int) -> float:
        if self.tolerance is not None:
            return self.tolerance
        return max(limits.SMALLEST_TOLERANCE, limits.TOLERANCE * num_data * min(1, num_data / limits.QUICK_FIT))

    def kl_weight(self, step: int) -> float:
        """Return the factor on the KL at a step, counted from 0."""
        ramp = min(1.0, (step + 1) / self.kl_warmup) if self.kl_warmup else 1.0
        return self.temperature * ramp


class Asked(NamedTuple):
    """A fit that is asked for."""

    bnn: BNN
    method: StochasticMethod
    source: Source
    seed: int


def named_parameters(bnn: BNN, guide: PyroModule) -> dict[str, nn.Parameter]:
    """Return what is trained by name: `guide.loc` of a guide, and `likelihood...` or `prior...` of the model."""
    of_guide = {f"guide.{name}": parameter for name, parameter in guide.named_parameters()}
    named = dict(bnn.named_parameters()) | of_guide
    return {name: parameter for name, parameter in named.items() if parameter.requires_grad}


class Move(NamedTuple):
    """What is to change in a fit before its next step."""

    rate: float  # factor on the learning rate from now on
    values: Sequence[Tensor] | None = None  # parameters to go back to, or None to stay
    cycle: int | None = None  # steps of the schedule to begin anew, or None to go on


class TrainingState:
    """A fit in progress, which another engine may move on in its place.

    The seed orders the batches. The example is a row of data, to run model and guide with. `moved` are the parameters
    that have a gradient in a step. `cycle_factor` is another factor on the rate: 0 while a fit measures. `reach` is the
    sum of the rates of the schedule so far, as far as Adam can move a parameter.
    """

    def __init__(
        self, bnn: BNN, guide: PyroModule, method: StochasticMethod, source: Source, example: Batch, *, seed: int
    ) -> None:
        self.parameters = [*named_parameters(bnn, guide).values()]
        if method.kl == "quadrature":
            tabulate(bnn)
        self.bnn, self.guide, self.method, self.example = bnn, guide, method, example
        self.batches, self.num_data = source.batches(bnn, method.batch_size, seed), source.num_data
        self.most_steps = method.most_steps(source.batches_per_epoch(method.batch_size))
        self.optimizer = method.make_optimizer(bnn, guide, self.parameters, example)
        self.group = self.optimizer.param_groups[0]
        self.first_settings = {k: v for k, v in self.group.items() if k not in ("params", "initial_lr")}
        named = dict(guide.named_parameters())
        self._damped = [(named[name], factor) for name, factor in rate_factors(guide).items()]
        self._elbo = ELBO(method.kl, method.num_particles)
        first_cycle = limits.FIRST_CYCLE if method.ends_by_itself else self.most_steps
        self.schedule_steps, self._schedule_start = min(self.most_steps, first_cycle), 0
        self._schedule = self._new_schedule()
        self.moved: list[Tensor] = []
        self.done = 0
        self.cycle_factor, self.reach = 1.0, 0.0

    @property
    def tolerance(self) -> float:
        """Nats that more steps may still gain in a fit that ends by itself."""
        return self.method.tolerance_for(self.num_data)

    def advance(self, num_steps: int) -> Tensor:
        """Do some steps and return the log-likelihood and KL of each, (steps, 2)."""
        return torch.stack([self.step(next(self.batches)) for _ in range(num_steps)])

    def step(self, batch: Batch) -> Tensor:
        """Do a step on a batch and return its log-likelihood and KL, (2,)."""
        terms = self.differentiate(batch)
        self.update()
        return terms

    def update(self) -> None:
        if self.method.clip_norm is not None:
            clip_grad_norm_(self.parameters, self.method.clip_norm)
        scheduled = self.group["lr"]
        self.group["lr"] = scheduled * self.cycle_factor
        before = [(parameter, factor, parameter.detach().clone()) for parameter, factor in self._damped]
        self.optimizer.step()
        with torch.no_grad():
            for parameter, factor, value in before:
                parameter.copy_(value.lerp(parameter, factor))
        self.group["lr"] = scheduled
        self._move_on()

    def differentiate(self, batch: Batch) -> Tensor:
        """Compute the gradients for a batch and return its log-likelihood and KL, (2,)."""
        for parameter in self.parameters:
            parameter.grad = None
        with WeightLatents(self.method.kl_weight(self.done)):
            terms = self._terms(batch, gradients=True)
        self.moved = [p for p in self.parameters if p.grad is not None]
        return terms

    def evaluate(self, batch: Batch) -> Tensor:
        with torch.no_grad(), WeightLatents(self.method.temperature):
            return self._terms(batch, gradients=False)

    def _terms(self, batch: Batch, *, gradients: bool) -> Tensor:
        """Return log-likelihood and KL, (2,); of a `loss` of Pyro, minus its value and 0."""
        if (given := self.method.loss) is not None:
            function = given.loss_and_grads if gradients else given.loss
            value = function(self.bnn, self.guide, *batch, num_data=self.num_data)
            return torch.tensor([-value, 0.0], dtype=torch.float64)
        loss = self._elbo.differentiable_loss(self.bnn, self.guide, *batch, num_data=self.num_data)
        if gradients:
            loss.backward()
        return torch.stack([self._elbo.log_likelihood, self._elbo.kl])

    def hand_over(self, num_steps: int) -> list[list[float]]:
        """Count the next steps as done, which another engine does, with factor on the KL and learning rate of each."""
        factors = []
        with ignored_warnings("Detected call of `lr_scheduler.step"):  # the steps are done elsewhere
            for _ in range(num_steps):
                factors.append([self.method.kl_weight(self.done), self.rate])
                self._move_on()
        return factors

    def follow(self, move: Move) -> None:
        if move.values is not None:
            put_values(self.parameters, move.values)
        self.cycle_factor = move.rate
        if move.cycle is not None:
            self.schedule_steps, self._schedule_start = move.cycle, self.done
            self._restart_schedule(self.done)

    def _new_schedule(self) -> Any:
        schedule = self.method.schedule
        return None if schedule is None else schedule.build(self.optimizer, self.schedule_steps)

    @property
    def rate(self) -> float:
        return float(self.group["lr"]) * self.cycle_factor

    def _move_on(self) -> None:
        if self.done - self._schedule_start < self.schedule_steps:
            self.reach += float(self.group["lr"])
            if self._schedule is not None:
                self._schedule.step()
        self.done += 1

    def count_steps(self) -> None:
        """Tell the optimiser the steps that a captured engine has done."""
        for memory in self.optimizer.state.values():
            if "step" in memory:
                memory["step"].fill_(self.done)

    @property
    def trained(self) -> nn.ModuleList:
        """Model and guide: what the steps change."""
        return nn.ModuleList([self.bnn, self.guide])

    def state(self) -> StateDict:
        """Return everything that the next steps depend on, apart from random states; tensors are shared."""
        return {
            "done": self.done,
            "schedule": [self.schedule_steps, self._schedule_start],
            "cycle_factor": self.cycle_factor,
            "trained": dict(self.trained.state_dict()),
            "memories": [dict(self.optimizer.state.get(p, {})) for p in self.parameters],
            "with_gradient": [i for i, p in enumerate(self.parameters) if any(p is other for other in self.moved)],
            "batches": self.batches.state(),
        }

    def restore(self, state: StateDict) -> None:
        """Go back, or on, to a state; tensors stay where a captured graph has them."""
        with torch.no_grad():
            self.trained.load_state_dict(state["trained"])
            for parameter, saved in zip(self.parameters, state["memories"], strict=True):
                self._restore_memory(parameter, saved, state["done"])
        self.moved = [self.parameters[index] for index in state["with_gradient"]] or self.moved
        self.cycle_factor = state["cycle_factor"]
        self.schedule_steps, self._schedule_start = state["schedule"]
        self._restart_schedule(state["done"])
        self.batches.restore(state["batches"])

    def _restore_memory(self, parameter: Tensor, saved: dict[str, Any], done: int) -> None:
        memory = self.optimizer.state[parameter]
        for key, value in (memory | saved).items():
            new = torch.full_like(value, done) if key == "step" else value
            if isinstance(new, Tensor):
                new = new.to(parameter.device, copy=True) if key in saved else torch.zeros_like(new)
            if isinstance(memory.get(key), Tensor) and isinstance(new, Tensor):
                memory[key].copy_(new)
            else:
                memory[key] = new

    def _restart_schedule(self, done: int) -> None:
        self.group.update(self.first_settings)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of a schedule that goes ahead of its optimiser
            self._schedule, self.done, self.reach = self._new_schedule(), self._schedule_start, 0.0
            for _ in range(done - self._schedule_start):
                self._move_on()

    def is_finite(self) -> bool:
        extremes = [extreme for p in self.parameters if p.numel() for extreme in p.detach().aminmax()]
        return bool(torch.stack(extremes).isfinite().all())


def cloned(values: Sequence[Tensor]) -> list[Tensor]:
    """Return copies of tensors."""
    return [value.detach().clone() for value in values]


def put_values(parameters: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Give parameters other values, in place."""
    with torch.no_grad():
        for parameter, value in zip(parameters, values, strict=True):
            parameter.copy_(value)


_PAGE = "how-to/own-loop"


class BuiltParts(NamedTuple):
    """Model and guide, built for the data, and the method with all that it leaves open resolved."""

    bnn: BNN
    guide: PyroModule
    method: StochasticMethod
    example: tuple[X, Tensor]


def build_parts(
    bnn: BNN, method: StochasticMethod, source: Source, seed: int, device: str, *, earlier: Posterior | None = None
) -> BuiltParts:
    """Return a copy of the model, and its guide, untrained or as an earlier posterior has them."""
    model, example = source.fresh_model(bnn, device)
    check_calls(model, example[0], training=True)
    if isinstance(source.data, Data):
        for values, name in zip(source.scaled(model, *source.data.tensors), ("x", "y", "weights"), strict=False):
            for part in tensors_of(values):
                check_range(part, name)
    if as_guide(method.guide).curvature is not None:  # what it cannot be taken of at the end is refused now
        if method.temperature != 1:
            raise InputError(f"Laplace is of the posterior itself, got temperature={method.temperature}: leave it out.")
        checked_setting(method.guide, model, example, latent_sites(model, *example))
        source.check_pass()
    resolved = _resolved(method, model, source, seed)
    guide = _built_guide(resolved.guide, model, example, source)
    if earlier is not None:
        go_on(earlier, model, guide, method.guide)
    if not named_parameters(model, guide):
        raise InputError("There is nothing to optimise: model and guide have no parameters.")
    if method.kl == "auto" and method.loss is None:
        with seeded(seed, "kl"):
            kl = choose_kl(model, guide, source.example(model))
        resolved = dataclasses.replace(resolved, kl=kl)
    if resolved.kl in DIVERGENCES:
        check_divergence(model, guide, resolved.guide, resolved.kl, example)
    return BuiltParts(model, guide, resolved, example)


def _built_guide(setting: Any, model: BNN, example: Batch, source: Source) -> PyroModule:
    """Build a guide that can be trained and draws every latent site."""
    shown = source.shown.to(model.like.device)
    with model.without_network(shown):
        guide: PyroModule = setting.build(model, *example).to(example[0].device)
    if not built(guide).trainable:
        raise InputError(f"{type(setting).__name__} has nothing to train: use a guide such as guides.Laplace().")
    with model.without_network(shown), torch.no_grad(), poutine.block():
        drawn = latent_names(poutine.trace(guide).get_trace(*example))
        missing = [site.name for site in latent_sites(model, *example) if site.name not in drawn]
    if missing:
        raise InputError(f"The guide {setting!r} does not draw {', '.join(missing)}: it must cover every latent site.")
    return guide


def _resolved(method: StochasticMethod, model: BNN, source: Source, seed: int) -> StochasticMethod:
    """Return the method with what it leaves open, but the KL, which depends on the built guide."""
    guide, schedule = method.guide, method.schedule
    if leaves_noise_open(guide) and method.loss is not None:
        guide = with_noise_chosen(guide, [], lambda _: "shared")
    elif leaves_noise_open(guide):
        guide = _with_least_noise(guide, model, source, source.batch_size(method.batch_size), seed)
    if method.ends_by_itself and schedule is None:
        schedule = Schedule("cosine_annealing_lr")
    return dataclasses.replace(method, guide=guide, schedule=schedule)


def _with_least_noise(guide: Any, bnn: BNN, source: Source, batch_size: int, seed: int) -> Any:
    """Return the guide with "local" noise if exact, else "flipout" if each step sees all data, else "shared"."""
    with seeded(seed, "noise"), torch.no_grad():
        example = source.example(bnn)
        notes = {name: _Notes(value.detach().clone()) for name, value in bnn.initial_values.items()}
        names = [site.name for site in latent_sites(bnn, *example)]
        try:
            bnn.perturbed_outputs({name: attach(noted.value, noted) for name, noted in notes.items()}, example[0])
        except InputError:  # of a weight that layers share
            notes = {}

    def choose(covered: Sequence[str]) -> NoiseSharing:
        calls = [call for name in covered if name in notes for call in notes[name].calls]
        if any(is_plain for is_plain, _ in calls) and not any(is_again for _, is_again in calls):
            return "local"
        return "flipout" if calls and batch_size >= source.num_data else "shared"

    return with_noise_chosen(guide, names, choose)


class _Notes:
    """A perturbation that changes nothing and notes calls of its weight: on rows (B, units), and again in a pass."""

    def __init__(self, value: Tensor) -> None:
        self.value, self.calls = value, list[tuple[bool, bool]]()

    def outputs(self, layer: Layer) -> Tensor:
        result = layer.function(layer.x, self.value, layer.bias)
        self.calls.append((layer.channel == -1 and layer.x.ndim == 2, bool(layer.memory)))
        layer.memory["seen"] = result
        return result


def start(
    bnn: BNN, method: StochasticMethod, source: Source, seed: int, device: str, *, earlier: Posterior | None = None
) -> tuple[Posterior, TrainingState]:
    """Return the posterior before its first step, and the fit that trains it; `seed` orders the mini-batches, too."""
    model, guide, method, example = build_parts(bnn, method, source, seed, device, earlier=earlier)
    posterior = source.posterior(model, guide, example, seed=seed, outputs=source.shown.to(model.like.device))
    return posterior, TrainingState(model, guide, method, source, example, seed=derive(seed, "batches"))


def model_of(start: Any, bnn: BNN) -> BNN:
    """Return the model of a posterior to go on from, with its scales and in its units."""
    if not isinstance(start, Posterior):
        text = f"`start` must be a Posterior, got {type(start).__name__}; of a Mixture, pass one of its `members`."
        raise InputError(text, page=_PAGE)
    difference = next(_differences(bnn, start.bnn), None)
    if difference is not None:
        text = f"`start` is a posterior of another model: {difference}. Pass its model, `posterior.bnn`."
        raise InputError(text, page=_PAGE)
    model = start.bnn.fresh()
    model.units = (start.x_scaler, start.y_scaler)
    return model


def _differences(here: BNN, there: BNN) -> Iterator[str]:
    net = here.settings["net"]
    if is_custom(net):
        yield from _of_modules(here.net, there.net)
    elif not _agrees(net, there.settings["net"]):
        yield f"its network is {there.settings['net']!r}, not {net!r}"
    ours, theirs = (by_site(model.settings["prior"], model.site_names) for model in (here, there))
    if ours.keys() != theirs.keys():
        yield f"it infers {', '.join(there.site_names)}"
    pairs = {f"prior of {name!r}": (ours[name], theirs[name]) for name in theirs if name in ours}
    pairs["likelihood"] = here.settings["likelihood"], there.settings["likelihood"]
    yield from (f"its {part} is {b!r}, not {a!r}" for part, (a, b) in pairs.items() if not _agrees(a, b))


def _agrees(here: Any, there: Any) -> bool:
    """Return whether a part is that of a posterior, whose fit may have measured the scales that are open here."""
    mine, theirs = described(here), described(there)
    if not (isinstance(mine, dict) and isinstance(theirs, dict)):
        return bool(mine == theirs)
    return mine.keys() == theirs.keys() and all(value in ("tuned", theirs[name]) for name, value in mine.items())


def _of_modules(here: nn.Module, there: nn.Module) -> Iterator[str]:
    """Yield what differs between the classes, tensors and layers of two modules, in words."""
    if type(here).__name__ != type(there).__name__:
        yield f"it has a {type(there).__name__}, not a {type(here).__name__}"
    parts: list[tuple[str, Callable[[nn.Module], dict[str, Any]]]] = [
        ("has shape", lambda part: {name: tuple(value.shape) for name, value in part.state_dict().items()}),
        ("is", lambda part: {name: str(module) for name, module in part.named_modules() if name}),
    ]
    for verb, look in parts:
        ours, theirs = look(here), look(there)
        names = (name for name in ours | theirs if ours.get(name) != theirs.get(name))
        yield from (f"{name!r} {verb} {theirs.get(name)} there, and {ours.get(name)} here" for name in names)


def go_on(start: Posterior, bnn: BNN, guide: PyroModule, setting: Any) -> None:
    """Put a model, as `model_of` returns it, and the guide of a setting where a posterior has them."""
    if not built(start.guide).trainable:
        text = f"The guide of `start`, {type(start.guide).__name__}, has nothing to train: start from a fit by another."
        raise InputError(text, page=_PAGE)
    asked, started = described(setting), start.record.guide
    is_other = started is not None and asked != started
    difference = f"it is {started}, not {asked}" if is_other else next(_of_modules(guide, start.guide), None)
    if difference is not None:
        text = f"`start` has another guide: {difference}. Give the method the guide of the posterior."
        raise InputError(text, page=_PAGE)
    with torch.no_grad():
        bnn.load_state_dict(start.bnn.state_dict())
        guide.load_state_dict(start.guide.state_dict())


def start_record(start: Posterior | None) -> dict[str, int | None] | None:
    """Return what the record of a fit says of the posterior that it went on from."""
    if start is None:
        return None
    return {"seed": start.seed, "num_steps": start.record.num_steps, "num_data": start.record.num_data}
