"""Where batches come from: DataLoaders with workers, and data in memory."""

import gc
import multiprocessing
import time

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

import pyrobnn as bnn

X = torch.randn(30, 2, generator=torch.Generator().manual_seed(0))
Y = X.sum(1)


class Failing(Dataset):
    """Examples of which one cannot be read."""

    def __len__(self):
        return len(X)

    def __getitem__(self, row):
        if row == 17:
            raise OSError("example 17 cannot be read")
        return X[row], Y[row]


class Noisy(Dataset):
    """Examples with random numbers of their own, which each worker draws."""

    def __len__(self):
        return len(X)

    def __getitem__(self, row):
        return X[row] + 0.1 * torch.randn(2), Y[row]


def fit(dataset, *, steps=5, **options):
    loader = DataLoader(dataset, batch_size=8, **options)
    model = bnn.BNN(bnn.MLP(2, [3], 1), prior=bnn.priors.Normal(1.0))
    return bnn.fit(model, bnn.SVI(steps=steps), loader, seed=0, engine="eager", progress=False)


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


@pytest.mark.one_in(2)
@pytest.mark.parametrize("persistent", [False, True])
def test_what_workers_draw_follows_the_seed(persistent):
    """Workers that persist get one seed for all epochs, so the numbers are not those of workers made anew."""
    fits = [fit(Noisy(), num_workers=2, shuffle=True, persistent_workers=persistent) for _ in range(2)]
    assert torch.equal(fits[0].guide.loc, fits[1].guide.loc)
    assert_no_worker_is_left()


def test_a_dataset_that_fails_ends_the_fit_with_its_own_error():
    with pytest.raises(OSError, match="Caught OSError in DataLoader worker process 0(?s:.*)example 17 cannot be read"):
        fit(Failing(), num_workers=2)
    assert_no_worker_is_left()


def test_data_come_in_parts():
    data = bnn.Data(X, Y, standardize=True, feature_names=["a", "b"])
    parts = list(data.parts(8))
    assert [len(part) for part in parts] == [8, 8, 8, 6]
    assert torch.equal(torch.cat([part.x for part in parts]), X)
    assert parts[0].feature_names == ("a", "b")
