"""Answers in a conversation: each word of an assistant from everything before it.

max sum over n of log P(w_n | w_1 .. w_{n-1}),  n: the words of the assistant, and the token that ends each answer
The words of the user and of the template are read, but carry no loss.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from anyformer.core import Chance, ModelSpec
from anyformer.data.batching.batch import Batch
from anyformer.data.tokenizers.vocabulary import Vocabulary
from anyformer.errors import DataError
from anyformer.objectives.words import WordPrediction, require_decoder


@dataclass(frozen=True, kw_only=True)
class ChatAnswers(WordPrediction, kind="chat"):
    """The answers of an assistant from the conversation before them, for decoders."""

    serves = ("generate",)
    metrics = ("likelihood",)
    default_for: ClassVar[Mapping[str, tuple[str, ...]]] = {"chat": ("decoder", "encoder", "encoder_decoder")}

    smoothing: Chance = 0.0
    """Probability that is spread evenly over all words: label smoothing."""
    z: Chance = 0.0
    """Weight of the squared log-sum of the scores, which keeps them near zero."""

    def adapt(self, model: ModelSpec) -> ModelSpec:
        return require_decoder(model, self.kind)

    def lay_out(self, ids: Sequence[int], words: Vocabulary, *, packed: bool) -> list[int]:
        return [words.bos, *ids]

    def prepare(self, batch: Batch, words: Vocabulary, rng: torch.Generator) -> Batch:
        tags = batch.labels.tags
        if tags is None:
            raise DataError(
                "chat needs conversations, and these data have none. Give JSON lines with `messages`, or use "
                'objective.kind = "next_token".'
            )
        weight = ((tags >= 0) & batch.valid).roll(-1, dims=1).float()
        weight[:, -1] = 0.0  # the last token of a row predicts nothing
        return replace(batch, targets=batch.tokens.roll(-1, dims=1), weight=weight)
