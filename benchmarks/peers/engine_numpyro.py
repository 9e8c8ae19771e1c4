# /// script
# requires-python = "==3.12.*"
# dependencies = ["numpyro==0.22.*", "jax==0.12.*", "numpy>=2"]
# ///
"""NumPyro: a plain model, one of its diagonal guides and Trace_ELBO, with `svi.update` run in one of two ways.

    engine_numpyro.py jit     jitted, and called from Python for each step
    engine_numpyro.py scan    jax.lax.scan over many steps in one jitted call; replicates are vmapped over seeds

The guide is the faster of NumPyro's two diagonal ones: AutoDiagonalNormal, with one flat site, for a single small net,
else AutoNormal; both have scales softplus(rho). The state is donated, so that it is updated in place. The rows of a
mini-batch are drawn inside the compiled step. XLA flushes denormals by itself, and takes its threads from the affinity
of the process.
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array, lax, random
from numpyro.infer import SVI, Predictive, Trace_ELBO
from numpyro.infer.autoguide import AutoDiagonalNormal, AutoGuide, AutoNormal
from numpyro.infer.initialization import init_to_value

from benchmarks.peers import cases
from benchmarks.peers.protocol import Built, serve

_FLAT_IS_FASTER = 5_000
_WORK_OF_A_SCAN = 4e8
_LONGEST_SCAN = 1000


class ScaleMixture(dist.Distribution):
    """pi N(0, sigma1^2) + (1 - pi) N(0, sigma2^2), with the log density in one elementwise expression."""

    support = dist.constraints.real

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draw from the mixture."""
        which, noise = random.split(key)
        shape = sample_shape + self.batch_shape
        scale = jnp.where(random.bernoulli(which, cases.PI, shape), cases.SIGMA1, cases.SIGMA2)
        return scale * random.normal(noise, shape)

    def log_prob(self, value: Array) -> Array:
        """Return the log density."""
        wide = jnp.log(cases.PI) + dist.Normal(0.0, cases.SIGMA1).log_prob(value)
        narrow = jnp.log(1 - cases.PI) + dist.Normal(0.0, cases.SIGMA2).log_prob(value)
        return jnp.logaddexp(wide, narrow)


def make_model(case: cases.Case) -> Callable[..., Array]:
    """Return the model of a case: takes a batch, draws weights and observes the targets."""
    net = cases.layers(case)

    def model(x: Array, y: Array | None = None) -> Array:
        f = x
        for index, layer in enumerate(net):
            f = _apply(layer, f, _draw_weights(layer, index))
        f = f[:, 0] if case.task == "regression" else f
        likelihood = dist.Normal(f, cases.NOISE) if case.task == "regression" else dist.Categorical(logits=f)
        with numpyro.handlers.scale(scale=case.num_data / len(x)):
            numpyro.sample("y", likelihood.to_event(1), obs=y)
        return f

    return model


def _draw_weights(layer: cases.Layer, index: int) -> tuple[Array, ...]:
    if not layer.has_weights:
        return ()
    shapes = {"weight": layer.weight_shape, "bias": (layer.outputs,)}
    return tuple(
        numpyro.sample(f"{index}.{name}", ScaleMixture(batch_shape=shape).to_event(len(shape)))
        for name, shape in shapes.items()
    )


def _apply(layer: cases.Layer, x: Array, weights: tuple[Array, ...]) -> Array:
    if layer.kind == "dense":
        return x @ weights[0].T + weights[1]
    if layer.kind == "conv":
        padding = [(layer.padding, layer.padding)] * 2
        axes = ("NHWC", "OIHW", "NHWC")  # channels last is XLA's faster layout on a CPU
        return lax.conv_general_dilated(x, weights[0], (1, 1), padding, dimension_numbers=axes) + weights[1]
    if layer.kind == "pool":
        window = (1, layer.size, layer.size, 1)
        return lax.reduce_window(x, -jnp.inf, lax.max, window, window, "VALID")
    return x.reshape(len(x), -1) if layer.kind == "flatten" else jax.nn.relu(x)


def make_guide(case: cases.Case, model: Callable[..., Array]) -> AutoGuide:
    """Return a guide that starts where every engine starts."""
    indices = [index for index, layer in enumerate(cases.layers(case)) if layer.has_weights]
    start = {
        f"{index}.{name}": value
        for index, pair in zip(indices, cases.initial_weights(case), strict=True)
        for name, value in zip(("weight", "bias"), pair, strict=True)
    }
    flat = case.num_weights < _FLAT_IS_FASTER and case.replicates == 1
    guide = AutoDiagonalNormal if flat else AutoNormal
    return guide(model, init_loc_fn=init_to_value(values=start), init_scale=cases.INIT_SCALE)


class Inference:
    """A case for NumPyro: data on the device, the SVI object and its step."""

    def __init__(self, case: cases.Case) -> None:
        if case.device == "cuda":
            raise NotImplementedError("the pinned build of JAX is for the CPU")
        self.case = case
        x, y = cases.make_data(case)
        self.x, self.y = jnp.asarray(np.moveaxis(x, 1, -1)), jnp.asarray(y)
        self.model = make_model(case)
        self.guide = make_guide(case, self.model)
        self.svi = SVI(self.model, self.guide, numpyro.optim.Adam(cases.LEARNING_RATE), Trace_ELBO())
        self._init = jax.jit(self.svi.init)

    def init(self, key: Array) -> tuple[Any, Array]:
        """Return the state of SVI and the key from which mini-batches are drawn."""
        return self._init(key, self.x, self.y), random.fold_in(key, 1)

    def step(self, carry: tuple[Any, Array], x: Array, y: Array) -> tuple[tuple[Any, Array], Array]:
        """Do a step on random rows, and return the new state and the loss."""
        state, key = carry
        if self.case.batch_size is not None:
            key, subkey = random.split(key)
            rows = random.randint(subkey, (self.case.batch_size,), 0, self.case.num_data)
            x, y = x[rows], y[rows]
        state, loss = self.svi.update(state, x, y)
        return (state, key), loss


class JittedSteps:
    """Steps of a case, each a call of a jitted function."""

    def __init__(self, case: cases.Case) -> None:
        self._inference = Inference(case)
        self._step = jax.jit(self._inference.step, donate_argnums=0)
        self._carry = self._inference.init(random.PRNGKey(cases.SEED))
        self._loss = jnp.nan

    def run(self, num_steps: int) -> int:
        """Do that many steps."""
        for _ in range(num_steps):
            self._carry, self._loss = self._step(self._carry, self._inference.x, self._inference.y)
        jax.block_until_ready(self._carry)
        return num_steps

    def elbo(self) -> float:
        """Return the last estimate."""
        return -float(self._loss)


class ScannedSteps:
    """Steps of a case, many in a call; several replicates side by side."""

    def __init__(self, case: cases.Case) -> None:
        self._inference = inference = Inference(case)
        self._length = int(min(_LONGEST_SCAN, max(4, _WORK_OF_A_SCAN / case.work)))

        def scan(carry: Any, x: Array, y: Array) -> tuple[Any, Array]:
            return lax.scan(lambda carry, _: inference.step(carry, x, y), carry, length=self._length)

        if case.replicates > 1:
            scan = jax.vmap(scan, in_axes=(0, None, None))
            self._carry = jax.vmap(inference.init)(random.split(random.PRNGKey(cases.SEED), case.replicates))
        else:
            self._carry = inference.init(random.PRNGKey(cases.SEED))
        self._scan = jax.jit(scan, donate_argnums=0)
        self._losses = jnp.empty(0)

    def run(self, num_steps: int) -> int:
        """Do as many calls as give that many steps."""
        calls = -(-num_steps // self._length)
        for _ in range(calls):
            self._carry, self._losses = self._scan(self._carry, self._inference.x, self._inference.y)
        jax.block_until_ready(self._carry)
        return calls * self._length

    def elbo(self) -> float:
        """Return the mean over the last call."""
        return -float(self._losses.mean())


def make_predict(inference: Inference, num_draws: int) -> Callable[[Array, Any, Array], tuple[Array, Array]]:
    """Return the jitted prediction by `Predictive`: mean and standard deviation of the targets at each input."""

    def predict(key: Array, params: Any, x: Array) -> tuple[Array, Array]:
        draw, push = random.split(key)
        weights = Predictive(inference.guide, params=params, num_samples=num_draws)(draw, x)
        seeded = numpyro.handlers.seed
        f = jax.vmap(lambda w: seeded(numpyro.handlers.substitute(inference.model, w), push)(x))(weights)
        f = jax.nn.softmax(f) if inference.case.task == "classification" else f
        return f.mean(0), jnp.sqrt(f.var(0) + cases.NOISE**2)

    return jax.jit(predict)


class Predictions:
    """Predictions of a case, with new draws each time."""

    def __init__(self, case: cases.Case) -> None:
        inference = Inference(case)
        step = jax.jit(inference.step)
        carry = inference.init(random.PRNGKey(cases.SEED))
        for _ in range(cases.STEPS_BEFORE_PREDICTION):
            carry, _ = step(carry, inference.x, inference.y)
        self._predict = make_predict(inference, cases.NUM_DRAWS)
        self._key, self._params = random.PRNGKey(cases.SEED + 1), inference.svi.get_params(carry[0])
        self._x = jnp.asarray(cases.prediction_inputs())

    def run(self, num_steps: int) -> int:
        """Predict that many times."""
        for _ in range(num_steps):
            self._key, subkey = random.split(self._key)
            jax.block_until_ready(self._predict(subkey, self._params, self._x))
        return num_steps

    def elbo(self) -> None:
        """A prediction has none."""


def build(case: cases.Case, mode: str) -> Built:
    """Build a case whose steps are jitted one by one ("jit"), or scanned ("scan")."""
    if case.kind == "predict":
        return Predictions(case)
    return {"jit": JittedSteps, "scan": ScannedSteps}[mode](case)


if __name__ == "__main__":
    serve(partial(build, mode=sys.argv[1]), ("numpyro", "jax", "jaxlib", "numpy"))
