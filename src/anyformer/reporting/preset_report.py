"""The page of the presets: a table of model sizes, and charts of their growth by year."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

import anyformer
from anyformer.analysis.large_models import Sized, filled, large, row
from anyformer.core.readable_numbers import human, human_flops
from anyformer.disk import store
from anyformer.reporting import pages
from anyformer.reporting.labels import label_points
from anyformer.reporting.pages import TRAIN, drawn

TEMPLATE = "presets"


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
        label_points(
            axes, [model.model for model, _ in self.values], [(model.year, value) for model, value in self.values]
        )


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
    return store(out, pages.markdown(TEMPLATE, rows) if markdown else preset_html(models))
