"""Loaders as people have them: mappings, triples, streams, ready-made batches, any iterable that begins anew."""

import collections
import itertools

import pytest
import torch
from helpers import Net
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import pyrobnn as bnn

NUM = 24
X = torch.randn(NUM, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = X.sum(1) + 0.1 * torch.randn(NUM, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
PAIRS = TensorDataset(X, Y)
BATCHES = [(x, y) for x, y in zip(X.split(8), Y.split(8), strict=True)]


def two_inputs():
    """A linear map of two inputs, by keyword or position."""
    torch.manual_seed(0)
    return Net(lambda net, a, b: net.layer(torch.cat([a, b], 1)), layer=nn.Linear(2, 1, dtype=torch.float64))


def padded_mean(net, input_ids, attention_mask):
    """The mean of the embeddings of a sequence, whose padding a mask marks."""
    mask = attention_mask[..., None].float()
    return net.last((net.words(input_ids) * mask).sum(1) / mask.sum(1))


class BatchEncoding(collections.UserDict):
    """What the tokenisers of transformers return: a UserDict of tensors, with attributes of its own."""

    def __getitem__(self, key):
        return self.data[key]


ROWS = [{"a": x[:1], "b": x[1:], "label": y} for x, y in PAIRS]
"""As a data set of `datasets` in the format "torch" gives them."""


class Stream(IterableDataset):
    """The pairs without a length; each worker has its share."""

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        start, step = (0, 1) if info is None else (info.id, info.num_workers)
        return itertools.islice(iter(PAIRS), start, None, step)


class Anew:
    """Batches that begin anew with each `iter`, and nothing else."""

    def __iter__(self):
        return iter(BATCHES)


class Resetting:
    """An iterator that begins anew after its end, as those of DALI do."""

    def reset(self):
        self._batches = iter(BATCHES)

    def __iter__(self):
        self.reset()
        return self

    def __next__(self):
        return next(self._batches)


def model_of(net):
    return bnn.BNN(net, prior=bnn.priors.Normal(1.0), likelihood=bnn.likelihoods.Gaussian(0.3))


def plain():
    torch.manual_seed(0)
    return model_of(nn.Linear(2, 1, dtype=torch.float64))


def fit(model, data, **options):
    settings = {"steps": 7, "lr": 0.05, "seed": 0, "engine": "eager", "device": "cpu", "progress": False} | options
    return model.fit(data, **settings)


SAME = {
    "a list of batches": lambda: bnn.Loader(BATCHES, num_data=NUM),
    "an object with __iter__": lambda: bnn.Loader(Anew(), num_data=NUM),
    "an iterator that is reset": lambda: bnn.Loader(Resetting(), num_data=NUM),
    "ready-made batches": lambda: bnn.Loader(DataLoader(BATCHES, batch_size=None), num_data=NUM),
    "a stream": lambda: bnn.Loader(DataLoader(Stream(), 8), num_data=NUM),
    "triples with weights": lambda: bnn.Loader(
        DataLoader(TensorDataset(X, Y, torch.ones(NUM)), 8), split=lambda batch: (batch[0], batch[1])
    ),
    "targets first": lambda: bnn.Loader(DataLoader(TensorDataset(Y, X), 8), split=lambda batch: (batch[1], batch[0])),
    "mappings": lambda: bnn.Loader(DataLoader(ROWS, 8), lambda b: (torch.cat([b["a"], b["b"]], -1), b["label"])),
    "nested": lambda: bnn.Loader([((x, {"y": y}), "name") for x, y in BATCHES], lambda b: (b[0][0], b[0][1]["y"]), NUM),
}


@pytest.mark.parametrize("kind", SAME)
def test_forms_of_the_same_batches_give_the_same_mode(kind):
    """Without noise: a DataLoader draws a seed at each epoch, which a list does not."""
    data = SAME[kind]()
    found, expected = (fit(plain(), given, guide="map") for given in (data, DataLoader(PAIRS, 8)))
    assert found.record.num_data == NUM
    assert torch.equal(found.mean()["weight"], expected.mean()["weight"])
    torch.testing.assert_close(found.predict(data).mean, expected.predict(X).mean, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_a_stream_is_read_by_workers_too():
    """Each worker has every second example, so batches differ, and all examples are in each epoch."""
    stream = bnn.Loader(DataLoader(Stream(), 6, num_workers=2), num_data=NUM)
    posterior = fit(plain(), stream, guide="map", steps=300, lr=0.03, schedule="cosine_annealing_lr")
    precision = X.T @ X / 0.09 + torch.eye(2, dtype=torch.float64)
    net = fit(plain(), (X, Y), guide="map", steps=300, lr=0.03, schedule="cosine_annealing_lr", batch_size="all")
    sd = torch.linalg.inv(precision).diagonal().sqrt()
    assert ((posterior.mean()["weight"] - net.mean()["weight"])[0].abs() < 0.3 * sd).all()
    assert sorted(bnn.Loader(stream.loader).in_memory().y.tolist()) == sorted(Y.tolist())


TWO = {
    "mappings": [{"a": x[:, :1], "b": x[:, 1:], "y": y} for x, y in BATCHES],
    "encodings": [BatchEncoding({"a": x[:, :1], "b": x[:, 1:], "labels": y}) for x, y in BATCHES],
    "triples": [(x[:, :1], x[:, 1:], y) for x, y in BATCHES],
    "nested tuples": [((x[:, :1], x[:, 1:]), y) for x, y in BATCHES],
    "nested lists": [[[x[:, :1], x[:, 1:]], y] for x, y in BATCHES],
    "a mapping and targets": [({"a": x[:, :1], "b": x[:, 1:]}, y) for x, y in BATCHES],
}


@pytest.mark.parametrize("kind", TWO)
def test_several_inputs_come_in_any_form(kind):
    data = bnn.Loader(TWO[kind], num_data=NUM)
    found, expected = fit(model_of(two_inputs()), data, guide="map"), fit(plain(), DataLoader(PAIRS, 8), guide="map")
    torch.testing.assert_close(found.predict(data).mean, expected.predict(X).mean)


def test_predictions_of_a_loader_need_no_targets():
    posterior = fit(plain(), (X, Y))
    expected = posterior.predict(X, num_draws=20)
    inputs = {
        "tensors": DataLoader(X, 7),
        "lists of one": DataLoader(TensorDataset(X), 7),
        "pairs": DataLoader(PAIRS, 7),
        "told": bnn.Loader(DataLoader(TensorDataset(Y, X), 7), split=lambda batch: (batch[1], None)),
    }
    for kind, loader in inputs.items():
        found = posterior.predict(loader, num_draws=20)
        assert (len(found), found.num_draws) == (NUM, 20), kind
        for name in ("mean", "std", "draw_means"):
            torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(found.log_prob(Y), expected.log_prob(Y))
    two = fit(model_of(two_inputs()), bnn.Loader(TWO["mappings"], num_data=NUM))
    unlabelled = [{"a": x[:, :1], "b": x[:, 1:]} for x, _ in BATCHES]
    assert torch.equal(two.predict(bnn.Loader(unlabelled)).mean, two.predict(bnn.Loader(TWO["mappings"])).mean)


@pytest.mark.parametrize(
    "predict",
    [
        lambda x: bnn.Mixture(fit(plain(), (X, Y), replicates=2)).predict(x, num_draws=10),
        lambda x: plain().sample_prior_predictive(x, num_draws=9, seed=1),
    ],
    ids=["mixture", "prior"],
)
def test_mixtures_and_priors_predict_for_loaders_as_for_their_inputs(predict):
    found, expected = map(predict, (DataLoader(PAIRS, 7), X))
    torch.testing.assert_close(found.draw_means, expected.draw_means, rtol=1e-12, atol=1e-12)


def padded(rows):
    """A batch padded to its longest sequence."""
    longest = max(len(ids) for ids, _ in rows)
    ids = torch.stack([nn.functional.pad(ids, (0, longest - len(ids))) for ids, _ in rows])
    mask = torch.stack([(torch.arange(longest) < len(ids)).long() for ids, _ in rows])
    return BatchEncoding({"input_ids": ids, "attention_mask": mask, "labels": torch.stack([y for _, y in rows])})


SENTENCES = [(torch.arange(1, 2 + row % 4), torch.tensor(float(row % 4))) for row in range(12)]


@pytest.mark.parametrize("engine", ["eager", "captured"])
def test_batches_padded_to_different_lengths_train_and_predict(engine):
    net = Net(padded_mean, words=nn.Embedding(5, 3), last=nn.Linear(3, 1))
    loader = DataLoader(SENTENCES, 3, collate_fn=padded)
    posterior = fit(bnn.BNN(net), loader, engine=engine, validation=loader, eval_every=4)
    found = posterior.predict(loader, num_draws=10)
    whole = padded(SENTENCES)
    del whole["labels"]
    expected = posterior.predict(whole, num_draws=10)
    torch.testing.assert_close(found.draw_means, expected.draw_means, rtol=1e-5, atol=1e-6)
    with pytest.raises(bnn.InputError, match="Examples of batches differ in shape, .*: pad all to one length"):
        bnn.Loader(DataLoader(SENTENCES, 1, collate_fn=padded)).in_memory()


def test_predicting_leaves_random_states_alone():
    posterior, generator = fit(plain(), (X, Y)), torch.Generator().manual_seed(3)
    loader = DataLoader(PAIRS, 7, generator=generator)
    before = torch.get_rng_state(), generator.get_state()
    posterior.predict(loader, num_draws=5)
    with pytest.raises(bnn.InputError, match="must have shape"):
        posterior.predict(DataLoader(X[:, :1], 7, generator=generator))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.equal(generator.get_state(), before[1])


def test_validation_on_a_loader_scores_as_on_the_data_in_memory():
    """Batches of 7 leave a smaller last one, whose examples count as the others do."""
    scores = [
        fit(plain(), (X, Y), validation=validation, eval_every=2).history.validation_scores
        for validation in ((X, Y), DataLoader(PAIRS, 7), DataLoader(PAIRS, 7, shuffle=True), bnn.Loader(BATCHES))
    ]
    assert len(scores[0]) == 4
    for found in scores[1:]:
        assert found == pytest.approx(scores[0], rel=1e-12)


def test_a_loader_in_validation_changes_no_bit_of_the_fit():
    fits = [fit(plain(), (X, Y), validation=v, eval_every=2) for v in (None, DataLoader(PAIRS, 7, shuffle=True))]
    assert torch.equal(fits[0].guide.loc, fits[1].guide.loc)


def test_patience_goes_back_to_the_best_score_on_a_loader(tmp_path):
    held_out = DataLoader(TensorDataset(X, -Y), 7)  # the fit can only become worse
    settings = {"steps": 400, "patience": 2, "eval_every": 5, "validation": held_out, "checkpoint": tmp_path}
    posterior = fit(plain(), (X, Y), **settings)
    assert "no better validation score" in posterior.record.stop_reason
    assert torch.equal(fit(plain(), (X, Y), **settings).guide.loc, posterior.guide.loc)
    with pytest.raises(bnn.InputError, match="is of another fit, the validation data differ"):
        fit(plain(), (X, Y), **settings | {"validation": DataLoader(PAIRS, 7)})


@pytest.mark.slow
def test_diagnose_takes_loaders():
    posterior = fit(plain(), (X, Y))
    found = bnn.diagnose(posterior, DataLoader(PAIRS, 7), bnn.Loader(BATCHES), num_draws=50)
    assert found == bnn.diagnose(posterior, (X, Y), (X, Y), num_draws=50)


REFUSED = {
    "a generator": (lambda: bnn.Loader(batch for batch in BATCHES), "is a generator, which can be read only once"),
    "an iterator": (lambda: bnn.Loader(iter(BATCHES)), "is a list_iterator, which .* only once: .* a list of batches"),
    "a dataset": (lambda: bnn.Loader(PAIRS), "is a TensorDataset, .* pass a DataLoader"),
    "no function": (lambda: bnn.Loader(BATCHES, split=(0, 1)), r"`split` must be a function .*, got \(0, 1\)"),
    "no number": (lambda: fit(plain(), bnn.Loader(BATCHES)), r"this list does not tell: pass bnn.Loader\(loader,"),
    "three from split": (
        lambda: fit(plain(), bnn.Loader(BATCHES, split=lambda b: (*b, None), num_data=NUM)),
        r"`split` must return a pair \(x, y\), got a tuple of 3",
    ),
    "a list of batches": (lambda: fit(plain(), BATCHES), r"got list; of another iterable .* bnn.Loader\(iterable,"),
    "tensors": (lambda: fit(plain(), DataLoader(X, 8)), r"must yield pairs .* got Tensor: .*split=lambda batch:"),
    "unnamed targets": (
        lambda: fit(model_of(two_inputs()), DataLoader([{"a": X[0, :1], "b": X[0, 1:]}] * 4, 2)),
        r"got 'a', 'b': say which .* as in .* split=lambda batch: \(batch\[0\], batch\[1\]\)\)",
    ),
    "weights": (
        lambda: fit(plain(), DataLoader(TensorDataset(X, Y, torch.ones(NUM)), 8)),
        r"entries the first 2 of each batch were read as inputs.* split=lambda batch: \(batch\[0\], batch\[1\]\)\)",
    ),
    "other entries": (
        lambda: fit(plain(), DataLoader([{"x": x, "row": x.sum(), "y": y} for x, y in PAIRS], 8)),
        r"entries x, row of each batch were read as.* split=lambda batch: \(batch\[0\], batch\[1\]\)\)",
    ),
    "shuffled": (lambda: fit(plain(), (X, Y)).predict(DataLoader(PAIRS, 7, shuffle=True)), "in random order, .*"),
    "no batches": (lambda: fit(plain(), (X, Y)).predict(bnn.Loader([])), "The loader yields no batch"),
    "folds": (lambda: bnn.kfold(plain(), DataLoader(PAIRS, 7), bnn.SVI(steps=2)), r"pass bnn.Loader"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_the_refusal_says_what_to_write(kind):
    call, message = REFUSED[kind]
    with pytest.raises(bnn.InputError, match=message):
        call()
