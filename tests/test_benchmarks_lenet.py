"""The measure of LeNet-5: its batches, its network, and what its rows and page tell."""

from argparse import Namespace

import pytest
import torch
from torch import nn

import pyrobnn as bnn
from benchmarks import moved_images
from benchmarks.measures import fashion, lenet
from benchmarks.measures.harness import chosen, load_rows, run_measure

TRAIN, TEST = 2 * moved_images.BATCH + 5, 40


def numbered():
    """Images with a block of pixels of random numbers in the middle, and their labels."""
    generator = torch.Generator().manual_seed(0)
    x = torch.zeros(TRAIN + TEST, 28, 28)
    x[:, 4:24, 4:24] = torch.rand(TRAIN + TEST, 20, 20, generator=generator)
    return bnn.Data(x.flatten(1), torch.arange(TRAIN + TEST) % 10)


def test_an_epoch_has_each_image_at_most_once_moved_within_the_frame():
    data = numbered()[:TRAIN]
    epochs = moved_images.Moved(data, 3)
    known = {float(image.sum()): number for number, image in enumerate(data.x)}
    assert len(known) == TRAIN
    moves, orders = set(), []
    for _ in range(2):
        batches = list(epochs)
        assert (
            [x.shape for x, _ in batches]
            == [(moved_images.BATCH, 784)] * len(epochs)
            == [(moved_images.BATCH, 784)] * 2
        )
        sums = torch.tensor(list(known))
        rows = [int((sums - image.sum()).abs().argmin()) for x, _ in batches for image in x]
        orders.append(rows)
        assert len(set(rows)) == len(rows)
        for image, row, label in zip(
            torch.cat([x for x, _ in batches]), rows, torch.cat([y for _, y in batches]), strict=True
        ):
            assert label == data.y[row]
            before, after = data.x[row].view(28, 28), image.view(28, 28)
            move = tuple(int(b) - int(a) for a, b in zip(before.nonzero()[0], after.nonzero()[0], strict=True))
            assert torch.equal(torch.roll(before, move, (0, 1)), after)
            moves.add(move)
    reach = range(-moved_images.MOST, moved_images.MOST + 1)
    assert moves == {(down, right) for down in reach for right in reach}
    assert orders[0] != orders[1]


def test_the_order_and_the_moves_are_those_of_the_seed():
    data = numbered()[:TRAIN]
    (first, _), (again, _), (other, _) = (next(iter(moved_images.Moved(data, seed))) for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_the_network_is_lenet_5():
    net = lenet.lenet()
    assert sum(value.numel() for value in net.parameters()) == 61_706
    x = torch.rand(3, 784, generator=torch.Generator().manual_seed(0))
    layers = list(net)
    for place in (2, 5):
        layers[place : place + 2] = [nn.ReLU(), nn.MaxPool2d(2)]
    assert torch.equal(net(x), nn.Sequential(*layers)(x))


@pytest.mark.slow
def test_a_measure_from_points_to_the_page(monkeypatch, tmp_path):
    data = numbered()
    monkeypatch.setattr(bnn, "tune_prior", lambda posterior, *_, **__: posterior)  # takes half a minute
    monkeypatch.setattr(lenet, "images", lambda part: (data[:TRAIN], data[TRAIN:]))
    monkeypatch.setattr(
        lenet, "WAYS", {name: way._replace(epochs=2) for name, way in lenet.WAYS.items() if name != "SWAG"}
    )
    folders = ["--out", str(tmp_path), "--keep", str(tmp_path / "kept")]
    methods = [name for name in lenet.METHODS if name != "SWAG"]
    assert run_measure("lenet", ["--members", "2", "--methods", *methods, *folders])
    rows = load_rows("lenet", tmp_path)
    assert [(row["method"], row["seed"]) for row in rows] == [
        *(("point", 0), ("point", 1), ("mean-field", 0), ("IVON", 0), ("dropout", 0), ("ensemble of 2", 0)),
        *((name, 0) for name in (lenet.LAST_LAYER, lenet.LAYERS, lenet.TUNED)),
    ]
    points, (both,) = chosen(rows, method="point"), chosen(rows, method="ensemble of 2")
    assert both["fit, s"] == pytest.approx(sum(row["fit, s"] for row in points))
    options = Namespace(part="test", keep=tmp_path / "kept")
    probs = [lenet.fitted("point", seed, options).predict(data[TRAIN:].x, num_draws=1).class_probs for seed in (0, 1)]
    right = torch.stack(probs).mean(0)[torch.arange(TEST), data[TRAIN:].y]
    assert both["NLL"] == pytest.approx(-float(right.log().mean()), abs=6e-5)  # four digits on file
    first, second = chosen(rows, method=lenet.LAYERS), chosen(rows, method=lenet.TUNED)
    assert first[0]["NLL"] == second[0]["NLL"]
    page = (tmp_path / "lenet.md").read_text()
    assert "## Scored on test images" in page
    assert "| variational inference | 0.985 | 0.048 | 0.01 |" in page


@pytest.mark.slow
def test_a_small_resnet_is_scored_on_clothes_noise_and_digits(monkeypatch, tmp_path):
    data = numbered()
    ways = {name: lenet.WAYS[name]._replace(epochs=2) for name in ("point", "mean-field")}
    monkeypatch.setattr(fashion, "WAYS", ways)
    monkeypatch.setattr(fashion, "images", lambda: (data[:TRAIN], data[TRAIN:]))
    monkeypatch.setattr(fashion, "digits", lambda: torch.zeros(30, 784))
    names = [*ways, lenet.ENSEMBLE, lenet.LAST_LAYER]
    assert run_measure(
        "fashion", ["--members", "2", "--methods", *names, "--out", str(tmp_path), "--keep", str(tmp_path / "kept")]
    )
    rows = load_rows("fashion", tmp_path)
    assert [row["method"] for row in rows] == ["point", "mean-field", "ensemble of 2", lenet.LAST_LAYER]
    columns = {"accuracy", "NLL", "ECE", "NLL, noise 0.1", "NLL, noise 0.3", "AUROC"}
    assert all(0 <= row[column] < 100 for row in rows for column in columns)
    assert sum(value.numel() for value in fashion.network().parameters()) == 176_258
