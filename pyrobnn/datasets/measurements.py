"""Measured curves and a field: motorcycle impact, carbon dioxide on Mauna Loa, and LoRa signal strength on a campus."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pyrobnn.data.in_memory import Data
from pyrobnn.datasets.published import PublishedFile, PublishedSet, Splits

RUNS = ("walking", "car", "los_away", "los_near", "nlos")
"""The runs of the LoRa measurements: two along streets, three at a single place each. Split i tests on run i."""
_GATEWAY = (-21.7788416255599, -43.373362355391)
_EARTH_RADIUS = 6_371_000.0
_CAMPUS = "oliveira2023_lora_outdoor"


def read_motorcycle(paths: Sequence[Path]) -> tuple[Data, Splits]:
    """Return the acceleration of a helmet (g) at times after an impact (ms)."""
    import pandas as pd

    frame = pd.read_csv(paths[0])
    return Data(frame[["times"]], frame["accel"], standardize=True, target_name="accel"), ()


def read_co2(paths: Sequence[Path]) -> tuple[Data, Splits]:
    """Return the weekly concentration of carbon dioxide (ppm) at times in years; weeks without a value are left out."""
    import pandas as pd

    frame = pd.read_csv(paths[0]).dropna()
    date = pd.to_datetime(frame["date"].astype(str), format="%Y%m%d").dt
    days = np.where(date.is_leap_year, 366, 365)
    year = (date.year + (date.day_of_year - 1) / days).to_numpy(dtype=np.float64)
    return Data(year[:, None], frame["co2"], standardize=True, feature_names=["year"], target_name="co2"), ()


def read_path_loss(paths: Sequence[Path]) -> tuple[Data, Splits]:
    """Return the power that the gateway received (RSSI in dBm) by position and distance, with a split for each run.

    Positions are latitude and longitude in degrees; the distance to the gateway is that on the ground in metres.
    """
    import pandas as pd

    runs = [pd.read_csv(path) for path in paths]
    frame = pd.concat(runs)
    position = frame[["Latitude", "Longitude"]].to_numpy(dtype=np.float64)
    x = np.column_stack([position, _distance(position)])
    names = ["latitude", "longitude", "distance"]
    data = Data(x, frame["GW RSSI"].to_numpy(np.float64), standardize=True, feature_names=names, target_name="rssi")
    run = np.repeat(np.arange(len(runs)), [len(part) for part in runs])
    return data, tuple((np.flatnonzero(run != i), np.flatnonzero(run == i)) for i in range(len(runs)))


def _distance(position: np.ndarray) -> np.ndarray:
    """Return the great-circle distance to the gateway in metres, by the haversine formula."""
    here, gateway = np.radians(position), np.radians(_GATEWAY)
    latitude, longitude = ((here - gateway) / 2).T
    chord = np.sin(latitude) ** 2 + np.cos(here[:, 0]) * np.cos(gateway[0]) * np.sin(longitude) ** 2
    return 2 * _EARTH_RADIUS * np.arcsin(np.sqrt(chord))


def _run_file(run: str) -> PublishedFile:
    folders = ("lora-path-loss", f"radio_path_loss/{_CAMPUS}")
    return PublishedFile(tuple(f"{folder}/{run}{end}" for folder in folders for end in (".csv", ".csv.gz")))


_IMPACT = PublishedFile(("mcycle.csv", "one_d/mcycle.csv"))
_WEEKLY = PublishedFile(("mauna_loa_co2_weekly.csv", "one_d/mauna_loa_co2_weekly.csv"))
_MASS = "Silverman 1985, mcycle of the R package MASS"
_SCRIPPS = "Keeling & Whorf, Scripps Institution of Oceanography, weekly 1958-2001"
_LORA = "Oliveira et al. 2023, LoRa outdoor measurements on a campus"

MEASURED_SETS = (
    PublishedSet("motorcycle", "regression", 133, 1, read_motorcycle, (_IMPACT,), _MASS, "public"),
    PublishedSet("mauna-loa-co2", "regression", 2225, 1, read_co2, (_WEEKLY,), _SCRIPPS, "public domain"),
    PublishedSet(
        "lora-path-loss",
        "regression",
        2514,
        3,
        read_path_loss,
        tuple(map(_run_file, RUNS)),
        _LORA,
        "CC BY-NC-SA 4.0",
        published_splits=len(RUNS),
    ),
)
