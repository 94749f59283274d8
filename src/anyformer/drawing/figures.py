"""Panels of a figure (curves, grids of numbers and bars) that can be drawn on matplotlib axes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullLocator

LARGE, NEAR, NARROW, WIDE = 1e5, 2.0, 20.0, 100.0
SHADE = "C0"
"""First colour of the current colour cycle, because a page sets its own cycle."""


@dataclass(frozen=True)
class Line:
    """One curve; theoretical ones are dashed."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    theory: bool = False
    band: tuple[Sequence[float], Sequence[float]] | None = None
    """Lower and upper limit at each point."""

    def draw(self, axes: Axes) -> None:
        style = {"linestyle": "--", "linewidth": 0.9} if self.theory else {"marker": "o", "markersize": 3}
        (curve,) = axes.plot(self.x, self.y, label=self.name, **style)  # type: ignore[arg-type]
        if self.band is None:
            return
        if len(self.x) == 1:
            axes.vlines(self.x, *self.band, color=curve.get_color(), linewidth=1.0)
        else:
            axes.fill_between(self.x, *self.band, color=curve.get_color(), alpha=0.16, linewidth=0)


@dataclass(frozen=True)
class Lines:
    """Curves over a common x axis."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    log_x: bool = False
    log_y: bool = False

    def draw(self, axes: Axes) -> None:
        for line in self.lines:
            line.draw(axes)
        if self.log_x:
            doubling = max(max(line.x) for line in self.lines) < LARGE
            axes.set_xscale("log", base=2 if doubling else 10)
            axes.xaxis.set_major_formatter("{x:g}" if doubling else EngFormatter(sep=""))
            if not doubling:
                low, high = axes.get_xlim()
                axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < WIDE * low else (1,)))
                axes.xaxis.set_minor_formatter("")
        if self.log_y:
            axes.set_yscale("log")
            low, high = axes.get_ylim()
            if high < NARROW * low:  # the range has too few powers of ten for labels
                axes.yaxis.set_major_formatter("{x:g}")
                axes.yaxis.set_minor_formatter("{x:.3g}")
            if high < NEAR * low:
                axes.yaxis.set_major_locator(MaxNLocator(5))
                axes.yaxis.set_minor_locator(NullLocator())
        axes.set(xlabel=self.x_label, ylabel=self.y_label)
        if len(self.lines) > 1:
            axes.legend(fontsize="small")


@dataclass(frozen=True)
class Grid:
    """A heatmap of numbers, larger ones darker, with the first row at the bottom like the layers of a model."""

    title: str
    x_label: str
    y_label: str
    rows: Sequence[Sequence[float]]
    written: bool = True
    """Writes the numbers into the cells."""

    def draw(self, axes: Axes) -> None:
        most = max((value for row in self.rows for value in row), default=1.0) or 1.0
        for y, row in enumerate(self.rows, start=1):
            for x, value in enumerate(row, start=1):
                axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=SHADE, alpha=0.6 * max(value, 0) / most))
                if self.written:
                    axes.text(x, y, f"{value:g}", ha="center", va="center")
        axes.set(xlabel=self.x_label, ylabel=self.y_label)
        axes.set(xlim=(0.5, len(self.rows[0]) + 0.5), ylim=(0.5, len(self.rows) + 0.5))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(8, integer=True))
        axes.grid(visible=False)


@dataclass(frozen=True)
class Bars:
    """One number for each name."""

    title: str
    y_label: str
    heights: Sequence[tuple[str, float]]
    log_y: bool = False

    def draw(self, axes: Axes) -> None:
        names, values = zip(*self.heights, strict=True)
        axes.bar(range(len(values)), values, width=0.6)
        axes.set_xticks(range(len(names)), names, rotation=20, ha="right")
        axes.set_ylabel(self.y_label)
        if self.log_y:
            axes.set_yscale("log")


Panel: TypeAlias = Lines | Grid | Bars
