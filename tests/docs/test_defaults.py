"""The figures of docs/defaults.md are those of docs/results/defaults.jsonl, and within the limits that they promise."""

import json
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/defaults.md").read_text(encoding="utf-8")
ROWS = [json.loads(line) for line in (ROOT / "docs/results/defaults.jsonl").read_text(encoding="utf-8").splitlines()]
LABELLED = {
    "sentiment": "| sentiment of short texts", "spam": "| spam among mails", "sections": "| section of a package",
    "synopses": "| the same from the synopsis", "unicode_names": "| `unicode_names` with",
}  # fmt: skip
MOST_LOST = -1.0
"""Points of accuracy that no data set may lose against the bag of words."""


def _runs(data: str, device: str) -> list[dict[str, Any]]:
    return [row for row in ROWS if (row["data"], row["device"]) == (data, device)]


def _differences(data: str, device: str, score: str, yardstick: str) -> list[float]:
    return [
        each["difference"]["value"]
        for run in _runs(data, device)
        for each in run["yardsticks"]
        if (each["score"], each["yardstick"]) == (score, yardstick)
    ]


@pytest.mark.parametrize("data", LABELLED)
def test_a_row_of_labelled_texts_is_the_mean_of_its_seeds(data: str) -> None:
    line = next(line for line in PAGE.splitlines() if line.startswith(LABELLED[data]))
    runs = _runs(data, "cpu")
    assert len(runs) == 3
    for score in ("accuracy", "loss"):
        assert f"| {mean(run['scores'][score]['value'] for run in runs):.3f} |" in line
    points = [100 * value for value in _differences(data, "cpu", "accuracy", "bag_of_words")]
    assert f"{mean(points):+.1f} ({min(points):.1f} to {max(points):.1f})" in line
    nats = _differences(data, "cpu", "loss", "bag_of_words")
    assert f"{mean(nats):+.3f} ({min(nats):.3f} to {max(nats):.3f})" in line


def test_labelled_texts_are_at_least_as_good_as_a_bag_of_words() -> None:
    gains = {data: mean(_differences(data, "cpu", "accuracy", "bag_of_words")) for data in LABELLED}
    losses = [mean(_differences(data, "cpu", "loss", "bag_of_words")) for data in LABELLED]
    assert mean(gains.values()) >= 0 and min(gains.values()) >= MOST_LOST / 100 and mean(losses) <= 0
    assert f"{100 * mean(gains.values()):+.1f} points and {mean(losses):.3f} nats" in PAGE
    errors = [run["scores"]["calibration_error"]["value"] for data in LABELLED for run in _runs(data, "cpu")]
    assert max(errors) <= 0.1


@pytest.mark.parametrize("data", ["text-1mb", "speeches"])
def test_text_on_a_gpu_is_better_than_the_n_gram_on_every_seed(data: str) -> None:
    gains = [-value for value in _differences(data, "cuda", "bits_per_byte", "n_gram")]
    assert len(gains) == 3 and min(gains) > 0
    assert f"by {min(gains):.3f} to {max(gains):.3f}" in " ".join(PAGE.split())
    values = [run["scores"]["bits_per_byte"]["value"] for run in _runs(data, "cuda")]
    assert f"| {min(values):.3f} to {max(values):.3f} |" in PAGE


def test_translations_are_those_of_the_page() -> None:
    for run in _runs("en-de", "cuda"):
        bleu = run["scores"]["bleu"]
        assert f"| {bleu['value']:.1f} ({bleu['low']:.1f} to {bleu['high']:.1f}) |" in PAGE
