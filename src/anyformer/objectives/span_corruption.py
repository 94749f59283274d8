"""T5's pre-training: spans are cut out of a text, and the model writes them.

512 tokens of input and 114 of target come from 568 of text: 15% in spans of 3 on average  (arXiv 1910.10683)
An encoder-decoder reads the input through its encoder; a decoder reads input, separator and target in one row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch

from anyformer.core import Chance, ModelSpec, Range
from anyformer.data.batching.batch import Batch, closed, documents
from anyformer.data.tokenizers.vocabulary import Vocabulary
from anyformer.errors import DataError
from anyformer.objectives.next_token import next_words
from anyformer.objectives.objective import GapGuess, Guesses, TrainedModel
from anyformer.objectives.spans import choose, cut_out, gaps, named_gaps, spans_of
from anyformer.objectives.transformations import InputRow, lay
from anyformer.objectives.words import WordPrediction, require_causal


@dataclass(frozen=True, kw_only=True)
class SpanCorruption(WordPrediction, kind="span_corruption"):
    """The spans that were cut out of a text; for encoder-decoders, and for decoders in one row."""

    perspective = "generalisation"
    serves = ("fill",)
    metrics = ("likelihood",)
    default_for: ClassVar[Mapping[str, tuple[str, ...]]] = {"text": ("encoder_decoder",)}

    share: Annotated[float, Range(above=0.0, below=1.0)] = 0.15
    """Share of the tokens that is cut out."""
    mean: Annotated[float, Range(low=1.0)] = 3.0
    """Mean length of a span."""
    smoothing: Chance = 0.0
    """Probability that is spread evenly over all words."""
    z: Chance = 0.0
    """Weight of the squared log-sum of the scores; 1e-4 in T5."""

    def adapt(self, model: ModelSpec) -> ModelSpec:
        return require_causal(model, self.kind)

    @property
    def relays(self) -> bool:
        return True

    def lay_out(self, ids: Sequence[int], words: Vocabulary, *, packed: bool) -> list[int]:
        return [*ids, words.sep]

    def fill(self, texts: Sequence[list[int]], trained: TrainedModel, top: int) -> Guesses:
        """Each <mask> becomes a sentinel, and the model generates what it stands for."""
        sources = [named_gaps(ids, trained.words) for ids in texts]
        rows = [self.lay_out(source, trained.words, packed=trained.packed) for source in sources]
        guesses: Guesses = []
        for source, target in zip(sources, trained.generate(rows), strict=True):
            spans = spans_of(target, trained.words.sentinels)
            names = [token for token in source if token in trained.words.sentinels]
            guesses.append([[GapGuess(tuple(spans.get(name, ())), None)] for name in names])
        return guesses

    def prepare(self, batch: Batch, words: Vocabulary, rng: torch.Generator) -> Batch:
        """Each document becomes a row of its own, however they were packed."""
        if not words.sentinels:
            raise DataError("span_corruption needs sentinels, and this tokenizer reserves none. Train one that does.")
        pairs = []
        for text in (text for text in documents(batch, words) if len(text) > 1):
            cut = gaps(len(text), self.share, self.mean, len(words.sentinels))
            pairs.append(cut_out(text, choose(len(text), *cut, rng), words.sentinels))
        source, target = (lay([InputRow(pair[side]) for pair in pairs], words) for side in (0, 1))
        return replace(next_words(target, words), source=closed(source, words.sep))
