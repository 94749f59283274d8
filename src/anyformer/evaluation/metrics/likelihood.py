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
    """What was measured of each unit (a document, a pair, a row)."""

    nats: Floats
    """Of all its words."""
    tokens: Floats
    """How many those were."""
    what: str
    """What a unit is called, in the plural."""
    bytes: Floats | None = None
    """Of its text; None: the words do not spell the text, so that bits for each byte would mean nothing."""

    def scores(self, *said: str) -> Scores:
        loss, units = ratio(self.nats, self.tokens), len(self.nats)
        told = (*said, f"{int(self.tokens.sum()):,} tokens")
        found = {
            "loss": Score.of(loss, units, self.what, "nats per token", *told),
            "perplexity": Score.of(loss.through(_exp), units, self.what, "exp of the loss", *told),
        }
        if self.bytes is not None:
            bits = ratio(self.nats / math.log(2), self.bytes)
            size = f"{int(self.bytes.sum()):,} bytes of UTF-8"
            found["bits_per_byte"] = Score.of(bits, units, self.what, size, *said)
        return found


def _exp(loss: float) -> float:
    return math.exp(min(loss, 700.0))
