"""Every way to use pyrobnn wrongly is refused with a message that helps, before anything is trained or changed."""

import functools
import inspect
import re
import warnings

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from helpers import Net, refused
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoDelta
from pyro.nn import PyroModule
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import pyrobnn as bnn
from pyrobnn import guides, priors
from pyrobnn._core.settings import Options, setting, to_dict
from pyrobnn.inference.method import registry as methods
from pyrobnn.likelihoods import Categorical, Gaussian, Poisson
from pyrobnn.optimizers import Optimizer, Schedule
from pyrobnn.priors import Normal, ScaleMixture

X = torch.linspace(-1, 1, 12).reshape(6, 2)
Y = X.sum(1)
LABELS = torch.tensor([0, 1, 2, 0, 1, 2])
TWO = torch.stack([Y, Y], 1)


def net(outputs=1):
    return bnn.MLP(2, [3], outputs)


def make_bnn(*parts, **named):
    """Return the model, its starting weights drawn without changing the global random state."""
    with torch.random.fork_rng():
        return bnn.BNN(*parts, **named)


def build_map(model):
    with torch.random.fork_rng():
        return guides.Map().build(model, X, Y)


def fit(x=X, y=Y, *, model=None, **settings):
    model = model or make_bnn(net())
    return model.fit(x, y, **({"steps": 2, "progress": False, "seed": 0, "device": "cpu"} | settings))


def fit_with(outputs=1, y=Y, guide=None, **parts):
    return fit(y=y, model=make_bnn(net(outputs), **parts), **({} if guide is None else {"guide": guide}))


def fit_labels(y, outputs=3):
    return fit_with(outputs, y, likelihood="categorical")


@functools.cache
def regression():
    return fit()


@functools.cache
def classification():
    return fit_labels(LABELS)


def loader(*tensors, **options):
    return DataLoader(TensorDataset(*tensors), batch_size=2, **options)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(X, Y, strict=True))


def fit_after(function, outputs=1):
    return fit(model=make_bnn(lambda: Net(lambda net, x: function(net.layer, x), layer=nn.Linear(2, outputs))))


def refuse_inputs(layer, x):
    raise AssertionError


def look_up(*rows):
    model = make_bnn(lambda: Net(lambda net, x: net.table(x[:, 0]), table=nn.Embedding(3, 1)))
    return fit(model=model, x=torch.tensor(rows)[:, None])


class DiscretePrior:
    def build(self, values):
        module = PyroModule()
        module.forward = lambda name, value: dist.Bernoulli(torch.full_like(value, 0.5)).to_event(value.ndim)
        return module


class CauchyPrior(priors.SitePrior):
    """A prior without a variance in closed form."""

    def site(self, name, value):
        return WithoutVariance(torch.zeros_like(value), 1.0)


class WithoutVariance(dist.Normal):
    variance = property(lambda self: (_ for _ in ()).throw(NotImplementedError))

    def expand(self, batch_shape, _instance=None):
        return self


def latent_in_plate(x, y):
    with pyro.plate("rows", len(x)):
        pyro.sample("w", dist.Normal(0.0, 1.0))


def no_latent(x, y):
    pyro.sample("y", dist.Normal(x.sum(1), 1.0).to_event(1), obs=y)


class Nothing:
    """A guide without parameters, at fixed values."""

    def build(self, model, *args):
        starts = {site.name: site.start for site in guides.latent_sites(model, *args)}
        guide = PyroModule()
        guide.forward = lambda *args: [pyro.sample(k, dist.Delta(v, event_dim=v.ndim)) for k, v in starts.items()]
        return guide


@setting
class Anything:
    """A setting with options that are not validated further."""

    options: Options


CASES = {
    # data
    "text": (lambda: bnn.Data([["a"], ["b"]], [0, 1]), "encode text and dates as numbers first"),
    "dates": (lambda: bnn.Data(np.array([["2020-01-01"]], dtype="datetime64[D]"), [0]), "encode text and dates"),
    "inputs of rank one": (lambda: bnn.Data(Y, Y), "for one feature pass x[:, None]"),
    "NaN in x": (lambda: bnn.Data(torch.where(X > 0.9, torch.nan, X), Y), "the first at index (5, 1)"),
    "lengths": (lambda: bnn.Data(X, Y[:4]), "same number of rows, got 6 and 4"),
    "a single target": (lambda: bnn.Data(X, Y[0]), "or (N, *positions), got a single number"),
    "feature names": (lambda: bnn.Data(X, Y, feature_names=["a"]), "`feature_names` must name the 2 columns of x"),
    "split fraction": (lambda: bnn.Data(X, Y).split(1.5, seed=0), "`fraction` must lie between 0 and 1, got 1.5"),
    "split of one row": (lambda: bnn.Data(X[:1], Y[:1]).split(0.5, seed=0), "Cannot split 1 row into two parts"),
    # names and settings
    "unknown prior": (lambda: priors.resolve("norml"), "Unknown prior 'norml'. Did you mean 'normal'?"),
    "unknown setting": (lambda: Normal(sigma=1.0), "Normal: unknown setting `sigma`; known are scale, loc"),
    "wrong type": (lambda: ScaleMixture(pi="half"), "ScaleMixture: `pi` must be a number, got 'half'"),
    "missing setting": (guides.Auto, "Auto: `name` is missing"),
    "infinite setting": (lambda: Normal(loc=float("inf")), "Normal: `loc` must be a finite number, got inf"),
    "given twice": (lambda: bnn.MLP(1, [5], 1, hidden=[5]), "MLP: `hidden` is given twice"),
    "wrong element": (lambda: bnn.MLP(1, [5, -2], 1), "`hidden.1` must be greater than 0, got -2"),
    "unknown activation": (lambda: bnn.MLP(1, [5], 1, activation="sine"), "MLP: `activation` must be 'relu', "),
    "widths for a network": (lambda: make_bnn([50, 50]), "A network is no list of widths, got [50, 50]: pass"),
    "a class for a network": (lambda: make_bnn(nn.Linear), "The class 'Linear' in the place of a network needs"),
    "a setting's class for a network": (lambda: make_bnn(bnn.MLP), "nets.MLP'>: pass an instance, MLP(...)."),
    "net without widths": (lambda: make_bnn("mlp"), "MLP needs `in_features` and `out_features`"),
    "an object in a file": (lambda: to_dict(Normal.site), "cannot be written to a spec file"),
    # priors
    "learnable at the edge": (lambda: ScaleMixture(pi=1e-9, learnable=True), "must start further inside its range"),
    "prior pattern in vain": (lambda: make_bnn(net(), prior={"head.*": "normal", "*": "normal"}), "The prior pattern"),
    "prior pattern shadowed": (lambda: fit_with(prior={"*": "normal", "2.*": "normal"}), "an earlier pattern has not"),
    "parameter without a prior": (lambda: fit_with(prior={"*.bias": "normal"}), "No prior for '0.weight': add a"),
    # likelihoods
    "labels as numbers": (lambda: fit_with(3, LABELS), "The targets are labels 0 to 2 and the network has 3 outputs:"),
    "heteroscedastic width": (lambda: fit_with(likelihood=Gaussian("heteroscedastic")), "needs 2 network outputs"),
    "not whole": (lambda: Categorical().check_targets(Y, 3), "Categorical needs whole-number labels"),
    "one class output": (lambda: fit_labels(LABELS * 0, 1), "a network with one output per class, at least 2; got 1"),
    # guides
    "unknown autoguide": (lambda: guides.Auto("AutoNormall"), "Unknown autoguide 'AutoNormall'. Known: AutoDelta"),
    "autoguide option": (lambda: guides.Auto("AutoNormal", {"rank": 3}), "AutoNormal has no option 'rank'. It takes: "),
    "guide pattern in vain": (lambda: fit(guide={"head.*": "map", "*": "map"}), "The guide pattern 'head.*' matches"),
    "site without a guide": (lambda: fit(guide={"*.bias": "map"}), "No guide for '0.weight'"),
    "discrete latent": (lambda: fit_with(prior=DiscretePrior()), "this guide covers continuous latents"),
    "latent in a plate": (lambda: build_map(latent_in_plate), "stands inside a plate; this guide covers"),
    "no latent": (lambda: build_map(no_latent), "The model has no latent site to infer"),
    "start without variance": (lambda: fit_with(prior=CauchyPrior(), guide=guides.MeanField("prior")), "needs a"),
    # optimisers
    "unknown optimizer": (lambda: Optimizer("adan"), "Unknown optimizer 'adan'. Did you mean 'adam'? Known: "),
    "optimizer option": (lambda: Optimizer("adam", {"momentum": 0.9}), "adam: "),
    "optimizer value": (lambda: Optimizer("adam", {"betas": (2.0, 0.9)}), "adam: Invalid beta parameter"),
    "unknown schedule": (lambda: Schedule("cosine"), "Unknown schedule 'cosine'. Known: "),
    # the model
    "a model for a network": (lambda: make_bnn(make_bnn(net())), "gives its weights priors itself: "),
    "no parameters": (lambda: make_bnn(nn.ReLU()), "no trainable parameters to be Bayesian about: ReLU"),
    "parameter named prior": (
        lambda: make_bnn(Net(Y, prior=nn.Parameter(Y))),
        "'prior' has a name that BNN needs itself",
    ),
    # fit
    "loss and kl": (lambda: bnn.SVI(loss=Trace_ELBO(), kl="mc"), "`num_particles` of its own: leave out it or kl='mc'"),
    "loss and noise": (lambda: bnn.SVI(guides.MeanField(noise="local"), loss=Trace_ELBO()), "or noise='local'"),
    "no steps": (lambda: bnn.SVI(steps=0), "SVI: `steps` must be greater than 0, got 0"),
    "temperature": (lambda: bnn.SVI(temperature=0.0), "SVI: `temperature`"),
    "a method in a model's fit": (lambda: make_bnn(net()).fit((X, Y), bnn.NUTS()), "for a method, call bnn.fit(model,"),
    "unknown fit setting": (lambda: fit(step=3), "BNN.fit: unknown setting `step`; known are guide, steps"),
    "patience alone": (lambda: fit(patience=3), "`patience` needs a validation score: pass `validation=Data(x, y)`"),
    "columns of x": (lambda: fit(x=torch.ones(6, 5)), "does not take inputs of shape (6, 5): "),
    "a layer's width": (lambda: fit_after(lambda layer, x: x @ torch.ones(3, 1)), "does not take inputs of shape"),
    "a bare assert": (lambda: fit_after(refuse_inputs), "does not take inputs of shape (6, 2): AssertionError"),
    "axes between layers": (lambda: fit_after(lambda layer, x: layer(x).view(7)), "(6, 2): shape '[7]' is inval"),
    "outputs of several axes": (
        lambda: fit_after(lambda layer, x: layer(x)[..., None], 2),
        "(N, ...) to one tensor (N",
    ),
    "several outputs": (lambda: fit_after(lambda layer, x: (layer(x), x)), "a complex tensor, or no tensor (tuple)"),
    "index beyond the rows of an embedding": (lambda: look_up(0, 1, 2, 0, 1, 3), "hold a"),
    "a mapping of targets": (lambda: fit(y={"a": X}), "`y` must be one array or tensor, got a dict of several"),
    "inputs of other names": (lambda: fit(x={"a": X}), "does not take inputs of shape a (6, 2)"),
    "not data": (lambda: bnn.fit(make_bnn(net()), X, bnn.SVI(), seed=0, progress=False), "Expected Data(x, y), a pair"),
    "loader without pairs": (lambda: fit(x=loader(X), y=None), "A loader must yield pairs (x, y), or mappings with"),
    "loader and batch_size": (lambda: fit(x=loader(X, Y), y=None, batch_size=2), "`batch_size` belongs to the"),
    "loader with NaN": (lambda: fit(x=loader(X / 0, Y), y=None), "`x` must be finite"),
    "NaN in a column": (lambda: fit(y=TWO / torch.tensor([1.0, 0.0])), "a likelihood of your own leave out"),
    "offset that is no column": (lambda: fit_with(likelihood=Poisson(offset="hours")), "The offset 'hours' of the"),
    "nothing to optimise": (lambda: fit_with(likelihood=Gaussian(1.0), guide=Nothing()), "There is nothing to"),
    "validation that does not fit": (lambda: fit(validation=bnn.Data(torch.ones(2, 3), torch.ones(2))), "The network"),
    # posterior and prediction
    "no draws": (lambda: regression().draw(0), "`num_draws` must be a whole number, at least 1, got 0"),
    "wrong columns": (lambda: regression().predict(X[:, :1]), "`x` must have shape (N, 2), got (6, 1)"),
    "NaN in new inputs": (lambda: regression().predict(X / 0), "`x` must be finite"),
    "no quantile levels": (lambda: regression().predict(X).quantile([]), "Quantile levels must lie between 0 and 1"),
    "quantile levels next to 0": (lambda: regression().predict(X).quantile([0.5, 1e-17]), "1e-15 away from 0 and 1"),
    "interval level": (lambda: regression().predict(X).interval(95.0), "`level` must lie between 0 and 1, got 95"),
    "classes of a regression": (lambda: regression().predict(X).class_probs, "Class probabilities need a"),
    "shape of targets": (lambda: regression().predict(X).log_prob(TWO), "must have the shape of the predictions, (6,)"),
    "label not whole": (lambda: classification().predict(X).log_prob(Y), "needs whole-number labels"),
    # diagnostics
    "audit of one draw": (lambda: bnn.elbo_report(regression(), bnn.Data(X, Y), num_draws=1), "`num_draws` must be at"),
}


def random_states():
    """The state of Python's own generator is left out: the type checks of the tests draw from it."""
    return torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()


@pytest.fixture
def _untouched(monkeypatch):
    """The test trains nothing, and leaves random states and Pyro's global parameter store as they were."""
    regression(), classification()

    def refuse(*args, **kwargs):
        pytest.fail("an optimiser step was taken")

    monkeypatch.setattr(torch.optim.Adam, "step", refuse)
    states, store = random_states(), dict(pyro.get_param_store().items())
    yield
    assert random_states() == states
    assert dict(pyro.get_param_store().items()) == store


@pytest.mark.usefixtures("_untouched")
@pytest.mark.parametrize("name", CASES)
def test_refused(name):
    call, message = CASES[name]
    with refused(re.escape(message)):
        call()


SVI, DATA = bnn.SVI(steps=1), bnn.Data(X, Y)
MIXED = r"data come before the method: \w+\(model, data, method, seed=0\)"
OF_TYPES = [
    (bnn.fit, (DATA, "NUTS"), 0, r"Unknown method 'NUTS'. Did you mean 'nuts'\?"),
    (bnn.fit, (DATA, bnn.NUTS), 0, r"Expected a method such as SVI\(...\), got <class '.*mcmc.NUTS'>: pass NUTS\(\)"),
    (bnn.fit, (DATA, "mean-field"), 0, r"'mean_field' is a guide, .* trains: pass bnn.SVI\(guide='mean_field'\)."),
    (bnn.fit, (DATA, guides.LowRank(rank=3)), 0, r"is a guide, .* pass bnn.SVI\(guide=bnn.guides.LowRank\(rank=3\)\)."),
    *((function, (SVI, data), 0, MIXED) for function in (bnn.fit, bnn.fit_replicates) for data in (DATA, (X, Y))),
    *((bnn.fit, (DATA, SVI), seed, "A seed must be a whole number, got") for seed in (1.5, "a", None, True)),
]


@pytest.mark.parametrize(("function", "arguments", "seed", "message"), OF_TYPES)
def test_what_types_enforce_at_every_call_is_refused_without_them(function, arguments, seed, message):
    """The function behind the annotation, which the tests would otherwise enforce first."""
    with refused(message):
        inspect.unwrap(function)(make_bnn(net()), *arguments, seed=seed)


def test_a_network_alone_is_no_model():
    """All that ask for a model say how a network becomes one."""
    data, svi = bnn.Data(X, Y), bnn.SVI(steps=1)
    for function, given in ((bnn.fit, {}), (bnn.fit_replicates, {"replicates": 2})):
        for network in (bnn.MLP(2, [5], 1), nn.Linear(2, 1)):
            with refused(rf"`{function.__name__}` takes .*, got .*: wrap the network, bnn.BNN\(network"):
                function(network, data, svi, **given)


def test_a_model_says_that_it_predicts_and_is_saved_after_a_fit():
    model = make_bnn(net())
    for name, call in (("predict", "posterior.predict(x)"), ("save", 'posterior.save("folder")')):
        assert not hasattr(model, name)
        said = re.escape(f"Fit the model first: posterior = bnn.fit(model, (x, y)), {call}.")
        with pytest.raises(AttributeError, match=said):
            getattr(model, name)(X)
    with pytest.raises(AttributeError, match="no attribute 'predicts'"):
        model.predicts(X)


def test_a_single_row_is_told_apart_from_a_single_feature():
    """Whatever takes inputs; the rank of images is one more."""
    one_feature = fit(X[:, :1], model=make_bnn(bnn.MLP(1, [3], 1)))
    images = torch.stack([X, X], 1)[:, None]  # (6, 1, 2, 2)
    flat = nn.Sequential(nn.Flatten(), nn.Linear(4, 1))
    of_images = fit(images, model=make_bnn(flat))
    takers = [taker for one in (regression(), classification()) for taker in (one.predict, one.predictor(2))]
    for take in takers:
        with refused(r"`x` must have shape \(N, 2\), got \(2,\): for one row pass x\[None\]\.$"):
            take(X[0])
    with refused(r"must have shape \(N, 1, 2, 2\), got \(1, 2, 2\): for one row pass x\[None\]"):
        of_images.predict(images[0])
    with refused(r"must have shape \(N, 1\), got \(6,\): for one feature pass x\[:, None\]\.$"):
        one_feature.predict(X[:, 0])
    with refused(r"must have shape \(N, 2\), got \(6,\)\.$"):
        regression().predict(Y)
    with refused(r"\(N, features\), got \(2,\): for one feature pass x\[:, None\], for one row pass x\[None\]\.$"):
        bnn.Data(X[0], Y[:1])


def test_options_of_a_setting_cannot_be_changed_and_classes_of_autoguides_are_settings():
    assert guides.resolve(AutoDelta) == guides.Auto("AutoDelta")
    options = Anything({"rank": 2}).options
    changes = (dict.update, {"rank": 3}), (dict.pop, "rank"), (dict.__setitem__, "rank", 3), (dict.__ior__, {"rank": 3})
    for change, *arguments in changes:
        with pytest.raises(TypeError, match="The options of a setting cannot be changed"):
            getattr(options, change.__name__)(*arguments)
    assert options == {"rank": 2}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bnn.NUTS(chains=2), "unknown setting `chains`; .* Did you mean 'num_chains'?"),
        (lambda: fit(sead=3), "BNN.fit: unknown setting `sead`; .* Did you mean 'seed'?"),
        (lambda: bnn.SVI(optimizer="admw"), "Unknown optimizer 'admw'. Did you mean 'adamw'?"),
        (lambda: bnn.SVI(optimizer={"type": "adam", "lrr": 1}), "adam: unknown setting `lrr`; .* Did you mean 'lr'?"),
        (lambda: bnn.MLP(1, [5], 1, activation="slu"), "or 'softplus', got 'slu'\\. Did you mean 'silu'\\?$"),
        (lambda: bnn.SVI(steps=np.ones((50, 40))), "`steps` must .*, got ndarray of shape \\(50, 40\\)$"),
        (lambda: bnn.SVI(guide="swag"), "Unknown guide 'swag'\\. It is a method: method='swag'\\. Known: auto"),
        (lambda: methods.resolve("laplace"), "Unknown method 'laplace'\\. It is a .*guide='laplace'"),
    ],
)
def test_settings_are_suggested_and_arrays_are_not_printed(call, message):
    with pytest.raises(bnn.InputError, match=message):
        call()


@pytest.mark.parametrize(
    ("labels", "outputs", "said"),
    [
        ([0, 1, 0, 1], 5, "No example has the label 2 or 3 or 4, and the network has 5 outputs"),
        ([0, 0, 2, 2], 3, "No example has the label 1, and"),
        ([0, 1, 2, 2], 3, None),
    ],
)
def test_classes_without_an_example_are_told(labels, outputs, said):
    model = bnn.BNN(bnn.MLP(1, [2], outputs), likelihood="categorical")
    data = bnn.Data(torch.arange(4.0)[:, None], torch.tensor(labels))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        bnn.fit(model, data, bnn.SVI(steps=2), seed=0, progress=False)
    told = [str(one.message) for one in caught if "No example has" in str(one.message)]
    assert [said in one for one in told] == ([] if said is None else [True])


@pytest.mark.parametrize("name", ["plots", "metrics", "diagnostics", "guides", "priors", "likelihoods", "datasets"])
def test_a_namespace_lists_its_members_alone(name):
    namespace = getattr(bnn, name)
    assert dir(namespace) == sorted(namespace.__all__)


@pytest.mark.parametrize(
    ("name", "near"), [("Regressor", "BNNRegressor"), ("Classifier", "BNNClassifier"), ("mlp", "MLP"), ("fitt", "fit")]
)
def test_a_name_that_the_package_lacks_gets_the_near_one(name, near):
    with pytest.raises(AttributeError, match=f"has no attribute '{name}'. Did you mean: '{near}'?"):
        getattr(bnn, name)
    assert not hasattr(bnn, "__path_of_nothing__")
