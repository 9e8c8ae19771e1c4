"""Ctrl-C during a fit: the fit so far, a checkpoint, or the interrupt, but never a half-done step."""

import os
import signal
import warnings

import pytest
import torch
from torch import nn

import pyrobnn as bnn
from pyrobnn.inference.training import loop

DATA = bnn.datasets.sinusoid()
LIKELIHOOD = bnn.likelihoods.Gaussian(scale=0.1)
pytestmark = pytest.mark.usefixtures("interrupts_arrive")


class Net(nn.Sequential):
    """A network that sends the process SIGINT in one of its calls."""

    def __init__(self, call=None):
        super().__init__(nn.Linear(1, 5), nn.Tanh(), nn.Linear(5, 1))
        self.calls_left = call

    def forward(self, x):
        if self.calls_left is not None:
            self.calls_left -= 1
            if self.calls_left == 0:
                os.kill(os.getpid(), signal.SIGINT)
        return super().forward(x)


def model(net=None):
    return bnn.BNN(net or bnn.MLP(1, [5], 1), prior=bnn.priors.Normal(1.0), likelihood=LIKELIHOOD)


def stop_at(step):
    def stop(progress):
        if progress.step >= step:
            raise KeyboardInterrupt

    return stop


def fit(method, *, net=None, **arguments):
    return bnn.fit(model(net), DATA, method, seed=0, progress=False, **arguments)


def interrupted(method, words, **arguments):
    """Return the fit that its interrupt left, after its only warning."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", bnn.PoorFitWarning)
        posterior = fit(method, **arguments)
    (only,) = found
    assert str(only.message).startswith(f"The fit has not converged: it was {words}")
    return posterior


def assert_same(one, other):
    for name, value in one.guide.state_dict().items():
        assert torch.equal(value, other.guide.state_dict()[name]), name


@pytest.mark.parametrize("engine", ["eager", "captured"])
def test_an_interrupt_leaves_the_fit_so_far(engine):
    reason = "stopped by Ctrl-C after step 100"
    stopped = interrupted(bnn.SVI(steps=500), reason, engine=engine, callbacks=[stop_at(100)])
    assert (stopped.record.stopped_by, stopped.record.stop_reason) == ("Ctrl-C", reason)
    shorter = fit(bnn.SVI(steps=100), engine=engine)
    assert_same(stopped, shorter)
    assert (stopped.history.elbo == shorter.history.elbo).all()


@pytest.fixture
def step_by_step(monkeypatch):
    """Interrupts are looked for after each step, not after a tenth of a second of steps."""
    monkeypatch.setattr(loop, "_TURN", 0.0)


@pytest.mark.usefixtures("step_by_step")
def test_a_signal_within_a_step_waits_for_its_end():
    before = signal.getsignal(signal.SIGINT)
    torch.manual_seed(0)
    stopped = interrupted(bnn.SVI(steps=2000), "stopped by Ctrl-C after step", net=Net(call=40), engine="eager")
    assert signal.getsignal(signal.SIGINT) is before
    num_steps = len(stopped.history)
    assert 1 < num_steps < 50
    torch.manual_seed(0)
    assert_same(stopped, fit(bnn.SVI(steps=num_steps), net=Net(), engine="eager"))


@pytest.mark.parametrize("guide", ["map", "laplace"])
def test_an_interrupt_of_l_bfgs_leaves_the_point_so_far(guide):
    method = bnn.SVI(guide=guide, tolerance=1e-12)
    stopped = interrupted(method, "stopped by Ctrl-C after step 100", callbacks=[stop_at(100)])
    assert "L-BFGS" in stopped.record.engine.reason
    assert not stopped.record.convergence.converged
    assert stopped.history.elbo[-1] > stopped.history.elbo[0]


def test_a_checkpoint_of_an_interrupt_goes_on_to_the_same_bits(tmp_path):
    def same_call(callbacks=()):
        return fit(bnn.SVI(steps=300, batch_size=10), engine="captured", checkpoint=tmp_path, callbacks=callbacks)

    words = f"stopped by Ctrl-C after step 150. Its state is kept in {tmp_path}: the same call goes on from there."
    with pytest.raises(KeyboardInterrupt) as caught:
        same_call([stop_at(150)])
    assert words in str(caught.value)
    steps = []
    resumed = same_call([lambda progress: steps.append(progress.step)])
    assert steps == [200, 250, 300]
    assert_same(resumed, fit(bnn.SVI(steps=300, batch_size=10), engine="captured"))


@pytest.mark.usefixtures("step_by_step")
def test_a_checkpoint_within_a_block_goes_on_to_the_same_bits(tmp_path):
    def call(net, **arguments):
        torch.manual_seed(0)
        return fit(bnn.SVI(steps=120), net=net, engine="eager", **arguments)

    with pytest.raises(KeyboardInterrupt, match=r"after step [1-4]?\d\. Its state is kept"):
        call(Net(call=40), checkpoint=tmp_path)
    resumed = call(Net(), checkpoint=tmp_path)
    assert_same(resumed, call(Net()))
    assert len(resumed.history) == 120


OTHERS = {
    "ensemble": {"method": bnn.Ensemble(bnn.SVI(guide="map", steps=500), members=2), "callbacks": [stop_at(50)]},
    "swag": {"method": bnn.SWAG(bnn.SVI(guide="map", steps=500)), "callbacks": [stop_at(50)]},
    "before the first step": {"method": bnn.SVI(steps=100), "net": Net(call=1), "engine": "eager"},
}


@pytest.mark.parametrize("name", OTHERS)
def test_an_interrupt_of_other_methods_or_before_the_first_step_goes_through(name):
    with pytest.raises(KeyboardInterrupt):
        fit(**OTHERS[name])


def test_replicates_estimators_and_folds_stop_at_once(monkeypatch):
    """In place of the fit so far, from which a search over parameters would go on."""

    def stop(*_, **__):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bnn.fit_replicates(model(), DATA, bnn.SVI(steps=99), replicates=2, progress=False, callbacks=[stop_at(50)])
    x, y = DATA.x.numpy(), DATA.y.numpy()
    fitted = bnn.BNNRegressor(bnn.MLP(hidden=[3]), guide="mean_field", steps=20, engine="eager").fit(x, y)
    before = fitted.posterior_
    monkeypatch.setattr(bnn.SVI, "infer", stop)
    with pytest.raises(KeyboardInterrupt):
        fitted.partial_fit(x, y)
    assert fitted.posterior_ is before
    with pytest.raises(KeyboardInterrupt):
        bnn.kfold(model(), DATA, bnn.SVI(steps=20), progress=False)


def test_handlers_of_the_caller_stay():
    class Own(Exception):
        pass

    def raise_own(*_):
        raise Own

    before = signal.signal(signal.SIGINT, raise_own)
    try:
        with pytest.raises(Own):
            fit(bnn.SVI(steps=2000), net=Net(call=40), engine="eager")
    finally:
        signal.signal(signal.SIGINT, before)
