"""Results of ArviZ of other kinds; imported inside functions, since ArviZ takes seconds to import."""

from typing import ClassVar

import arviz as az


class HeldOut(az.ELPDData):
    """Expected log pointwise predictive density on held-out data; there is no effective number of parameters."""

    _kind: ClassVar[str] = "held-out"


class LooUnderQ(az.ELPDDataLOO):
    """PSIS-LOO of the draws of an approximate posterior, taken as if they came from the posterior itself."""

    _kind: ClassVar[str] = "LOO under q"
