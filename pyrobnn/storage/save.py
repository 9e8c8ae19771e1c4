"""Writing a posterior to a folder."""

import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pyrobnn._core.errors import InputError
from pyrobnn._core.folders import new_folder
from pyrobnn._core.modes import plain_tensors, under
from pyrobnn._core.settings import to_dict
from pyrobnn.bnn import BNN
from pyrobnn.inference.training.watch import History
from pyrobnn.nets import is_custom
from pyrobnn.posterior.asked import refuses_others
from pyrobnn.posterior.mixture import Mixture, members_of
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.storage.body import digest_of, frozen_tensors
from pyrobnn.storage.content import CUSTOM
from pyrobnn.storage.files import member_name, write_settings, write_tensors
from pyrobnn.storage.probe import outline, probe


@refuses_others
@under(plain_tensors)
def save(posterior: Posterior | Mixture, path: str | Path, *, body: bool = True) -> Path:
    """Write a posterior to a new folder, complete and on disk, or not at all.

    The folder has the trained tensors of model and guide, the scalers, the record of the fit, and the settings for
    `load` to rebuild it. A network given as a `torch.nn.Module` cannot be written as a setting:
    its weights are saved, and `load` then needs `net=`. A mixture has a folder inside for each member. No row
    of data is written, only the shapes and kinds of inputs and targets.

    See docs/how-to/save-and-load.md.

    Args:
        posterior: the result of `fit`.
        path: the new folder.
        body: write frozen parameters, too. Without them the folder has their digest, and `load` needs `net=` with the
            same frozen parameters.

    Returns:
        The folder.

    Raises:
        InputError: the folder exists or cannot be made, prior, likelihood, guide or `info` cannot be written, or
            nothing is frozen that could be left out.
        OSError: the disk is full, or failed; nothing is left of the folder.

    Examples:
        >>> posterior = bnn.BNN(bnn.MLP(1, [10], 1)).fit(bnn.datasets.sinusoid(), steps=20, seed=0, progress=False)
        >>> folder = bnn.save(posterior, "posterior")
        >>> sorted(path.name for path in folder.iterdir())
        ['posterior.json', 'tensors.safetensors']
    """
    members = members_of(posterior)
    settings = [_settings(member, body=body) for member in members]
    if len({table.get("body_sha256") for table in settings}) > 1:
        raise InputError("Members have different frozen bodies, and `load` takes one network: save with body=True.")
    with new_folder(Path(path)) as folder:
        if not isinstance(posterior, Mixture):
            _write(posterior, settings[0], folder)
            return Path(path)
        digests = []
        for index, (member, member_settings) in enumerate(zip(members, settings, strict=True)):
            inner = folder / member_name(index)
            inner.mkdir()
            digests.append(_write(member, member_settings, inner))
        write_settings({"seed": posterior.seed, "info": posterior.info, "members": digests}, folder)
    return Path(path)


def _write(posterior: Posterior, settings: dict[str, Any], folder: Path) -> str:
    tensors = _tensors(posterior, body="body_sha256" not in settings)
    return write_settings(settings | {"tensors_sha256": write_tensors(tensors, folder)}, folder)


def _settings(posterior: Posterior, *, body: bool) -> dict[str, Any]:
    guide = posterior.record.guide
    if guide is None:
        raise InputError(
            f"The guide {type(posterior.guide).__name__} was not fitted from a setting, so it cannot be saved: fit "
            "with a guide by name or a setting such as guides.MeanField()."
        )
    given = posterior.bnn.settings
    net = given["net"]
    parts = {
        "net": {"type": CUSTOM, "class": type(posterior.bnn.net).__name__} if is_custom(net) else to_dict(net),
        "prior": to_dict(given["prior"]),
        "likelihood": to_dict(given["likelihood"]),
    }
    settings = {"seed": posterior.seed, "info": posterior.info, "parts": parts, "guide": guide}
    settings |= {"history": _history(posterior.history)}
    if posterior.donors is not None:
        settings |= {"categories": [[*columns] for columns in posterior.donors.categories]}
    return settings if body else settings | {"body_sha256": _digest_of_body(posterior.bnn)}


def _digest_of_body(bnn: BNN) -> str:
    frozen = frozen_tensors(bnn)
    if not frozen:
        raise InputError(
            "The network has no frozen parameters to leave out: save it with body=True, or freeze its body before the "
            "fit, as by net.body.requires_grad_(False).",
            page="how-to/hugging-face",
        )
    return digest_of(frozen)


def _history(history: History | None) -> dict[str, Any] | None:
    if history is None:
        return None
    return {
        "validation_steps": history.validation_steps,
        "validation_scores": history.validation_scores,
        "engine": dataclasses.asdict(history.engine),
    }


def _tensors(posterior: Posterior, *, body: bool) -> dict[str, Tensor]:
    left_out = {} if body else frozen_tensors(posterior.bnn)
    state = posterior.bnn.state_dict()
    tensors = {f"bnn.{name}": value for name, value in state.items() if name not in left_out}
    tensors |= {f"guide.{name}": value for name, value in posterior.guide.state_dict().items()}
    for prefix, scaler in (("x_scaler", posterior.x_scaler), ("y_scaler", posterior.y_scaler)):
        tensors |= {f"{prefix}.loc": scaler.loc, f"{prefix}.scale": scaler.scale}
    tensors |= outline(posterior)
    if posterior.history is not None:
        for name in ("log_likelihood", "kl"):
            tensors[f"history.{name}"] = torch.tensor(getattr(posterior.history, name))
    if is_custom(posterior.bnn.settings["net"]):
        tensors |= probe(posterior.bnn, posterior.example[0])
    return tensors
