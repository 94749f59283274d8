"""The stored figures of smaller models, and the documents that quote them."""

from pathlib import Path

import pytest

from benchmarks import finetuning, shrinking

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs/results"


def test_the_page_shows_the_stored_tables() -> None:
    page = (ROOT / "docs/experiments.md").read_text(encoding="utf-8")
    lines = [line for line in shrinking.table(shrinking.rows_of(RESULTS / "shrinking.jsonl")) if line]
    assert len(lines) > 20
    assert [line for line in lines if line not in page] == []


@pytest.mark.row("OPT-12", clause="on a toy task the distilled student beats one trained without")
def test_the_student_with_a_teacher_beats_the_one_without_on_each_seed() -> None:
    rows = [row for row in shrinking.rows_of(RESULTS / "shrinking.jsonl") if row["way"] == "distil"]
    seeds = {row["seed"] for row in rows}
    assert len(seeds) >= 3
    for row in rows:
        student, alone = (row["table"][name]["scores"]["loss"]["value"] for name in ("student", "student alone"))
        assert student < alone, (row["task"], row["seed"])


@pytest.mark.row("OPT-13", clause="accuracy drops by less than 1%")
def test_int8_weights_keep_accuracy_and_shrink_the_file() -> None:
    for row in shrinking.rows_of(RESULTS / "shrinking.jsonl"):
        if row["way"] == "quantise":
            before, after = row["table"]["before"], row["table"]["quantised"]
            assert after["file_bytes"] < before["file_bytes"] / 2
            score = shrinking.TASKS[row["task"]].score
            assert after["scores"][score]["value"] > 0.99 * before["scores"][score]["value"]


def test_differences_are_paired_by_seed() -> None:
    def facts(loss: float) -> shrinking.Row:
        return {"scores": {"loss": {"value": loss}}}

    tables = [{"a": facts(level - 0.1), "b": facts(level)} for level in (1.0, 5.0, 9.0)]
    assert (
        shrinking.paired(tables, "a", "b", "loss") == "-0.100 | -0.100 to -0.100"
    )  # levels differ, differences do not


def test_the_guide_quotes_the_stored_gains_of_fine_tuning() -> None:
    guide = (ROOT / "docs/finetuning.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in finetuning.table(finetuning.read(RESULTS / "finetuning.jsonl"))]
    gains = [row for row in rows if len(row) == 8 and row[2] == "accuracy"]
    assert len(gains) == 8
    for _, _, _, ours, theirs, gain, over_seeds, _ in gains:
        assert f"| {theirs} | {gain} ({over_seeds}) |" in guide
        assert f"| {ours} |" in guide
