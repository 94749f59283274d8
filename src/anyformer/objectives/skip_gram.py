"""Word2vec: each word predicts the words around it, or they predict it, against words drawn at random.

skip-gram: max sum_{(c, o)} log s(v_c . u_o) + sum_{k} log s(-v_c . u_k),  k ~ count^0.75      (arXiv 1310.4546, eq. 4)
CBOW: max sum_c log s(m_c . u_c) + sum_{k} log s(-m_c . u_k),  m_c = mean of v_o around c              (arXiv 1301.3781)
v is what a model without context makes of a word (its row of the embedding, if there is nothing else), u the row of its
head. Counts are those of the batch.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from anyformer.core import Count, Frame, Full, Model, ModelSpec, Range
from anyformer.data.batching.batch import Batch, RowTensors
from anyformer.data.tokenizers.vocabulary import Vocabulary
from anyformer.errors import SpecError
from anyformer.objectives.corruption import free
from anyformer.objectives.objective import Loss, Objective, Term
from anyformer.objectives.words import mixes_without_a_rule, parts_count, parts_term, read, require_single_text, ruled
from anyformer.parts.heads.untied import Untied

TERM = "contexts"


@dataclass(frozen=True, kw_only=True, eq=False)
class ContextWords(RowTensors):
    """The words around each word, and the words drawn at random."""

    pairs: Float[Tensor, "b t w"]
    """1 where the word at an offset of the window is a context of the word."""
    noise: Int[Tensor, "b t n k"]
    """Words that are drawn for each pair (n = w), or for each word (n = 1)."""


@dataclass(frozen=True, kw_only=True)
class SkipGram(Objective, kind="skip_gram"):
    """Word2vec (skip-gram or CBOW), against words drawn at random; for models that see one word at a time."""

    limits: ClassVar[Mapping[str, str]] = {"batch": "words are drawn as often as they stand in the batch"}

    window: Count = 5
    """Words on each side at most; for each word so many or fewer, drawn anew."""
    negatives: Count = 5
    """Words drawn at random for each prediction."""
    predicts: Literal["neighbours", "word"] = "neighbours"
    """neighbours: each word predicts those around it (skip-gram). word: their mean predicts the word (CBOW)."""
    power: Annotated[float, Range(low=0.0, high=1.0)] = 0.75
    """Of the counts by which they are drawn: 1 as often as they occur, 0 all alike."""
    subsample: Annotated[float, Range(low=0.0, below=1.0)] = 0.0
    """Frequency t from which a word is left out, with probability 1 - sqrt(t / its own); 0: none. Usual: 1e-3."""

    def adapt(self, model: ModelSpec) -> ModelSpec:
        single = require_single_text(model, self.kind)
        mixes = "attention" if ruled(single, Full())[1] else mixes_without_a_rule(single)
        if leak := mixes if single.position is None else f"position {single.position.kind}":
            raise SpecError(
                f"{self.kind}: {leak} would show each word the neighbours that it should guess. Use an encoder "
                "without attention, of `identity` or `mlp` layers."
            )
        return single if single.head.own_vectors else replace(single, head=Untied())

    def prepare(self, batch: Batch, words: Vocabulary, rng: torch.Generator) -> Batch:
        chosen = free(batch.tokens, batch.counted, words)
        counts = torch.bincount(batch.tokens[chosen], minlength=words.size).float()
        if self.subsample:
            chance = (self.subsample * counts.sum() / counts.clamp(min=1)).sqrt()
            chosen = chosen & (torch.rand(chosen.shape, generator=rng) < chance[batch.tokens])
        batch = _closed_up(batch, chosen)
        reach = torch.randint(1, self.window + 1, batch.tokens.shape, generator=rng)
        pairs = torch.stack([self._meets(batch, offset) & (reach >= abs(offset)) for offset in self._offsets], dim=-1)
        odds = counts**self.power if counts.any() else torch.ones(words.size)
        shape = pairs.shape if self.predicts == "neighbours" else (*batch.tokens.shape, 1)
        number = math.prod(shape) * self.negatives
        drawn = torch.multinomial(odds, number, replacement=True, generator=rng)
        return replace(batch, inputs=ContextWords(pairs=pairs.float(), noise=drawn.view(*shape, self.negatives)))

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        return {TERM: self._predictions(batch).sum(), **parts_count(batch)}

    def loss(self, models: Mapping[str, Model], batch: Batch, rng: torch.Generator) -> Loss:
        reading, head = read(models["model"], batch), models["model"].output_head()
        v, u = reading.h, head.word_vectors()
        total = self._skip_gram(v, u, batch) if self.predicts == "neighbours" else self._cbow(v, u, batch)
        return {TERM: Term(total, self._predictions(batch).sum()), **parts_term(batch, reading)}

    def _skip_gram(self, v: Tensor, u: Tensor, batch: Batch) -> Tensor:
        words, total = batch.inputs_as(ContextWords), v.new_zeros(())
        for index, offset in enumerate(self._offsets):  # one at a time: all at once would need much memory
            good = _log_chance(v, u, batch.tokens.roll(-offset, dims=1), words.noise[:, :, index])
            total = total - (good * words.pairs[:, :, index]).sum()
        return total

    def _cbow(self, v: Tensor, u: Tensor, batch: Batch) -> Tensor:
        words, around = batch.inputs_as(ContextWords), torch.zeros_like(v)
        for index, offset in enumerate(self._offsets):
            around = around + v.roll(-offset, dims=1) * words.pairs[:, :, index, None]
        mean = around / words.pairs.sum(-1, keepdim=True).clamp(min=1)
        return -(_log_chance(mean, u, batch.tokens, words.noise[:, :, 0]) * self._predictions(batch)).sum()

    def _predictions(self, batch: Batch) -> Tensor:
        """1 for every prediction that is made: of each pair, or of each word that has neighbours."""
        pairs = batch.inputs_as(ContextWords).pairs
        return pairs if self.predicts == "neighbours" else pairs.amax(-1)

    @property
    def _offsets(self) -> list[int]:
        return [offset for size in range(1, self.window + 1) for offset in (-size, size)]

    def _meets(self, batch: Batch, offset: int) -> Tensor:
        """[b t], true where the word at this offset exists, in the same text."""
        there, segments = batch.counted, batch.frame.segments
        places = torch.arange(batch.tokens.shape[1]) + offset
        both = there & there.roll(-offset, dims=1) & (places >= 0) & (places < len(places))
        return both if segments is None else both & (segments == segments.roll(-offset, dims=1))


def _closed_up(batch: Batch, chosen: Tensor) -> Batch:
    """The chosen tokens, moved together, so that windows reach over those that are left out."""
    order = (~chosen).long().argsort(dim=1, stable=True)[:, : max(1, int(chosen.sum(1).max()))]
    segments = batch.document_starts.cumsum(1).gather(1, order) if batch.shared else None
    frame = Frame(valid=chosen.gather(1, order), segments=segments)
    return replace(batch, tokens=batch.tokens.gather(1, order), frame=frame, weight=None, starts=None, word_starts=None)


def _log_chance(v: Tensor, u: Tensor, words: Tensor, noise: Tensor) -> Tensor:
    """[b t]: log s(v . u_word) + sum_k log s(-v . u_k)."""
    there = (v * F.embedding(words, u)).sum(-1)
    drawn = torch.einsum("btd,btkd->btk", v, F.embedding(noise, u))
    return F.logsigmoid(there.float()) + F.logsigmoid(-drawn.float()).sum(-1)
