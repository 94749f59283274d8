"""A map of weights as a picture in a file: rows look, columns are looked at."""

import io
from collections.abc import Sequence

import matplotlib
from jaxtyping import Float
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

CELL_INCHES, LONGEST_INCHES = 0.28, 24.0


def picture(title: str, rows: Sequence[str], columns: Sequence[str], weights: Float[Tensor, "n m"], form: str) -> bytes:
    """As "svg" or "png"."""
    with matplotlib.rc_context({"svg.hashsalt": "anyformer", "font.size": 9.0, "text.parse_math": False}):
        size = [min(LONGEST_INCHES, CELL_INCHES * count + 1.6) for count in (len(columns), len(rows))]
        figure = Figure(figsize=(max(size[0], 3.0), max(size[1], 1.8)), layout="constrained", dpi=150)
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        axes.imshow(weights.numpy(), cmap="Blues", vmin=0.0, aspect="equal")
        axes.xaxis.tick_top()
        axes.set_xticks(range(len(columns)), list(map(_line, columns)), rotation=90)
        axes.set_yticks(range(len(rows)), list(map(_line, rows)))
        axes.tick_params(length=0)
        axes.set_xlabel(title)
        stream = io.BytesIO()
        figure.savefig(stream, format=form, metadata={"Date": None} if form == "svg" else None)
    return stream.getvalue()


def _line(text: str) -> str:
    """Letters that a font has; others would only be boxes, and each a warning."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
