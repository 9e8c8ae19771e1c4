"""A posterior as bytes, for pickles: the files that `save` writes, by name."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import nn

from pyrobnn.posterior.mixture import Mixture
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.storage.load import load
from pyrobnn.storage.save import save

_NAME = "posterior"


def pack(posterior: Posterior | Mixture) -> dict[str, bytes]:
    """Return the files of a saved posterior by relative path."""
    with TemporaryDirectory() as folder:
        saved = save(posterior, Path(folder) / _NAME)
        return {str(path.relative_to(saved)): path.read_bytes() for path in sorted(saved.rglob("*")) if path.is_file()}


def unpack(files: dict[str, bytes], net: Any) -> Posterior | Mixture:
    """Return the posterior from its files.

    Args:
        files: as `pack` returns them.
        net: the network as given to the estimator; needed if it is a `torch.nn.Module`.
    """
    with TemporaryDirectory() as folder:
        saved = Path(folder) / _NAME
        for name, content in files.items():
            path = saved / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return load(saved, net=net if isinstance(net, nn.Module) else None)
