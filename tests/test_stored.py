"""Data in files: the same numbers as in memory, every example once an epoch, bounded memory, and clear refusals."""

import gc
import os
import shutil
import threading

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import quick, refused
from torch import nn

import pyrobnn as bnn
from pyrobnn import InputError, StoredData
from pyrobnn.data import arrays as stored_arrays
from pyrobnn.data import parquet as stored_parquet
from pyrobnn.data.batches import TensorBatches
from pyrobnn.data.in_memory import Scaler
from pyrobnn.data.stored_batches import StoredBatches

NUM = 103
RANDOM = np.random.default_rng(0)
X = (RANDOM.normal(size=(NUM, 3)) * [1, 10, 0.1] + [0, 1000, -5]).astype(np.float32)
Y = (X @ [1.0, 0.2, -3.0] + RANDOM.normal(size=NUM)).astype(np.float32)
FRAME = pd.DataFrame(X, columns=["a", "b", "c"]).assign(t=Y)
LOUD = {"progress": False}


@pytest.fixture(autouse=True)
def small_stretches(monkeypatch):
    """Files are read in stretches of ten rows, and five row groups of eight are shuffled together."""
    monkeypatch.setattr(stored_arrays, "CHUNK_BYTES", 10 * 4 * 8)
    monkeypatch.setattr(stored_parquet, "BLOCK_BYTES", 4 * 10 * (3 * 4 + 8))


def arrays(folder, x=X, y=Y, **options):
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", y)
    return StoredData.from_numpy(folder / "x.npy", folder / "y.npy", **LOUD, **options)


def parquet(folder, frame=FRAME, **options):
    """Two files, the second with row groups of another size."""
    frame[:60].to_parquet(folder / "part_0.parquet", row_group_size=10)
    frame[60:].to_parquet(folder / "part_1.parquet", row_group_size=7)
    return StoredData.from_parquet(folder, "t", **LOUD, **options)


STORES = {"numpy": arrays, "parquet": parquet}


@pytest.fixture(params=STORES)
def stored(request, tmp_path):
    return STORES[request.param](tmp_path, standardize=True)


def test_rows_and_scaling_are_those_of_data_in_memory(stored):
    data = bnn.Data(X, Y, standardize=True)
    assert len(stored) == NUM
    rows = [102, 0, 5, 5, 61, -1]
    for index in (rows, slice(95, None, 2), slice(3, 70), np.arange(NUM) % 7 == 0):
        assert torch.equal(stored[index].x, data[index].x)
        assert torch.equal(stored[index].y, data[index].y)
    assert stored[rows].standardize
    assert torch.equal(torch.cat([part.x for part in stored.parts()]), data.x)
    assert torch.equal(torch.cat([part.y for part in stored.parts()]), data.y)
    for found, values in ((stored.x_scaler, data.x), (stored.y_scaler, data.y)):
        expected = Scaler.fit(values)
        torch.testing.assert_close(found.loc, expected.loc, rtol=1e-12, atol=0)
        torch.testing.assert_close(found.scale, expected.scale, rtol=1e-12, atol=0)


def test_names(tmp_path):
    assert parquet(tmp_path).feature_names == ("a", "b", "c")
    assert parquet(tmp_path, features=["c", "a"])[:2].feature_names == ("c", "a")
    assert arrays(tmp_path).feature_names == ("x0", "x1", "x2")
    assert arrays(tmp_path, feature_names="abc", target_name="t")[:2].target_name == "t"
    assert (
        repr(arrays(tmp_path)) == f"StoredData(103 examples in {tmp_path}/x.npy, {tmp_path}/y.npy, standardize=False)"
    )
    several = StoredData.from_parquet([tmp_path / "part_0.parquet"] * 3, "t", **LOUD)
    assert repr(several).endswith("part_0.parquet, ..., standardize=False)")


TYPES = {
    "labels": (X, np.arange(NUM) % 3, torch.int64),
    "booleans": (X, np.arange(NUM) % 2 == 0, torch.int64),
    "half precision": (X.astype(np.float16), Y.astype(np.float16), torch.float64),
    "small integers": (np.arange(NUM * 3, dtype=np.uint8).reshape(NUM, 3), Y.astype(">f4"), torch.float64),
    "images, one target column": (X.reshape(NUM, 3, 1), Y[:, None], torch.float32),
    "two targets, Fortran order": (np.asfortranarray(X), np.stack([Y, Y], 1), torch.float32),
}


@pytest.mark.parametrize("kind", TYPES)
def test_types_and_shapes_are_those_of_data_in_memory(kind, tmp_path):
    x, y, dtype = TYPES[kind]
    part, data = arrays(tmp_path, x, y)[:], bnn.Data(x, y)
    assert (part.y.dtype, part.x.dtype) == (dtype, data.x.dtype)
    assert torch.equal(part.x, data.x)
    assert torch.equal(part.y, data.y)
    if x.ndim == y.ndim + 1 == 2:
        frame = pd.DataFrame(x, columns=["a", "b", "c"]).assign(t=y.astype(y.dtype.newbyteorder("=")))
        part = parquet(tmp_path, frame.astype({"a": "float32"}) if kind == "half precision" else frame)[:]
        assert torch.equal(part.y, data.y)
        assert torch.equal(part.x.double(), data.x.double())


def test_text_becomes_classes_in_the_order_of_their_names(tmp_path):
    text = np.array(["owl", "cat", "ant"])[np.arange(NUM) % 3]
    for column in (text, pd.Categorical(text)):
        stored = parquet(tmp_path, FRAME.assign(t=column))
        assert stored.classes == ("ant", "cat", "owl")
        assert stored[:4].y.tolist() == [2, 1, 0, 2]


def test_arrays_already_mapped_are_taken_as_they_are(tmp_path):
    arrays(tmp_path)
    for mode in ("r", "c", "r+"):
        x = np.load(tmp_path / "x.npy", mmap_mode=mode)
        if mode == "c":
            x[5, 0] = 42.0
        stored = StoredData.from_numpy(x[1:], Y[1:], **LOUD)
        expected = np.array(x[1:])
        for _ in range(2):
            assert np.array_equal(stored[:].x, expected)
    (tmp_path / "x.npy").chmod(0o444)
    assert len(StoredData.from_numpy(tmp_path / "x.npy", Y, **LOUD)) == NUM


# Batches


def batches_of(data, batch_size=8, seed=3, **options):
    return StoredBatches(data, lambda x, y: (x, y), batch_size, seed, **options)


def test_batches_of_arrays_are_those_of_tensors(tmp_path):
    stored, expected = batches_of(arrays(tmp_path)), TensorBatches((torch.tensor(X), torch.tensor(Y)), 8, 3)
    for _ in range(40):
        for one, other in zip(next(stored), next(expected), strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("batch_size", [1, 8, 50, NUM - 1])
def test_an_epoch_has_every_example_once_but_for_those_left_over(stored, batch_size):
    batches, orders = batches_of(stored, batch_size), []
    known = {value: row for row, value in enumerate(Y.tolist())}
    for _ in range(3):
        rows = [known[value] for _ in range(NUM // batch_size) for value in next(batches)[1].tolist()]
        assert len(set(rows)) == NUM // batch_size * batch_size
        orders.append(rows)
    assert orders[0] != orders[1]
    assert orders[0] == [
        known[v]
        for b in [batches_of(stored, batch_size)]
        for _ in range(NUM // batch_size)
        for v in next(b)[1].tolist()
    ]


def test_row_groups_are_shuffled_together_a_few_at_a_time(tmp_path):
    stored = parquet(tmp_path)
    blocks = list(stored.blocks(torch.Generator().manual_seed(0)))
    assert sum(block.size for block in blocks) == NUM
    assert all(len(block._groups) == 5 for block in blocks[:-1])
    other = [block._groups for block in stored.blocks(torch.Generator().manual_seed(1))]
    assert [block._groups for block in blocks] != other


def test_rows_of_small_and_large_row_groups_come_as_often(tmp_path, monkeypatch):
    """The rows that an epoch leaves over are not those of the last row group, which may have four rows alone."""
    monkeypatch.setattr(stored_parquet, "BLOCK_BYTES", 1)
    for index, rows in enumerate((FRAME[:40], FRAME[40:80], FRAME[80:84])):
        rows.to_parquet(tmp_path / f"{index}.parquet")
    batches = batches_of(StoredData.from_parquet(tmp_path, "t", **LOUD), 25)
    epochs, in_small = 400, set(FRAME["t"][80:84].tolist())
    seen = sum(value in in_small for _ in range(3 * epochs) for value in next(batches)[1].tolist())
    share = 75 / 84
    assert seen / (4 * epochs) == pytest.approx(share, abs=4 * (share * (1 - share) / epochs) ** 0.5)


@pytest.mark.parametrize("taken", [0, 5, 12, 13, 20])
def test_a_place_in_the_stream_can_be_gone_to(stored, taken):
    batches = batches_of(stored)
    for _ in range(taken):
        next(batches)
    peeked, state = batches.peek(), batches.state()
    expected = [next(batches) for _ in range(30)]
    assert torch.equal(peeked[0], expected[0][0])
    again = batches_of(stored, seed=99)
    next(again)
    again.restore(state)
    for x, y in expected:
        assert [torch.equal(*pair) for pair in zip(next(again), (x, y), strict=True)] == [True, True]


def test_shares_of_a_batch_are_its_parts(stored):
    whole = batches_of(stored, 9)
    shares = [batches_of(stored, 9, share=(rank, 2)) for rank in range(2)]
    for _ in range(30):
        (_, y), (_, even), (_, odd) = next(whole), next(shares[0]), next(shares[1])
        assert torch.equal(even, y[::2])
        assert torch.equal(odd, y[1::2])


# Fits


def model():
    return bnn.BNN(bnn.MLP(3, [4], 1), prior=bnn.priors.Normal(1.0))


def fit(data, **settings):
    return quick(model(), bnn.SVI(**({"steps": 20, "batch_size": 16} | settings)), data)


def parameters(posterior):
    return torch.cat([p.detach().reshape(-1) for p in (*posterior.bnn.parameters(), *posterior.guide.parameters())])


def test_a_fit_ends_in_the_bits_of_one_in_memory(tmp_path):
    raw = [fit(data) for data in (arrays(tmp_path), bnn.Data(X, Y))]
    assert torch.equal(*map(parameters, raw))
    scaled = [fit(data) for data in (arrays(tmp_path, standardize=True), bnn.Data(X, Y, standardize=True))]
    torch.testing.assert_close(*map(parameters, scaled), rtol=1e-5, atol=1e-6)
    inputs = [posterior.predict(X[:5], num_draws=10).mean for posterior in scaled]
    torch.testing.assert_close(*inputs, rtol=1e-4, atol=1e-4)


def test_batches_of_all_examples_are_those_in_memory(stored):
    """The sum over the examples is the same in any order, to rounding."""
    found, expected = (fit(data, batch_size=NUM) for data in (stored, bnn.Data(X, Y, standardize=True)))
    torch.testing.assert_close(parameters(found), parameters(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_map_fit_on_row_groups_reaches_the_mode(tmp_path):
    """Ridge regression in closed form; the last steps are of rate 1e-5, and batches of half of the data add noise."""
    stored = parquet(tmp_path, standardize=True)
    x, y = (s.transform(torch.tensor(v).double()) for s, v in ((stored.x_scaler, X), (stored.y_scaler, Y)))
    ridge = bnn.BNN(
        nn.Linear(3, 1, bias=False),
        likelihood=bnn.likelihoods.Gaussian(scale=float(stored.y_scaler.scale)),
        prior=bnn.priors.Normal(1.0),
    )
    decay = {"type": "exponential_lr", "gamma": 0.965}
    method = bnn.SVI(guide="map", steps=240, lr=0.1, batch_size=51, schedule=decay)
    posterior = bnn.fit(ridge, stored, method, seed=0, engine="eager", **LOUD)
    mode = torch.linalg.solve(x.T @ x + torch.eye(3), x.T @ y)
    torch.testing.assert_close(posterior.mean()["weight"][0].double(), mode, rtol=0, atol=5e-3)


@pytest.mark.one_in(2)
def test_the_captured_engine_gives_the_numbers_of_the_eager_one(stored):
    captured = bnn.fit(model(), stored, bnn.SVI(steps=20, batch_size=16), seed=0, engine="captured", **LOUD)
    assert captured.info["engine"]["used"] == "captured"
    torch.testing.assert_close(parameters(captured), parameters(fit(stored)), rtol=1e-4, atol=1e-5)


@pytest.mark.one_in(2)
def test_a_fit_goes_on_from_its_checkpoint_to_the_same_bits(stored, tmp_path):
    def stopped(progress):
        if progress.step == 50:
            raise KeyboardInterrupt

    whole = fit(stored, steps=90)
    settings = {"seed": 0, "engine": "eager", "checkpoint": tmp_path / "kept", "every": 25} | LOUD
    method = bnn.SVI(steps=90, batch_size=16)
    with pytest.raises(KeyboardInterrupt):
        bnn.fit(model(), stored, method, callbacks=[stopped], **settings)
    assert torch.equal(parameters(bnn.fit(model(), stored, method, **settings)), parameters(whole))


@pytest.mark.one_in(2)
def test_other_methods_and_what_sums_over_all_examples_pass_over_the_files(stored):
    """The evidence at the mode of a whole-set fit is that in memory, to float32 sums in another order."""
    data = bnn.Data(X, Y, standardize=True)
    found, expected = (
        fit(source, guide="laplace", batch_size=NUM).info["laplace"]["log_evidence"] for source in (stored, data)
    )
    assert abs(found - expected) < 0.01
    report = [bnn.elbo_report(fit(data, steps=1), source, num_draws=50).elbo.mean for source in (stored, data)]
    np.testing.assert_allclose(*report, rtol=1e-5)
    method = bnn.SGLD(step_size=1e-4, num_chains=2, num_draws=3, burn_in=2, batch_size=20)
    ridge = bnn.BNN(nn.Linear(3, 1), likelihood=bnn.likelihoods.Gaussian(scale=1.0), prior=bnn.priors.Normal(1.0))
    assert bnn.fit(ridge, stored, method, seed=0, **LOUD).info["num_data"] == NUM
    around = bnn.guides.Laplace().around(nn.Linear(3, 1), stored, progress=False)
    assert around.info["num_data"] == NUM


def big_arrays(folder, x):
    np.save(folder / "x.npy", x)
    return lambda: StoredData.from_numpy(folder / "x.npy", np.zeros(len(x), np.float32), standardize=True, **LOUD)


def big_parquet(folder, x):
    frame = pd.DataFrame(x, columns=[f"x{i}" for i in range(x.shape[1])])
    frame.to_parquet(folder / "x.parquet", row_group_size=5000, compression=None)
    return lambda: StoredData.from_parquet(folder / "x.parquet", "x0", standardize=True, **LOUD)


@pytest.mark.slow
@pytest.mark.parametrize("write", [big_arrays, big_parquet])
def test_memory_stays_small_whatever_the_size_of_the_files(write, tmp_path, monkeypatch):
    """Of 64 MB, read through and shuffled once, less than 32 are in memory at any time, mapped files included."""
    monkeypatch.setattr(stored_arrays, "CHUNK_BYTES", 2**20)
    monkeypatch.setattr(stored_parquet, "BLOCK_BYTES", 2**22)
    open_data = write(tmp_path, np.random.default_rng(0).normal(size=(400_000, 40)).astype(np.float32))
    gc.collect()
    before, seen, ends = resident_bytes(), [], threading.Event()

    def watch():
        while not ends.wait(0.005):
            seen.append(resident_bytes())

    thread = threading.Thread(target=watch)
    thread.start()
    batches = batches_of(open_data(), 4000)
    for _ in range(100):
        next(batches)
    ends.set()
    thread.join()
    assert max(seen) - before < 32e6


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# Refusals


def bad(values, row, column=None, value=np.nan):
    values = values.copy()
    values[(row,) if column is None else (row, column)] = value
    return values


def with_text(folder):
    return parquet(folder, FRAME.assign(b="blue"))


def with_missing(folder):
    return parquet(folder, FRAME.assign(b=pd.array([None if row == 71 else row for row in range(NUM)], dtype="Int64")))


def mixed_kinds(folder):
    FRAME.assign(t="owl").to_parquet(folder / "0.parquet")
    FRAME.to_parquet(folder / "1.parquet")
    return StoredData.from_parquet(folder, "t", **LOUD)


def saved_together(folder):
    np.savez(folder / "both.npz", x=X, y=Y)
    return StoredData.from_numpy(folder / "both.npz", Y, **LOUD)


def not_an_array(folder):
    (folder / "x.npy").write_text("1, 2, 3")
    return StoredData.from_numpy(folder / "x.npy", Y, **LOUD)


def not_parquet(folder):
    (folder / "x.parquet").write_text("1, 2, 3")
    return StoredData.from_parquet(folder, "t", **LOUD)


def labels(folder, *, last=1, store=arrays):
    y = bad(np.arange(NUM) % 3, 77, value=last)
    data = arrays(folder, y=y) if store is arrays else parquet(folder, FRAME.assign(t=y))
    return bnn.fit(
        bnn.BNN(bnn.MLP(3, [4], 3), likelihood="categorical", prior=bnn.priors.Normal(1.0)),
        data,
        bnn.SVI(batch_size=8),
        seed=0,
        **LOUD,
    )


REFUSED = {
    "NaN": (lambda f: arrays(f, bad(X, 57, 2)), r"got nan in column 'x2', row 57 of .*x.npy: drop or impute"),
    "infinite": (lambda f: arrays(f, y=bad(Y, 99, value=np.inf)), r"got inf in column 'y', row 99 of .*y.npy"),
    "NaN in an image": (lambda f: arrays(f, bad(X, 7, 1).reshape(NUM, 3, 1)), r"column \(1, 0\), row 7 of .*x.npy"),
    "NaN in two targets": (lambda f: arrays(f, y=np.stack([Y, bad(Y, 4)], 1)), r"in column \(1,\), row 4 of .*y.npy"),
    "NaN in parquet": (
        lambda f: parquet(f, FRAME.assign(c=bad(X[:, 2], 57))[:58]),
        r"Column 'c' has a missing value in row 57 of .*part_0.parquet",
    ),
    "infinite in the second file": (
        lambda f: parquet(f, FRAME.assign(c=bad(X[:, 2], 77, value=-np.inf))),
        r"got -inf in column 'c', row 17 of .*part_1.parquet",
    ),
    "missing": (with_missing, r"Column 'b' has a missing value in row 11 of .*part_1.parquet: drop or impute"),
    "one axis": (lambda f: arrays(f, Y), r"`x` must have shape \(N, features\), got \(103,\)"),
    "no axis": (lambda f: StoredData.from_numpy(np.array(1.0), Y, **LOUD), "`x` must have an axis of examples"),
    "empty": (lambda f: arrays(f, X[:0], Y[:0]), "`x` must not be empty"),
    "lengths": (lambda f: arrays(f, y=Y[1:]), "the same number of rows, got 103 and 102"),
    "text array": (lambda f: arrays(f, y=np.array(["a"] * NUM)), "`y` must be numeric, got dtype <U1"),
    "names": (lambda f: arrays(f, feature_names=["a"]), "`feature_names` must name the 3 columns of x"),
    "no such array": (lambda f: StoredData.from_numpy(f / "no.npy", Y), "no.npy cannot be mapped as an array .No such"),
    "npz": (saved_together, "both.npz holds several arrays"),
    "not an array": (not_an_array, "x.npy cannot be mapped as an array"),
    "a list": (lambda f: StoredData.from_numpy([[1.0]], Y), "path of a .npy file or a NumPy array, .* list"),
    "no such parquet": (lambda f: StoredData.from_parquet(f / "no.parquet", "t"), r"no.parquet cannot be read \(No s"),
    "no files": (lambda f: StoredData.from_parquet(f, "t"), "There is no .parquet file in"),
    "not parquet": (not_parquet, "x.parquet cannot be read as Parquet"),
    "no rows": (lambda f: parquet(f, FRAME[:0]), "has no rows: pass Parquet files with rows"),
    "no target": (lambda f: parquet(f, FRAME.rename(columns={"t": "tt"})), "has no column 't'. Did you mean 'tt'"),
    "no feature": (lambda f: parquet(f, features=["d"]), "has no column 'd'.*Its columns: a, b, c, t"),
    "no features": (lambda f: parquet(f, FRAME[["t"]]), "`features` must name one column or more beside the target"),
    "target as feature": (lambda f: parquet(f, features=["t"]), "beside the target 't'"),
    "text": (with_text, r"Column 'b' of .*part_0.parquet must be numeric or boolean, got (large_)?string: encode"),
    "dates": (
        lambda f: parquet(f, FRAME.assign(t=pd.Timestamp("2020"))),
        r"Column 't' of .* must be numeric or boolean, got timestamp",
    ),
    "kinds that differ": (
        mixed_kinds,
        "1.parquet must be text, as in the first file, got float: encode it or leave it out",
    ),
    "one class": (lambda f: parquet(f, FRAME.assign(t="owl")), "'t' has only one class, 'owl'"),
    "names, not classes": (
        lambda f: parquet(f, pd.concat([FRAME] * 10).assign(t=lambda d: np.arange(len(d)).astype(str))),
        "'t' holds more than 1000 distinct texts, which are hardly classes",
    ),
    "labels": (lambda f: labels(f, last=5), "got 5: widen the last layer .* such target is in row 77 of .*y.npy"),
    "labels in parquet": (
        lambda f: labels(f, last=-1, store=parquet),
        "needs labels from 0 up, got -1. .*The first such target is in row 17 of .*part_1.parquet",
    ),
    "width": (lambda f: fit(arrays(f, y=np.stack([Y, Y], 1))), r"2 network outputs .* has 1: change the width"),
    "no mini-batches": (lambda f: fit(arrays(f), batch_size="all"), "StoredData are read in mini-batches: give the m"),
    "all inputs": (lambda f: arrays(f).x, "All data are needed in memory here .`x`."),
    "all at once": (lambda f: bnn.Data(X, arrays(f).y), "are needed in memory here .*pass some of their rows"),
    "nuts": (
        lambda f: quick(
            bnn.BNN(nn.Linear(3, 1), likelihood=bnn.likelihoods.Gaussian(1.0), prior=bnn.priors.Normal(1.0)),
            bnn.NUTS(),
            arrays(f),
        ),
        "pass Data",
    ),
    "ensemble": (
        lambda f: quick(model(), bnn.Ensemble(bnn.SVI(batch_size=8, steps=1)), arrays(f)),
        "Replicates need their data in memory",
    ),
    "diagnose": (lambda f: bnn.diagnose(fit(arrays(f), steps=1), arrays(f)), "The data must be in memory here"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_refused(kind, tmp_path):
    act, message = REFUSED[kind]
    with pytest.raises(InputError, match=message):
        act(tmp_path)


def shorten(path):
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size - 8)


CHANGES = {
    "gone": (lambda path: path.unlink(), r"cannot be read \(No such file or directory\): check the path"),
    "shorter": (shorten, "was changed while in use, from [0-9]+ to [0-9]+ bytes: leave files alone during a fit"),
    "replaced": (lambda path: shutil.copy(__file__, path), "was changed while in use"),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("change", CHANGES)
def test_files_that_change_during_a_fit_end_it(change, stored, tmp_path):
    act, message = CHANGES[change]

    def meddle(progress):
        for path in tmp_path.iterdir():
            act(path)

    method = bnn.SVI(steps=100, batch_size=16)
    with pytest.raises(InputError, match=message):
        bnn.fit(model(), stored, method, seed=0, engine="eager", callbacks=[meddle], **LOUD)


def test_chains_on_files_have_mini_batches_of_their_own(tmp_path):
    """To the same bits as in memory."""
    np.save(tmp_path / "x.npy", X)
    stored = StoredData.from_numpy(tmp_path / "x.npy", Y, standardize=True, **LOUD)
    model = bnn.BNN(nn.Linear(3, 1), prior=bnn.priors.Normal(1.0), likelihood=bnn.likelihoods.Gaussian(1.0))
    method = bnn.SGLD(num_draws=5, burn_in=5, thinning=2, num_chains=2, batch_size=20, step_size=1e-4)
    found = [bnn.fit(model, data, method, seed=0, **LOUD) for data in (stored, bnn.Data(X, Y, standardize=True))]
    one, other = (posterior.guide.chains()["bias"] for posterior in found)
    torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("rows", [0, -1, 2.5])
def test_parts_have_rows(stored, rows):
    for data in (stored, bnn.Data(stored[:8].x, stored[:8].y)):
        with refused("`num_rows` must be a whole number, at least 1"):
            list(data.parts(rows))


def test_no_rows_of_a_file_are_refused(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((5, 2)))
    data = bnn.StoredData.from_numpy(tmp_path / "x.npy", np.zeros(5), progress=False)
    with pytest.raises(InputError):
        data[3:3]
