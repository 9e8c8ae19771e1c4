"""From a posterior to the page: figures, tables and warnings put into the template."""

import base64
import dataclasses
import functools
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jinja2
import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from pyrobnn import plots
from pyrobnn._core.lock import ignored_warnings
from pyrobnn._core.remedies import Spelling, current_spelling
from pyrobnn._torch.inputs import X, shape_of
from pyrobnn.data.in_memory import Data
from pyrobnn.diagnostics.audit import elbo_report
from pyrobnn.diagnostics.diagnosis import Diagnosis
from pyrobnn.guides.base import built
from pyrobnn.metrics import Score, Scores, permutation_importance, score
from pyrobnn.plots._style import TALL, close, panels
from pyrobnn.plots.classification import draw_reliability
from pyrobnn.plots.regression import draw_coverage, draw_intervals
from pyrobnn.plots.two_inputs import Plane
from pyrobnn.posterior.prediction import joined
from pyrobnn.report import words
from pyrobnn.tables.schema import Input
from pyrobnn.verdict.evidence import Evidence

_AUDIT_DRAWS, _MOST_LISTED = 300, 30  # members whose ELBO the page shows, and rows of a table of its parts
_PLANE_DRAWS = 100
_OF_MEANS = ("r2", "rmse", "mae", "median_error")  # scores that least squares have in place of a linear model's
_FEWEST_FOR_CURVES = 20
_SHUFFLES, _SHUFFLE_DRAWS, _ROWS_FOR_IMPORTANCE = 3, 50, 60_000
_MOST_COLUMNS_FOR_IMPORTANCE, _MOST_EFFECTS = 300, 4
_PICTURE_INCHES, _PICTURE_DPI = 4.0, 200  # on a phone 390 points wide a letter of 9 points has 10 or more


class Rendered(NamedTuple):
    """A report: the page with its figures inside it, and the figures as PNG files, by file name."""

    html: str
    figures: dict[str, bytes]


@dataclasses.dataclass(frozen=True, eq=False)
class RunFacts:
    """Facts about a run that its report shows beside the fit.

    Attributes:
        spec: the settings of the run, whose remedies are options of the command line; None where they are calls.
        manifest: versions, seed, device and time, as nested tables.
        layout: what each input is, of a table of columns.
        notes: lines on what was assumed in reading the data.
        doubts: lines on columns to look at.
        folder: the run folder, for commands.
        num_scored: number of examples that were scored, if not all held out, or of training.

    Examples:
        >>> bnn.report.RunFacts(notes=["column 'size': read as numbers"], folder="runs/iris").folder
        'runs/iris'
    """

    spec: Any = None
    manifest: Mapping[str, Any] = MappingProxyType({})
    layout: Sequence[Input] = ()
    notes: Sequence[str] = ()
    doubts: Sequence[str] = ()
    folder: str = ""
    num_scored: int = 0


def render(
    evidence: Evidence,
    diagnosis: Diagnosis,
    scores: Mapping[str, Score],
    baselines: Mapping[str, Mapping[str, Score]] = MappingProxyType({}),
    facts: RunFacts = RunFacts(),
) -> Rendered:
    """Make the report of a fit, with scores on the held-out data, or of training without them, beside baselines.

    Examples:
        >>> data = bnn.datasets.sinusoid(10)
        >>> posterior = bnn.BNN(bnn.MLP(1, [10], 1)).fit(data, guide="laplace", steps=20, seed=0, progress=False)
        >>> evidence = bnn.verdict.evidence.Evidence(posterior, data)
        >>> scores, diagnosis = bnn.score(posterior.predict(data.x), data.y), bnn.diagnose(posterior, data)
        >>> bnn.report.render(evidence, diagnosis, scores).html[:15]
        '<!doctype html>'
    """
    posterior, train, names = evidence.posterior, evidence.train, evidence.class_names
    with ignored_warnings("The mean, and with it the deviation"):  # where columns are shuffled or set to other values
        drawn = _figures(evidence, facts.layout, has_means="rmse" in scores)
        figures = {name: _png(figure) for name, figure in drawn}
    inputs = [one.said for one in facts.layout] or [*train.feature_names]
    columns = scores.by_column if isinstance(scores, Scores) else ()
    with_density = [pair for pair in enumerate(posterior.members, 1) if built(pair[1].guide).chains() is None]
    parts = {"train on": train} | ({} if evidence.held_out is None else {"score": evidence.held_out})
    spelling: Spelling = "command" if facts.spec is not None else current_spelling.get()
    settings: Any = {kind: repr(part) for kind, part in posterior.bnn.settings.items()}
    settings = settings | {"method": posterior.record.method} if facts.spec is None else facts.spec
    by_class = (data.y.reshape(-1).long().bincount(data.weights, len(names)) for data in parts.values() if names)
    html = _template().render(
        words=words,
        evidence=evidence,
        diagnosis=diagnosis,
        scores=scores,
        baselines=baselines,
        spelling=spelling,
        pictures={name: base64.b64encode(png).decode("ascii") for name, png in figures.items()},
        audits=[(num, elbo_report(each, train, num_draws=_AUDIT_DRAWS)) for num, each in with_density[:_MOST_LISTED]],
        most_listed=_MOST_LISTED,
        facts=facts,
        parts=parts,
        inputs=inputs or [f"arrays of shape {shape_of(train.x[0])}"],
        counts=[*zip(*by_class, strict=True)],
        by_column=[(f"{train.target_name} {number}", column) for number, column in enumerate(columns, 1)],
        tables=[("Settings", words.flat(settings)), ("Manifest", words.flat(facts.manifest))],
    )
    return Rendered(html, {f"{name}.png": png for name, png in figures.items()})


def simple_scores(evidence: Evidence, copies: Iterable[X], y: Tensor) -> dict[str, dict[str, Score]]:
    """Return scores of a constant and of a linear model, both mixtures over copies of the inputs, as the fit is."""
    models = evidence.baselines | ({} if evidence.least_squares is None else {"ordinary": evidence.least_squares})
    by_model = zip(*([model.predict(x) for model in models.values()] for x in copies), strict=True)
    scores = {name: dict(score(joined(parts), y)) for name, parts in zip(models, by_model, strict=True)}
    ordinary = scores.pop("ordinary", {})
    scores.get("linear", {}).update({name: ordinary[name] for name in _OF_MEANS if name in ordinary})
    for name in ("ause", "aurc"):  # a constant has no order
        scores.get("constant", {}).pop(name, None)
    return scores


def _figures(evidence: Evidence, layout: Sequence[Input], *, has_means: bool) -> Iterator[tuple[str, Figure]]:
    """Yield at most six figures: predictions, calibration, columns, simulated data and training."""
    posterior, train, names = evidence.posterior, evidence.train, evidence.class_names
    scored, prediction, history = evidence.judged, evidence.prediction, posterior.history
    target, is_classes = train.target_name, prediction.is_classification
    num_inputs = train.x[0].numel() if train.x.ndim == 2 else 0
    if num_inputs == 1 and not is_classes:
        yield "fit", _alone(lambda axis: plots.fit_1d(posterior, train, ax=axis))
    elif num_inputs == 2:
        draws = max(_PLANE_DRAWS, len(posterior.members))
        plane = Plane.of(posterior, train, num_draws=draws, class_names=names)
        yield "surface", _alone(plane.draw, 0)
        yield "epistemic", _alone(plane.draw, len(plane.surfaces) - 1)
    elif is_classes:
        options: Any = {"target": target, "class_names": names}
        yield "confusion", _alone(lambda axis: plots.confusion(prediction, scored.y, ax=axis, **options))
    elif prediction.has_quantiles:
        yield "observed_vs_predicted", _alone(draw_intervals, prediction, scored.y, target)
    if is_classes:
        yield "reliability", _alone(draw_reliability, prediction, scored.y, target)
    elif prediction.has_quantiles:
        yield "coverage", _alone(draw_coverage, prediction, scored.y, target)
    if num_inputs != 2:  # a plane shows what two columns do
        yield from _of_columns(evidence, scored, layout, has_means=is_classes or has_means)
    if len(scored) >= _FEWEST_FOR_CURVES:
        yield "predictive_check", plots.predictive_check(prediction, scored.y, target=target, class_names=names)
    if history is not None and len(history):
        yield "elbo", plots.elbo(history, layout="column")


def _of_columns(
    evidence: Evidence, scored: Data, layout: Sequence[Input], *, has_means: bool
) -> Iterator[tuple[str, Figure]]:
    """Yield the importance and the effects of columns, from as many rows as a second or two allow."""
    posterior = evidence.posterior
    columns = evidence.columns or {name: [at] for at, name in enumerate(scored.feature_names)}
    if not 1 < len(columns) <= _MOST_COLUMNS_FOR_IMPORTANCE or len(scored) < _FEWEST_FOR_CURVES:
        return
    num_rows = max(_FEWEST_FOR_CURVES, min(len(scored), _ROWS_FOR_IMPORTANCE // (len(columns) * _SHUFFLES)))
    rows = scored[np.linspace(0, len(scored) - 1, num_rows).round().astype(int)]
    draws = max(_SHUFFLE_DRAWS, len(posterior.members))
    table = permutation_importance(posterior, rows, groups=evidence.columns, num_shuffles=_SHUFFLES, num_draws=draws)
    if not np.isfinite(table["importance"]).all():  # a target that cannot be
        return
    pictures = {"importance": plots.importance(table)}
    pictures["importance"].set_figheight(max(pictures["importance"].get_size_inches()))  # stands beside tall ones
    if has_means:
        groups = {str(name): columns[str(name)] for name in table.index[:_MOST_EFFECTS]}
        options: Any = {"class_names": evidence.class_names, "layout": layout}
        pictures["effects"] = plots.effects(posterior, scored, groups=groups, num_draws=draws, **options)
    yield from pictures.items()


def _alone(draw: Callable[..., object], *arguments: Any) -> Figure:
    figure, (axis,) = panels(1, panel=TALL)
    draw(axis, *arguments)
    return figure


def _png(figure: Figure) -> bytes:
    width, height = figure.get_size_inches()
    figure.set_size_inches(_PICTURE_INCHES, _PICTURE_INCHES * height / width)
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=_PICTURE_DPI)
    close(figure)
    return stream.getvalue()


@functools.cache
def _template() -> jinja2.Template:
    loader, options = jinja2.PackageLoader("pyrobnn", "report"), dict[str, Any](trim_blocks=True, lstrip_blocks=True)
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, **options)
    return environment.get_template("report.html.j2")
