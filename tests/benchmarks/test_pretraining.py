"""The study of three ways to pre-train: what it holds equal, the order of its runs, and the page that shows them."""

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.pretraining import Results, append, best_rate, fine_tunings, missing, results_of, start, trials
from benchmarks.pretraining_data import cut, letters, read, write_all
from benchmarks.pretraining_page import CHECK, PAGE, RESULTS, gain, page
from benchmarks.pretraining_runs import (
    ARMS,
    DIVERGED,
    FINETUNE,
    FULL,
    PLAN,
    PRETRAIN,
    PRETRAINED,
    RANDOM,
    SEEDS,
    SHARED,
    TASKS,
    TINY,
    TRIAL_SEED,
    WAYS,
    Cell,
    Line,
    compute,
    first_weights,
    make_plan,
    settings,
    weights,
)

from anyformer.disk import RECIPE
from anyformer.errors import SpecError, TrainingError


def line(cell: Cell) -> Line:
    """A stored run: pre-training is worth 0.1, the first rate is the best."""
    scores = {"accuracy": 0.7, "chrF": 20.0, "BLEU": 2.0, "loss": 4.0}
    more = 0.1 * (cell.arm == PRETRAINED) + 0.01 * cell.seed
    facts = {"steps": 10, "best_step": 5, "tokens": 300, "seconds": 2.0, "device": "CPU", "params": 9, "flops": 7}
    scored = {name: {"value": value + more, "texts": 5} for name, value in scores.items()}
    return {**cell._asdict(), **facts, "valid_loss": 3 + cell.rate, "scores": scored}


def stored(folder: Path, diverges: Callable[[Cell], bool] = lambda cell: False) -> Results:
    """The results of all runs, each begun in its turn; with the folders of their weights."""
    results: Results = {}
    while cell := next(missing(folder, results), None):
        assert cell.key not in results
        results[cell.key] = line(cell) if cell.stage != SHARED else {**cell._asdict(), **OVERLAP}
        if diverges(cell):
            results[cell.key] = {**cell._asdict(), **FAILURE}
        elif cell.stage == PRETRAIN and not cell.trial:
            place = weights(folder, cell.way, cell.seed) / RECIPE
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
    return results


FAILURE = {"valid_loss": None, "failed": DIVERGED, "error": "step 3: loss or gradient was not finite"}
OVERLAP = {
    "texts": 9, "dropped": 1, "targets": {"long": 3, "present": 0},
    "sentiment": {"tests": 2, "shared": "nothing"}, "synopses": {"tests": 2, "shared": "nothing"},
}  # fmt: skip


def test_every_arm_of_a_model_gets_the_same_trials_on_a_seed_that_is_not_judged(tmp_path: Path) -> None:
    results = stored(tmp_path)
    for task, way in {(task, way) for task, way, _ in fine_tunings()}:
        chosen = {
            arm: {(run["rate"], run["seed"]) for run in results.values() if run["trial"] and run["arm"] == arm
                  and (run["task"], run["way"]) == (task, way)}
            for arm in ARMS
        }  # fmt: skip
        assert chosen[PRETRAINED] == chosen[RANDOM] and {seed for _, seed in chosen[RANDOM]} == {TRIAL_SEED}
    assert TRIAL_SEED not in SEEDS


def test_a_trial_that_diverged_is_the_worst_and_blocks_nothing(tmp_path: Path) -> None:
    cell = Cell(FINETUNE, "next token", "sections", RANDOM, 0, 0.0, False)
    first, second, *_ = sorted(trial.rate for trial in trials(cell))
    results = stored(tmp_path, lambda one: one.trial and one.rate == first)
    assert best_rate(cell, results) == second
    results = stored(tmp_path / "all", lambda one: one.trial)
    assert best_rate(cell, results) == first and cell.key in results


def test_a_diverged_pretraining_is_not_repeated_and_the_next_seed_starts_the_trials(tmp_path: Path) -> None:
    results = stored(tmp_path, lambda one: one.stage == PRETRAIN and one.seed == 0)
    runs = {run["seed"] for run in results.values() if run["arm"] == PRETRAINED and not run["trial"]}
    assert runs == {1, 2} and next(missing(tmp_path, results), None) is None
    assert first_weights(tmp_path, "next token") == weights(tmp_path, "next token", 1)
    results = stored(tmp_path / "none", lambda one: one.stage == PRETRAIN and not one.trial)
    assert not [run for run in results.values() if run["arm"] == PRETRAINED]


def test_divergence_becomes_a_line_of_the_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_all(data(tmp_path), tmp_path / "made")
    make_plan(tmp_path / "made", TINY)

    def diverge(*_: object, **__: object) -> None:
        raise TrainingError("step 3: loss or gradient was not finite")

    monkeypatch.setattr("benchmarks.pretraining_runs.train", diverge)
    for trial in (True, False):
        cell = Cell(PRETRAIN, "next token", "", "", 0, 1e-3, trial)
        assert compute(tmp_path / "made", cell, TINY) == {**cell._asdict(), **FAILURE}
    append(tmp_path / "results.jsonl", {**cell._asdict(), **FAILURE})
    assert read(tmp_path / "results.jsonl") == [{**cell._asdict(), **FAILURE}]


def test_a_run_begins_when_all_trials_of_its_rate_are_stored_and_its_weights_are_there(tmp_path: Path) -> None:
    results: Results = {}
    cell = Cell(PRETRAIN, "next token", "", "", 0, 0.0, False)
    for trial in trials(cell):
        assert best_rate(cell, results) is None
        results[trial.key] = line(trial)
    assert best_rate(cell, results) == min(trial.rate for trial in trials(cell))
    assert not [each for each in missing(tmp_path, results) if each.arm == PRETRAINED]


def test_weights_that_are_lost_are_trained_again_only_if_they_are_needed(tmp_path: Path) -> None:
    results = stored(tmp_path)
    assert next(missing(tmp_path, results), None) is None
    (weights(tmp_path, "masked words", 1) / RECIPE).unlink()
    assert next(missing(tmp_path, results), None) is None
    del results[Cell(FINETUNE, "masked words", "sections", PRETRAINED, 1, 0.0, False).key]
    (cell,) = missing(tmp_path, results)
    assert (cell.stage, cell.way, cell.seed) == (PRETRAIN, "masked words", 1)


def test_an_encoder_gets_no_task_that_writes(tmp_path: Path) -> None:
    ways = {run["way"] for run in stored(tmp_path).values() if run["task"] == "synopses"}
    assert ways == {"next token", "span corruption"}


def page_of(results: Results) -> str:
    """The page of these runs."""
    plan = {"stage": PLAN, "texts": 10, "tokens": 100, "length": 10, "settings": settings(TINY)}
    plan["sets"] = {name: {"train": 9, "valid": 1, "test": 2} for name in TASKS}
    return page([plan, *json.loads(json.dumps(list(results.values())))])


def test_the_page_names_every_failed_run_and_leaves_it_out_of_means(tmp_path: Path) -> None:
    text = page_of(stored(tmp_path, lambda one: one.task == "sections" and one.arm == RANDOM and one.seed == 2))
    label = "section of a package from its description | accuracy | next token (decoder)"
    assert f"| {label} | 0.805 | 0.705 | +0.100 (+0.100 to +0.100), 2 of 3 seeds |" in text
    assert "- failed: diverged: fine-tuning, next token, sections, random weights, seed 2, rate 0.0001" in text
    assert "All judged runs" not in text and "All judged runs" in page_of(stored(tmp_path / "all"))


def test_the_page_is_written_if_every_run_of_a_way_diverged(tmp_path: Path) -> None:
    text = page_of(stored(tmp_path, lambda one: one.way == "next token" and one.stage == PRETRAIN))
    assert "- failed: diverged: pre-training, next token, seed 1" in text
    assert "- not begun, its pre-training failed: fine-tuning, next token, sentiment, pre-trained, seed 1" in text
    assert "| accuracy | next token (decoder) | no pair of runs | | |" in text
    assert "All 3 trials of pre-training, next token diverged; its judged runs have the lowest rate." in text
    assert page_of(stored(tmp_path / "all", lambda one: one.stage != SHARED))


def test_the_page_says_of_the_overlap_what_the_figures_say(tmp_path: Path) -> None:
    results = stored(tmp_path)
    assert "**No test text was found in the pre-training text.**" in page_of(results)
    (shared,) = (run for run in results.values() if run["stage"] == SHARED)
    shared["sentiment"] = {"tests": 2, "shared": "1 of 2 texts"}
    assert "**Parts of test texts of sentiment were found in the pre-training text.**" in page_of(results)
    shared["targets"] = {"long": 3, "present": 2}
    text = page_of(results)
    assert "**Parts of test texts of sentiment and test synopses were found in the pre-training text.**" in text
    assert "No test text" not in text


def test_the_page_ranks_no_way_and_gives_the_range_over_seeds(tmp_path: Path) -> None:
    text = page_of(stored(tmp_path))
    assert "highest accuracy" not in text and "lowest to highest of each" in text
    assert "accuracy after pre-training: next token 0.800 to 0.820, masked words 0.800 to 0.820" in text


def test_the_page_pairs_the_arms_by_seed(tmp_path: Path) -> None:
    text = page_of(stored(tmp_path))
    assert "| next token (decoder) | 0.810 | 0.710 | +0.100 (+0.100 to +0.100) |" in text
    assert text.count("an encoder cannot write") == 3
    assert gain([1.0, 2.0], [0.0, 0.0]).value == 1.5


def data(folder: Path) -> Path:
    """Small data of the three files."""
    splits = [("train", "valid", "test")[max(0, n % 10 - 7)] for n in range(100)]
    packages = [
        {"split": split, "section": ("games", "libs")[n % 2], "synopsis": f"a tool for job number {n}",
         "description": f"The program {chr(97 + n // 26) * 4}{chr(97 + n % 26) * 4} does a job on many machines.\n" * 4}
        for n, split in enumerate(splits)
    ]  # fmt: skip
    packages[7]["description"] += packages[8]["description"]  # a training text with a line of validation
    short = [{"split": split, "text": f"good {n}", "label": ("bad", "good")[n % 2]} for n, split in enumerate(splits)]
    speech = [{"split": split, "text": "My fellow citizens, we meet again. " * 60} for split in ("train", "valid")]
    for name, rows in (("descriptions", packages), ("sentiment", short), ("speeches", speech)):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    return folder


def test_a_training_text_with_a_line_of_a_held_out_text_is_dropped(tmp_path: Path) -> None:
    write_all(data(tmp_path), tmp_path / "made")
    train = "".join(letters(row["text"]) for row in read(tmp_path / "made/text.jsonl") if row["split"] == "train")
    assert train and letters("My fellow citizens") in train
    assert letters("aaaahhhh") not in train and letters("aaaaaaaa") in train
    assert read(tmp_path / "made/dropped.jsonl")[0]["dropped"] == 1


def test_prepared_data_of_other_settings_are_refused(tmp_path: Path) -> None:
    write_all(data(tmp_path), tmp_path / "made", every=2)
    before = (tmp_path / "made/text.jsonl").read_bytes()
    write_all(tmp_path, tmp_path / "made", every=2)
    with pytest.raises(SpecError, match=r"made: stored with other settings \(every=2, now 1\)"):
        write_all(tmp_path, tmp_path / "made", every=1)
    assert (tmp_path / "made/text.jsonl").read_bytes() == before


def test_results_of_other_settings_are_refused_and_kept(tmp_path: Path) -> None:
    out, plan = tmp_path / "results.jsonl", {"stage": PLAN, "texts": 10, "settings": settings(TINY)}
    start(out, plan)
    start(out, plan)
    before = out.read_text()
    assert json.loads(before) == json.loads(json.dumps(plan)) and not out.with_suffix(".part").exists()
    with pytest.raises(SpecError, match=r"other settings \(batch_tokens=1024, now 16384; .*texts=10, now 9"):
        start(out, {**plan, "texts": 9, "settings": settings(FULL)})
    assert out.read_text() == before


def test_an_incomplete_last_line_of_the_results_is_removed(tmp_path: Path) -> None:
    out, plan = tmp_path / "results.jsonl", {"stage": PLAN, "settings": settings(TINY)}
    start(out, plan)
    complete = out.read_text()
    out.write_text(complete + '{"stage": "pre')
    start(out, plan)
    assert out.read_text() == complete


def test_pieces_have_every_word_once() -> None:
    texts = [f"one {n} two" * 5 for n in range(40)]
    pieces = list(cut(texts, 50))
    assert " ".join(pieces).split() == " ".join(texts).split() and max(map(len, pieces)) <= 50


@pytest.mark.slow
def test_an_update_of_each_way_costs_the_same_and_every_task_is_learned(tmp_path: Path) -> None:
    write_all(data(tmp_path), tmp_path / "made")
    plan = make_plan(tmp_path / "made", TINY)
    assert plan == make_plan(tmp_path / "made", TINY)
    with pytest.raises(SpecError, match="steps=4, now 5"):
        make_plan(tmp_path / "made", replace(TINY, steps=5))
    costs = [way["flops_per_text"] * way["batch_tokens"] for way in plan["ways"].values()]
    assert max(costs) / min(costs) < 1.01
    sizes = [way["params"] for way in plan["ways"].values()]
    assert max(sizes) / min(sizes) < 1.05
    for way in WAYS:
        compute(tmp_path / "made", Cell(PRETRAIN, way, "", "", 0, 1e-3, False), TINY)
        for task in (name for name in TASKS if way in TASKS[name].ways()):
            run = compute(tmp_path / "made", Cell(FINETUNE, way, task, PRETRAINED, 0, 1e-3, False), TINY)
            assert run["scores"].keys() == TASKS[task].metrics(way).keys()


def test_the_stored_page_is_made_from_the_stored_runs_with_the_settings_of_the_script() -> None:
    lines = read(RESULTS)
    assert PAGE.read_text(encoding="utf-8") == page(lines, read(CHECK))
    assert lines[0]["settings"] == json.loads(json.dumps(settings(FULL)))
    assert next(missing(Path("nowhere"), results_of(lines)), None) is None
