"""The suite of synthetic tasks: its texts fit, its models have equal sizes, and its accuracies are counted right."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from anyformer.analysis import task_suite
from anyformer.analysis.claim import claim
from anyformer.analysis.claims.task_matrix import reach
from anyformer.analysis.task_suite import (
    CONTEXT,
    FAMILIES,
    MULTIPLES,
    SEEDS,
    TASKS,
    TEST_TEXTS,
    TRIAL_SEED,
    accuracy_of,
    planned,
    train_cell,
)
from anyformer.core import Frame
from anyformer.data.record import Record, SourceSpec
from anyformer.data.synthetic.task import SyntheticTask
from anyformer.run import train

SPECIAL_TOKENS = 4
TEXTS = 400


@pytest.mark.row("CLM-31", clause="a benchmark matrix of all families x the synthetic suite is generated")
def test_every_synthetic_task_is_in_the_suite() -> None:
    SourceSpec.load_kinds()
    kinds = {kind for kind, spec in SourceSpec.kinds.items() if issubclass(spec, SyntheticTask)}
    assert set(TASKS) == kinds


@pytest.mark.parametrize("name", TASKS)
def test_the_longest_test_texts_fit_into_the_context(name: str) -> None:
    texts = TASKS[name].fresh_texts(MULTIPLES[-1], 3, seed=5)
    assert len(texts) == 3
    for record in texts:
        assert len(record.text.split()) + len((record.target or "").split()) + SPECIAL_TOKENS <= CONTEXT


@pytest.mark.parametrize("name", [name for name in TASKS if name != "anbn"])  # of which there are too few words
def test_no_test_text_is_learned(name: str) -> None:
    learned = {record.text for record in TASKS[name].source(2_000).records()}
    assert not learned & {record.text for record in TASKS[name].fresh_texts(1, 100, TEST_TEXTS)}


def test_chance_is_that_of_the_length_and_counts_the_end_of_a_target() -> None:
    assert TASKS["parity"].chance(8) == 0.5 and TASKS["copy"].chance(1) == pytest.approx((20 / 8 + 1) / 21)
    assert TASKS["sort"].chance(1) < TASKS["sort"].chance(8)
    for name in ("selective_copy", "copy"):  # a blind guess of one symbol, measured
        symbols = [(record.target or "").split() for record in TASKS[name].fresh_texts(1, 400, seed=5)]
        hits = sum(text.count("a") + 1 for text in symbols)
        assert hits / sum(len(text) + 1 for text in symbols) == pytest.approx(TASKS[name].chance(1), abs=0.02)


@pytest.mark.parametrize("name", ["copy", "anbn", "listops"])
def test_texts_of_a_multiple_are_so_much_longer(name: str) -> None:
    short, long = (
        [len(record.text.split()) for record in TASKS[name].fresh_texts(times, 50, seed=5)] for times in MULTIPLES[:2]
    )
    assert min(short) >= 0.75 * max(short) and min(long) > max(short)


def test_the_learned_texts_have_four_lengths() -> None:
    lengths = {len(record.text.split()) for record in TASKS["copy"].source(8).records()}
    assert lengths == {5, 10, 15, 20}


def test_all_families_have_the_same_size_and_learn_the_same_texts(tmp_path: Path) -> None:
    plan = planned(tmp_path, "copy", TEXTS)
    assert tuple(plan) == FAMILIES
    target = plan["transformer"]["params"]
    assert all(abs(arm["params"] / target - 1) < 0.04 for arm in plan.values())
    assert len({json.dumps(arm["recipe"]["data"], sort_keys=True) for arm in plan.values()}) == 1
    assert plan["cnn"]["recipe"]["model"]["stack"]["depth"] == 4


@pytest.mark.slow
@pytest.mark.row("CLM-31", clause="a benchmark matrix of all families x the synthetic suite is generated")
@pytest.mark.parametrize("task", ["anbn", "parity", "copy"])
def test_a_cell_is_a_trained_model_and_its_accuracies(task: str, tmp_path: Path) -> None:
    plan = planned(tmp_path, task, TEXTS)
    (tmp_path / f"plan-{task}.json").write_text(json.dumps(plan), encoding="utf-8")
    trial = train_cell(tmp_path, task, "rnn", 1e-3, TRIAL_SEED, 2, TEXTS, 20)
    assert set(trial) == {"loss"} and 0 < trial["loss"] < 10
    run = train_cell(tmp_path, task, "rnn", 1e-3, 0, 2, TEXTS, 20)
    assert (
        set(run) == {"accuracy"}
        and len(run["accuracy"]) == len(MULTIPLES)
        and all(0 <= value <= 1 for value in run["accuracy"])
    )


@pytest.mark.slow
@pytest.mark.parametrize("task", ["copy", "future_label", "parity"])
def test_right_answers_are_counted_as_one_counts_by_hand(task: str, tmp_path: Path) -> None:
    suite = TASKS[task]
    small = ("model.dim=16", "model.stack.depth=1", "train.steps=40", f"objective.kind={suite.objective}")
    run = train("small", *small, *task_suite.RECIPE, data=suite.source(TEXTS), out=tmp_path / "run")
    predictor, records = run.trained("cpu"), suite.fresh_texts(1, 20, seed=5)
    model, words = predictor.model.eval(), predictor.tokenizer.words
    hits, total = 0, 0
    for record in records:
        tokens, answers, first = _answers(predictor, record, words)
        with torch.no_grad():
            chosen = model(torch.tensor([tokens]), Frame()).y[0].argmax(-1).tolist()[first:]
        hits += sum(a == b for a, b in zip(chosen, answers, strict=True))
        total += len(answers)
    assert accuracy_of(predictor, records) == pytest.approx(hits / total)


def _answers(predictor: Any, record: Record, words: Any) -> tuple[list[int], list[int], int]:
    """The tokens that a model reads for one text, the right answers, and the place of the first."""
    text = predictor.tokenizer.encode(record.text)
    if record.target is None:
        tags = [predictor.contents.tags.index(tag) for tag in record.tags]
        return (text, tags[-1:], len(text) - 1) if record.label is not None else (text, tags, 0)
    target = predictor.tokenizer.encode(record.target)
    return [words.bos, *text, words.sep, *target], [*target, words.eos], len(text) + 1


@pytest.mark.row("CLM-31", clause="qualitative: families are compared across tasks, no bar is set")
def test_the_verdict_is_that_of_the_task_in_which_the_transformer_is_furthest_behind() -> None:
    equal = dict.fromkeys(TASKS, dict.fromkeys(FAMILIES, [[0.9, 0.9, 0.9, 0.9]] * len(SEEDS)))
    assert claim("CLM-31").judge({"accuracy": equal}).word == "holds"
    ahead = {**equal["parity"], "lstm": [[1.0, 1.0, 1.0, 1.0]] * len(SEEDS)}
    verdict = claim("CLM-31").judge({"accuracy": {**equal, "parity": ahead}})
    assert verdict.word == "depends" and "in 14 of the 15 tasks" in verdict.because
    assert "in parity lstm is ahead by 10%" in verdict.because


def test_a_family_breaks_where_it_falls_below_the_middle_between_chance_and_all() -> None:
    by_family = {family: [[0.9, 0.5, 0.9, 0.9]] * len(SEEDS) for family in FAMILIES} | {
        "rnn": [[1.0, 1.0, 1.0, 1.0]] * len(SEEDS),
        "cnn": [[0.5, 1.0, 1.0, 1.0]] * len(SEEDS),
    }
    last = reach({"accuracy": dict.fromkeys(TASKS, by_family)})["flip_flop"]
    assert (last["transformer"], last["rnn"], last["cnn"]) == (1, 8, 0)
