"""The page of the presets: a table of model sizes, and charts of their growth by year."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

import anyformer
from anyformer.analysis.large_models import Sized, filled, large, row
from anyformer.drawing.charts import INK, TRAIN, drawn
from anyformer.reporting import pages
from anyformer.statistics.readable_numbers import human, human_flops

TEMPLATE = "presets"


def preset_html(models: Sequence[Sized]) -> str:
    """The page as self-contained HTML."""
    known = large(models)
    pictures: list[tuple[str, str, list[tuple[Sized, float | None]]]] = [
        ("Parameters by year", "parameters", [(model, float(model.params)) for model in known]),
        ("Operations of training by year", "FLOP, 6 N D", [(model, model.flops) for model in known]),
    ]
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
        "pictures": [
            (title, Markup(drawn(partial(_draw_years, y_label=label, values=values), title)))
            for title, label, values in pictures
        ],
        "version": anyformer.__version__,
    }
    return pages.html(TEMPLATE, facts)


def write_presets(models: Sequence[Sized], out: Path) -> Path:
    """Writes the page as HTML; a file that ends in .md gets a table in Markdown without charts."""
    markdown = out.suffix == ".md"
    rows = {"rows": [row(model) for model in models]}
    return pages.store(out, pages.markdown(TEMPLATE, rows) if markdown else preset_html(models))


def _draw_years(axes: Axes, y_label: str, values: Sequence[tuple[Sized, float | None]]) -> None:
    """Draws a chart with one point for each model by year, on a logarithmic scale."""
    points = [(model.model, model.year, value) for model, value in values if value is not None]
    for place, (name, year, value) in enumerate(points):
        axes.plot([year], [value], "o", color=TRAIN, ms=5)
        # alternate sides: labels of neighbours would overlap
        side: Any = {"xytext": (-6, 4), "ha": "right"} if place % 2 else {"xytext": (6, -8)}
        axes.annotate(name, (year, value), textcoords="offset points", color=INK, fontsize=8, **side)
    axes.set_yscale("log")
    axes.set(ylabel=y_label)
    axes.margins(x=0.3, y=0.1)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
