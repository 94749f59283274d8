"""Context fragmentation: the beginning of a segment is hard for who reads each alone, and not for who reads on."""

import random
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tests.learning.conftest import Store
from tests.learning.runs import lines, run

from anyformer.data.preparation.shards import Prepared
from anyformer.objectives.next_token import next_words
from anyformer.run import Run
from anyformer.training.loop.feed import Loader
from anyformer.training.loop.truncated_bptt import CarriedState, CarryingModel

CONTEXT, LANES, EARLY = 12, 32, 4
LETTERS = "abcdefghijklmnop"
LAYER, GLU = "model.stack.blocks.layer.branches", '{kind="glu"}'


def repeats(count: int) -> list[dict[str, str]]:
    """Texts in which one letter comes back at every fourth place, with noise between."""
    rng = random.Random(0)
    return [
        {"text": "".join(f"{letter}{rng.randrange(1000):03}" for _ in range(40))}
        for letter in rng.choices(LETTERS, k=count)
    ]


@torch.no_grad()
def by_place(trained: Run, prepared: Prepared, carry: bool) -> torch.Tensor:
    """The mean loss at each place of a segment, on texts that were not learned from."""
    model, sums, counts = trained.model(), torch.zeros(CONTEXT), torch.zeros(CONTEXT)
    lanes = CarriedState(model.init_state(LANES, prepared.longest))
    for raw, _ in Loader(prepared=prepared, split="valid", batch_tokens=LANES * CONTEXT, epochs=1, shuffle=False):
        batch = next_words(raw, prepared.words)
        reading = CarryingModel(model, lanes, batch.continuation.row) if carry else model
        logits = reading(batch.tokens, batch.frame).y
        lanes.settle()
        loss = F.cross_entropy(logits.transpose(1, 2), batch.targets, reduction="none") * batch.weight
        width = loss.shape[1]
        sums[:width] += loss.sum(0)
        counts[:width] += batch.weight.sum(0)
    return sums / counts


@pytest.mark.row("RNN-21", clause="segment memory shrinks that gap on synthetic long-range repeats")
@pytest.mark.slow
@pytest.mark.parametrize("part", ['{kind="lstm"}', '{kind="transformer_xl", heads=4, memory=24}'], ids=["lstm", "xl"])
def test_the_state_closes_the_gap_at_the_beginning_of_a_segment(tmp_path: Path, store: Store, part: str) -> None:
    file, found = lines(tmp_path / "repeats.jsonl", repeats(500)), {}
    shape = ("model.preset=small", "model.dim=64", "model.stack.depth=1", f"{LAYER}=[{{part={part}}}, {{part={GLU}}}]",
             "data.tokenizer.kind=byte", "data.packing=stream", f"data.context={CONTEXT}", "data.valid=0.1",
             f"train.batch_tokens={LANES * CONTEXT}", "train.steps=600", "optimizer.lr=5e-3",
             "evaluate.batches=1")  # fmt: skip
    for segments in ("carry", "apart"):
        trained = run(tmp_path, file, *shape, f"train.segments={segments}", name=segments)
        prepared = Prepared.open(next(it for it in (tmp_path / "cache").iterdir() if it.is_dir()))
        loss = by_place(trained, prepared, segments == "carry")
        found |= {f"{segments}_early": loss[:EARLY].mean().item(), f"{segments}_late": loss[EARLY:].mean().item()}
    store(found)
    gap = {name: found[f"{name}_early"] - found[f"{name}_late"] for name in ("carry", "apart")}
    assert found["carry_early"] < found["apart_early"] - 0.2 and gap["carry"] < 0.3 * gap["apart"]
