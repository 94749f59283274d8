"""A figure in a file: somebody draws on it, and it becomes SVG or PNG, the same bytes each time."""

import io
from collections.abc import Callable
from typing import NamedTuple

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from anyformer.errors import SpecError

FORMS = (".svg", ".png")


class Drawing(NamedTuple):
    """What to draw, and how large it should be."""

    draw: Callable[[Figure], None]
    inches: tuple[float, float]

    def bytes(self, form: str) -> bytes:
        """As "svg" or "png"."""
        with matplotlib.rc_context({"svg.hashsalt": "anyformer", "font.size": 9.0, "text.parse_math": False}):
            figure = Figure(figsize=self.inches, layout="constrained", dpi=150)
            FigureCanvasAgg(figure)
            self.draw(figure)
            stream = io.BytesIO()
            figure.savefig(stream, format=form, metadata={"Date": None} if form == "svg" else None)
        return stream.getvalue()


def form_of(ending: str, option: str) -> str:
    """ "svg" or "png", by the ending of a file's name."""
    if ending not in FORMS:
        raise SpecError(f"{option}: a picture ends in .svg or .png, not in {ending or 'nothing'}.")
    return ending[1:]
