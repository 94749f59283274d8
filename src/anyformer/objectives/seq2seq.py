"""From one text to another, the gold words before each word given: teacher forcing.

max sum_n log P(y_n | x, <bos> y_1 .. y_{n-1}),  y_{N+1} = <eos>
An encoder-decoder reads x through its encoder; a decoder reads x <sep> y in one row (arXiv 1801.10198).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F

from anyformer.core import Chance, ModelSpec
from anyformer.data.batching.batch import Batch, closed
from anyformer.data.tokenizers.vocabulary import Vocabulary
from anyformer.errors import DataError, SpecError
from anyformer.objectives.next_token import next_words
from anyformer.objectives.words import WordPrediction, require_causal


@dataclass(frozen=True, kw_only=True)
class Seq2Seq(WordPrediction, kind="seq2seq"):
    """One text from another: translation, summaries; for encoder-decoders, and for decoders in one row."""

    serves = ("generate",)
    metrics = ("likelihood", "exact_match", "translation", "edit_rate", "summary")
    default_for: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "pair": ("decoder", "encoder_decoder"),
        "labelled_pair": ("decoder", "encoder_decoder"),
    }
    packed_pairs = True

    smoothing: Chance = 0.0
    """Probability that is spread evenly over all words; 0.1 in the first Transformer."""
    z: Chance = 0.0
    """Weight of the squared log-sum of the scores."""
    scored: Literal["target", "all"] = "target"
    """Which words count: those of the target, or, in a decoder's one row, those of the source too."""

    def adapt(self, model: ModelSpec) -> ModelSpec:
        if self.scored == "all" and model.needs_source:
            raise SpecError('scored = "all": an encoder sees all of the source. Use a decoder, or scored = "target".')
        return require_causal(model, self.kind)

    def lay_out(self, ids: Sequence[int], words: Vocabulary, *, packed: bool) -> list[int]:
        return [*ids, words.sep]

    def prepare(self, batch: Batch, words: Vocabulary, rng: torch.Generator) -> Batch:
        if batch.source is None:
            raise DataError(
                "seq2seq needs pairs, and these data are single texts. Set data.source.target to the column or field "
                'of the other half, or use objective.kind = "span_corruption".'
            )
        source = closed(batch.source, words.sep)
        if self.scored == "all":  # each word predicts the next; the separator at the end predicts the target instead
            there = source.counted
            weight = (there & F.pad(there[:, 1:], (0, 1))).float()
            source = replace(source, targets=source.tokens.roll(-1, dims=1), weight=weight)
        return replace(next_words(batch, words), source=source)
