"""`anyformer presets`: the table of models, counted, and how they grew."""

import json
from pathlib import Path

import pytest
from tests.reporting.browser import browser

from anyformer.analysis.large_models import large, sized
from anyformer.cli.main import main

Capture = pytest.CaptureFixture[str]


@pytest.mark.row("PRE-21", clause="96 layers, d = 12288, 96 heads, context 2048")
@pytest.mark.row("SCL-04", clause="a relative projection W_r in each layer: about 360M, not 340M")
@pytest.mark.row("SCL-09", clause="96 layers, d = 12288, 96 heads")
@pytest.mark.row(
    "SCL-10",
    clause=(
        "prints model, layers, width, heads, params, data and training",
        "parameters within 5% of the listed ones, XLNet-large taken as 360M",
    ),
)
def test_the_table_of_the_lectures_has_counted_parameters_near_the_published_ones(capsys: Capture) -> None:
    assert main(["presets"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].split() == ["model", "layers", "width", "heads", "params", "data", "training"]
    assert next(line for line in out if line.startswith("gpt3")).split()[:6] == [
        "gpt3",
        "96",
        "12288",
        "96",
        "175",
        "B",
    ]
    known = large(sized())
    assert len(known) == 11
    for it in known:
        assert it.published and abs(it.params / it.published - 1) < 0.05, it.model


@pytest.mark.row(
    "PRE-25", clause=("a command renders the chart from the bundled CSV", "the FLOP column is 6 N D, checked for GPT-3")
)
def test_the_page_draws_sizes_and_operations_over_the_years(tmp_path: Path, capsys: Capture) -> None:
    page = tmp_path / "presets.html"
    assert main(["presets", "--out", str(page), "--json"]) == 0
    gpt3 = next(it for it in json.loads(capsys.readouterr().out) if it["model"] == "gpt3")
    assert gpt3["flops"] == pytest.approx(3.14e23, rel=0.01)
    with browser(tmp_path / "profile") as tab:
        seen = tab.look(page, 360)
    assert seen.console == [] and seen.requests == [page.as_uri()] and seen.width <= 360
    assert "turing-nlg" in seen.text and "314 ZFLOP" in seen.text and page.read_text().count("<svg") == 2
