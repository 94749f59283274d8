"""Draws the pictures of the documents: `python tools/pictures.py`.

cost.svg shows what `anyformer cost small` prints, demo.svg the table of `make demo` in the README, and layers.svg the
import layers of pyproject.toml.
"""

import io
import re
import tomllib
from collections.abc import Sequence
from html import escape
from pathlib import Path

from rich.console import Console

from anyformer.cli.output.cost_table import breakdown, summary
from anyformer.reporting.cost_card import CostCard
from anyformer.training import load_recipe

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
FONT_FROM_ELSEWHERE = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
MINUS = "\N{MINUS SIGN}"
DIFFERENCE = re.compile(rf"^(\w+) .*? ([{MINUS}+][\d.]+) \((.[\d.]+) to (.[\d.]+)\)", re.MULTILINE)
INK, GRID, LOWER, UNDECIDED, BOX = "#1f2328", "#d0d7de", "#1a7f37", "#6e7781", "#ddf4ff"


def cost_card() -> str:
    """The cost card of the preset `small`, as a terminal shows it."""
    card = CostCard.of("small", load_recipe("small", ()).recipe.model)
    console = Console(record=True, width=64, file=io.StringIO(), highlight=False)
    console.print(summary(card, "256 tokens"))
    console.print()
    console.print(breakdown(card, 5)[0])
    return FONT_FROM_ELSEWHERE.sub("", console.export_svg(title="anyformer cost small", unique_id="cost"))


def demo_chart(readme: str) -> str:
    """The differences from the baseline in the README's table, with their intervals."""
    rows = [(name, *(float(cell.replace(MINUS, "-")) for cell in cells)) for name, *cells in DIFFERENCE.findall(readme)]
    left, right, top, height = 90.0, 560.0, 44.0, 34.0
    low, high = min(row[2] for row in rows) - 0.05, max(0.0, *(row[3] for row in rows)) + 0.05
    bottom = top + height * len(rows)

    def x(value: float) -> float:
        return left + (right - left) * (value - low) / (high - low)

    shapes = [text(x(0.0), 20, "test loss, difference from transformer", anchor="end")]
    for tick in (number / 10 for number in range(round(low * 10), round(high * 10) + 1) if low <= number / 10 <= high):
        shapes.append(line(x(tick), top - 8, x(tick), bottom, GRID if tick else INK))
        shapes.append(text(x(tick), bottom + 18, f"{tick:+.1f}".replace("-", MINUS) if tick else "0", anchor="middle"))
    for index, (name, mean, lower, upper) in enumerate(rows):
        y = top + height * (index + 0.5)
        colour = UNDECIDED if lower <= 0 <= upper else LOWER
        shapes += [text(left - 12, y + 5, name, anchor="end"), line(x(lower), y, x(upper), y, colour, width=3)]
        shapes.append(f'<circle cx="{x(mean):.1f}" cy="{y:.1f}" r="6" fill="{colour}"/>')
        shapes.append(text(right + 10, y + 5, f"{mean:+.3f}".replace("-", MINUS)))
    return drawing(640, round(bottom + 30), shapes)


def layers_diagram(layers: Sequence[str]) -> str:
    """Import layers, highest first: each may import the layers below it, modules side by side not each other."""
    height, width, shapes = 34, 640, []
    for index, layer in enumerate(layers):
        names = [name for name in re.findall(r"\w+", layer) if exists(name)]
        for place, name in enumerate(names):
            box = (width - 20) / len(names)
            left, top = 10 + place * box, 10 + index * height
            shapes.append(
                f'<rect x="{left:.1f}" y="{top}" width="{box - 6:.1f}" height="{height - 6}" rx="4" fill="{BOX}"/>'
            )
            shapes.append(text(left + (box - 6) / 2, top + 19, name, anchor="middle"))
    return drawing(width, 14 + height * len(layers), shapes)


def exists(name: str) -> bool:
    """True if the package has this module; layers may name modules that are planned."""
    return any((ROOT / "src" / "anyformer" / path).exists() for path in (name, f"{name}.py"))


def drawing(width: int, height: int, shapes: Sequence[str]) -> str:
    """An SVG on a white ground, readable on light and dark pages."""
    body = "\n".join(shapes)
    font = 'font-family="sans-serif" font-size="14"'
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    ground = f'<rect width="{width}" height="{height}" rx="6" fill="#ffffff"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>\n{ground}\n{body}\n</svg>\n'


def text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{INK}">{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, colour: str, width: int = 1) -> str:
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{width}"/>'


def pictures() -> dict[str, str]:
    """File name -> drawing."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["id"] == "layers")
    present = [layer for layer in layers if any(exists(name) for name in re.findall(r"\w+", layer))]
    return {
        "cost.svg": cost_card(),
        "demo.svg": demo_chart((ROOT / "README.md").read_text(encoding="utf-8")),
        "layers.svg": layers_diagram(present),
    }


def main() -> None:
    for name, drawn in pictures().items():
        (DOCS / name).write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    main()
