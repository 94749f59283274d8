"""A ratio that fell is found; noise, new rows and trial runs are not."""

import sys
from pathlib import Path

import pytest
from benchmarks.regress import accept, elsewhere, falls
from benchmarks.rows import Row, read, write
from tests.benchmarks.measuring import row

from benchmarks import regress


@pytest.mark.parametrize(
    ("new", "fell"),
    [
        (row(1.35), True),
        (row(1.45), False),
        (row(1.2, noisy=True), False),
        (row(1.1, noisy=True), True),
        (row(2.0, ok=False), True),
        (row(None), True),
        (row(None, shape={}, peer="", ok=False, note="ended with exit code 1"), True),
        (row(0.1, shape={"layers": 3}), False),
    ],
    ids=["fell", "within", "noisy", "fell in noise", "wrong", "no ratio", "crashed", "another"],
)
def test_a_ratio_may_lose_a_tenth_or_what_noise_explains(new: Row, fell: bool) -> None:
    assert bool(list(falls([new], [row(1.51)]))) == fell


def test_rows_of_another_processor_are_named_and_not_compared() -> None:
    new, accepted = row(1.0, versions={"machine": "Neoverse"}), row(1.5, versions={"machine": "Xeon"})
    same = [row(1.5, item="beam", versions={"machine": "Neoverse"})]
    assert not list(falls([new, *same], [accepted, *same])) and not elsewhere(same, same)
    sentence = "1 of 2 comparisons are not compared: measured on Neoverse, accepted on Xeon."
    assert elsewhere([new, *same], [accepted, *same]) == sentence


def test_accepted_rows_are_replaced_and_trial_runs_left_out(tmp_path: Path) -> None:
    file = tmp_path / "accepted.jsonl"
    write(file, [row(1.5), row(2.0, item="beam")])
    accept([row(1.2), row(9.0, device="tiny")], file)
    assert sorted((it.item, it.ratio) for it in read([file])) == [("beam", 2.0), ("lm", 1.2)]


def test_a_new_profile_leaves_no_group_of_the_old_one(tmp_path: Path) -> None:
    file, whose = tmp_path / "accepted.jsonl", {"work": "training", "who": "ours"}
    write(file, [row(None, item="profile", shape={**whose, "group": name}) for name in ("norms", "between operations")])
    accept([row(None, item="profile", shape={**whose, "group": name}) for name in ("norms", "sums")], file)
    assert sorted(str(it.shape["group"]) for it in read([file])) == ["norms", "sums"]


def test_the_command_shows_a_table_and_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    accepted, new = tmp_path / "accepted.jsonl", tmp_path / "new.jsonl"
    write(accepted, [row(1.5)])
    write(new, [row(1.0)])
    monkeypatch.setattr(sys, "argv", ["regress", str(new), "--accepted", str(accepted)])
    with pytest.raises(SystemExit) as end:
        regress.main()
    assert end.value.code == 1
    assert "| cpu | lm | layers 2 | transformers | 1.50 | 1.00 |" in capsys.readouterr().out
