"""Captured updates: graphs are emulated by calls that write to the memory of the first one, as replays do."""

import json
import math
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
import torch
from tests.training.small import SENTENCES
from tests.training.test_trainer import STILL, trainer_of

from anyformer.data.batching.batch import Batch
from anyformer.data.batching.row_plan import few_sizes
from anyformer.training import Trainer
from anyformer.training.loop.graph_capture import CapturedPasses, CapturedUpdates, Factors

WHOLE = "train.micro_batch=256"
LABELLED = ("objective={kind='classify', classes=4}", "data.packing=bucket")


class Emulated:
    """Captures by running; a replay runs again and copies gradients to where the first run left them."""

    def __init__(self, parameters: list[torch.Tensor]):
        self.parameters, self.graphs, self.replays = parameters, 0, 0

    def __call__(self, body: Callable[[], None]) -> Callable[[], None]:
        body()
        kept = [parameter.grad for parameter in self.parameters]
        self.graphs += 1

        def replay() -> None:
            self.replays += 1
            for parameter in self.parameters:
                parameter.grad = None
            body()
            for parameter, gradient in zip(self.parameters, kept, strict=True):
                if gradient is not None and parameter.grad is not None:
                    gradient.copy_(parameter.grad)

        return replay


def capturing(trainer: Trainer) -> Emulated:
    """Makes a trainer capture its updates; it must not have made a step yet."""
    parameters = [entry.tensor for entry in trainer.learned]
    capture = Emulated(parameters)
    trainer.execution, trainer.captured, trainer.even = "captured", True, True
    trainer.passes = passes = CapturedPasses(trainer._forward_backward, parameters, trainer.world.place, capture)
    trainer.apply = CapturedUpdates(trainer._apply, passes, trainer.optimizer, torch.device("cpu"), lambda body: body)
    return capture


def first_losses(trainer: Trainer) -> list[float]:
    return [step.loss for step in islice(trainer.steps(), 6)]


def test_captured_updates_give_the_numbers_of_eager_ones(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, *STILL, WHOLE)  # dropout on a CPU draws random numbers on the host
    capture = capturing(trainer)
    assert first_losses(trainer) == first_losses(trainer_of(tmp_path, *STILL, WHOLE))
    assert capture.graphs == 1 and capture.replays == 4  # the first two updates are eager


@pytest.mark.parametrize("optimizer", ["{kind='adamw'}", "{kind='muon', rest={kind='adamw'}}"])
def test_the_update_of_the_weights_is_captured_with_its_passes(tmp_path: Path, optimizer: str) -> None:
    trainer, other = (trainer_of(tmp_path, *STILL, WHOLE, f"optimizer={optimizer}") for _ in range(2))
    capturing(trainer)
    # the rate of a graph is a float32 on its device
    assert first_losses(trainer) == pytest.approx(first_losses(other), rel=1e-5)
    assert len(trainer.apply._graphs) == 1  # type: ignore[attr-defined]


def test_a_captured_update_follows_the_schedule(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, *STILL, WHOLE, "schedule={kind='linear', warmup=2}", "train.steps=6")
    capturing(trainer)
    rates = []
    for _ in trainer.steps():
        rates.append(float(trainer.optimizer.steppers[0].param_groups[0]["lr"]))
    assert len(set(rates)) == 6 and rates[-1] < rates[2]


def test_a_captured_update_with_an_infinite_gradient_changes_no_weight(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, *STILL, WHOLE)
    capturing(trainer)
    steps = trainer.steps()
    for _ in range(4):
        next(steps)
    trainer.scale.value, weights = math.inf, [entry.tensor.clone() for entry in trainer.learned]
    assert next(steps).status == "non_finite"
    assert all(map(torch.equal, weights, (entry.tensor for entry in trainer.learned)))


def test_rows_of_their_own_are_filled_up_to_few_shapes(tmp_path: Path) -> None:
    more = (*STILL, WHOLE, "data.packing=bucket")
    trainer = trainer_of(tmp_path, *more)
    capture = capturing(trainer)
    assert first_losses(trainer) == pytest.approx(first_losses(trainer_of(tmp_path, *more)), rel=1e-5)
    assert capture.replays
    for ready in islice(trainer.feed(), 4):
        assert few_sizes(len(ready.batch.tokens)) == len(ready.batch.tokens)


def test_labelled_texts_are_filled_up_to_few_shapes(tmp_path: Path) -> None:
    rows = [{"text": sentence, "label": sentence.split()[1]} for sentence in SENTENCES]
    (file := tmp_path / "animals.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    more = (*STILL, WHOLE, *LABELLED, f"data.source={{kind='jsonl', path='{file}', label='label'}}")
    trainer = trainer_of(tmp_path, *more)
    capture = capturing(trainer)
    assert first_losses(trainer) == pytest.approx(first_losses(trainer_of(tmp_path, *more)), rel=1e-5)
    assert capture.replays
    heights = {len(ready.batch.tokens) for ready in islice(trainer.feed(), 20)}
    assert heights == set(map(few_sizes, heights))


def test_batches_of_the_same_tensors_have_the_same_shape(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, WHOLE)
    one, other = (ready.batch for ready in islice(trainer.feed(), 2))
    assert one.shape == other.shape and hash(one.shape) == hash(other.shape)
    assert one.with_rows(len(one.tokens) + 1).shape != one.shape


def test_what_draws_random_numbers_on_the_host_is_never_captured(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, WHOLE)
    plain = trainer._forward_backward

    def drawing(batch: Batch, rng: torch.Generator, factors: Factors) -> object:
        torch.rand(1, generator=rng)
        return plain(batch, rng, factors)

    trainer._forward_backward = drawing  # type: ignore[method-assign,assignment]
    capture = capturing(trainer)
    assert first_losses(trainer) == first_losses(trainer_of(tmp_path, WHOLE))
    assert not capture.graphs


def test_what_waits_for_the_device_is_never_captured(tmp_path: Path) -> None:
    trainer, calls = trainer_of(tmp_path, WHOLE), list[int]()
    plain = trainer._forward_backward

    def waiting(batch: Batch, rng: torch.Generator, factors: Factors) -> object:
        calls.append(1)
        if len(calls) == 2:  # torch raises only where waiting is forbidden
            torch.rand(100)  # as dropout does
            raise RuntimeError("called a synchronizing CUDA operation")
        return plain(batch, rng, factors)

    trainer._forward_backward = waiting  # type: ignore[method-assign,assignment]
    capture = capturing(trainer)
    assert first_losses(trainer) == first_losses(trainer_of(tmp_path, WHOLE))
    assert not capture.graphs and len(calls) == 7
