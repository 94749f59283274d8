"""Names of points and labels of axes stay readable, wherever points are."""

import math
from itertools import combinations

import matplotlib
import pytest
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from anyformer.reporting import pages as charts
from anyformer.reporting.labels import label_points
from anyformer.reporting.pages import Chart, Curve


def test_names_of_close_points_do_not_overlap() -> None:
    figure = Figure(figsize=(5.0, 2.9))
    canvas, axes = FigureCanvasAgg(figure), figure.subplots()
    points = [(88.9, 2.682), (89.9, 2.708), (88.3, 2.517), (102.0, 2.831)]
    axes.plot(*zip(*points, strict=True), "o")
    axes.margins(0.18, 0.18)
    label_points(axes, ["lstm", "mamba", "cnn", "transformer"], points)
    canvas.draw()
    boxes = [text.get_window_extent() for text in axes.texts]
    assert [text.get_text() for text in axes.texts] == ["lstm", "mamba", "cnn", "transformer"]
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    assert not any(box.contains(*place) for box in boxes for place in axes.transData.transform(points))


VALUES = [(3.2, 4.1), (5.00012, 5.00014), (-1234.5, -1100.25), (1e-5, 3e-5), (1e5, 1e9), (0.0, 0.0)]


@pytest.mark.parametrize(
    ("values", "from_zero"),
    [
        *((values, False) for values in VALUES[:4]),
        *((values, True) for values in VALUES[4:]),
        *(pytest.param(values, True, marks=pytest.mark.slow) for values in VALUES[:4]),
        *(pytest.param(values, False, marks=pytest.mark.slow) for values in VALUES[4:]),
    ],
    ids=str,
)
def test_labels_of_axes_are_inside_the_picture_and_apart(values: tuple[float, float], from_zero: bool) -> None:
    chart = Chart("Title", "tokens", "tokens per second", [Curve("train", [0.0, 3e6], values)], from_zero=from_zero)
    with matplotlib.rc_context(charts._SETTINGS):
        figure = Figure(figsize=charts.SIZE_INCHES)
        canvas, axes = FigureCanvasAgg(figure), figure.add_subplot()
        charts._draw(chart, axes)
        canvas.draw()
        box = figure.get_tightbbox()  # of all that is drawn, in inches
        drawn = [_drawn_labels(axis) for axis in (axes.xaxis, axes.yaxis)]
        names = [axis.label.get_window_extent() for axis in (axes.xaxis, axes.yaxis)]
    width, height = charts.SIZE_INCHES
    assert 0 <= box.x0 < box.x1 <= width and 0 <= box.y0 < box.y1 <= height
    assert all(len(labels) > 1 for labels in drawn)
    assert not any(name.overlaps(label) for name in names for labels in drawn for label in labels)


def test_charts_that_are_drawn_together_are_those_that_are_drawn_alone() -> None:
    steps, losses = [1.0, 2.0, 5000.0], [3.2, math.nan, 3.0]
    band = Curve("valid", steps, [1e-5, 2e-5, 3e-5], charts.VALID, marked=True, band=([0.0, 0.0, 0.0], [9.0, 9.0, 9.0]))
    forms = [
        Chart("two", "steps", "loss", [Curve("train", steps, losses), band], marks=[2.0]),
        Chart("zero", "steps", "tokens per second", [Curve("speed", steps, [1e5, 2e5, 1e6])], from_zero=True),
        Chart("rate", "minutes", "rate", [Curve("rate", [0.5, 0.6], [1e-6, 2e-6])], x_scale=1 / 60),
    ]
    order = (0, 1, 0, 2, 1, 2, 0)  # each form after each other one
    alone = [charts.svg(chart) for chart in forms]
    assert list(charts.svgs(forms[which] for which in order)) == [alone[which] for which in order]


def _drawn_labels(axis: Axis) -> list[Bbox]:
    """The boxes of an axis's numbers: a tick outside the limits has one that is not drawn."""
    low, high = sorted(axis.get_view_interval())
    ticks = [tick for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    return [tick.label1.get_window_extent() for tick in ticks]
