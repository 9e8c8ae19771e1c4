"""Data sets: numbers, splits, where files are looked for, and every refusal; real files where they are at hand."""

import dataclasses
import gzip
import math
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


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes() + array.astype(np.uint8).tobytes()


@pytest.mark.needs_data("mnist")
def test_mnist_numbers():
    """Published: 60,000 and 10,000 digits, 980 zeros in the test part; mean and sd of the pixels 0.1307 and 0.3081."""
    dataset = datasets.load("mnist")
    (train, test), data = dataset.split(0), dataset.data
    assert (len(train), len(test)) == (60_000, 10_000)
    assert torch.equal(test.x, data.x[60_000:])
    assert data.x.dtype == torch.float32
    assert (data.x.min().item(), data.x.max().item()) == (0.0, 1.0)
    assert train.x.mean().item() == pytest.approx(0.1307, abs=5e-5)
    assert train.x.std().item() == pytest.approx(0.3081, abs=5e-5)
    assert train.y[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert test.y[:5].tolist() == [7, 2, 1, 0, 4]
    assert (test.y == 0).sum() == 980
    assert data.feature_names[28] == "pixel_1_0"


def small_images(folder: Path, sizes: tuple[int, ...]) -> list[Path]:
    generator = np.random.default_rng(0)
    return [
        write(folder / f"{part}-{kind}.gz", idx(generator.integers(0, 256, (size, *shape))))
        for part, size in enumerate(sizes)
        for kind, shape in (("images", (28, 28)), ("labels", ()))
    ]


def test_images_keep_their_rows_and_parts(tmp_path):
    paths = small_images(tmp_path, (5, 3))
    data, splits = sets.read_images(paths)
    raw = np.frombuffer(gzip.decompress(paths[2].read_bytes()), np.uint8, offset=16).reshape(3, 28, 28)
    np.testing.assert_allclose(data.x[5:].view(3, 28, 28).numpy(), raw / 255.0, rtol=1e-6)
    assert [part.tolist() for part in splits[0]] == [[0, 1, 2, 3, 4], [5, 6, 7]]
    alone, none = sets.read_images(paths[2:])
    assert torch.equal(alone.y, data.y[5:])
    assert none == ()


@pytest.mark.parametrize("folder", ["mnist", "fashion-mnist", "fashion_mnist_test"])
def test_images_must_be_unchanged(isolated, folder):
    name = "mnist" if folder == "mnist" else "fashion-mnist-test"
    for file in sets.SETS[name].files:
        write(isolated / folder / Path(file.place).name, b"other")
    with pytest.raises(InputError, match="images-idx3-ubyte.gz has the wrong checksum: expected SHA-256") as caught:
        datasets.load(name)
    assert sets.SETS[name].files[0].url in str(caught.value)


def test_download_of_several_files(monkeypatch, isolated):
    """Each goes to its place in the cache, and the checksum of the set is that of all their bytes."""
    sources = small_images(isolated.parent / "server", (2,))
    entry = sets.SETS["fashion-mnist-test"]
    files = [
        dataclasses.replace(file, sha256=published.sha256(path))
        for file, path in zip(entry.files, sources, strict=True)
    ]
    monkeypatch.setitem(sets.SETS, entry.name, dataclasses.replace(entry, rows=2, files=tuple(files)))
    contents = {file.url: path.read_bytes() for file, path in zip(files, sources, strict=True)}

    def retrieve(url, known_hash, fname, path):
        return str(write(path / (fname + ".part"), contents[url]).replace(path / fname))

    monkeypatch.setattr("pooch.retrieve", retrieve)
    assert not next(record for record in datasets.info() if record.name == entry.name).available
    dataset = datasets.load(entry.name)
    assert len(dataset.data) == 2
    assert dataset.checksum == published.sha256(*sources)
    assert datasets.fetch(entry.name) == isolated.parent / "cache" / "pyrobnn" / files[0].place
    assert next(record for record in datasets.info() if record.name == entry.name).available


@pytest.mark.needs_data("mushroom")
def test_mushroom_numbers():
    dataset = datasets.load("mushroom")
    x, names = dataset.data.x, dataset.data.feature_names
    assert torch.bincount(dataset.data.y).tolist() == [4208, 3916]
    assert dataset.class_names == ("edible", "poisonous")
    assert set(x.unique().tolist()) == {0.0, 1.0}
    assert bool((x.sum(1) == 22).all())
    assert x[:, names.index("stalk-root=?")].sum() == 2480
    smell = x[:, names.index("odor=n")] == 1
    assert dataset.data.y[smell].double().mean().item() == pytest.approx(120 / 3528)  # 3408 of 3528 are edible


@pytest.mark.needs_data("spambase", "ionosphere", "pima-indians-diabetes")
def test_classification_table_numbers():
    counts = {"spambase": (2788, 1813), "ionosphere": (126, 225), "pima-indians-diabetes": (500, 268)}
    for name, expected in counts.items():
        assert tuple(torch.bincount(datasets.load(name).data.y).tolist()) == expected
    spam = datasets.load("spambase").data
    assert spam.feature_names[52] == "char_freq_$"
    frequent = spam.x[:, 52] > 0.1
    assert spam.y[frequent].double().mean() > 0.9
    assert datasets.load("pima-indians-diabetes").data.x[0].tolist() == [6, 148, 72, 35, 0, 33.6, 0.627, 50]
    assert datasets.load("ionosphere").data.x[0, 2].item() == 0.99539


def test_one_hot_columns_are_the_sorted_categories(tmp_path):
    rows = [["p", *"xsntpfcnkeesswwpwopk", "s", "u"], ["e", *"xsytafcbkecsswwpwopn", "?", "g"]]
    path = write(tmp_path / "m.data", "\n".join(",".join(row) for row in rows).encode())
    data, _ = sets.read_mushroom([path])
    names = data.feature_names
    assert data.y.tolist() == [1, 0]
    assert [name for name in names if name.startswith("cap-color")] == ["cap-color=n", "cap-color=y"]
    assert data.x[:, names.index("cap-color=n")].tolist() == [1.0, 0.0]
    assert data.x[:, names.index("population=?")].tolist() == [0.0, 1.0]


@pytest.mark.parametrize("place", ["ionosphere.data", "ionosphere.csv.gz", "uci_classification/ionosphere.csv"])
def test_places_of_the_users_folder(isolated, place):
    row = ",".join(["0.5"] * 34)
    path = write(isolated / place, "\n".join(f"{row},{code}" for code in "gb" * 175 + "g").encode())
    dataset = datasets.load("ionosphere")
    assert datasets.fetch("ionosphere") == path
    assert dataset.data.y[:3].tolist() == [1, 0, 1]
    assert dataset.checksum == published.sha256(path)
    assert dataset.num_splits == 20


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("1,2,g\n", "cannot be read as the set 'ionosphere' .`feature_names` must name the 2 columns"),
        ("\n".join(["0," * 34 + "g"] * 7), "has 351 rows and 34 feature columns, .* gave 7 and 34: replace it"),
        ("\n".join(["0," * 34 + "x"] * 351), r"cannot be read as the set 'ionosphere' \('x'\): replace it"),
        ("\n".join(["a," * 34 + "g"] * 351), "cannot be read as the set 'ionosphere' .could not convert"),
        ("", "cannot be read as the set 'ionosphere' .No columns"),
    ],
)
def test_tables_that_are_not_the_published_ones(isolated, content, message):
    write(isolated / "ionosphere.data", content.encode())
    with pytest.raises(InputError, match=message):
        datasets.load("ionosphere")


@pytest.mark.parametrize("name", ["mushroom", "spambase", "motorcycle", "mauna-loa-co2", "lora-path-loss"])
def test_sets_without_a_download_say_where_to_put_the_file(isolated, name):
    place = sets.SETS[name].files[0].place
    with pytest.raises(InputError, match=f"'{name}' is not on this machine and has no download with a pub") as caught:
        datasets.load(name)
    assert f"put it as {place} into a folder, and set PYROBNN_DATA to that folder" in str(caught.value)


@pytest.mark.needs_data("motorcycle", "mauna-loa-co2")
def test_motorcycle_and_co2_numbers():
    motorcycle = datasets.load("motorcycle").data
    assert (motorcycle.x[0].tolist(), motorcycle.y[0].item()) == ([2.4], 0.0)
    assert (motorcycle.x.max().item(), motorcycle.y.min().item()) == (57.6, -134.0)
    co2 = datasets.load("mauna-loa-co2").data
    assert co2.x[0, 0].item() == pytest.approx(1958 + 87 / 365)  # 29 March, the 88th day
    assert (co2.y[0].item(), co2.y[-1].item()) == (316.1, 371.5)
    assert bool((co2.x[1:] > co2.x[:-1]).all())


def test_weeks_without_a_value_are_left_out(tmp_path):
    path = write(tmp_path / "co2.csv", b"date,co2\n20000101,369.0\n20000108,\n20001231,370.0\n20011231,371.0\n")
    data, _ = sets.read_co2([path])
    assert data.x[:, 0].tolist() == pytest.approx([2000.0, 2000 + 365 / 366, 2001 + 364 / 365])
    assert data.y.tolist() == [369.0, 370.0, 371.0]


@pytest.mark.needs_data("lora-path-loss")
def test_path_loss_numbers():
    """The log-distance law of the moving runs: -43.6 - 24.7 log10(d) dBm, residual 9.8 dB."""
    dataset = datasets.load("lora-path-loss")
    data = dataset.data
    assert [len(test) for _, test in dataset.splits] == [511, 498, 501, 496, 508]
    moving = np.concatenate([dataset.splits[i][1] for i in (0, 1)])
    design = np.column_stack([np.ones(len(moving)), np.log10(data.x[moving, 2].numpy())])
    (offset, slope), squares, *_ = np.linalg.lstsq(design, data.y[moving].numpy(), rcond=None)
    assert (offset, slope) == (pytest.approx(-43.6, abs=0.05), pytest.approx(-24.7, abs=0.05))
    assert math.sqrt(squares[0] / len(moving)) == pytest.approx(9.8, abs=0.05)
    for train, test in dataset.splits:
        assert sorted([*train, *test]) == list(range(len(data)))


def test_path_loss_distance(tmp_path):
    """Along a meridian a degree is pi R / 180; along the parallel of the gateway it is shorter by cos(latitude)."""
    latitude, longitude = sets._GATEWAY
    rows = [(latitude + 0.001, longitude), (latitude, longitude + 0.001), (latitude, longitude)]
    text = "Latitude,Longitude,GW RSSI\n" + "\n".join(f"{a!r},{b!r},-100" for a, b in rows)
    data, splits = sets.read_path_loss([write(tmp_path / "run.csv", text.encode())])
    degree = math.pi * 6_371_000 / 180
    expected = [0.001 * degree, 0.001 * degree * math.cos(math.radians(latitude)), 0.0]
    np.testing.assert_allclose(data.x[:, 2].numpy(), expected, rtol=1e-6, atol=1e-6)
    assert data.y.tolist() == [-100.0] * 3
    assert len(splits) == 1
