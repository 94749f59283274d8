"""Pairs of texts with labels, as a user meets them: known by the names of their fields, trained and classified."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from anyformer.cli.main import main
from anyformer.run import Run

WORDS = [f"{first}{last}" for first in ("ba", "de", "fi", "ko", "lu", "mo") for last in ("rin", "sel", "tam", "vok")]


def pair(rng: random.Random, number: int) -> dict[str, object]:
    """Two texts that have all words in common, or none."""
    first, second = rng.sample(WORDS, 4), rng.sample(WORDS, 4)
    same = number % 2 == 0
    second = rng.sample(first, 4) if same else [word for word in second if word not in first] or ["other"]
    return {"premise": " ".join(first), "hypothesis": " ".join(second), "label": "same" if same else "other"}


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder to work in, with a cache of its own."""
    folder = tmp_path_factory.mktemp("labelled")
    rng = random.Random(0)
    with (folder / "pairs.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(pair(rng, number)) + "\n" for number in range(600))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        yield folder


@pytest.fixture(scope="module")
def run(home: Path) -> Path:
    less = ("data.test=0.15", "train.batch_tokens=512", "train.steps=100", "evaluate.every=25")  # to be fast
    assert main(["train", str(home / "pairs.jsonl"), *less, "--out", str(home / "run"), "-q"]) == 0
    return home / "run"


def test_the_default_model_learns_what_two_texts_have_in_common(run: Path) -> None:
    scores = Run.open(run).evaluate(split="test")
    assert scores["accuracy"].value > 0.95


def test_a_pair_is_classified_from_the_command_line_and_from_a_table(
    run: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["classify", str(run), "barin desel\tdesel barin", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["text"], answer["target"], answer["label"]) == ("barin desel", "desel barin", "same")
    assert main(["classify", str(run), "--file", str(home / "pairs.jsonl"), "-q"]) == 0
    labels = capsys.readouterr().out.split()
    assert sum(label == ("same", "other")[at % 2] for at, label in enumerate(labels)) > 0.95 * 600


def test_a_table_without_the_second_text_is_refused(run: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "one.jsonl").write_text('{"text": "barin"}\n', encoding="utf-8")
    capsys.readouterr()
    assert main(["classify", str(run), "--file", str(home / "one.jsonl")]) == 3
    assert "source.target=NAME" in capsys.readouterr().err


def test_a_similarity_is_learned_as_a_number(home: Path) -> None:
    rows = [{"sentence1": f"one {n}", "sentence2": f"two {n}", "score": n / 2} for n in range(100)]
    (home / "similar.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert main(["train", str(home / "similar.jsonl"), "train.steps=2", "--out", str(home / "similar"), "-q"]) == 0
    objective = Run.open(home / "similar").recipe.objective
    assert objective is not None and objective.to_dict()["classes"] == 1 and objective.to_dict()["mean"] > 10
