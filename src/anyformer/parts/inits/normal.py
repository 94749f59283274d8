"""One normal distribution for every matrix, as GPT and BERT have it.

std = 0.02 ; with out = "by_depth" what feeds the residual stream gets 0.02 / sqrt(residual branches), as in GPT-2; with
out = "zero" it starts at 0, so that every branch begins as the identity (arXiv 1901.09321).
"""

import math
from dataclasses import dataclass
from typing import Literal

from anyformer.core import InitSpec, Matrix, Positive, Role


@dataclass(frozen=True, kw_only=True)
class NormalInit(InitSpec, kind="normal"):
    """One normal distribution for every matrix, narrower for output projections of residual branches if so set."""

    deviation: Positive = 0.02
    """Standard deviation."""
    out: Literal["same", "by_depth", "zero"] = "by_depth"
    """Output projections: like the others, divided by the square root of the number of residual branches, or 0."""

    def std(self, role: Role, matrix: Matrix) -> float:
        if role == "out" and self.out == "by_depth":
            return self.deviation / math.sqrt(matrix.residuals)
        return 0.0 if role == "out" and self.out == "zero" else self.deviation
