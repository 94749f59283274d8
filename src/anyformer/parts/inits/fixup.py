"""Fixup: weights that let deep residual networks train without norms.

std = sqrt(2 / fan_in) L^(-1/(2m-2)) ; the last matrix of each branch and the head start at 0     (arXiv 1901.09321)
L is the number of residual branches of the whole model, m the number of matrices in a branch: 4 in attention, where the
value passes two and the scores two more, 2 in a feed-forward net. The update of a branch then does not grow with L. It
belongs to branches without a norm, with the join `fixup` and with parts inside `shifted`.
"""

from dataclasses import dataclass
from typing import Literal

from anyformer.core import InitSpec, Matrix, Role

MATRICES: dict[Role, int] = {"query": 4, "key": 4, "value": 4}
"""Number of matrices in the branch of a matrix with this role; 2 for all other roles."""


@dataclass(frozen=True, kw_only=True)
class FixupInit(InitSpec, kind="fixup"):
    """He initialisation scaled down with depth, with the last matrix of a branch at 0; for models without norms."""

    embeddings: Literal["one", "rsqrt_width"] = "one"
    """Standard deviation of embeddings: 1, or 1 / sqrt(their width) for a tied head that does not scale its logits."""

    def std(self, role: Role, matrix: Matrix) -> float:
        if role in ("out", "head"):
            return 0.0
        if role == "embed" and self.embeddings == "one":
            return 1.0
        if role in ("embed", "position"):
            return float(matrix.fan_in**-0.5)
        depth_scale = matrix.sublayers ** (-1 / (2 * MATRICES.get(role, 2) - 2))
        return float((2 / matrix.fan_in) ** 0.5 * depth_scale)
