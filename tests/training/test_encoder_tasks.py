"""One small encoder, three uses: it judges a sentence, fills a gap, and finds the partner of a text."""

import json
import random
from itertools import product
from pathlib import Path

import pytest
from tests.evaluation.runs import ONE, run_of

from anyformer.models import Encoder
from anyformer.parts.mixers.attention import Attention
from anyformer.run import Run, train

serves = pytest.mark.row("TRF-04", clause="serves sentiment, masked language modelling and semantic search")
GOOD, BAD = ("good", "great", "lovely", "fine"), ("bad", "awful", "boring", "poor")
THINGS = ("film", "book", "play", "song", "meal", "room", "trip", "game")
JUDGED = [
    {"text": f"the {thing} was {no}{word}", "label": "happy" if (word in GOOD) == (no == "") else "sad"}
    for thing, no, word in product(THINGS, ("", "not "), GOOD + BAD)
]


def sees_both_sides(run: Run) -> bool:
    """Whether it is an encoder with attention, which masks nothing there."""
    spec = run.trained("cpu").spec
    return isinstance(spec, Encoder) and any(isinstance(part, Attention) for _, part in spec.walk())


@serves
def test_an_encoder_tells_praise_from_blame_in_sentences_it_has_not_seen(tmp_path: Path) -> None:
    rows = random.Random(0).sample(JUDGED, len(JUDGED))
    seen, unseen = rows[30:], rows[:30]
    (file := tmp_path / "feelings.jsonl").write_text("\n".join(map(json.dumps, seen)), encoding="utf-8")
    run = train(str(file), *ONE, "model.preset=small-encoder", "objective.kind=classify", "objective.classes=2",
                "train.steps=120", "data.valid=0.1", out=tmp_path / "run", cache=tmp_path / "cache")  # fmt: skip
    assert sees_both_sides(run)
    said = [answer.label for answer in run.classify([row["text"] for row in unseen])]
    assert sum(label == row["label"] for label, row in zip(said, unseen, strict=True)) >= 28


@serves
def test_an_encoder_fills_a_gap_from_both_sides() -> None:
    run = run_of("masked")
    assert sees_both_sides(run)
    filled = run.fill(["the cat jumps <mask> the wall", "<mask> fox looks over the lake"])
    assert [answer.gaps[0][0].text.strip() for answer in filled] == ["over", "the"]


@serves
def test_an_encoder_places_a_text_nearest_to_its_partner() -> None:
    run = run_of("vectors")
    assert sees_both_sides(run)
    assert run.evaluate()["recall@1"].value > 0.8
