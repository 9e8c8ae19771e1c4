"""The rows of a run folder whose values stand for those that new rows lack, and the posterior that has them."""

import json
from pathlib import Path

from safetensors.torch import load_file, save

from pyrobnn.data.donors import Donors
from pyrobnn.datasets.table import categories_of
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.storage.load import load

_FILE = "donors.safetensors"


def write_donors(donors: Donors | None, folder: Path) -> None:
    """Write the rows, if there are any."""
    if donors is not None:
        (folder / _FILE).write_bytes(save({"rows": donors.rows, "weights": donors.weights}))


def load_run(folder: Path) -> Posterior | Mixture:
    """Return the posterior of a run, with the rows if any were written."""
    posterior = load(folder / "posterior")
    if (folder / _FILE).is_file():
        read = load_file(folder / _FILE)
        encoder = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["data"]["encoder"]
        posterior.donors = Donors(read["rows"], read["weights"], categories_of(encoder))
    return posterior
