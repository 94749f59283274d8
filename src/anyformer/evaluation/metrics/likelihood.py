"""How well words were expected: loss in nats, perplexity, bits for each byte of text.

loss = -sum log P / tokens,  perplexity = exp(loss),  bits per byte = -sum log2 P / bytes
The last one does not depend on the tokenizer, so models with different ones can be compared by it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anyformer.core.readable_numbers import counted
from anyformer.evaluation.metrics.score import Score, Scores
from anyformer.statistics.intervals import FEWEST, Floats, ratio

BLOCKS, BLOCK_BYTES = 50, 400
"""Number of blocks that few documents are cut into, and their smallest size."""


@dataclass(frozen=True)
class Likelihood:
    """Sums over each unit (a document, a block of one, a pair, a row)."""

    nats: Floats
    """-log P of all its words."""
    tokens: Floats
    """Number of its words, or the sum of their weights."""
    what: str
    """Name of the units, in the plural."""
    bytes: Floats | None = None
    """Bytes of its text; None if the words do not spell the text, so that bits per byte would mean nothing."""
    scored: Floats | None = None
    """Number of its words, if `tokens` is a sum of weights."""

    @classmethod
    def of_documents(cls, nats: Sequence[Floats], sizes: Sequence[int], spelt: bool = True) -> "Likelihood":
        """The likelihood of documents from the nats of all their words, and their sizes in bytes. The units are the
        documents or, if these are few, blocks of neighbouring words: the number of blocks follows from the sizes, so
        that models with different words have the same blocks, about."""
        what, blocks = "documents", [1] * len(sizes)
        if len(sizes) < FEWEST:
            size = max(BLOCK_BYTES, sum(sizes) / BLOCKS)
            what, blocks = "blocks of text", [max(1, int(document / size)) for document in sizes]
            if sum(blocks) < FEWEST:
                what, blocks = "documents", [1] * len(sizes)
        parts = [part for words, count in zip(nats, blocks, strict=True) for part in np.array_split(words, count)]
        bytes_of_parts = np.repeat([size / count for size, count in zip(sizes, blocks, strict=True)], blocks)
        sums, counts = (np.array([of(part) for part in parts], dtype=np.float64) for of in (np.sum, len))
        return cls(sums, counts, what, bytes_of_parts if spelt else None)

    def scores(self, *settings: str) -> Scores:
        """Loss, perplexity and, if bytes are known, bits per byte; `settings` go into the signature."""
        loss, units = ratio(self.nats, self.tokens), len(self.nats)
        perplexity = loss.through(lambda nats: math.exp(min(nats, 700.0)))
        scored = self.tokens if self.scored is None else self.scored
        weighted = "" if scored.sum() == self.tokens.sum() else f" of weight {self.tokens.sum():g}"
        signature = (*settings, f"{counted(int(scored.sum()), 'tokens')}{weighted}")
        scores = {
            "loss": Score.of(loss, units, self.what, "nats per token", *signature),
            "perplexity": Score.of(perplexity, units, self.what, "exp of the loss", *signature),
        }
        if self.bytes is not None:
            bits = ratio(self.nats / math.log(2), self.bytes)
            size = f"{round(float(self.bytes.sum())):,} bytes of UTF-8"
            scores["bits_per_byte"] = Score.of(bits, units, self.what, size, *settings)
        return scores
