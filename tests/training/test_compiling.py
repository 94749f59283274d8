"""What is compiled, and how often: both halves of a model, once, whatever shapes batches have."""

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from anyformer.training import Trainer
from anyformer.training.planning import data_of, draft, settle
from anyformer.training.preparation import prepared_for

SMALL = (
    "data.source.kind=number_words", "data.source.count=400", "data.source.target=german", "data.tokenizer.kind=byte",
    "data.context=128", "train.batch_tokens=512", "train.steps=100", "train.compile=true", "model.encoder.dim=16",
    "model.decoder.dim=16", "model.encoder.stack.depth=2", "model.decoder.stack.depth=1",
)  # fmt: skip


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's own look at inputs
def test_both_halves_of_an_encoder_decoder_are_compiled_once_for_all_shapes(tmp_path: Path) -> None:
    document = draft("small-encoder-decoder", SMALL)
    prepared = prepared_for(data_of(document), tmp_path)
    trainer = Trainer(settle(document, prepared, "small").recipe, prepared)
    graphs, shapes = [], set()

    def keep(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph

    torch._dynamo.reset()
    with torch.compiler.set_stance("default", force_backend=keep):
        for ready, _ in zip(trainer.feed(), range(4), strict=False):
            trainer._update(ready)
            shapes.add((ready.batch.tokens.shape, ready.batch.source.tokens.shape))  # type: ignore[union-attr]
    torch._dynamo.reset()
    assert len(shapes) > 2 and len(graphs) == 2  # a graph for each half
    model = trainer.scored.model
    assert copy.deepcopy(model).encode.__self__ is not model  # type: ignore[attr-defined]
    assert pickle.loads(pickle.dumps(model)).encode is not None
