"""The loop: what one big batch gives, many small ones give; and what is no number is never applied."""

import json
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
import torch
from tests.training.small import LAYER, SENTENCES, TINY, facts, text, tiny
from torch.utils.checkpoint import set_checkpoint_early_stop
from torch.utils.flop_counter import FlopCounterMode

from anyformer.analysis.complexity import PeakMemory, exponent
from anyformer.analysis.families import ATTENTION, FEED_FORWARD, residual
from anyformer.core import Frame, Linear
from anyformer.data.preparation.pipeline import prepared_for
from anyformer.errors import ResourceError, SpecError, TrainingError
from anyformer.models.stack import recompute
from anyformer.ops.devices import has_bf16
from anyformer.run import Run, train
from anyformer.training import Session, Step, Trainer, Watcher
from anyformer.training.distributed import World
from anyformer.training.loop.budget import available
from anyformer.training.loop.budget import smaller_micro_batch as smaller
from anyformer.training.loop.loss_module import LossScale, resolve_precision
from anyformer.training.recipes.resolve import data_of, draft, settle

STILL = (f"{LAYER}.0.dropout=0.0",)
TIMELESS = [setting for setting in TINY if not setting.startswith("train.steps")]


def trainer_of(folder: Path, *more: str, base: Sequence[str] = TINY) -> Trainer:
    """A trainer that has not made a step yet."""
    document = draft(text(folder), [*base, *more])
    prepared = prepared_for(data_of(document), folder / "cache")
    recipe = settle(document, prepared, "tiny").recipe
    return Trainer(recipe, prepared, World().on(recipe.train.device))


def losses(run: Run) -> list[float]:
    return [line["loss"] for line in facts(run) if "loss" in line]


@pytest.mark.row("OPT-14", clause="accumulation sums the gradients of the micro-batches")
def test_pieces_of_unequal_counts_add_up_to_one_big_batch(tmp_path: Path) -> None:
    def steps(tokens: int) -> list[float]:
        trainer = trainer_of(tmp_path, *STILL, f"train.micro_batch={tokens}", "data.packing=bucket", "train.steps=4")
        return [step.loss for step in trainer.steps()]

    big = steps(256)
    for tokens in (32, 64, 96):
        assert steps(tokens) == pytest.approx(big, rel=1e-5), tokens


def test_every_row_is_in_one_piece_of_one_rank(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    batch = next(iter(trainer.feed()))
    for world in (1, 2, 3):
        shares = [batch.split(64, rank, world) for rank in range(world)]
        assert len({len(share) for share in shares}) == 1  # every rank calls the model as often
        rows = torch.cat([piece.tokens for share in shares for piece, counts in share if counts])
        assert sorted(map(tuple, rows.tolist())) == sorted(map(tuple, batch.batch.tokens.tolist()))


@pytest.mark.row(
    "OPT-07",
    clause=(
        "gradients are bit-equal to those without checkpointing",
        "dropout draws the same mask again in the recomputation",
    ),
)
@pytest.mark.parametrize("choice", ["blocks", "sqrt", "[1]"])
def test_recomputing_gives_the_same_gradients_to_the_last_bit_with_dropout(tmp_path: Path, choice: str) -> None:
    once = trainer_of(tmp_path)
    again = trainer_of(tmp_path, f"train.recompute={choice}")
    ready = next(iter(once.feed()))
    for trainer in (once, again):
        trainer._backward(ready)
    for mine, theirs in zip(once.learned, again.learned, strict=True):
        assert mine.tensor.grad is not None and theirs.tensor.grad is not None
        assert mine.tensor.grad.equal(theirs.tensor.grad), mine.name


@pytest.mark.row(
    "OPT-07",
    clause="keeps activations of some layers, recomputes the others in backward",
)
@pytest.mark.parametrize(
    ("choice", "calls"), [("none", [1, 1, 1]), ("blocks", [2, 2, 2]), ("sqrt", [2, 2, 2]), ("[0, 2]", [2, 1, 2])]
)
def test_layers_that_are_recomputed_run_twice_and_the_others_once(
    tmp_path: Path, choice: str, calls: list[int]
) -> None:
    more = (f"train.recompute={choice}", "model.stack.depth=3", "train.micro_batch=256", "train.compile=false")
    trainer, counted = trainer_of(tmp_path, *more), [0, 0, 0]
    for number, layer in enumerate(trainer.models["model"].stack.calls()):

        def count(_layer: object, _args: object, number: int = number) -> None:
            counted[number] += 1

        layer.register_forward_pre_hook(count)
    trainer._backward(next(iter(trainer.feed())))
    assert counted == calls


@cache
def stack_flops(choice: str, early_stop: bool = True) -> tuple[int, int]:
    """Of four layers: operations of the forward pass and of all that comes after it."""
    stack = residual(ATTENTION, FEED_FORWARD, depth=4, dim=8).train()
    recompute(stack, choice)
    with set_checkpoint_early_stop(early_stop), FlopCounterMode(display=False) as counter:
        y = stack(torch.randn(1, 16, 8, requires_grad=True), Frame()).y
        forward = counter.get_total_flops()
        y.sum().backward()
    return forward, counter.get_total_flops() - forward


@pytest.mark.row(
    "OPT-07",
    clause="what is recomputed are activations, not gradients",
)
@pytest.mark.parametrize("choice", ["blocks", "sqrt"])
def test_recomputing_all_layers_costs_one_more_forward_pass_and_no_more_of_the_backward(choice: str) -> None:
    forward, backward = stack_flops("none")
    assert backward == 2 * forward
    assert stack_flops(choice, early_stop=False) == (forward, backward + forward)  # 4 / 3 of the operations
    again = stack_flops(choice)[1] - backward
    assert 0.6 * forward < again < forward  # what is needed for no gradient is left out


@pytest.mark.row("OPT-07", clause="sqrt(N) segments: peak saved bytes grow with depth at exponent ~0.5")
def test_the_bytes_of_recomputed_segments_grow_as_the_root_of_the_depth() -> None:
    def peak(depth: int, choice: str) -> int:
        stack = residual(FEED_FORWARD, depth=depth, dim=4).train().requires_grad_(False)  # activations alone count
        recompute(stack, choice)
        with PeakMemory() as memory:
            stack(torch.randn(1, 2048, 4, requires_grad=True), Frame()).y.sum().backward()
        return memory.most

    grows = {choice: exponent((9, 36), [peak(depth, choice) for depth in (9, 36)]) for choice in ("none", "sqrt")}
    assert grows["none"] > 0.9 and grows["sqrt"] == pytest.approx(0.5, abs=0.15)


def test_recomputing_a_layer_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"train\.recompute: there is no layer 7, only 0 to 1"):
        tiny(tmp_path, "run", "train.recompute=[7]")


def test_the_first_loss_is_that_of_a_blind_guess(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    first = next(trainer.steps())
    assert first.loss == pytest.approx(math.log(trainer.prepared.words.size), rel=0.1)


def test_a_learning_rate_beyond_reason_ends_with_a_diagnosis_and_finite_weights(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"not finite 3 times.*optimizer\.lr=1e\+15"):
        tiny(tmp_path, "run", "optimizer.lr=1e15", "train.steps=40", "checkpoint.every=1")
    run = Run.open(tmp_path / "run")
    assert all(torch.isfinite(tensor).all() for tensor in run.model().state_dict().values())
    events = (tmp_path / "run" / "events.log").read_text()
    assert events.count(" non_finite ") == 2 and " failed " in events  # the third ends it


def test_a_batch_in_which_nothing_counts_makes_no_step(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    ready = next(iter(trainer.feed()))
    assert ready.batch.weight is not None
    ready.batch.weight.zero_()
    before = {it.name: it.tensor.clone() for it in trainer.learned}
    step = trainer.update(ready._replace(counts={"words": 0.0}))
    assert step.status == "empty" and step.loss == 0.0
    assert all(before[it.name].equal(it.tensor) for it in trainer.learned)


@pytest.mark.parametrize("kind", ["adamw", "muon", "sgd"])
def test_a_poisoned_batch_leaves_everything_as_it_was_and_the_next_is_applied(tmp_path: Path, kind: str) -> None:
    check_poison(trainer_of(tmp_path, f"optimizer.kind={kind}", "train.ema=0.9"))


def check_poison(trainer: Trainer) -> None:
    """A batch with a weight that is no number, between two others."""
    ready = iter(trainer.feed())
    first, poisoned, last = (next(ready) for _ in range(3))
    assert trainer.ema and poisoned.batch.weight is not None
    trainer.update(first)
    poisoned.batch.weight[0, 0] = torch.nan
    before = {name: tensor.clone() for name, tensor in held_by(trainer).items()}
    assert trainer.update(poisoned).status == "non_finite"
    assert all(before[name].equal(tensor) for name, tensor in held_by(trainer).items())
    assert trainer.update(last).status == "applied"
    moved = [name for name, tensor in held_by(trainer).items() if not before[name].equal(tensor)]
    assert {name.partition(":")[0] for name in moved} == {"weights", "optimizer", "average"}


def held_by(trainer: Trainer) -> dict[str, torch.Tensor]:
    """All that an update changes."""
    assert trainer.ema
    weights = {it.name: it.tensor for it in trainer.learned}
    tables = {"weights": weights, "optimizer": trainer.optimizer.state_dict(), "average": trainer.ema.state_dict()}
    return {f"{kind}:{name}": tensor for kind, table in tables.items() for name, tensor in table.items()}


def test_an_observer_that_leaves_the_model_reading_does_not_stop_dropout(tmp_path: Path) -> None:
    calm, disturbed = trainer_of(tmp_path), trainer_of(tmp_path)
    found = []
    for trainer, disturb in ((calm, False), (disturbed, True)):
        steps = trainer.steps()
        next(steps)
        if disturb:
            trainer.models["model"].eval()
        found.append([next(steps).loss, next(steps).loss])
    assert found[0] == found[1]


@pytest.mark.row("OPT-11", clause="an overflow halves the scale")
def test_an_overflow_halves_the_scale_and_calm_doubles_it() -> None:
    scale = LossScale.of("fp16")
    scale.settle(overflow=True)
    assert scale.value == 32768.0
    for _ in range(2000):
        scale.settle(overflow=False)
    assert scale.value == 65536.0


@pytest.mark.row("OPT-11", clause="an overflow halves the scale")
def test_an_update_that_overflows_in_half_precision_is_skipped(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    trainer.precision, trainer.scale = "fp16", LossScale(3e38)  # what a CPU computes in fp32 overflows by the scale
    before = {it.name: it.tensor.clone() for it in trainer.learned}
    ready = next(iter(trainer.feed()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("anyformer.training.loop.trainer.autocast", lambda *_: torch.autocast("cpu", enabled=False))
        step = trainer.update(ready)
    assert step.status == "overflow" and trainer.scale.value == 1.5e38
    assert all(before[it.name].equal(it.tensor) for it in trainer.learned)


@pytest.mark.row("OPT-11", clause="the loss is scaled before backward and gradients unscaled")
def test_gradients_are_as_many_times_larger_as_the_loss_until_they_are_clipped(tmp_path: Path) -> None:
    plain, scaled = trainer_of(tmp_path, "train.clip=0"), trainer_of(tmp_path, "train.clip=0")
    scaled.scale = LossScale(1024.0)
    ready = next(iter(plain.feed()))
    for trainer in (plain, scaled):
        trainer._backward(ready)
    pairs = [(one.tensor.grad, other.tensor.grad) for one, other in zip(plain.learned, scaled.learned, strict=True)]
    assert all(large.equal(1024 * small) and large.any() for small, large in pairs)
    assert scaled._clip_gradients() == plain._clip_gradients()
    assert all(large.equal(small) for small, large in pairs)


@pytest.mark.row("OPT-11", clause="master weights stay in fp32")
def test_weights_and_moments_stay_in_fp32_where_layers_compute_in_bf16(tmp_path: Path) -> None:
    trainer, seen = trainer_of(tmp_path), set()
    trainer.precision = "bf16"  # a CPU without its instructions computes it too, only slower
    for module in trainer.models["model"].modules():
        if isinstance(module, Linear):
            module.register_forward_hook(lambda _module, _args, out: seen.add(out.dtype))
    before = {it.name: it.tensor.clone() for it in trainer.learned}
    assert trainer.update(next(iter(trainer.feed()))).status == "applied"
    assert seen == {torch.bfloat16} and {it.tensor.dtype for it in trainer.learned} == {torch.float32}
    assert all(tensor.dtype == torch.float32 for tensor in trainer.optimizer.state_dict().values())
    assert any((it.tensor - before[it.name]).abs().max() > 0 for it in trainer.learned)


def test_what_a_cpu_cannot_do_is_refused_with_the_reason() -> None:
    cpu = torch.device("cpu")
    assert resolve_precision("auto", cpu) == "fp32"
    with pytest.raises(SpecError, match="fp16 is for GPUs"):
        resolve_precision("fp16", cpu)
    if not has_bf16(cpu):
        with pytest.raises(SpecError, match="no bf16 instructions"):
            resolve_precision("bf16", cpu)


def test_the_average_of_the_weights_is_what_is_evaluated_and_stored(tmp_path: Path) -> None:
    run = tiny(tmp_path, "run", "train.ema=0.9", "train.steps=4")
    plain = tiny(tmp_path, "plain", "train.steps=4")
    assert losses(run) == losses(plain)  # training itself is the same
    valid = [[line["valid_loss"] for line in facts(it) if "valid_loss" in line] for it in (run, plain)]
    assert valid[0] != valid[1]
    mine, theirs = run.model().state_dict(), plain.model().state_dict()
    assert any(not mine[name].equal(theirs[name]) for name in mine)


def test_budgets_of_tokens_and_flops_become_steps(tmp_path: Path) -> None:
    run = train(text(tmp_path), *TIMELESS, "train.tokens=700", out=tmp_path / "a", cache=tmp_path / "cache")
    assert losses(run).__len__() == 3
    trainer = trainer_of(tmp_path)
    flops = 2.5 * trainer.step_flops
    run = train(text(tmp_path), *TIMELESS, f"train.flops={flops}", out=tmp_path / "b", cache=tmp_path / "cache")
    assert len(losses(run)) == 2


def test_a_budget_of_minutes_ends_in_time(tmp_path: Path) -> None:
    *before, last = trainer_of(tmp_path, "train.minutes=0.004", base=TIMELESS).steps()
    assert last.wall_s >= 0.24 and all(step.wall_s < 0.24 for step in before)


def test_two_budgets_are_refused() -> None:
    with pytest.raises(SpecError, match="steps and tokens are set, but a run has one budget"):
        train("small", "train.steps=5", "train.tokens=5")


def test_running_out_of_memory_halves_the_pieces_and_changes_nothing(tmp_path: Path) -> None:
    short = (*STILL, "train.micro_batch=auto", "train.steps=3")
    calm = tiny(tmp_path, "calm", *short)

    class Scarce(Watcher):
        def began(self, session: Session) -> None:
            entry = session.trainer.entry
            real = entry.forward

            def forward(batch, rng, counts):  # type: ignore[no-untyped-def]
                if batch.tokens.numel() > 100:
                    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
                return real(batch, rng, counts)

            entry.forward = forward  # type: ignore[method-assign]

    scarce = train(text(tmp_path), *TINY, *short, out=tmp_path / "scarce",
                   cache=tmp_path / "cache", watcher=Scarce())  # fmt: skip
    assert losses(scarce) == pytest.approx(losses(calm), rel=1e-5)


def test_out_of_memory_names_what_would_help(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, "train.micro_batch=64")
    batch = next(iter(trainer.feed())).batch
    with pytest.raises(ResourceError, match=r"out of memory with 2 rows of 32 tokens.*train\.recompute"):
        smaller(MemoryError(), batch, 64, trainer.recipe, trainer.world)
    with pytest.raises(RuntimeError, match="something else"):
        smaller(RuntimeError("something else"), batch, 64, trainer.recipe, trainer.world)


def test_what_cannot_fit_is_refused_before_the_start_with_the_estimate(tmp_path: Path) -> None:
    assert available(torch.device("cpu")) is not None
    with pytest.raises(ResourceError, match=r"before the start: [\d.]+ GiB for weights.*GiB are free"):
        tiny(tmp_path, "run", "model.dim=65536", "model.stack.depth=8", f"{LAYER}.0.part.heads=64")
    assert not (tmp_path / "run").exists()


def test_a_run_can_start_from_another_ones_weights(tmp_path: Path) -> None:
    first = tiny(tmp_path, "first", *STILL, "train.steps=4")
    cold = tiny(tmp_path, "cold", *STILL, "train.steps=1", "optimizer.lr=1e-9")
    warm = tiny(tmp_path, "warm", *STILL, "train.steps=1", "optimizer.lr=1e-9", f"init_from={first.folder}")
    assert losses(warm)[0] < losses(cold)[0]
    events = (tmp_path / "warm" / "events.log").read_text()
    assert json.loads(events.split("started ")[1].splitlines()[0])["taken_over"] > 10


def test_observers_are_plain_callables_and_steps_are_facts(tmp_path: Path) -> None:
    seen: list[Step] = []
    for step in trainer_of(tmp_path).steps():
        seen.append(step)
        if step.number == 3:
            break
    assert [step.number for step in seen] == [1, 2, 3] and seen[2].tokens > seen[1].tokens
    assert len(SENTENCES) == 192
