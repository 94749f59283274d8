"""Long texts in segments: the loss at each place of a segment, with and without the state of the segment before."""

import json
import random
from pathlib import Path
from statistics import fmean

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.analysis.claim import Decision, Figures, TrainedClaim
from anyformer.analysis.claim_runs import learn, stack
from anyformer.data.preparation.pipeline import prepared_for
from anyformer.drawing.figures import Line, Lines, Panel
from anyformer.objectives.next_token import next_words
from anyformer.run import Run
from anyformer.training.loop.feed import Loader
from anyformer.training.loop.truncated_bptt import CarriedState, CarryingModel

CONTEXT, LANES, EARLY, LETTERS = 12, 32, 4, "abcdefghijklmnop"
MEMORY = '{kind="transformer_xl", heads=4, memory=24}'
RECIPE = ("data.tokenizer.kind=byte", "data.packing=stream", f"data.context={CONTEXT}", "data.valid=0.1",
          f"train.batch_tokens={LANES * CONTEXT}", "train.steps=500", "optimizer.lr=5e-3")  # fmt: skip


class Fragmentation(TrainedClaim):
    ids = ("RNN-21",)
    says = "A long text that is cut into segments of a fixed length loses its context at every cut."

    def find(self, folder: Path) -> Figures:
        data = str(_repeats(folder / "repeats.jsonl"))
        runs = {
            name: learn(folder, f"segments-{name}", data, *RECIPE, *stack(MEMORY, depth=1), f"train.segments={name}")
            for name in ("apart", "carry")
        }
        return {name: _by_place(run, folder / "cache", name == "carry") for name, run in runs.items()}

    def decide(self, figures: Figures) -> Decision:
        gap = {name: fmean(loss[:EARLY]) - fmean(loss[EARLY:]) for name, loss in figures.items()}
        return gap["apart"] > 0.2 and gap["carry"] < 0.3 * gap["apart"], (
            f"the first {EARLY} places of a segment cost {gap['apart']:+.2f} nats more than the others where "
            f"segments are read apart, {gap['carry']:+.2f} where the state of the one before is carried on: the cut "
            "is to blame, not attention"
        )

    def picture(self, figures: Figures) -> list[Panel]:
        lines = [Line(name, range(1, CONTEXT + 1), loss) for name, loss in figures.items()]
        return [Lines("Loss inside a segment", "place", "nats", lines)]


def _repeats(file: Path) -> Path:
    """Writes texts in which one letter is repeated at every fourth place, with random digits between."""
    rng = random.Random(0)
    texts = ["".join(f"{letter}{rng.randrange(1000):03}" for _ in range(40)) for letter in rng.choices(LETTERS, k=500)]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return file


@torch.no_grad()
def _by_place(run: Run, cache: Path, carry: bool) -> list[float]:
    """The mean loss at each place of a segment, on validation texts."""
    assert run.recipe.data is not None
    prepared, model = prepared_for(run.recipe.data, cache), run.model()
    sums, counts = torch.zeros(2, CONTEXT)
    lanes = CarriedState(model.init_state(LANES, prepared.longest))
    for raw, _ in Loader(prepared=prepared, split="valid", batch_tokens=LANES * CONTEXT, epochs=1, shuffle=False):
        batch = next_words(raw, prepared.words)
        assert batch.weight is not None and batch.targets is not None
        assert batch.continuation is not None and batch.continuation.row is not None
        reading = CarryingModel(model, lanes, batch.continuation.row) if carry else model
        logits: Tensor = reading(batch.tokens, batch.frame).y
        lanes.settle()
        loss = F.cross_entropy(logits.transpose(1, 2), batch.targets, reduction="none") * batch.weight
        sums[: loss.shape[1]] += loss.sum(0)
        counts[: loss.shape[1]] += batch.weight.sum(0)
    return [float(loss) for loss in sums / counts]
