"""Labels at positions: segmentation of images and of sequences, beside one label per example on the same numbers.

A network that sees each position alone is a network on rows, one for each position, so that its posterior is known.
"""

import math

import pytest
import torch
from helpers import block_covariance
from torch import nn

import pyrobnn as bnn
from pyrobnn.distributions.targets import LabelOrIgnored
from pyrobnn.likelihoods import Categorical, DenseCategorical
from pyrobnn.likelihoods.dense_categorical import DenseCategoricalFromLogits

N, T, CLASSES = 14, 5, 3
IGNORED = -100


class Rows(nn.Module):
    """The logits (M, C) of rows (M, 2); of sequences (N, T, 2), as (N, T, C), or with another axis first."""

    inputs_first = outputs_first = False

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, CLASSES)

    def forward(self, x):
        f = self.layer(x.movedim(1, -1) if self.inputs_first else x)
        return f.movedim(-1, 1) if self.outputs_first else f


class Last(Rows):
    pass


class First(Rows):
    outputs_first = True


class Grid(First):
    """Of images (N, 2, H, W), as (N, C, H, W)."""

    inputs_first = True


def sequences(seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(N, T, 2, generator=generator, dtype=torch.float64)
    y = (2 * x[..., 0] + torch.randn(N, T, generator=generator)).round().clamp(0, 2).long()
    y[torch.rand(N, T, generator=generator) < 0.2] = IGNORED
    return x, y


X, Y = sequences()
KEPT = IGNORED != Y
DENSE = DenseCategorical(classes=CLASSES)


def model(net, likelihood=DENSE):
    return bnn.BNN(lambda: net().double(), prior=bnn.priors.Normal(1.0), likelihood=likelihood)


def plain(x, y):
    return bnn.Data(x, y, standardize=False)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("structure", "curvature"), [("full", "ggn"), ("diag", "ggn"), ("kron", "ggn"), ("full", "hessian")]
)
def test_the_posterior_is_that_of_rows_without_those_that_have_no_label(structure, curvature):
    """At the same mode; a Kronecker product, exact for neither, also takes the inputs of positions without a label."""
    guide = bnn.guides.Laplace(structure=structure, curvature=curvature)
    rows = bnn.fit(model(Rows, Categorical()), plain(X[KEPT], Y[KEPT]), bnn.SVI(guide=guide), seed=0, progress=False)
    mode = {name: value.detach() for name, value in rows.guide.points_by_name().items()}
    around = {"weights": mode, "progress": False}
    dense = guide.around(model(Last), plain(X, Y), **around)
    if structure != "kron":
        torch.testing.assert_close(block_covariance(dense.guide), block_covariance(rows.guide), rtol=1e-6, atol=1e-9)
    fitted = bnn.fit(model(Last), plain(X, Y), bnn.SVI(guide=guide), seed=0, progress=False)
    for name, value in fitted.guide.points_by_name().items():
        torch.testing.assert_close(value, mode[name], atol=1e-4, rtol=1e-4)
    evidence = pytest.approx(rows.record.laplace.log_evidence, abs=1e-3)
    assert fitted.record.laplace.log_evidence == evidence or structure == "kron"


@pytest.mark.parametrize("net", [First, Grid])
@pytest.mark.parametrize("engine", ["eager", "captured"])
def test_classes_may_come_first_or_last_and_positions_may_be_a_grid(net, engine):
    shape = (N, T) if net is First else (N, 1, T)
    x = X if net is First else X.movedim(-1, 1)[:, :, None]
    method = bnn.SVI(steps=30, batch_size=5)
    settings = {"seed": 0, "progress": False, "engine": engine}
    expected = bnn.fit(model(Last), plain(X, Y), method, **settings)
    found = bnn.fit(model(net), plain(x, Y.view(shape)), method, **settings)
    probs = found.predict(x, num_draws=20).class_probs
    assert probs.shape == (*shape, CLASSES)
    torch.testing.assert_close(probs.view(N, T, CLASSES), expected.predict(X, num_draws=20).class_probs)


def test_scores_and_entropies_of_positions_are_those_of_rows():
    posterior = bnn.fit(model(Last), plain(X, Y), bnn.SVI(steps=50), seed=0, progress=False)
    prediction = posterior.predict(X, num_draws=30)
    draws = posterior.draw(30)
    logits = torch.einsum("ntj,scj->sntc", X, draws["layer.weight"]) + draws["layer.bias"][:, None, None]
    probs = logits.softmax(-1)
    torch.testing.assert_close(prediction.class_probs, probs.mean(0))
    each = prediction.by_target
    torch.testing.assert_close(each.entropy.view(N, T), torch.special.entr(probs.mean(0)).sum(-1))
    own = torch.special.entr(probs).sum(-1).mean(0)
    torch.testing.assert_close(each.mutual_information.view(N, T), (each.entropy.view(N, T) - own).clamp_min(0))
    labels = torch.where(KEPT, Y, 0)
    picked = probs.gather(-1, labels.expand(30, N, T)[..., None])[..., 0].where(KEPT, 1.0)
    expected = picked.log().sum(-1).logsumexp(0) - math.log(30)  # of all labels of an example together
    torch.testing.assert_close(prediction.log_prob(Y), expected)
    keep = KEPT.flatten()
    expected = probs.mean(0)[KEPT].gather(-1, Y[KEPT][:, None])[:, 0].log()
    torch.testing.assert_close(each[keep].log_prob(Y.flatten()[keep]), expected)
    accuracy = float((prediction.label == Y)[KEPT].double().mean())
    assert bnn.score(each[keep], Y.flatten()[keep])["accuracy"].value == pytest.approx(accuracy)
    with pytest.raises(bnn.InputError, match=r"Some labels are no class, -100: score the others"):
        bnn.score(prediction, Y)


def test_an_ignored_label_has_no_density_no_gradient_and_is_never_drawn():
    logits = torch.randn(4, CLASSES, dtype=torch.float64, requires_grad=True)
    law = LabelOrIgnored(logits=logits, ignore_index=7)
    y = torch.tensor([0, 7, 2, 7])
    law.log_prob(y).sum().backward()
    assert law.log_prob(y)[1::2].tolist() == [0, 0]
    assert not logits.grad[1::2].any()
    assert logits.grad[::2].any()
    assert set(law.sample((500,)).unique().tolist()) == {0, 1, 2}
    torch.testing.assert_close(law.expand((2, 4)).log_prob(y), law.log_prob(y).expand(2, 4))


def test_drawn_columns_have_the_information_for_their_mean():
    """4,000 examples with the same logits and 16 columns each; 66 x 66 entries at 5 standard errors."""
    generator = torch.Generator().manual_seed(1)
    f = torch.randn(1, 22 * CLASSES, generator=generator, dtype=torch.float64)
    module = DenseCategoricalFromLogits(CLASSES, torch.Size((22,)), IGNORED)
    columns = module.fisher_columns(f.expand(4000, -1))
    assert columns.shape == (16, 4000, 66)
    products = torch.einsum("kbi,kbj->bij", columns, columns)
    probs = f.view(22, CLASSES).softmax(-1)
    exact = torch.block_diag(*(torch.diag(p) - torch.outer(p, p) for p in probs))
    errors = products.std(0) / 4000**0.5
    assert float(((products.mean(0) - exact) / errors).abs().max()) < 5
    few = DenseCategoricalFromLogits(CLASSES, torch.Size((4,)), IGNORED).fisher_columns(f[:, :12])
    exact = torch.block_diag(*(torch.diag(p) - torch.outer(p, p) for p in probs[:4]))
    torch.testing.assert_close(torch.einsum("kbi,kbj->ij", few, few), exact)


def batches(lengths=(5, 2, 4)):
    return [(X[i : i + 4, :length], Y[i : i + 4, :length]) for i, length in zip((0, 4, 8), lengths, strict=True)]


@pytest.mark.parametrize("engine", ["eager", "auto"])
def test_sequences_may_differ_in_length_from_batch_to_batch(engine):
    """The gradient of a step is that of the labels of its batch; predictions of another length have that length."""
    loader = bnn.Loader(batches(), num_data=12)
    posterior = bnn.fit(model(Last), loader, bnn.SVI(steps=30), seed=0, progress=False, engine=engine)
    assert posterior.predict(X[:2, :4]).class_probs.shape == (2, 4, CLASSES)
    padded = [(x, torch.cat([y, torch.full((4, T - y.shape[1]), IGNORED)], 1)) for x, y in batches()]
    padded = [(torch.cat([x, x.new_zeros(4, T - x.shape[1], 2)], 1), y) for x, y in padded]
    loader = bnn.Loader(padded, num_data=12)
    same = bnn.fit(model(Last), loader, bnn.SVI(steps=30), seed=0, progress=False, engine=engine)
    torch.testing.assert_close(posterior.predict(X).class_probs, same.predict(X).class_probs)


def test_what_deploys_and_what_is_saved_predicts_the_same(tmp_path):
    posterior = bnn.fit(model(First), plain(X, Y), bnn.SVI(steps=30), seed=0, progress=False)
    probs = posterior.predict(X, num_draws=20).class_probs
    torch.testing.assert_close(posterior.predictor(20)(X), probs)
    posterior.save(tmp_path / "saved")
    loaded = bnn.load(tmp_path / "saved", net=First().double())
    assert loaded.bnn.settings["likelihood"] == DENSE
    assert loaded.predict(X, num_draws=20).class_probs.equal(probs)


@pytest.mark.parametrize("method", [bnn.IVON(steps=20), bnn.SVI(guide="map", steps=20), bnn.NUTS(4, warmup=4)])
def test_other_methods_predict_labels_at_positions(method):
    posterior = bnn.fit(model(Last), plain(X, Y), method, seed=0, progress=False)
    assert posterior.predict(X[:3]).label.shape == (3, T)


CASES = {
    "one label": (Last, X, Y[:, 0], DENSE, r"needs labels \(N, \*positions\), got \(14,\): .* take Categorical"),
    "positions": (Last, X, Y[:, :3], DENSE, r"Labels \(N, 3\) of 3 classes need 9 logits .* returns 15"),
    "labels": (Last, X, Y + KEPT * 2, DENSE, "needs labels from 0 to 2, got 4"),
    "negative": (Last, X, Y.clamp_min(-1), DENSE, "ignore_index=-100, needs labels from 0 up, got -1"),
    "classes": (Last, X, Y, DenseCategorical(classes=4), r"needs logits \(N, C, \*positions\) .* returns \(N, 5, 3\)"),
    "both": (First, X[:, :3], Y[:, :3], DENSE, "both have 3 entries: say which counts classes"),
    "another": (Last, X, Y, Categorical(), r"\(2, 5, 3\).* take DenseCategorical"),
}


@pytest.mark.parametrize(("net", "x", "y", "likelihood", "message"), CASES.values(), ids=CASES)
def test_what_does_not_fit_is_refused(net, x, y, likelihood, message):
    with pytest.raises(bnn.InputError, match=message):
        bnn.fit(model(net, likelihood), plain(x, y), bnn.SVI(steps=2), seed=0, progress=False)


def test_the_axis_of_classes_may_be_said():
    x, y = X[:, :3], Y[:, :3]
    probs = []
    for net, axis in ((First, "first"), (Last, "last")):
        said = model(net, DenseCategorical(classes=3, class_axis=axis))
        probs.append(bnn.fit(said, plain(x, y), bnn.SVI(steps=20), seed=0, progress=False).predict(x).class_probs)
    torch.testing.assert_close(*probs)


def test_inputs_whose_labels_would_not_have_the_shape_of_the_predictions_are_refused():
    def posterior(net, x, y):
        return bnn.fit(model(net), plain(x, y), bnn.SVI(steps=2), seed=0, progress=False)

    images, labels = X.movedim(-1, 1)[:, :, None].repeat(1, 1, 2, 1), Y[:, None].repeat(1, 2, 1)
    with pytest.raises(bnn.InputError, match=r"`x` must have shape \(N, 2, 2, 5\), got \(14, 2, 5, 2\)"):
        posterior(Grid, images, labels).predict(images.mT)
    message = r"targets of several shapes, \(2,\), \(4,\), \(5,\).*: predict batch by bat"
    with pytest.raises(bnn.InputError, match=message):
        posterior(Last, X, Y).predict(bnn.Loader(batches(), num_data=12))
