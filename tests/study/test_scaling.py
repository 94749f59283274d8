"""Ladders of sizes: their rungs, and small ones that are really climbed."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

import anyformer as af
from anyformer.errors import OUT_OF_TIME, CheckpointError, Interrupted, SpecError
from anyformer.reporting.scale_report import lines, scale_markdown
from anyformer.study.comparing import compare
from anyformer.study.ladder import scale
from anyformer.study.ladder_results import Scaled
from anyformer.study.ladder_spec import Ladder
from anyformer.study.rungs import Rung, rungs_of, weights_of
from anyformer.study.study_folder import LARGEST, STUDY, is_ladder, standing
from anyformer.study.study_listener import Listener
from anyformer.study.study_pack import unpack, write_pack
from anyformer.training import load, load_recipe

TINY = (
    "model.dim=32", "model.stack.depth=2", "model.stack.blocks.layer.branches.0.part.heads=2", "data.context=32",
    "train.batch_tokens=64", "train.steps=4", "sample.tokens=1", "evaluate.batches=1", "evaluate.every=0",
    "checkpoint.every=0", "train.device=cpu", "train.compile=false", "data.tokenizer.kind=byte",
)  # fmt: skip
FEW = (*TINY, "data.source.kind=number_words", "data.source.count=200")
"""Data that are judged in a moment, since a rung is judged on all of its test split."""


def rungs(*changes: str, **settings: float) -> list[Rung]:
    recipe = load_recipe("small", ("train.steps=100", *changes)).recipe
    return rungs_of(recipe, 256, Ladder(**settings))  # type: ignore[arg-type]


def test_weights_leave_out_the_tables_of_words() -> None:
    small, large = (weights_of(load("small", f"model.vocab={words}")) for words in (100, 1000))
    assert small == large
    model = load("small", "model.vocab=100").build(device="meta")
    assert sum(it.numel() for it in model.parameters()) - small == 100 * 256


def test_a_ladder_ends_at_the_recipe_and_doubles_up_to_it() -> None:
    found = rungs(rungs=6)
    assert [it.top for it in found] == [False] * 5 + [True]
    assert found[-1].recipe.model == load_recipe("small").recipe.model
    assert found[-1].weights / found[0].weights == pytest.approx(2**5, rel=0.1)
    assert all(above.weights / below.weights == pytest.approx(2, rel=0.11) for below, above in pairwise(found))


LARGE = ("model.dim=512", "model.stack.depth=8")


def test_each_size_has_about_as_many_times_the_weights_as_the_ratio_says() -> None:
    found = rungs(*LARGE, rungs=4, ratio=4.0)
    factors = [after.weights / before.weights for before, after in pairwise(found)]
    assert factors == pytest.approx([4.0] * 3, rel=0.15)


def test_the_largest_size_can_be_further_away_than_the_others_are_from_each_other() -> None:
    found = rungs(*LARGE, rungs=4, leap=6.0)
    factors = [after.weights / before.weights for before, after in pairwise(found)]
    assert factors == pytest.approx([2.0, 2.0, 6.0], rel=0.15)


def test_budgets_halve_the_steps_of_the_smaller_sizes_and_nothing_else() -> None:
    found = rungs(rungs=2, budgets=3)
    assert [rung.recipe.train.steps for rung in found] == [25, 50, 100, 100]
    shortest, _, longest, top = found
    assert longest.flops == 4 * shortest.flops and longest.tokens == 4 * shortest.tokens and top.top


def test_a_ladder_by_the_clock_is_refused() -> None:
    with pytest.raises(SpecError, match=r"train\.steps"):
        rungs_of(load_recipe("small", ("train.minutes=1",)).recipe, 256, Ladder())


def test_sizes_that_do_not_grow_are_refused() -> None:
    with pytest.raises(SpecError, match=r"study\.ladder\.ratio: must be above 1, got 1\.0"):
        scale("small", *FEW, "study.ladder.ratio=1.0")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def calm(home: Path) -> Scaled:
    """A ladder that was not disturbed."""
    return climb(home / "calm", home)


def climb(out: Path, home: Path, *more: str) -> Scaled:
    return scale("small", *FEW, "study.ladder.rungs=2", *more, out=out, cache=home, listener=Listener())


def test_too_few_rungs_train_and_predict_nothing(home: Path, calm: Scaled) -> None:
    assert len(calm.points) == 2 and not calm.predictions and "not enough evidence" in calm.lacking("base")
    assert json.loads((home / "calm" / "prediction.json").read_text()) == []
    again = climb(home / "calm", home)
    assert [it.loss for it in again.points] == [it.loss for it in calm.points]
    with pytest.raises(SpecError, match="--out"):
        climb(home / "calm", home, "optimizer.lr=0.1")


def test_a_ladder_without_time_goes_on_by_the_command_that_it_names(home: Path, calm: Scaled) -> None:
    out = home / "short"
    with pytest.raises(Interrupted, match=f"all is saved. Go on with: anyformer scale {out}") as caught:
        climb(out, home, "study.minutes=0")
    assert caught.value.exit_code == OUT_OF_TIME and not (out / "prediction.json").exists()
    again = scale(out, cache=home, listener=Listener())
    assert [point.loss for point in again.points] == [point.loss for point in calm.points]


def test_a_ladder_of_two_architectures_is_packed_and_reported_from_its_pack(home: Path) -> None:
    found = climb(home / "two", home, 'study.arms=["base", "gru"]', "study.seeds=2")
    assert [(point.arm, point.seed) for point in found.points] == [
        (arm, seed) for arm in ("base", "gru") for _ in range(2) for seed in range(2)
    ]
    small, *_, large = found.points
    assert small.weights < large.weights and abs(large.weights / found.points[3].weights - 1) < 0.1  # equal at the top
    write_pack(home / "two", home / "two.tar.gz")
    again = Scaled.open(unpack(home / "two.tar.gz", home / "unpacked", home))
    assert scale_markdown(again) == scale_markdown(found) and "gru-" in scale_markdown(again)
    assert any(line.startswith("No prediction for gru: ") for line in lines(again))


def test_a_model_as_a_value_is_the_largest_size(home: Path) -> None:
    model = load("small", *TINY[:3], "model.vocab=400")
    changes = [word for word in FEW if not word.startswith("model.")]
    found = af.scale(model, *changes, rungs=2, out=home / "value", cache=home, listener=Listener())
    assert [point.name for point in found.points] == ["22x2-4", "32x2-4"]
    assert str(found) == "No prediction: not enough evidence: 2 different points, a power law needs 4."
    with pytest.raises(SpecError, match=r"arms: expected several, got one string"):
        af.scale(model, *changes, arms="gru", out=home / "value", cache=home)


def test_the_largest_size_is_trained_when_its_prediction_is_written(home: Path) -> None:
    class Stop(Listener):
        def log(self, text: str) -> None:
            if "predicted" in text:
                raise KeyboardInterrupt

    out = home / "foretold"
    with pytest.raises(KeyboardInterrupt):
        scale("small", *FEW, "study.ladder.rungs=5", "train.steps=12", "optimizer.lr=0.01",
              out=out, cache=home, listener=Stop())  # fmt: skip
    (known,) = json.loads((out / "prediction.json").read_text())
    assert standing(out / LARGEST / known["rung"] / "seed-0")[0] == "missing" and is_ladder(out)
    found = scale(out, cache=home, listener=Listener())
    (prediction,) = found.predictions
    assert prediction.loss == known["loss"] and found.off(prediction) is not None


def test_a_ladder_goes_on_with_another_number_of_jobs(home: Path, calm: Scaled) -> None:
    again = scale(calm.folder, "study.jobs=2", cache=home, listener=Listener())
    assert [point.loss for point in again.points] == [point.loss for point in calm.points]


def test_a_folder_with_something_else_is_not_made_a_ladder(home: Path) -> None:
    (home / "notes").mkdir()
    (home / "notes" / "diary.txt").write_text("mine")
    with pytest.raises(SpecError, match=r"notes: exists already and is not a ladder\. Use another folder"):
        climb(home / "notes", home)
    assert not (home / "notes" / STUDY).exists()


def test_runs_that_diverge_leave_no_laws(home: Path) -> None:
    words = ("optimizer.kind=sgd", "optimizer.lr=1e15", "train.steps=60")
    with pytest.raises(CheckpointError, match="no run has finished yet"):
        climb(home / "wild", home, *words)


def test_compare_names_the_verb_of_a_ladder(home: Path, calm: Scaled) -> None:
    assert (calm.folder / STUDY).is_file()
    with pytest.raises(SpecError, match=f"describes a ladder of sizes. Use: anyformer scale {calm.folder}$"):
        compare(calm.folder, cache=home, listener=Listener())


@pytest.mark.row("SCL-13", clause="loss falls at each of at least 4 sizes on the same data")
@pytest.mark.slow
def test_more_weights_reach_a_lower_loss_and_the_largest_is_foretold(tmp_path: Path) -> None:
    recipe = ("model.dim=96", "model.stack.depth=3", *TINY[2:], "data.context=128", "train.batch_tokens=2048",
              "train.steps=150", "evaluate.batches=10", "optimizer.lr=2e-3")  # fmt: skip
    found = scale("small", *recipe, out=tmp_path / "ladder", cache=tmp_path)
    losses = [it.loss for it in found.points]
    assert losses == sorted(losses, reverse=True)
    assert all(abs(found.off(it) or 0.0) < 0.05 for it in found.predictions)
