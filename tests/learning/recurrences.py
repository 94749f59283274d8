"""Small models that mix tokens in one way or another, and how much of what they are asked they get right."""

from collections.abc import Callable
from pathlib import Path

import torch
from tests.learning.reading import batches, data_of

from anyformer.data.batching.batch import Batch
from anyformer.objectives.words import read_pair
from anyformer.run import Run

LAYER = "model.stack.blocks.layer.branches"
GLU = '{part={kind="glu"}}'


def mixing(part: str, dim: int = 64, depth: int = 2, *, learned_places: int = 0) -> tuple[str, ...]:
    """A decoder in which this part mixes the tokens; one with learned places has no others."""
    places = ("model.position.kind=learned", f"model.max_len={learned_places}") if learned_places else ()
    return ("model.preset=small", f"model.dim={dim}", f"model.stack.depth={depth}", "model.init.kind=xavier",
            f"{LAYER}=[{{part={part}}}, {GLU}]", *places)  # fmt: skip


@torch.no_grad()
def words_right(run: Run, cache: Path, changed: Callable[[Batch], Batch] = lambda batch: batch) -> float:
    """Share of the words of the validation split, or of what becomes of it, that are said right, those before them
    given; ends do not count."""
    prepared, model, hits = data_of(run, cache), run.model(), []
    for batch in batches(run, prepared):
        reading, asked = read_pair(model, changed(batch))
        assert asked.weight is not None and asked.targets is not None
        said = model.logits(reading.h, reading.frame).argmax(-1)
        hits.append((said == asked.targets)[(asked.weight > 0) & (asked.targets != prepared.words.eos)])
    return torch.cat(hits).float().mean().item()
