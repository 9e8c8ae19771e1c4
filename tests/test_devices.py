"""Every part keeps its tensors on the device of the model, and a training step does not wait for the device."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Trace_ELBO
from torch import nn

from pyrobnn._core.random import seeded
from pyrobnn._torch.devices import resolve_device
from pyrobnn._torch.pyro import local_parameters
from pyrobnn.distributions.latents import LatentBeta, LatentStudentT
from pyrobnn.distributions.targets import TargetStudentT
from pyrobnn.inference.capture.objective import ELBO


@pytest.mark.parametrize("every", [pytest.param(4, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.nightly)])
def test_every_part_runs_on_the_device_of_the_model_and_steps_hardly_read_from_it(every):
    """A device that is not there; a step reads one number at most."""
    script = Path(__file__).with_name("fake_accelerator.py")
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, script, str(every)], capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    elsewhere = json.loads(done.stdout.splitlines()[-1])
    assert elsewhere["cases"] > 90 // every
    assert elsewhere["failures"] == {}
    assert set(elsewhere["reads"]) > {"MLP", "ResNet-18"}
    assert max(elsewhere["reads"].values()) <= 1, elsewhere["reads"]


class Scores(pyro.nn.PyroModule):
    """A guide whose site "w" has a score function and whose site "v" has a pathwise derivative."""

    def __init__(self):
        super().__init__()
        self.logit, self.loc = nn.Parameter(torch.tensor(0.3)), nn.Parameter(torch.tensor([0.2, -0.4]))

    def forward(self, y):
        pyro.sample("w", dist.Bernoulli(logits=self.logit))
        pyro.sample("v", dist.Normal(self.loc, 0.5).to_event(1))


def model(y):
    w = pyro.sample("w", dist.Bernoulli(0.5))
    v = pyro.sample("v", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(v.sum() + w, 1.0), obs=y)


@pytest.mark.parametrize("num_particles", [1, 3])
def test_gradient_and_loss_are_those_of_pyro_for_score_functions_too(num_particles):
    y, found = torch.tensor([0.5, 1.5, -0.2]), []
    for elbo in (ELBO("mc", num_particles), Trace_ELBO(num_particles=num_particles)):
        with local_parameters():
            guide = Scores()
        with seeded(0), local_parameters():
            loss = elbo.differentiable_loss(model, guide, y)
        loss.backward()
        found.append([guide.logit.grad, guide.loc.grad, loss.detach()])
    for ours, pyros in zip(*found, strict=True):
        torch.testing.assert_close(ours, pyros, rtol=1e-5, atol=1e-5)
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
    assert found[0][0] != 0


@pytest.mark.parametrize("kind", [LatentStudentT, TargetStudentT])
@pytest.mark.parametrize("df", [0.5, 1.0, 1.5, 2.0, 2.5, 30.0])
def test_moments_of_students_t_are_those_of_torch(df, kind):
    arguments = (torch.tensor([df]), torch.tensor([0.3]), torch.tensor([0.7]))
    ours, theirs = kind(*arguments), torch.distributions.StudentT(*arguments)
    torch.testing.assert_close(ours.mean, theirs.mean, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(ours.variance, theirs.variance, rtol=0, atol=0, equal_nan=True)
    assert ours.expand((4,)).variance.shape == (4,)


def test_a_beta_variable_is_drawn_as_by_torch():
    draws = []
    for family in (LatentBeta, torch.distributions.Beta):
        with seeded(0):
            draws.append(family(torch.tensor(0.7), torch.tensor([2.0, 0.01])).rsample((1000,)))
    assert draws[0].shape == draws[1].shape == (1000, 2)
    torch.testing.assert_close(draws[0], draws[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("device", "products", "has_gpu", "expected"),
    [
        ("auto", 9_999.0, True, "cpu"),
        ("auto", 1e4, True, "cuda"),
        ("auto", 1e4, False, "cpu"),
        ("cpu", 1e4, True, "cpu"),
    ],
)
def test_auto_takes_a_gpu_for_networks_that_gain_by_it(device, products, has_gpu, expected, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    assert resolve_device(device, products).type == expected
