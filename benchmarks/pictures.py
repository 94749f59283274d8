"""The curves of growth as a picture for the document: each cost against its first point, on logarithmic axes."""

import io
from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from benchmarks.fits import Growth

SIZE_INCHES = (8.0, 3.2)
LINES: dict[str, Any] = {"linewidth": 1.4, "marker": "o", "markersize": 3.5}
SETTINGS: Any = {
    "svg.fonttype": "none", "svg.hashsalt": "growth", "font.size": 9.5, "legend.frameon": False, "axes.grid": True,
    "grid.linewidth": 0.4, "grid.color": "#c8c8c8", "axes.spines.top": False, "axes.spines.right": False,
}  # fmt: skip


def growth_svg(growths: Sequence[Growth]) -> str:
    """Time on the left, memory on the right; dotted: operations."""
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=SIZE_INCHES, layout="constrained")
        left, right = figure.subplots(1, 2)
        for axes, title in ((left, "time of an update"), (right, "memory")):
            axes.set(xscale="log", yscale="log", xlabel="times the smallest", ylabel="times its cost", title=title)
            for side in (axes.xaxis, axes.yaxis):
                side.set_major_locator(LogLocator(base=2))
                side.set_major_formatter(StrMethodFormatter("{x:g}"))
                side.set_minor_formatter(NullFormatter())
        for number, growth in enumerate(growths):
            colour = f"C{number}"
            left.plot(*_relative(growth.time), color=colour, label=growth.axis, **LINES)
            left.plot(*_relative(growth.operations), color=colour, linestyle=":", linewidth=1.0)
            right.plot(*_relative(growth.memory), color=colour, label=growth.axis, **LINES)
        left.legend()
        stream = io.StringIO()
        FigureCanvasSVG(figure).print_svg(stream, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return stream.getvalue()


def _relative(curve: Any) -> tuple[list[float], list[float]]:
    return [x / curve.x[0] for x in curve.x], [y / curve.y[0] for y in curve.y]
