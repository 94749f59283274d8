"""Weights that keep the variance of values and of gradients alike, on average.

std = sqrt(2 / (fan_in + fan_out))          (Glorot and Bengio 2010, eq. 12, as a normal distribution)
Matrices laid side by side in one tensor count one by one. A table of vectors is looked up, not multiplied: its rows
get length 1 on average, std = 1 / sqrt(width).
"""

from dataclasses import dataclass

from anyformer.core import InitSpec, Matrix, Role


@dataclass(frozen=True, kw_only=True)
class Xavier(InitSpec, kind="xavier"):
    """Keeps the variance of values and gradients alike: sqrt(2 / (fan_in + fan_out))."""

    def std(self, role: Role, matrix: Matrix) -> float:
        if role in ("embed", "position"):
            return float(matrix.fan_in**-0.5)
        return float((2 / (matrix.fan_in + matrix.fan_out)) ** 0.5)
