"""Posteriors on disk: a folder with tensors (safetensors) and settings (JSON); nothing in it is executed on loading."""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from pyrobnn import guides
from pyrobnn._errors import InputError
from pyrobnn._folders import new_folder
from pyrobnn._pyro import fast_pyro
from pyrobnn._random import seeded
from pyrobnn._settings import to_dict
from pyrobnn.bnn import BNN
from pyrobnn.data import Scaler
from pyrobnn.mixture import Mixture
from pyrobnn.posterior import Posterior

FORMAT_VERSION = 1
_TENSORS, _SETTINGS = "tensors.safetensors", "posterior.json"
_CUSTOM = "custom"


def save_posterior(posterior: Posterior | Mixture, path: str | Path) -> Path:
    """Write a posterior to a new folder, which appears whole or not at all.

    The folder has the trained tensors of model and guide, the scalers, and the settings from which `load_posterior`
    builds both anew. The record of the fit (`history`) is not kept. A network given as a `torch.nn.Module` cannot be
    written as a setting: its weights are saved, and `load_posterior` then needs `net=`. A mixture has a folder inside
    for each member.

    Args:
        posterior: what `fit` returned.
        path: the folder to make.

    Returns:
        The folder.

    Raises:
        InputError: the folder exists, or prior, likelihood or guide are not settings and cannot be written.
    """
    members = posterior.members if isinstance(posterior, Mixture) else [posterior]
    settings = [_settings(member) for member in members]
    with new_folder(Path(path)) as folder:
        if not isinstance(posterior, Mixture):
            _write(posterior, settings[0], folder)
            return Path(path)
        for index, (member, own) in enumerate(zip(members, settings, strict=True)):
            (folder / _member(index)).mkdir()
            _write(member, own, folder / _member(index))
        shared = {"format_version": FORMAT_VERSION, "members": len(members), "seed": posterior.seed}
        _write_json(shared | {"info": posterior.info}, folder)
    return Path(path)


def _write(posterior: Posterior, settings: dict[str, Any], folder: Path) -> None:
    save_file(_tensors(posterior), folder / _TENSORS)
    _write_json(settings | {"sha256": _sha256(folder / _TENSORS)}, folder)


def _write_json(settings: dict[str, Any], folder: Path) -> None:
    (folder / _SETTINGS).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def _member(index: int) -> str:
    return f"member_{index:03d}"


def load_posterior(path: str | Path, *, net: nn.Module | None = None) -> Posterior | Mixture:
    """Read a posterior that `save_posterior` wrote; for the same seed it draws and predicts the same bits on a CPU.

    Args:
        path: the folder.
        net: the network, with the same parameters by name and shape, if it was a `torch.nn.Module` of your own.

    Raises:
        InputError: not such a folder, a file that was changed, another format version, or tensors that do not fit.
    """
    folder = Path(path)
    settings = _read_settings(folder)
    if "members" in settings:
        members = [_load(folder / _member(index), net) for index in range(settings["members"])]
        return Mixture(members, seed=settings["seed"], info=settings["info"])
    return _load(folder, net)


def _load(folder: Path, net: nn.Module | None) -> Posterior:
    settings = _read_settings(folder)
    if _sha256(folder / _TENSORS) != settings["sha256"]:
        raise InputError(f"{folder / _TENSORS} is not the file that was saved (its SHA-256 differs): restore it.")
    tensors = load_file(folder / _TENSORS)
    return _build(settings, tensors, _net(settings, net, folder), folder)


def _settings(posterior: Posterior) -> dict[str, Any]:
    method = posterior.info.get("method")
    if not isinstance(method, dict) or "guide" not in method:
        raise InputError(
            f"The guide {type(posterior.guide).__name__} was not fitted from a setting, so it cannot be saved: fit "
            "with a guide by name or a setting such as guides.MeanField()."
        )
    given = posterior.bnn.settings
    net = given["net"]
    parts = {
        "net": {"type": _CUSTOM, "class": type(net).__name__} if isinstance(net, nn.Module) else to_dict(net),
        "prior": to_dict(given["prior"]),
        "likelihood": to_dict(given["likelihood"]),
    }
    own = {"format_version": FORMAT_VERSION, "seed": posterior.seed, "info": posterior.info}
    return own | {"parts": parts, "guide": method["guide"]}


def _tensors(posterior: Posterior) -> dict[str, Tensor]:
    tensors = {f"bnn.{name}": value for name, value in posterior.bnn.state_dict().items()}
    tensors |= {f"guide.{name}": value for name, value in posterior.guide.state_dict().items()}
    for prefix, scaler in (("x_scaler", posterior.x_scaler), ("y_scaler", posterior.y_scaler)):
        tensors |= {f"{prefix}.loc": scaler.loc, f"{prefix}.scale": scaler.scale}
    tensors |= {"example.x": posterior.example[0], "example.y": posterior.example[1]}
    return {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}


def _read_settings(folder: Path) -> dict[str, Any]:
    _require_file(folder, _SETTINGS)
    try:
        settings = json.loads((folder / _SETTINGS).read_text(encoding="utf-8"))
    except ValueError:
        settings = None
    if not isinstance(settings, dict) or "format_version" not in settings:
        raise InputError(f"{folder / _SETTINGS} is damaged: restore it, or save the posterior again.")
    if settings["format_version"] != FORMAT_VERSION:
        raise InputError(
            f"{folder} has format version {settings['format_version']}, this pyrobnn reads {FORMAT_VERSION}: use the "
            "pyrobnn that wrote it."
        )
    own = set() if "members" in settings else {"parts", "guide", "sha256"}
    missing = {"seed", "info"}.union(own) - set(settings)
    if missing:
        raise InputError(f"{folder / _SETTINGS} lacks {min(missing)!r}: restore it, or save the posterior again.")
    if own:
        _require_file(folder, _TENSORS)
    return settings


def _require_file(folder: Path, name: str) -> None:
    if not (folder / name).is_file():
        raise InputError(f"{folder} is not a saved posterior, it has no {name}: pass a folder of save_posterior.")


def _net(settings: dict[str, Any], net: nn.Module | None, folder: Path) -> Any:
    declared = settings["parts"]["net"]
    if declared["type"] != _CUSTOM:
        if net is not None:
            raise InputError(f"{folder} has a declared network, {declared['type']!r}: leave out `net`.")
        return declared
    if net is None:
        raise InputError(
            f"{folder} was saved with a network of your own, {declared['class']}: pass it, load_posterior(path, "
            f"net={declared['class']}(...))."
        )
    return net


def _build(settings: dict[str, Any], tensors: dict[str, Tensor], net: Any, folder: Path) -> Posterior:
    """Build model and guide in the order in which `fit` does, under its seed."""
    parts, seed = settings["parts"], settings["seed"]
    x_scaler, y_scaler = (Scaler(tensors[f"{p}.loc"], tensors[f"{p}.scale"]) for p in ("x_scaler", "y_scaler"))
    example = (tensors["example.x"], tensors["example.y"])
    with seeded(seed):
        declared = BNN(net, prior=parts["prior"], likelihood=parts["likelihood"])
    with seeded(seed), fast_pyro():
        bnn = declared.fresh()
        bnn.scale_targets(y_scaler.scale.expand(example[1].shape[1:]))
        _restore(bnn, tensors, "bnn.", folder)
        guide = guides.resolve(settings["guide"]).build(bnn.eval(), *example)
    _restore(guide, tensors, "guide.", folder)
    return Posterior(
        bnn, guide, example=example, x_scaler=x_scaler, y_scaler=y_scaler, seed=seed, info=settings["info"]
    )


def _restore(module: nn.Module, tensors: dict[str, Tensor], prefix: str, folder: Path) -> None:
    saved = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
    expected = module.state_dict()
    odd = sorted(set(saved) ^ set(expected))
    if odd:
        side = "saved but not expected" if odd[0] in saved else "expected but not saved"
        raise InputError(f"{folder} does not fit the {prefix.rstrip('.')}: {odd[0]!r} is {side}.")
    for name, value in saved.items():
        kind, wanted = _kind(value), _kind(expected[name])
        if kind != wanted:
            raise InputError(
                f"{folder} does not fit the {prefix.rstrip('.')}: {name!r} was saved as {kind}, expected {wanted}."
            )
    with torch.no_grad():
        module.load_state_dict(saved)


def _kind(value: Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')}{tuple(value.shape)}"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
