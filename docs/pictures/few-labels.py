"""The pictures of docs/how-to/few-labels.md: where a classifier of 60 points is uncertain, and log losses of ten draws.

    uv run python docs/pictures/few-labels.py

Some minutes on two cores. Writes docs/images/few-labels-uncertainty.png and few-labels-losses.png.
"""

import numpy as np
from _page import write
from sklearn.datasets import make_moons
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

import pyrobnn as bnn
from pyrobnn.plots._colors import BLUE, GREY, INK, ORANGE
from pyrobnn.plots._style import legend, panels, title

COLORS = {"logistic\nregression": GREY, "Gaussian\nprocess": ORANGE, "pyrobnn": BLUE}


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
        "logistic\nregression": log_loss(y[60:], linear.predict_proba(x[60:])),
        "Gaussian\nprocess": log_loss(y[60:], process.predict_proba(x[60:])),
        "pyrobnn": -float(prediction.log_prob(y[60:]).mean()),
    }


def main() -> None:
    """Make the pictures."""
    x, y = make_moons(1060, noise=0.3, random_state=0)
    train = bnn.Data(x[:60].astype("float32"), y[:60])
    surfaces = bnn.plots.decision_surface(fitted(train), train, layout="column")
    write(surfaces, "few-labels-uncertainty", 9.0)

    found = [losses(seed) for seed in range(10)]
    figure, (axis,) = panels(1, panel=(4.8, 2.6))
    for row, name in enumerate(COLORS):
        values = np.array([each[name] for each in found])
        mean, error = values.mean(), values.std(ddof=1) / len(values) ** 0.5
        print(f"{name}: {mean:.3f} ± {error:.3f}")
        axis.plot(values, np.full(len(values), row), "o", color=COLORS[name], ms=6, alpha=0.5, mew=0)
        axis.errorbar(mean, row, xerr=error, fmt="D", color=INK, ms=5, capsize=4, label="" if row else "mean ± 1 se")
        axis.annotate(f"{mean:.2f}", (mean, row), (0, 9), textcoords="offset points", ha="center", fontsize=10)
    axis.set(yticks=range(len(COLORS)), yticklabels=COLORS, ylim=(-0.5, len(COLORS) - 0.3))
    axis.set_xlabel("log loss on 1,000 new points, lower is better", fontsize=10)
    axis.tick_params(labelsize=10)
    title(axis, "Ten draws of 60 labelled points, a dot each")
    legend(axis, loc="upper right", fontsize=10)
    write(figure, "few-labels-losses", 2.9)


if __name__ == "__main__":
    main()
