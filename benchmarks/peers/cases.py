"""The problems of the benchmark as plain data: networks, data sets and cases. Standard library and numpy only.

Every engine gets the same inputs, targets and starting weights, made here from a fixed seed.
"""

import math
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np

PI, SIGMA1, SIGMA2 = 0.5, 1.5, 0.1
"""The prior of every weight: pi N(0, sigma1^2) + (1 - pi) N(0, sigma2^2)."""
NOISE = 0.1
"""Standard deviation of the targets in regression."""
INIT_RHO = -3.0
INIT_SCALE = math.log1p(math.exp(INIT_RHO))
"""Starting standard deviation of the guide, softplus(rho)."""
LEARNING_RATE = 0.01
SEED = 0
LENET = (1, 28, 28)
"""Input shape of the convolutional net."""


@dataclass(frozen=True)
class Layer:
    """A layer of a network.

    Attributes:
        kind: what it does; only "dense" and "conv" have weights.
        inputs: features or channels that come in.
        outputs: features or channels that go out.
        size: edge of the kernel ("conv", "pool").
        padding: zeros at each edge ("conv").
    """

    kind: Literal["dense", "conv", "relu", "pool", "flatten"]
    inputs: int = 0
    outputs: int = 0
    size: int = 0
    padding: int = 0

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Shape of the weight as PyTorch keeps it: outputs first."""
        shape = (self.outputs, self.inputs)
        return shape if self.kind == "dense" else (*shape, self.size, self.size)

    @property
    def has_weights(self) -> bool:
        """Whether the layer has a weight and a bias."""
        return self.kind in ("dense", "conv")


@dataclass(frozen=True)
class Case:
    """A case of the benchmark: what is timed.

    Attributes:
        name: unique name.
        kind: what is timed: one SVI step, one prediction, or the first step of a new process.
        widths: units of each layer of a dense net, inputs first; empty for the convolutional net.
        num_data: examples in the training set, N.
        batch_size: examples in a step, B; None for all of them.
        threads: cores that an engine may use.
        task: Normal(f, 0.1) targets, or Categorical(logits).
        replicates: independent fits advanced by one step.
        device: "cpu" or "cuda".
    """

    name: str
    kind: Literal["step", "predict", "compile"] = "step"
    widths: tuple[int, ...] = ()
    num_data: int = 32
    batch_size: int | None = None
    threads: int = 1
    task: Literal["regression", "classification"] = "regression"
    replicates: int = 1
    device: str = "cpu"

    @property
    def rows(self) -> int:
        """Examples in a step."""
        return self.batch_size or self.num_data

    @property
    def num_weights(self) -> int:
        """Weights and biases of the network."""
        return sum(math.prod(layer.weight_shape) + layer.outputs for layer in layers(self) if layer.has_weights)

    @property
    def work(self) -> int:
        """Rough number of multiplications in a forward pass, to choose how many steps go between two clock readings."""
        reuse = 1 if self.widths else 10
        return self.num_weights * self.rows * self.replicates * reuse

    def to_dict(self) -> dict[str, Any]:
        """Return the case as JSON can hold it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Case":
        """Return the case that `to_dict` wrote."""
        return cls(**{**values, "widths": tuple(values["widths"])})


def layers(case: Case) -> list[Layer]:
    """Return the layers of a case's network: dense with ReLU between, or a LeNet-5."""
    if not case.widths:
        conv = [Layer("conv", 1, 6, 5, 2), Layer("relu"), Layer("pool", size=2)]
        conv += [Layer("conv", 6, 16, 5), Layer("relu"), Layer("pool", size=2), Layer("flatten")]
        return conv + _dense((16 * 5 * 5, 120, 84, 10))
    return _dense(case.widths)


def _dense(widths: tuple[int, ...]) -> list[Layer]:
    made: list[Layer] = []
    for inputs, outputs in pairwise(widths):
        made += [Layer("dense", inputs, outputs), Layer("relu")]
    return made[:-1]


def initial_weights(case: Case, seed: int = SEED) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return weight and bias of each layer that has them, uniform on +-1/sqrt(fan-in) as PyTorch starts its layers."""
    rng = np.random.default_rng((seed, 1))
    drawn = []
    for layer in layers(case):
        if layer.has_weights:
            bound = 1 / math.sqrt(math.prod(layer.weight_shape[1:]))
            shapes = (layer.weight_shape, (layer.outputs,))
            weight, bias = (rng.uniform(-bound, bound, shape).astype(np.float32) for shape in shapes)
            drawn.append((weight, bias))
    return drawn


def make_data(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Return the training set: inputs (N, *in) in float32, targets (N,) in float32 or, for labels, int64."""
    rng = np.random.default_rng((SEED, 0))
    shape = case.widths[:1] or LENET
    if shape == (1,):
        x = np.linspace(-0.5, 0.5, case.num_data)[:, None]
        y = np.sin(2 * np.pi * x[:, 0]) + NOISE * rng.standard_normal(case.num_data)
        return x.astype(np.float32), y.astype(np.float32)
    x = rng.standard_normal((case.num_data, *shape), dtype=np.float32)
    first = x.reshape(case.num_data, -1)[:, :10]
    if case.task == "classification":
        return x, first.argmax(1).astype(np.int64)
    y = np.sin(first).sum(1) / math.sqrt(first.shape[1]) + NOISE * rng.standard_normal(case.num_data)
    return x, y.astype(np.float32)


STEPS_BEFORE_PREDICTION, NUM_DRAWS = 50, 500
"""Steps of the fit that predicts, and posterior draws of a prediction."""


def prediction_inputs() -> np.ndarray:
    """Return the 1000 inputs of the prediction case, (1000, 1)."""
    return np.linspace(-1, 1, 1000, dtype=np.float32)[:, None]


SINE = (1, 20, 20, 1)
UCI = (13, 50, 1)
_IMAGES = {"num_data": 10_000, "batch_size": 128, "threads": 2, "task": "classification"}
_HIDDEN = {"1e2": 4, "1e3": 24, "1e4": 91, "1e5": 307, "1e6": 991, "1e7": 3153}
"""Units h for which 16-h-h-1 has about that many weights."""

MAIN = (
    Case("sine", widths=SINE),
    Case("uci", widths=UCI, num_data=455, batch_size=100),
    Case("mlp400", widths=(784, 400, 400, 10), **_IMAGES),
    Case("mlp1200", widths=(784, 1200, 1200, 10), **_IMAGES),
    Case("lenet", **_IMAGES),
    Case("replicates", widths=SINE, replicates=20),
    Case("predict", "predict", widths=SINE, threads=2),
    Case("compile", "compile", widths=SINE),
)
GROWTH = (
    *(
        Case(f"weights-{size}", widths=(16, h, h, 1), num_data=10_000, batch_size=100, threads=1 + (float(size) > 1e5))
        for size, h in _HIDDEN.items()
    ),
    *(
        Case(f"batch-{size}", widths=UCI, num_data=10_000, batch_size=size, threads=1 + (size >= 10_000))
        for size in (1, 10, 100, 1_000, 10_000)
    ),
    *(Case(f"replicates-{number}", widths=SINE, replicates=number) for number in (1, 2, 5, 10, 20, 50, 100)),
)
GPU = tuple(
    replace(case, name=f"{case.name}-gpu", device="cuda", threads=2)
    for case in MAIN
    if case.name in ("sine", "mlp400", "mlp1200", "lenet")
)
CASES = {case.name: case for case in (*MAIN, *GROWTH, *GPU)}
