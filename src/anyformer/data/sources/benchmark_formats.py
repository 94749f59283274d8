"""The tasks of a downstream suite as text to text, marked by a prefix (arXiv 1910.10683, section 2.4 and appendix D).

A row is one object of the published file of a task; its pairs are (text with prefix, target).

  {"premise": ..., "hypothesis": ..., "label": "entailment"}  ->  rte hypothesis: ... premise: ... -> entailment
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Row = Mapping[str, Any]
Pairs = Iterator[tuple[str, str]]


def prefixed(task: str, **fields: str) -> str:
    """The name of the task, then each field with its name."""
    return " ".join([task, *(f"{name}: {value.strip()}" for name, value in fields.items())])


def boolq(row: Row) -> Pairs:
    yield prefixed("boolq", question=row["question"], passage=row["passage"]), str(bool(row["label"]))


def cb(row: Row) -> Pairs:
    yield prefixed("cb", hypothesis=row["hypothesis"], premise=row["premise"]), row["label"]


def copa(row: Row) -> Pairs:
    fields = {name: row[name] for name in ("choice1", "choice2", "premise", "question")}
    yield prefixed("copa", **fields), ("choice1", "choice2")[row["label"]]


def multirc(row: Row) -> Pairs:
    paragraph = row["passage"]["text"]
    for question in row["passage"]["questions"]:
        for answer in (answer for answer in question["answers"] if "label" in answer):
            text = prefixed("multirc", question=question["question"], answer=answer["text"], paragraph=paragraph)
            yield text, str(bool(answer["label"]))


def record(row: Row) -> Pairs:
    passage = row["passage"]["text"]
    spans = [passage[place["start"] : place["end"] + 1] for place in row["passage"]["entities"]]
    entities = ", ".join(dict.fromkeys(spans))
    for question in (question for question in row["qas"] if question.get("answers")):
        text = prefixed("record", query=question["query"], entities=entities, passage=passage)
        yield text, question["answers"][0]["text"]


def rte(row: Row) -> Pairs:
    yield prefixed("rte", hypothesis=row["hypothesis"], premise=row["premise"]), row["label"]


def wic(row: Row) -> Pairs:
    fields = {name: row[name] for name in ("sentence1", "sentence2", "word")}
    yield prefixed("wic", **fields), str(bool(row["label"]))


def wsc(row: Row) -> Pairs:
    words, target = row["text"].split(" "), row["target"]
    place, pronoun = target["span2_index"], target["span2_text"]
    words[place] = words[place].replace(pronoun, f"*{pronoun}*", 1)
    yield prefixed("wsc", noun=target["span1_text"], text=" ".join(words)), str(bool(row["label"]))


def webquestions(row: Row) -> Pairs:
    """The question alone: the answer has to come from the weights (closed book). The first of several answers."""
    if "targetValue" in row:  # the published file: (list (description "Jazmyn Bieber") (description "Jaxon Bieber"))
        quoted, plain = re.findall(r'\(description (?:"((?:[^"\\]|\\.)*)"|([^()"\s]+))\)', row["targetValue"])[0]
        yield prefixed("web", question=row["utterance"]), quoted.replace(r"\"", '"') or plain
    else:
        answer = row.get("answers", row.get("answer"))
        yield prefixed("web", question=row["question"]), answer if isinstance(answer, str) else answer[0]


def xsum(row: Row) -> Pairs:
    yield f"summarize: {row['document'].strip()}", row["summary"]


def wmt_en_de(row: Row) -> Pairs:
    yield f"translate English to German: {row['en'].strip()}", row["de"]


FORMATS: Mapping[str, Callable[[Row], Pairs]] = {
    "boolq": boolq, "cb": cb, "copa": copa, "multirc": multirc, "record": record, "rte": rte, "wic": wic, "wsc": wsc,
    "xsum": xsum, "webquestions": webquestions, "wmt_en_de": wmt_en_de,
}  # fmt: skip
"""Task -> the pairs of a row of its file."""
