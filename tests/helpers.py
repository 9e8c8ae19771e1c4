"""What tests of several files share."""

import contextlib
import re
import sys
from pathlib import Path

import jaxtyping
import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

import pyrobnn as bnn
from pyrobnn._core.errors import NotCapturable
from pyrobnn._core.tree_files import digest, read_tree
from pyrobnn._torch.pyro import local_parameters
from pyrobnn.distributions.units import Scaler

ESTIMATOR = {"net": bnn.MLP(hidden=(3,), dtype="float64"), "engine": "eager", "random_state": 0, "num_draws": 5}
"""Settings of a quick estimator."""


def quick(model, method, data, **settings):
    """Fit without a choice of the engine and without a bar."""
    return bnn.fit(model, data, method, **({"seed": 0, "engine": "eager", "progress": False} | settings))


def at_normal(model, data, mean, root, *, seed=0):
    """A posterior whose guide is the normal distribution of this mean and root of the covariance, in float64."""
    own, example, one = model.fresh(), (data.x[:1], data.y[:1]), Scaler.identity()
    with local_parameters():
        guide = bnn.guides.FullRank().build(own, *example)
    guide.loc.data, guide.rho.data = mean, root.diagonal().expm1().log()
    guide.factor.data = root / root.diagonal()[:, None]
    return bnn.Posterior(own, guide, example=example, x_scaler=one, y_scaler=one, seed=seed)


def without_tapes(monkeypatch):
    """Let recorded steps run operation by operation, as where there is no C++ compiler."""

    def refuse(graph, inputs):
        raise NotCapturable("no tape here")

    monkeypatch.setattr("pyrobnn.inference.capture.graph.Tape", refuse)


def typed(task, job):
    """The settings of a job of a task of benchmarks."""
    return task.Settings.model_construct(**job, folder=Path())


def run(task, job, keep=None):
    """The rows of a job of a task of benchmarks."""
    return task.run(typed(task, job), keep)


def outcome(folder):
    """The scores of a run, and a digest of the tensors of its posterior."""
    tree = read_tree(folder / "posterior")
    parts = [each[part] for each in tree.get("members", [tree]) for part in ("model_state", "guide_state")]
    return (folder / "metrics.json").read_bytes(), digest([part[name] for part in parts for name in sorted(part)])


@contextlib.contextmanager
def full_disk(most):
    """The system refuses files of more than `most` bytes, in this process alone. Modules that are imported are not
    compiled to files: cut off, they would fail in every later process."""
    import resource

    limits, compiled = resource.getrlimit(resource.RLIMIT_FSIZE), sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        sys.dont_write_bytecode = compiled


class Branching(torch.nn.Sequential):
    """A network that vmap and the recording of steps do not take: it doubles outputs whose sum is too small."""

    least = 0.0

    def forward(self, x):
        f = super().forward(x)
        return f if bool(f.sum() > self.least) else 2 * f


class Net(torch.nn.Module):
    """A network of layers, parameters and other attributes by name, and a function of it and of the inputs."""

    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args, **kwargs):
        return self.function(self, *args, **kwargs)


class Fixed(TorchFunctionMode):
    """Gives the parts of one vector for the normal draws, in order."""

    def __init__(self, noise):
        super().__init__()
        self.rest = noise

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is not torch.randn_like:
            return func(*args, **(kwargs or {}))
        size = args[0].numel()
        noise, self.rest = self.rest[:size], self.rest[size:]
        return noise.view(args[0].shape)


def block_covariance(guide):
    """The covariance of all weights under blocks of a Gaussian, in the order of the sites, in double precision."""
    sizes = {name: part.numel() for name, part in guide.points_by_name().items()}
    starts = dict(zip(sizes, np.cumsum([0, *sizes.values()])[:-1], strict=True))
    whole = torch.zeros(sum(sizes.values()), sum(sizes.values()), dtype=torch.float64)
    for block in guide.gaussian_blocks():
        index = torch.cat([torch.arange(starts[name], starts[name] + sizes[name]) for name in block.shapes])
        root = block.root(torch.eye(len(index), dtype=torch.float64))
        whole[index[:, None], index] = root @ root.T
    return whole


def labelled(axis, label):
    """The one artist of an axis with a label."""
    (found,) = [artist for artist in axis.get_children() if artist.get_label() == label]
    return found


def edges(band, x):
    """Lowest and highest y of a filled band at each x."""
    vertices = band.get_paths()[0].vertices
    columns = [vertices[np.isclose(vertices[:, 0], value), 1] for value in x]
    return np.array([c.min() for c in columns]), np.array([c.max() for c in columns])


@contextlib.contextmanager
def refused(match):
    """Expect an `InputError` of this message; where types are checked at every call, a hint may refuse before it."""
    with pytest.raises((bnn.InputError, jaxtyping.TypeCheckError)) as caught:
        yield
    if isinstance(caught.value, bnn.InputError):
        assert re.search(match, str(caught.value))
