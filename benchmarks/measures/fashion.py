"""A small ResNet on Fashion-MNIST by seven methods: scores on test images, on noisy images, and on digits.

ResNet-18 with 8 channels in place of 64 has 176,258 weights. Each method trains on 8,000 of the 10,000 images of the
test part of Fashion-MNIST, each moved by up to two pixels whenever it is seen, and is scored on the other 2,000. Rates,
priors and passes are those of LeNet-5 on MNIST (`measure lenet`), and nothing was chosen on these images. So the rows
compare methods, with one seed each, and are far from what a tuned network reaches with all training images. The ELBO
of mean-field still rises when its passes end: its row is a bound on what that cost buys, not on the method.

Members of the ensemble are points of seeds 0, 1, and so on. Seconds of a row leave out points that were kept.

`NLL, noise s` is for images with normal noise of standard deviation s, pixels from 0 to 1. `AUROC` says how well the
entropy tells 2,000 digits of MNIST from the clothes: the chance that it is larger for a digit.
"""

from pathlib import Path
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor, nn

import pyrobnn as bnn
from benchmarks.measures.harness import Options, plain_page
from benchmarks.moved_images import WAYS, Moved, class_probs, scored
from benchmarks.networks import resnet18
from benchmarks.rows import Row
from benchmarks.timing import timed

KEY = ("method", "seed")
ENSEMBLE, LAST_LAYER = "ensemble", "Laplace, last layer"
METHODS = ["point", ENSEMBLE, LAST_LAYER, *(name for name in WAYS if name != "point")]
OPTIONS: dict[str, Any] = {
    "methods": METHODS,
    "members": 3,
    "keep": {"default": "runs/fashion", "help": "folder of the points, runs/fashion by default"},
}
NOISE = (0.1, 0.3)
NUM_TEST = 2000


def network() -> nn.Module:
    """Return the network, for rows of 784 pixels."""
    body = resnet18(8)
    body[0] = nn.Conv2d(1, 8, 3, padding=1, bias=False)
    return nn.Sequential(nn.Unflatten(1, (1, 28, 28)), *body)


def images() -> tuple[bnn.Data, bnn.Data]:
    """Return the images to train on and those to score on."""
    data = bnn.datasets.load("fashion-mnist-test").data
    return bnn.Data(data.x, data.y).split(NUM_TEST / len(data), seed=0)


def digits() -> Tensor:
    """Return the first test images of MNIST."""
    pixels: Tensor = bnn.datasets.load("mnist").split(0)[1].x[:NUM_TEST]
    return pixels


def fitted(name: str, seed: int, options: Options) -> bnn.Posterior:
    """Return a fit of one network; a point that is kept comes at once."""
    way, (train, _) = WAYS[name], images()
    epoch = Moved(train, seed)
    model = bnn.BNN(network, prior=bnn.priors.Normal(way.scale), likelihood="categorical")
    loader = bnn.Loader(epoch, num_data=len(train))
    kept = Path(options.keep) / str(seed) if name == "point" else None
    return bnn.fit(model, loader, way.method(steps=way.epochs * len(epoch)), seed=seed, checkpoint=kept)


def posteriors(name: str, options: Options) -> list[bnn.Posterior]:
    """Return the members of an ensemble, or a single fit."""
    if name == f"ensemble of {options.members}":
        return [fitted("point", seed, options) for seed in range(options.members)]
    if name != LAST_LAYER:
        return [fitted(name, 0, options)]
    mode = fitted("point", 0, options)
    guide = bnn.guides.Laplace(structure="kron", sites=("last_layer",))
    return [guide.around(mode.bnn, images()[0], weights=mode.mean(), progress=False)]


def jobs(options: Options) -> list[Row]:
    """Return a row for each method."""
    labels = {ENSEMBLE: f"ensemble of {options.members}"}
    return [{"method": labels.get(name, name), "seed": 0} for name in options.methods]


def run(job: Row, options: Options) -> list[Row]:
    """Fit, predict, score."""
    torch.set_num_threads(1)
    name = job["method"]
    members, seconds, cpu = timed(lambda: posteriors(name, options))

    def probs(x: Any) -> Tensor:
        return torch.stack([class_probs(member, x) for member in members]).mean(0)

    _, test = images()
    generator = torch.Generator().manual_seed(0)
    clean = probs(test.x)
    row = job | scored(clean, test.y)
    for sd in NOISE:
        noisy = (test.x + sd * torch.randn(test.x.shape, generator=generator)).clamp(0, 1)  # type: ignore[union-attr]
        row[f"NLL, noise {sd}"] = scored(probs(noisy), test.y)["NLL"]
    inside, outside = (bnn.Prediction(dist.Categorical(probs=p[None])) for p in (clean, probs(digits())))
    row["AUROC"] = round(bnn.score_ood(inside, outside, by="entropy")["auroc_entropy"].value, 4)
    return [row | {"fit, s": round(seconds, 1), "fit, CPU s": round(cpu, 1)}]


page = plain_page("A small ResNet on Fashion-MNIST", "Seconds are beside other work on the machine.", {})
