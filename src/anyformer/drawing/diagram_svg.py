"""A diagram as SVG: full attention is green, causal red, cross-attention blue, the feedback of outputs dotted."""

from collections.abc import Iterator, Mapping
from html import escape
from typing import NamedTuple

from anyformer.drawing.diagram import Column, Diagram, Edge, Look, Node

WIDTH, HEIGHT, GAP, SIDE, LANE, PAD = 220, 38, 36, 96, 150, 15
INK, SOFT, FILL = "#22262b", "#5c646d", "#f3f5f8"
COLOURS: Mapping[Look, str] = {
    "flow": INK, "residual": "#aab2bc", "self": "#2a8f4e", "masked": "#c23b3b", "cross": "#2767c4",
    "carried": "#c8811a", "feedback": SOFT,
}  # fmt: skip
MEANINGS: Mapping[Look, str] = {
    "self": "attends to all tokens", "masked": "attends to earlier tokens", "cross": "attends to the encoder",
    "carried": "carries a state", "feedback": "output is fed back",
    "residual": "residual connection",
}  # fmt: skip


class Box(NamedTuple):
    """The position of a node: its upper left corner."""

    x: float
    y: float

    @property
    def middle(self) -> float:
        return self.y + HEIGHT / 2


def picture(title: str, shown: Diagram) -> str:
    """The diagram as the text of an SVG file."""
    rows = max(len(column.nodes) for column in shown.columns)
    legend = [look for look in MEANINGS if any(edge.look == look for edge in shown.edges)]
    bottom = 44 + rows * (HEIGHT + GAP)
    width = 2 * SIDE + len(shown.columns) * WIDTH + (len(shown.columns) - 1) * LANE
    height = bottom + 18 * len(legend) + 12
    boxes = {
        node.name: box for place, column in enumerate(shown.columns) for node, box in _places(place, column, bottom)
    }
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
            ' font-family="sans-serif">',
            f"<defs>{''.join(_head(look) for look in COLOURS)}</defs>",
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
            f'<text x="12" y="22" font-size="14" font-weight="600" fill="{INK}">{escape(title)}</text>',
            *(line for column in shown.columns for line in _frames(column, boxes)),
            *(_arrow(edge, boxes) for edge in shown.edges),
            *(line for column in shown.columns for line in _boxes(column, boxes)),
            *(_meaning(look, bottom + 8 + 18 * row) for row, look in enumerate(legend)),
            "</svg>\n",
        ]
    )


def _places(place: int, column: Column, bottom: int) -> Iterator[tuple[Node, Box]]:
    for row, node in enumerate(column.nodes):
        yield node, Box(SIDE + place * (WIDTH + LANE), bottom - (row + 1) * (HEIGHT + GAP))


def _boxes(column: Column, boxes: Mapping[str, Box]) -> Iterator[str]:
    for node in column.nodes:
        x, y = boxes[node.name]
        yield (
            f'<rect class="node" x="{x:g}" y="{y:g}" width="{WIDTH}" height="{HEIGHT}" rx="6" fill="{FILL}" '
            f'stroke="{SOFT}"/>'
        )
        first = y + (16 if node.note else 23)
        yield _words(x + WIDTH / 2, first, 12, INK, node.text)
        if node.note:
            yield _words(x + WIDTH / 2, y + 30, 10, SOFT, node.note)


def _frames(column: Column, boxes: Mapping[str, Box]) -> Iterator[str]:
    for frame in column.frames:
        low, high = boxes[frame.first], boxes[frame.last]
        left, top, width = low.x - 34, high.y - PAD, WIDTH + 68
        height = low.y + HEIGHT + PAD - top
        yield (
            f'<rect x="{left:g}" y="{top:g}" width="{width}" height="{height:g}" rx="10" fill="none" stroke="#c9d0d8"/>'
        )
        place = f'x="{left + width - 8:g}" y="{top + 11:g}" text-anchor="end" font-size="10"'
        yield f'<text {place} fill="{SOFT}">{escape(frame.text)}</text>'


def _arrow(edge: Edge, boxes: Mapping[str, Box]) -> str:
    dots = ' stroke-dasharray="2 4"' if edge.look == "feedback" else ""
    return (
        f'<path class="{edge.look}" d="{_path(edge, boxes[edge.start], boxes[edge.end])}" fill="none" '
        f'stroke="{COLOURS[edge.look]}" stroke-width="1.6"{dots} marker-end="url(#{edge.look})"/>'
    )


def _path(edge: Edge, start: Box, end: Box) -> str:
    centre, right = end.x + WIDTH / 2, end.x + WIDTH
    if edge.look == "flow":
        return f"M{centre:g} {start.y:g} V{end.y + HEIGHT + 6:g}"
    if edge.look == "residual":
        return f"M{centre - 30:g} {end.y + HEIGHT + 8:g} H{end.x - 14:g} V{end.y - 8:g} H{centre - 6:g}"
    if edge.look == "feedback":
        return f"M{right:g} {start.middle:g} H{right + 78:g} V{end.middle:g} H{right + 6:g}"
    if start != end:
        out, into, y = start.x + WIDTH, end.x - 6, end.middle
        return f"M{out:g} {start.middle:g} C{out + 80:g} {start.middle:g} {into - 84:g} {y:g} {into:g} {y:g}"
    return f"M{right:g} {end.y + 9:g} c34 -7 34 27 5 20"  # a loop on the right side of the box


def _head(look: Look) -> str:
    return (
        f'<marker id="{look}" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0 L8 4 L0 8 z" fill="{COLOURS[look]}"/></marker>'
    )


def _meaning(look: Look, y: float) -> str:
    dots = ' stroke-dasharray="2 4"' if look == "feedback" else ""
    return (
        f'<path d="M14 {y:g} h26" stroke="{COLOURS[look]}" stroke-width="2"{dots}/>'
        f'<text x="48" y="{y + 4:g}" font-size="11" fill="{SOFT}">{MEANINGS[look]}</text>'
    )


def _words(x: float, y: float, size: int, colour: str, text: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="middle" fill="{colour}">{escape(text)}</text>'
