"""Where batches come from: DataLoaders with workers, and data in memory."""

import gc
import itertools
import multiprocessing
import time

import pytest
import torch
from torch import nn
from torch.utils import data as of_torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, Subset, TensorDataset

import pyrobnn as bnn
from pyrobnn.data.loader import as_data
from pyrobnn.inference.data import make_source

X = torch.randn(30, 2, generator=torch.Generator().manual_seed(0))
Y = X.sum(1)


class Own(Dataset):
    """Examples of which one cannot be read, or with random numbers of their own, which each worker draws."""

    def __init__(self, *, failing):
        self.failing = failing

    def __len__(self):
        return len(X)

    def __getitem__(self, row):
        if self.failing and row == 17:
            raise OSError("example 17 cannot be read")
        return X[row] + 0.1 * torch.randn(2), Y[row]


def fit(dataset, *, steps=5, **options):
    loader = DataLoader(dataset, batch_size=8, **options)
    model = bnn.BNN(bnn.MLP(2, [3], 1), prior=bnn.priors.Normal(1.0))
    return bnn.fit(model, loader, bnn.SVI(steps=steps), seed=0, engine="eager", progress=False)


def assert_no_worker_is_left():
    gc.collect()  # an error that was caught may hold what it passed through
    deadline = time.time() + 5
    while multiprocessing.active_children() and time.time() < deadline:
        time.sleep(0.05)
    assert multiprocessing.active_children() == []


@pytest.mark.one_in(2)
@pytest.mark.parametrize("shuffle", [False, True])
def test_workers_give_the_bits_of_none(shuffle):
    alone, found = (fit(TensorDataset(X, Y), shuffle=shuffle, num_workers=num) for num in (0, 2))
    assert torch.equal(found.guide.loc, alone.guide.loc)
    assert_no_worker_is_left()


@pytest.mark.one_in(0)
@pytest.mark.parametrize("persistent", [False, True])
def test_what_workers_draw_follows_the_seed(persistent):
    """Workers that persist get one seed for all epochs, so the numbers are not those of workers made anew."""
    fits = [fit(Own(failing=False), num_workers=2, shuffle=True, persistent_workers=persistent) for _ in range(2)]
    assert torch.equal(fits[0].guide.loc, fits[1].guide.loc)
    assert_no_worker_is_left()


def test_a_dataset_that_fails_ends_the_fit_with_its_own_error():
    with pytest.raises(OSError, match="Caught OSError in DataLoader worker process 0(?s:.*)example 17 cannot be read"):
        fit(Own(failing=True), num_workers=2)
    assert_no_worker_is_left()


NUM = 100
ROWS = TensorDataset(torch.arange(float(NUM))[:, None], torch.zeros(NUM))
"""Examples whose input is their number."""


class Stream(IterableDataset):
    """The examples one after the other, without a length."""

    def __iter__(self):
        return iter(ROWS)


class OnceOnly(IterableDataset):
    """A stream that cannot be read again."""

    def __init__(self):
        self.rows = iter(ROWS)

    def __iter__(self):
        return self.rows


class Some(Sampler):
    """Other examples each epoch."""

    def __len__(self):
        return 40

    def __iter__(self):
        return iter(torch.randperm(NUM)[:40].tolist())


class Endless(Sampler):
    """Batches without an end."""

    def __iter__(self):
        return itertools.repeat([3, 1, 4])


def repeated(rows):
    return [values.repeat_interleave(2, 0) for values in of_torch.default_collate(rows)]


def thinned(rows):
    return of_torch.default_collate([row for row in rows if int(row[0]) % 7])


def by_sampler(sampler, size=8):
    return DataLoader(ROWS, size, sampler=sampler)


def in_batches(sampler, size=30):
    return DataLoader(ROWS, batch_sampler=of_torch.BatchSampler(sampler, size, drop_last=False))


def shares(data, num_batches):
    """N, and the mean over batches of what an example counts in the model's log-likelihood, by its number."""
    model = bnn.BNN(nn.Linear(1, 1))
    source = make_source(as_data(data), model, None, seed=0)
    batches, total = source.batches(model, None, 0), torch.zeros(NUM, dtype=torch.float64)
    for _ in range(num_batches):
        x, _, *weights = next(batches)
        scale = source.num_data / len(x) * (weights[0] if weights else torch.ones(len(x)))
        total.index_add_(0, x[:, 0].long(), scale.double())
    return source.num_data, total / num_batches


EACH_ONCE = {
    "a short last batch": (lambda: DataLoader(ROWS, 30), 4, NUM),
    "shuffled": (lambda: DataLoader(ROWS, 30, shuffle=True), 4, NUM),
    "a last batch of one": (lambda: DataLoader(ROWS, 33, shuffle=True), 4, NUM),
    "one batch": (lambda: DataLoader(ROWS, 1000), 1, NUM),
    "workers": (lambda: DataLoader(ROWS, 30, num_workers=2), 4, NUM),
    "batches of a subset": (lambda: in_batches(of_torch.SequentialSampler(range(50))), 2, 50),
    "random batches of a subset": (lambda: in_batches(of_torch.SubsetRandomSampler(range(50))), 2, 50),
    "a subset": (lambda: DataLoader(Subset(ROWS, range(20)), 6), 4, 20),
    "a share of the data": (lambda: by_sampler(of_torch.DistributedSampler(ROWS, 4, 1)), 4, 25),
    "rows in groups": (
        lambda: DataLoader(
            ROWS, sampler=of_torch.BatchSampler(of_torch.SequentialSampler(ROWS), 30, drop_last=False), batch_size=None
        ),
        4,
        NUM,
    ),
    "repeated rows": (lambda: DataLoader(ROWS, 30, collate_fn=repeated), 4, NUM),
}


@pytest.mark.parametrize("kind", EACH_ONCE)
def test_the_batches_of_an_epoch_count_each_example_once(kind):
    """Whatever their sizes; the first epoch does already."""
    make, num_batches, num_data = EACH_ONCE[kind]
    found, total = shares(make(), num_batches)
    assert found == num_data
    assert int((total > 0).sum()) == num_data
    torch.testing.assert_close(total[total > 0], torch.ones(num_data, dtype=torch.float64))


def few(**options):
    return lambda: by_sampler(of_torch.RandomSampler(ROWS, **options))


BY_WEIGHT = of_torch.WeightedRandomSampler([1.0] * 50 + [0.0] * 50, 32)
AT_RANDOM = {
    "a part": (few(num_samples=20), 3, 20, NUM),
    "with replacement": (few(replacement=True), 13, NUM, NUM),
    "more than all": (few(num_samples=130), 17, 130, NUM),
    "the last dropped": (lambda: DataLoader(ROWS, 30, shuffle=True, drop_last=True), 3, 90, NUM),
    "by weight": (lambda: bnn.Loader(by_sampler(BY_WEIGHT), num_data=50), 4, 32, 50),
    "the number is told": (lambda: bnn.Loader(by_sampler(Some()), num_data=NUM), 5, 40, NUM),
}


@pytest.mark.parametrize("kind", AT_RANDOM)
def test_samplers_that_draw_count_the_examples_they_draw_from(kind):
    make, num_batches, num_rows, num_data = AT_RANDOM[kind]
    epochs = 100
    found, total = shares(make(), epochs * num_batches)
    assert found == num_data
    assert float(total.sum()) == pytest.approx(num_data)
    assert float((total[:num_data] - 1).abs().max()) < 5 * (num_data / num_rows / epochs) ** 0.5


READY_MADE = [(part, torch.zeros(len(part))) for part in ROWS.tensors[0].split(30)]


class BatchStream(IterableDataset):
    def __iter__(self):
        return iter(READY_MADE)


TOLD = {
    "a stream": lambda: DataLoader(Stream(), 30),
    "ready-made batches": lambda: DataLoader(READY_MADE, batch_size=None),
    "a stream of batches": lambda: DataLoader(BatchStream(), None),
    "rows left out": lambda: DataLoader(ROWS, 30, collate_fn=thinned),
    "rows by weight": lambda: by_sampler(BY_WEIGHT),
    "other rows each epoch": lambda: by_sampler(Some()),
    "batches of yours": lambda: DataLoader(ROWS, batch_sampler=Endless()),
}


@pytest.mark.parametrize("kind", TOLD)
def test_a_number_that_a_loader_cannot_tell_is_asked_for(kind):
    message = r"this DataLoader does not tell: pass bnn.Loader\(loader, num_data=N\) in"
    with pytest.raises(bnn.InputError, match=message):
        fit_loader(TOLD[kind]())
    assert fit_loader(bnn.Loader(TOLD[kind](), num_data=85)).record.num_data == 85


@pytest.mark.parametrize("kind", ["a stream", "ready-made batches", "a stream of batches", "rows left out"])
def test_examples_of_unknown_number_count_alike_once_an_epoch_is_over(kind):
    """Only then are the sizes of all batches known: the first epoch is taken for one of full batches."""
    _, total = shares(bnn.Loader(TOLD[kind](), num_data=85), 400)
    seen = total[total > 0]
    assert float(seen.max() / seen.min()) == pytest.approx(1, abs=1e-6)
    assert float(total.sum()) == pytest.approx(85, rel=0.01)


def fit_loader(data, steps=2):
    model = bnn.BNN(nn.Linear(1, 1), likelihood=bnn.likelihoods.Gaussian(1.0))
    return bnn.fit(model, data, bnn.SVI(steps=steps), seed=0, device="cpu", progress=False)


def test_what_is_no_number_or_cannot_begin_anew_is_refused():
    loader = DataLoader(ROWS, 30)
    for number in (0, 2.5):
        with pytest.raises(bnn.InputError, match="`num_data` must be a whole number"):
            bnn.Loader(loader, num_data=number)
    with pytest.raises(bnn.InputError, match="The loader yields no batch any more"):
        fit_loader(bnn.Loader(DataLoader(OnceOnly(), 30), num_data=NUM), steps=6)


@pytest.mark.parametrize("engine", [pytest.param("eager", marks=pytest.mark.slow), "auto"])
def test_a_short_last_batch_moves_no_posterior_mean(engine):
    """90 zeros and 10 ones in batches of 30, in order: the last batch has the ones alone. The mean, the one weight,
    is sum / (N + 1) under N(0, 1)."""
    net = nn.Linear(1, 1, bias=False)
    model = bnn.BNN(net, prior=bnn.priors.Normal(1.0), likelihood=bnn.likelihoods.Gaussian(1.0))
    y = (torch.arange(NUM) >= 90).float()
    loader = DataLoader(TensorDataset(torch.ones(NUM, 1), y), 30)
    method = bnn.SVI(guide="map", steps=200, lr=0.02, schedule="cosine_annealing_lr")
    posterior = bnn.fit(model, loader, method, seed=0, device="cpu", engine=engine, progress=False)
    assert float(posterior.mean()["weight"]) == pytest.approx(10 / 101, abs=0.01)
