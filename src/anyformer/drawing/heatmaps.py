"""A heatmap of attention shares as inline SVG in the CSS colours of the page."""

from collections.abc import Sequence

from markupsafe import Markup, escape

FAINTEST = 0.02
"""Squares with a lower opacity are left out: they are invisible, and most squares are."""


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
