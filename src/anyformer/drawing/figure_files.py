"""Figures as SVG or PNG files with reproducible bytes."""

import io
from collections.abc import Callable
from typing import NamedTuple

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from anyformer.errors import SpecError

FORMS = (".svg", ".png")


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
