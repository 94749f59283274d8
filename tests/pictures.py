"""Pages of runs without the charts, for tests of what comes before the page."""

from functools import cache

import pytest

from anyformer.drawing.charts import Chart, svg
from anyformer.reporting import run_report


@cache
def picture(title: str) -> str:
    return svg(Chart(title, "steps", title, []))


@pytest.fixture(autouse=True)
def same_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each training ends with a page of eight charts, which take longer to draw than a tiny model to train. Their
    content is tested in tests/reporting; here a chart is an empty one of the same title."""
    if request.path.name != "test_report.py":
        monkeypatch.setattr(run_report, "svg", lambda chart: picture(chart.title))
