"""Whether intervals and sets of 95 % hold 95 % of new rows after `bnn.conformal`, on eight published sets.

A split draws half of the rows to train on, 1000 at most; the others are halved at random to calibrate and to test on,
2000 at most each. Fits are a Laplace approximation of a layer of 50 units after 1000 steps, which is quick, not good:
the level has to hold whatever the fit. "before" is the coverage of the posterior's own intervals, and of the smallest
sets of classes that hold 95 % of its probability; "width" is the mean width, or number of classes, after over before.
"""

import math

import numpy as np
import torch
from torch import Tensor

import pyrobnn as bnn
from benchmarks.measures.harness import Options, Page, chosen
from benchmarks.rows import Row, grid

KEY = ("data", "split")
SETS = (
    "concrete", "diabetes", "energy", "power-plant", "protein-tertiary-structure", "spambase", "wine-quality-red",
    "yacht",
)  # fmt: skip
OPTIONS = {"sets": [*SETS], "splits": 20}
LEVEL, MOST_TRAINED, MOST_OTHERS = 0.95, 1000, 2000


def jobs(options: Options) -> list[Row]:
    """Return sets and splits."""
    return [{"data": name, "split": split} for split in range(options.splits) for name in options.sets]


def parts(data: bnn.Data, seed: int) -> list[bnn.Data]:
    """Return the rows to train on, to calibrate on and to test on."""
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
    train, others = order.tensor_split([len(data) // 2])
    held_out, test = (part[:MOST_OTHERS] for part in others.tensor_split(2))
    return [data[rows] for rows in (train[:MOST_TRAINED], held_out, test)]


def smallest_sets(prediction: bnn.Prediction) -> Tensor:
    """Return which classes are in the smallest set of each row that holds the level of its probability, (N, C)."""
    probs, order = prediction.class_probs.sort(dim=-1, descending=True)
    inside = probs.cumsum(-1) - probs < LEVEL
    return torch.zeros_like(inside).scatter(-1, order, inside)


def covered(prediction: bnn.Prediction, y: Tensor, sets: Tensor | None) -> tuple[float, float]:
    """Return the share of targets inside, and the mean size of intervals, or of sets where targets are classes."""
    if sets is not None:
        return float(sets[torch.arange(len(y)), y.long()].double().mean()), float(sets.double().sum(1).mean())
    lower, upper = prediction.interval(LEVEL)
    return float(((lower <= y) & (y <= upper)).double().mean()), float((upper - lower).mean())


def run(job: Row, options: Options) -> list[Row]:
    """Fit, calibrate, and count."""
    dataset = bnn.datasets.load(job["data"])
    train, held_out, test = parts(dataset.data, job["split"])
    has_classes = dataset.task == "classification"
    likelihood = bnn.likelihoods.Categorical() if has_classes else bnn.likelihoods.Gaussian("learned")
    net = bnn.MLP(train.x.shape[1], [50], 2 if has_classes else 1, dtype="float64")
    method = bnn.SVI(guide=bnn.guides.Laplace(structure="kron"), steps=1000, batch_size=128)
    model = bnn.BNN(net, prior=bnn.priors.Normal("fan_in"), likelihood=likelihood)
    posterior = bnn.fit(model, train, method, seed=job["split"], progress=False)
    plain = posterior.predict(test.x)
    calibrated = bnn.conformal(posterior, held_out, seed=job["split"]).predict(test.x, seed=job["split"])
    before, size = covered(plain, test.y, smallest_sets(plain) if has_classes else None)
    after, new_size = covered(calibrated, test.y, calibrated.label_set(LEVEL) if has_classes else None)
    rows = {"trained": len(train), "calibrated": len(held_out), "tested": len(test)}
    return [job | rows | {"before": before, "after": after, "width": new_size / size}]


def page(rows: list[Row], options: Options) -> Page:
    """Return means over splits, with standard errors of the coverage."""
    lines = []
    for name in SETS:
        if same := chosen(rows, data=name):
            after = np.array([row["after"] for row in same])
            error = after.std(ddof=1) / len(after) ** 0.5 if len(after) > 1 else float("nan")
            means = (np.mean([row[column] for row in same]) for column in ("before", "width"))
            before, width = (f"{mean:.3f}" for mean in means)
            sizes = [same[0][column] for column in ("trained", "calibrated", "tested")]
            expected = math.ceil(LEVEL * (sizes[1] + 1)) / (sizes[1] + 1)
            lines.append(
                [name, len(same), *sizes, before, f"{expected:.3f}", f"{after.mean():.3f} ± {error:.3f}", width]
            )
    title = "Coverage of intervals and sets of 95 % after `bnn.conformal`"
    columns = ["data", "splits", "trained", "calibrated", "tested", "before", "expected", "after", "width"]
    about = ["Means over splits, ± standard errors. Expected is what so many held-out rows give without ties."]
    return Page(title, about, grid(columns, lines))
