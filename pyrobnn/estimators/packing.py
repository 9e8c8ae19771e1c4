"""A posterior as bytes, for pickles: the file that `save` writes."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import nn

from pyrobnn.posterior.mixture import Mixture
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.storage.load import load
from pyrobnn.storage.save import save


def pack(posterior: Posterior | Mixture) -> bytes:
    """Return the file of a saved posterior."""
    with TemporaryDirectory() as folder:
        return save(posterior, Path(folder) / "posterior").read_bytes()


def unpack(content: bytes, net: Any) -> Posterior | Mixture:
    """Return the posterior from its file.

    Args:
        content: as `pack` returns it.
        net: the network as given to the estimator; needed if it is a `torch.nn.Module`.
    """
    with TemporaryDirectory() as folder:
        saved = Path(folder) / "posterior"
        saved.write_bytes(content)
        return load(saved, net=net if isinstance(net, nn.Module) else None)
