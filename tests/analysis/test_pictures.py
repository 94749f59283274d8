"""What is drawn are the figures: points of curves where their values are, cells as dark as their numbers."""

import pytest
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from anyformer.analysis.claims.landscape import Landscape
from anyformer.drawing.figures import Grid, Line, Lines


@pytest.mark.row(
    "VIZ-10", clause=("figures of scaling laws and power laws", "values on the axes equal the plotted arrays")
)
def test_a_power_law_is_drawn_at_its_values_and_both_axes_are_logarithms() -> None:
    sizes = [2.0**power for power in range(4, 9)]
    law = Line("law", sizes, [3.0 * size**-0.5 for size in sizes], theory=True)
    axes = Figure().add_subplot()
    Lines("scaling", "parameters", "loss", [law], log_x=True, log_y=True).draw(axes)
    (curve,) = axes.lines
    assert list(curve.get_xdata()) == law.x and list(curve.get_ydata()) == law.y
    assert (axes.get_xscale(), axes.get_yscale(), axes.get_xlabel()) == ("log", "log", "parameters")


@pytest.mark.row("VIZ-10", clause=("figure of the loss landscape", "values on the axes equal the plotted arrays"))
def test_a_slice_of_the_loss_is_a_cell_for_every_point_and_the_darker_the_higher() -> None:
    heights = {"residual": [[0.0, 1.0], [2.0, 4.0]], "plain": [[5.0, 5.0], [6.0, 9.0]]}
    panels = Landscape().picture(heights)
    for panel, rows in zip(panels, heights.values(), strict=True):
        assert isinstance(panel, Grid)
        axes = Figure().add_subplot()
        panel.draw(axes)
        least, most = rows[0][0], rows[1][1]
        shades = [to_rgba(patch.get_facecolor())[3] for patch in axes.patches]
        assert shades == pytest.approx([0.6 * (it - least) / (most - least) for row in rows for it in row])
        assert axes.get_xlim() == axes.get_ylim() == (0.5, 2.5)
