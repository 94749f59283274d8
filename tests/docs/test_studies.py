"""The pages of studies in docs/results are those that `anyformer report PACK` writes."""

from pathlib import Path

import pytest

from anyformer.reporting.study_report import study_markdown
from anyformer.study.budget_curves import results_of
from anyformer.study.study_pack import unpack

RESULTS = Path(__file__).parents[2] / "docs" / "results"
PACKS = sorted(RESULTS.glob("*.tar.gz"))


@pytest.mark.parametrize("pack", PACKS, ids=lambda pack: pack.name)
def test_the_page_of_a_study_is_rebuilt_from_its_raw_files(
    pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    results = results_of(unpack(pack, None, Path("runs")))
    page = RESULTS / pack.name.replace(".tar.gz", ".md")
    assert study_markdown(results) == page.read_text(encoding="utf-8")
    assert results.conclusion.split(". ")[0] in page.with_suffix(".html").read_text(encoding="utf-8")
