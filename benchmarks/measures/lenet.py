"""LeNet-5 on MNIST by seven methods: accuracy, NLL and calibration of each, and what its fit costs.

LeNet-5 has 61,706 weights: two convolutions of 5 x 5 with 6 and 16 channels, each with pooling and ReLU, then 120, 84
and 10 units. Every method trains on the 60,000 training images, each moved by up to two pixels whenever it is seen, and
is scored on the 10,000 test images. Temperature 1, one thread. Members of the ensemble are the points of seeds 0, 1,
and so on; Laplace is put around the point of its seed, on the images as they are.

Rates and priors of points and mean-field were chosen by fits to the first 50,000 training images, scored on the other
10,000, as `--part validation` does; IVON, dropout and SWAG have what suits those, and no choice of their own. The test
images were scored once, with the settings here.
"""

from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from torch import nn

import pyrobnn as bnn
from benchmarks.measures.harness import Options, Page, chosen, load_rows
from benchmarks.moved_images import COLUMNS, WAYS, Moved, class_probs, scored
from benchmarks.rows import Row, grid, grouped
from benchmarks.timing import timed

KEY = ("method", "seed", "part")
LAST_LAYER, LAYERS, TUNED = "Laplace, last layer", "Laplace, all layers", "Laplace, all layers, tuned"
"""All with Kronecker factors; the prior precisions of the last, one a site, maximise the evidence."""


ENSEMBLE = "ensemble"
METHODS = [*WAYS, ENSEMBLE, LAST_LAYER, LAYERS]
PARTS = ["test", "validation"]
OPTIONS = {
    "methods": METHODS,
    "members": 10,
    "seeds": 1,
    "part": {"choices": PARTS, "default": PARTS[0], "help": "images to score on, test by default"},
    "keep": {"default": "runs/lenet", "help": "folder of the points, runs/lenet by default"},
}
PUBLISHED = [
    ("deterministic", 0.991, 0.037, ""),
    ("ensemble of 10", 0.994, 0.016, 0.005),
    ("refined VI", 0.990, 0.034, 0.010),
    ("variational inference", 0.985, 0.048, 0.010),
]
"""`baselines/mnist/README.md` of github.com/google/uncertainty-baselines: method, accuracy, NLL, calibration error."""

TRIED = [
    ("point, 0.3, rate 0.006", 10, 0.9926, 0.0252, 0.0020),
    ("point, 0.3, rate 0.003", 10, 0.9922, 0.0281, 0.0014),
    ("point, 1, rate 0.003", 10, 0.9922, 0.0286, 0.0009),
    ("mean-field, 0.2, rate 0.003", 12, 0.9918, 0.0342, 0.0094),
    ("mean-field, he, rate 0.003", 12, 0.9909, 0.0404, 0.0136),
    ("mean-field, he, rate 0.003, images not moved", 12, 0.9891, 0.0429, 0.0124),
    ("mean-field, fan_in, rate 0.006", 12, 0.9892, 0.0454, 0.0142),
]
"""What was tried on validation images, seed 0: method, scale of the prior, highest learning rate; passes; scores."""


def lenet() -> nn.Module:
    """Return LeNet-5 for rows of 784 pixels; ReLU comes after pooling, which gives the same numbers sooner."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)),
        nn.Conv2d(1, 6, 5, padding=2),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(6, 16, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )


def images(part: str) -> tuple[bnn.Data, bnn.Data]:
    """Return the images to train on and those to score on."""
    train, test = bnn.datasets.load("mnist").split(0)
    if part == "test":
        return train, test
    return bnn.Data(train.x[:50_000], train.y[:50_000]), bnn.Data(train.x[50_000:], train.y[50_000:])


def fitted(name: str, seed: int, options: Options) -> bnn.Posterior:
    """Return a posterior; a point that is kept comes at once."""
    way, (train, _) = WAYS[name], images(options.part)
    epoch = Moved(train, seed)
    model = bnn.BNN(lenet, prior=bnn.priors.Normal(way.scale), likelihood="categorical")
    kept = Path(options.keep) / f"{options.part}-{seed}" if name == "point" else None
    loader = bnn.Loader(epoch, num_data=len(train))
    return bnn.fit(
        model, loader, way.method(steps=way.epochs * len(epoch)), seed=seed, engine="captured", checkpoint=kept
    )


def jobs(options: Options) -> list[Row]:
    """Return the points first, on which ensemble and Laplace build."""
    found = []
    for name in options.methods:
        label: Any = f"ensemble of {options.members}" if name == ENSEMBLE else name
        label = [LAYERS, TUNED] if name == LAYERS else label
        seeds = {"point": options.members, ENSEMBLE: 1}.get(name, options.seeds)
        found += [{"method": label, "seed": seed, "part": options.part} for seed in range(seeds)]
    return found


def run(job: Row, options: Options) -> list[Row]:
    """Fit, predict, score."""
    torch.set_num_threads(1)
    train, test = images(job["part"])
    name, *tuned = job["method"] if isinstance(job["method"], list) else [job["method"]]
    if name == f"ensemble of {options.members}":
        return [job | _ensemble(test, options)]
    if name in WAYS:
        return [_row(job, lambda: fitted(name, job["seed"], options), test)[0]]
    mode = fitted("point", job["seed"], options)
    guide = bnn.guides.Laplace(structure="kron", sites=("last_layer" if name == LAST_LAYER else "*",))
    first, posterior = _row(
        job | {"method": name}, lambda: guide.around(mode.bnn, train, weights=mode.mean(), progress=False), test
    )
    tune = partial(bnn.tune_prior, posterior, train, per="site")
    return [first, *(_row(job | {"method": other}, tune, test)[0] for other in tuned)]


def _row(job: Row, fit: Any, test: bnn.Data) -> tuple[Row, bnn.Posterior]:
    posterior, seconds, cpu = timed(fit)
    probs, predicting, _ = timed(lambda: class_probs(posterior, test.x))
    costs = {"fit, s": round(seconds, 1), "fit, CPU s": round(cpu, 1), "predict 10,000, s": round(predicting, 1)}
    return job | scored(probs, test.y) | costs, posterior


def _ensemble(test: bnn.Data, options: Options) -> Row:
    """Return the scores of the mean over members, and the sums of their costs."""
    members = [fitted("point", seed, options) for seed in range(options.members)]
    probs = torch.stack([class_probs(member, test.x) for member in members]).mean(0)
    rows = chosen(load_rows("lenet", options.out), method="point", part=options.part)
    columns = ("fit, s", "fit, CPU s", "predict 10,000, s")
    return scored(probs, test.y) | {
        column: round(sum(row[column] for row in rows if row["seed"] < options.members), 1) for column in columns
    }


def page(rows: list[Row], options: Options) -> Page:
    """Return the tables: test images, validation images, published."""
    lines = []
    for part in PARTS:
        groups = grouped(chosen(rows, part=part), "method").values()
        same = [row for group in groups for row in sorted(group, key=itemgetter("seed"))]
        if same:
            columns = [column for column in same[0] if column != "part"]
            lines += [
                f"## Scored on {part} images",
                "",
                *grid(columns, ([row[c] for c in columns] for row in same)),
                "",
            ]
    lines += ["## Tried on validation images", "", *grid(["fit", "epochs", *COLUMNS], TRIED), ""]
    lines += ["## Published", "", *grid(["method", *COLUMNS], PUBLISHED)]
    about = [
        "Seconds are of the clock, beside other work on the machine, and of the CPU; Laplace's begin at its point.",
        "Published: read in the repository uncertainty-baselines of Google, not measured here. Its network pads the",
        "second convolution and has a third in place of the 120 units, and it sees the images as they are.",
    ]
    return Page("LeNet-5 on MNIST", about, lines)
