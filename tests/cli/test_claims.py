"""`anyformer claims`, as a user types it."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from anyformer.analysis.claim import OURS, claim, stored
from anyformer.analysis.claims.complexity_table import ROWS, ComplexityTable
from anyformer.analysis.claims.low_rank import LowRankClaim
from anyformer.cli.main import main
from anyformer.drawing.figures import Lines


@pytest.mark.slow
@pytest.mark.row("VIZ-09", clause="grid of the min number of steps for every layer l and time t")
def test_one_claim_prints_its_verdict_and_leaves_a_page_and_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["claims", "CLM-07", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "holds" in said and f"{tmp_path}/CLM-07.svg" in said
    page = (tmp_path / "CLM-07.html").read_text()
    assert "default-src" in page and page.count("<figure") == 2 and "<script" not in page


@pytest.mark.slow
@pytest.mark.row("VIZ-10", clause="a file is emitted for each figure")
def test_the_landscape_of_the_loss_is_left_as_a_file(tmp_path: Path) -> None:
    assert main(["claims", "CLM-27", "--out", str(tmp_path), "--quiet"]) == 0
    assert (tmp_path / "CLM-27.svg").read_text().startswith("<?xml")


@pytest.mark.row(
    "CLM-19",
    clause=(
        "the knee of the curve is found and shown",
        "the context an RNN uses is no constant: a small LSTM needs under 100",
    ),
)
def test_the_knee_of_a_stored_curve_is_told_and_the_curve_is_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = stored(OURS)["CLM-19"].figures
    knees = [
        min(past for past, loss in zip(figures["pasts"], losses, strict=True) if loss <= 1.01 * min(losses))
        for losses in figures["LSTM"]
    ]
    assert len(knees) == 3 and max(knees) < 100
    assert main(["claims", "CLM-19", "--out", str(tmp_path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"within 1% of its best loss with the last {min(knees)} to {max(knees)} tokens of" in shown
    assert "Loss with a shorter past" in (tmp_path / "CLM-19.html").read_text()
    assert (tmp_path / "CLM-19.svg").read_text().count("<!-- tokens of past -->") == 1


@pytest.mark.row("CLM-14", clause="a command prints the table, filled from measured quantities")
def test_the_complexity_table_is_printed_from_the_measured_exponents(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = {name: [place + 0.01 * column for column in range(5)] for place, name in enumerate(ROWS)}
    monkeypatch.setattr(ComplexityTable, "measure", lambda self: shown)
    assert main(["claims", "CLM-14", "--out", str(tmp_path)]) == 0
    lines = [re.split(r"\s{2,}", line.strip()) for line in capsys.readouterr().out.splitlines()]
    assert ["parameters", "operations", "sequential steps", "path"] in [line[1:] for line in lines]
    for place, name in enumerate(ROWS):
        cells = [f"d^{place}.00", f"T^{place}.01 d^{place}.02", f"T^{place}.03", f"T^{place}.04"]
        assert [name, *cells] in lines


@pytest.mark.slow
@pytest.mark.row("CLM-14", clause="a command prints the table, filled from measured quantities")
def test_the_printed_exponents_of_the_complexity_table_are_those_of_theory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["claims", "CLM-14", "--out", str(tmp_path)]) == 0
    lines = [re.split(r"\s{2,}", line.strip()) for line in capsys.readouterr().out.splitlines()]
    for name, row in ROWS.items():
        (cells,) = (line[1:] for line in lines if line[0] == name)
        powers = [float(power) for power in re.findall(r"\^(-?[\d.]+)", " ".join(cells))]
        assert powers == pytest.approx(row.theory, abs=0.1), name


@pytest.mark.row("POS-10", clause="the curve is measured and shown, with no fixed number to reach")
def test_the_loss_against_the_length_is_drawn_for_each_way_of_telling_positions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = stored(OURS)["POS-10"].figures
    assert main(["claims", "POS-10", "--out", str(tmp_path)]) == 0
    printed, drawn = capsys.readouterr().out, (tmp_path / "POS-10.svg").read_text()
    for name in ("sinusoidal", "learned", "t5_bias", "none", "RNN"):
        ends = (sum(losses[place] for losses in figures[name]) / len(figures[name]) for place in (0, -1))
        assert "{} {:.2f} to {:.2f}".format(name, *ends) in printed and f"<!-- {name} -->" in drawn


def test_json_is_one_object_for_one_claim(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["claims", "clm-10", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ids"] == ["CLM-10"] and found["verdict"] == "holds" and found["figures"]["recurrent"][0] == 2 * 64**2


def test_an_unknown_claim_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["claims", "CLM-99"]) == 2
    assert "CLM-" in capsys.readouterr().err


@pytest.mark.row(
    "XF-08",
    clause=(
        "the cumulative spectrum of singular values is plotted",
        "the energy of the first 128 of 512 singular values is shown",
    ),
)
def test_the_energy_of_128_of_512_singular_values_is_told_and_the_spectrum_plotted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = LowRankClaim().measure()
    monkeypatch.setattr(LowRankClaim, "measure", lambda self: figures)  # once for the command and the picture
    assert main(["claims", "XF-08", "--out", str(tmp_path)]) == 0
    rng = torch.Generator().manual_seed(0)
    q, k = (torch.randn(512, 64, generator=rng) for _ in range(2))
    energy = np.linalg.svd((q @ k.T / 8).softmax(-1).numpy(), compute_uv=False) ** 2
    share = energy[:128].sum() / energy.sum()
    (panel,) = LowRankClaim().picture(figures)
    assert isinstance(panel, Lines)
    (flat,) = (line for line in panel.lines if line.name == "spectrum, spread 1")
    expected = np.cumsum(energy)[np.array(flat.x) - 1] / energy.sum()
    np.testing.assert_allclose(flat.y, expected, rtol=1e-4)
    assert f"128 of 512 singular values hold {share:.1%} of the energy" in capsys.readouterr().out


def test_training_a_claim_begins_with_the_time_that_it_took(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(claim("CLM-31")), "find", lambda _self, _folder: stored(OURS)["CLM-31"].figures)
    assert main(["claims", "CLM-31", "--train", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert re.search(r"CLM-31: training; the stored figures took \d+:\d\d on .*H200", printed.err)
    assert "in parity" in printed.out or "in associative_recall" in printed.out
    assert main(["claims", "CLM-31", "--out", str(tmp_path)]) == 0
    assert "training" not in capsys.readouterr().err
