"""The table of what pre-trained weights gain, and the runs behind it."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from benchmarks.finetuning import ARMS, Line, main, read, table
from tests.interop.folders import CASES, write_tokenizer

TEXTS = 50


def line(arm: str, seed: int, right: "np.ndarray[tuple[int], np.dtype[np.bool_]]") -> Line:
    """A stored run that has these test texts right."""
    rng = np.random.default_rng(0)
    shares = [right[rng.integers(TEXTS, size=TEXTS)].mean() for _ in range(200)]
    score = {"value": float(right.mean()), "texts": TEXTS, "resampled": shares}
    facts = {"params": 10, "steps": 5, "best_step": 5, "seconds": 1.0}
    return {"data": "reviews", "arm": arm, "seed": seed, **facts, "accuracy": score, "loss": score}


def test_gains_are_paired_by_seed_and_by_test_text() -> None:
    base = np.random.default_rng(1).random((3, TEXTS)) < 0.5  # seeds differ much, the arms of a seed in five texts
    better = base.copy()
    for row in better:
        row[np.flatnonzero(~row)[:5]] = True
    lines = [
        line(arm, seed, rows[seed]) for arm, rows in zip(ARMS, (better, base, better), strict=True) for seed in range(3)
    ]
    rows = {
        tuple(row.split(" | ")[1:3]): row.strip("| ").split(" | ")
        for row in table(lines)
        if row.startswith("| reviews |")
    }
    random, same = rows["random weights", "accuracy"], rows["default", "accuracy"]
    assert random[5] == "+0.100" and random[6] == "+0.100 to +0.100"  # the same gain with every seed
    low, high = (float(end) for end in random[7].split(" to "))
    assert 0 < low < 0.1 < high < 0.2
    assert same[5] == "+0.000" and same[7] == "none"


def test_a_seed_without_both_runs_is_left_out() -> None:
    right = np.arange(TEXTS) < 40
    lines = [line(ARMS[0], seed, right) for seed in range(3)] + [line(ARMS[1], 1, right[::-1].copy())]
    (row,) = [row for row in table(lines) if "| random weights | accuracy |" in row]
    assert "| +0.000 | none |" in row  # one pair: no interval over seeds


@pytest.mark.slow
def test_every_run_is_stored_and_none_is_trained_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    transformers = pytest.importorskip("transformers", reason="the folder is written by transformers")
    CASES["bert"].make(transformers, tmp_path / "bert")
    write_tokenizer(tmp_path / "bert", "<|endoftext|>")
    texts = [{"body": f"axu {n}", "stars": ("one", "two")[n % 2]} for n in range(200)]
    (tmp_path / "reviews.jsonl").write_text("\n".join(map(json.dumps, texts)))
    data = f"{tmp_path / 'reviews.jsonl'} data.test=0.2 data.source.text=body data.source.label=stars"
    words = ["finetuning", str(tmp_path / "bert"), data, "--tiny", "--seeds", "0", "--workers", "2"]
    monkeypatch.setattr(sys, "argv", [*words, "--cache", str(tmp_path / "cache"), "--out", str(tmp_path / "out.jsonl")])
    for _ in range(2):
        with pytest.raises(SystemExit, match="0"):
            main()
        lines = read(tmp_path / "out.jsonl")
        assert sorted(each["arm"] for each in lines) == sorted(ARMS)
    tuned, random, default = sorted(lines, key=lambda each: ARMS.index(each["arm"]))
    assert tuned["params"] == random["params"] != default["params"] and tuned["steps"] == random["steps"] == 2
    assert tuned["accuracy"]["texts"] == default["accuracy"]["texts"] and "fine-tuned" in capsys.readouterr().out
