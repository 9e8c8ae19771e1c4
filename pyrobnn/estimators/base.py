"""The base of the estimators: parameters, checked rows, fitting, learning on, predictions, files, and diagnoses."""

import datetime
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils import check_consistent_length, check_random_state
from sklearn.utils.validation import _check_sample_weight, _check_y, check_is_fitted, validate_data
from torch import nn

from pyrobnn._core.checks import check_count, check_unmasked
from pyrobnn._core.errors import InputError, PoorFitWarning, did_you_mean, listed, waiting, warn_user
from pyrobnn._core.folders import new_file
from pyrobnn._core.modes import gradients
from pyrobnn._core.random import derive
from pyrobnn._core.remedies import current_spelling
from pyrobnn._core.settings import fields_of
from pyrobnn._core.tree_files import write_tree
from pyrobnn.data import InputColumns
from pyrobnn.data.in_memory import Data, leaks
from pyrobnn.data.splits import numbered
from pyrobnn.diagnostics.diagnosis import Diagnosis, diagnosis_of
from pyrobnn.distributions.units import InputScaler
from pyrobnn.estimators.saved import Coding, Fitted, TargetKind, content, rebuilt
from pyrobnn.guides.base import as_guide, built
from pyrobnn.inference.defaults import choose, settled
from pyrobnn.inference.fit import fit_in_silence, tell, tell_of_constants
from pyrobnn.inference.method import Engine, Run, guide_of
from pyrobnn.inference.parts import PARTS, Facts, Given
from pyrobnn.likelihoods.base import with_offset
from pyrobnn.metrics import score
from pyrobnn.posterior.mixture import Mixture, predict_copies
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.prediction import Prediction
from pyrobnn.posterior.weights import update_prior
from pyrobnn.storage.load import content_of, from_tree
from pyrobnn.storage.save import FORMAT_VERSION, to_tree
from pyrobnn.tables.encoder import Encoder
from pyrobnn.tables.reading import Table, Task, framed, is_frame, read, require_known
from pyrobnn.verdict.evidence import Evidence
from pyrobnn.verdict.finding import Finding

_AT_ONCE = 2**24  # values that a block of predictions holds at most
_FEWEST_ROWS = 10  # that a fit needs, as on the command line
_TIMES = (datetime.date, datetime.time, datetime.timedelta, np.datetime64, np.timedelta64, pd.Period, pd.Interval)
_OF_METHODS = ("steps", "lr", "batch_size")
_OF_PARTS = tuple(f"{name}__" for name in PARTS)
_FITTING = "fitting (verbose=True shows more)"
_SO = "partial_fit makes the posterior so far the prior of the next batch"

type PerRow = ArrayLike | None  # a value for each row, (N,)
type Targets = tuple[np.ndarray, TargetKind]  # targets as numbers, (N,) or (N, K)
type Part = object  # a setting, such as `guides.LowRank(rank=2)`, its name, a table with its type, or None: open


@contextmanager
def _for_estimators() -> Iterator[None]:
    """Compute as for any fit, and spell remedies as parameters of estimators."""
    with gradients(), ExitStack() as stack:
        stack.callback(current_spelling.reset, current_spelling.set("estimator"))
        yield


@dataclass(eq=False, repr=False)
class AbstractBNN(BaseEstimator):
    """Base of the estimators: write `TASK`, `_targets` and predictions."""

    TASK: ClassVar[Task]
    net: Part = None
    _: KW_ONLY
    prior: Part = None
    likelihood: Part = None
    guide: Part = None
    method: Part = None
    steps: int | None = None
    lr: float | None = None
    batch_size: int | None = None
    num_draws: int = 500
    standardize: bool = True
    categories: str | Sequence[str] = "onehot"
    missing: str = "raise"
    random_state: int | np.random.RandomState | None = None
    inputs: InputColumns | None = None
    device: str = "cpu"
    engine: Engine = "auto"
    verbose: bool | None = None
    _fitted: Fitted = field(init=False)  # set as the last act of a fit

    @property
    def _of_fit(self) -> Fitted:
        check_is_fitted(self, "_fitted")
        return self._fitted

    @property
    def posterior_(self) -> Posterior | Mixture:
        """The posterior, as `pyrobnn.fit` returns it, in original units; its inputs are encoded columns."""
        return self._of_fit.posterior

    @property
    def encoder_(self) -> Encoder:
        """The transformer from columns to inputs."""
        return self._of_fit.coding.encoder

    def get_params(self, deep: bool = True) -> dict[str, Any]:  # noqa: FBT001, FBT002 - signature of scikit-learn
        """Return the parameters; if `deep`, also settings of parts, such as guide__rank, for few rows."""
        params: dict[str, Any] = super().get_params(deep=False)
        try:
            parts = self._parts() if deep else {}
        except (ValueError, TypeError):  # only parts have settings; `fit` reports other values
            return params
        return params | {key: value for name, part in parts.items() for key, value in nested(name, part)}

    def set_params(self, **params: Any) -> Self:
        """Set parameters; guide__rank=5 replaces the guide by a guide of rank 5, given by name or as a setting.

        Examples:
            >>> bnn.BNNRegressor(guide="low_rank").set_params(guide__rank=5, prior__scale=0.3).prior
            Normal(scale=0.3, loc=0.0)
        """
        super().set_params(**{key: value for key, value in params.items() if not key.startswith(_OF_PARTS)})
        for name in PARTS:
            if settings := below(name, params):
                part = self._parts(with_settings=False)[name]
                if part is None:
                    raise ValueError(f"Invalid parameters {sorted(settings)}: there is no {name} yet. Set it first.")
                setattr(self, name, replaced(part, settings))
        return self

    def _given(self) -> Given:
        """Return the parts and settings that were given, the parts as settings."""
        told = {name: value for name, value in vars(self).items() if value is not None}
        parts = {name: part.resolve(told[name]) for name, part in PARTS.items() if name in told}
        return Given(**parts, inputs=self.inputs, settings={key: told[key] for key in _OF_METHODS if key in told})

    def _parts(self, *, learns_on: bool = False, with_settings: bool = True) -> dict[str, Any]:
        """Return the parts for few rows by name; the method has the guide and settings that were given, if asked."""
        given, is_scaled = self._given(), bool(self.standardize)
        choice = choose(Facts(task=self.TASK, given=given, is_standardized=is_scaled, learns_on=learns_on))
        parts = choice.candidates[0]
        guide = given.guide or guide_of(parts.method)
        method = parts.method if with_settings else given.method or choice.rule.parts(choice.facts)[0].method
        return {name: getattr(parts, name) for name in PARTS if name != "guide"} | {"guide": guide, "method": method}

    def _targets(self, y: ArrayLike, known: TargetKind | None = None) -> Targets:
        """Return targets, checked; their kind may be known from a fit, or from classes that were declared."""
        raise NotImplementedError

    @_for_estimators()
    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: PerRow = None, groups: PerRow = None) -> Self:
        """Infer the posterior; what cannot be used is a `ValueError`, in the words of scikit-learn, or an `InputError`.

        Args:
            X: inputs (N, features): an array, or a frame with numbers, booleans, dates and categories.
            y: targets (N,) or (N, K), or labels (N,), numbers or text.
            sample_weight: weights (N,), not negative; an example of weight 2 counts as the same example twice.
            groups: labels (N,), such as patients: rows held out to choose a fit keep a group together.
        """
        return self._infer(*self._examples(X, self._targets(y), sample_weight, groups))

    def _infer(self, coding: Coding, data: Data, *, learns_on: bool = False) -> Self:
        """Train on examples; `learns_on` if others follow."""
        given, run = self._given(), self._run()
        tell_of_constants(with_offset(given.likelihood, data))
        for name, fault in leaks(data, coding.encoder.positions()).items():
            leak = Finding(fault, "care", facts={"columns": repr(name)}).lead
            warn_user(f"{leak}: leave it out then.", PoorFitWarning)
        facts = Facts.of(self.TASK, data, given, num_classes=len(coding.kind.classes) or None, learns_on=learns_on)
        num_data = max(facts.num_data, round(data.total_weight))
        if 1 < num_data < _FEWEST_ROWS and not learns_on:
            say = f"There are {num_data} training examples: predictions rest on the prior. Collect"
            warn_user(f"{say} {_FEWEST_ROWS} or more.", PoorFitWarning)
        with waiting(_FITTING, shown=self.verbose is None):
            parts, record = settled(choose(facts), data, run)
            data = data.with_inputs(parts.inputs)
            posterior = fit_in_silence(parts.model(data), data, parts.method, replace(run, choice=record))
        self._fitted = Fitted(coding, facts, posterior)
        tell(posterior, data, progress=run.progress)
        return self

    @_for_estimators()
    def _partial_fit(self, X: ArrayLike, y: ArrayLike, weight: PerRow, declared: TargetKind | None = None) -> Self:
        """Train on examples, or from the posterior so far; the newest rows alone may suit a constant, bad for all."""
        method = self._parts(learns_on=True)["method"]
        guide = as_guide(guide_of(method))
        if guide.seeks_mode and guide.curvature is None and not method.offer().spreads:
            raise InputError(f"{_SO}, and {guide!r} leaves points without a spread: use another, such as 'laplace'.")
        if not hasattr(self, "_fitted"):
            return self._infer(*self._examples(X, self._targets(y, declared), weight), learns_on=True)
        so_far = self._fitted
        if self.method is None and built(so_far.posterior.members[0].guide).chains() is not None:
            raise InputError(f"{_SO}, as independent normals, and Markov chains have none: begin with partial_fit.")
        coding, data = self._examples(X, self._targets(y, so_far.coding.kind), weight, known=so_far.coding)
        choice = choose(replace(so_far.facts, given=self._given(), learns_on=True))
        with waiting(_FITTING, shown=self.verbose is None):
            posterior = fit_on(so_far.posterior, choice.candidates[0].method, data, self._run())
        self._fitted = replace(so_far, coding=coding, posterior=posterior)
        return self

    def _run(self) -> Run:
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        return Run(seed=seed, device=self.device, engine=self.engine, progress=bool(self.verbose))

    def _examples(
        self, X: ArrayLike, targets: Targets, weight: PerRow = None, groups: PerRow = None, known: Coding | None = None
    ) -> tuple[Coding, Data]:
        """Return the coding of rows, as it is `known` or as they teach it, and them as numbers."""
        check_count(self.num_draws, "num_draws")
        table = checked_inputs(self, X, None if known is None else known.encoder)
        columns, (y, kind) = table.columns, targets
        check_consistent_length(columns, y)
        weights = self._weights(y, kind, weight)
        of_rows = None if groups is None else numbered(groups, len(columns), "groups")
        used = np.ones(len(y), dtype=bool) if weights is None else weights > 0
        columns, y = columns[used].reset_index(drop=True), y[used]
        weights, of_rows = (None if each is None else each[used] for each in (weights, of_rows))
        if known is None:
            encoder = Encoder.learn(columns, table.schema, categories=self.categories, missing=self.missing)
            coding = Coding.learn(encoder, columns, y, kind)
        else:
            coding = replace(known, encoder=known.encoder.widened(columns))
        return coding, coding.data(columns, y, weights=weights, groups=of_rows, standardize=self.standardize)

    def _weights(self, targets: np.ndarray, kind: TargetKind, weight: PerRow) -> np.ndarray | None:
        """Return the weights of examples, or None where all count once."""
        if weight is None:
            return None
        check_unmasked(weight, "sample_weight")
        return np.asarray(_check_sample_weight(weight, targets, dtype=np.float64, ensure_non_negative=True))

    def predict_dist(self, X: ArrayLike) -> Prediction:
        """Return the full predictive distribution in original units: the mixture over posterior draws.

        Examples:
            >>> regressor = bnn.BNNRegressor(guide="mean_field", steps=20, random_state=0).fit([[0.0], [1.0]], [0, 1])
            >>> regressor.predict_dist([[0.5]])
            Prediction(Normal, num_draws=500, num_inputs=1)
        """
        return self._predict_rows(self._inputs(X)).named_as(X)

    def outside(self, X: ArrayLike) -> pd.DataFrame:
        """Return counts of unknown categories, missing values and numbers beyond those of the fit, by column."""
        return self.encoder_.outside(checked_inputs(self, X, self.encoder_).columns).table

    def _inputs(self, X: ArrayLike) -> np.ndarray:
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

    def _predict_rows(self, inputs: np.ndarray) -> Prediction:
        return predict_copies(self.posterior_, self._of_fit.coding.imputer, inputs, num_draws=int(self.num_draws))

    def _predict_blocks[T](self, X: ArrayLike, read: Callable[[Prediction], T]) -> list[T]:
        """Apply `read` to the predictions of consecutive blocks of rows; memory is bounded."""
        inputs, blocks = self._inputs(X), list[T]()
        size = max(1, _AT_ONCE // (self.num_draws * max(1, math.prod(self._of_fit.coding.kind.shape))))
        for start in range(0, len(inputs), size):
            prediction = self._predict_rows(inputs[start : start + size])
            prediction.first_row = start
            blocks.append(read(prediction))
        return blocks

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = {**super().__getstate__()}
        if "_fitted" in state:
            state["_fitted"] = vars(self._fitted) | {"posterior": to_tree(self._fitted.posterior)}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_fitted" in state:
            net = self.net if isinstance(self.net, nn.Module) else None
            posterior = from_tree(state["_fitted"].pop("posterior"), Path("The pickle"), net=net)
            self._fitted = Fitted(**state["_fitted"], posterior=posterior)

    def save(self, path: str | Path) -> Path:
        """Write the fitted estimator to a new file for `load`, which executes nothing in it, and return the file.

        If it draws missing values, rows to draw from are in it. A parameter that is an object, as a module, is refused.

        Examples:
            >>> model = bnn.BNNRegressor(guide="mean_field", steps=20, random_state=0).fit([[0.0], [1.0]], [0, 1])
            >>> bnn.BNNRegressor.load(model.save("model")).predict([[1.0]]) == model.predict([[1.0]])
            array([ True])
        """
        write_tree(Path(path), {"format_version": FORMAT_VERSION} | content(self, self._of_fit), replaces=False)
        return Path(path)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Return the estimator that `save` wrote; it predicts the same bits. A file that does not fit is refused."""
        return rebuilt(cls, content_of(Path(path)), Path(path))

    def _evidence(self, X: ArrayLike, y: ArrayLike, held_out: tuple[ArrayLike, ArrayLike] | None) -> Evidence:
        """Return what checks of the fit look at, with the names of columns and classes."""
        coding, posterior = self._of_fit.coding, self.posterior_
        _, train = self._examples(X, self._targets(y, coding.kind), known=coding)
        if isinstance(scaler := posterior.members[0].x_scaler, InputScaler) and len(scaler.columns):
            train = train.with_inputs("waves" if len(scaler.waves) else "ranks")
        of_table: Any = {"class_names": [*map(str, coding.kind.classes)], "columns": coding.encoder.positions()}
        evidence = Evidence(posterior, train, seed=posterior.seed, **of_table)
        if held_out is None:
            return evidence
        given, targets = self._inputs(held_out[0]), self._targets(held_out[1], coding.kind)[0]
        x = given if coding.imputer is None else coding.imputer.copies(given, 1)[0]
        test = Data(x, targets, feature_names=train.feature_names)
        return replace(evidence, held_out=test, given=given, imputer=coding.imputer)

    def diagnose(self, X: ArrayLike, y: ArrayLike, held_out: tuple[ArrayLike, ArrayLike] | None = None) -> Diagnosis:
        """Look for reasons not to trust the fit to rows X and y, as `pyrobnn.diagnose`.

        `held_out` is a pair (X, y) of rows that the fit has not seen. Without them a fit may be called bad, never good.
        """
        return _spelled(diagnosis_of(self._evidence(X, y, held_out)))

    @_for_estimators()
    def report(
        self, path: str | Path, X: ArrayLike, y: ArrayLike, held_out: tuple[ArrayLike, ArrayLike] | None = None
    ) -> Path:
        """Write a page on the fit to rows X and y, an HTML file; its scores are those of `held_out`, if given."""
        from pyrobnn import report
        from pyrobnn.report.page import simple_scores

        evidence = self._evidence(X, y, held_out)
        judged, diagnosis = evidence.judged, _spelled(diagnosis_of(evidence))
        scores, simple = score(evidence.prediction, judged.y), simple_scores(evidence, evidence.copies, judged.y)
        facts = report.RunFacts(layout=self.encoder_.layout(), num_scored=len(judged))
        page = report.render(evidence, diagnosis, scores, simple, facts)
        with new_file(Path(path)) as file:
            file.write_text(page.html, encoding="utf-8")
        return Path(path)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing == "impute"
        return tags


def _spelled(found: Diagnosis) -> Diagnosis:
    """Return a diagnosis whose remedies are parameters of estimators."""
    pairs = [(one, one.remedy and replace(one.remedy, python=one.remedy.code("estimator"))) for one in found.findings]
    return replace(found, findings=tuple(replace(one, remedy=remedy) for one, remedy in pairs))


def nested(prefix: str, part: Part) -> Iterator[tuple[str, Any]]:
    """Yield the settings of a part and of the parts in it, by names such as guide__rank."""
    for name in fields_of(type(part)):
        value = getattr(part, name)
        yield f"{prefix}__{name}", value
        yield from nested(f"{prefix}__{name}", value)


def below(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values under names that begin with a name and "__", without these."""
    return {key.removeprefix(f"{name}__"): value for key, value in values.items() if key.startswith(f"{name}__")}


def replaced(part: Any, values: Mapping[str, Any]) -> Any:
    """Return a part with other settings by name; "method__lr" is the setting `lr` of the inner part `method`."""
    known = list(fields_of(type(part)))
    for name in (key.partition("__")[0] for key in values):
        if name not in known:
            hint = did_you_mean(name, known)
            raise ValueError(f"Invalid parameter {name!r} for {part!r}.{hint} Valid parameters are: {known!r}.")
    changed = replace(part, **{name: values[name] for name in known if name in values})
    inner = {name: settings for name in known if (settings := below(name, values))}
    return replace(changed, **{name: replaced(getattr(changed, name), inner[name]) for name in inner})


def fit_on(fitted: Posterior | Mixture, method: Any, examples: Data, run: Run) -> Posterior | Mixture:
    """Return the posterior with that so far, as independent normals, for its prior, for each member by itself."""
    later: dict[Posterior, Any] = {}
    for index, member in enumerate(dict.fromkeys(fitted.members)):
        for name, value in member.bnn.net.named_parameters():
            if value.requires_grad:
                raise InputError(f"{_SO}, and {name!r} has no prior: give all weights a prior.")
        of_member = replace(run, seed=derive(run.seed, f"member {index}"))
        later[member] = fit_in_silence(update_prior(member), examples, method.learning_on(), of_member)
    first = later[fitted.members[0]]
    first.note(measured=fitted.record.measured)
    if not isinstance(fitted, Mixture):
        return first
    return Mixture([later[member] for member in fitted.members], seed=run.seed, record=first.record)


def checked_inputs(estimator: BaseEstimator, X: ArrayLike, known: Encoder | None) -> Table:
    """Return inputs as a table, read as in the fit if its encoder is known; scikit-learn checks names and number."""
    check_unmasked(X, "X")  # scikit-learn drops masks
    if is_frame(X):
        frame = framed(X)
        validate_data(estimator, X, reset=known is None, skip_check_array=True)
    else:
        odd = _first_odd(np.asarray(X) if isinstance(X, (pd.Series, list, tuple)) else X)
        if odd is not None:
            of = "its columns" if known is None else f"the columns of the fit, {listed(known.columns)}"
            raise InputError(f"X is an array with {str(odd)!r}, and arrays hold numbers: pass a data frame with {of}.")
        values = validate_data(estimator, X, reset=known is None, dtype=np.float64, ensure_all_finite=False)
        frame = pd.DataFrame(values, columns=[f"x{i}" for i in range(values.shape[1])])
    if known is None:
        table = read(frame, categories=estimator.categories, missing=estimator.missing)
    else:
        table = known.read(frame.set_axis([*known.columns], axis=1))
    for note in table.notes:
        warn_user(f"X as it was read: {note}.")
    return table


def checked_targets(y: ArrayLike, *, are_numbers: bool) -> np.ndarray:
    """Return targets (N,) or (N, K), or labels (N,); refuse gaps, dates, and text in place of numbers."""
    if y is None:
        raise InputError("A fit requires y to be passed, but the target y is None.")
    values = np.asarray(y)
    odd = values.flat[0] if values.dtype.kind == "U" and values.size else _first_odd(values)
    if isinstance(odd, _TIMES):
        kind = "intervals" if isinstance(odd, pd.Interval) else "dates or times"
        raise InputError(f"`y` holds {kind}, such as {str(odd)!r}: make numbers of them, as days or by pandas.cut.")
    if are_numbers and isinstance(odd, str):
        said = f"BNNRegressor predicts numbers, and `y` holds text such as {str(odd)!r}"
        raise InputError(f"{said}: use BNNClassifier for classes, or make numbers of text that stands for them.")
    check_unmasked(y, "y")
    require_known(y)
    return np.asarray(_check_y(y, multi_output=are_numbers, y_numeric=are_numbers))


def _first_odd(values: object) -> object:
    """Return the first date, or text that is no number, of an array; None if there is none."""
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "OUMm":
        return None
    odd = (one for one in values.flat if isinstance(one, _TIMES) or (isinstance(one, str) and not _is_number(one)))
    return next(odd, None)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
