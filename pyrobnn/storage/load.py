"""Reading a posterior from a folder."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pyrobnn import guides, nets, priors
from pyrobnn._core.checks import check_size
from pyrobnn._core.errors import InputError
from pyrobnn._core.modes import plain_tensors, under
from pyrobnn._core.random import seeded
from pyrobnn._torch.devices import resolve_device
from pyrobnn._torch.inputs import single, tensors_of
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn.bnn import BNN
from pyrobnn.data.donors import Donors
from pyrobnn.data.in_memory import Scaler
from pyrobnn.inference.training.watch import History
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.priors.from_posterior import FromPosterior, kept_moments
from pyrobnn.storage.body import digest_of, frozen_tensors
from pyrobnn.storage.budget import Budget
from pyrobnn.storage.content import CUSTOM, SavedMixture, SavedPosterior, parse
from pyrobnn.storage.files import SETTINGS, TENSORS, check_parts, member_name, read_settings, read_tensors
from pyrobnn.storage.probe import INPUTS, OUTPUTS, WIDTH, agrees, saved_inputs

_UNITS = ("x_scaler.loc", "x_scaler.scale", "y_scaler.loc", "y_scaler.scale", "example.y")
Net = nn.Module | Callable[[], nn.Module]
_TERMS = ("history.log_likelihood", "history.kl")
_MOST_NAMED = 3
"""Parameters that are named where a network is not the one saved."""


@under(plain_tensors)
def load(path: str | Path, *, net: Net | None = None, device: str = "cpu") -> Posterior | Mixture:
    """Read a posterior that `save` wrote; for the same seed it draws and predicts the same bits on a CPU.

    See docs/how-to/save-and-load.md.

    Args:
        path: the folder.
        net: the network, with the same parameters by name and shape, if it was given as a `torch.nn.Module`, or a
            function that makes it; with the same frozen parameters, if it was saved without them.
        device: the device for it, independent of the device of the fit: "cpu", "cuda", ..., or "auto" for a GPU where
            there is one.

    Raises:
        InputError: not such a folder, a file that was changed, another format version, tensors that do not fit, or a
            device that is missing.

    Examples:
        >>> from torch import nn
        >>> net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
        >>> posterior = bnn.BNN(net).fit(bnn.datasets.sinusoid(), steps=20, seed=0, progress=False)
        >>> folder = bnn.save(posterior, "posterior")
        >>> loaded = bnn.load(folder, net=net)  # a network of yours is passed again
        >>> torch.equal(loaded.mean()["0.bias"], posterior.mean()["0.bias"])
        True
    """
    folder, place = Path(path), resolve_device(device)
    saved, version, _ = _read(folder)
    if isinstance(saved, SavedPosterior):
        return _load(folder, saved, net, place)
    digests = saved.members if isinstance(saved.members, list) else [""] * saved.members
    check_parts(folder, {SETTINGS, *map(member_name, range(len(digests)))})
    members = [
        _load_member(folder / member_name(index), version, digest, net, place) for index, digest in enumerate(digests)
    ]
    return Mixture(members, seed=saved.seed, info=saved.info)


def _read(folder: Path) -> tuple[SavedPosterior | SavedMixture, int, str]:
    version, content, digest = read_settings(folder)
    return parse(version, content, folder), version, digest


def _load_member(folder: Path, version: int, digest: str, net: Net | None, device: torch.device) -> Posterior:
    if folder.is_symlink():
        raise InputError(
            f"{folder} is a link to another place: a saved mixture holds its own members. Copy the folder."
        )
    saved, own_version, own_digest = _read(folder)
    if not isinstance(saved, SavedPosterior) or (own_version, own_digest) != (version, digest):
        raise InputError(f"{folder} is not the member that was saved there: restore the folder as it was saved.")
    return _load(folder, saved, net, device)


def _load(folder: Path, saved: SavedPosterior, net: Net | None, device: torch.device) -> Posterior:
    check_parts(folder, {SETTINGS, TENSORS})
    tensors = read_tensors(folder, saved.tensors_sha256)
    made = None if isinstance(net, nn.Module) or net is None else nets.owned(net)
    net = net if made is None else functools.cache(made.build)
    given = {} if saved.body_sha256 is None or net is None else _state_of(net, saved.seed)
    budget = Budget(tensors | given, folder)
    budget.check([saved.parts, saved.guide])
    try:
        with budget:
            posterior = _build(
                saved, _checked(tensors, saved, folder), _net(saved, net, folder), device, folder, budget=budget
            )
    except InputError:
        raise
    except (ArithmeticError, RuntimeError, TypeError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"{folder} cannot be built from its settings ({reason}): restore it as it was saved."
        ) from error
    if made is not None:  # further fits ask the function again
        posterior.bnn.settings["net"] = made
    return posterior


def _state_of(net: Net, seed: int) -> dict[str, Tensor]:
    """Return the state of a network that was given, or is made by a function, off the random stream."""
    with seeded(seed):
        return dict((net if isinstance(net, nn.Module) else net()).state_dict())


def _with_body(tensors: Mapping[str, Tensor], bnn: BNN, digest: str | None, folder: Path) -> Mapping[str, Tensor]:
    """Return tensors with the frozen ones of a model, if these were not saved.

    Raises:
        InputError: they are not those of the posterior that was saved.
    """
    if digest is None:
        return tensors
    frozen = frozen_tensors(bnn)
    if digest_of(frozen) != digest:
        raise InputError(
            f"{folder} was saved without its frozen body, and this `net` has another, of {len(frozen)} tensors: pass "
            "the network as it was before the fit, with the same weights and the same part of them frozen.",
            page="how-to/hugging-face",
        )
    return {**tensors, **{f"bnn.{name}": value for name, value in frozen.items()}}


def _checked(tensors: dict[str, Tensor], saved: SavedPosterior, folder: Path) -> dict[str, Tensor]:
    """Return tensors, with names and shapes checked for tensors of neither model nor guide."""
    expected = {*_UNITS, *(_TERMS if saved.history else ())}
    x = saved_inputs(tensors)
    expected |= {name for name in tensors if name.startswith(f"{INPUTS}.")} or {INPUTS}
    names = {name for name in tensors if not name.startswith(("bnn.", "guide."))} - {OUTPUTS, WIDTH}
    odd = sorted(names ^ expected)
    if odd:
        side = "saved but not expected" if odd[0] in names else "expected but not saved"
        raise InputError(f"{folder / TENSORS} does not fit: {odd[0]!r} is {side}.")
    rows = [("x", row) for row in ([] if x is None else tensors_of(x))] + [("y", tensors["example.y"])]
    for name, row in rows:
        shapes = {tuple(tensors[f"{name}_scaler.{part}"].shape) for part in ("loc", "scale")}
        if len(row) != 1 or len(shapes) != 1 or not shapes <= {(), tuple(row.shape[1:])}:
            raise InputError(f"{folder / TENSORS} does not fit: the scaler of {name} and a row of {name} differ.")
    if WIDTH in tensors and (tensors[WIDTH].ndim != 2 or len(tensors[WIDTH]) != 1):
        raise InputError(f"{folder / TENSORS} does not fit: {WIDTH!r} is no row of outputs.")
    return tensors


def _net(saved: SavedPosterior, net: Net | None, folder: Path) -> Any:
    declared = saved.parts["net"]
    if declared.get("type") != CUSTOM:
        if net is not None:
            raise InputError(f"{folder} holds its own network, {nets.resolve(declared)!r}: leave out `net`.")
        resolved = nets.resolve(declared)
        check_size(resolved)
        return resolved
    if net is None:
        name = declared.get("class")
        raise InputError(
            f"{folder} was saved with your own network, {name}: pass it, bnn.load(path, net={name}(...)).",
            page="how-to/save-and-load",
        )
    return net


def _build(
    saved: SavedPosterior,
    tensors: Mapping[str, Tensor],
    net: Any,
    device: torch.device,
    folder: Path,
    *,
    budget: Budget,
) -> Posterior:
    """Build model and guide in the order of `fit`, under its seed."""
    x_scaler, y_scaler = (Scaler(tensors[f"{p}.loc"], tensors[f"{p}.scale"]) for p in ("x_scaler", "y_scaler"))
    x = saved_inputs(tensors)
    assert x is not None  # it is checked
    if saved.categories is not None:
        x_scaler = dataclasses.replace(x_scaler, donors=_without_rows(single(x, "A table"), saved.categories, folder))
    example = (x.to(device), tensors["example.y"].to(device))
    outputs = tensors[WIDTH].to(device) if WIDTH in tensors else None
    with seeded(saved.seed):
        declared = BNN(net, prior=saved.parts["prior"], likelihood=saved.parts["likelihood"])
    with seeded(saved.seed), fast_pyro(), ExitStack() as stack:
        bnn = declared.fresh()
        tensors = _with_body(tensors, bnn, saved.body_sha256, folder)
        if saved.parts["net"].get("type") == CUSTOM:
            _require_same_network(bnn.net, tensors, folder)
        bnn.to(device)
        stack.enter_context(budget.without(bnn.net))
        bnn.scale_targets(y_scaler.scale.expand(example[1].shape[1:]))
        _restore(bnn.eval(), tensors, "bnn.", folder)
        if OUTPUTS in tensors and not agrees(bnn, single(x, "A probe"), tensors[OUTPUTS]):
            raise InputError(
                f"{folder} was saved with another `net`: this one has its parameters, and other outputs. Pass the "
                "network of the fit: the same activations and other layers."
            )
        if outputs is not None:  # earlier files have no outputs: their networks have taken the zeros
            stack.enter_context(bnn.without_network(outputs))
        guide = guides.resolve(saved.guide).build(bnn, *example).to(device)
    _restore(guide, tensors, "guide.", folder)
    _keep_moments(bnn, saved, (x_scaler, y_scaler))
    return Posterior(
        bnn,
        guide,
        example=example,
        x_scaler=x_scaler,
        y_scaler=y_scaler,
        seed=saved.seed,
        history=_history(saved, tensors),
        info=saved.info,
        outputs=outputs,
    )


def _require_same_network(net: nn.Module, tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Refuse a network whose parameters have other names, shapes or precisions than those saved."""
    prefix = "bnn.net."
    saved = {name.removeprefix(prefix): _kind(value) for name, value in tensors.items() if name.startswith(prefix)}
    given = {name: _kind(value) for name, value in net.state_dict().items()}
    other = [
        f"{name} is {saved.get(name, 'missing')} in the folder and {given.get(name, 'missing')} in `net`"
        for name in [*given, *sorted(saved.keys() - given.keys())]
        if saved.get(name) != given.get(name)
    ]
    if other:
        more = f"; and {len(other) - _MOST_NAMED} more" if len(other) > _MOST_NAMED else ""
        raise InputError(
            f"{folder} was saved with another network than this `net`: {'; '.join(other[:_MOST_NAMED])}{more}. "
            "Pass the network of the fit: the same layers, widths and precision.",
            page="how-to/save-and-load",
        )


def _without_rows(x: Tensor, categories: list[list[int]], folder: Path) -> Donors:
    """Return what is known of donors without their rows, by which gaps are refused."""
    if x.ndim != 2 or max(map(max, filter(None, categories)), default=0) >= x.shape[1]:
        raise InputError(f"{folder / SETTINGS} does not fit: its categories are not columns of the inputs.")
    return Donors(x[:0].double(), x.new_zeros(0).double(), categories)


def _keep_moments(bnn: BNN, saved: SavedPosterior, units: tuple[Scaler, Scaler]) -> None:
    """Put the moments of an earlier posterior, which are tensors, back into the setting of a prior made of them."""
    moments = kept_moments(bnn)
    if moments:
        prior = FromPosterior(moments)
        bnn.settings["prior"] = priors.resolve(_with_prior(saved.parts["prior"], prior))
        bnn.units = units
        bnn.start_at(bnn.state_at(bnn.initial_values))


def _with_prior(table: Any, prior: FromPosterior) -> Any:
    if not isinstance(table, dict):
        return table
    return prior if table == prior.as_dict() else {key: _with_prior(value, prior) for key, value in table.items()}


def _history(saved: SavedPosterior, tensors: Mapping[str, Tensor]) -> History | None:
    if saved.history is None:
        return None
    stored, (log_likelihood, kl) = saved.history, (tensors[name].numpy() for name in _TERMS)
    return History(log_likelihood, kl, stored.validation_steps, stored.validation_scores, stored.engine)


def _restore(module: nn.Module, tensors: Mapping[str, Tensor], prefix: str, folder: Path) -> None:
    saved = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
    expected = module.state_dict()
    odd = sorted(set(saved) ^ set(expected))
    if odd:
        side = "saved but not expected" if odd[0] in saved else "expected but not saved"
        raise InputError(f"{folder} does not fit the {prefix.rstrip('.')}: {odd[0]!r} is {side}.")
    for name, value in expected.items():
        kind, wanted = _kind(saved[name]), _kind(value)
        if kind != wanted:
            raise InputError(
                f"{folder} does not fit the {prefix.rstrip('.')}: {name!r} was saved as {kind}, expected {wanted}."
            )
    with torch.no_grad():
        module.load_state_dict(saved)


def _kind(value: Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')}{tuple(value.shape)}"
