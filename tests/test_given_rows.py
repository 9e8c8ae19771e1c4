"""Networks that take the rows of the data and no others: every fit, what follows it, and a saved posterior."""

import pytest
import torch
from helpers import Net
from torch import nn
from torch.func import functional_call
from torch.nn import functional

import pyrobnn as bnn
from pyrobnn._core.tree_files import read_tree
from pyrobnn.guides import Laplace

G = torch.Generator().manual_seed(0)
CODES = torch.randint(1, 5, (24, 1), generator=G)
LENGTHS = torch.randint(1, 6, (24,), generator=G)
WORDS = torch.randint(1, 5, (24, 5), generator=G).where(torch.arange(5) < LENGTHS[:, None], 0)
Y = torch.randn(24, generator=G)


def codes(first=1):
    """Categories that are counted from some number on."""
    run = lambda net, x: net.head(net.table(x[:, 0].long() - first))  # noqa: E731
    return Net(run, table=nn.Embedding(4, 3), head=nn.Linear(3, 1))


def one_hot():
    run = lambda net, x: net.head(functional.one_hot(x[:, 0].long() - 1, 4).to(net.head.weight.dtype))  # noqa: E731
    return Net(run, head=nn.Linear(4, 1))


def recurrent(run):
    """Words of sentences that end with zeros."""
    parts = {"table": nn.Embedding(5, 3), "cell": nn.GRU(3, 4, batch_first=True), "head": nn.Linear(4, 1)}
    return Net(lambda net, x: net.head(run(net, net.table(x.long()), (x > 0).sum(1))), **parts)


def packed(net, words, lengths):
    options = {"batch_first": True, "enforce_sorted": False}
    return net.cell(nn.utils.rnn.pack_padded_sequence(words, lengths.cpu(), **options))[1][0]


def last_step(net, words, lengths):
    return net.cell(words)[0].gather(1, (lengths - 1)[:, None, None].expand(-1, 1, 4))[:, 0]


def attention():
    def run(net, x):
        is_word = x > 0
        if not is_word.any(1).all():
            raise ValueError("a sentence without words")
        read = net.encoder(net.table(x.long()), src_key_padding_mask=~is_word) * is_word[..., None]
        return net.head(read.sum(1) / is_word.sum(1, keepdim=True))

    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    return Net(run, table=nn.Embedding(5, 4), head=nn.Linear(4, 1), encoder=encoder)


def given():
    """Refuses every row that is not among the data."""

    def run(net, x):
        assert bool((x[:, None] == WORDS.to(x)).all(-1).any(1).all()), "a row that nobody gave"
        return net.head(x)

    return Net(run, head=nn.Linear(5, 1))


def normalised(*, tracked=False):
    norm = nn.BatchNorm1d(4, track_running_stats=tracked)
    return nn.Sequential(nn.Linear(1, 4), norm, nn.Tanh(), nn.Linear(4, 1))


NETS = {
    "codes": (codes, CODES),
    "codes as floats": (codes, CODES.float()),
    "one hot": (one_hot, CODES),
    "packed": (lambda: recurrent(packed), WORDS),
    "last step": (lambda: recurrent(last_step), WORDS),
    "attention": (attention, WORDS),
    "given": (given, WORDS.float()),
    "statistics of a batch": (normalised, CODES.float()),
}
METHODS = {
    "svi": bnn.SVI(steps=3),
    "autoguide": bnn.SVI(guide="AutoNormal", steps=3),
    "laplace": bnn.SVI(guide=Laplace(), steps=3),
    "last layer": bnn.SVI(guide=Laplace(sites="last_layer"), steps=3),
    "swag": bnn.SWAG(bnn.SVI(guide="map", steps=3), steps=4, every=1, rank=2),
    "ensemble": bnn.Ensemble(bnn.SVI(guide="map", steps=3), members=2, anchored=True),
    "ivon": bnn.IVON(steps=3),
    "nuts": bnn.NUTS(num_draws=3, warmup=3, num_chains=2, max_tree_depth=2),
    "mclmc": bnn.MCLMC(num_draws=3, warmup=40, num_chains=2, thinning=1),
    "sgld": bnn.SGLD(num_draws=3, burn_in=2, thinning=1, num_chains=2, step_size=1e-5),
}
IGNORED = (
    "ignore:Laplace. .*took a slower path",
    "ignore:torch.func.vmap does not take the model",
    "ignore:.*draws diverged",
    "ignore:There is a performance drop",
    "ignore:.*effective",
)
pytestmark = [pytest.mark.filterwarnings(text) for text in IGNORED]


def model_of(net):
    return bnn.BNN(net, prior=bnn.priors.Normal(1.0), likelihood=bnn.likelihoods.Gaussian(scale=0.5))


def seeded(make):
    torch.manual_seed(0)
    return make()


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
def test_codes_that_count_from_one_give_the_bits_of_codes_that_count_from_zero(method):
    found = []
    for first in (0, 1):
        model = model_of(seeded(lambda first=first: codes(first)))
        posterior = bnn.fit(model, bnn.Data(CODES - 1 + first, Y), method, seed=0, engine="eager", progress=False)
        found.append(posterior.predict(CODES - 1 + first, num_draws=4).draw_means)
    assert torch.equal(*found)


def test_a_captured_fit_looks_up_the_codes_of_the_data():
    found = []
    for first in (0, 1):
        model = model_of(seeded(lambda first=first: codes(first)))
        posterior = model.fit(CODES - 1 + first, Y, steps=600, seed=0, progress=False)
        assert posterior.record.engine.used == "captured"
        found.append(posterior.mean()["head.weight"])
    assert torch.equal(*found)


@pytest.mark.one_in(3, 2)
@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("how", ["svi", "autoguide", "nuts"])
def test_a_network_sees_rows_of_the_data_alone(name, how, tmp_path):
    """Through the fit, predictions, the audit, and a saved posterior, which has no row of the data."""
    make, x = NETS[name]
    data, model = bnn.Data(x, Y), model_of(seeded(make))
    posterior = bnn.fit(model, data, METHODS[how], seed=0, engine="eager", progress=False)
    before = posterior.predict(x, num_draws=4).draw_means
    assert before.isfinite().all()
    example = read_tree(posterior.save(tmp_path / "p"))["example"]
    assert not any(example[part].any() for part in "xyf")
    loaded = bnn.load(tmp_path / "p", net=seeded(make))
    assert torch.equal(loaded.predict(x, num_draws=4).draw_means, before)
    if how != "nuts":
        audits = [bnn.elbo_report(one, data, num_draws=4) for one in (posterior, loaded)]
        assert audits[0] == audits[1]
    assert model.sample_prior_predictive(x, num_draws=3, seed=0).mean.isfinite().all()
    again = bnn.load(loaded.save(tmp_path / "again"), net=seeded(make))
    assert torch.equal(again.predict(x, num_draws=4).draw_means, before)


def test_a_posterior_holds_no_more_of_the_data_than_two_rows():
    data = bnn.Data(torch.randn(1000, 5), torch.randn(1000))
    posterior = model_of(nn.Linear(5, 1)).fit(data, steps=1, seed=0, progress=False)
    assert [value.untyped_storage().nbytes() for value in posterior.example] == [2 * 5 * 4, 2 * 4]


def test_a_linearised_prediction_of_packed_sentences_is_that_of_finite_differences():
    """Operations on packed sequences have no rule of forward mode."""
    net = seeded(lambda: recurrent(packed).double())
    around = Laplace(structure="diag").around(model_of(net), bnn.Data(WORDS, Y), progress=False)
    draws = around.draw(3)
    found = around.predict(WORDS, draws=draws).draw_means
    mean, step = around.mean(), 1e-6
    for index in range(3):
        change = {name: draws[name][index] - value for name, value in mean.items()}
        high, low = (
            functional_call(net, {name: value + sign * step * change[name] for name, value in mean.items()}, WORDS)
            for sign in (1, -1)
        )
        exact = functional_call(net, mean, WORDS) + (high - low) / (2 * step)
        torch.testing.assert_close(found[index], exact[:, 0].detach(), rtol=1e-6, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("tracked", [False, True])
def test_scales_are_measured_around_batch_normalisation(tracked):
    model = bnn.BNN(seeded(lambda: normalised(tracked=tracked)))
    posterior = model.fit(CODES.float(), Y, max_steps=50, seed=0, progress=False)
    assert posterior.record.measured == ["scale"]
    assert posterior.predict(CODES.float()).mean.isfinite().all()


@pytest.mark.parametrize(
    "fit",
    [
        lambda model, data: model.fit(data, guide="laplace", steps=3, seed=0, progress=False),
        lambda model, data: Laplace().around(model, data, progress=False),
        lambda model, data: bnn.fit(model, data, bnn.EvidenceFramework(), seed=0, progress=False),
        lambda model, data: model.fit(data, steps=1, seed=0, progress=False).predict(data.x, linearized=True),
    ],
    ids=["laplace", "around", "evidence", "linearised"],
)
def test_curvature_of_outputs_that_depend_on_each_other_is_refused(fit):
    with pytest.raises(bnn.InputError, match="normalises by the statistics of each batch"):
        fit(model_of(normalised()), bnn.Data(CODES.float(), Y))


@pytest.mark.parametrize("name", ["codes", "codes as floats", "one hot"])
def test_pictures_over_codes_stand_at_the_codes(name):
    make, x = NETS[name]
    data = bnn.Data(x, Y)
    posterior = model_of(seeded(make)).fit(data, steps=3, seed=0, progress=False)
    figure = bnn.plots.fit_1d(posterior, data)
    mean = next(line for line in figure.axes[0].lines if line.get_label() == "mean")
    assert mean.get_xdata().tolist() == [1, 2, 3, 4]
    assert bnn.plots.compare_guides({"one": posterior}, data).axes
