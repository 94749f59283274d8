"""Language modelling: each word from those before it, from a start token to an end token.

max sum_n log P(w_n | <bos> w_1 .. w_{n-1}),  n = 1 .. N + 1,  w_{N+1} = <eos>
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from anyformer.core import Chance, ModelSpec
from anyformer.data.batching.batch import Batch, closed, continued
from anyformer.data.tokenizers.vocabulary import Vocabulary
from anyformer.objectives.words import WordPrediction, require_decoder


@dataclass(frozen=True, kw_only=True)
class NextToken(WordPrediction, kind="next_token"):
    """Each word from those before it: language modelling, for decoders."""

    serves = ("generate",)
    metrics = ("language", "by_position", "by_context")
    default_for: ClassVar[Mapping[str, tuple[str, ...]]] = {"text": ("decoder",)}
    continues_rows = True

    smoothing: Chance = 0.0
    """Probability that is spread evenly over all words: label smoothing."""
    z: Chance = 0.0
    """Weight of the squared log-sum of the scores, which keeps them near zero; 1e-4 is usual."""

    def adapt(self, model: ModelSpec) -> ModelSpec:
        return require_decoder(model, self.kind)

    def lay_out(self, ids: Sequence[int], words: Vocabulary, *, packed: bool) -> list[int]:
        return [words.bos, *ids]

    def prepare(self, batch: Batch, words: Vocabulary, rng: torch.Generator) -> Batch:
        return next_words(batch, words)


def next_words(batch: Batch, words: Vocabulary) -> Batch:
    """Inputs <bos> w_1 .. w_N and targets w_1 .. w_N <eos> of each document; one that was cut has no <eos>."""
    ended = closed(batch, words.eos, batch.truncated)
    return replace(ended, tokens=continued(ended, words.bos), targets=ended.tokens, weight=ended.counted.float())
