"""Files of DataTrees: netCDF and zarr, read back as they were written."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pyrobnn._core.errors import InputError

if TYPE_CHECKING:
    import xarray

_NETCDF, _ZARR = ".nc", ".zarr"


def save_datatree(tree: "xarray.DataTree", path: str | Path) -> Path:
    """Write a DataTree to a file, `.nc` for netCDF, or a folder, `.zarr` for zarr.

    Values, types, coordinates and attributes come back unchanged (`load_datatree`).

    Args:
        tree: the result of `to_datatree` or `eval_datatree`.
        path: the new file; its ending chooses the format. `.zarr` needs `pip install 'pyrobnn[zarr]'`.

    Returns:
        The path.

    Raises:
        InputError: another ending, a path that exists, or zarr is not installed.

    Examples:
        >>> data = bnn.datasets.sinusoid()
        >>> posterior = bnn.BNN(bnn.MLP(1, [10], 1)).fit(data, steps=20, seed=0, progress=False)
        >>> bnn.save_datatree(bnn.to_datatree(posterior, data, num_draws=100), "tree.nc").name
        'tree.nc'
    """
    target = Path(path)
    kind = _kind(target)
    if target.exists():
        raise InputError(f"{target} exists already: choose another name, or delete it first.")
    target.parent.mkdir(parents=True, exist_ok=True)
    if kind == _NETCDF:
        tree.to_netcdf(target, engine="h5netcdf")
    else:
        tree.to_zarr(target, mode="w-", consolidated=False)  # zarr 3 warns of consolidated metadata
    return target


def load_datatree(path: str | Path) -> "xarray.DataTree":
    """Read a DataTree that `save_datatree` wrote, whole, into memory.

    Args:
        path: a `.nc` file or a `.zarr` folder.

    Raises:
        InputError: another ending, nothing there, or zarr is not installed.

    Examples:
        >>> data = bnn.datasets.sinusoid()
        >>> posterior = bnn.BNN(bnn.MLP(1, [10], 1)).fit(data, steps=20, seed=0, progress=False)
        >>> path = bnn.save_datatree(bnn.to_datatree(posterior, data, num_draws=100), "tree.nc")
        >>> bnn.load_datatree(path)["log_likelihood"]["y"].shape
        (1, 100, 32)
    """
    import xarray as xr

    source = Path(path)
    kind = _kind(source)
    if not source.exists():
        raise InputError(f"There is no {source}: pass the path that `save_datatree` returned.")
    options = {"engine": "h5netcdf"} if kind == _NETCDF else {"engine": "zarr", "consolidated": False}
    with xr.open_datatree(source, **options) as opened:
        tree = opened.load()
    for node in tree.subtree:
        node.attrs = {name: _as_written(name, value) for name, value in node.attrs.items()}
    return tree


def _as_written(name: str, value: Any) -> Any:
    """Return an attribute as written: netCDF reads a list of one entry as the entry, and numbers as NumPy numbers."""
    if name == "sample_dims" and isinstance(value, str):
        return [value]
    return value.item() if isinstance(value, np.generic) else value


def _kind(path: Path) -> str:
    if path.suffix not in (_NETCDF, _ZARR):
        raise InputError(f"A DataTree is stored as '.nc' (netCDF) or '.zarr', got {path.name!r}: end the name so.")
    if path.suffix == _ZARR and find_spec("zarr") is None:
        raise InputError(
            f"{path.name!r} needs the package zarr: pip install 'pyrobnn[zarr]', or end the name in '.nc'."
        )
    return path.suffix
