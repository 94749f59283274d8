"""The page of the presets: a table of model sizes, and charts of their growth by year."""

from collections.abc import Sequence
from math import log10
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

import anyformer
from anyformer.analysis.large_models import Sized, filled, large, row
from anyformer.drawing.charts import INK, TRAIN, drawn
from anyformer.reporting import pages
from anyformer.statistics.readable_numbers import human, human_flops

TEMPLATE = "presets"
Rectangle: TypeAlias = tuple[float, float, float, float]
"""Left, bottom, right and top, in printer's points."""
PLOT, LETTER = (290.0, 165.0), 4.6
"""Size of the plot and width of a letter, in printer's points."""
SIDES = ((6, -8), (-6, 4), (6, 4), (-6, -8), (6, -17), (-6, 13))
"""Places of a label beside its point; the first that is free is taken."""


class YearChart(NamedTuple):
    """One point for each model by date of publication, on a logarithmic scale."""

    title: str
    y_label: str
    values: Sequence[tuple[Sized, float]]

    def draw(self, axes: Axes) -> None:
        axes.plot([model.year for model, _ in self.values], [value for _, value in self.values], "o", color=TRAIN, ms=5)
        axes.set_yscale("log")
        axes.set(ylabel=self.y_label)
        axes.margins(x=0.3, y=0.1)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        (left, right), (low, high) = axes.get_xlim(), map(log10, axes.get_ylim())
        across, up = PLOT[0] / (right - left), PLOT[1] / (high - low)
        points = [((model.year - left) * across, (log10(value) - low) * up) for model, value in self.values]
        taken = [(x - 3, y - 3, x + 3, y + 3) for x, y in points]
        for (model, value), point in zip(self.values, points, strict=True):
            boxes = [_label_box(point, side, len(model.model)) for side in SIDES]
            best = min(range(len(SIDES)), key=lambda side: sum(_overlap(boxes[side], box) for box in taken))
            taken.append(boxes[best])
            ha = "left" if SIDES[best][0] > 0 else "right"
            style: Any = {"textcoords": "offset points", "xytext": SIDES[best], "ha": ha, "color": INK, "fontsize": 8}
            axes.annotate(model.model, (model.year, value), **style)


def _label_box(point: tuple[float, float], side: tuple[int, int], letters: int) -> Rectangle:
    """The rectangle of a label beside a point."""
    x, y, width = point[0] + side[0], point[1] + side[1], LETTER * letters
    return (x, y - 1, x + width, y + 7) if side[0] > 0 else (x - width, y - 1, x, y + 7)


def _overlap(one: Rectangle, other: Rectangle) -> float:
    width, height = (min(one[at + 2], other[at + 2]) - max(one[at], other[at]) for at in (0, 1))
    return max(width, 0.0) * max(height, 0.0)


def pictures(known: Sequence[Sized]) -> list[YearChart]:
    """The charts of parameters and of the FLOPs of training, for published models."""
    flops = [(model, model.flops) for model in known]
    return [
        YearChart("Parameters by year", "parameters", [(model, float(model.params)) for model in known]),
        YearChart("Operations of training by year", "FLOP, 6 N D", [(m, value) for m, value in flops if value]),
    ]


def preset_html(models: Sequence[Sized]) -> str:
    """The page as self-contained HTML."""
    known = large(models)
    facts = {
        "known": [
            {
                **row(model),
                "published": "" if model.published is None else human(model.published),
                "operations": "" if model.flops is None else human_flops(model.flops),
            }
            for model in known
        ],
        "own": filled([row(model) for model in models if not model.date]),
        "remarks": [(model.model, model.remark) for model in known if model.remark],
        "pictures": [(one.title, Markup(drawn(one.draw, one.title))) for one in pictures(known)],
        "version": anyformer.__version__,
    }
    return pages.html(TEMPLATE, facts)


def write_presets(models: Sequence[Sized], out: Path) -> Path:
    """Writes the page as HTML; a file that ends in .md gets a table in Markdown without charts."""
    markdown = out.suffix == ".md"
    rows = {"rows": [row(model) for model in models]}
    return pages.store(out, pages.markdown(TEMPLATE, rows) if markdown else preset_html(models))
