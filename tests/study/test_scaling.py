"""Ladders of sizes: their rungs, and small ones that are really climbed."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

from anyformer.errors import OUT_OF_TIME, Interrupted, SpecError
from anyformer.run import Run
from anyformer.study.ladder import Deadline, Rung, Scaled, ladder, scale, weights_of
from anyformer.training import load, load_recipe

TINY = (
    "model.dim=32", "model.stack.depth=2", "model.stack.blocks.layer.branches.0.part.heads=2", "data.context=32",
    "train.batch_tokens=64", "train.steps=4", "sample.tokens=1", "evaluate.batches=1", "evaluate.every=0",
    "checkpoint.every=0", "train.device=cpu", "train.compile=false", "data.tokenizer.kind=byte",
)  # fmt: skip
FEW = (*TINY, "data.source.kind=number_words", "data.source.count=200")
"""Data that are judged in a moment, since a rung is judged on all of its validation split."""


def rungs(sizes: int, budgets: int = 1) -> list[Rung]:
    return ladder(load_recipe("small", ("train.steps=100",)).recipe, 256, sizes, budgets)


def test_weights_leave_out_the_tables_of_words() -> None:
    small, large = (weights_of(load("small", f"model.vocab={words}")) for words in (100, 1000))
    assert small == large
    model = load("small", "model.vocab=100").build(device="meta")
    assert sum(it.numel() for it in model.parameters()) - small == 100 * 256


def test_a_ladder_ends_at_the_recipe_and_doubles_up_to_it() -> None:
    found = rungs(6)
    assert [it.top for it in found] == [False] * 5 + [True]
    assert found[-1].recipe.model == load_recipe("small").recipe.model
    assert found[-1].weights / found[0].weights == pytest.approx(2**5, rel=0.1)
    assert all(above.weights / below.weights == pytest.approx(2, rel=0.11) for below, above in pairwise(found))


def test_each_size_has_about_as_many_times_the_weights_as_the_ratio_says() -> None:
    base = load_recipe("small", ("train.steps=100", "model.dim=512", "model.stack.depth=8")).recipe
    rungs = ladder(base, 256, 4, ratio=4.0)
    factors = [after.weights / before.weights for before, after in pairwise(rungs)]
    assert factors == pytest.approx([4.0] * 3, rel=0.15) and rungs[-1].recipe.model == base.model
    with pytest.raises(SpecError, match=r"ratio=1: .* Use a number above 1"):
        ladder(base, 256, 4, ratio=1.0)


def test_budgets_halve_the_steps_and_nothing_else() -> None:
    found = [it for it in rungs(2, budgets=3) if it.top]
    assert [it.recipe.train.steps for it in found] == [25, 50, 100]
    assert found[2].flops == 4 * found[0].flops and found[2].tokens == 4 * found[0].tokens


def test_a_ladder_by_the_clock_is_refused() -> None:
    with pytest.raises(SpecError, match=r"train\.steps"):
        ladder(load_recipe("small", ("train.minutes=1",)).recipe, 256, 6)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def calm(home: Path) -> Scaled:
    """A ladder that was not disturbed."""
    return scale("small", *FEW, rungs=2, out=home / "calm", cache=home)


def test_too_few_rungs_train_and_predict_nothing(home: Path, calm: Scaled) -> None:
    assert len(calm.points) == 2 and not calm.predictions and "not enough evidence" in calm.lacking
    assert json.loads((home / "calm" / "prediction.json").read_text()) == []
    again = scale("small", *FEW, rungs=2, out=home / "calm", cache=home)
    assert [it.loss for it in again.points] == [it.loss for it in calm.points]
    with pytest.raises(SpecError, match="--out"):
        scale("small", *FEW, "optimizer.lr=0.1", rungs=2, out=home / "calm", cache=home)


def test_a_ladder_stops_inside_a_run_when_its_time_is_up_and_goes_on(
    home: Path, calm: Scaled, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched, pytest.raises(Interrupted, match="the time is up: all is saved") as caught:
        answers = iter([False] * 3)  # before the first run, after its first two steps
        patched.setattr(Deadline, "out_of_time", lambda self: next(answers, True))
        scale("small", *FEW, rungs=2, minutes=1, out=home / "short", cache=home)
    (first, *_) = calm.points
    assert caught.value.exit_code == OUT_OF_TIME and Run(home / "short" / first.name).state["progress"]["step"] == 3
    again = scale("small", *FEW, rungs=2, minutes=60, out=home / "short", cache=home)
    assert [point.loss for point in again.points] == [point.loss for point in calm.points]


@pytest.mark.row("SCL-13", clause="loss falls at each of at least 4 sizes on the same data")
@pytest.mark.slow
def test_more_weights_reach_a_lower_loss_and_the_largest_is_foretold(tmp_path: Path) -> None:
    recipe = ("model.dim=96", "model.stack.depth=3", *TINY[2:], "data.context=128", "train.batch_tokens=2048",
              "train.steps=150", "evaluate.batches=10", "optimizer.lr=2e-3")  # fmt: skip
    found = scale("small", *recipe, rungs=6, out=tmp_path / "ladder", cache=tmp_path)
    losses = [it.loss for it in found.points]
    assert losses == sorted(losses, reverse=True)
    assert all(abs(found.off(it)) < 0.05 for it in found.predictions)
