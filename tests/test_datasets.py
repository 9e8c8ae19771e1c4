"""Data sets: numbers, splits, where files are looked for, and every refusal."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from pyrobnn import datasets
from pyrobnn._core.errors import InputError
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
