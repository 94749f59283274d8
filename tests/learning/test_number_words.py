"""The recipe of the translator: numbers that it never saw come out right, and it looks where German says them."""

from collections.abc import Sequence
from itertools import accumulate, islice

import pytest
from tests.cli.shipped import FOLDER
from tests.learning.conftest import Store

from anyformer.data.record import Record
from anyformer.run import Run, train
from anyformer.viewing.view import View, ViewSelection


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """What `anyformer train recipes/translation.toml` makes."""
    home = tmp_path_factory.mktemp("numbers")
    return train(FOLDER / "translation.toml", "train.device=cpu", out=home / "run", cache=home / "cache")


def within(pieces: Sequence[str], start: int, stop: int) -> list[int]:
    """The pieces that have a letter in this stretch of the text that they make up."""
    ends = accumulate(map(len, pieces))
    return [place for place, end in enumerate(ends) if end - len(pieces[place]) < stop and end > start]


def reversed_tens(record: Record) -> bool:
    """twenty-one at its end, and nowhere else such a number."""
    return record.text.count("-") == 1 and " " not in record.text.partition("-")[2]


def crosses(seen: ViewSelection, text: str, target: str) -> bool:
    """Whether the units, which are said first, look rather at the units than at the tens, and the tens at the tens."""
    hyphen, und = text.index("-"), target.rindex("und")
    units = within(seen.columns, hyphen + 1, len(text))
    tens = within(seen.columns, text.rfind(" ") + 1, hyphen)
    first = seen.weights[within(seen.rows, und - 1, und)[0]]
    then = seen.weights[within(seen.rows, und + len("und"), len(target))[0]]
    return bool(first[units].sum() > first[tens].sum() and then[tens].sum() > then[units].sum())


@pytest.mark.row("TSK-05", clause="a translation model maps a source to a target sentence")
@pytest.mark.learn
def test_numbers_never_seen_are_translated_to_the_letter(trained: Run, store: Store) -> None:
    found = {name: score.value for name, score in trained.evaluate(metrics=("exact_match", "chrf", "loss")).items()}
    store(found)
    assert found["exact_match"] >= 0.99


@pytest.mark.learn
@pytest.mark.row("WMT-10")
def test_the_units_that_german_says_first_look_at_the_end_of_the_source(trained: Run, store: Store) -> None:
    asked = list(islice(filter(reversed_tens, trained.records()), 60))
    hits = []
    for record in asked:
        view = View.of(trained.folder, record.text, record.target)
        hits.append(crosses(view.choose("cross"), record.text, str(record.target)))
    share = sum(hits) / len(hits)
    store({"crossing": share, "numbers": len(hits)})
    assert share > 0.8  # a model that reads from left to right has none
