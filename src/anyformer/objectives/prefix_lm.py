"""A prefix language model: the first part of a text is read in both directions, the rest is written after it.

max sum_{n > p} log P(w_n | w_<n), where the first p tokens see each other          (arXiv 1910.10683, section 3.2.1)
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from anyformer.core import Chance, Model, ModelSpec, Range, ReadingMarks
from anyformer.data.batching.batch import Batch
from anyformer.data.tokenizers.vocabulary import Vocabulary
from anyformer.errors import SpecError
from anyformer.objectives.document_bounds import live
from anyformer.objectives.next_token import next_words
from anyformer.objectives.objective import Loss, Objective
from anyformer.objectives.words import decoder, ruled, text_count, words_loss
from anyformer.parts.masks.prefix import Prefix


@dataclass(frozen=True, kw_only=True)
class PrefixLM(Objective, kind="prefix_lm"):
    """The rest of a text from its first part, which is read in both directions; for decoders that attend."""

    share: Annotated[float, Range(above=0.0, below=1.0)] | None = None
    """Share of a text that is given; drawn anew for each row, evenly from one token to all but one, if not given."""
    smoothing: Chance = 0.0
    """Probability that is spread evenly over all words."""
    z: Chance = 0.0
    """Weight of the squared log-sum of the scores."""

    def adapt(self, model: ModelSpec) -> ModelSpec:
        adapted, looking = ruled(decoder(model, self.kind), Prefix())
        if not looking:
            raise SpecError(
                "prefix_lm: no part of this model looks by a mask, so it can read in one direction only. "
                'Use attention, or objective.kind = "next_token".'
            )
        return adapted

    def prepare(self, batch: Batch, words: Vocabulary, rng: torch.Generator) -> Batch:
        """Of a packed row all documents have the same prefix; those that are shorter are not scored."""
        whole = next_words(batch, words)
        places = torch.arange(whole.tokens.shape[1]).expand_as(whole.tokens)
        positions = places if whole.frame.positions is None else whole.frame.positions
        longest = (positions + 1).where(live(whole), 0).amax(1)  # [b]
        given = torch.rand(len(longest), generator=rng) if self.share is None else self.share
        prefix = 1 + (given * (longest - 1).clamp(min=1)).long()
        behind = positions >= prefix[:, None] - 1  # the last token of the prefix says the first word behind it
        assert whole.weight is not None
        return replace(
            whole, frame=replace(whole.frame, marks=ReadingMarks(prefix=prefix)), weight=whole.weight * behind
        )

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        return text_count(batch)

    def loss(self, models: Mapping[str, Model], batch: Batch, rng: torch.Generator) -> Loss:
        return words_loss(models["model"], batch, self.smoothing, self.z)
