"""`anyformer presets`: the table of models, counted, and how they grew."""

import json
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from tests.reporting.browser import browser

from anyformer.analysis.large_models import large, sized
from anyformer.cli.main import main
from anyformer.data.sources.published_corpus import CORPORA
from anyformer.reporting.preset_report import pictures
from anyformer.training import load
from anyformer.training.recipes.toml_layers import preset_names

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
    assert len(known) == 13
    for it in known:
        assert it.published and abs(it.params / it.published - 1) < 0.05, it.model


LISTED = {
    "transformer-base": "8 P100, 12 hours",
    "transformer-big": "8 P100, 3.5 days",
    "xlnet-large": "126 GB",
    "roberta-large": "160 GB 1024 V100, a day",
    "megatron-8.3b": "174 GB 512 V100, 9 days",
    "turing-nlg": "256 V100",
}


@pytest.mark.row("SCL-01", clause="trained on 8 P100 for 12 hours, as listed")
@pytest.mark.row("SCL-02", clause="trained on 8 P100 for 3.5 days, as listed")
@pytest.mark.row("SCL-04", clause="data 126 GB")
@pytest.mark.row("SCL-05", clause="data 160 GB, 1024 V100 for 1 day")
@pytest.mark.row("SCL-07", clause="data 174 GB, 512 V100 for 9 days")
@pytest.mark.row("SCL-08", clause="trained on 256 V100")
@pytest.mark.parametrize("model", LISTED)
def test_a_line_says_on_what_and_how_long_the_model_was_trained(
    model: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["presets"]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.split()[:1] == [model])
    assert LISTED[model] in " ".join(line.split())


@pytest.mark.row("SCL-10", clause="every line is made from a preset")
def test_every_line_is_a_preset_and_its_weights_are_counted(capsys: Capture) -> None:
    assert main(["presets", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found) >= 11 and {line["model"] for line in found} <= set(preset_names())
    for line in found[:3]:
        weights = load(line["model"]).build(device="meta").parameters()
        assert line["params"] == sum(weight.numel() for weight in weights)


@pytest.mark.row("PRE-25", clause="data: GPT-2 1.5B, T5 11B, Megatron 8.3B, Turing-NLG 17B, GPT-3 175B")
def test_the_sizes_of_the_models_that_grew_are_the_published_ones() -> None:
    published = {it.model: it.published for it in large(sized())}
    sizes = {"gpt2-xl": 1.5e9, "t5-11b": 11e9, "megatron-8.3b": 8.3e9, "turing-nlg": 17e9, "gpt3": 175e9}
    assert {model: published[model] for model in sizes} == sizes


def facts(capsys: Capture, model: str) -> dict[str, Any]:
    """What the command knows of a model."""
    assert main(["presets", "--json"]) == 0
    (line,) = (line for line in json.loads(capsys.readouterr().out) if line["model"] == model)
    return dict(line)


@pytest.mark.row("SCL-09", clause="data: 300B tokens, 570 GB filtered CommonCrawl, not 694 GB")
def test_gpt3_read_300_billion_tokens_of_570_gb(capsys: Capture) -> None:
    gpt3 = facts(capsys, "gpt3")
    assert gpt3["tokens"] == 300e9
    assert "570 GB filtered CommonCrawl" in gpt3["data"]
    assert "694" not in gpt3["data"]
    assert CORPORA["commoncrawl"].gigabytes == 570


@pytest.mark.row("SCL-03", clause="data: 3.3B words (13-16 GB)")
@pytest.mark.parametrize("model", ["bert-base", "bert-large"])
def test_bert_read_the_books_and_wikipedia(model: str, capsys: Capture) -> None:
    assert facts(capsys, model)["data"] == "3.3B words (13-16 GB)"
    assert sum(CORPORA[name].words or 0 for name in ("bookscorpus", "wikipedia")) == 3.3e9


@pytest.mark.row("SCL-06", clause="data: 40 GB of WebText")
def test_gpt2_read_webtext(capsys: Capture) -> None:
    assert facts(capsys, "gpt2-xl")["data"] == f"{CORPORA['webtext'].gigabytes} GB WebText" == "40 GB WebText"


@pytest.mark.row("SCL-04", clause="512 TPU-v3, 2.5 days as listed, 5.5 in the later paper")
def test_xlnet_was_trained_for_the_time_of_the_later_paper(capsys: Capture) -> None:
    xlnet = facts(capsys, "xlnet-large")
    assert xlnet["training"] == "512 TPU v3, 5.5 days"
    assert "2.5 days" in xlnet["remark"]


@pytest.mark.row(
    "PRE-25", clause=("a command renders the chart from the bundled CSV", "the FLOP column is 6 N D, checked for GPT-3")
)
def test_the_page_draws_sizes_and_operations_over_the_years(tmp_path: Path, capsys: Capture) -> None:
    page = tmp_path / "presets.html"
    with browser(tmp_path / "profile") as tab:  # first: without one there is nothing to draw for
        assert main(["presets", "--out", str(page), "--json"]) == 0
        gpt3 = next(it for it in json.loads(capsys.readouterr().out) if it["model"] == "gpt3")
        assert gpt3["flops"] == pytest.approx(3.14e23, rel=0.01)
        seen = tab.look(page, 360)
    assert seen.console == [] and seen.requests == [page.as_uri()] and seen.width <= 360
    assert "turing-nlg" in seen.text and "314 ZFLOP" in seen.text and page.read_text().count("<svg") == 2


@pytest.mark.row("PRE-25", clause="parameters and training FLOPs are plotted by date, 2019-22")
def test_parameters_and_operations_are_points_at_their_dates_from_2019_to_2022() -> None:
    known = large(sized())
    dates = {it.model: it.date for it in known}
    assert dates["gpt2-xl"] == "2019-02" and dates["gpt3"] == "2020-05"
    assert dates["mt-nlg-530b"] == "2021-10" and dates["bloom-176b"] == "2022-07"
    for picture in pictures(known):
        axes = Figure().add_subplot()
        picture.draw(axes)
        (line,) = axes.lines
        points = set(zip(line.get_xdata(), line.get_ydata(), strict=True))
        values = {it.model: it.params if picture.y_label == "parameters" else it.flops for it in known}
        expected = {(date_of(dates[model]), value) for model, value in values.items() if value is not None}
        assert points == expected
        assert {model for model, value in values.items() if value is not None} == {
            text.get_text() for text in axes.texts
        }
        assert {int(x) for x, _ in points} >= {2019, 2020, 2021, 2022} and axes.get_yscale() == "log"
        low, high = axes.get_xlim()
        assert all(low < x < high for x, _ in points)
    assert [picture.y_label for picture in pictures(known)] == ["parameters", "FLOP, 6 N D"]


def date_of(text: str) -> float:
    """The middle of a month, in years."""
    year, month = text.split("-")
    return int(year) + (int(month) - 0.5) / 12


@pytest.mark.parametrize("width", ["60", "80", "200"])
def test_a_narrow_terminal_leaves_out_columns_and_cuts_no_cell(
    width: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    assert main(["presets"]) == 0
    shown, notes = capsys.readouterr()
    assert "\N{HORIZONTAL ELLIPSIS}" not in shown and "63.1 M" in shown
    assert ("WMT14" in shown) == (width != "60") == ("not shown" not in notes)
    assert width != "60" or "not shown in 60 columns: data, training." in notes
