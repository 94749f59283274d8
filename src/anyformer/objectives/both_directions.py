"""ELMo's pre-training: two language models at once, one from each end, with words and softmax in common.

max sum_k log P(w_k | w_1 .. w_{k-1}) + log P(w_k | w_{k+1} .. w_N)          (arXiv 1802.05365, section 3.1)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from anyformer.core import Model, ModelSpec
from anyformer.data.batching.batch import Batch, RowTensors, framed, framed_row
from anyformer.data.tokenizers.vocabulary import Vocabulary
from anyformer.errors import SpecError
from anyformer.models.single import Single
from anyformer.objectives.objective import Loss, Objective, Term
from anyformer.objectives.words import parts_count, parts_term, read, require_encoder
from anyformer.parts.combine.bidirectional import Bidirectional
from anyformer.parts.heads.both_directions import BothDirectionsHead as Head

AHEAD, BACK = "ahead", "back"


@dataclass(frozen=True, kw_only=True, eq=False)
class Neighbours(RowTensors):
    """1 where there is a word to predict in each direction."""

    ahead: Float[Tensor, "b t"]
    back: Float[Tensor, "b t"]


@dataclass(frozen=True, kw_only=True)
class BothDirectionsObjective(Objective, kind="both_directions"):
    """Each word from those before it, and from those after it: ELMo; for encoders whose directions stay apart."""

    def adapt(self, model: ModelSpec) -> ModelSpec:
        single = require_encoder(model, self.kind, Head())
        _refuse_mixing(single)
        return single if {AHEAD, BACK} <= set(single.head.views) else replace(single, head=Head())

    def lay_out(self, ids: Sequence[int], words: Vocabulary, *, packed: bool) -> list[int]:
        return framed_row(ids, words, packed=packed)

    def prepare(self, batch: Batch, words: Vocabulary, rng: torch.Generator) -> Batch:
        ready = framed(batch, words)
        back = ready.counted & ~ready.document_starts  # there is a word before it
        ahead = F.pad(back[:, 1:], (0, 1))
        directions = Neighbours(ahead=ahead.float(), back=back.float())
        return replace(ready, targets=ready.tokens, weight=(ahead | back).float(), inputs=directions)

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        words = batch.inputs_as(Neighbours)
        return {AHEAD: words.ahead.sum(), BACK: words.back.sum(), **parts_count(batch)}

    def loss(self, models: Mapping[str, Model], batch: Batch, rng: torch.Generator) -> Loss:
        assert batch.targets is not None
        model, reading = models["model"], read(models["model"], batch)
        words, terms = batch.inputs_as(Neighbours), {}
        for side, shift, weight in ((AHEAD, -1, words.ahead), (BACK, 1, words.back)):
            targets = batch.targets.roll(shift, dims=1)
            loss = model.output_head().named(side).loss(reading.h, reading.frame, targets, weight)
            terms[side] = Term(loss, weight.sum())
        return {**terms, **parts_term(batch, reading)}


def _refuse_mixing(model: Single) -> None:
    """Raises SpecError if a part reads both directions: it would see the word that it has to predict."""
    rule = (
        'Use an encoder whose branches are all bidirectional, without norms, above the first with reads = "own_half".'
    )
    branches = [branch for name in model.stack.order for branch in model.stack.blocks[name].branches]
    for index, branch in enumerate(branches):
        part = branch.part
        halves = isinstance(part, Bidirectional) and part.merge == "concatenate" and part.reads
        if branch.place != "none" or halves not in (("all", "own_half") if index == 0 else ("own_half",)):
            raise SpecError(f"both_directions: branch {index} lets the directions meet. {rule}")
    if model.exit_norm is not None:
        raise SpecError(f"both_directions: exit_norm lets the directions meet. {rule}")
