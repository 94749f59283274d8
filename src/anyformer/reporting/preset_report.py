"""The page of the presets: a table of model sizes, and charts of their growth by year."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

import anyformer
from anyformer.analysis.large_models import Sized, large
from anyformer.drawing.charts import INK, TRAIN, drawn
from anyformer.reporting import pages
from anyformer.statistics.readable_numbers import human, human_flops

TEMPLATE = "presets"
Row = dict[str, str]
"""Heading -> text."""


def row(model: Sized) -> Row:
    """One model as a row of the table in the lectures."""
    return {
        "model": model.model,
        "layers": model.layers,
        "width": model.width,
        "heads": model.heads,
        "params": human(model.params),
        "data": model.data,
        "training": model.training,
    }


def filled(rows: Sequence[Row]) -> list[Row]:
    """The rows without columns that are empty in every row."""
    columns = [name for name in rows[0] if any(one[name] for one in rows)]
    return [{name: one[name] for name in columns} for one in rows]


def preset_html(models: Sequence[Sized]) -> str:
    """The page as self-contained HTML."""
    known = large(models)
    pictures = [
        ("Parameters by year", _Years("parameters", known, lambda model: float(model.params))),
        ("Operations of training by year", _Years("FLOP, 6 N D", known, lambda model: model.flops)),
    ]
    facts = {
        "known": [
            {
                **row(model),
                "published": "" if model.published is None else human(model.published),
                "operations": _flops(model),
            }
            for model in known
        ],
        "own": filled([row(model) for model in models if not model.date]),
        "remarks": [(model.model, model.remark) for model in known if model.remark],
        "pictures": [(title, Markup(drawn(picture.draw, title))) for title, picture in pictures],
        "version": anyformer.__version__,
    }
    return pages.html(TEMPLATE, facts)


def preset_markdown(models: Sequence[Sized]) -> str:
    """The page as Markdown, without charts."""
    rows = [row(model) for model in models]
    return pages.markdown(TEMPLATE, {"rows": rows})


def write_presets(models: Sequence[Sized], out: Path) -> Path:
    return pages.store(out, preset_markdown(models) if out.suffix == ".md" else preset_html(models))


def _flops(model: Sized) -> str:
    return "" if model.flops is None else human_flops(model.flops)


@dataclass(frozen=True)
class _Years:
    """A chart with one point for each model by year, on a logarithmic scale."""

    y_label: str
    models: Sequence[Sized]
    value: Callable[[Sized], float | None]

    def draw(self, axes: Axes) -> None:
        points = [(model.model, model.year, value) for model in self.models if (value := self.value(model)) is not None]
        for place, (name, year, value) in enumerate(points):
            axes.plot([year], [value], "o", color=TRAIN, ms=5)
            side: Any = (
                {"xytext": (-6, 4), "ha": "right"} if place % 2 else {"xytext": (6, -8)}
            )  # alternate sides: labels of neighbours would overlap
            axes.annotate(name, (year, value), textcoords="offset points", color=INK, fontsize=8, **side)
        axes.set_yscale("log")
        axes.set(ylabel=self.y_label)
        axes.margins(x=0.3, y=0.1)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
