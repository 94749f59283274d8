"""`anyformer scale`, as a user types it."""

import json
from functools import partial
from pathlib import Path

import pytest
from tests.study.test_scaling import FEW

from anyformer.cli.main import main
from anyformer.study import scaling_laws
from anyformer.study.ladder_spec import Ladder
from anyformer.study.rungs import too_few
from anyformer.study.scaling_laws import LadderPoint, laws


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_a_rehearsal_shows_sizes_and_trains_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scale", "small", *FEW, "--dry-run", "--json", "--out", str(tmp_path / "ladder")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found) >= 4 and found[0]["flops"] < found[-1]["flops"] and not (tmp_path / "ladder").exists()


def test_too_few_sizes_for_a_prediction_are_named_before_they_are_trained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scale", "small", *FEW, "--rungs", "4", "--dry-run"]) == 0
    sizes, remark = capsys.readouterr()
    assert "needs 4 smaller sizes, here there are 3. Use study.ladder.rungs=5 (--rungs 5)" in remark
    assert "trained, not predicted\n" in sizes and "predicted, then" not in sizes
    assert main(["scale", "small", *FEW, "--rungs", "5", "--dry-run"]) == 0
    sizes, remark = capsys.readouterr()
    assert "smaller sizes" not in remark and "predicted, then trained\nwould train 5 rungs x 1 seed: " in sizes


@pytest.mark.parametrize(
    ("rungs", "budgets", "enough"),
    [
        (5, 1, True),
        (4, 1, False),
        (4, 2, False),
        (4, 3, True),
        (3, 3, False),
    ],
)
def test_several_training_lengths_allow_a_smaller_ladder(
    monkeypatch: pytest.MonkeyPatch, rungs: int, budgets: int, enough: bool
) -> None:
    """Agrees with the laws that can be fitted to as many points."""
    monkeypatch.setattr(scaling_laws, "fit", partial(scaling_laws.fit, draws=5))  # their bands do not matter here
    points = [
        LadderPoint(f"{size}-{half}", 1000 << size, 64_000 >> half, 1, 3 * (1000 << size) ** -0.1 + half / 100, 1.0)
        for size in range(rungs - 1)
        for half in range(budgets)
    ]
    known = laws(points)
    lacking = [law for law in (known.size, known.chinchilla, known.kaplan) if "needs" in getattr(law, "reason", "")]
    assert (too_few(Ladder(rungs=rungs, budgets=budgets)) is None) == enough == (len(lacking) < 3)


def test_a_ladder_without_time_exits_with_a_code_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scale", "small", *FEW, "--rungs", "2", "--minutes", "0", "--out", str(tmp_path / "ladder")]) == 75
    assert f"the time is up: all is saved. Go on with: anyformer scale {tmp_path / 'ladder'}" in capsys.readouterr().err


@pytest.mark.row("VIZ-10", clause=("figures of scaling laws and power laws", "a file is emitted for each figure"))
@pytest.mark.row("WMT-08")
def test_a_ladder_leaves_runs_and_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "ladder"
    assert main(["scale", "small", *FEW, "--rungs", "2", "--rate", "1e12", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "not enough evidence" in said and "time x devices x rate" in said
    page = (out / "scale.html").read_text()
    assert page.count("<figure") == 2 and "32x2-4" in page and "<script" not in page
    assert (out / "largest" / "32x2-4" / "seed-0" / "recipe.toml").is_file()
    assert main(["report", str(out), "--out", str(tmp_path / "page.md")]) == 0
    assert "| 32x2-4 |" in (tmp_path / "page.md").read_text()
