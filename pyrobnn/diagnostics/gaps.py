"""Whether predictions for rows with missing values are as unsure as they should be."""

from collections.abc import Sequence

from torch import Tensor

from pyrobnn._core.remedies import Remedy
from pyrobnn._core.table_cells import MARK
from pyrobnn.diagnostics.findings import Finding
from pyrobnn.metrics.calibration import pit
from pyrobnn.posterior.prediction import Prediction
from pyrobnn.verdict.remedies import Fitted, open_to, varying_noise

_INSIDE = 0.95


def gap_findings(
    prediction: Prediction, y: Tensor, x: object, names: Sequence[str], level: float, *, seed: int, fit: Fitted
) -> list[Finding]:
    """Warn of columns without whose value intervals hold too few targets, by the binomial distribution.

    A mean in the place of a gap is as narrow as a value, and values of similar rows are wrong where other values are
    missing. Complete rows, which are most, hide that in the coverage of all rows.

    Args:
        prediction: predictions of the rows held out.
        y: their targets, (N,) or (N, K).
        x: their inputs, (N, columns) where rows belong to a table, with NaN in gaps that have donors.
        names: names of the columns; one that begins with `MARK` has 1 where a mean stands in a gap of another.
        level: the chance of a warning for a fit that is right, over all columns.
        seed: of the ranks of counts.
        fit: the fit, for remedies.
    """
    from scipy.stats import binom

    if not isinstance(x, Tensor) or x.ndim != 2 or not prediction.has_quantiles:
        return []
    means = {name.removeprefix(MARK): x[:, at] > 0.5 for at, name in enumerate(names) if name.startswith(MARK)}
    marks = means | {name: gap for name, gap in zip(names, x.isnan().T, strict=True) if bool(gap.any())}
    is_inside = ((pit(prediction, y, seed=seed).double() - 0.5).abs() <= _INSIDE / 2).reshape(len(y), -1).cpu()
    found = []
    for name, is_gap in marks.items():
        held, num = int(is_inside[is_gap.cpu()].sum()), int(is_gap.sum()) * is_inside.shape[1]
        if float(binom.cdf(held, num, _INSIDE)) >= level / len(marks):
            continue
        where = f"too narrow where {name!r} is missing"
        why = (
            "A mean stands in each gap, and the fit is as sure of it as of a value."
            if name in means
            else "Values of similar rows stand in each gap: those that are missing may be others."
        )
        text = f"The predictions are {where}: intervals of {_INSIDE:.0%} hold {held} of {num} such targets. {why}"
        fill = Remedy(f"fill the gaps of {name!r} from what you know, or leave these rows or the column out")
        remedies = (*open_to(fit, (varying_noise,)), fill)
        found.append(Finding("gaps", "warning", text, remedies=remedies, plain=f"its predictions are {where}"))
    return found
