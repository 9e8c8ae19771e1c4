"""scikit-learn's models as references: they see standardised data, and are scored in original units."""

from typing import Any, NamedTuple

import numpy as np
from scipy.stats import norm
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import BayesianRidge, LogisticRegression, Ridge
from sklearn.model_selection import cross_val_predict
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

Table = tuple[np.ndarray, np.ndarray]
"""Inputs and targets."""
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Inputs and targets to train on, and to test on."""


def regressors(columns: int, seed: int) -> dict[str, Any]:
    """Return a constant and scikit-learn's regressors with nothing set, but for the kernel of a Gaussian process."""
    return {
        "a constant": DummyRegressor(),
        "Ridge": Ridge(),
        "BayesianRidge": BayesianRidge(),
        "MLPRegressor": MLPRegressor(random_state=seed),
        "HistGradientBoosting": HistGradientBoostingRegressor(random_state=seed),
        "Gaussian process": process(columns, seed),
    }


def process(columns: int, seed: int, restarts: int = 0) -> GaussianProcessRegressor:
    """Return a Gaussian process: a constant times an RBF kernel with a length for each input, and noise."""
    kernel = ConstantKernel(1.0) * RBF(np.ones(columns)) + WhiteKernel(0.1)
    return GaussianProcessRegressor(kernel, n_restarts_optimizer=restarts, random_state=seed)


def classifiers(seed: int) -> dict[str, Any]:
    """Return the frequencies of labels, and scikit-learn's classifiers with nothing set but the kernel of a process."""
    return {
        "a constant": DummyClassifier(),
        "LogisticRegression": LogisticRegression(),
        "MLPClassifier": MLPClassifier(random_state=seed),
        "HistGradientBoosting": HistGradientBoostingClassifier(random_state=seed),
        "Gaussian process": GaussianProcessClassifier(ConstantKernel(1.0) * RBF(1.0), random_state=seed),
    }


class Normals(NamedTuple):
    """A normal distribution for each row to test on, by mean and standard deviation in original units."""

    mean: np.ndarray
    std: np.ndarray | float

    def scores(self, y: np.ndarray) -> dict[str, float]:
        """Return log score, CRPS (Gneiting & Raftery 2007), RMSE ("error"), and the share within 95 % intervals."""
        z = (y - self.mean) / self.std
        crps = self.std * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - np.pi**-0.5)
        return {
            "log_score": float(norm.logpdf(y, self.mean, self.std).mean()),
            "crps": float(crps.mean()),
            "error": float(np.sqrt(np.mean((y - self.mean) ** 2))),
            "coverage": float((np.abs(z) <= norm.ppf(0.975)).mean()),
        }


def normals(model: Any, data: Arrays, *, states_std: bool = False, folds: int = 0) -> Normals:
    """Fit a regressor, and return what it predicts.

    Args:
        model: sees standardised inputs and targets.
        data: to train on, and to test on.
        states_std: whether the model states a standard deviation; if not, it is that of the training residuals.
        folds: number of folds, each of which gets its residuals from a fit to the others; 0 for those of the fit.
    """
    x, y, x_test, _ = data
    scaler, loc, unit = StandardScaler().fit(x), y.mean(), y.std()
    inputs, new, targets = scaler.transform(x), scaler.transform(x_test), (y - loc) / unit
    model.fit(inputs, targets)
    if states_std:
        mean, std = model.predict(new, return_std=True)
    else:
        fitted = cross_val_predict(model, inputs, targets, cv=folds) if folds else model.predict(inputs)
        mean, std = model.predict(new), np.sqrt(np.mean((fitted - targets) ** 2))
    return Normals(loc + unit * mean, unit * std)


def label_scores(model: Any, data: Arrays, *, standardize: bool = True) -> dict[str, float]:
    """Fit a classifier to standardised inputs or as they are, and return its scores."""
    x, y, x_test, y_test = data
    fitted = (make_pipeline(StandardScaler(), model) if standardize else model).fit(x, y)
    return scores_of_labels(fitted.predict_proba(x_test), fitted.classes_, y_test)


def scores_of_labels(probs: np.ndarray, classes: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Return the mean log probability of labels, and the share of errors.

    Classes that the training rows lack share a probability of 1 / 1000.
    """
    labels, classes = y.astype(int), classes.astype(int)
    every = np.full((len(labels), max(labels.max(), classes.max()) + 1), 1e-3)
    every[:, classes] = probs
    every /= every.sum(1, keepdims=True)
    log_score = np.log(every[np.arange(len(labels)), labels].clip(1e-12)).mean()
    return {"log_score": float(log_score), "error": float(np.mean(classes[probs.argmax(1)] != labels))}
