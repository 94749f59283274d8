"""F1 of spans: which words the tags put together, and the score of a model."""

from pathlib import Path

import pytest

import anyformer as af
from anyformer.evaluation.metrics.spans import Span, spans


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("B-PER I-PER O B-LOC", [(0, 2, "PER"), (3, 4, "LOC")]),
        ("B-PER B-PER", [(0, 1, "PER"), (1, 2, "PER")]),
        ("I-PER I-PER O I-LOC", [(0, 2, "PER"), (3, 4, "LOC")]),  # IOB1
        ("I-PER B-PER I-PER", [(0, 1, "PER"), (1, 3, "PER")]),
        ("B-PER I-LOC", [(0, 1, "PER"), (1, 2, "LOC")]),  # a new type begins a new span
        ("B-ORG I-ORG E-ORG S-LOC O", [(0, 3, "ORG"), (3, 4, "LOC")]),
        ("B-ORG E-ORG I-ORG", [(0, 2, "ORG"), (2, 3, "ORG")]),
        ("B-ORG L-ORG U-PER", [(0, 2, "ORG"), (2, 3, "PER")]),
        ("O O", []),
        ("", []),
    ],
)
def test_tags_are_put_together_as_in_the_shared_task(tags: str, expected: list[Span]) -> None:
    assert list(spans(tags.split())) == expected


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("names") / "names.conll"
    people = [(name, place) for name in ("Ann", "Bo", "Cy", "Di") for place in ("Rome", "Oslo", "Bonn", "Lima")]
    lines = [f"{name} B-PER\nlives O\nin O\n{place} B-LOC\n{n} O\n" for n in range(8) for name, place in people]
    path.write_text("\n".join(lines))
    return path


def test_the_score_is_that_of_the_tags_that_are_printed(file: Path, tmp_path: Path) -> None:
    run = af.train(
        str(file),
        "model.dim=16",
        "model.stack.depth=1",
        "data.test=0.3",
        steps=40,
        out=tmp_path / "run",
        cache=tmp_path,
    )
    scores = run.evaluate(split="test")
    held_out = [record for record in run.records(split="test")]
    right = predicted = wanted = 0
    for record, label in zip(held_out, run.classify([record.text for record in held_out]), strict=True):
        ours, theirs = set(spans([str(word.label) for word in label.words])), set(spans(record.tags))
        right, predicted, wanted = right + len(ours & theirs), predicted + len(ours), wanted + len(theirs)
    assert scores["span_f1"].value == pytest.approx(2 * right / (predicted + wanted))
    assert scores["span_recall"].value == pytest.approx(right / wanted)
    assert scores["span_precision"].value == pytest.approx(right / max(1, predicted))
    assert f"{wanted} spans" in scores["span_f1"].signature


def test_tags_without_spans_have_no_such_score(tmp_path: Path) -> None:
    (file := tmp_path / "pos.conll").write_text("".join(f"I PRON\ngo VERB\n{n} NUM\n\n" for n in range(40)))
    run = af.train(
        str(file), "model.dim=16", "model.stack.depth=1", "data.test=0.3", steps=2, out=tmp_path / "run", cache=tmp_path
    )
    scores = run.evaluate(split="test")
    assert "span_f1" not in scores and "accuracy" in scores
