"""Weights for rates that transfer over widths: values have the same size in a narrow and in a wide model.

std = deviation sqrt(width / fan_in) ; what feeds the residual stream / sqrt(residual branches) ; heads deviation
width / fan_in ; embeddings deviation          (arXiv 2203.03466, table 3)
With `width` inputs all are the usual 0.02. It belongs to `optimizer.transfer.kind = "mup"`.
"""

from dataclasses import dataclass

from anyformer.core import Count, InitSpec, Matrix, Positive, Role


@dataclass(frozen=True, kw_only=True)
class MuPInit(InitSpec, kind="mup"):
    """Narrower distributions for matrices with more inputs, so that learning rates transfer over widths."""

    deviation: Positive = 0.02
    """Standard deviation of embeddings, and of a matrix with `width` inputs."""
    width: Count = 256
    """Number of inputs at which a matrix has this deviation."""

    def std(self, role: Role, matrix: Matrix) -> float:
        if role in ("embed", "position"):
            return self.deviation
        if role == "head":
            return self.deviation * self.width / matrix.fan_in
        branches = matrix.residuals if role == "out" else 1
        return float(self.deviation * (self.width / (matrix.fan_in * branches)) ** 0.5)
