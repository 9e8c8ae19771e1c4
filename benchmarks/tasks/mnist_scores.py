"""Images of digits and clothes, and scores of a posterior over networks that classify digits."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyro.distributions as dist
import torch
from scipy import ndimage
from torch import Tensor

import pyrobnn as bnn

UNIT = 126 / 255
"""Divisor of pixels in [0, 1]; it divides bytes by 126 (Blundell et al. 2015, section 5.1)."""
NUM_TRAIN = 50_000
"""Images to train on, the first of the 60,000; the others are for validation."""
NUM_HELD_OUT = 10_000
"""Images for validation, as many to test with, and as many clothes."""
_SIDE = 28

Predict = Callable[[Tensor], bnn.Prediction]


@dataclass(frozen=True)
class Images:
    """The data that a job reads.

    Attributes:
        train: images to train on.
        validation: images to choose hyper-parameters on.
        test: the published test images.
        clothes: Fashion-MNIST, test part, (N, 784): images that are no digits.
    """

    train: bnn.Data
    validation: bnn.Data
    test: bnn.Data
    clothes: Tensor


@lru_cache(maxsize=1)
def load_images(num_train: int, num_held_out: int) -> Images:
    """Return the first images of each part: at most `num_train` to train on, `num_held_out` of each of the others."""
    both, test = bnn.datasets.load("mnist").split(0)
    clothes = bnn.datasets.load("fashion-mnist-test").data.x
    held_out = slice(NUM_TRAIN, NUM_TRAIN + num_held_out)
    parts = (_scaled(both[: min(num_train, NUM_TRAIN)]), _scaled(both[held_out]), _scaled(test[:num_held_out]))
    return Images(*parts, clothes[:num_held_out] / UNIT)


def _scaled(data: bnn.Data) -> bnn.Data:
    return bnn.Data(data.x / UNIT, data.y)


def rotated(x: Tensor, degrees: float) -> Tensor:
    """Return images (N, 784) turned by an angle against the clock, with linear interpolation and an empty border."""
    images = x.view(-1, _SIDE, _SIDE).numpy()
    turned = ndimage.rotate(images, degrees, axes=(1, 2), reshape=False, order=1)
    return torch.from_numpy(np.ascontiguousarray(turned)).view(len(x), -1)


def sampled(posterior: bnn.Posterior, num_draws: int, seed: int) -> Predict:
    """Return predictions, on the CPU, by the mixture of that many networks; of a point, by its single network."""
    if posterior.record.method["guide"]["type"] == "map":
        return lambda x: _on_cpu(posterior.predict(x, at_mean=True))
    return lambda x: _on_cpu(posterior.predict(x, num_draws=num_draws, seed=seed))


def _on_cpu(prediction: bnn.Prediction) -> bnn.Prediction:
    logits = prediction.distribution.logits
    return prediction if logits.device.type == "cpu" else bnn.Prediction(dist.Categorical(logits=logits.cpu()))


def linearized(posterior: bnn.Posterior, num_draws: int, seed: int) -> Predict:
    """Return predictions of a Laplace approximation, on the CPU, by draws of the outputs of an image."""

    def predict(x: Tensor) -> bnn.Prediction:
        logits = bnn.functional(posterior, x).sample(num_draws, seed=seed)
        return bnn.Prediction(dist.Categorical(logits=logits.cpu()))

    return predict


def error_rate(prediction: bnn.Prediction, y: Tensor) -> float:
    """Return the share of wrong labels in %."""
    return 100 * float((prediction.label != y).double().mean())


def evaluate(predict: Predict, images: Images, rotations: Sequence[float], num_rotated: int) -> dict[str, Any]:
    """Return the measurements of a posterior.

    `test_error` in % with its standard error; `nll` in nats an image, likewise; `ece`, the expected calibration error
    in 15 bins; the area under the ROC curve with digits as negatives and clothes as positives, by entropy and by mutual
    information (None for a single network, which has none); accuracy in % and the means of both measures in nats for
    the first test images turned by each angle.
    """
    home, away = predict(images.test.x), predict(images.clothes)
    scores, apart = bnn.score(home, images.test.y), bnn.score_ood(home, away)
    is_mixture = home.num_draws > 1
    by_information = apart["auroc_mutual_information"] if is_mixture else None
    return {
        "test_error": error_rate(home, images.test.y),
        "test_error_stderr": 100 * scores["accuracy"].stderr,
        "nll": -scores["log_likelihood"].value,
        "nll_stderr": scores["log_likelihood"].stderr,
        "ece": scores["ece"].value,
        "ece_stderr": scores["ece"].stderr,
        "auroc_entropy": apart["auroc_entropy"].value,
        "auroc_entropy_stderr": apart["auroc_entropy"].stderr,
        "auroc_information": by_information.value if by_information else None,
        "auroc_information_stderr": by_information.stderr if by_information else None,
        **_along_rotations(predict, images.test[:num_rotated], rotations, is_mixture=is_mixture),
    }


def _along_rotations(
    predict: Predict, digits: bnn.Data, rotations: Sequence[float], *, is_mixture: bool
) -> dict[str, list[float] | None]:
    predictions = [predict(rotated(digits.x, degrees)) for degrees in rotations]
    measures = {
        "accuracy": [100 * (prediction.label == digits.y).double() for prediction in predictions],
        "entropy": [prediction.entropy.double() for prediction in predictions],
        "information": [prediction.mutual_information.double() for prediction in predictions] if is_mixture else None,
    }
    columns: dict[str, list[float] | None] = {"rotation": list(rotations)}
    for name, by_angle in measures.items():
        columns[f"rotation_{name}"] = by_angle and [float(values.mean()) for values in by_angle]
        columns[f"rotation_{name}_stderr"] = by_angle and [_stderr(values) for values in by_angle]
    return columns


def _stderr(values: Tensor) -> float:
    return float(values.std()) / math.sqrt(len(values))


def evaluate_pruned(
    posterior: bnn.Posterior, test: bnn.Data, shares: Sequence[float], num_draws: int, seed: int
) -> dict[str, Any]:
    """Return the test error in % without each share of the weights, smallest |mean| / std first.

    Blundell et al. (2015), section 5.1 and Table 2. `pruned_cost_stderr` is the standard error of the difference to all
    weights on the same images, in points.
    """
    if not shares:
        return {}
    wrong = [
        (sampled(bnn.prune(posterior, share), num_draws, seed)(test.x).label != test.y).double()
        for share in (0.0, *shares)
    ]
    costs = [100 * (is_wrong - wrong[0]) for is_wrong in wrong[1:]]
    return {
        "pruned": list(shares),
        "pruned_error": [100 * float(is_wrong.mean()) for is_wrong in wrong[1:]],
        "pruned_cost_stderr": [_stderr(cost) for cost in costs],
        "pruned_weights_left": [
            posterior.bnn.num_weights - round(share * posterior.bnn.num_weights) for share in shares
        ],
    }
