"""A heatmap of attention weights as a picture file: rows are queries, columns are keys."""

from collections.abc import Sequence

from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from anyformer.drawing.figure_files import Drawing

CELL_INCHES, LONGEST_INCHES = 0.28, 24.0


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


def one_line(text: str) -> str:
    """The text on one line without control characters, which fonts lack and matplotlib warns about."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
