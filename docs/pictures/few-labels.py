"""The pictures of docs/how-to/few-labels.md: where a classifier of 60 points doubts, and log losses of ten draws.

    uv run python docs/pictures/few-labels.py

Some minutes on two cores. Writes docs/images/few-labels-doubt.png and few-labels-losses.png.
"""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image
from sklearn.datasets import make_moons
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

import pyrobnn as bnn

IMAGES = Path(__file__).parents[1] / "images"
COLORS = {"logistic regression": "#8a8f98", "Gaussian process": "#d95f02", "pyrobnn": "#1f5fa8"}


def fitted(train: bnn.Data) -> bnn.Posterior:
    """Return the fit of the page."""
    model = bnn.BNN(bnn.MLP(2, [20], 2, activation="tanh"), prior=bnn.priors.Normal("fan_in"), likelihood="categorical")
    return bnn.fit(model, train, bnn.EvidenceFramework(starts=3), seed=0, progress=False)


def losses(seed: int) -> dict[str, float]:
    """Return the log losses on 1,000 new points of one draw of 60."""
    x, y = make_moons(1060, noise=0.3, random_state=seed)
    linear = LogisticRegression().fit(x[:60], y[:60])
    process = GaussianProcessClassifier(ConstantKernel() * RBF(), random_state=0).fit(x[:60], y[:60])
    prediction = fitted(bnn.Data(x[:60], y[:60])).predict(x[60:])
    return {
        "logistic regression": log_loss(y[60:], linear.predict_proba(x[60:])),
        "Gaussian process": log_loss(y[60:], process.predict_proba(x[60:])),
        "pyrobnn": -float(prediction.log_prob(y[60:]).mean()),
    }


def save(figure: Figure, name: str, dpi: int) -> None:
    """Write a picture in few colours."""
    figure.savefig(IMAGES / name, dpi=dpi)
    Image.open(IMAGES / name).convert("RGB").quantize(96).save(IMAGES / name, optimize=True)


def main() -> None:
    """Make the pictures."""
    x, y = make_moons(1060, noise=0.3, random_state=0)
    train = bnn.Data(x[:60].astype("float32"), y[:60])
    doubt = bnn.plots.decision_surface(fitted(train), train)
    doubt.set_size_inches(9.6, 2.9)
    for text in doubt.findobj(Text):
        text.set_fontsize(10)
    save(doubt, "few-labels-doubt.png", 105)

    found = [losses(seed) for seed in range(10)]
    figure = Figure(figsize=(7, 3), layout="constrained")
    axis = figure.subplots()
    for name, color in COLORS.items():
        values = [row[name] for row in found]
        print(f"{name}: {np.mean(values):.3f} ± {np.std(values, ddof=1) / len(values) ** 0.5:.3f}")
        axis.plot(values, "o", color=color, ms=8, label=f"{name}: {np.mean(values):.2f}")
    axis.set_xticks(range(10))
    axis.set_xlabel("draw of 60 points", fontsize=11)
    axis.set_ylabel("log loss on 1,000 new points", fontsize=11)
    axis.tick_params(labelsize=10)
    axis.spines[["top", "right"]].set_visible(False)
    figure.legend(
        loc="outside upper center", ncols=3, frameon=False, fontsize=10, title="mean over ten draws", columnspacing=1
    )
    save(figure, "few-labels-losses.png", 110)


if __name__ == "__main__":
    main()
