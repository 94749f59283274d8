"""Every objective learns: on text that needs no download it says more than a blind guess would."""

from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
from tests.learning.blind import blind_losses
from tests.learning.conftest import Store
from tests.learning.runs import DECODER, ENCODER, PAIR, lines, run, valid_terms

from anyformer.data.sources.number_words import NumberWords

TOPICS, NUMBERS = "python_topics", "number_words"
TOLD = ("data.source.target=target", "data.source.label=label")
PIECES = ("data.tokenizer.kind=bpe", "data.tokenizer.size=450")
"""So few that a number is made of several: as whole words they could only be learned by heart."""


class Case(NamedTuple):
    target: str
    model: tuple[str, ...]
    more: tuple[str, ...] = ()
    terms: tuple[str, ...] = ("words",)
    """What has to be learned."""
    share: float = 1.0
    """How much of a term is its own loss."""


CASES = {
    "next_token": Case(TOPICS, DECODER),
    "prefix_lm": Case(TOPICS, DECODER),
    "masked_words": Case(TOPICS, ENCODER),
    "word_order": Case(TOPICS, ENCODER, terms=("words", "shuffled")),
    "permutation": Case(TOPICS, ENCODER),
    "replaced_token": Case("docstrings", ENCODER, ("objective.width=0.5", "train.steps=800"), ("words", "replaced")),
    "span_corruption": Case(TOPICS, PAIR),
    "seq2seq": Case(NUMBERS, PAIR),
    "classify": Case("unicode_names", ENCODER, ("data.tokenizer.kind=byte", "optimizer.lr=1e-3"), ("label",)),
    "token_labels": Case("pronouns", ENCODER, ("data.tokenizer.kind=word",), ("tags",)),
    "regress": Case("adding", ENCODER, ("data.source.length=10",), ("label",)),
    "contrastive": Case(NUMBERS, ENCODER, terms=("pairs",)),
    "sentence_pairs": Case("same.jsonl", ENCODER, (*PIECES, *TOLD), ("label",)),
    "multiple_choice": Case("choices.jsonl", ENCODER, PIECES, ("label",)),
    "distillation": Case(TOPICS, DECODER, ('objective.objective={kind="next_token"}', "objective.alpha=0.2"),
                         share=0.8),
    "mixture": Case(TOPICS, ENCODER, ('objective.tasks={hidden={objective={kind="masked_words"}, head="words"}, '
                                      'order={objective={kind="word_order"}, head="words"}}',),
                    ("hidden.words", "order.words", "order.shuffled")),
}  # fmt: skip


def numbers(count: int, rng: Random) -> list[tuple[str, str]]:
    found = [(record.text, record.target or "") for record in NumberWords().records()]
    return rng.sample(found, count)


def same(rng: Random) -> list[dict[str, Any]]:
    """A number in English and one in German: the same, or not?"""
    known = numbers(6000, rng)
    kinds = [rng.choice(["same", "other"]) for _ in known]
    return [{"text": text, "target": target if kind == "same" else rng.choice(known)[1], "label": kind}
            for (text, target), kind in zip(known, kinds, strict=True)]  # fmt: skip


def choices(rng: Random) -> list[dict[str, Any]]:
    """A number in English: which of three is it in German?"""
    known, found = numbers(6000, rng), []
    for text, target in known:
        label = rng.randrange(3)
        offered = [target if place == label else rng.choice(known)[1] for place in range(3)]
        found.append({"text": text, "choices": offered, "label": str(label)})
    return found


def losses(folder: Path, kind: str, steps: int) -> Mapping[str, float]:
    """Of each term, what was reached and what a blind guess reaches."""
    case, rng = CASES[kind], Random(0)
    made = {"same.jsonl": same, "choices.jsonl": choices}.get(case.target)
    target = case.target if made is None else lines(folder / case.target, made(rng))
    settings = (*case.model, "data.context=128", f"train.steps={steps}", "train.batch_tokens=2048", "optimizer.lr=2e-3",
                "evaluate.batches=50")  # fmt: skip
    more = case.more
    if kind == "distillation":
        teacher = run(folder, target, *settings, "objective.kind=next_token", name="teacher")
        more = (*more, f"objective.teacher={teacher.folder}")
    trained = run(folder, target, *settings, f"objective.kind={kind}", *more)
    reached, blind = valid_terms(trained), blind_losses(trained, folder / "cache")
    names = {term: term.replace(".", "_") for term in case.terms}
    return {f"{name}_loss": reached[term] / case.share for term, name in names.items()} | {
        f"{name}_blind": blind[term] for term, name in names.items()
    }


def beats(found: Mapping[str, float]) -> bool:
    return all(
        value < found[name.replace("_loss", "_blind")] - 0.02 for name, value in found.items() if "_loss" in name
    )


@pytest.mark.row("SST-06", clause="word objective: 5% of trigrams shuffled, original order predicted")
@pytest.mark.learn
@pytest.mark.parametrize("kind", CASES)
def test_every_objective_beats_the_unigram_loss(tmp_path: Path, store: Store, kind: str) -> None:
    found = losses(tmp_path, kind, 400)
    store(found)
    assert beats(found)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["next_token", "masked_words", "seq2seq"])
def test_words_from_before_from_around_and_from_a_source_beat_the_unigram_loss(
    tmp_path: Path, store: Store, kind: str
) -> None:
    found = losses(tmp_path, kind, 250)
    store(found)
    assert beats(found)
