"""How well words were expected: loss in nats, perplexity, bits for each byte of text.

loss = -sum log P / tokens,  perplexity = exp(loss),  bits per byte = -sum log2 P / bytes
The last one does not depend on the tokenizer, so models with different ones can be compared by it.
"""

import math
from dataclasses import dataclass

from anyformer.evaluation.metrics.score import Score, Scores
from anyformer.statistics.intervals import Floats, ratio


@dataclass(frozen=True)
class Likelihood:
    """Sums over each unit (a document, a pair, a row)."""

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

    def scores(self, *settings: str) -> Scores:
        """Loss, perplexity and, if bytes are known, bits per byte; `settings` go into the signature."""
        loss, units = ratio(self.nats, self.tokens), len(self.nats)
        perplexity = loss.through(lambda nats: math.exp(min(nats, 700.0)))
        scored = self.tokens if self.scored is None else self.scored
        weighted = "" if scored.sum() == self.tokens.sum() else f" of weight {self.tokens.sum():g}"
        signature = (*settings, f"{int(scored.sum()):,} tokens{weighted}")
        scores = {
            "loss": Score.of(loss, units, self.what, "nats per token", *signature),
            "perplexity": Score.of(perplexity, units, self.what, "exp of the loss", *signature),
        }
        if self.bytes is not None:
            bits = ratio(self.nats / math.log(2), self.bytes)
            size = f"{int(self.bytes.sum()):,} bytes of UTF-8"
            scores["bits_per_byte"] = Score.of(bits, units, self.what, size, *settings)
        return scores
