"""Draws docs/pronouns.svg: where "it" looks when the last word is *tired* and when it is *wide*, head by head.

    anyformer train pronouns data.tokenizer.kind=word model.dim=64 model.stack.depth=2 \\
      model.stack.blocks.layer.branches.0.part.heads=4 train.steps=1500 train.batch_tokens=1024 optimizer.lr=2e-3
    python tools/pronouns.py runs/pronouns
"""

import sys
from html import escape
from pathlib import Path

from anyformer.viewing.view import View

DOCS = Path(__file__).parents[1] / "docs"
SENTENCE = "The animal did not cross the street because it was too {}"
CELL, ROW, LEFT, TOP = 56, 17, 118, 46
INK, SOFT, BLUE = "#22262b", "#5c646d", "#2767c4"


def block(view: View, top: int) -> str:
    """One sentence: its words, and a line for each head with the weights of "it"."""
    words, it = view.reading.names, view.reading.names.index("it")
    said = [
        f'<text x="{LEFT + CELL * (at + 0.5):g}" y="{top}" text-anchor="middle" font-size="12" fill="{INK}"'
        f' font-weight="{700 if word in ("it", words[-1]) else 400}">{escape(word)}</text>'
        for at, word in enumerate(words)
    ]
    line = 0
    for sheet in view.looks[0].sheets:
        for head, weights in enumerate(sheet.weights[:, it].tolist()):
            y = top + 8 + ROW * line
            label = f"layer {sheet.label}, head {head + 1}"
            said.append(
                f'<text x="{LEFT - 8}" y="{y + 12}" text-anchor="end" font-size="11" fill="{SOFT}">{label}</text>'
            )
            for at, weight in enumerate(weights):
                box = f'x="{LEFT + CELL * at}" y="{y}" width="{CELL - 2}" height="{ROW - 2}" rx="2"'
                said.append(f'<rect {box} fill="{BLUE}" fill-opacity="{max(weight, 0.04):.2f}"/>')
                if weight >= 0.1:
                    ink = "#ffffff" if weight > 0.5 else INK
                    place = f'x="{LEFT + CELL * (at + 0.5) - 1:g}" y="{y + 12}" text-anchor="middle" font-size="10"'
                    said.append(f'<text {place} fill="{ink}">{weight:.2f}</text>')
            line += 1
    return "\n".join(said)


def picture(run: str) -> str:
    views = [View.of(run, SENTENCE.format(word)) for word in ("tired", "wide")]
    heads = sum(len(sheet.weights) for sheet in views[0].looks[0].sheets)
    width, each = LEFT + CELL * len(views[0].reading.names) + 10, ROW * heads + 44
    height = TOP + each * len(views) - 14
    title = "Where “it” looks: attention weights of every head, in two sentences that differ in their last word"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">',
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
            f'<text x="10" y="20" font-size="13" font-weight="600" fill="{INK}">{title}</text>',
            *(block(view, TOP + each * index) for index, view in enumerate(views)),
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    (DOCS / "pronouns.svg").write_text(picture(sys.argv[1]), encoding="utf-8")
