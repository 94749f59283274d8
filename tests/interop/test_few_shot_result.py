"""The stored few-shot accuracy of SmolLM2, and the table of docs/experiments.md that shows it."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_table_shows_the_stored_figures_of_unchanged_weights() -> None:
    stored = json.loads((ROOT / "docs/results/few-shot.json").read_text(encoding="utf-8"))
    assert stored["weights_before"] == stored["weights_after"]
    assert [result["k"] for result in stored["results"]] == [0, 1, 4, 16]
    page = (ROOT / "docs/experiments.md").read_text(encoding="utf-8")
    for one in stored["results"]:
        interval = f"{one['low']:.3f} to {one['high']:.3f}"
        assert f"| {one['k']} | {one['right']} of {one['of']} | {one['right'] / one['of']:.3f} | {interval} |" in page
