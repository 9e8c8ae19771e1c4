"""The start of a fit: model and guide for the data, new or from an earlier posterior, with all choices made."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from pyro import poutine
from pyro.nn import PyroModule
from torch import Tensor, nn

from pyrobnn._core.checks import check_range
from pyrobnn._core.errors import InputError
from pyrobnn._core.random import derive, seeded
from pyrobnn._core.settings import described
from pyrobnn._torch.inputs import X, tensors_of
from pyrobnn._torch.per_example import Layer, attach
from pyrobnn.bnn import BNN
from pyrobnn.data.batches import Batch
from pyrobnn.data.in_memory import Data
from pyrobnn.guides.base import NoiseSharing, as_guide, built
from pyrobnn.guides.divergence import DIVERGENCES
from pyrobnn.guides.given import leaves_noise_open, narrowed, with_noise_chosen
from pyrobnn.guides.sites import latent_sites
from pyrobnn.inference.data import Source
from pyrobnn.inference.laplace.sites import checked_setting
from pyrobnn.inference.network_checks import check_calls
from pyrobnn.inference.training.elbo import check_divergence, choose_kl
from pyrobnn.inference.training.state import StochasticMethod, TrainingState, named_parameters
from pyrobnn.nets import is_custom
from pyrobnn.optimizers import Schedule
from pyrobnn.posterior.posterior import Posterior, latent_names
from pyrobnn.priors.given import by_site

_OPEN = "tuned"
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
    """Return an untrained copy of the model, and its guide, or both where an earlier posterior of theirs has them.

    The caller's `seeded` block draws the starting values; `seed` is that of the choices of noise and KL.
    """
    model, example = source.fresh_model(bnn, device)
    check_calls(model, example[0], training=True)
    if isinstance(source.data, Data):
        for values, name in zip(source.scaled(model, *source.data.tensors), ("x", "y", "weights"), strict=False):
            for part in tensors_of(values):
                check_range(part, name)
    if as_guide(method.guide).curvature is not None:  # what it cannot be taken of at the end is refused now
        if method.temperature != 1:
            raise InputError(
                "Laplace puts the curvature of the posterior itself around its mode, at temperature 1, got "
                f"temperature={method.temperature}: leave it out."
            )
        checked_setting(method.guide, model, example, latent_sites(model, *example))
        source.check_pass()
    resolved = _resolved(method, model, source, seed)
    guide = _built_guide(resolved.guide, model, example, source)
    if earlier is not None:
        go_on(earlier, model, guide, method.guide)
    if method.kl == "auto":
        with seeded(seed, "kl"):
            kl = choose_kl(model, guide, source.example(model)) if method.ends_by_itself else "mc"
        resolved = dataclasses.replace(resolved, kl=kl)
    if not named_parameters(model, guide):
        raise InputError("There is nothing to optimise: model and guide have no parameters.")
    if resolved.kl in DIVERGENCES:
        check_divergence(model, guide, resolved.guide, resolved.kl, example)
    return BuiltParts(model, guide, resolved, example)


def _built_guide(setting: Any, model: BNN, example: Batch, source: Source) -> PyroModule:
    """Build a guide that can be trained and draws every latent site."""
    shown = source.shown.to(model.like.device)
    with model.without_network(shown):
        guide: PyroModule = setting.build(model, *example).to(example[0].device)
    if not built(guide).trainable:
        raise InputError(
            f"{type(setting).__name__} holds what another method computed and has nothing to train: use a guide such "
            "as guides.Laplace()."
        )
    with model.without_network(shown), torch.no_grad(), poutine.block():
        drawn = latent_names(poutine.trace(guide).get_trace(*example))
        missing = [site.name for site in latent_sites(model, *example) if site.name not in drawn]
    if missing:
        raise InputError(
            f"The guide {setting!r} does not draw {', '.join(missing)}: a guide must cover every latent site."
        )
    return guide


def _resolved(method: StochasticMethod, model: BNN, source: Source, seed: int) -> StochasticMethod:
    """Return the method with what it leaves open, but the KL, which depends on the built guide."""
    if not method.ends_by_itself:
        is_open = leaves_noise_open(method.guide)
        guide = with_noise_chosen(method.guide, [], lambda _: "shared") if is_open else method.guide
        return dataclasses.replace(method, guide=guide)
    batch_size = source.batch_size(method.batch_size)
    guide = _with_least_noise(narrowed(method.guide), model, source, batch_size, seed)
    schedule = Schedule("cosine_annealing_lr") if method.schedule is None else method.schedule
    return dataclasses.replace(method, guide=guide, schedule=schedule)


def _with_least_noise(guide: Any, bnn: BNN, source: Source, batch_size: int, seed: int) -> Any:
    """Return the guide with the noise that suits layers and batches where it is "auto".

    "local" if exact, else "flipout" if each step sees all data, else "shared": benchmarks/results/least-noise.md.
    """
    if not leaves_noise_open(guide):
        return guide
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
    """A perturbation that changes nothing and notes the calls of its weight.

    Of each it says whether inputs are rows (B, units), and whether the weight was used before in the same pass.
    """

    def __init__(self, value: Tensor) -> None:
        self.value, self.calls = value, list[tuple[bool, bool]]()

    def outputs(self, layer: Layer) -> Tensor:
        """Return the outputs of the layer as it is."""
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
        raise InputError(
            f"`start` must be a Posterior, got {type(start).__name__}; of a Mixture, pass one of its `members`.",
            page=_PAGE,
        )
    difference = next(_differences(bnn, start.bnn), None)
    if difference is not None:
        raise InputError(
            f"`start` is a posterior of another model: {difference}. Pass its model, `posterior.bnn`, or leave out "
            "`start`.",
            page=_PAGE,
        )
    model = start.bnn.fresh()
    model.units = (start.x_scaler, start.y_scaler)
    return model


def _differences(here: BNN, there: BNN) -> Iterator[str]:
    """Yield what differs between the parts of two models, in words."""
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
    return mine.keys() == theirs.keys() and all(value in (_OPEN, theirs[name]) for name, value in mine.items())


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
        raise InputError(
            f"The guide of `start`, {type(start.guide).__name__}, holds what another method computed and has nothing "
            "to train: start from a fit by a guide such as 'mean_field' or 'map'.",
            page=_PAGE,
        )
    asked, started = described(setting), start.record.guide
    is_other = started is not None and asked != started
    difference = f"it is {started}, not {asked}" if is_other else next(_of_modules(guide, start.guide), None)
    if difference is not None:
        raise InputError(
            f"`start` has another guide: {difference}. Give the method the guide of the posterior, or leave out "
            "`start`.",
            page=_PAGE,
        )
    with torch.no_grad():
        bnn.load_state_dict(start.bnn.state_dict())
        guide.load_state_dict(start.guide.state_dict())


def start_record(start: Posterior | None) -> dict[str, int | None] | None:
    """Return what the record of a fit says of the posterior that it went on from."""
    if start is None:
        return None
    return {"seed": start.seed, "num_steps": start.record.num_steps, "num_data": start.record.num_data}
