"""Weights that keep the variance of values, as T5 draws them.

std = 1 / sqrt(fan_in) ; queries 1 / sqrt(fan_in channels), which stands in for the 1 / sqrt(channels) that T5 leaves
out of its scores: use attention with scale = 1. Embeddings get 1          (arXiv 1910.10683; its code)
A table of places gets 1 / sqrt(its width). That is 1 / sqrt(dim) for vectors of the stream; a table of score biases
is as wide as there are heads, and what lies beyond the table is not known here.
"""

from dataclasses import dataclass

from anyformer.core import InitSpec, Matrix, Role


@dataclass(frozen=True, kw_only=True)
class FanIn(InitSpec, kind="fan_in"):
    """Keeps the variance of values: 1 / sqrt(fan_in), as T5 does, for attention with unscaled scores."""

    def std(self, role: Role, matrix: Matrix) -> float:
        if role == "embed":
            return 1.0
        inputs = matrix.fan_in * matrix.channels if role == "query" else matrix.fan_in
        return float(inputs**-0.5)
