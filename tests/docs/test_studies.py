"""The pages of studies in docs/results are those that `anyformer report PACK` writes."""

import re
from pathlib import Path

import pytest

from anyformer.reporting.scale_report import scale_markdown
from anyformer.reporting.study_report import study_markdown
from anyformer.study.budget_curves import results_of
from anyformer.study.ladder_results import Scaled
from anyformer.study.study_pack import unpack

RESULTS = Path(__file__).parents[2] / "docs" / "results"
PACKS = sorted(RESULTS.glob("*.tar.gz"))
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")
LADDER = RESULTS / "ladder.tar.gz"


@pytest.mark.parametrize("pack", [pack for pack in PACKS if pack != LADDER], ids=lambda pack: pack.name)
def test_the_page_of_a_study_is_rebuilt_from_its_raw_files(
    pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    results = results_of(unpack(pack, None, Path("runs")))
    page = RESULTS / pack.name.replace(".tar.gz", ".md")
    assert study_markdown(results) == page.read_text(encoding="utf-8")
    assert results.conclusion.split(". ")[0] in page.with_suffix(".html").read_text(encoding="utf-8")


def test_the_page_of_the_ladder_is_rebuilt_from_its_raw_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    scaled = Scaled.open(unpack(LADDER, None, Path("runs")))
    page = LADDER.with_name("ladder.md").read_text(encoding="utf-8")
    fresh = scale_markdown(scaled)
    assert NUMBER.sub("", fresh) == NUMBER.sub("", page)
    now, before = ([float(number) for number in NUMBER.findall(text)] for text in (fresh, page))
    assert now == pytest.approx(before, rel=0.03, abs=0.01)  # the bands are of fits that differ a little by machine
    shown = NUMBER.sub("", LADDER.with_name("ladder.html").read_text(encoding="utf-8"))
    assert all(NUMBER.sub("", sentence) in shown for sentence in scaled.sentences)
