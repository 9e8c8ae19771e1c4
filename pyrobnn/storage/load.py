"""Reading a posterior from a file, within bounds on the cost of building what its settings ask for."""

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field, StrictInt, StrictStr
from torch import Tensor, nn

from pyrobnn import guides, nets, priors
from pyrobnn._core.errors import REFUSALS, InputError
from pyrobnn._core.modes import plain_tensors
from pyrobnn._core.random import seeded
from pyrobnn._core.settings import setting
from pyrobnn._core.tree_files import read_tree
from pyrobnn._torch.devices import resolve_device
from pyrobnn._torch.inputs import Inputs, X, tensors_of
from pyrobnn._torch.private import OperationMode, private, tree_leaves, tree_map
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn.bnn import BNN, StartState
from pyrobnn.distributions.units import Scaler, scaler_of
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.record import CUSTOM, EngineRecord, FitRecord, History
from pyrobnn.priors.from_posterior import FromPosterior, kept_moments
from pyrobnn.storage.save import FORMAT_VERSION, INPUTS, WIDTH, Table, Tensors, answers, digest_of, frozen

Net = nn.Module | Callable[[], nn.Module]
_MOST_NAMED, _SAME = 3, 0.01  # parameters named where a network is another, and the share its outputs may differ by
Parts = Annotated[dict[Literal["net", "prior", "likelihood"], Table], Field(min_length=3)]
_BYTES, _COPIES = 2**28, 40
"""Bytes that may be made in all, and more for each byte of the tensors: guides make a few dozen copies at most."""
_OPERATIONS, _OPERATIONS_EACH = 4000, 200  # of torch, and more for each of the tensors
_TEXT, _TEXT_EACH, _DEPTH = 2**13, 2**8, 32
"""Characters of the settings of model and guide, more for each of the tensors, and the depth of tables in them."""
_LARGEST_NUMBER = 16
_NAMES = ("_is_all_true", "all", "cat", "cumsum", "logsumexp", "randn_like")
_NO_LARGER = tuple(getattr(torch.ops.aten, name) for name in _NAMES)
"""Operations whose result has no more numbers than their tensors."""


class Bounds(OperationMode):
    """Refuses, in its block, operations too large for the saved tensors, before they run."""

    def __init__(self, tensors: Iterable[Tensor], settings: Any, path: Path) -> None:
        private("TorchDispatchMode")  # without it nothing would be refused
        super().__init__()
        sizes = [value.nbytes for value in tensors]
        self._path, self._room = path, _BYTES + _COPIES * sum(sizes)
        self._operations = _OPERATIONS + _OPERATIONS_EACH * len(sizes)
        depth, level = 0, [settings]
        while level and depth <= _DEPTH:
            depth += 1
            inside = [value.values() if isinstance(value, Mapping) else value for value in level]
            level = [value for values in inside for value in values if isinstance(value, (Mapping, list))]
        if depth > _DEPTH or len(json.dumps(settings)) > _TEXT + _TEXT_EACH * len(sizes):
            raise self._too_much("more parts")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self._operations -= 1
        if self._operations < 0:
            raise self._too_much("more operations")
        if at_most(func, args, kwargs) > self._room and planned(func, args, kwargs) > self._room:
            raise self._too_much("more memory")
        result = func(*args, **kwargs)
        if not (func.is_view or func._schema.is_mutable):
            self._room -= sum(value.nbytes for value in tree_leaves(result) if isinstance(value, Tensor))
        return result

    def _too_much(self, demand: str) -> InputError:
        fault = f"its settings ask for {demand} than its tensors can fill"
        return InputError(f"{self._path} does not fit: {fault}: restore the file.")


def at_most(func: Any, args: Any, kwargs: Any) -> float:
    """Return a quick bound on the bytes of a result: `planned` may import the compiler of torch, for two seconds."""
    shapes = [value.shape for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
    if torch.Tag.pointwise in func.tags:
        return float(_LARGEST_NUMBER * math.prod(np.broadcast_shapes(*shapes)))  # torch's own imports sympy
    return float(_LARGEST_NUMBER * sum(map(math.prod, shapes))) if func.overloadpacket in _NO_LARGER else math.inf


def planned(func: Any, args: Any, kwargs: Any) -> int:
    """Return the bytes that an operation is about to allocate, by running it on tensors without storage."""
    if func.is_view or func._schema.is_mutable:
        return 0
    try:
        results = func(*tree_map(_without_storage, args), **tree_map(_without_storage, kwargs))
    except (NotImplementedError, RuntimeError):  # its result depends on values, and is no larger than their tensor
        return 0
    return sum(value.nbytes for value in tree_leaves(results) if isinstance(value, Tensor))


def _without_storage(value: Any) -> Any:
    if isinstance(value, Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    return torch.device("meta") if isinstance(value, torch.device) else value


@setting
class SavedHistory:
    """The record of a fit."""

    log_likelihood: Tensor
    kl: Tensor
    validation_steps: list[StrictInt]
    validation_scores: list[Annotated[float, Field(allow_inf_nan=True)]]
    engine: EngineRecord


@setting
class SavedPosterior:
    """A posterior; `example` has a row of zeros like inputs, targets and outputs, and `scalers` their units."""

    seed: StrictInt
    info: Table
    parts: Parts
    guide: Table
    model_state: Tensors
    guide_state: Tensors
    example: Tensors
    scalers: Tensors
    history: SavedHistory | None = None
    body_sha256: StrictStr | None = None
    answers: Tensor | None = None
    network: Table = dataclasses.field(default_factory=dict)  # of earlier versions


@setting
class SavedMixture:
    """A mixture, with the tables of its members."""

    seed: StrictInt
    info: Table
    members: Annotated[list[Table], Field(min_length=1)]


def load(path: str | Path, *, net: Net | None = None, guide: Any = None, device: str = "cpu") -> Posterior | Mixture:
    """Read a posterior that `save` wrote; for the same seed it draws and predicts the same bits on a CPU.

    See docs/how-to/save-and-load.md.

    Args:
        path: the file.
        net: the network, if it was given as a module, or a function that makes it; with its frozen parameters, if
            it was saved without them. Its tensors, and outputs for the saved weights, are compared.
        guide: what makes the guide of `Posterior.from_guide`: its class, or a function of the model.
        device: "cpu", "cuda", ..., or "auto" for a GPU where there is one.

    Raises:
        InputError: no such file, a damaged one, another format version, tensors that do not fit, or a missing device.

    Examples:
        >>> net = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        >>> posterior = bnn.BNN(net).fit(bnn.datasets.sinusoid(), steps=20, seed=0, progress=False)
        >>> file = bnn.save(posterior, "posterior.safetensors")
        >>> torch.equal(bnn.load(file, net=net).mean()["0.bias"], posterior.mean()["0.bias"])  # yours is passed again
        True
    """
    return from_tree(content_of(Path(path)), Path(path), net=net, guide=guide, device=device)


@plain_tensors()
def from_tree(
    content: Mapping[str, Any], path: Path, *, net: Net | None = None, guide: Any = None, device: str = "cpu"
) -> Any:
    """Return the posterior of a file with the content that `to_tree` made."""
    place = resolve_device(device)
    if "estimator" in content:
        raise InputError(f"{path} holds an estimator: load it by {content['estimator']}.load(path).")
    try:
        mixture = SavedMixture(**content) if "members" in content else None
        saved = [SavedPosterior(**each) for each in ([content] if mixture is None else mixture.members)]
    except InputError as error:
        raise InputError(f"{path} does not fit ({str(error).partition(': ')[2]}): restore it, or save again.") from None
    posteriors = [_load(path, each, net, guide, place) for each in saved]
    if mixture is None:
        return posteriors[0]
    return Mixture(posteriors, seed=mixture.seed, record=FitRecord.from_table(mixture.info))


def content_of(path: Path) -> dict[str, Any]:
    """Return the content of a file of this version, without the version."""
    if not path.is_file():
        found = "is a folder, as earlier versions wrote them" if path.is_dir() else "is no file"
        raise InputError(f"{path} {found}: pass a file that bnn.save wrote.")
    content = read_tree(path)
    version = content.pop("format_version", None)
    if version != FORMAT_VERSION:
        fault = f"has format version {version}, this pyrobnn reads {FORMAT_VERSION}"
        raise InputError(f"{path} {fault}: use the pyrobnn that wrote it.")
    return content


def _load(path: Path, saved: SavedPosterior, net: Net | None, guide: Any, device: torch.device) -> Posterior:
    _check_rows(saved, path)
    if (saved.guide.get("type") == CUSTOM) != (guide is not None):
        text = f"was saved with your own guide, {saved.guide.get('class')}: pass what makes it, as `guide`"
        raise InputError(f"{path} {'makes its guide itself: leave out `guide`' if guide else text}.")
    made = None if isinstance(net, nn.Module) or net is None else nets.owned(net)
    given = net if made is None else functools.cache(made.build)
    tensors = [*saved.model_state.values(), *saved.guide_state.values()]
    if saved.body_sha256 is not None and given is not None:
        with seeded(saved.seed):
            tensors += (given if isinstance(given, nn.Module) else given()).state_dict().values()
    bounds = Bounds(tensors, [saved.parts, saved.guide], path)
    try:
        posterior = _build(saved, _net(saved, given, path), device, path, bounds, guide=guide or saved.guide)
    except InputError:
        raise
    except (ArithmeticError, RuntimeError, TypeError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{path} cannot be built from its settings ({reason}): restore it as it was saved.") from error
    if made is not None:  # further fits ask the function again
        posterior.bnn.settings["net"] = made
    return posterior


def _check_rows(saved: SavedPosterior, path: Path) -> None:
    """Refuse tensors that stand for data and units where names are missing or too many, or shapes differ."""
    inputs = {name for name in saved.example if name.startswith(f"{INPUTS}.")} or {INPUTS}
    units = {f"{name}.{part}" for name in ("x", "y") for part in ("loc", "scale")}
    units |= {name for name in saved.scalers if name.startswith("x.")}  # a map of inputs has more
    odd = sorted((saved.example.keys() ^ {*inputs, "y", WIDTH}) | (saved.scalers.keys() ^ units))
    if odd:
        raise InputError(f"{path} does not fit: {odd[0]!r} is missing, or too much.")
    for name, row in [*(("x", row) for row in tensors_of(inputs_of(saved.example))), ("y", saved.example["y"])]:
        if len(row) != 1 or not _fits(saved.scalers, name, row):
            raise InputError(f"{path} does not fit: the scaler of {name} and a row of {name} differ.")
    if saved.example[WIDTH].ndim != 2 or len(saved.example[WIDTH]) != 1:
        raise InputError(f"{path} does not fit: {WIDTH!r} is no row of outputs.")


def _fits(tensors: Tensors, name: str, row: Tensor) -> bool:
    """Return whether the map of inputs or targets makes such a row of a row in original units."""
    with suppress(*REFUSALS):
        scaler = _scaler_of(tensors, name)
        given = row.new_zeros(1, *scaler.row(row))
        known = scaler.loc.shape == scaler.scale.shape and scaler.loc.shape in ((), given.shape[1:])
        return known and scaler.transform(given).shape == row.shape
    return False


def _scaler_of(tensors: Tensors, name: str) -> Scaler:
    """Return the map of inputs or targets."""
    start = f"{name}."
    return scaler_of(**{key.removeprefix(start): value for key, value in tensors.items() if key.startswith(start)})


def inputs_of(example: Mapping[str, Tensor]) -> X:
    """Return the row of inputs of an outline."""
    if INPUTS in example:
        return example[INPUTS]
    parts = {name.removeprefix(f"{INPUTS}."): value for name, value in example.items() if name not in ("y", WIDTH)}
    return Inputs({name: parts[name] for name in sorted(parts, key=lambda name: (len(name), name))})


def _net(saved: SavedPosterior, net: Net | None, path: Path) -> Any:
    """Return the network, or its declaration, whose shapes are checked before anything is allocated."""
    declared = saved.parts["net"]
    if declared.get("type") == CUSTOM:
        if net is None:
            text = "was saved with your own network, {0}: pass it, bnn.load(path, net={0}(...))."
            raise InputError(f"{path} {text.format(declared.get('class'))}", page="how-to/save-and-load")
        return net
    resolved = nets.resolve(declared)
    if net is not None:
        raise InputError(f"{path} holds its own network, {resolved!r}: leave out `net`.")
    with torch.device("meta"):
        built = {f"net.{name}": value for name, value in resolved.build().state_dict().items()}
    found = {name: value for name, value in saved.model_state.items() if name.startswith("net.")}
    _require_same(built, found, "network", path)
    return resolved


def _build(
    saved: SavedPosterior, net: Any, device: torch.device, path: Path, bounds: Bounds, *, guide: Any
) -> Posterior:
    """Build model and guide in the order of `fit`, under its seed."""
    x_scaler, y_scaler = (_scaler_of(saved.scalers, name) for name in ("x", "y"))
    x = inputs_of(saved.example)
    example, outputs = (x.to(device), saved.example["y"].to(device)), saved.example[WIDTH].to(device)
    with seeded(saved.seed):
        declared = BNN(net, prior=saved.parts["prior"], likelihood=saved.parts["likelihood"])
    with seeded(saved.seed), fast_pyro():
        bnn = declared.fresh(device=device, target_scale=y_scaler.scale.expand(example[1].shape[1:]))
        state = _with_body(saved, bnn, path)
        _restore(bnn.eval(), state, "model", path)
        _require_same_answers(bnn, example[0], saved.answers, path)
        with bnn.without_network(outputs), bounds:
            guide = guides.resolve(guide).build(bnn, *example).to(device)
    _restore(guide, saved.guide_state, "guide", path)
    kept = vars(saved.history) if saved.history else {}
    curves: Any = {name: value.numpy() if isinstance(value, Tensor) else value for name, value in kept.items()}
    history = History(**curves) if curves else None
    moments = kept_moments(bnn)
    if moments:  # of an earlier posterior: tensors, which go back into the setting of the prior made of them
        bnn.settings["prior"] = priors.resolve(_with_prior(saved.parts["prior"], FromPosterior(moments)))
        bnn.units = (x_scaler, y_scaler)
        bnn.start = StartState(bnn.state_at(bnn.initial_values))
    return Posterior(
        bnn,
        guide,
        example=example,
        x_scaler=x_scaler,
        y_scaler=y_scaler,
        seed=saved.seed,
        history=history,
        record=FitRecord.from_table(saved.info),
        outputs=outputs,
    )


def _with_body(saved: SavedPosterior, bnn: BNN, path: Path) -> Mapping[str, Tensor]:
    """Return the state of the model, with the frozen tensors of its network if these were not saved."""
    if saved.body_sha256 is None:
        return saved.model_state
    body = frozen(bnn)
    if digest_of(body) != saved.body_sha256:
        text = "was saved without its frozen body, and this `net` has another: pass the network of before the fit"
        raise InputError(f"{path} {text}, with the same weights frozen.", page="how-to/hugging-face")
    return saved.model_state | body


def _require_same_answers(bnn: BNN, example: X, saved: Tensor | None, path: Path) -> None:
    """Refuse a network that makes other outputs of the same weights, to a hundredth of the largest."""
    found = None if saved is None else answers(bnn, example)
    if found is None or saved is None:
        return
    if found.shape != saved.shape or not found.cpu().allclose(saved, 0, _SAME * float(saved.abs().max())):
        same = "pass the network of the fit, with the same layers, code, attributes and buffers"
        text = f"{path} does not fit the network: for the same weights its outputs differ: {same}."
        raise InputError(text, page="how-to/save-and-load")


def _with_prior(table: Any, prior: FromPosterior) -> Any:
    if not isinstance(table, dict):
        return table
    return prior if table == prior.as_dict() else {key: _with_prior(value, prior) for key, value in table.items()}


def _restore(module: nn.Module, saved: Mapping[str, Tensor], part: str, path: Path) -> None:
    _require_same(module.state_dict(), saved, part, path)
    module.load_state_dict(saved)


def _require_same(expected: Mapping[str, Tensor], saved: Mapping[str, Tensor], part: str, path: Path) -> None:
    """Refuse tensors with other names, shapes or precisions than those expected."""
    there, here = (
        {name: f"{str(value.dtype)[6:]}{tuple(value.shape)}" for name, value in state.items()}
        for state in (saved, expected)
    )
    other = [
        f"{name} is {there.get(name, 'missing')} in the file and {here.get(name, 'missing')} here"
        for name in dict.fromkeys([*here, *sorted(there)])
        if there.get(name) != here.get(name)
    ]
    if other:
        more = f"; and {len(other) - _MOST_NAMED} more" if len(other) > _MOST_NAMED else ""
        text = f"{'; '.join(other[:_MOST_NAMED])}{more}. A network must be that of the fit, in widths and precision."
        raise InputError(f"{path} does not fit the {part}: {text}", page="how-to/save-and-load")
