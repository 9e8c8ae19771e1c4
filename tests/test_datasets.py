"""Data sets: numbers, splits, where files are looked for, and every refusal."""

import dataclasses
import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from pyrobnn import datasets
from pyrobnn._core.errors import InputError
from pyrobnn.data.in_memory import Data
from pyrobnn.datasets import published, sets

UCI_NAMES = sorted(entry.name for entry in sets.UCI_SETS)
BUNDLED_NAMES = [entry.name for entry in sets.BUNDLED_SETS]
UNSCALED = {"mnist", "fashion-mnist", "fashion-mnist-test", "mushroom"}


pytestmark = pytest.mark.usefixtures("no_user_folder")


def shared_file(name: str) -> Path:
    path = published.find(sets.SETS[name].files[0].paths)
    if path is None:
        pytest.skip(f"{name}.npz is not in a shared/data/uci_regression folder")
    return path


def write_yacht(path: Path, rows: int = 308) -> None:
    x = np.arange(rows * 6, dtype=float).reshape(rows, 6)
    np.savez(path, X=x, y=x.sum(1))


# toy problems


@pytest.mark.parametrize(
    ("make", "curve", "limit"),
    [(datasets.sinusoid, datasets.sinusoid_curve, 0.5), (datasets.quartic, datasets.quartic_curve, 2.0)],
)
def test_toy_is_a_curve_at_even_points_plus_noise(make, curve, limit):
    state = torch.get_rng_state()
    data = make(20_000, 0.7, seed=3)
    assert torch.equal(torch.get_rng_state(), state)
    assert (data.x.shape, data.y.shape) == ((20_000, 1), (20_000,))
    assert (data.x.dtype, data.y.dtype) == (torch.float32, torch.float32)
    assert (data.x[0].item(), data.x[-1].item()) == (-limit, limit)
    torch.testing.assert_close(data.x[1:] - data.x[:-1], torch.full((19_999, 1), 2 * limit / 19_999), atol=1e-6, rtol=0)
    residual = data.y - curve(data.x)[:, 0]
    assert abs(residual.mean().item()) < 0.02
    assert residual.std().item() == pytest.approx(0.7, abs=0.02)
    assert torch.equal(make(20_000, 0.7, seed=3).y, data.y)
    assert not torch.equal(make(20_000, 0.7, seed=4).y, data.y)


def test_toy_curves_and_defaults():
    assert datasets.sinusoid_curve(torch.tensor([0.25, -0.25, 0.0])).tolist() == pytest.approx([10.0, -10.0, 0.0])
    assert datasets.quartic_curve(torch.tensor([0.0, 1.0, -2.0])).tolist() == [1.0, 3.0, -3.0]
    data = datasets.sinusoid()
    assert data.x.shape == (32, 1)
    noise = torch.randn(32, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(data.y, datasets.sinusoid_curve(data.x)[:, 0] + noise)


REFUSED = {
    "`num` must be at least 2, got 1": lambda: datasets.sinusoid(1),
    "`noise` must be a finite standard deviation": lambda: datasets.quartic(8, float("nan")),
    r"Unknown data set 'yatch'. Did you mean 'yacht'\? Known: breast-cancer, con": lambda: datasets.load("yatch"),
    "wine has splits 0 to 19, got 20": lambda: datasets.load("wine").split(20),
    "'digits' comes with scikit-learn and has no file to fetch": lambda: datasets.fetch("digits"),
    "PYROBNN_DATA must name a folder, got '.*absent'": lambda: datasets.load("yacht"),
}


@pytest.mark.parametrize("message", REFUSED)
def test_data_sets_refuse(message, monkeypatch, tmp_path):
    monkeypatch.setenv("PYROBNN_DATA", str(tmp_path / "absent"))
    with pytest.raises(InputError, match=message):
        REFUSED[message]()


# the list


def test_names_and_info_agree_without_reading(monkeypatch, isolated):
    monkeypatch.setattr(np, "load", None)
    records = {record.name: record for record in datasets.info()}
    assert list(records) == datasets.names()
    others = {"mnist", "mushroom", "motorcycle", "diabetes", "breast-cancer", "wine", "digits"}
    assert set(records) == {*sets.SETS} > {*UCI_NAMES, *others}
    assert len(UCI_NAMES) == 8
    energy, digits = records["energy"], records["digits"]
    assert (energy.task, energy.rows, energy.columns, energy.splits) == ("regression", 768, 8, 20)
    assert records["protein-tertiary-structure"].splits == 5
    assert digits.available
    assert not energy.available
    (isolated / "energy.txt").touch()
    cached = isolated.parent / "cache" / "pyrobnn" / "yacht.txt"
    cached.parent.mkdir(parents=True)
    cached.touch()
    assert {r.name for r in datasets.info() if r.available and r.name in UCI_NAMES} == {"energy", "yacht"}


def marked(names):
    return [pytest.param(name, marks=pytest.mark.needs_data(name)) for name in names]


@pytest.mark.parametrize("name", [*BUNDLED_NAMES, *marked(sorted({*sets.SETS} - {*BUNDLED_NAMES}))])
def test_info_equals_what_load_returns(name):
    record = next(record for record in datasets.info() if record.name == name)
    dataset = datasets.load(name)
    assert (record.rows, record.columns) == tuple(dataset.data.x.shape)
    assert (record.task, record.splits) == (dataset.task, dataset.num_splits)
    assert (record.licence, record.source) == (dataset.licence, dataset.source)
    assert len(set(dataset.data.feature_names)) == record.columns
    assert dataset.data.standardize == (name not in UNSCALED)
    assert len(dataset.checksum) == 64


# the UCI sets


@pytest.mark.parametrize("name", marked(UCI_NAMES))
def test_splits_equal_the_published_ones(name):
    with np.load(shared_file(name), allow_pickle=False) as stored:
        train_index, test_index = stored["train_index"], stored["test_index"]
    dataset = datasets.load(name)
    assert dataset.num_splits == len(train_index)
    np.testing.assert_array_equal([train for train, _ in dataset.splits], train_index)
    np.testing.assert_array_equal([test for _, test in dataset.splits], test_index)
    train, test = dataset.split(1)
    assert torch.equal(train.x, dataset.data.x[train_index[1].astype(int)])
    assert torch.equal(test.y, dataset.data.y[test_index[1].astype(int)])
    assert test.standardize
    assert test.feature_names == dataset.data.feature_names


def test_published_splits_leave_the_global_generator_alone():
    np.random.seed(7)
    expected = np.random.RandomState(7).rand()
    splits = sets.published_splits(308, 20)
    assert np.random.rand() == expected
    assert all(sorted([*train, *test]) == list(range(308)) for train, test in splits)


@pytest.mark.parametrize("place", ["yacht.npz", "uci_regression/yacht.npz"])
def test_npz_of_the_users_folder(isolated, place):
    (isolated / "uci_regression").mkdir()
    write_yacht(isolated / place)
    dataset = datasets.load("yacht")
    assert dataset.data.x[1].tolist() == [6.0, 7.0, 8.0, 9.0, 10.0, 11.0]
    assert dataset.checksum == published.sha256(isolated / place)
    assert datasets.fetch("yacht") == isolated / place


@pytest.mark.parametrize(
    "place", ["naval-propulsion-plant.txt", "naval-propulsion-plant/data.txt", "naval-propulsion-plant/data/data.txt"]
)
def test_text_of_the_users_folder(monkeypatch, isolated, place):
    """The first 16 of naval's 18 columns are features and the next is the target."""
    path = isolated / place
    path.parent.mkdir(parents=True, exist_ok=True)
    table = np.arange(5 * 18, dtype=float).reshape(5, 18)
    np.savetxt(path, table)
    entry = sets.SETS["naval-propulsion-plant"]
    with pytest.raises(InputError, match="wrong checksum: expected SHA-256 de0ea69da1ef"):
        datasets.fetch("naval-propulsion-plant")
    file = dataclasses.replace(entry.files[0], sha256=published.sha256(path))
    monkeypatch.setitem(sets.SETS, entry.name, dataclasses.replace(entry, rows=5, files=(file,)))
    data = datasets.load("naval-propulsion-plant").data
    np.testing.assert_array_equal(data.x.numpy(), table[:, :16])
    np.testing.assert_array_equal(data.y.numpy(), table[:, 16])


def test_download_is_asked_with_address_and_checksum(monkeypatch, isolated):
    seen = {}

    def retrieve(url, known_hash, fname, path):
        seen.update(url=url, known_hash=known_hash)
        path.mkdir(parents=True)
        (path / fname).write_bytes(content)
        return str(path / fname)

    content = b"".join(b"%d 1 2 3 4 5 6\n" % row for row in range(308))
    monkeypatch.setattr("pooch.retrieve", retrieve)
    with pytest.raises(InputError, match="yacht.txt has the wrong checksum: expected SHA-256 00dfecc0fc01"):
        datasets.load("yacht")
    assert seen["url"].endswith("/6eb4497628d12b0f300f4b4f6bdc386bebad565c/UCI_Datasets/yacht/data/data.txt")
    assert seen["known_hash"] == "sha256:" + sets.SETS["yacht"].files[0].sha256


@pytest.mark.parametrize(
    ("error", "reason"),
    [(OSError("no route"), "could not be downloaded"), (ValueError("hash"), "came with a wrong checksum")],
)
def test_failed_download_says_which_file_goes_where(monkeypatch, isolated, error, reason):
    def fail(*args: object, **kwargs: object) -> str:
        raise error

    monkeypatch.setattr("pooch.retrieve", fail)
    with pytest.raises(InputError, match=f"'kin8nm' is not on this machine and {reason}: put https://raw") as caught:
        datasets.load("kin8nm")
    assert f"as kin8nm.txt into the folder {isolated}, or set PYROBNN_DATA to a folder" in str(caught.value)
    assert caught.value.__suppress_context__
    monkeypatch.delenv("PYROBNN_DATA")
    with pytest.raises(InputError, match="as kin8nm.txt into the folder .*cache.pyrobnn, or set PYROBNN_DATA"):
        datasets.load("kin8nm")


def test_npz_of_another_shape_or_kind(isolated):
    write_yacht(isolated / "yacht.npz", rows=307)
    with pytest.raises(InputError, match=r"has 308 rows and 6 feature columns, .*yacht.npz gave 307 and 6: replace it"):
        datasets.load("yacht")
    for content in ({"features": np.ones(3)}, {"X": np.array([{}], dtype=object), "y": np.ones(1)}, None):
        if content is None:
            (isolated / "yacht.npz").write_bytes(b"PK\x03\x04 cut short")
        else:
            np.savez(isolated / "yacht.npz", **content)
        with pytest.raises(InputError, match="must be an npz file with arrays X and y"):
            datasets.load("yacht")


# the sets of scikit-learn


def test_bundled_numbers():
    diabetes, digits, cancer = (datasets.load(name) for name in ("diabetes", "digits", "breast-cancer"))
    assert diabetes.data.x[0, 0].item() == 59.0  # years: raw units, not scikit-learn's scaled ones
    assert diabetes.data.y.mean().item() == pytest.approx(152.1335, abs=1e-4)
    assert digits.data.x.shape == (1797, 64)
    assert digits.class_names == tuple("0123456789")
    assert digits.data.y.dtype == torch.int64
    assert cancer.class_names == ("malignant", "benign")
    assert torch.bincount(cancer.data.y).tolist() == [212, 357]
    assert cancer.data.feature_names[0] == "mean radius"


def test_random_splits_are_90_10_and_repeat():
    dataset = datasets.load("wine")
    (train, test), again, other = dataset.split(3), dataset.split(3), dataset.split(4)
    assert (len(train), len(test)) == (160, 18)
    assert torch.equal(test.x, again[1].x)
    assert not torch.equal(test.x, other[1].x)
    rows = torch.cat([train.x, test.x])
    assert torch.equal(rows.sort(0).values, dataset.data.x.sort(0).values)


# tables

FRAME = pd.DataFrame({"age": [1, 2, 3, 4], "dose": [0.5, 1.5, 2.5, 3.5], "sick": [True, False, True, False]})


def write(path: Path, frame: pd.DataFrame) -> Path:
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False)
    return path


@pytest.mark.parametrize("ending", [".csv", ".csv.gz", ".parquet"])
def test_load_table(tmp_path, ending):
    path = write(tmp_path / f"study{ending}", FRAME)
    dataset = datasets.load_table(path, "dose")
    assert (dataset.name, dataset.task, dataset.class_names) == ("study", "regression", ())
    assert isinstance(dataset.data, Data)
    assert dataset.data.feature_names == ("age", "sick")
    assert dataset.data.target_name == "dose"
    assert dataset.data.x.tolist() == [[1.0, 1.0], [2.0, 0.0], [3.0, 1.0], [4.0, 0.0]]
    assert dataset.data.y.tolist() == [0.5, 1.5, 2.5, 3.5]
    assert dataset.checksum == published.sha256(path)
    assert dataset.num_splits == 20


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
@pytest.mark.parametrize(
    ("values", "classes", "labels"),
    [
        (["b", "a", "c", "b"], ("a", "b", "c"), [1, 0, 2, 1]),
        ([True, False, True, True], ("False", "True"), [1, 0, 1, 1]),
        ([10, 2, 2, -1], ("-1", "2", "10"), [2, 1, 1, 0]),
    ],
)
def test_text_booleans_and_integers_are_classes(tmp_path, ending, values, classes, labels):
    dataset = datasets.load_table(write(tmp_path / f"t{ending}", FRAME.assign(y=values)), "y")
    assert (dataset.task, dataset.class_names) == ("classification", classes)
    assert dataset.data.y.dtype == torch.int64
    assert dataset.data.y.tolist() == labels


def test_task_can_be_forced(tmp_path):
    path = write(tmp_path / "t.csv", FRAME.assign(count=[3, 1, 4, 1], code=[0.0, 1.0, 0.0, 2.0]))
    counts = datasets.load_table(path, "count", task="regression")
    assert (counts.task, counts.data.y.dtype) == ("regression", torch.float64)
    assert counts.data.y.tolist() == [3.0, 1.0, 4.0, 1.0]
    codes = datasets.load_table(path, "code", task="classification")
    assert codes.class_names == ("0", "1", "2")
    assert codes.data.y.tolist() == [0, 1, 0, 2]


@pytest.mark.parametrize(("rows", "values"), [(300, 150), (300, 17), (1000, 11), (40, 2), (1000, 10)])
def test_many_whole_numbers_need_a_task(tmp_path, rows, values):
    frame = pd.DataFrame({"area": np.arange(rows) / 7, "number": 5 + np.arange(rows) % values})
    path = write(tmp_path / "t.csv", frame)
    if values <= 10:
        assert len(datasets.load_table(path, "number").class_names) == values
        return
    with pytest.raises(InputError, match=f"'number' holds {values} different whole numbers, 5 to") as caught:
        datasets.load_table(path, "number")
    assert "counts (--set likelihood.type=poisson), amounts (--set data.task=regression) or classes" in str(
        caught.value
    )
    assert datasets.load_table(path, "number", task="regression").data.y[:2].tolist() == [5.0, 6.0]
    assert len(datasets.load_table(path, "number", task="classification").class_names) == values


@pytest.mark.parametrize(("least", "median"), [(82, 99.5), (83, 100.5), (1000, 1017.5), (-300, -282.5)])
def test_whole_numbers_from_a_median_of_100_are_amounts(tmp_path, least, median):
    prices = least + np.arange(36)
    assert np.median(prices) == median
    path = write(tmp_path / "t.csv", pd.DataFrame({"area": np.arange(36) / 7, "price": prices}))
    if median < 100:
        with pytest.raises(InputError, match="'price' holds 36 different whole numbers"):
            datasets.load_table(path, "price")
        return
    dataset = datasets.load_table(path, "price")
    assert (dataset.task, dataset.data.y.tolist()) == ("regression", prices.tolist())
    assert dataset.reason == "whole numbers"


TABLE_REFUSALS = {
    "no such column": (FRAME, "doze", "has no column 'doze'. Did you mean 'dose'\\? Its columns: age, dose, sick"),
    "missing feature": (FRAME.assign(age=[1, None, None, 4]), "dose", "Column 'age' has 2 missing .* in rows 2, 3:"),
    "missing text": (FRAME.assign(city=["a", None, "b", "b"]), "city", "column 'city' has 1 missing value"),
    "constant": (FRAME.assign(dose=2.5), "dose", "Target column 'dose' is 2.5 in all 4 rows: there is nothing to"),
    "infinite target": (FRAME.assign(dose=[1.0, 2.0, float("inf"), 3.0]), "dose", "'dose' must be finite, .* in row 3"),
    "only a target": (FRAME[["dose"]], "dose", "has no feature columns, only the target 'dose'"),
    "saved index": (FRAME.rename(columns={"age": ""}), "dose", "Column 'Unnamed: 0' has no name in the file: name it"),
    "infinite": (FRAME.assign(age=[1.0, float("inf"), 2.0, 3.0]), "dose", "Column 'age' must be finite, .* in row 2"),
}


@pytest.mark.parametrize("case", TABLE_REFUSALS)
def test_load_table_refuses(tmp_path, case):
    frame, target, message = TABLE_REFUSALS[case]
    with pytest.raises(InputError, match=message):
        datasets.load_table(write(tmp_path / "t.csv", frame), target)


def test_load_table_refuses_a_target_that_does_not_fit_the_task(tmp_path):
    when = pd.date_range("2020-01-01", periods=4)
    path = write(tmp_path / "name.parquet", FRAME.assign(name=list("abcd")))
    with pytest.raises(InputError, match="'name' must be numeric for a regression, got str"):
        datasets.load_table(path, "name", task="regression")
    with pytest.raises(InputError, match="'when' holds dates"):
        datasets.load_table(write(tmp_path / "when.parquet", FRAME.assign(when=when)), "when")
    with pytest.raises(InputError, match="must hold whole numbers or text for a classification"):
        datasets.load_table(write(tmp_path / "t.csv", FRAME), "dose", task="classification")
    with pytest.raises(InputError, match="`task` must be 'regression', 'classification' or None, got 'ranking'"):
        datasets.load_table(path, "dose", task="ranking")


def test_files_that_are_no_tables(tmp_path):
    with pytest.raises(InputError, match="There is no file .*absent.csv"):
        datasets.load_table(tmp_path / "absent.csv", "y")
    (tmp_path / "t.ods").touch()
    with pytest.raises(InputError, match="t.ods must end in .csv, .csv.gz, .tsv, .txt, .xlsx, .parquet"):
        datasets.load_table(tmp_path / "t.ods", "y")
    broken = {
        "empty.csv": b"",
        "binary.csv": b"\xff\xfe\x00\x81\n",
        "ragged.csv": b"a,b\n1,2\n1,2,3,4\n",
        "plain.csv.gz": b"a,b\n1,2\n",
        "cut.csv.gz": gzip.compress(b"a,b\n" + b"1,2\n" * 1000)[:30],
        "no.parquet": b"a,b\n1,2\n",
    }
    for name, content in broken.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=f"{name} cannot be read as a table"):
            datasets.load_table(tmp_path / name, "b")


def test_load_features_takes_the_named_columns_in_order(tmp_path):
    path = write(tmp_path / "new.csv", FRAME.assign(city="x"))
    x = datasets.load_features(path, ["dose", "age"])
    assert x.dtype == torch.float64
    assert x.tolist() == [[0.5, 1.0], [1.5, 2.0], [2.5, 3.0], [3.5, 4.0]]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["age", "doze"], "has no column 'doze'. Did you mean 'dose'"),
        (["ag", "dose", "night"], "has no columns 'ag', 'night'. Did you mean 'age'"),
        (["gap"], "Column 'gap' has 1 missing value, in row 2"),
    ],
)
def test_load_features_refuses(tmp_path, names, message):
    frame = FRAME.assign(gap=[1, None, 2, 3])
    with pytest.raises(InputError, match=message):
        datasets.load_features(write(tmp_path / "new.csv", frame), names)
