"""Small grammars: the trees of one are written in brackets that close, the gaps in another are filled by agreement."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.shipped import FOLDER
from tests.data.test_toy_parses import well_formed
from tests.learning.conftest import Store
from tests.learning.runs import ENCODER, PAIR, lines, run

ANIMALS = {
    "dog": ("bark", "loudly"), "cat": ("purr", "softly"), "bird": ("sing", "sweetly"), "lion": ("roar", "fiercely"),
    "bee": ("hum", "busily"), "cow": ("moo", "slowly"),
}  # fmt: skip


def clauses(count: int) -> Iterator[str]:
    """this dog barks loudly and these cats purr softly: every word follows from the others of its clause."""
    rng = random.Random(0)
    for _ in range(count):
        said = []
        for animal in rng.choices(list(ANIMALS), k=3):
            verb, manner = ANIMALS[animal]
            one, many = f"this {animal} {verb}s {manner}", f"these {animal}s {verb} {manner}"
            said.append(rng.choice((one, many)))
        yield " and ".join(said)


@pytest.mark.row(
    "TSK-06",
    clause=(
        "parse, sentence or summary is generated as a token sequence",
        "toy PCFG: > 95% of generated parses have well-formed brackets",
    ),
)
@pytest.mark.learn
def test_trees_are_written_as_text_with_brackets_that_close(tmp_path: Path, store: Store) -> None:
    trained = run(tmp_path, FOLDER / "parsing.toml", *PAIR, "train.batch_tokens=2048", "train.steps=1000",
                  "optimizer.lr=3e-3", "schedule.kind=linear", "schedule.warmup=100")  # fmt: skip
    asked = list(trained.records())[:200]
    written = trained.generate([record.text for record in asked])
    found = {"well_formed": sum(map(well_formed, written)) / len(asked)}
    found["exact"] = sum(mine == it.target for mine, it in zip(written, asked, strict=True)) / len(asked)
    store(found)
    assert found["well_formed"] > 0.95


@pytest.mark.row(
    "TSK-02",
    clause=("a masked place is filled with the most likely word", "masked-LM top-1 accuracy on a toy grammar > 90%"),
)
@pytest.mark.slow
def test_a_word_that_is_masked_is_found_by_the_words_that_agree_with_it(tmp_path: Path, store: Store) -> None:
    file = lines(tmp_path / "clauses.jsonl", ({"text": text} for text in clauses(3000)))
    trained = run(tmp_path, file, *ENCODER, "objective.kind=masked_words", "data.tokenizer.kind=word",
                  "data.context=32", "train.batch_tokens=1024", "train.steps=600", "optimizer.lr=3e-3")  # fmt: skip
    accuracy = trained.evaluate(metrics=("accuracy",))["accuracy"].value
    store({"accuracy": accuracy})
    assert accuracy > 0.9
    filled = trained.fill(["these bees hum busily and this <mask> barks loudly and this cow moos slowly"])
    assert filled[0].gaps[0][0].text.strip() == "dog"
