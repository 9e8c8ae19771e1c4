"""Predictions beside a plain loop of draws and forwards.

ResNet-18 (3 x 32 x 32), 784-400-400-10, an LSTM (28 rows of 28) and a vision transformer (four layers, width 64,
patches of 4 x 4), ten classes, float32, under a mean-field posterior of a few steps. "predict" is pyrobnn's, with its
class probabilities; "loop" draws weights of independent normals with torch.randn, runs the network with
torch.func.functional_call and takes the mean of softmax. CPU seconds of one thread, in one process by turns, medians
of the rounds after one that does not count; the ratio is the median of the rounds' ratios.
"""

import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor, nn
from torch.func import functional_call

import pyrobnn as bnn
from benchmarks.measures.harness import Options, each, plain_page, short
from benchmarks.networks import LSTM, VisionTransformer, resnet18
from benchmarks.rows import Row
from benchmarks.timing import by_turns

NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int, int]] = {
    "784-400-400-10": (bnn.MLP(784, (400, 400), 10).build, (784,), 1000, 100),
    "LSTM": (LSTM, (28, 28), 256, 20),
    "ViT": (VisionTransformer, (3, 32, 32), 64, 20),
    "ResNet-18": (resnet18, (3, 32, 32), 64, 4),
}
"""Network, shape of an example, inputs and draws."""

KEY = ("net",)
OPTIONS = {"rounds": 11, "nets": list(NETS)}


def loop(net: nn.Module, moments: dict[str, tuple[Tensor, Tensor]], x: Tensor, draws: int) -> Tensor:
    """Return class probabilities by a plain loop."""
    total = torch.zeros(len(x), 10)
    with torch.no_grad():
        for _ in range(draws):
            weights = {name: mean + std * torch.randn_like(mean) for name, (mean, std) in moments.items()}
            total += functional_call(net, weights, (x,)).softmax(-1)
    return total / draws


jobs = each("net", "nets")


def run(job: Row, options: Options) -> list[Row]:
    """Return a row."""
    make, shape, inputs, draws = NETS[job["net"]]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = make().eval()
    x, y = torch.randn(inputs, *shape), torch.randint(0, 10, (inputs,))
    model = bnn.BNN(net, prior=bnn.priors.Normal(1.0), likelihood="categorical")
    method = bnn.SVI(guide=bnn.guides.MeanField(init_rho=-5.0), steps=2, batch_size=8)
    data = bnn.Data(x[:16], y[:16], standardize=False)
    posterior = bnn.fit(model, data, method, seed=0, device="cpu", engine="eager", progress=False)
    moments = {name: pair for name, pair in posterior.guide.moments().items() if name in posterior.bnn.site_names}
    state = posterior.bnn.net.state_dict()
    net.load_state_dict({key: state.get(key, value) for key, value in net.state_dict().items()})
    works = {
        "predict": lambda: posterior.predict(x, num_draws=draws).class_probs,
        "loop": lambda: loop(net, moments, x, draws),
    }
    seconds = by_turns(works, options.rounds, clock=time.process_time)
    ratio = median(ours / theirs for ours, theirs in zip(*seconds.values(), strict=True))
    medians = {case: median(spent) for case, spent in seconds.items()}
    return [short(job | {"inputs": inputs, "draws": draws} | medians) | {"ratio": round(ratio, 2)}]


page = plain_page("Predictions beside a plain loop", "CPU seconds of one thread.", {"ratio": ".2f"})
