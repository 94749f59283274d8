"""Panels of a figure (curves, grids of numbers and bars) that can be drawn on matplotlib axes."""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import matplotlib
from jaxtyping import Float
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullLocator
from torch import Tensor

from anyformer.errors import SpecError

FORMS = (".svg", ".png")
CELL_INCHES, LONGEST_INCHES = 0.28, 24.0
LARGE, NEAR, NARROW, WIDE = 1e5, 2.0, 20.0, 100.0
SHADE = "C0"
"""First colour of the current colour cycle, because a page sets its own cycle."""
FAINTEST = 0.02
"""Squares with a lower opacity are left out: they are invisible, and most squares are."""


class Drawing(NamedTuple):
    """A function that draws on a figure, and the size of the figure."""

    draw: Callable[[Figure], None]
    inches: tuple[float, float]

    def bytes(self, form: str) -> bytes:
        """The content of the file in the format "svg" or "png"."""
        with matplotlib.rc_context({"svg.hashsalt": "anyformer", "font.size": 9.0, "text.parse_math": False}):
            figure = Figure(figsize=self.inches, layout="constrained", dpi=150)
            FigureCanvasAgg(figure)
            self.draw(figure)
            stream = io.BytesIO()
            figure.savefig(stream, format=form, metadata={"Date": None} if form == "svg" else None)
        return stream.getvalue()


def form_of(ending: str, option: str) -> str:
    """The format, "svg" or "png", of a file with this ending."""
    if ending not in FORMS:
        raise SpecError(f"{option}: the name of a picture must end in .svg or .png, not in {ending or 'nothing'}.")
    return ending[1:]


@dataclass(frozen=True)
class Line:
    """One curve; theoretical ones are dashed."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    theory: bool = False
    band: tuple[Sequence[float], Sequence[float]] | None = None
    """Lower and upper limit at each point."""
    paired: bool = False
    """True for the colour of the curve before, to which this one belongs; its points are crosses."""

    def draw(self, axes: Axes) -> None:
        style: dict[str, Any] = {"marker": "x" if self.paired else "o", "markersize": 6 if self.paired else 3}
        if self.theory:
            style = {"linestyle": "--", "linewidth": 0.9}
        if self.paired and axes.lines:
            style["color"] = axes.lines[-1].get_color()
        (curve,) = axes.plot(self.x, self.y, label=self.name, **style)
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
    names: tuple[Sequence[str], Sequence[str]] | None = None
    """Names of the columns and of the rows; without them, both are numbered."""

    def draw(self, axes: Axes) -> None:
        most = max((value for row in self.rows for value in row), default=1.0) or 1.0
        for y, row in enumerate(self.rows, start=1):
            for x, value in enumerate(row, start=1):
                axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=SHADE, alpha=0.6 * max(value, 0) / most))
                if self.written:
                    axes.text(x, y, f"{value:g}", ha="center", va="center")
        axes.set(xlabel=self.x_label, ylabel=self.y_label)
        axes.set(xlim=(0.5, len(self.rows[0]) + 0.5), ylim=(0.5, len(self.rows) + 0.5))
        for place, axis in enumerate((axes.xaxis, axes.yaxis)):
            if self.names is None:
                axis.set_major_locator(MaxNLocator(8, integer=True))
            else:
                axis.set_ticks(range(1, len(self.names[place]) + 1), self.names[place])
        if self.names is not None:
            axes.tick_params(axis="x", rotation=45)
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


def beside(panels: Sequence[Panel], inches: tuple[float, float]) -> Drawing:
    """Panels beside each other, each of this size under its title."""

    def draw(figure: Figure) -> None:
        for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            axes.set_title(panel.title, fontsize="medium")
            panel.draw(axes)

    return Drawing(draw, (inches[0] * len(panels), inches[1]))


def picture(title: str, rows: Sequence[str], columns: Sequence[str], weights: Float[Tensor, "n m"], form: str) -> bytes:
    """The content of the file in the format "svg" or "png"."""

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.imshow(weights.numpy(), cmap="Blues", vmin=0.0, aspect="equal")
        axes.xaxis.tick_top()
        axes.set_xticks(range(len(columns)), list(map(one_line, columns)), rotation=90)
        axes.set_yticks(range(len(rows)), list(map(one_line, rows)))
        axes.tick_params(length=0)
        axes.set_xlabel(title)

    width, height = (min(LONGEST_INCHES, CELL_INCHES * count + 1.6) for count in (len(columns), len(rows)))
    return Drawing(draw, (max(width, 3.0), max(height, 1.8))).bytes(form)


WHITE_SPACE = {
    " ": "\N{OPEN BOX}",
    "\n": "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}",
    "\t": "\N{RIGHTWARDS ARROW TO BAR}",
}


def one_line(text: str) -> str:
    """The text on one line without control characters, which fonts lack and matplotlib warns about; a text of white
    space alone is shown by symbols."""
    words = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return words or "".join(WHITE_SPACE.get(letter, "") for letter in text)


def heatmap(rows: Sequence[Sequence[float]], title: str, colour: str) -> Markup:
    """Rows are queries, columns keys; `colour` is a CSS variable. Opacity is the square root, so small shares show."""
    most = max((value for row in rows for value in row), default=0.0) or 1.0
    shades = [[max(value / most, 0.0) ** 0.5 for value in row] for row in rows]
    squares = "".join(
        f'<rect x="{x}" y="{y}" width="1" height="1" fill-opacity="{shade:.2g}"/>'
        for y, row in enumerate(shades)
        for x, shade in enumerate(row)
        if shade >= FAINTEST
    )
    size = f"0 0 {max(map(len, rows), default=0)} {len(rows)}"
    return Markup(
        f'<svg role="img" aria-label="{escape(title)}" viewBox="{size}" fill="var(--{colour})">{squares}</svg>'
    )
