"""The base of the estimators: fit and learn on, predict, save and load, diagnose and report."""

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike
from sklearn.utils import check_consistent_length
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from pyrobnn._core.checks import check_count
from pyrobnn._core.errors import InputError, waiting, warn_user
from pyrobnn._core.folders import new_file
from pyrobnn._core.modes import gradients
from pyrobnn._core.random import derive
from pyrobnn._core.remedies import current_spelling
from pyrobnn.data.in_memory import Data
from pyrobnn.data.splits import numbered
from pyrobnn.diagnostics.diagnosis import Diagnosis, diagnosis_of
from pyrobnn.distributions.units import InputScaler
from pyrobnn.estimators.parameters import Parameters
from pyrobnn.estimators.rows import Coding, PerRow, TargetKind, Targets, checked_inputs, checked_weights, warn_of_rows
from pyrobnn.estimators.saved import Fitted, read_estimator, write_estimator
from pyrobnn.guides.base import as_guide, built
from pyrobnn.inference.defaults import choose, settled
from pyrobnn.inference.fit import fit_in_silence, tell
from pyrobnn.inference.method import Run, guide_of
from pyrobnn.inference.parts import Facts
from pyrobnn.metrics import score
from pyrobnn.posterior.mixture import Mixture, predict_copies
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.prediction import Prediction
from pyrobnn.posterior.weights import update_prior
from pyrobnn.tables.encoder import Encoder
from pyrobnn.verdict.evidence import Evidence

_LARGEST_BLOCK = 2**24  # values that a block of predictions holds at most
_FITTING = "fitting (verbose=True shows more)"
_LATER = "partial_fit makes the posterior so far the prior of the next batch"

type HeldOut = tuple[ArrayLike, ArrayLike] | None  # rows (X, y) that a fit has not seen


@contextmanager
def _for_estimators() -> Iterator[None]:
    """Compute as for any fit, and spell remedies as parameters of estimators."""
    with gradients(), ExitStack() as stack:
        stack.callback(current_spelling.reset, current_spelling.set("estimator"))
        yield


class AbstractBNN(Parameters):
    """Base of the estimators: write `TASK`, `_targets`, and what is predicted."""

    _fitted: Fitted  # set as the last act of a fit

    def _targets(self, y: ArrayLike, known: TargetKind | None = None) -> Targets:
        """Return targets, checked; their kind may be known from a fit, or from classes that were declared."""
        raise NotImplementedError

    def _weights(self, targets: Targets, weight: PerRow) -> np.ndarray | None:
        """Return the weights (N,) of examples, or None where all count once."""
        return checked_weights(weight, targets.values)

    @_for_estimators()
    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: PerRow = None, groups: PerRow = None) -> Self:
        """Infer the posterior; what cannot be used is a `ValueError`, in the words of scikit-learn, or an `InputError`.

        Args:
            X: inputs (N, features): an array, or a frame with numbers, booleans, dates and categories.
            y: targets (N,) or (N, K), or labels (N,), numbers or text.
            sample_weight: weights (N,), not negative; an example of weight 2 counts as the same example twice.
            groups: labels (N,), such as patients: rows held out to choose a fit keep a group together. The evidence
                does not know them: judge a fit that it chose by `diagnose` with new groups.
        """
        return self._infer(*self._examples(X, self._targets(y), sample_weight, groups))

    @_for_estimators()
    def _partial_fit(self, X: ArrayLike, y: ArrayLike, weight: PerRow, declared: TargetKind | None = None) -> Self:
        """Fit to the first examples, or go on from the posterior so far: newest rows alone may suit a constant."""
        _require_spread(self._choice(learns_on=True).candidates[0].method)
        if not hasattr(self, "_fitted"):
            return self._infer(*self._examples(X, self._targets(y, declared), weight), learns_on=True)
        so_far = self._fitted
        if self.method is None and built(so_far.posterior.members[0].guide).chains() is not None:
            raise InputError(f"{_LATER}, as independent normals, and Markov chains have none: begin with partial_fit.")
        coding, data = self._examples(X, self._targets(y, so_far.coding.kind), weight, known=so_far.coding)
        choice = choose(replace(so_far.facts, given=self._given(), learns_on=True))
        with waiting(_FITTING, shown=self.verbose is None):
            posterior = fit_on(so_far.posterior, choice.candidates[0].method, data, self._run())
        self._fitted = replace(so_far, coding=coding, posterior=posterior)
        return self

    def _infer(self, coding: Coding, data: Data, *, learns_on: bool = False) -> Self:
        """Fit to examples as they are coded; `learns_on` if others follow."""
        check_count(self.num_draws, "num_draws")
        num_classes = len(coding.kind.classes) or None
        facts = Facts.of(self.TASK, data, self._given(), num_classes=num_classes, learns_on=learns_on)
        run = self._run()
        warn_of_rows(data, facts, coding.encoder)
        with waiting(_FITTING, shown=self.verbose is None):
            parts, record = settled(choose(facts), data, run)
            data = data.with_inputs(parts.inputs)
            posterior = fit_in_silence(parts.model(data), data, parts.method, replace(run, choice=record))
        self._fitted = Fitted(coding, facts, posterior)
        tell(posterior, data, progress=run.progress)
        return self

    def _examples(
        self, X: ArrayLike, targets: Targets, weight: PerRow = None, groups: PerRow = None, known: Coding | None = None
    ) -> tuple[Coding, Data]:
        """Return the coding that rows teach, or that is `known`, and the rows of weights above 0 as numbers."""
        table = checked_inputs(self, X, None if known is None else known.encoder)
        check_consistent_length(table.columns, targets.values)
        weights = self._weights(targets, weight)
        numbers = None if groups is None else numbered(groups, len(table.columns), "groups")
        used = np.ones(len(targets.values), dtype=bool) if weights is None else weights > 0
        columns, y = table.columns[used].reset_index(drop=True), targets.values[used]
        coding = Coding.learn(table, columns, y, targets.kind) if known is None else known.widened(columns)
        used_weights, used_groups = (None if each is None else each[used] for each in (weights, numbers))
        return coding, coding.data(columns, y, weights=used_weights, groups=used_groups, standardize=self.standardize)

    def _require_fit(self) -> Fitted:
        check_is_fitted(self, "_fitted")
        return self._fitted

    @property
    def posterior_(self) -> Posterior | Mixture:
        """The posterior, as `pyrobnn.fit` returns it, in original units; its inputs are encoded columns."""
        return self._require_fit().posterior

    @property
    def encoder_(self) -> Encoder:
        """The transformer from columns to inputs."""
        return self._require_fit().coding.encoder

    def predict_dist(self, X: ArrayLike) -> Prediction:
        """Return the full predictive distribution in original units: the mixture over posterior draws.

        Examples:
            >>> regressor = bnn.BNNRegressor(guide="mean_field", steps=20, random_state=0).fit([[0.0], [1.0]], [0, 1])
            >>> regressor.predict_dist([[0.5]])
            Prediction(Normal, num_draws=500, num_inputs=1)
        """
        return self._predict_encoded(self._encoded(X)).named_as(X)

    def outside(self, X: ArrayLike) -> pd.DataFrame:
        """Return counts of unknown categories, missing values and numbers beyond those of the fit, by column."""
        return self.encoder_.outside(checked_inputs(self, X, self.encoder_).columns).table

    def _encoded(self, X: ArrayLike) -> np.ndarray:
        """Return rows as numbers (N, features), NaN in gaps; warn of what the fit had not."""
        encoder = self.encoder_
        columns = checked_inputs(self, X, encoder).columns
        outside = encoder.outside(columns)
        if len(outside.table.query("unknown > 0 or missing > 0")):
            what = "are -1" if encoder.categories == "ordinal" else "are predicted as mixtures of the known ones"
            said = f"X has what the fit had not: unknown categories {what}, missing values are drawn given the others"
            warn_user(f"{said}.\n{outside.table.to_string()}")
        elif outside.warning:
            warn_user(outside.warning)
        return encoder.matrix(columns)

    def _predict_encoded(self, inputs: np.ndarray) -> Prediction:
        return predict_copies(self.posterior_, self._fitted.coding.imputer, inputs, num_draws=int(self.num_draws))

    def _predict_parts(self, X: ArrayLike, parts_of: Callable[[Prediction], tuple[Tensor, ...]]) -> list[np.ndarray]:
        """Return parts of predictions, such as means; predictions are made of blocks of rows, which bounds memory."""
        inputs = self._encoded(X)
        size = max(1, _LARGEST_BLOCK // (self.num_draws * max(1, math.prod(self._fitted.coding.kind.shape))))
        blocks = list[tuple[Tensor, ...]]()
        for start in range(0, len(inputs), size):
            prediction = self._predict_encoded(inputs[start : start + size])
            prediction.first_row = start
            blocks.append(parts_of(prediction))
        return [torch.cat(part).double().cpu().numpy() for part in zip(*blocks, strict=True)]

    def save(self, path: str | Path) -> Path:
        """Write the fitted estimator to a new file for `load`, which executes nothing in it, and return the file.

        If it draws missing values, rows to draw from are in it. A parameter that is an object, as a module, is refused.

        Examples:
            >>> model = bnn.BNNRegressor(guide="mean_field", steps=20, random_state=0).fit([[0.0], [1.0]], [0, 1])
            >>> bnn.BNNRegressor.load(model.save("model")).predict([[1.0]]) == model.predict([[1.0]])
            array([ True])
        """
        write_estimator(self, self._require_fit(), Path(path))
        return Path(path)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Return the estimator that `save` wrote; it predicts the same bits. A file that does not fit is refused."""
        model, fitted = read_estimator(cls, Path(path))
        model._fitted = fitted
        return model

    def diagnose(self, X: ArrayLike, y: ArrayLike, held_out: HeldOut = None) -> Diagnosis:
        """Look for reasons not to trust the fit to rows X and y, as `pyrobnn.diagnose`.

        `held_out` is a pair (X, y) of rows that the fit has not seen. Without them a fit may be called bad, never good.
        """
        return _diagnosed(self._evidence(X, y, held_out))

    @_for_estimators()
    def report(self, path: str | Path, X: ArrayLike, y: ArrayLike, held_out: HeldOut = None) -> Path:
        """Write a page on the fit to rows X and y to a new HTML file; its scores are those of `held_out`, if given."""
        from pyrobnn import report
        from pyrobnn.report.page import simple_scores

        with new_file(Path(path), replaces=False) as file:
            evidence = self._evidence(X, y, held_out)
            diagnosis, y_judged = _diagnosed(evidence), evidence.judged.y
            scores, simple = score(evidence.prediction, y_judged), simple_scores(evidence, evidence.copies, y_judged)
            facts = report.RunFacts(layout=self.encoder_.layout(), num_scored=len(y_judged))
            page = report.render(evidence, diagnosis, scores, simple, facts)
            file.write_text(page.html, encoding="utf-8")
        return Path(path)

    def _evidence(self, X: ArrayLike, y: ArrayLike, held_out: HeldOut) -> Evidence:
        """Return what checks of the fit look at, with the names of columns and classes."""
        posterior, coding = self.posterior_, self._fitted.coding
        _, train = self._examples(X, self._targets(y, coding.kind), known=coding)
        scaler = posterior.members[0].x_scaler
        if isinstance(scaler, InputScaler):
            train = train.with_inputs(scaler.inputs)
        names: Any = {"class_names": [*map(str, coding.kind.classes)], "columns": coding.encoder.positions()}
        evidence = Evidence(posterior, train, seed=posterior.seed, **names)
        if held_out is None:
            return evidence
        inputs = self._encoded(held_out[0])
        complete = inputs if coding.imputer is None else coding.imputer.copies(inputs, 1)[0]
        test = Data(complete, self._targets(held_out[1], coding.kind).values, feature_names=train.feature_names)
        return replace(evidence, held_out=test, given=inputs, imputer=coding.imputer)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing == "impute"
        return tags


def _require_spread(method: Any) -> None:
    """Refuse a method whose posterior is a point without a spread, which is no prior."""
    guide = as_guide(guide_of(method))
    if guide.seeks_mode and guide.curvature is None and not method.offer().spreads:
        said = f"{_LATER}, and {guide!r} leaves points without a spread"
        raise InputError(f"{said}: use another, such as 'laplace'.")


def fit_on(so_far: Posterior | Mixture, method: Any, examples: Data, run: Run) -> Posterior | Mixture:
    """Return the posterior with that so far, as independent normals, for its prior, for each member by itself."""
    updated: dict[Posterior, Any] = {}
    for index, member in enumerate(dict.fromkeys(so_far.members)):
        for name, value in member.bnn.net.named_parameters():
            if value.requires_grad:
                raise InputError(f"{_LATER}, and {name!r} has no prior: give all weights a prior.")
        own_run = replace(run, seed=derive(run.seed, f"member {index}"))
        updated[member] = fit_in_silence(update_prior(member), examples, method.learning_on(), own_run)
    first = updated[so_far.members[0]]
    first.note(measured=so_far.record.measured)
    if not isinstance(so_far, Mixture):
        return first
    return Mixture([updated[member] for member in so_far.members], seed=run.seed, record=first.record)


def _diagnosed(evidence: Evidence) -> Diagnosis:
    """Return a diagnosis whose remedies are parameters of estimators."""
    found = diagnosis_of(evidence)
    remedies = [one.remedy and replace(one.remedy, python=one.remedy.code("estimator")) for one in found.findings]
    findings = [replace(one, remedy=remedy) for one, remedy in zip(found.findings, remedies, strict=True)]
    return replace(found, findings=tuple(findings))
