"""The model card of an export says how the output of the model is to be read."""

import json
from pathlib import Path

import pytest
from tests.evaluation.runs import ONE, SENTENCES

from anyformer.reporting.model_card import CardTarget, model_card
from anyformer.run import train

STARS, PRICES = (1, 2, 5), (1.5, 2.25, 8.0)


@pytest.mark.parametrize(("labels", "settings", "answers"), [
    (STARS, (), None),  # whole numbers are classes
    (STARS, ("objective.kind=regress", "objective.mean=3", "objective.deviation=2"), "3 + 2 times the output"),
    (PRICES, (), "times the output"),
])  # fmt: skip
def test_only_models_of_numbers_give_one(
    tmp_path: Path, labels: tuple[float, ...], settings: tuple[str, ...], answers: str | None
) -> None:
    rows = [{"text": text, "label": labels[place % 3]} for place, text in enumerate(SENTENCES)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    run = train(str(tmp_path / "rows.jsonl"), *ONE, *settings, "train.steps=1", out=tmp_path / "run", cache=tmp_path)
    text = model_card(run.folder, CardTarget("onnx", "classifier", 1, "step 1")).text
    assert ("number of a text" in text) == (answers is not None) and (answers or "") in text
