"""Names of points in charts stay readable where points are close."""

from itertools import combinations

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from anyformer.drawing.labels import label_points


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
