"""Names beside the points of a chart, each where it covers other points and names least."""

from collections.abc import Sequence
from typing import Any, TypeAlias

from matplotlib.axes import Axes

from anyformer.reporting.pages import INK

Rectangle: TypeAlias = tuple[float, float, float, float]
"""Left, bottom, right and top, in printer's points."""
LETTER, HEIGHT, MARKER = 4.6, 8.0, 3.0
"""Width of a letter, height of a name and radius of a point, in printer's points."""
SIDES = ((6, -8), (-6, 4), (6, 4), (-6, -8), (6, -17), (-6, 13))
"""Places of a name beside its point; of equally free ones the first is taken."""


def label_points(axes: Axes, names: Sequence[str], points: Sequence[tuple[float, float]]) -> None:
    """Writes a name beside each point; the limits and scales of the axes must have been set."""
    pixel = 72 / axes.get_figure(root=True).dpi  # type: ignore[union-attr]
    places = [(x * pixel, y * pixel) for x, y in axes.transData.transform(list(points))]
    taken = [(x - MARKER, y - MARKER, x + MARKER, y + MARKER) for x, y in places]
    for name, point, place in zip(names, points, places, strict=True):
        boxes = [_box(place, side, len(name)) for side in SIDES]
        best = min(range(len(SIDES)), key=lambda side: sum(_overlap(boxes[side], other) for other in taken))
        taken.append(boxes[best])
        ha = "left" if SIDES[best][0] > 0 else "right"
        style: Any = {"textcoords": "offset points", "xytext": SIDES[best], "ha": ha, "color": INK, "fontsize": 8}
        axes.annotate(name, point, **style)


def _box(place: tuple[float, float], side: tuple[int, int], letters: int) -> Rectangle:
    x, y, width = place[0] + side[0], place[1] + side[1], LETTER * letters
    return (x, y - 1, x + width, y + HEIGHT - 1) if side[0] > 0 else (x - width, y - 1, x, y + HEIGHT - 1)


def _overlap(one: Rectangle, other: Rectangle) -> float:
    """Area that two rectangles share."""
    width, height = (min(one[at + 2], other[at + 2]) - max(one[at], other[at]) for at in (0, 1))
    return max(width, 0.0) * max(height, 0.0)
