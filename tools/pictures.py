"""Draws the pictures of the documents from what the program really prints: `python tools/pictures.py`."""

import io
import re
from pathlib import Path

from rich.console import Console

from anyformer.cli.output.cost_card import breakdown, price, summary
from anyformer.training import load_recipe

DOCS = Path(__file__).parents[1] / "docs"
FONT_FROM_ELSEWHERE = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def cost_card() -> str:
    """The cost card of the preset `small`, as a terminal shows it."""
    card = price(load_recipe("small", ()), batch=1, length=None, source=None, past=0)
    console = Console(record=True, width=64, file=io.StringIO(), highlight=False)
    console.print(summary(card))
    console.print()
    console.print(breakdown(card, 5))
    return FONT_FROM_ELSEWHERE.sub("", console.export_svg(title="anyformer cost small", unique_id="cost"))


if __name__ == "__main__":
    (DOCS / "cost.svg").write_text(cost_card())
