"""Self-contained pages: templates are rendered into HTML that loads no other file and runs no script, or into Markdown.

Curves are inline SVG, drawn by matplotlib in the CSS colours of the page, which has a light and a dark theme. The SVG
has no style attributes, no scripts and no fixed ids: it is allowed by a strict content security policy, and one page
can hold many charts.
"""

import base64
import hashlib
import io
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
from cycler import cycler
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator, ScalarFormatter

TEMPLATES = Path(__file__).parent / "templates"
CSS = "page.css"


def html(template: str, facts: Mapping[str, Any]) -> str:
    """Renders `template`.html.j2. Everything except generated pictures is escaped; the page may not load anything."""
    css = (TEMPLATES / CSS).read_text(encoding="utf-8")
    sha = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{sha}'; base-uri 'none'; form-action 'none'"
    page = _environment().get_template(f"{template}.html.j2")
    return page.render(**facts, css=Markup(css), policy=policy)


def markdown(template: str, facts: Mapping[str, Any]) -> str:
    """Renders `template`.md.j2 as Markdown."""
    return re.sub(r"\n{3,}", "\n\n", _environment().get_template(f"{template}.md.j2").render(**facts)).strip() + "\n"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=lambda name: name is not None and ".html." in name,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"cell": _cell, "code": _code, "fenced": _fenced}
    return environment


def _cell(value: Any) -> str:
    """Text for a line or table cell of Markdown, on one line with special characters escaped."""
    return re.sub(r"([\\`*_{}\[\]<>|#~])", r"\\\1", " ".join(str(value).split()))


def _code(text: str) -> Markup:
    """Text with commands in backticks as HTML, the commands as code."""
    pieces = enumerate(text.split("`"))
    return Markup("").join(Markup("<code>{}</code>").format(piece) if place % 2 else piece for place, piece in pieces)


def _fenced(text: str) -> str:
    """Text as a fenced code block, with a fence longer than any run of backticks in the text."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


MOST_POINTS = 500
SIZE_INCHES = (5.0, 2.9)
COLOURS = {
    "#010101": "var(--ink)", "#020202": "var(--line)", "#030303": "var(--train)", "#040404": "var(--valid)",
    "#050505": "var(--good)", "#060606": "var(--bad)", "#070707": "var(--soft)", "#080808": "var(--violet)",
    "#090909": "var(--teal)", "#0a0a0a": "var(--gold)", "#0b0b0b": "var(--pink)",
}  # fmt: skip
"""Placeholder colours for matplotlib -> CSS variables of the page."""
INK, LINE, *SERIES = COLOURS
TRAIN, VALID = SERIES[:2]
_SETTINGS: Any = {
    "svg.fonttype": "none", "font.size": 9.5, "axes.edgecolor": LINE, "axes.labelcolor": INK, "text.color": INK,
    "xtick.color": LINE, "ytick.color": LINE, "xtick.labelcolor": INK, "ytick.labelcolor": INK, "grid.color": LINE,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.linewidth": 0.4,
    "lines.linewidth": 1.3, "legend.frameon": False, "axes.axisbelow": True, "axes.unicode_minus": False,
    "figure.facecolor": "none", "axes.facecolor": "none", "axes.prop_cycle": cycler(color=SERIES),
}  # fmt: skip
_BAND: Any = {"alpha": 0.16, "linewidth": 0}
_THOUSANDS = EngFormatter(sep="")
_DROPPED = ("font", "font-family", "font-weight", "font-style")


@dataclass(frozen=True)
class Curve:
    """One curve; values that are not finite are gaps."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str = TRAIN
    marked: bool = False
    """Draws a marker at every point."""
    band: tuple[Sequence[float], Sequence[float]] | None = None
    """Lower and upper limit at each point."""


@dataclass(frozen=True)
class Chart:
    """One or more curves over a common x axis."""

    title: str
    x_label: str
    y_label: str
    curves: Sequence[Curve]
    marks: Sequence[float] = field(default_factory=tuple)
    """Events on the x axis, drawn as vertical lines."""
    x_scale: float = 1.0
    from_zero: bool = False
    """The y axis begins at zero and has unit prefixes (k, M, ...)."""

    @property
    def empty(self) -> bool:
        return not any(math.isfinite(value) for curve in self.curves for value in curve.y)


def svg(chart: Chart) -> str:
    """The chart as inline SVG for an HTML page."""
    return next(svgs([chart]))


def svgs(charts: Iterable[Chart]) -> Iterator[str]:
    """Each chart as inline SVG, drawn on the same axes one after the other: to make axes and ticks takes a third of the
    time of a chart."""
    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(figsize=SIZE_INCHES)
        axes = figure.add_subplot()
    for chart in charts:
        with matplotlib.rc_context({**_SETTINGS, "svg.hashsalt": chart.title}):
            _draw(chart, axes)
            picture = _printed(figure, chart.title)
            _remove_curves(axes)
        yield picture


def drawn(draw: Callable[[Axes], None], title: str) -> str:
    """The axes that `draw` fills, as inline SVG for an HTML page."""
    with matplotlib.rc_context({**_SETTINGS, "svg.hashsalt": title}):
        figure = Figure(figsize=SIZE_INCHES, layout="constrained")
        draw(figure.add_subplot())
        return _printed(figure, title)


def _printed(figure: Figure, title: str) -> str:
    stream = io.StringIO()
    metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    FigureCanvasSVG(figure).print_svg(stream, metadata=metadata)  # type: ignore[no-untyped-call]
    return _for_page(stream.getvalue(), title)


def _remove_curves(axes: Axes) -> None:
    """Removes what `_draw` adds to the axes, and the limits that follow from it."""
    legend = axes.get_legend()
    for artist in (*axes.lines, *axes.collections, *([legend] if legend is not None else ())):
        artist.remove()
    axes.relim()
    axes.set_autoscale_on(True)


def _draw(chart: Chart, axes: Axes) -> None:
    for curve in chart.curves:
        x, y = thinned(curve.x, curve.y)
        lone = sum(map(math.isfinite, y)) == 1
        marker = "o" if lone or (curve.marked and len(x) <= 40) else None
        style: Any = {"color": curve.colour, "label": curve.name, "marker": marker, "ms": 5 if lone else 3}
        axes.plot([value * chart.x_scale for value in x], y, **style)
        if curve.band is not None:
            axes.fill_between([value * chart.x_scale for value in curve.x], *curve.band, color=curve.colour, **_BAND)
    for place in chart.marks:
        axes.axvline(place * chart.x_scale, color=VALID, linewidth=0.8, linestyle=":")
    axes.set(xlabel=chart.x_label, ylabel=chart.y_label)
    axes.xaxis.set_major_formatter(FuncFormatter(tick))
    axes.set_xlim(left=0.0)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=axes.get_xlim()[1] >= 3))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    if chart.from_zero:
        axes.set_ylim(0.0, 1.1 * axes.get_ylim()[1])
        axes.yaxis.set_major_formatter(FuncFormatter(tick))
    else:
        axes.yaxis.set_major_formatter(ScalarFormatter())
        axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 4))
    if len(chart.curves) > 1:
        axes.legend(loc="upper right")
    _set_margins(axes)


def _set_margins(axes: Axes) -> None:
    """Room for the labels by their letters. A constrained layout measures every text twice, a third of the time."""
    low, high = sorted(axes.get_ylim())
    ticks = [place for place in axes.yaxis.get_majorticklocs() if low <= place <= high]
    longest = max(map(len, axes.yaxis.get_major_formatter().format_ticks(ticks)), default=0)
    width, height = (72 * inches for inches in SIZE_INCHES)  # points
    letter = 0.64 * matplotlib.rcParams["font.size"]  # the width of a digit
    beside, below = 28, 36  # the label of the axis, ticks and gaps
    left, bottom = (beside + longest * letter) / width, below / height
    axes.figure.subplots_adjust(left=left, right=0.96, bottom=bottom, top=0.92)


def thinned(x: Sequence[float], y: Sequence[float]) -> tuple[list[float], list[float]]:
    """The curve downsampled to at most `MOST_POINTS` points by averaging neighbours; means that are not finite are
    gaps."""
    size = -(-len(x) // MOST_POINTS)
    if size <= 1:
        return list(x), [value if math.isfinite(value) else math.nan for value in y]
    cuts = range(0, len(x), size)
    means = [[math.fsum(values[cut : cut + size]) / len(values[cut : cut + size]) for cut in cuts] for values in (x, y)]
    return means[0], [value if math.isfinite(value) else math.nan for value in means[1]]


def tick(value: float, _: int | None = None) -> str:
    """The label of a tick: 250000 -> 250k, 0.5 -> 0.5."""
    return _THOUSANDS(value) if abs(value) >= 1000 else f"{value:g}"


def _for_page(text: str, title: str) -> str:
    text = text[text.index("<svg") :]
    text = re.sub(r"<(metadata|style)\b.*?</\1>", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r' style="([^"]*)"', lambda match: _attributes(match[1]), text)
    # only the ids of markers and clip paths are referenced
    text = re.sub(r' id="(?![mp][0-9a-f]{10}")[^"]*"', "", text)
    text = text.replace("xlink:href", "href")
    for stand_in, colour in COLOURS.items():
        text = text.replace(stand_in, colour)
    view_box = re.search(r'viewBox="([\d. ]+)"', text)
    assert view_box is not None
    head = f'<svg role="img" aria-label="{escape(title)}" viewBox="{view_box[1]}">'
    return head + re.sub(r">\s+<", "><", text[text.index(">") + 1 :]).strip()


def _attributes(style: str) -> str:
    """A style as SVG attributes, which a content security policy allows; fonts are left to the page."""
    pairs: Mapping[str, str] = dict(part.split(": ", 1) for part in style.split("; ") if ": " in part)
    size = re.search(r"([\d.]+)px", pairs.get("font", ""))
    attributes = {name: value.rstrip(";") for name, value in pairs.items() if name not in _DROPPED}
    attributes |= {"font-size": size[1]} if size else {}
    return "".join(f' {name}="{value}"' for name, value in attributes.items() if '"' not in value)
