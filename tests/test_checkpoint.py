import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from pyro.distributions import Normal
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

import pyrobnn as bnn
from pyrobnn import InputError
from pyrobnn._core.tree_files import read_tree
from pyrobnn.inference.scales import measure
from pyrobnn.inference.training import loop

X = torch.linspace(-1, 1, 40)[:, None]
Y = (3 * X).sin()[:, 0]
STEPS = 60


class Stop(Exception):
    pass


def stop_at(step):
    def callback(progress):
        if progress.step == step:
            raise Stop

    return callback


def model(**parts):
    return bnn.BNN(bnn.MLP(1, [6], 1), **parts)


def go(data=(X, Y), *, bnn_model=None, method=None, seed=0, **settings):
    svi = method or bnn.SVI(steps=STEPS, batch_size=16, lr=0.02, schedule="cosine_annealing_lr", kl_warmup=20)
    return bnn.fit(bnn_model or model(), data, svi, seed=seed, progress=False, **{"engine": "eager"} | settings)


def interrupted(folder, *, at=50, every=20, **settings):
    with pytest.raises(Stop):
        go(checkpoint=folder, every=every, callbacks=[stop_at(at)], **settings)


def resumed(folder, *, every=20, **settings):
    return go(checkpoint=folder, every=every, **settings)


def same(one, other):
    pairs = zip(one.guide.state_dict().values(), other.guide.state_dict().values(), strict=True)
    equal = all(torch.equal(a, b) for a, b in pairs)
    return equal and (one.history.log_likelihood == other.history.log_likelihood).all()


def kept_step(folder):
    return read_tree(folder / loop.FILE)["state"]["done"]


class Jittered(TensorDataset):
    """Augments with random numbers, as data sets for training do."""

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x + 0.01 * torch.randn(1), y


def loader_of(y, generator=None):
    rows = BatchSampler(RandomSampler(X, generator=generator), 16, drop_last=False)
    return DataLoader(TensorDataset(X, y), batch_sampler=rows)


@pytest.mark.one_in(3, 2)
@pytest.mark.filterwarnings("ignore:This DataLoader will create 2 worker processes:UserWarning")
@pytest.mark.parametrize("workers", [0, None, 2])
def test_loaders_go_on_to_the_same_bits(workers, tmp_path):
    """Also with processes that load, and with None where a sampler makes the batches."""

    def loader():
        generator = torch.Generator().manual_seed(5)
        if workers is None:
            return loader_of(Y, generator)
        return DataLoader(Jittered(X, Y), batch_size=16, shuffle=True, generator=generator, num_workers=workers)

    settings = {"method": bnn.SVI(steps=60)}
    interrupted(tmp_path, data=loader(), every=17, **settings)
    assert same(resumed(tmp_path, data=loader(), every=17, **settings), go(loader(), **settings))


@pytest.mark.slow
def test_the_best_parameters_of_early_stopping_survive(tmp_path):
    method = bnn.SVI(steps=260, patience=2, eval_every=20, lr=0.1)
    settings = {"method": method, "validation": (X[::3], Y[::3] + 0.3)}
    straight = go(**settings)
    interrupted(tmp_path, every=30, **settings)
    again = resumed(tmp_path, every=30, **settings)
    assert same(again, straight)
    assert again.history.validation_scores == straight.history.validation_scores
    assert again.record.stop_reason == straight.record.stop_reason != "all steps done"


def test_a_fit_that_has_ended_is_not_trained_again(tmp_path):
    for name, callbacks in {"finished": [], "by a callback": [lambda progress: progress.step == 50]}.items():
        first, seen = go(checkpoint=tmp_path / name, callbacks=callbacks), []
        again = go(checkpoint=tmp_path / name, callbacks=[seen.append])
        assert same(first, again)
        assert len(first.history) == (50 if callbacks else STEPS)
        assert not seen
        assert again.record.engine == first.record.engine


@pytest.mark.slow
def test_laplace_and_networks_with_buffers(tmp_path):
    net = torch.nn.Sequential(torch.nn.Linear(1, 6), torch.nn.BatchNorm1d(6), torch.nn.Tanh(), torch.nn.Linear(6, 1))
    method = bnn.SVI(guide="laplace", steps=STEPS)
    settings = {"bnn_model": bnn.BNN(net, prior=bnn.priors.Normal(1.0)), "method": method}
    interrupted(tmp_path, **settings)
    again, straight = resumed(tmp_path, **settings), go(**settings)
    assert same(again, straight)
    assert torch.equal(again.bnn.net[1].running_mean, straight.bnn.net[1].running_mean)


CHANGES = {
    "seed": {"seed": 1},
    "method": {"method": bnn.SVI(steps=STEPS + 1)},
    "model": {"bnn_model": model(prior=bnn.priors.Normal(2.0))},
    "data": {"data": (X, Y + 1)},
    "engine": {"engine": "auto"},
    "validation data": {"validation": (X, Y)},
}


def test_a_checkpoint_of_another_fit_is_refused(tmp_path):
    go(checkpoint=tmp_path)
    before = (tmp_path / loop.FILE).read_bytes()
    for name, change in CHANGES.items():
        with pytest.raises(InputError, match=f"is of another fit, the {name} differ: there .*, here .*Choose another"):
            go(checkpoint=tmp_path, **change)
    assert (tmp_path / loop.FILE).read_bytes() == before


OTHERS = {
    "loaders": ({"data": loader_of(Y)}, {"data": loader_of(-Y)}),
    "standardised loaders": ({"data": loader_of(Y)}, {"data": bnn.Loader(loader_of(Y), standardize=True)}),
    "distributions": tuple(
        {"bnn_model": model(prior={"0.weight": Normal(0.0, s * torch.ones(6, 1)), "*": bnn.priors.Normal(1.0)})}
        for s in (1.0, 0.1)
    ),
    "starting weights": tuple(
        {"bnn_model": bnn.BNN(torch.nn.Sequential(torch.nn.Linear(1, 1)), prior=bnn.priors.Normal(1.0))} for _ in "ab"
    ),
    "functions": tuple(
        {"bnn_model": model(prior=lambda name, value, s=s: Normal(0.0, s).expand(value.shape).to_event())}
        for s in (1.0, 0.1)
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_does_not_show_in_words_is_another_fit_too(name, tmp_path):
    one, other = OTHERS[name]
    method = bnn.SVI(steps=3) if "loaders" in name else bnn.SVI(steps=3, batch_size=16)
    first = go(method=method, checkpoint=tmp_path, **one)
    assert same(first, go(method=method, checkpoint=tmp_path, **one))
    with pytest.raises(InputError, match="is of another fit"):
        go(method=method, checkpoint=tmp_path, **other)


def test_a_damaged_checkpoint_is_refused(tmp_path):
    go(checkpoint=tmp_path)
    file = tmp_path / loop.FILE
    content = file.read_bytes()
    flipped = [content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :] for at in (3, 30, len(content) - 1)]
    for damaged in (*flipped, content[:-100]):
        file.write_bytes(damaged)
        with pytest.raises(InputError, match="is damaged .*: restore it, or remove it to start anew"):
            go(checkpoint=tmp_path)


def test_other_versions(tmp_path, monkeypatch, caplog):
    straight = go(checkpoint=tmp_path)
    monkeypatch.setattr(bnn, "__version__", "0.0.1")
    assert same(go(checkpoint=tmp_path), straight)
    assert "bits may differ" in caplog.text
    monkeypatch.setattr(loop, "FORMAT_VERSION", 5)
    with pytest.raises(InputError, match="has format version 4, this pyrobnn reads 5: finish with"):
        go(checkpoint=tmp_path)


def test_an_interval_a_place_or_a_method_that_cannot_be_is_refused_at_once(tmp_path):
    with pytest.raises(InputError, match="`every` must be a whole number, at least 1"):
        go(checkpoint=tmp_path, every=0)
    (tmp_path / "file").write_text("")
    message = r"checkpoint.safetensors cannot be made \(.* is a file\): choose another place"
    with pytest.raises(InputError, match=message):
        go(checkpoint=tmp_path / "file")
    for method in (bnn.NUTS(), bnn.SWAG()):
        with pytest.raises(InputError, match="keeps no checkpoints, which are for SVI and an Ensemble of it"):
            go(method=method, checkpoint=tmp_path, engine="auto")
    with pytest.raises(InputError, match="Ensemble keeps no checkpoints"):
        go(method=bnn.Ensemble(bnn.SWAG()), checkpoint=tmp_path, engine="auto")


@pytest.mark.slow
def test_a_full_disk_does_not_end_the_fit(tmp_path, monkeypatch, caplog):
    real, written = os.fsync, []

    def fsync(descriptor):
        written.append(descriptor)
        if len(written) > 3:
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    assert same(resumed(tmp_path), go())
    assert "step 60 could not be written" in caplog.text
    assert "and the fit goes on" in caplog.text
    assert "(No space left on device): make room on the disk" in caplog.text
    assert kept_step(tmp_path) == 40
    assert [path.name for path in tmp_path.iterdir()] == [loop.FILE]


SCRIPT = """
import sys, torch, pyrobnn as bnn
x = torch.linspace(-1, 1, 40)[:, None]
method = bnn.SVI(steps=100000, batch_size=16)
bnn.fit(bnn.BNN(bnn.MLP(1, [6], 1)), (x, x[:, 0]), method, seed=0, engine="eager", checkpoint=sys.argv[1], every=5)
"""


@pytest.mark.slow
@pytest.mark.measured
def test_a_killed_process_leaves_a_good_checkpoint(tmp_path):
    file = tmp_path / loop.FILE
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(tmp_path)], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not (file.exists() and kept_step(tmp_path) >= 20) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = kept_step(tmp_path)
    assert done >= 20
    assert done % 5 == 0
    seen, next_report = [], done // 50 * 50 + 50
    callbacks = [seen.append, stop_at(next_report)]
    method = bnn.SVI(steps=100000, batch_size=16)
    with pytest.raises(Stop):
        go((X, X[:, 0]), method=method, checkpoint=tmp_path, every=5, callbacks=callbacks)
    assert [progress.step for progress in seen] == [next_report]


KNOWN = {"prior": bnn.priors.Normal(1.0), "likelihood": bnn.likelihoods.Gaussian(0.1)}
MANY = torch.linspace(-1, 1, 600)[:, None]
OPEN = {
    "scales and noise": ((X, Y), bnn.SVI(max_steps=100)),
    "start of the noise": ((MANY, (3 * MANY).sin()[:, 0] + 0.1 * torch.cos(97 * MANY[:, 0])), bnn.SVI(max_steps=100)),
    "start of the weights": ((X, Y), bnn.SVI(guide="laplace", max_steps=100)),
    "an ensemble": ((X, Y), bnn.Ensemble(bnn.SVI(max_steps=100), members=2)),
    "cycles": ((X, Y), bnn.SVI(tolerance=5.0)),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pyrobnn.PoorFitWarning")
@pytest.mark.parametrize("name", OPEN)
def test_a_resumed_fit_measures_the_same_scales_and_ends_after_the_same_cycles(name, tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "_MOST_STARTS", 1)
    data, method = OPEN[name]
    settings = {"bnn_model": model(**KNOWN), "engine": "captured", "every": 500} if name == "cycles" else {"every": 20}
    straight = go(data, method=method, checkpoint=tmp_path / "straight", **settings)
    interrupted(tmp_path / "stopped", at=4000 if name == "cycles" else 50, data=data, method=method, **settings)
    again = resumed(tmp_path / "stopped", data=data, method=method, **settings)
    for one, other in zip(again.members, straight.members, strict=True):
        assert same(one, other)
    assert again.record.evidence == straight.record.evidence
    assert again.record.convergence == straight.record.convergence
    assert again.bnn.settings["prior"] == straight.bnn.settings["prior"]
