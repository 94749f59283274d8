"""The downstream suite: published files of each task become text to text, and generated rows do without a file."""

import json
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import pytest

from anyformer.core.spec import hints_of
from anyformer.data.sources.benchmark import Benchmark
from anyformer.data.sources.benchmark_formats import FORMATS
from anyformer.data.sources.benchmark_stand_ins import STAND_INS
from anyformer.errors import DataError

FILE = "loaders read local SuperGLUE, XSum, WebQuestions, WMT EnDe files"
PASSAGE = {"text": "Ann met Ben in Oslo.", "entities": [{"start": 0, "end": 2}, {"start": 8, "end": 10}]}
ROWS: dict[str, tuple[dict[str, Any], str, str]] = {
    "boolq": (
        {"question": "is it raining", "passage": "It rains.", "idx": 0, "label": True},
        "boolq question: is it raining passage: It rains.", "True",
    ),
    "cb": (
        {"premise": "It rains.", "hypothesis": "It is dry.", "label": "contradiction", "idx": 0},
        "cb hypothesis: It is dry. premise: It rains.", "contradiction",
    ),
    "copa": (
        {"premise": "I fell.", "choice1": "It was icy.", "choice2": "I sang.", "question": "cause", "label": 0},
        "copa choice1: It was icy. choice2: I sang. premise: I fell. question: cause", "choice1",
    ),
    "multirc": (
        {"idx": 0, "passage": {"text": "Ann and Ben ran.", "questions": [
            {"question": "Who ran?", "answers": [{"text": "Ben", "idx": 0, "label": 1}], "idx": 0}]}},
        "multirc question: Who ran? answer: Ben paragraph: Ann and Ben ran.", "True",
    ),
    "record": (
        {"source": "CNN", "passage": PASSAGE, "qas": [{"query": "@placeholder met Ann", "answers": [
            {"start": 8, "end": 10, "text": "Ben"}], "idx": 0}], "idx": 0},
        "record query: @placeholder met Ann entities: Ann, Ben passage: Ann met Ben in Oslo.", "Ben",
    ),
    "rte": (
        {"premise": "It rains.", "hypothesis": "It is wet.", "label": "not_entailment", "idx": 0},
        "rte hypothesis: It is wet. premise: It rains.", "not_entailment",
    ),
    "wic": (
        {"word": "bank", "sentence1": "the river bank", "sentence2": "a rich bank", "idx": 0, "label": False,
         "start1": 10, "start2": 7, "end1": 14, "end2": 11, "version": 1.1},
        "wic sentence1: the river bank sentence2: a rich bank word: bank", "False",
    ),
    "wsc": (
        {"text": "The cat saw the dog before it, ran.", "target": {
            "span1_index": 1, "span1_text": "cat", "span2_index": 6, "span2_text": "it"}, "idx": 0, "label": True},
        "wsc noun: cat text: The cat saw the dog before *it*, ran.", "True",
    ),
    "xsum": ({"document": "A long story.", "summary": "A story.", "id": "1"}, "summarize: A long story.", "A story."),
    "webquestions": (
        {"question": "who is ann?", "answers": ["a poet", "a mother"]}, "web question: who is ann?", "a poet",
    ),
    "wmt_en_de": (
        {"translation": {"en": "Good day.", "de": "Guten Tag."}},
        "translate English to German: Good day.", "Guten Tag.",
    ),
}  # fmt: skip
"""Task -> a row with the fields of its published file, and what it becomes."""


def halves(source: Benchmark) -> list[tuple[str, str | None]]:
    return [(record.text, record.target) for record in source.records()]


@pytest.mark.row("TSK-10", clause=FILE)
@pytest.mark.row("PRE-19", clause="tasks are text to text, told by a prefix")
@pytest.mark.parametrize("task", ROWS)
def test_a_row_of_the_published_file_becomes_a_text_with_a_prefix_and_a_target(task: str, tmp_path: Path) -> None:
    row, text, target = ROWS[task]
    file = tmp_path / "train.jsonl"
    file.write_text(json.dumps(row) + "\n\n" + json.dumps(row) + "\n", encoding="utf-8")
    assert halves(Benchmark(task=task, path=str(file))) == [(text, target)] * 2


@pytest.mark.row("PRE-19", clause="tasks are text to text, told by a prefix")
def test_no_two_tasks_share_their_prefix_and_every_task_has_one() -> None:
    assert set(get_args(hints_of(Benchmark)["task"])) == set(FORMATS) == set(STAND_INS) == set(ROWS)
    first = {task: {text.split()[0] for text, _ in halves(Benchmark(task=task, count=50))} for task in FORMATS}
    assert all(len(words) == 1 for words in first.values())
    assert len(set.union(*first.values())) == len(FORMATS)


@pytest.mark.row("TSK-10", clause=FILE)
def test_the_files_of_a_folder_are_splits_and_rows_without_an_answer_are_left_out(tmp_path: Path) -> None:
    row = ROWS["rte"][0]
    for name, rows in {"train": [row] * 3, "val": [row], "test": [{**row, "label": None}]}.items():
        kept = [{key: value for key, value in one.items() if value is not None} for one in rows]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in kept))
    splits = Counter(record.split for record in Benchmark(task="rte", path=str(tmp_path)).records())
    assert splits == {"train": 3, "valid": 1}


@pytest.mark.row("TSK-10", clause=FILE)
def test_web_questions_are_read_as_they_were_published(tmp_path: Path) -> None:
    value = '(list (description "Jazmyn \\"J\\" Bieber") (description Jaxon))'
    rows = [{"url": "http://x", "targetValue": value, "utterance": "who is his brother?"}] * 2
    (tmp_path / "webquestions.examples.train.json").write_text(json.dumps(rows))
    source = Benchmark(task="webquestions", path=str(tmp_path / "webquestions.examples.train.json"))
    assert halves(source) == [("web question: who is his brother?", 'Jazmyn "J" Bieber')] * 2


@pytest.mark.row("TSK-10", clause=FILE)
def test_wmt_is_read_from_two_files(tmp_path: Path) -> None:
    (tmp_path / "train.en").write_text("Good day.\nThank you.\n")
    (tmp_path / "train.de").write_text("Guten Tag.\nDanke.\n")
    for path in (tmp_path, tmp_path / "train.en"):
        texts = halves(Benchmark(task="wmt_en_de", path=str(path)))
        assert texts[1] == ("translate English to German: Thank you.", "Danke.") and len(texts) == 2


def test_a_row_of_another_task_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(ROWS["rte"][0]) + "\n")
    with pytest.raises(DataError, match=r"a\.jsonl:1: is not a row of boolq: KeyError 'question'"):
        list(Benchmark(task="boolq", path=str(tmp_path / "a.jsonl")).records())


@pytest.mark.row("TSK-10", clause="each task of the suite has a synthetic stand-in")
@pytest.mark.parametrize("task", STAND_INS)
def test_without_a_file_rows_are_generated_and_every_answer_occurs(task: str) -> None:
    source = Benchmark(task=task, count=300)
    texts = halves(source)
    assert texts == halves(source) != halves(Benchmark(task=task, count=300, seed=1))
    assert len(texts) >= 50
    answers = Counter(target for _, target in texts)
    assert len(answers) > 1 and max(answers.values()) <= 0.75 * len(texts)
    assert not {text: answers for text, answers in grouped(texts).items() if len(answers) > 1}  # the answer is known
    assert "generated" in source.warnings()[0]


def grouped(texts: list[tuple[str, str | None]]) -> dict[str, set[str | None]]:
    answers: dict[str, set[str | None]] = {}
    for text, target in texts:
        answers.setdefault(text, set()).add(target)
    return answers


def test_questions_about_a_generated_text_have_the_right_answer() -> None:
    for text, target in halves(Benchmark(task="boolq", count=100)):
        question, passage = text.removeprefix("boolq question: is ").split(" passage: ")
        person, place = question.split(" in ")
        assert target == str(f"{person} is in {place}." in passage)
