"""Networks of today: a half-precision body, adapters, pixels, ResNet-50, BERT, accumulated batches, and 1,000 classes.

Each has random weights, is fitted on the card and saved. BERT-base with LoRA has a row where transformers and peft are
installed; ResNet-50 needs torchvision. `difference` is the largest difference of predictions at the posterior mean from
those of the same posterior, loaded on a CPU; it `holds` below 0.002, or 0.02 with a bfloat16 body. "accumulated" has
the difference between points after steps of one batch and after steps that average four quarters of it.
"""

import tempfile
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import pyrobnn as bnn
from benchmarks.gpu import Checks, measure_of, size
from benchmarks.measures.harness import Options
from benchmarks.networks import resnet18
from benchmarks.rows import Row
from benchmarks.timing import milliseconds

CLOSE, CLOSE_IN_HALF = 2e-3, 2e-2
KRONECKER = bnn.guides.Laplace(structure="kron")


class Adapted(nn.Module):
    """A frozen linear layer and a product of two narrow matrices beside it (Hu et al. 2022)."""

    def __init__(self, inputs: int, outputs: int, rank: int = 4) -> None:
        super().__init__()
        self.body = nn.Linear(inputs, outputs).requires_grad_(requires_grad=False)
        self.down, self.up = nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of both."""
        return self.body(x) + self.up(self.down(x))


type Problem = tuple[nn.Module, Any]
"""A network, and its inputs."""


def images(options: Options) -> Tensor:
    """Return images of 3 x 32 x 32."""
    return torch.randn(size(options, 512, 32), 3, 32, 32)


def half_body(options: Options) -> Problem:
    """Return a frozen ResNet-18 in bfloat16 and a head in float32."""
    width = size(options, 64, 8)
    body = resnet18(width)[:-1].to(torch.bfloat16).eval().requires_grad_(requires_grad=False)
    return nn.Sequential(body, nn.Linear(8 * width, 10)), images(options)


def adapters(options: Options) -> Problem:
    """Return a perceptron whose layers have adapters."""
    width = size(options, 64, 8)
    layers = [Adapted(3 * 32 * 32, width), nn.ReLU(), Adapted(width, width), nn.ReLU(), Adapted(width, 10)]
    return nn.Sequential(nn.Flatten(), *layers), images(options)


def pixels(options: Options) -> Problem:
    """Return a network from images to ten logits at each pixel."""
    width = size(options, 64, 8)
    return nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, 10, 1)), images(options)


def resnet50(options: Options) -> Problem:
    """Return ResNet-50 of torchvision and images of 3 x 224 x 224; of four blocks in a rehearsal."""
    from torchvision.models.resnet import Bottleneck, ResNet

    net = ResNet(Bottleneck, [1, 1, 1, 1] if options.rehearse else [3, 4, 6, 3], num_classes=10)
    pixels = size(options, 224, 32)
    return net, torch.randn(size(options, 256, 8), 3, pixels, pixels)


def bert(options: Options) -> Problem:
    """Return BERT-base of transformers with LoRA of peft, and 128 tokens a text."""
    from peft import LoraConfig, get_peft_model
    from transformers import BertConfig, BertForSequenceClassification

    small: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = BertConfig(num_labels=10, **small if options.rehearse else {})
    lora = LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["query", "value"])
    tokens = torch.randint(config.vocab_size, (size(options, 256, 16), size(options, 128, 8)))
    mask = torch.ones_like(tokens)
    mask[::2, tokens.shape[1] // 2 :] = 0
    return get_peft_model(BertForSequenceClassification(config), lora), {"input_ids": tokens, "attention_mask": mask}


def checks(options: Options) -> Checks:
    """Yield network by network."""
    for name, make, likelihood, guide, close in (
        ("bfloat16 body, mean-field head", half_body, "categorical", "mean_field", CLOSE_IN_HALF),
        ("adapters, mean-field", adapters, "categorical", "mean_field", CLOSE),
        ("adapters, Laplace", adapters, "categorical", KRONECKER, CLOSE),
        ("pixels, mean-field", pixels, bnn.likelihoods.DenseCategorical(classes=10), "mean_field", CLOSE),
        ("pixels, Laplace of the last layer", pixels, bnn.likelihoods.DenseCategorical(classes=10),
         bnn.guides.Laplace(structure="diag", sites="last_layer"), CLOSE),
        ("ResNet-50, mean-field", resnet50, "categorical", "mean_field", CLOSE),
        ("ResNet-50, Laplace of the last layer", resnet50, "categorical",
         bnn.guides.Laplace(structure="kron", sites="last_layer"), CLOSE),
        ("BERT with LoRA, mean-field", bert, "categorical", "mean_field", CLOSE),
        ("BERT with LoRA, Laplace", bert, "categorical", KRONECKER, CLOSE),
    ):  # fmt: skip
        if make is not bert or (find_spec("transformers") and find_spec("peft")):
            yield name, partial(_beside_cpu, options, make, likelihood, guide, close)
    yield "accumulated", partial(_accumulated, options)
    yield "1,000 classes", partial(_classes, options)


KEY, OPTIONS, jobs, run, page = measure_of("Networks of today on a GPU", checks)


def _beside_cpu(options: Options, make: Callable[[Options], Problem], likelihood: Any, guide: Any, close: float) -> Row:
    torch.manual_seed(0)
    net, x = make(options)
    few = {name: part[:32] for name, part in x.items()} if isinstance(x, dict) else x[:32]
    count = len(x["input_ids"] if isinstance(x, dict) else x)
    model = bnn.BNN(net, prior=bnn.priors.Normal(1.0), likelihood=likelihood)
    y = torch.randint(0, 10, (count, 32, 32) if not isinstance(likelihood, str) else (count,))
    method = bnn.SVI(guide=guide, steps=size(options, 100, 20), batch_size=size(options, 64, 8))
    posterior = bnn.fit(model, (x, y), method, seed=0, device=options.device, progress=False)
    with tempfile.TemporaryDirectory() as folder:
        posterior.save(Path(folder) / "saved")
        other = bnn.load(Path(folder) / "saved", net=net)
    found, expected = (each.predict(few, at_mean=True).class_probs.cpu() for each in (posterior, other))
    predict_ms = milliseconds(
        lambda: posterior.predict(few, num_draws=size(options, 20, 2)), options.device, seconds=0.5, warm_up=1
    )
    difference = float((found - expected).abs().max())
    columns = {"fit_s": posterior.record.seconds, "predict_ms": predict_ms, "difference": difference}
    return columns | {"holds": difference < close}


def _accumulated(options: Options) -> Row:
    torch.manual_seed(0)
    x, y = torch.randn(256, 20), torch.randn(256)
    model = bnn.BNN(bnn.MLP(20, [64], 1), prior=bnn.priors.Normal(1.0), likelihood=bnn.likelihoods.Gaussian(0.3))
    fits = [
        bnn.fit(
            model,
            bnn.Loader([(x[i : i + rows], y[i : i + rows]) for i in range(0, 256, rows)], num_data=256),
            bnn.SVI(guide="map", steps=50, accumulate=accumulate),
            seed=0,
            device=options.device,
            progress=False,
        )
        for rows, accumulate in ((256, 1), (64, 4))
    ]
    one, four = (fit.mean() for fit in fits)
    difference = max(float((one[name] - four[name]).abs().max()) for name in one)
    return {"difference": difference, "holds": difference < CLOSE}


def _classes(options: Options) -> Row:
    torch.manual_seed(0)
    classes, count = size(options, 1000, 100), size(options, 1000, 50)
    net, x, y = nn.Linear(512, classes), torch.randn(count, 512), torch.randint(0, classes, (count,))
    posteriors = [
        KRONECKER.around(net, bnn.Data(x, y, standardize=False), device=device, progress=False)
        for device in (options.device, "cpu")
    ]
    found, expected = (bnn.functional(each, x).variance.cpu() for each in posteriors)
    posterior, on_it = posteriors[0], {"device": options.device, "seconds": 0.5, "warm_up": 1}
    difference = float((found / expected - 1).abs().max())
    return {
        "functional_ms": milliseconds(lambda: bnn.functional(posterior, x).variance, **on_it),
        "predict_ms": milliseconds(lambda: posterior.predict(x[:1]), **on_it),
        "difference": difference,
        "holds": difference < CLOSE,
    }
