"""Interpolated Kneser-Ney smoothing by characters: the classical language model          (Chen, Goodman 1999, eq. 25)

P(c | h) = max(N(h c) - D, 0) / N(h .) + D T(h) / N(h .) P(c | h'),   h' = h without its first character
N counts occurrences for the longest h, and for shorter ones the different characters before h c; T(h) is the number of
different characters after h; D = n1 / (n1 + 2 n2) of each order, n1 and n2 the number of N(h c) that are 1 and 2.
Below the single characters lies the uniform distribution; a character that training did not have is an unknown one,
spelled by its bytes. Each document ends with a character of its own, as it does for a model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from anyformer.core import Count
from anyformer.data.record import Record
from anyformer.evaluation.metrics.likelihood import Likelihood
from anyformer.evaluation.metrics.score import Scores
from anyformer.evaluation.yardsticks.yardstick import BITS_PER_BYTE, Yardstick
from anyformer.statistics.intervals import Floats

Integers: TypeAlias = NDArray[np.int64]
START, END, UNKNOWN, SPECIAL = 0, 1, 2, 3
MOST = 20_000_000
"""Characters of training text that are counted; more would take minutes and change little."""


@dataclass(frozen=True, kw_only=True)
class NGram(Yardstick, kind="n_gram"):
    """Interpolated Kneser-Ney by characters."""

    title = "the n-gram"
    metric = "language"
    scores = (BITS_PER_BYTE,)
    order: Count = 6
    """Characters of a gram: the predicted one and the ones before it."""

    def measure(self, train: Sequence[Record], held_out: Sequence[Record]) -> Scores:
        texts = [record.text for record in held_out if record.text]
        sizes_so_far = accumulate(len(record.text) for record in train)
        enough = [record.text for record, size in zip(train, sizes_so_far, strict=True) if size <= MOST]
        nats = KneserNey(enough, self.order).nats(texts)
        likelihood = Likelihood.of_documents(nats, [len(text.encode()) for text in texts])
        scores = likelihood.scores(f"Kneser-Ney by characters, order {self.order}")
        return {"bits_per_byte": scores["bits_per_byte"]}


class KneserNey:
    """The counts of all grams up to an order, in arrays: a gram has a number, and so has the context before it."""

    def __init__(self, texts: Sequence[str], order: int) -> None:
        self.order = order
        self._codes = np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *map(_code_points, texts)]))
        self.size = len(self._codes) + SPECIAL
        symbols, _ = self._symbols(texts)
        predicted = symbols != START
        grams, self._keys = [np.zeros(len(symbols), dtype=np.int64)], list[Integers]()
        for _ in range(order):
            keys, numbers = np.unique(_before(grams[-1]) * self.size + symbols, return_inverse=True)
            self._keys.append(keys)
            grams.append(numbers)
        self._counts = []
        for length in range(1, order + 1):
            if length == order:
                counted = grams[length][predicted]
            else:  # each longer gram once: the different characters to the left
                _, first = np.unique(grams[length + 1][predicted], return_index=True)
                counted = grams[length][predicted][first]
            keys, contexts = self._keys[length - 1], len(self._keys[length - 2]) if length > 1 else 1
            self._counts.append(_Counts.of(np.bincount(counted, minlength=len(keys)), keys // self.size, contexts))

    def nats(self, texts: Sequence[str]) -> list[Floats]:
        """-log P of each character of each text, and of its end."""
        symbols, starts = self._symbols(texts)
        chances = np.full(len(symbols), 1 / (self.size - 1))
        grams = np.zeros(len(symbols), dtype=np.int64)
        for keys, counts in zip(self._keys, self._counts, strict=True):
            contexts = _before(grams)
            wanted = contexts * self.size + symbols
            places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
            grams = np.where((contexts >= 0) & (keys[places] == wanted), places, -1)
            chances = counts.interpolated(grams, contexts, chances)
        unknown = np.where(symbols == UNKNOWN, np.concatenate([*map(self._spelling, texts)]), 0.0)
        nats = np.split(unknown - np.log(chances), starts[1:])
        return [characters[self.order - 1 :] for characters in nats]  # without the starts

    def _symbols(self, texts: Sequence[str]) -> tuple[Integers, Integers]:
        """The symbols of all texts, each after as many starts as the longest context has and before its end, and the
        place where each begins."""
        rows = []
        for codes in map(_code_points, texts):
            places = np.minimum(np.searchsorted(self._codes, codes), max(len(self._codes) - 1, 0))
            known = self._codes[places] == codes if len(self._codes) else np.zeros(len(codes), dtype=bool)
            row = np.where(known, places + SPECIAL, UNKNOWN)
            rows.append(np.concatenate([np.full(self.order - 1, START), row, [END]]))
        return np.concatenate(rows), np.cumsum([0, *map(len, rows[:-1])])

    def _spelling(self, text: str) -> Floats:
        """The nats of the bytes of every character, and zeros at the places that are none."""
        sizes = np.array([len(character.encode(errors="replace")) for character in text], dtype=np.float64)
        return np.concatenate([np.zeros(self.order - 1), sizes * np.log(256), [0.0]])


@dataclass(frozen=True)
class _Counts:
    """The counts of the grams of one length."""

    grams: Floats
    """N(h c) of each gram."""
    totals: Floats
    """N(h .) of each context."""
    types: Floats
    """T(h) of each context."""
    discount: float

    @classmethod
    def of(cls, grams: Integers, context_of: Integers, contexts: int) -> "_Counts":
        ones, twos = int((grams == 1).sum()), int((grams == 2).sum())
        totals, types = (
            np.bincount(context_of, weights=weights, minlength=contexts).astype(np.float64)
            for weights in (grams, (grams > 0).astype(np.float64))
        )
        return cls(grams.astype(np.float64), totals, types, ones / (ones + 2 * twos) if ones and twos else 0.5)

    def interpolated(self, grams: Integers, contexts: Integers, shorter: Floats) -> Floats:
        """P(c | h) at places with these grams and contexts (-1: never seen), given P(c | h')."""
        total = np.where(contexts >= 0, self.totals[contexts], 0.0)
        seen = np.where(grams >= 0, np.maximum(self.grams[grams] - self.discount, 0.0), 0.0)
        longer = (seen + self.discount * self.types[contexts] * shorter) / np.maximum(total, 1.0)
        return np.where(total > 0, longer, shorter)


def _before(grams: Integers) -> Integers:
    """The gram that ends one place earlier: the context of each symbol."""
    return np.concatenate([grams[:1] * 0, grams[:-1]])


def _code_points(text: str) -> Integers:
    return np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), dtype="<u4").astype(np.int64)
