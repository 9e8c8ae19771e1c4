"""Writing a posterior to a file."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pyrobnn._core.errors import REFUSALS, InputError
from pyrobnn._core.modes import plain_tensors
from pyrobnn._core.random import seeded
from pyrobnn._core.settings import to_dict
from pyrobnn._core.tree_files import digest, write_tree
from pyrobnn._torch.inputs import Inputs, X
from pyrobnn.bnn import BNN
from pyrobnn.nets import is_custom
from pyrobnn.posterior.base import require_posterior
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.record import CUSTOM

FORMAT_VERSION = 3
WIDTH, INPUTS = "f", "x"
_NUM_ROWS = 8

Table = dict[str, Any]
Tensors = dict[str, Tensor]


@plain_tensors()
def save(posterior: Posterior | Mixture, path: str | Path, *, body: bool = True) -> Path:
    """Write a posterior to a new file, complete and on disk, or not at all, and return the file.

    It has tensors, the record of the fit, and settings; no row of data. Of a network given as a `torch.nn.Module` the
    weights are saved, and `load` needs `net=`. See docs/how-to/save-and-load.md.

    Args:
        posterior: the result of `fit`.
        path: the new file.
        body: write frozen parameters, too. Without them `load` needs `net=` with the same frozen parameters.

    Raises:
        InputError: the file exists or cannot be made, a part or `record.extra` cannot be written, or nothing is frozen.
        OSError: the disk is full, or failed; nothing is left of the file.

    Examples:
        >>> posterior = bnn.BNN(bnn.MLP(1, [10], 1)).fit(bnn.datasets.sinusoid(), steps=20, seed=0, progress=False)
        >>> bnn.save(posterior, "posterior.safetensors").name
        'posterior.safetensors'
    """
    require_posterior(posterior)
    write_tree(Path(path), {"format_version": FORMAT_VERSION} | to_tree(posterior, body=body), replaces=False)
    return Path(path)


def to_tree(posterior: Posterior | Mixture, *, body: bool = True) -> dict[str, Any]:
    """Return the content of a file, nested tables with tensors."""
    tables = [_table(member, body=body) for member in posterior.members]
    if len({table["body_sha256"] for table in tables}) > 1:
        raise InputError("Members have different frozen bodies, and `load` takes one network: save with body=True.")
    mixture = {"seed": posterior.seed, "info": posterior.record.to_table(), "members": tables}
    return mixture if isinstance(posterior, Mixture) else tables[0]


def _table(posterior: Posterior, *, body: bool) -> dict[str, Any]:
    guide = posterior.record.guide
    if guide is None:
        raise InputError("The guide was not fitted from a setting, so it cannot be saved: fit with a guide by name.")
    given, net, history = posterior.bnn.settings, posterior.bnn.settings["net"], posterior.history
    curves = {name: torch.tensor(getattr(history, name)) for name in ("log_likelihood", "kl") if history is not None}
    parts = {
        "net": {"type": CUSTOM, "class": type(posterior.bnn.net).__name__} if is_custom(net) else to_dict(net),
        "prior": to_dict(given["prior"]),
        "likelihood": to_dict(given["likelihood"]),
    }
    left_out = {} if body else frozen(posterior.bnn)
    if not (body or left_out):
        remedy = "save it with body=True, or freeze them before the fit"
        fault = "The network has no frozen parameters to leave out"
        raise InputError(f"{fault}: {remedy}.", page="how-to/hugging-face")
    return {
        "seed": posterior.seed,
        "info": posterior.record.to_table(),
        "parts": parts,
        "answers": answers(posterior.bnn, posterior.example[0]) if is_custom(net) else None,
        "guide": guide,
        "model_state": {name: value for name, value in posterior.bnn.state_dict().items() if name not in left_out},
        "guide_state": dict(posterior.guide.state_dict()),
        "example": outline(posterior),
        "scalers": {
            f"{name}.{part}": value
            for name, scaler in (("x", posterior.x_scaler), ("y", posterior.y_scaler))
            for part, value in scaler.tensors.items()
        },
        "history": None if history is None else dataclasses.asdict(history) | curves,
        "body_sha256": None if body else digest_of(left_out),
    }


def outline(posterior: Posterior) -> Tensors:
    """Return a row of zeros like inputs, targets and outputs, by their names in the file."""
    x, y = posterior.example
    parts = {f"{INPUTS}.{name}": value for name, value in x.parts.items()} if isinstance(x, Inputs) else {INPUTS: x}
    return {name: torch.zeros_like(value[:1]) for name, value in (parts | {"y": y, WIDTH: posterior.outputs}).items()}


def answers(bnn: BNN, example: X) -> Tensor | None:
    """Return the outputs at made-up rows like an example, by which `load` knows a network; None where it takes none."""

    def rows(values: Tensor) -> Tensor:
        waves = 3 * torch.arange(_NUM_ROWS * values[0].numel()).cos() * values.is_floating_point()
        return waves.view(_NUM_ROWS, *values.shape[1:]).to(values)

    try:
        with seeded(0), torch.no_grad():
            made_up = example.map(rows) if isinstance(example, Inputs) else rows(example)
            outputs = bnn.outputs(bnn.initial_values, made_up)
    except REFUSALS:
        return None
    return outputs if bool(outputs.isfinite().all()) else None


def frozen(bnn: BNN) -> Tensors:
    """Return the frozen tensors of a model, by their names in its state; a posterior may be saved without them."""
    state = bnn.net.state_dict()
    return {f"net.{name}": state[name] for name in bnn.frozen_names}


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of tensors and their names."""
    names = torch.tensor(list("\n".join(sorted(tensors)).encode()), dtype=torch.uint8)
    return digest([names, *(tensors[name] for name in sorted(tensors))])
