"""Segments that carry their state: values cross the border, gradients do not, and a kill loses nothing."""

import os
from pathlib import Path

import pytest
import torch
from tests.training.small import LAYER, TINY, facts, text, tiny
from tests.training.test_resume import in_child, killed_at
from tests.training.test_trainer import losses
from torch import Tensor

from anyformer.core import Frame, Model, ModelSpec, decode
from anyformer.data.batching.row_plan import LoaderPosition
from anyformer.data.preparation.pipeline import prepared_for
from anyformer.errors import CheckpointError, SpecError
from anyformer.run import Run, train
from anyformer.training.distributed import World
from anyformer.training.loop.trainer import Trainer
from anyformer.training.loop.truncated_bptt import CarriedState, CarryingModel
from anyformer.training.observers import validate
from anyformer.training.recipes.resolve import data_of, draft, settle

KINDS = ["rnn", "lstm", "gru", "min_gru", "transformer_xl"]
ROWS, LENGTH = 3, 24


def layers(part: str, depth: int = 1) -> tuple[str, ...]:
    return (f"model.stack.depth={depth}", f"{LAYER}=[{{part={part}}}]")


CARRY = ("data.packing=stream", "train.segments=carry", *layers('{kind="lstm"}'))


def carry(folder: Path, name: str, *more: str, resume: bool = False) -> Run:
    """A small run with a state that is carried; no head count or dropout of the attention that it replaces."""
    if resume:
        return tiny(folder, name, resume=True)
    return train(text(folder), *recipe(*more), out=folder / name, cache=folder / "cache")


def recipe(*more: str) -> tuple[str, ...]:
    return (*(it for it in TINY if not it.startswith((LAYER, "model.stack.depth"))), *CARRY, *more)


def trainer_of(folder: Path, *more: str) -> Trainer:
    """A trainer that has not made a step yet."""
    document = draft(text(folder), recipe(*more))
    prepared = prepared_for(data_of(document), folder / "cache")
    return Trainer(settle(document, prepared, "tiny").recipe, prepared)


def model_of(kind: str, depth: int = 1) -> Model:
    block = {"branches": [{"part": {"kind": kind}}]}
    shape = {"kind": "decoder", "vocab": 11, "dim": 16, "stack": {"depth": depth, "blocks": {"a": block}}}
    return decode(ModelSpec, shape).build()


def whole_text() -> tuple[Tensor, Frame]:
    """Rows in which a document ends in the middle of a segment."""
    positions = torch.arange(LENGTH).repeat(ROWS, 1)
    positions[1, 13:] -= 13
    segments = (torch.arange(LENGTH) >= 13).long() * torch.tensor([[0], [1], [0]])
    return torch.randint(11, (ROWS, LENGTH)), Frame(positions=positions, segments=segments)


def in_segments(model: Model, tokens: Tensor, frame: Frame, size: int) -> list[Tensor]:
    """What a model says of a text that comes in segments."""
    lanes, found = CarriedState(model.init_state(ROWS, LENGTH)), []
    for cut in torch.arange(LENGTH).split(size):
        reading = CarryingModel(model, lanes, torch.arange(ROWS))
        found.append(
            reading(tokens[:, cut], Frame(positions=frame.positions[:, cut], segments=frame.segments[:, cut])).y
        )
        lanes.settle()
    return found


@pytest.mark.row("XF-11", clause="no gradient flows into the memory")
@pytest.mark.row(
    "RNN-14",
    clause=(
        "the state is detached every K steps",
        "the gradient to inputs before the window is exactly 0",
        "the gradient to inputs inside the window is non-zero",
    ),
)
@pytest.mark.parametrize("kind", KINDS)
def test_no_gradient_crosses_the_border_between_two_segments(kind: str) -> None:
    model, seen = model_of(kind), list[Tensor]()
    model.embedding.register_forward_hook(lambda _, __, y: seen.append(y) or y.retain_grad())
    *_, last = in_segments(model, *whole_text(), size=8)
    last[:, -1].square().sum().backward()
    assert seen[0].grad is None and seen[1].grad is None
    inside = seen[2].grad
    assert inside is not None and (inside[0].abs().sum(-1) > 0).all()


@pytest.mark.row("RNN-14", clause="K >= T gives the gradients of full BPTT")
@pytest.mark.parametrize("kind", KINDS)
def test_one_segment_for_the_whole_text_is_full_backpropagation(kind: str) -> None:
    model, gradients = model_of(kind), []
    tokens, frame = whole_text()
    for y in (in_segments(model, tokens, frame, LENGTH)[0], model(tokens, frame).y):
        gradients.append(torch.autograd.grad(y.square().sum(), [*model.parameters()]))
    for mine, theirs in zip(*gradients, strict=True):
        assert mine.equal(theirs) or (mine - theirs).abs().max() < 1e-5 * theirs.abs().max()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [4, 6, 12])
@torch.no_grad()
def test_segments_one_after_the_other_say_what_one_long_segment_says(kind: str, size: int) -> None:
    model, (tokens, frame) = model_of(kind), whole_text()
    together = model(tokens, frame).y
    assert torch.allclose(torch.cat(in_segments(model, tokens, frame, size), dim=1), together, atol=1e-5)


@pytest.mark.row("XF-11")
@pytest.mark.row("RNN-14")
@pytest.mark.parametrize("part", ['{kind="lstm"}', '{kind="transformer_xl", heads=2, memory=64}'])
def test_short_segments_with_the_state_have_the_loss_of_long_ones(tmp_path: Path, part: str) -> None:
    long, short = ("data.context=64", "train.batch_tokens=256"), ("data.context=8", "train.batch_tokens=32")
    valid = []
    for more in (long, short, (*short, "train.segments=apart")):
        (loss,) = (validate(trainer_of(tmp_path, *layers(part), "data.valid=0.1", *more), 99) or {}).values()
        valid.append(loss)
    assert valid[1] == pytest.approx(valid[0], abs=1e-5) and abs(valid[2] - valid[0]) > 1e-4


@pytest.mark.row("XF-11", clause="a token beyond the segment changes the logits")
@pytest.mark.row(
    "RNN-21",
    clause=(
        "no information crosses from one segment to another",
        "recurrence as in Transformer-XL carries memory across the cut",
    ),
)
def test_in_training_a_token_beyond_the_segment_affects_the_logits_through_the_memory(tmp_path: Path) -> None:
    def second_loss(change: bool, *more: str) -> float:
        trainer = trainer_of(tmp_path, *layers('{kind="transformer_xl", heads=2, memory=40}'), *more)
        feed = iter(trainer.feed())
        first, second = next(feed), next(feed)
        if change:
            first.batch.tokens[:, 3] += 1
        trainer.update(first)
        return trainer.update(second).loss

    still = ("optimizer.lr=1e-12",)
    assert second_loss(True, *still) != pytest.approx(second_loss(False, *still), abs=1e-6)
    apart = (*still, "train.segments=apart")
    assert second_loss(True, *apart) == pytest.approx(second_loss(False, *apart), abs=1e-6)


def test_pieces_of_a_batch_keep_their_lanes_apart(tmp_path: Path) -> None:
    whole = carry(tmp_path, "whole", "train.micro_batch=256", "train.steps=4")
    cut = carry(tmp_path, "cut", "train.micro_batch=96", "train.steps=4")
    assert losses(cut) == pytest.approx(losses(whole), rel=1e-5)


def test_an_epoch_begins_with_empty_lanes(tmp_path: Path) -> None:
    first, second = (
        trainer_of(tmp_path, "optimizer.lr=1e-12", "train.steps=99", "train.batch_tokens=1024") for _ in range(2)
    )
    last = next(step for step in first.steps() if step.epoch == 1 and first.progress.position.unit == 1)
    second.progress.position = LoaderPosition(1)
    assert next(second.steps()).loss == pytest.approx(last.loss, abs=1e-6)


def test_numbers_that_are_none_are_not_carried_on() -> None:
    lanes = CarriedState((torch.zeros(2, 3),))
    lanes.leave(torch.tensor([1]), (torch.full((1, 3), torch.nan),))
    lanes.settle(good=False)
    assert lanes.take(torch.tensor([1]))[0].equal(torch.zeros(1, 3))
    with pytest.raises(CheckpointError, match="other names or shapes than this run's"):
        lanes.load_state_dict({"[0]": torch.zeros(3, 3)})


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that nobody disturbed."""
    return carry(tmp_path_factory.mktemp("carrying"), "calm", "train.steps=5")


@pytest.mark.parametrize(
    "number",
    [pytest.param(number, marks=() if number in (19, 47) else pytest.mark.slow) for number in range(12, 60, 7)],
)
def test_killed_at_a_request_to_the_disk_it_goes_on_with_the_state_it_had(calm: Run, number: int) -> None:
    home, name = calm.folder.parent, f"crash-{number}"

    def work() -> None:
        with killed_at(number):
            carry(home, name, "train.steps=5")

    assert os.WIFSIGNALED(in_child(work))
    resume = (home / name / "recipe.toml").exists()
    assert facts(carry(home, name, "train.steps=5", resume=resume)) == facts(calm)
    newest = home / name / "checkpoints" / "step-000005"
    assert (newest / "carry.safetensors").is_file()


def test_the_numbers_do_depend_on_the_state_that_is_stored(tmp_path: Path) -> None:
    apart = carry(tmp_path, "apart", "train.segments=apart", "train.steps=3")
    assert losses(carry(tmp_path, "carry", "train.steps=3"))[1:] != pytest.approx(losses(apart)[1:], rel=1e-6)


@pytest.mark.parametrize(("more", "why"), [
    (("data.packing=pack",), 'train.segments=carry needs rows that continue .*data.packing = "stream"'),
    (("objective.kind=prefix_lm",), r'prefix_lm reads each row separately.*objective.kind = "next_token"'),
    (("train.recompute=blocks",), r"does not support recomputation"),
    (layers('{kind="attention", heads=2}'), r"the state of attention holds every token.*lstm.*transformer_xl"),
    (layers('{kind="mlp"}'), r"no part of this model has a state"),
])  # fmt: skip
def test_what_cannot_be_carried_is_refused_with_what_fits(tmp_path: Path, more: tuple[str, ...], why: str) -> None:
    with pytest.raises(SpecError, match=why):
        carry(tmp_path, "run", *more)
    assert not (tmp_path / "run").exists()


def test_several_processes_are_refused(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    with pytest.raises(SpecError, match="works with one process only, not with 2"):
        Trainer(trainer.recipe, trainer.prepared, World(size=2))


def test_documents_longer_than_the_positions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"longest document has \d+ tokens, the model 32 positions"):
        carry(tmp_path, "run", "model.position.kind=learned", "model.max_len=32")


@pytest.mark.compile
@pytest.mark.slow
@pytest.mark.parametrize("part", ['{kind="min_gru"}', '{kind="transformer_xl", heads=2, memory=16}'])
def test_a_compiled_model_carries_the_same(tmp_path: Path, part: str) -> None:
    plain, compiled = (
        carry(tmp_path, str(flag), *layers(part), "train.steps=3", "train.micro_batch=256", f"train.compile={flag}")
        for flag in ("false", "true")
    )
    assert losses(compiled) == pytest.approx(losses(plain), rel=1e-4)
