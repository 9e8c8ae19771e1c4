"""Common parts of the estimators: parameters with nested names, checked inputs, fitting, and pickling."""

import datetime
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import numpy as np
import pandas as pd
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state, check_X_y
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import nn

from pyrobnn._core.checks import as_tensor, check_count, check_flag, check_unmasked
from pyrobnn._core.errors import InputError, PoorFitWarning, did_you_mean, listed, waiting, warn_user
from pyrobnn._core.folders import new_file
from pyrobnn._core.modes import gradients
from pyrobnn._core.random import derive
from pyrobnn._core.remedies import reader
from pyrobnn._core.settings import fields_of
from pyrobnn._core.tree_files import write_tree
from pyrobnn.bnn import BNN
from pyrobnn.data.imputed import Imputer, stacked, with_targets
from pyrobnn.data.in_memory import Data, leaks
from pyrobnn.data.splits import numbered
from pyrobnn.diagnostics.diagnosis import Diagnosis, diagnosis_of
from pyrobnn.estimators.saved import content, rebuilt
from pyrobnn.guides.base import as_guide, built
from pyrobnn.inference.defaults import choose, settled
from pyrobnn.inference.fit import fit_in_silence, tell, tell_of_constants
from pyrobnn.inference.method import Run, guide_of
from pyrobnn.inference.parts import PARTS, Facts, Given
from pyrobnn.metrics import score
from pyrobnn.posterior.mixture import Mixture, predict_copies
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.prediction import Prediction
from pyrobnn.posterior.weights import update_prior
from pyrobnn.storage.load import content_of, from_tree
from pyrobnn.storage.save import FORMAT_VERSION, to_tree
from pyrobnn.tables.encoder import Encoder
from pyrobnn.tables.reading import Table, Task, framed, is_frame, read, require_known
from pyrobnn.verdict.evidence import Budget, Evidence
from pyrobnn.verdict.finding import Finding

NO_TARGETS = "no_validation"  # in place of targets where there are none, as in scikit-learn
_LARGEST_SEED = 2**31 - 1
_AT_ONCE = 2**24  # values that a block of predictions holds at most
_FEWEST_ROWS = 10  # that a fit needs, as on the command line
_TIMES = (datetime.date, datetime.time, datetime.timedelta, np.datetime64, np.timedelta64, pd.Period, pd.Interval)


@contextmanager
def _for_estimators() -> Iterator[None]:
    """Compute as for any fit, and spell remedies as parameters of estimators."""
    with gradients(), ExitStack() as stack:
        stack.callback(reader.reset, reader.set("estimator"))
        yield


@dataclass(eq=False, repr=False)
class AbstractBNN(BaseEstimator):
    """Base of the estimators: write `TASK`, `_check_targets` and predictions."""

    TASK: ClassVar[Task]
    _TARGETS: ClassVar[dict[str, Any]] = {}  # how scikit-learn's validators take targets

    net: Any = None
    _: KW_ONLY
    prior: Any = None
    likelihood: Any = None
    guide: Any = None
    method: Any = None
    steps: Any = None
    lr: Any = None
    batch_size: Any = None
    num_draws: Any = 500
    standardize: Any = True
    categories: Any = "onehot"
    missing: Any = "raise"
    random_state: Any = None
    inputs: Any = None
    device: Any = "cpu"
    engine: Any = "auto"
    verbose: Any = None
    _imputer = cast("Imputer | None", None)

    def get_params(self, deep: bool = True) -> dict[str, Any]:  # noqa: FBT001, FBT002 - signature of scikit-learn
        """Return the parameters; if `deep`, also settings of parts, such as guide__rank, for few rows."""
        params: dict[str, Any] = super().get_params(deep=False)
        if not deep:
            return params
        try:
            parts = self._parts()
        except (ValueError, TypeError):  # only parts have settings; `fit` reports other values
            return params
        return params | {key: value for name, part in parts.items() for key, value in nested(name, part)}

    def set_params(self, **params: Any) -> Any:
        """Set parameters; guide__rank=5 replaces the guide by a guide of rank 5, given by name or as a setting.

        Examples:
            >>> bnn.BNNRegressor(guide="low_rank").set_params(guide__rank=5, prior__scale=0.3).prior
            Normal(scale=0.3, loc=0.0)
        """
        direct, inner = grouped(params)
        known = {name: settings for name, settings in inner.items() if name in PARTS}
        unknown = {key: value for key, value in params.items() if key.partition("__")[0] not in known}
        super().set_params(**(direct | unknown))
        for name, settings in known.items():
            part = self._parts(as_given=True)[name]
            if part is None:
                said = f"Invalid parameters {sorted(settings)} of {name}: the default method has none."
                raise ValueError(f"{said} Set {name} first.")
            setattr(self, name, replaced(part, settings))
        return self

    def _given(self) -> Given:
        """Return the parts and settings that were given, the parts as settings."""
        names, state = ("steps", "lr", "batch_size"), vars(self)
        parts = {name: part.resolve(state[name]) for name, part in PARTS.items() if state[name] is not None}
        told = {name: state[name] for name in names if state[name] is not None}
        return Given(**parts, inputs=self.inputs, settings=told)

    def _parts(self, *, learns_on: bool = False, as_given: bool = False) -> dict[str, Any]:
        """Return the parts by name, the defaults for few rows; the method has its settings, or is `as_given`."""
        given = self._given()
        facts = Facts(task=self.TASK, given=given, is_standardized=bool(self.standardize), learns_on=learns_on)
        choice = choose(facts)
        parts = choice.candidates[0]
        found = {name: getattr(parts, name) for name in PARTS if name != "guide"}
        found["guide"] = guide_of(parts.method) if given.guide is None else given.guide
        if as_given:
            found["method"] = given.method or choice.rule.parts(choice.facts)[0].method
        return found

    def _check_targets(self, y: Any, *, reset: bool, classes: Any) -> np.ndarray:
        """Return targets as numbers, and keep their properties for predictions."""
        raise NotImplementedError

    @_for_estimators()
    def fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> Self:
        """Infer the posterior; what cannot be used is a `ValueError`, in the words of scikit-learn, or an `InputError`.

        Args:
            X: inputs (N, features): an array, or a frame with numbers, booleans, dates and categories.
            y: targets (N,) or (N, K), or labels (N,), numbers or text.
            sample_weight: weights (N,), not negative; an example of weight 2 counts as the same example twice.
            groups: labels (N,), such as patients: rows held out to choose a fit keep a group together.
        """
        return self._fit(self._examples(X, y, sample_weight, reset=True, groups=groups), reset=True)

    def _fit(self, examples: Data, *, reset: bool, learns_on: bool = False) -> Self:
        """Train on examples: anew, or from the posterior so far; `learns_on` if others follow."""
        given = self._given()
        seed = int(check_random_state(self.random_state).randint(_LARGEST_SEED))
        run = Run(seed=seed, device=self.device, engine=self.engine, progress=bool(self.verbose))
        if reset:
            tell_of_constants(examples)
            for name, kind in leaks(examples, self.encoder_.columns).items():
                leak = Finding(kind, "care", facts={"columns": repr(name)}).lead
                warn_user(f"{leak}: leave it out then.", PoorFitWarning)
            num = self._num_labels or None
            self._facts = Facts.of(self.TASK, examples, given, num_classes=num, learns_on=learns_on)
            num_data = max(self._facts.num_data, round(examples.total_weight))
            if 1 < num_data < _FEWEST_ROWS and not learns_on:
                say = f"There are {num_data} training examples: predictions rest on the prior. Collect"
                warn_user(f"{say} {_FEWEST_ROWS} or more.", PoorFitWarning)
        choice = choose(replace(self._facts, given=given, learns_on=learns_on))
        with waiting("fitting (verbose=True shows more)", shown=self.verbose is None):
            if reset:
                parts, record = settled(choice, examples, run)
                run, examples = replace(run, choice=record), examples.with_inputs(parts.inputs)
                self.posterior_ = fit_in_silence(parts.model(examples), examples, parts.method, run)
            else:
                self.posterior_ = fit_on(self.posterior_, choice.candidates[0].method, examples, run)
        if reset:  # the newest rows alone may suit a constant that is bad for all
            tell(self.posterior_, examples, progress=run.progress)
        return self

    def _examples(
        self, X: Any, y: Any, weight: Any, *, reset: bool, classes: Any = None, groups: Any = None, is_new: bool = False
    ) -> Data:
        """Return checked rows as numbers; a new fit learns the columns, and targets draw what rows lack unless new."""
        check_count(self.num_draws, "num_draws")
        require_no_dates(y, or_text=self.TASK == "regression")
        table, y = self._checked(X, y, reset=reset)
        columns, targets = table.columns, self._check_targets(y, reset=reset, classes=classes)
        weights = self._weights(y, weight)
        of_rows = None if groups is None else numbered(groups, len(columns), "groups")
        if weights is not None:
            used = weights > 0
            columns, targets, weights = columns[used].reset_index(drop=True), targets[used], weights[used]
            of_rows = None if of_rows is None else of_rows[used]
        if reset:
            self.encoder_ = Encoder.learn(columns, table.how, categories=self.categories, missing=self.missing)
        x, categories = self.encoder_.matrix(columns), self.encoder_.onehot()
        learns = bool(categories) or self.missing == "impute"
        both = with_targets(x, targets, self._num_labels) if learns and not is_new else x
        if reset:
            self._imputer = Imputer(both, categories, both.shape[1] - x.shape[1]) if learns else None
        if self._imputer is not None:
            imputer = replace(self._imputer, targets=both.shape[1] - x.shape[1])
            x, targets, weights, copies = stacked(both, targets, weights, imputer)
            of_rows = copies if of_rows is None or copies is None else of_rows[copies]
        names, scaled = self.encoder_.get_feature_names_out().tolist(), check_flag(self.standardize, "standardize")
        return Data(x, targets, weights=weights, standardize=scaled, feature_names=names, groups=of_rows)

    @_for_estimators()
    def _partial_fit(self, X: Any, y: Any, sample_weight: Any, *, classes: Any = None) -> Any:
        method, reset = self._parts(learns_on=True)["method"], not hasattr(self, "posterior_")
        guide, so = as_guide(guide_of(method)), "partial_fit makes the posterior so far the prior of the next batch"
        if guide.seeks_mode and guide.curvature is None and not method.offer().spreads:
            raise InputError(f"{so}, and {guide!r} leaves points without a spread: use another, such as 'laplace'.")
        if not reset and self.method is None and built(self.posterior_.members[0].guide).chains() is not None:
            raise InputError(f"{so}, as independent normals, and Markov chains have none: begin with partial_fit.")
        return self._fit(self._examples(X, y, sample_weight, reset=reset, classes=classes), reset=reset, learns_on=True)

    def _checked(self, X: Any, y: Any = NO_TARGETS, *, reset: bool) -> tuple[Table, Any]:
        """Return inputs as a table, and targets, after the checks that scikit-learn makes on any estimator's."""
        for values, name in ((X, "X"), (y, "y")):  # scikit-learn drops masks
            check_unmasked(values, name)
            if isinstance(values, torch.Tensor):
                as_tensor(values, name)
        require_known(y)
        has_targets, known = not (isinstance(y, str) and y == NO_TARGETS), None if reset else self.encoder_
        of_numbers = {"dtype": np.float64, "ensure_all_finite": False}
        if is_frame(X):
            frame = framed(X)
            validate_data(self, X, reset=reset, skip_check_array=True)
            frame = frame if known is None else frame.set_axis([*known.columns], axis=1)
            rows = np.zeros((len(frame), 1))
            _, y = check_X_y(rows, y if has_targets else rows[:, 0], **of_numbers, **self._TARGETS)
        else:
            odd = _first_odd(np.asarray(X) if isinstance(X, (pd.Series, list, tuple)) else X)
            if odd is not None:
                of = "its columns" if known is None else f"the columns of the fit, {listed(known.columns)}"
                said = f"X is an array with {str(odd)!r}, and arrays hold numbers"
                raise InputError(f"{said}: pass a data frame with {of}.")
            if has_targets:
                X, y = validate_data(self, X, y, reset=reset, **of_numbers, **self._TARGETS)
            else:
                X = validate_data(self, X, reset=reset, **of_numbers)
            frame = pd.DataFrame(X, columns=[f"x{i}" for i in range(X.shape[1])] if known is None else [*known.columns])
        table = read(frame, categories=self.categories, missing=self.missing) if known is None else known.read(frame)
        for note in table.notes:
            warn_user(f"C{note[1:]}.")
        return table, y

    def _weights(self, y: np.ndarray, sample_weight: Any) -> np.ndarray | None:
        """Return the weights of examples, or None where all count once."""
        if sample_weight is None:
            return None
        check_unmasked(sample_weight, "sample_weight")
        return np.asarray(_check_sample_weight(sample_weight, y, dtype=np.float64, ensure_non_negative=True))

    def predict_dist(self, X: Any) -> Prediction:
        """Return the full predictive distribution in original units: the mixture over posterior draws.

        Examples:
            >>> regressor = bnn.BNNRegressor(guide="mean_field", steps=20, random_state=0).fit([[0.0], [1.0]], [0, 1])
            >>> regressor.predict_dist([[0.5]])
            Prediction(Normal, num_draws=500, num_inputs=1)
        """
        return self._predict_rows(self._inputs(X)).named_as(X)

    def outside(self, X: Any) -> pd.DataFrame:
        """Return counts of unknown categories, missing values and numbers beyond those of the fit, by column."""
        check_is_fitted(self, "posterior_")
        return self.encoder_.outside(self._checked(X, reset=False)[0].columns).table

    def _inputs(self, X: Any) -> np.ndarray:
        check_is_fitted(self, "posterior_")
        table, _ = self._checked(X, reset=False)
        outside = self.encoder_.outside(table.columns)
        if len(outside.table.query("unknown > 0 or missing > 0")):
            what = "are -1" if self.encoder_.categories == "ordinal" else "are predicted as mixtures of the known ones"
            warn_user(
                f"X has what the fit had not: unknown categories {what}, and missing values are drawn given the others."
                f"\n{outside.table.to_string()}"
            )
        elif outside.warning:
            warn_user(outside.warning)
        return self.encoder_.matrix(table.columns)

    def _predict_rows(self, inputs: np.ndarray) -> Prediction:
        return predict_copies(self.posterior_, self._imputer, inputs, num_draws=int(self.num_draws))

    def _predict_blocks(self, X: Any, read: Any) -> list[Any]:
        """Apply `read` to the predictions of consecutive blocks of rows; memory is bounded."""
        inputs, blocks = self._inputs(X), []
        size = max(1, _AT_ONCE // (self.num_draws * max(1, self._width)))
        for start in range(0, len(inputs), size):
            prediction = self._predict_rows(inputs[start : start + size])
            prediction.first_row = start
            blocks.append(read(prediction))
        return blocks

    @property
    def _width(self) -> int:
        """The number of columns that a prediction has."""
        raise NotImplementedError

    @property
    def _num_labels(self) -> int:
        return self._width if self.TASK == "classification" else 0

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())
        if "posterior_" in state:
            state["posterior_"] = to_tree(state["posterior_"])
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "posterior_" in state:
            net = self.net if isinstance(self.net, nn.Module) else None
            self.posterior_ = from_tree(state["posterior_"], Path("The pickle"), net=net)

    def save(self, path: str | Path) -> Path:
        """Write the fitted estimator to a new file for `load`, which executes nothing in it, and return the file.

        If it draws missing values, rows to draw from are in it. A parameter that is an object, as a module, is refused.

        Examples:
            >>> model = bnn.BNNRegressor(guide="mean_field", steps=20, random_state=0).fit([[0.0], [1.0]], [0, 1])
            >>> bnn.BNNRegressor.load(model.save("model")).predict([[2.0]]) == model.predict([[2.0]])
            array([ True])
        """
        check_is_fitted(self, "posterior_")
        write_tree(Path(path), {"format_version": FORMAT_VERSION} | content(self), replaces=False)
        return Path(path)

    @classmethod
    def load(cls, path: str | Path) -> Any:
        """Return the estimator that `save` wrote; it predicts the same bits. A file that does not fit is refused."""
        return rebuilt(cls, content_of(Path(path)), Path(path))

    def _evidence(self, X: Any, y: Any, held_out: Any) -> Evidence:
        """Return what checks of the fit look at, with the names of columns and classes."""
        check_is_fitted(self, "posterior_")
        labels = vars(self).get("classes_")
        of_fit: Any = {"weight": None, "reset": False, "classes": labels}
        train = self._examples(X, y, **of_fit)
        test = None if held_out is None else self._examples(*held_out, is_new=True, **of_fit)
        names, seed = [] if labels is None else [str(label) for label in labels], self.posterior_.seed
        return Evidence(self.posterior_, train, test, Budget(), seed, names, columns=self.encoder_.positions())

    def diagnose(self, X: Any, y: Any, held_out: tuple[Any, Any] | None = None) -> Diagnosis:
        """Look for reasons not to trust the fit to rows X and y, as `pyrobnn.diagnose`.

        `held_out` is a pair (X, y) of rows that the fit has not seen. Without them a fit may be called bad, never good.
        """
        return _spelled(diagnosis_of(self._evidence(X, y, held_out)))

    def report(self, path: str | Path, X: Any, y: Any, held_out: tuple[Any, Any] | None = None) -> Path:
        """Write a page on the fit to rows X and y, an HTML file; its scores are those of `held_out`, if given."""
        from pyrobnn.report import Facts, render
        from pyrobnn.runs.run import simple_scores

        evidence = self._evidence(X, y, held_out)
        data = evidence.train if evidence.held_out is None else evidence.held_out
        facts = Facts(layout=self.encoder_.layout())
        found, scores = _spelled(diagnosis_of(evidence)), score(self.posterior_.predict(data.x), data.y)
        page = render(evidence, found, scores, simple_scores(evidence, data), facts)
        with new_file(Path(path)) as file:
            file.write_text(page.html, encoding="utf-8")
        return Path(path)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing == "impute"
        return tags


def _spelled(diagnosis: Diagnosis) -> Diagnosis:
    """Return a diagnosis whose remedies are parameters of estimators."""
    remedies = [one.remedy and replace(one.remedy, python=one.remedy.code("estimator")) for one in diagnosis.findings]
    pairs = zip(diagnosis.findings, remedies, strict=True)
    return replace(diagnosis, findings=tuple(replace(one, remedy=remedy) for one, remedy in pairs))


def nested(prefix: str, part: Any) -> Iterator[tuple[str, Any]]:
    """Yield the settings of a part and of the parts in it, by names such as guide__rank."""
    for name in fields_of(type(part)):
        value = getattr(part, name)
        yield f"{prefix}__{name}", value
        yield from nested(f"{prefix}__{name}", value)


def replaced(part: Any, values: Mapping[str, Any]) -> Any:
    """Return a part with other settings by name; "method__lr" is the setting `lr` of the inner part `method`."""
    direct, inner = grouped(values)
    known = list(fields_of(type(part)))
    for name in (*direct, *inner):
        if name not in known:
            hint = did_you_mean(name, known)
            raise ValueError(f"Invalid parameter {name!r} for {part!r}.{hint} Valid parameters are: {known!r}.")
    changed = replace(part, **direct) if direct else part
    below = {name: replaced(getattr(changed, name), settings) for name, settings in inner.items()}
    return replace(changed, **below) if below else changed


def grouped(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Split values into those under plain names, and those under nested names by the first name."""
    direct = {key: value for key, value in values.items() if "__" not in key}
    inner: dict[str, dict[str, Any]] = {}
    for key in [key for key in values if key not in direct]:
        name, _, rest = key.partition("__")
        inner.setdefault(name, {})[rest] = values[key]
    return direct, inner


def require_no_dates(y: Any, *, or_text: bool) -> None:
    """Refuse targets that are dates, or texts; objects may be texts of numbers, which scikit-learn reads."""
    values = np.zeros(0) if isinstance(y, torch.Tensor) else np.asarray(y)
    odd = values.flat[0] if values.dtype.kind == "U" and values.size else _first_odd(values)
    if isinstance(odd, _TIMES):
        kind = "intervals" if isinstance(odd, pd.Interval) else "dates or times"
        how = "make numbers of them, as days or pandas.cut(..., labels=False)"
        raise InputError(f"`y` holds {kind}, such as {str(odd)!r}: {how}.")
    if or_text and isinstance(odd, str):
        said = f"BNNRegressor predicts numbers, and `y` holds text such as {str(odd)!r}"
        raise InputError(f"{said}: use BNNClassifier for classes, or make numbers of text that stands for them.")


def _first_odd(values: Any) -> Any:
    """Return the first text that is no number, or the first date, of an array; None if there is none."""
    is_array = isinstance(values, np.ndarray) and values.dtype.kind in "OUMm"
    for value in values.flat if is_array else ():
        try:
            if isinstance(value, _TIMES) or (isinstance(value, str) and float(value) is None):
                return value
        except ValueError:
            return value
    return None


def fit_on(fitted: Posterior | Mixture, method: Any, examples: Data, run: Run) -> Any:
    """Return the posterior with that so far, as independent normals, for its prior, for each member by itself."""
    alone = method.learning_on()
    later: dict[Posterior, Any] = {}
    for index, member in enumerate(dict.fromkeys(fitted.members)):
        of_member = replace(run, seed=derive(run.seed, f"member {index}"))
        later[member] = fit_in_silence(_updated(member), examples, alone, of_member)
    first = later[fitted.members[0]]
    first.note(measured=fitted.record.measured)
    if not isinstance(fitted, Mixture):
        return first
    return Mixture([later[member] for member in fitted.members], seed=run.seed, record=first.record)


def _updated(posterior: Posterior) -> BNN:
    """Return the model with a posterior for its prior; refuse weights without a prior."""
    fixed = [name for name, value in posterior.bnn.net.named_parameters() if value.requires_grad]
    if fixed:
        so = "partial_fit makes the posterior so far the prior of the next batch"
        raise InputError(f"{so}, and {fixed[0]!r} has no prior: give all weights a prior.")
    return update_prior(posterior)
