"""What is compiled, and how often: both halves of a model, once, whatever shapes batches have."""

import copy
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.data.corpus import ready
from tests.objectives.small import built, model
from tests.training.test_trainer import trainer_of

from anyformer.core import decode
from anyformer.data.preparation.pipeline import prepared_for
from anyformer.data.record import Record
from anyformer.models import Decoder
from anyformer.objectives.next_token import NextToken
from anyformer.objectives.objective import Objective
from anyformer.training import Trainer
from anyformer.training.distributed import World
from anyformer.training.loop.feed import Feed, Loader
from anyformer.training.loop.loss_module import LossModule, runs_as_graphs
from anyformer.training.observers import validate
from anyformer.training.recipes.resolve import data_of, draft, settle

SMALL = (
    "data.source.kind=number_words", "data.source.count=400", "data.source.target=german", "data.tokenizer.kind=byte",
    "data.context=128", "train.batch_tokens=512", "train.steps=100", "train.compile=true", "model.encoder.dim=16",
    "model.decoder.dim=16", "model.encoder.stack.depth=2", "model.decoder.stack.depth=1",
)  # fmt: skip


LEAVES = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
"""Torch's own look at inputs."""


@contextmanager
def compiled() -> Iterator[list[torch.fx.GraphModule]]:
    """The graphs that are made inside."""
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph

    torch._dynamo.reset()
    with torch.compiler.set_stance("default", force_backend=keep):
        yield graphs
    torch._dynamo.reset()


@LEAVES
@pytest.mark.slow
def test_the_last_batch_of_an_epoch_of_rows_needs_no_graph_of_its_own(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, "data.packing=rows", "train.compile=true", "train.steps=99")
    with compiled() as graphs:
        made = [(step.tokens, len(graphs)) for step in takewhile(lambda step: step.epoch < 2, trainer.steps())]
    assert len({count for _, count in made}) == 1
    assert made[-1][0] % trainer.prepared.context


@LEAVES
@pytest.mark.slow
def test_both_halves_of_an_encoder_decoder_are_compiled_once_for_all_shapes(tmp_path: Path) -> None:
    document = draft("small-encoder-decoder", SMALL)
    prepared = prepared_for(data_of(document), tmp_path)
    trainer, shapes = Trainer(settle(document, prepared, "small").recipe, prepared), set()
    with compiled() as graphs:
        for ready, _ in zip(trainer.feed(), range(4), strict=False):
            trainer.update(ready)
            shapes.add((ready.batch.tokens.shape, ready.batch.source.tokens.shape))  # type: ignore[union-attr]
    assert len(shapes) > 2 and len(graphs) == 2  # a graph for each half
    model = trainer.loss_module.model
    assert copy.deepcopy(model).encode.__self__ is not model  # type: ignore[attr-defined]
    assert pickle.loads(pickle.dumps(model)).encode is not None


@LEAVES
@pytest.mark.compile
def test_layers_of_one_kind_are_compiled_once_and_only_for_training(tmp_path: Path) -> None:
    more = ("data.packing=rows", "model.stack.depth=3", "train.steps=4", "train.micro_batch=256")
    plain, trainer = (trainer_of(tmp_path, *more, f"train.compile={how}") for how in ("false", "layers"))
    assert (plain.execution, trainer.execution, trainer.captured) == ("eager", "layers", False)
    with compiled() as graphs:
        losses = [step.loss for step in trainer.steps()]
        assert validate(trainer, 1) is not None
    assert len(graphs) == 1
    assert losses == pytest.approx([step.loss for step in plain.steps()], rel=1e-5)
    model = trainer.loss_module.model
    assert copy.deepcopy(model).stack.layers["0"].forward.__self__ is not model.stack.layers["0"]
    assert pickle.loads(pickle.dumps(model)).stack is not None


def tasks(**objectives: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "mixture", "tasks": {name: {"objective": each} for name, each in objectives.items()}}


SPANS = {"kind": "span_corruption"}


@pytest.mark.parametrize(
    ("objective", "recorded"),
    [
        ({"kind": "next_token"}, True),
        ({"kind": "masked_words"}, True),
        (tasks(one={"kind": "next_token"}), True),
        (SPANS, False),
        (tasks(one={"kind": "next_token"}, other=SPANS), False),
        ({"kind": "distillation", "objective": SPANS, "teacher": "runs/teacher"}, False),
        ({"kind": "masked_words", "sentences": "next_sentence"}, False),
        ({"kind": "word_order", "sentences": "three_way"}, False),
    ],
)
def test_only_batches_of_one_shape_run_as_graphs(objective: dict[str, Any], recorded: bool, tmp_path: Path) -> None:
    """A graph is recorded for each shape, and takes longer than an update: rows that are laid out anew have many."""
    asked = decode(Objective, objective)
    texts = [Record(" ".join(["word"] * (1 + place % 17))) for place in range(200)]
    prepared = ready(tmp_path / "data", texts, context=64, packing="pack", valid=0.0)
    feed = Feed(Loader(prepared=prepared, batch_tokens=1024), asked, seed=0, prefetch=False)
    parts = [[*each.batch.parts.values()] or [each.batch] for each in islice(feed, 6)]
    assert (len({tuple(part.tokens.shape for part in each) for each in parts}) == 1) == recorded
    scored = LossModule(asked, built(NextToken(), model(Decoder)))
    assert runs_as_graphs(scored, World(device=torch.device("cuda")), 1000) == recorded
