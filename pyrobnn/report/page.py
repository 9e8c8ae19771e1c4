"""From a posterior to the page: figures, tables and warnings put into the template."""

import base64
import dataclasses
import functools
import io
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jinja2
from matplotlib.figure import Figure

from pyrobnn import plots
from pyrobnn.data.in_memory import Data
from pyrobnn.diagnostics.audit import ElboReport, elbo_report
from pyrobnn.diagnostics.chains import chains_of
from pyrobnn.diagnostics.findings import Diagnosis
from pyrobnn.guides.built import built
from pyrobnn.metrics import Score
from pyrobnn.posterior.mixture import Mixture, members_of
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.prediction import Prediction
from pyrobnn.posterior.record import LaplaceRecord
from pyrobnn.report import words

_AUDIT_DRAWS = 300
_PREDICTIVE_DRAWS = 500
_MOST_ROWS = 30
_FEWEST_FOR_CURVES = 20
_DPI = 160


@dataclasses.dataclass(frozen=True, eq=False)
class Rendered:
    """A report: the page with its figures inside it, and the figures as PNG files, by file name."""

    html: str
    figures: dict[str, bytes]


@dataclasses.dataclass(frozen=True, eq=False)
class _Picture:
    name: str
    title: str
    caption: str
    png: bytes

    @property
    def base64(self) -> str:
        return base64.b64encode(self.png).decode("ascii")


def render(
    posterior: Posterior | Mixture,
    *,
    train: Data,
    test: Data | None,
    scores: Mapping[str, Score],
    diagnosis: Diagnosis,
    spec: Any,
    manifest: Mapping[str, Any],
    class_names: Sequence[str] = (),
    baselines: Mapping[str, Mapping[str, Score]] = MappingProxyType({}),
) -> Rendered:
    """Make the report of a run, with `test` None if the scores are about the training data.

    One guide with a density has the audited ELBO in it, a mixture the ELBO of each member that has one, and Markov
    chains their R-hat, effective sample sizes and divergences. `spec` are the settings of the run as nested tables or
    as a setting, or None; `baselines` the same scores of simpler models, by the name of the model.
    """
    scored = train if test is None else test
    prediction = posterior.predict(scored.x, num_draws=_PREDICTIVE_DRAWS)
    pictures = _pictures(posterior, train, scored, prediction)
    chains = chains_of(posterior, train)
    html = _template().render(
        title=f"{train.target_name}: Bayesian neural network",
        sentence=words.sentence(posterior, train),
        diagnosis=diagnosis,
        scores=words.score_rows(scores),
        baselines=baselines,
        evidence=_evidence(posterior),
        next_steps=words.next_steps(diagnosis, has_test=test is not None),
        scored="training" if test is None else "test",
        num_scored=len(scored),
        pictures=pictures,
        audits=_audits(posterior, train),
        num_members=len(members_of(posterior)),
        most_rows=_MOST_ROWS,
        chains=chains,
        tables=[
            ("Data", words.data_rows(train, test, class_names)),
            ("How the fit ended", words.ending_rows(posterior)),
            ("Settings", words.flat(words.settings(posterior) if spec is None else spec)),
            ("Manifest", words.flat(manifest)),
        ],
    )
    return Rendered(html, {picture.name: picture.png for picture in pictures})


def _evidence(posterior: Posterior | Mixture) -> LaplaceRecord | None:
    """Return the log evidence of a Laplace approximation and its parts."""
    return None if isinstance(posterior, Mixture) else posterior.record.laplace


def _audits(posterior: Posterior | Mixture, train: Data) -> list[tuple[int, ElboReport]]:
    """Return the audited ELBO of each member that has a density, with its number; a posterior is its only member."""
    members = [pair for pair in enumerate(members_of(posterior), 1) if built(pair[1].guide).chains() is None]
    return [(number, elbo_report(member, train, num_draws=_AUDIT_DRAWS)) for number, member in members[:_MOST_ROWS]]


def _pictures(posterior: Posterior | Mixture, train: Data, scored: Data, prediction: Prediction) -> list[_Picture]:
    pictures = _predictive(posterior, train, scored, prediction)
    enough = len(scored) >= _FEWEST_FOR_CURVES
    if enough and prediction.has_quantiles:
        caption = "Where the targets fall in their predictive distributions: flat if predictions are calibrated."
        figure = plots.pit(prediction, scored.y, layout="column")
        pictures.append(_picture("pit.png", "Calibration", caption, figure))
    if enough:
        caption = "Data simulated from the fit, beside the data that were seen: do they look alike?"
        figure = plots.predictive_check(prediction, scored.y)
        pictures.append(_picture("predictive_check.png", "Simulated data", caption, figure))
    if posterior.history is not None and len(posterior.history):
        mean = ", the mean over the members" if isinstance(posterior, Mixture) else ""
        caption = f"Evidence lower bound by step{mean}. A flat end proves nothing where the learning rate goes to zero."
        pictures.append(_picture("elbo.png", "Training", caption, plots.elbo(posterior.history, layout="column")))
    if not isinstance(posterior, Mixture):  # members have modes of their own, whose weights do not correspond
        caption = "Weights with a ratio well below 1 are hardly told from 0 by the data."
        pictures.append(_picture("weights.png", "Weights", caption, plots.weights(posterior, layout="column")))
    if enough and (prediction.is_classification or prediction.has_quantiles):
        caption = "Dropping what the fit is least sure of should lower the error, nearly as fast as the best order."
        figure = plots.sparsification(prediction, scored.y)
        pictures.append(_picture("sparsification.png", "Is the error where the doubt is?", caption, figure))
    return pictures


def _predictive(posterior: Posterior | Mixture, train: Data, scored: Data, prediction: Prediction) -> list[_Picture]:
    if prediction.is_classification:
        caption = "On the diagonal, predictions are right as often as their confidence says."
        figure = plots.reliability(prediction, scored.y, layout="column")
        return [_picture("reliability.png", "Predictions", caption, figure)]
    if train.x.shape[1:].numel() == 1 and train.x.ndim == 2:
        caption = (
            "The blue band is what more data would narrow; the grey one around it is all of the predictive spread."
        )
        return [_picture("fit.png", "Predictions", caption, plots.fit_1d(posterior, train))]
    if not prediction.has_quantiles:
        return []
    caption = "Calibrated intervals hold their nominal share of the targets."
    figure = plots.observed_vs_predicted(prediction, scored.y, layout="column")
    return [_picture("observed_vs_predicted.png", "Predictions", caption, figure)]


def _picture(name: str, title: str, caption: str, figure: Figure) -> _Picture:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=_DPI)
    return _Picture(name, title, caption, stream.getvalue())


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("pyrobnn", "report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2")
