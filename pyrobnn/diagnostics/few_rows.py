"""What few rows held out cannot show."""

import math

from pyrobnn._core.counts import counted
from pyrobnn._core.remedies import Remedy
from pyrobnn.diagnostics.findings import FEW_ROWS, Finding

TOO_FEW = 10
"""Held-out examples, of a class where there are some, below which nothing is said of predictions for them."""
_SHARE, _LEVEL, _CLOSE = 0.95, 0.05, 0.1
_MOST_HELD_OUT = 0.5
"""Share of the examples above which holding out more is no remedy."""


def of_few_rows(num: int) -> list[Finding]:
    """Say how many targets intervals of 95 % may miss without a sign, where that is more than 10 % of them too many.

    This is the lower bound of 95 % confidence for their coverage where as many targets are inside as should be. Source:
    Clopper and Pearson (1934), The use of confidence or fiducial limits illustrated in the case of the binomial.

    Args:
        num: number of rows held out.
    """
    from scipy.special import betaincinv

    inside = round(_SHARE * num)
    least = float(betaincinv(inside, num - inside + 1, _LEVEL))
    if least > _SHARE - _CLOSE:
        return []
    rows = counted(num, "example")
    plain = f"{rows} held out cannot tell whether intervals of 95 % hold 95 or {100 * least:.0f} % of new targets"
    return [Finding(FEW_ROWS, "note", f"{plain[:1].upper()}{plain[1:]}: more would.", plain=plain)]


def more_rows(total: int, of: str, least: int) -> Remedy:
    """Return what gives at least so many of a number of examples to the part held out."""
    share = math.ceil(100 * (least + 0.5) / total) / 100
    words = f"hold out {least} or more {of}"
    return Remedy(words, words, (f"data.test={share:g}",)) if share <= _MOST_HELD_OUT else Remedy(f"collect more {of}")
