"""A prefix language model: the first part of a text is read in both directions, the rest is written after it.

max sum_{n > p} log P(w_n | w_<n), where the first p tokens see each other          (arXiv 1910.10683, section 3.2.1)
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import torch

from anyformer.core import Chance, ModelSpec, Range, ReadingMarks
from anyformer.data.batching.batch import Batch
from anyformer.data.tokenizers.vocabulary import Vocabulary
from anyformer.errors import SpecError
from anyformer.objectives.next_token import next_words
from anyformer.objectives.words import WordPrediction, require_decoder, ruled
from anyformer.parts.masks.prefix import Prefix


@dataclass(frozen=True, kw_only=True)
class PrefixLM(WordPrediction, kind="prefix_lm"):
    """The rest of a text from its first part, which is read in both directions; for decoders that attend."""

    serves = ("generate",)
    metrics = ("likelihood",)

    share: Annotated[float, Range(above=0.0, below=1.0)] | None = None
    """Share of a text that is given; drawn anew for each row, evenly from one token to all but one, if not given."""
    smoothing: Chance = 0.0
    """Probability that is spread evenly over all words."""
    z: Chance = 0.0
    """Weight of the squared log-sum of the scores."""

    def adapt(self, model: ModelSpec) -> ModelSpec:
        adapted, masked_parts = ruled(require_decoder(model, self.kind), Prefix())
        if not masked_parts:
            raise SpecError(
                "prefix_lm: no part of this model has a mask, so it can read in one direction only. "
                'Use attention, or objective.kind = "next_token".'
            )
        return adapted

    def lay_out(self, ids: Sequence[int], words: Vocabulary, *, packed: bool) -> list[int]:
        return [words.bos, *ids]

    def prepare(self, batch: Batch, words: Vocabulary, rng: torch.Generator) -> Batch:
        """All documents of a packed row have the same prefix; documents that are shorter are not scored."""
        ready = next_words(batch, words)
        places = torch.arange(ready.tokens.shape[1]).expand_as(ready.tokens)
        positions = places if ready.frame.positions is None else ready.frame.positions
        longest = (positions + 1).where(ready.counted, 0).amax(1)  # [b]
        share = torch.rand(len(longest), generator=rng) if self.share is None else self.share
        prefix = 1 + (share * (longest - 1).clamp(min=1)).long()
        behind = positions >= prefix[:, None] - 1  # the last token of the prefix predicts the first word behind it
        assert ready.weight is not None
        frame = replace(ready.frame, marks=ReadingMarks(prefix=prefix))
        return replace(ready, frame=frame, weight=ready.weight * behind)
