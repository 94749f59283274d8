"""How a cost grows: y = c x^a, fitted by least squares of the logarithms; and how it grew over the last step."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.rows import Row


@dataclass(frozen=True)
class Curve:
    """One cost along an axis."""

    x: Sequence[float]
    y: Sequence[float]

    @property
    def exponent(self) -> float:
        return float(np.polyfit(np.log(self.x), np.log(self.y), 1)[0])

    @property
    def last(self) -> float:
        """Between the two largest: where the constant costs no longer hide the rest."""
        return math.log(self.y[-1] / self.y[-2]) / math.log(self.x[-1] / self.x[-2])


@dataclass(frozen=True)
class Growth:
    """Along one axis: milliseconds of an update, the fewest that its operations allow, and bytes."""

    axis: str
    time: Curve
    operations: Curve
    memory: Curve


def growths(rows: Iterable[Row]) -> list[Growth]:
    """Of every axis that has at least two points."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if row.item == "growth" and row.ok and None not in (row.ours_ms, row.limit_ms, row.mem_ours):
            found.setdefault(str(row.shape["axis"]), []).append(row)
    return [_growth(axis, some) for axis, some in found.items() if len(some) > 1]


def _growth(axis: str, rows: list[Row]) -> Growth:
    rows = sorted(rows, key=lambda row: float(row.shape["value"]))
    x = [float(row.shape["value"]) for row in rows]
    sides = ([float(getattr(row, name)) for row in rows] for name in ("ours_ms", "limit_ms", "mem_ours"))
    return Growth(axis, *(Curve(x, side) for side in sides))
