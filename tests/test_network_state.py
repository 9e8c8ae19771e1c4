"""Networks with buffers that training changes, parameters without entries, and layers that a pass does not reach."""

import pytest
import torch
from helpers import Net
from torch import nn

import pyrobnn as bnn
from pyrobnn.guides import Laplace

G = torch.Generator().manual_seed(0)
X = torch.randn(24, 2, generator=G)
Y = torch.randn(24, generator=G)


def stateful(act, start=None, *, persistent=True):
    """A line, and a function that may change a buffer and returns the outputs."""
    net = Net(lambda net, x: act(net, x, net.line(x)), line=nn.Linear(2, 1))
    net.register_buffer("kept", start, persistent=persistent)
    return net


def averages_in_training(net, x, f):
    if net.training:
        net.kept.mul_(0.9).add_(0.1 * f.detach().mean())
    return f


def keeps_positions(net, x, f):
    net.kept = torch.arange(x.shape[1]) if net.kept is None else net.kept
    return f


def run(method, engine="auto"):
    return lambda model, data: bnn.fit(model, data, method, seed=0, engine=engine, progress=False)


WAYS = {
    "eager": run(bnn.SVI(steps=3), "eager"),
    "captured": run(bnn.SVI(steps=3), "captured"),
    "laplace": run(bnn.SVI(Laplace(curvature="hessian", structure="full"), steps=3)),
    "nuts": run(bnn.NUTS(num_draws=3, warmup=3, num_chains=1, max_tree_depth=2)),
    "sgld": run(bnn.SGLD(num_draws=3, burn_in=2, thinning=1, num_chains=2, step_size=1e-5)),
    "around": lambda model, data: Laplace().around(model, data, progress=False),
    "replicates": lambda model, data: model.fit(data, steps=3, replicates=2, seed=0, progress=False)[0],
}
pytestmark = [
    pytest.mark.filterwarnings(text)
    for text in (
        "ignore:.*draws diverged",
        "ignore:Laplace. .*slower path",
        "ignore:torch.func.vmap does not take",
        "ignore:Initializing zero-element tensors",
    )
]


def model_of(net):
    return bnn.BNN(net, prior=bnn.priors.Normal(1.0), likelihood=bnn.likelihoods.Gaussian(scale=0.5))


@pytest.mark.parametrize("how", [pytest.param(how, marks=[pytest.mark.slow] * (how == "captured")) for how in WAYS])
@pytest.mark.parametrize(
    "net",
    [
        lambda: stateful(averages_in_training, torch.zeros(())),
        lambda: stateful(keeps_positions, persistent=False),
        lambda: stateful(lambda net, x, f: f, torch.tensor([torch.nan, 1.0])),
        lambda: stateful(lambda net, x, f: f, torch.tensor([True])),
    ],
    ids=["in training", "a table", "not a number", "a mask"],
)
def test_other_buffers_stay(net, how, tmp_path):
    posterior = WAYS[how](model_of(net()), bnn.Data(X, Y))
    before = posterior.predict(X, num_draws=4).draw_means
    assert torch.equal(posterior.predict(X, num_draws=4).draw_means, before)
    loaded = bnn.load(posterior.save(tmp_path / "p"), net=net())
    assert torch.equal(loaded.predict(X, num_draws=4).draw_means, before)


def with_parts(*, with_empty, used):
    """A line beside parameters without entries."""
    torch.manual_seed(0)
    line, of_empty = nn.Linear(2, 1), lambda net, x: net.line(x) + net.empty.sum() + net.wide(x[:, :0])
    empty = {"empty": nn.Parameter(torch.zeros(0, 3)), "wide": nn.Linear(0, 1, bias=False)} if with_empty else {}
    return Net(of_empty if with_empty and used else lambda net, x: net.line(x), line=line, **empty)


@pytest.mark.parametrize("used", [False, True], ids=["unused", "used"])
@pytest.mark.parametrize("guide", ["mean_field", "matrix_normal", "low_rank", "laplace", "AutoNormal", "map"])
def test_parameters_without_entries_change_nothing(guide, used):
    """The bits of the same network without them; at default scales too, which L-BFGS measures."""
    guide = bnn.guides.LowRank(rank=1) if guide == "low_rank" else guide
    found = []
    for with_empty in (False, True):
        model = bnn.BNN(with_parts(with_empty=with_empty, used=used))
        assert model.site_names == ("line.weight", "line.bias")
        posterior = model.fit(X, Y, guide=guide, steps=3, seed=0, engine="eager", progress=False)
        found.append(posterior.predict(X, num_draws=4).draw_means)
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)


def test_a_network_of_parameters_without_entries_alone_is_refused():
    with pytest.raises(bnn.InputError, match="no trainable parameters"):
        bnn.BNN(nn.Linear(0, 1, bias=False))


@pytest.mark.parametrize("by_value", [False, True])
def test_weights_that_no_row_reaches_keep_their_prior_beside_the_exact_posterior_of_the_others(by_value):
    run = lambda net, x: (net.other if by_value and x.mean() > 100 else net.line)(x)  # noqa: E731
    model = model_of(Net(run, line=nn.Linear(2, 1), other=nn.Linear(2, 1)).double())
    posterior = Laplace(structure="full").around(model, bnn.Data(X.double(), Y.double()), progress=False)
    design = torch.cat([X, torch.ones(24, 1)], 1).double()
    exact = torch.linalg.inv(design.T @ design / 0.5**2 + torch.eye(3, dtype=torch.float64)).diagonal().sqrt()
    std = {name: spread.flatten() for name, (_, spread) in posterior.guide.moments().items()}
    torch.testing.assert_close(torch.cat([std["line.weight"], std["line.bias"]]), exact)
    assert all(torch.allclose(std[name], torch.ones_like(std[name])) for name in ("other.weight", "other.bias"))
