"""Networks that take several tensors, by keyword or by position, beside the same networks with one joined tensor.

Fits of both have the same seeds. Predictions, scores and curvatures are compared bit by bit, or up to rounding where an
engine may order sums in another way.
"""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import pyrobnn as bnn

NUM = 24
G = torch.Generator().manual_seed(0)
IDS = torch.randint(9, (NUM, 5), generator=G)
MASK = torch.arange(5) < torch.randint(1, 6, (NUM, 1), generator=G)
NUMBERS = torch.randn(NUM, 3, generator=G)
Y = torch.randint(3, (NUM,), generator=G)


class Reader(nn.Module):
    """Words, a mask and numbers in, by keyword; classes out."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.first, self.last = nn.Embedding(9, 4), nn.Linear(7, 8), nn.Linear(8, 3)

    def forward(self, input_ids, attention_mask, numbers):
        words, mask = self.table(input_ids), attention_mask[:, :, None].to(numbers.dtype)
        mean = (words * mask).sum(1) / mask.sum(1)
        return self.last(torch.tanh(self.first(torch.cat([mean, numbers], 1))))


class ByPosition(Reader):
    """The same, by position."""

    def forward(self, *parts):
        return super().forward(*parts)


class Joined(Reader):
    """The same, with all columns in one tensor."""

    def forward(self, x):
        return super().forward(x[:, :5].long(), x[:, 5:10] > 0, x[:, 10:])


FORMS = {
    "mapping": (Reader, {"input_ids": IDS, "attention_mask": MASK, "numbers": NUMBERS}),
    "tuple": (ByPosition, (IDS, MASK, NUMBERS)),
    "joined": (Joined, torch.cat([IDS, MASK, NUMBERS], 1)),
}
METHODS = {
    "mean-field": bnn.SVI(steps=20),
    "mini-batches": bnn.SVI(steps=20, batch_size=8),
    "full rank": bnn.SVI("full_rank", steps=20),
    "laplace": bnn.SVI("laplace", steps=20),
    "last layer": bnn.SVI(bnn.guides.Laplace(sites="last_layer"), steps=20),
    "linearised": bnn.SVI(bnn.guides.Laplace(linearized=True), steps=20),
    "IVON": bnn.IVON(steps=20),
    "SWAG": bnn.SWAG(bnn.SVI("map", steps=20), steps=20, every=2, rank=5),
    "ensemble": bnn.Ensemble(bnn.SVI(steps=10), members=2),
    "NUTS": bnn.NUTS(num_draws=4, warmup=4, num_chains=1),
    "SGLD": bnn.SGLD(num_draws=4, burn_in=10, thinning=1, num_chains=2),
    "evidence": bnn.EvidenceFramework(),
}


def model(form):
    return bnn.BNN(FORMS[form][0](), prior=bnn.priors.Normal(1.0), likelihood="categorical")


def fit(form, method, **arguments):
    data = bnn.Data(FORMS[form][1], Y)
    return bnn.fit(model(form), data, method, seed=0, progress=False, **arguments)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("engine", ["eager", "captured"])
@pytest.mark.parametrize("name", METHODS)
def test_every_way_to_fit_takes_them(name, engine):
    """Posteriors of a mapping, a tuple and a joined tensor predict the same."""
    if name == "SGLD" and engine == "captured":
        pytest.skip("SGLD has no captured form")
    fits = {form: fit(form, METHODS[name], engine=engine) for form in FORMS}
    assert {posterior.record.engine.used for posterior in fits.values() if posterior.record.engine} <= {engine}
    probs = {form: posterior.predict(FORMS[form][1], num_draws=8).class_probs for form, posterior in fits.items()}
    torch.testing.assert_close(probs["mapping"], probs["joined"], rtol=1e-5, atol=1e-6)
    assert torch.equal(probs["mapping"], probs["tuple"])


@pytest.mark.slow
@pytest.mark.parametrize("form", ["mapping", "tuple"])
def test_what_looks_at_a_posterior_takes_them(form, tmp_path):
    (kind, x), (_, joined) = FORMS[form], FORMS["joined"]
    one, other = fit(form, METHODS["mean-field"]), fit("joined", METHODS["mean-field"])
    scores = [dict(bnn.score(posterior.predict(inputs), Y)) for posterior, inputs in ((one, x), (other, joined))]
    assert scores[0] == scores[1]
    data = [bnn.Data(inputs, Y) for inputs in (x, joined)]
    diagnoses = [bnn.diagnose(posterior, part) for posterior, part in zip((one, other), data, strict=True)]
    kinds = [[(finding.name, finding.kind) for finding in diagnosis.findings] for diagnosis in diagnoses]
    assert kinds[0] == kinds[1]  # the linear baseline, in the text, is for a single tensor
    loos = [float(bnn.loo(posterior, part).elpd) for posterior, part in zip((one, other), data, strict=True)]
    assert loos[0] == loos[1]
    tree = bnn.to_datatree(one, data[0])
    keys = FORMS[form][1] if form == "mapping" else ("0", "1", "2")
    assert {*tree["constant_data"].data_vars} == {f"x.{key}" for key in keys}
    np.testing.assert_array_equal(tree["constant_data"][f"x.{next(iter(keys))}"], IDS)
    bnn.save(one, tmp_path / "saved")
    loaded = bnn.load(tmp_path / "saved", net=kind())
    assert torch.equal(loaded.predict(x).class_probs, one.predict(x).class_probs)


class Rows(Dataset):
    """Examples as people have them: each a mapping, a tuple, or nested."""

    def __init__(self, form):
        self.form = form

    def __len__(self):
        return NUM

    def __getitem__(self, row):
        ids, mask, numbers, y = IDS[row], MASK[row], NUMBERS[row], Y[row]
        if self.form == "mapping":
            return {"input_ids": ids, "attention_mask": mask, "labels": y, "numbers": numbers}
        return (ids, mask, numbers, y) if self.form == "long tuple" else ((ids, mask, numbers), y)


def by_loader(form):
    """A posterior whose batches come from a loader with a last batch that is smaller."""
    kind = {"long tuple": "tuple", "nested tuple": "tuple"}.get(form, form)
    rows = [*zip(FORMS["joined"][1], Y, strict=True)] if form == "joined" else Rows(form)
    return kind, bnn.fit(model(kind), DataLoader(rows, batch_size=7), bnn.SVI(steps=15), seed=0, progress=False)


def replicate(form):
    data = bnn.Data(FORMS[form][1], Y)
    return form, bnn.fit_replicates(model(form), data, bnn.SVI(steps=10), seed=0, replicates=2, progress=False)[1]


WAYS = [(by_loader, "mapping"), (by_loader, "long tuple"), (by_loader, "nested tuple"), (replicate, "mapping")]


@pytest.mark.parametrize(("way", "form"), WAYS)
def test_loaders_yield_them_and_replicates_take_them(way, form):
    """The same posterior as of the joined tensor."""
    fits = (way(form), way("joined"))
    probs = [posterior.predict(FORMS[key][1], num_draws=8).class_probs for key, posterior in fits]
    torch.testing.assert_close(*probs, rtol=1e-5, atol=1e-6)


def test_whole_numbers_stay_so():
    large = torch.tensor([[2**24], [2**24 + 1], [2**53 + 1]])
    kept = model("mapping").cast_inputs(bnn.Data({"ids": large, "x": NUMBERS[:3].double()}, Y[:3]).x)
    assert kept.parts["ids"].tolist() == large.tolist()
    assert kept.parts["x"].dtype == torch.float32


def test_splits_keep_rows_of_the_same_inputs_together():
    twice = bnn.Data({"ids": IDS.repeat(2, 1), "numbers": NUMBERS.repeat(2, 1)}, Y.repeat(2))
    rest, part = twice.split(0.25, seed=0)
    rows = [
        {tuple(row) for row in torch.cat([each.x.parts["ids"], each.x.parts["numbers"]], 1).tolist()}
        for each in (rest, part)
    ]
    assert not rows[0] & rows[1]
    assert (len(rest), len(part)) == (36, 12)


def without_targets():
    loader = DataLoader([{"a": IDS[0], "b": IDS[1]}] * 4, batch_size=2)
    bnn.fit(model("mapping"), loader, bnn.SVI(steps=5), seed=0, progress=False)


REFUSED = {
    "no targets": (without_targets, "or mappings with labels or label or y or target, got 'a', 'b'"),
    "unequal lengths": (lambda: bnn.Data({"a": IDS, "b": NUMBERS[:5]}, Y), "one row for each example, got lengths"),
    "text": (lambda: bnn.Data({"a": np.array(["x"] * NUM)}, Y), r"`x\['a'\]` must be numeric"),
    "not finite": (lambda: bnn.Data({"a": NUMBERS / 0}, Y), r"`x\['a'\]` must be finite"),
    "nothing": (lambda: bnn.Data({}, Y), "one row for each example"),
    "groups of some": (lambda: bnn.Data(NUMBERS, Y, groups=Y[:5]), "`groups` must have one label for each of"),
    "a number": (lambda: bnn.Data({"a": 1.0}, Y), "must have a row for each example"),
    "standardised": (lambda: bnn.Data({"a": NUMBERS}, Y, standardize=True), "for inputs of a single tensor"),
    "other names": (lambda: fit("mapping", METHODS["mean-field"]).predict({"ids": IDS}), "must hold input_ids,"),
    "one for several": (lambda: fit("mapping", METHODS["mean-field"]).predict(NUMBERS), "must hold input_ids,"),
    "several for one": (lambda: fit("joined", METHODS["mean-field"]).predict({"a": IDS}), r"must have shape \(N,"),
    "a picture": (
        lambda: bnn.plots.fit_1d(fit("joined", METHODS["mean-field"]), bnn.Data({"a": IDS}, Y)),
        "inputs of a single tensor, got several",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(name):
    call, message = REFUSED[name]
    with pytest.raises(bnn.InputError, match=message):
        call()
