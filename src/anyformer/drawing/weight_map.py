"""A map of weights as a picture in a file: rows look, columns are looked at."""

from collections.abc import Sequence

from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from anyformer.drawing.figure_files import Drawing

CELL_INCHES, LONGEST_INCHES = 0.28, 24.0


def picture(title: str, rows: Sequence[str], columns: Sequence[str], weights: Float[Tensor, "n m"], form: str) -> bytes:
    """As "svg" or "png"."""

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
    """Letters that a font has; others would only be boxes, and each a warning."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
