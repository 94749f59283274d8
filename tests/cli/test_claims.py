"""`anyformer claims`, as a user types it."""

import json
from pathlib import Path

import pytest

from anyformer.cli.main import main


@pytest.mark.row("VIZ-09", clause="grid of the min number of steps for every layer l and time t")
def test_one_claim_prints_its_verdict_and_leaves_a_page_and_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["claims", "CLM-07", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "holds" in said and f"{tmp_path}/CLM-07.svg" in said
    page = (tmp_path / "CLM-07.html").read_text()
    assert "default-src" in page and page.count("<figure") == 2 and "<script" not in page


def test_json_is_one_object_for_one_claim(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["claims", "clm-10", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ids"] == ["CLM-10"] and found["verdict"] == "holds" and found["figures"]["recurrent"][0] == 2 * 64**2


def test_an_unknown_claim_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["claims", "CLM-99"]) == 2
    assert "CLM-" in capsys.readouterr().err
