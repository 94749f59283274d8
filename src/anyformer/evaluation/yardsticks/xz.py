"""Compression: the bits that xz needs for the held-out text after the training text.

bits per byte = (size of xz(train + held out) - size of xz(train)) x 8 / bytes of the held-out text
"""

import lzma
from collections.abc import Sequence
from dataclasses import dataclass

from anyformer.data.record import Record
from anyformer.evaluation.metrics.score import Score, Scores
from anyformer.evaluation.yardsticks.yardstick import BITS_PER_BYTE, Yardstick

MOST = 16 << 20
"""Bytes of training text, from its end, that are compressed; more would take minutes and change little."""


@dataclass(frozen=True, kw_only=True)
class Xz(Yardstick, kind="xz"):
    """The bits that xz adds for the held-out text when it has read the training text."""

    title = "xz"
    metric = "language"
    scores = (BITS_PER_BYTE,)

    def measure(self, train: Sequence[Record], held_out: Sequence[Record]) -> Scores:
        before, after = ("\n".join(record.text for record in side).encode() for side in (train, held_out))
        before = before[-MOST:]
        bits = 8 * (_compressed(before + after) - _compressed(before)) / max(len(after), 1)
        return {"bits_per_byte": Score(bits, None, None, f"xz -9e, {len(after):,} bytes after {len(before):,}")}


def _compressed(content: bytes) -> int:
    return len(lzma.compress(content, preset=9 | lzma.PRESET_EXTREME))
