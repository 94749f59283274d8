"""Every synthetic task: the same for the same seed, right by another computation, chance and lag as promised."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from math import sqrt
from statistics import median

import numpy as np
import pytest

from anyformer.core import decode
from anyformer.core.discovery import discover
from anyformer.data.record import Record, SourceSpec
from anyformer.data.synthetic.adding import Adding
from anyformer.data.synthetic.anbn import AnBn
from anyformer.data.synthetic.associative_recall import AssociativeRecall
from anyformer.data.synthetic.copy import Copy
from anyformer.data.synthetic.dyck import Dyck
from anyformer.data.synthetic.first_token_recall import FirstTokenRecall
from anyformer.data.synthetic.flip_flop import FlipFlop
from anyformer.data.synthetic.future_label import FutureLabel
from anyformer.data.synthetic.in_context_regression import InContextRegression
from anyformer.data.synthetic.listops import ListOps
from anyformer.data.synthetic.modular_addition import ModularAddition
from anyformer.data.synthetic.parity import Parity
from anyformer.data.synthetic.reverse import Reverse
from anyformer.data.synthetic.selective_copy import SelectiveCopy
from anyformer.data.synthetic.sort import Sort
from anyformer.data.synthetic.task import SyntheticTask, letters
from anyformer.errors import SpecError

Words = list[str]


def least_squares(words: Words) -> int:
    """What a reader of the examples would say."""
    numbers = np.array([float(word) for word in words])
    slope, height = np.polyfit(numbers[:-1:2], numbers[1::2], 1) if len(set(words[:-1:2])) > 1 else (0.0, numbers[1])
    return round(slope * numbers[-1] + height)


def value(words: Iterator[str]) -> int:
    """ListOps by recursive descent."""
    word = next(words)
    if not word.startswith("["):
        return int(word) if word != "]" else -1
    values = list(iter(lambda: value(words), -1))
    by_name = {"MIN": min, "MAX": max, "MED": lambda v: int(median(v)), "SM": lambda v: sum(v) % 10}
    return int(by_name[word[1:]](values))


def is_dyck(words: Words) -> bool:
    """By taking out pairs until nothing is left or nothing changes."""
    text, before = "".join(words), ""
    while text != before:
        before = text
        for pair in ("()", "[]", "{}", "<>"):
            text = text.replace(pair, "")
    return not text


def match_of(words: Words) -> int:
    """The place that the last bracket closes, if the word is right."""
    return max(place for place in range(len(words)) if is_dyck(words[place:])) if is_dyck(words) else len(words) - 1


def yes(holds: bool) -> str:
    return "yes" if holds else "no"


# task -> the right answer, by another way than the generator's; and the farthest clue's place for the answering place
ANSWERS: dict[str, Callable[[Words], str | tuple[str, ...]]] = {
    "copy": " ".join,
    "reverse": lambda words: " ".join(reversed(words)),
    "sort": lambda words: " ".join(str(n) for n in np.sort(np.array(words, dtype=int))),
    "adding": lambda words: str(sum(int(word[1:]) for word in words if word[0] == "+")),
    "first_token_recall": lambda words: words[0],
    "associative_recall": lambda words: dict(zip(words[:-1:2], words[1::2], strict=True))[words[-1]],
    "parity": lambda words: tuple(("even", "odd")[words[: t + 1].count("1") % 2] for t in range(len(words))),
    "modular_addition": lambda words: str(sum(map(int, words[::2][:2])) % 7),
    "dyck": lambda words: yes(is_dyck(words)),
    "anbn": lambda words: yes(words == ["a"] * (len(words) // 2) + ["b"] * (len(words) // 2)),
    "selective_copy": lambda words: " ".join(word for word in words if word != "."),
    "flip_flop": lambda words: words[max(t for t, word in enumerate(words) if word == "w") + 1],
    "listops": lambda words: str(value(iter(words))),
    "future_label": lambda words: (*words[3:], "none", "none", "none"),
}
CLUES: dict[str, Callable[[Words, Record], int]] = {
    "copy": lambda words, _: len(words),
    "reverse": lambda words, _: max(len(words) + j - (len(words) - 1 - j) for j in range(len(words))),
    "sort": lambda words, record: max(
        len(words) + j - words.index(word) for j, word in enumerate((record.target or "").split())
    ),
    "adding": lambda words, _: len(words) - 1 - min(t for t, word in enumerate(words) if word[0] == "+"),
    "first_token_recall": lambda words, _: len(words) - 1,
    "associative_recall": lambda words, _: len(words) - 1 - words.index(words[-1]),
    "parity": lambda words, _: len(words) - 1,
    "modular_addition": lambda words, _: words.index("="),
    "dyck": lambda words, _: len(words) - 1 - match_of(words),
    "anbn": lambda words, _: len(words) - 1,
    "selective_copy": lambda words, record: max(
        len(words) + j - place for j, place in enumerate(t for t, word in enumerate(words) if word != ".")
    ),
    "flip_flop": lambda words, _: len(words) - 1 - max(t for t, word in enumerate(words) if word == "w") - 1,
    "listops": lambda words, _: len(words) - 1,
    "future_label": lambda words, _: 3,
    "in_context_regression": lambda words, _: len(words) - 1,
}
SMALL: tuple[SyntheticTask, ...] = (
    Copy(length=6, symbols=5),
    Reverse(length=6, symbols=5),
    Sort(length=5, symbols=7),
    Adding(length=8, symbols=5),
    FirstTokenRecall(length=9, symbols=5),
    AssociativeRecall(pairs=4, symbols=8, values=5),
    Parity(length=9),
    ModularAddition(symbols=7),
    Dyck(length=10, symbols=2),
    AnBn(length=13),
    SelectiveCopy(length=10, items=3, symbols=5),
    FlipFlop(length=6, ignore=0.7),
    ListOps(length=20, depth=3, arguments=4),
    FutureLabel(length=10, symbols=5, lag=3),
    InContextRegression(pairs=6, symbols=8),
)
each = pytest.mark.parametrize("task", SMALL, ids=lambda task: task.kind)


def drawn(task: SyntheticTask, count: int = 300) -> list[Record]:
    return list(islice(replace(task, count=count).records(), count))


def answers(record: Record) -> tuple[str, ...]:
    """The answer of every place that has one."""
    return record.tags or (tuple(record.target.split()) if record.target is not None else (record.label or "",))


def test_every_task_is_among_those_tested() -> None:
    discover()
    assert {kind for kind, cls in SourceSpec.kinds.items() if issubclass(cls, SyntheticTask)} == {
        task.kind for task in SMALL
    }
    assert ANSWERS.keys() | {"in_context_regression"} == CLUES.keys() == {task.kind for task in SMALL}


@pytest.mark.row("TSK-12", clause="the same seed gives the same data")
@each
def test_a_sample_depends_on_the_seed_and_its_number_alone(task: SyntheticTask) -> None:
    records = drawn(task, 40)
    assert records == drawn(task, 40) == [replace(task, count=1).record(index) for index in range(40)]
    assert task.record(39) == records[39]
    assert [record.text for record in records] != [record.text for record in drawn(replace(task, seed=1), 40)]


@each
def test_a_task_survives_its_file_and_tells_its_data_apart(task: SyntheticTask) -> None:
    assert decode(SourceSpec, task.to_dict()) == task
    assert task.fingerprint() == replace(task).fingerprint() != replace(task, seed=1).fingerprint()


@pytest.mark.row("TSK-12", clause="tasks: copy, reverse, adding, recall, parity, Dyck, selective copy")
@pytest.mark.row("CLM-18", clause="the task needs a lag of 200: adding problem or first-token recall")
@pytest.mark.row(
    "CLM-21",
    clause=(
        "tasks with a recurrent rule: parity, a^n b^n or modular counting",
        "trained on prefix parity, a label at every position",
    ),
)
@pytest.mark.parametrize("task", [task for task in SMALL if task.kind in ANSWERS], ids=lambda task: task.kind)
def test_answers_are_right_by_another_computation(task: SyntheticTask) -> None:
    for record in drawn(task):
        right = ANSWERS[task.kind](record.text.split())
        assert right == (record.tags or record.target or record.label)
        assert record.text == " ".join(record.text.split())


@pytest.mark.row("TSK-12", clause="the chance level of each task is known")
@each
def test_the_best_blind_guess_is_right_as_often_as_chance_says(task: SyntheticTask) -> None:
    learned, scored = drawn(task, 1000), drawn(replace(task, seed=7), 1000)
    most = [Counter(place).most_common(1)[0][0] for place in zip(*map(answers, learned), strict=True)]
    hits = [sum(map(str.__eq__, most, answers(record))) / len(most) for record in scored]
    error = sqrt(task.chance * (1 - task.chance) / len(hits))
    assert abs(sum(hits) / len(hits) - task.chance) < 4 * error


@pytest.mark.row("CLM-18", clause="the task needs a lag of 200: adding problem or first-token recall")
@pytest.mark.row("TSK-12")
@each
def test_the_farthest_clue_stands_where_lag_says(task: SyntheticTask) -> None:
    clues = [CLUES[task.kind](record.text.split(), record) for record in drawn(task, 500)]
    assert max(clues) == task.lag


def test_the_lag_is_what_one_sets() -> None:
    assert [FirstTokenRecall(length=n).lag for n in (10, 1000)] == [9, 999]
    assert [Copy(length=n).lag for n in (10, 1000)] == [10, 1000]
    assert FutureLabel(lag=7).lag == 7


FAR: dict[str, Callable[[int], SyntheticTask]] = {
    "copy": lambda lag: Copy(length=lag),
    "reverse": lambda lag: Reverse(length=lag // 2),
    "adding": lambda lag: Adding(length=lag + 1),
    "associative_recall": lambda lag: AssociativeRecall(pairs=lag // 2, symbols=lag),
    "parity": lambda lag: Parity(length=lag + 1),
    "dyck": lambda lag: Dyck(length=lag + 2),
    "selective_copy": lambda lag: SelectiveCopy(length=lag, items=4),
}
"""Task of the lectures -> one of its values with a lag."""


@pytest.mark.row("TSK-12", clause="the lag of each generator can be set")
@pytest.mark.parametrize("kind", FAR)
@pytest.mark.parametrize("lag", [4, 12, 100])
def test_a_generator_can_be_given_a_lag(kind: str, lag: int) -> None:
    task = FAR[kind](lag)
    assert abs(task.lag - lag) <= 1  # brackets come in pairs, and a text that is read backwards has an odd lag
    clues = [CLUES[kind](record.text.split(), record) for record in drawn(task, 60)]
    assert 0.8 * task.lag < max(clues) <= task.lag


def test_all_tags_of_parity_end_in_its_label() -> None:
    assert all(record.label == record.tags[-1] for record in drawn(Parity()))


def test_counting_symbols_does_not_tell_whether_brackets_are_balanced() -> None:
    for record in drawn(Dyck(length=12, symbols=3)):
        counts = Counter(record.text.split())
        assert all(counts[opening] == counts[closing] for opening, closing in ("()", "[]", "{}"))


def test_dyck_words_are_drawn_uniformly() -> None:
    words = Counter(record.text for record in drawn(Dyck(length=6, symbols=1), 4000) if record.label == "yes")
    expected = sum(words.values()) / 5  # the third Catalan number
    assert len(words) == 5
    assert sum((count - expected) ** 2 / expected for count in words.values()) < 18.5  # chi-square, 4 degrees, 0.1%


def test_the_length_of_a_word_does_not_tell_whether_it_is_right() -> None:
    shares: dict[int, list[bool]] = {}
    for record in drawn(AnBn(length=10), 2000):
        shares.setdefault(len(record.text.split()), []).append(record.label == "yes")
    assert sorted(shares) == [4, 6, 8, 10]
    assert all(abs(np.mean(right) - 0.5) < 2 / sqrt(len(right)) for right in shares.values())


def test_listops_keeps_to_its_length_and_depth() -> None:
    for record in drawn(ListOps(length=60, depth=6, arguments=4), 100):
        words = record.text.split()
        depths = np.cumsum([word.startswith("[") - (word == "]") for word in words])
        assert 55 < len(words) <= 60 and depths.max() <= 6 and depths[-1] == 0
    assert all(record.text.count("[") == 1 for record in drawn(ListOps(length=60, depth=1), 20))
    assert all(len(record.text.split()) == 4 for record in drawn(ListOps(length=4), 20))


def test_the_examples_of_a_regression_tell_its_answer() -> None:
    errors = [
        abs(least_squares(record.text.split()) - int(record.label or ""))
        for record in drawn(InContextRegression(pairs=20, symbols=16), 500)
    ]
    assert max(errors) <= 1
    assert errors.count(0) / len(errors) > 0.85


def test_keys_of_a_sample_differ() -> None:
    for record in drawn(AssociativeRecall(pairs=8, symbols=8)):
        keys = record.text.split()[:-1:2]
        assert len(set(keys)) == len(keys)


def test_reads_inside_a_flip_flop_tell_the_truth() -> None:
    for record in drawn(FlipFlop(length=30, ignore=0.3)):
        words, stored = record.text.split(), ""
        for instruction, bit in zip(words[:-1:2], words[1::2], strict=True):
            stored = bit if instruction == "w" else stored
            assert instruction != "r" or bit == stored


def test_letters_are_all_different() -> None:
    assert letters(3) == ["a", "b", "c"]
    assert letters(28)[-2:] == ["aa", "ab"]
    assert len(set(letters(1000))) == 1000


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Dyck(length=7), "brackets come in pairs"),
        (lambda: FutureLabel(length=5, lag=5), "beyond the end"),
        (lambda: AssociativeRecall(pairs=9, symbols=8), "as many different keys"),
        (lambda: SelectiveCopy(length=4, items=5), "do not fit"),
        (lambda: Copy(length=0), "at least 1"),
    ],
)
def test_an_impossible_task_is_refused(make: Callable[[], SyntheticTask], why: str) -> None:
    with pytest.raises(SpecError, match=why):
        make()
