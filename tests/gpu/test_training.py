"""Training on a GPU: precisions, the compiler, interruption, memory as predicted."""

import gc
import math
import warnings
from itertools import islice
from pathlib import Path

import pytest
import torch
from tests.training.small import LAYER, TINY, facts, text, tiny
from tests.training.test_resume import Sender
from tests.training.test_trainer import STILL, check_poison, losses, trainer_of

from anyformer.errors import Interrupted
from anyformer.run import train
from anyformer.training import Trainer
from anyformer.training.loop.budget import estimate
from anyformer.training.loop.graph_capture import CapturedPasses, CapturedUpdates
from anyformer.training.loop.loss_module import LossScale

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
EAGER = ("train.compile=false",)


def test_the_gpu_gives_the_losses_of_the_cpu(tmp_path: Path) -> None:
    there = tiny(tmp_path, "gpu", *STILL, *EAGER, "train.precision=fp32")
    here = tiny(tmp_path, "cpu", *STILL, *EAGER, "train.device=cpu")
    assert losses(there) == pytest.approx(losses(here), rel=1e-4)


@pytest.mark.row("OPT-11", clause="the loss after N steps is within a tolerance of fp32")
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_is_close_to_single(tmp_path: Path, precision: str) -> None:
    half = tiny(tmp_path, "half", *STILL, *EAGER, f"train.precision={precision}")
    single = tiny(tmp_path, "single", *STILL, *EAGER, "train.precision=fp32")
    assert losses(half) == pytest.approx(losses(single), rel=2e-2)


def test_the_compiler_changes_nothing(tmp_path: Path) -> None:
    compiled = tiny(tmp_path, "compiled", *STILL, "train.precision=fp32", "train.compile=true")
    plain = tiny(tmp_path, "plain", *STILL, "train.precision=fp32", *EAGER)
    assert losses(compiled) == pytest.approx(losses(plain), rel=1e-4)


WHOLE = "train.micro_batch=256"
LABELLED = ("data.source={kind='unicode_names'}", "objective={kind='classify', classes=40}", "data.packing=bucket")
MIXERS = ("attention", "lstm", "gru", "mamba", "linear_attention", "gated_linear", "conv", "s4d", "min_gru")


MUON = "optimizer={kind='muon', rest={kind='adamw', lr=2e-3}}"


@pytest.mark.parametrize("optimizer", ["optimizer.kind=adamw", MUON])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("packing", ["pack", "rows", "bucket"])
def test_capturing_changes_nothing(tmp_path: Path, packing: str, precision: str, optimizer: str) -> None:
    still = STILL if packing == "bucket" else ()
    more = (WHOLE, f"data.packing={packing}", f"train.precision={precision}", optimizer, *still)
    captured = captured_trainer(tmp_path, *more)
    eager = trainer_of(tmp_path, *more, *EAGER)
    mine, theirs = ([step.loss for step in islice(trainer.steps(), 6)] for trainer in (captured, eager))
    assert mine == pytest.approx(theirs, rel=1e-5 if precision == "fp32" else 1e-2)
    assert captured.passes.capturable and captured.passes._graphs  # type: ignore[attr-defined]
    assert captured.apply._graphs  # type: ignore[attr-defined]
    if packing != "bucket":  # the same kernels on the same shapes
        assert mine == theirs


@pytest.mark.parametrize("optimizer", ["optimizer.kind=adamw", MUON])
def test_a_captured_update_with_an_infinite_gradient_changes_no_weight(tmp_path: Path, optimizer: str) -> None:
    trainer = captured_trainer(tmp_path, WHOLE, *STILL, "data.packing=rows", "train.precision=bf16", optimizer)
    steps = trainer.steps()
    for _ in range(4):  # from the third on replayed
        assert next(steps).status == "applied"
    trainer.scale.value = math.inf
    weights = [entry.tensor.clone() for entry in trainer.learned]
    assert next(steps).status == "non_finite"
    assert all(map(torch.equal, weights, (entry.tensor for entry in trainer.learned)))
    trainer.scale.value = 1.0
    assert next(steps).status == "applied"


def test_labelled_texts_are_captured(tmp_path: Path) -> None:
    more = (WHOLE, *STILL, *LABELLED)
    captured, eager = captured_trainer(tmp_path, *more), trainer_of(tmp_path, *more, *EAGER)
    mine, theirs = ([step.loss for step in islice(trainer.steps(), 20)] for trainer in (captured, eager))
    assert mine == pytest.approx(theirs, rel=1e-2)
    assert captured.passes.capturable and captured.passes._graphs  # type: ignore[attr-defined]


@pytest.mark.parametrize("mixer", MIXERS)
def test_every_mixer_is_captured_or_runs_eagerly(tmp_path: Path, mixer: str) -> None:
    more = (WHOLE, *STILL, f"{LAYER}.0.part={{kind='{mixer}'}}")
    base = [setting for setting in TINY if "heads" not in setting]
    captured, eager = (trainer_of(tmp_path, *more, *EAGER, base=base) for _ in range(2))
    as_captured(captured)
    mine, theirs = ([step.loss for step in islice(trainer.steps(), 6)] for trainer in (captured, eager))
    assert mine == pytest.approx(theirs, rel=1e-3)
    assert captured.passes.capturable is not None  # type: ignore[attr-defined]


def test_compiled_layers_are_captured(tmp_path: Path) -> None:
    more = (WHOLE, *STILL, "data.packing=rows")
    mine, theirs = (trainer_of(tmp_path, *more, f"train.compile={how}") for how in ("layers", "false"))
    assert mine.captured
    losses = [[step.loss for step in islice(trainer.steps(), 6)] for trainer in (mine, theirs)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert mine.passes.capturable  # type: ignore[attr-defined]


def as_captured(trainer: Trainer) -> None:
    trainer.execution, trainer.captured, trainer.even = "captured", True, True
    parameters, device = [entry.tensor for entry in trainer.learned], trainer.world.device
    trainer.passes = passes = CapturedPasses(trainer._forward_backward, parameters, trainer.world.place)
    trainer.apply = CapturedUpdates(trainer._apply, passes, trainer.optimizer, device)


def captured_trainer(folder: Path, *more: str) -> Trainer:
    trainer = trainer_of(folder, *more, *EAGER)
    captured = Trainer(trainer.recipe, trainer.prepared, trainer.world, "captured")
    assert captured.execution == "captured"
    return captured


@pytest.mark.row("OPT-11", clause=("computes in bf16 or fp16 by autocast", "an overflow halves the scale"))
def test_an_overflow_halves_the_scale_and_skips(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, *EAGER, "train.device=cuda", "train.precision=fp16")
    trainer.scale = LossScale(2.0**60)
    before = {it.name: it.tensor.clone() for it in trainer.learned}
    step = next(trainer.steps())
    assert step.status == "overflow" and trainer.scale.value == 2.0**59
    assert all(before[it.name].equal(it.tensor) for it in trainer.learned)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_a_poisoned_batch_leaves_everything_as_it_was_and_the_next_is_applied(tmp_path: Path, kind: str) -> None:
    more = (f"optimizer.kind={kind}", "train.device=cuda", "train.ema=0.9")
    check_poison(trainer_of(tmp_path, *EAGER, *more))


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_an_update_synchronises_with_the_device_once(tmp_path: Path, kind: str) -> None:
    trainer = trainer_of(tmp_path, *EAGER, "train.device=cuda", f"optimizer.kind={kind}")
    batches = [*islice(trainer.feed(), 3)]
    assert all(batch.batch.tokens.is_pinned() for batch in batches)
    trainer.update(batches[0])
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")  # warns once that it is a prototype
            assert [trainer.update(batch).status for batch in batches[1:]] == ["applied", "applied"]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len([warning for warning in caught if "synchronizing CUDA operation" in str(warning.message)]) == 2


@pytest.mark.parametrize("compiled", ["false", "true"])
def test_an_interrupted_run_goes_on_with_the_same_numbers(tmp_path: Path, compiled: str) -> None:
    more, folder = (f"train.compile={compiled}",), {"out": tmp_path / "cut", "cache": tmp_path / "cache"}
    calm = tiny(tmp_path, "calm", *more)
    with pytest.raises(Interrupted):
        train(text(tmp_path), *TINY, *more, **folder, watcher=Sender(2, 3))
    cut = tiny(tmp_path, "cut", resume=True)
    for mine, theirs in zip(facts(cut), facts(calm), strict=True):
        assert mine.get("loss", 0.0) == pytest.approx(theirs.get("loss", 0.0), rel=1e-4)


def test_a_recorded_update_draws_its_masks_from_the_seed_of_its_step(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, f"{LAYER}.0.dropout=0.5", "train.compile=true", "train.device=cuda")
    assert trainer.loss_module.recorded
    ready = next(iter(trainer.feed()))

    def loss(step: int) -> float:
        trainer.optimizer.zero_grad()
        return float(trainer._score(ready._replace(step=step), ready.batch, 0)["words"])

    found = [loss(step) for step in (1, 2, 3, 1, 2, 3)]
    assert len(set(found)) == 3 and found[:3] == pytest.approx(found[3:], rel=1e-6)


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_memory_is_as_predicted(tmp_path: Path, precision: str) -> None:
    wide = ("model.dim=512", "model.stack.depth=8", "train.batch_tokens=65536", "data.context=512", "data.valid=0.1")
    more = ("train.device=cuda", f"train.precision={precision}", "data.packing=pack", "train.micro_batch=auto")
    gc.collect()
    others = torch.cuda.memory_allocated()  # what tests before this one still hold
    trainer = trainer_of(tmp_path, *STILL, *EAGER, *wide, *more)
    ready = next(iter(trainer.feed()))
    torch.cuda.reset_peak_memory_stats()
    trainer.update(ready)
    trainer.update(ready)
    fixed, row = estimate(trainer.recipe.model, 512, trainer.precision)
    predicted = fixed + len(ready.batch.tokens) * row
    peak = torch.cuda.max_memory_allocated() - others
    # in bf16 the prediction includes copies of norms in float32, which the kernels of a GPU do not make
    assert (0.75 if precision == "bf16" else 0.85) * predicted <= peak <= 1.15 * predicted
