"""Near-duplicates by containment: the share of a document's word 5-grams that earlier documents contain.

    containment(A, seen) = |S(A) ∩ seen| / |S(A)|,   S(A) = hashes of the 5-grams of A that are 0 modulo 4

This is the MOD_m sketch of Broder, "On the resemblance and containment of documents" (1997). Unlike MinHash, which
estimates resemblance, it also finds a chapter that stands alone and once more in a complete book. The set of seen
hashes is a bit table (a Bloom filter with one hash function), so memory does not grow with the corpus.
"""

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]

WORDS = 5
SAMPLED = 4
"""One 5-gram in so many is kept; all texts keep the same ones, so that their sketches can be compared."""
LONGEST_WORD = 64


def random_odd(count: int, seed: int) -> Hashes:
    """Fixed odd multipliers: the same on every machine."""
    generator = np.random.Generator(np.random.PCG64(seed))
    return generator.integers(0, 2**63, count, dtype=np.uint64) * np.uint64(2) + np.uint64(1)


def word_bytes() -> NDArray[np.bool_]:
    """Which bytes of UTF-8 belong to a word: letters, digits and everything outside of ASCII."""
    return np.array([byte >= 128 or chr(byte).isalnum() for byte in range(256)])


IS_WORD = word_bytes()
BYTE_VALUES = np.where(IS_WORD, random_odd(256, seed=1), np.uint64(0))
POSITIONS = random_odd(LONGEST_WORD, seed=2)
ORDER = random_odd(WORDS, seed=3)


def word_hashes(text: str) -> Hashes:
    """One hash per word of a text, in order; case and punctuation do not matter."""
    codes = np.frombuffer(text.lower().encode("utf-8", "replace"), np.uint8)
    inside = IS_WORD[codes]
    starts = np.flatnonzero(inside & ~np.concatenate([[False], inside[:-1]]))
    if not len(starts):
        return np.zeros(0, np.uint64)
    codes = codes[starts[0] :]
    starts = starts - starts[0]
    position = np.arange(len(codes)) - np.repeat(starts, np.diff(starts, append=len(codes)))
    return np.add.reduceat(BYTE_VALUES[codes] * POSITIONS[np.minimum(position, LONGEST_WORD - 1)], starts)


def sketch(text: str) -> Hashes:
    """The sampled hashes of a text's word 5-grams, sorted; at least one, so that exact copies of short texts match."""
    words = word_hashes(text)
    count = max(len(words) - WORDS + 1, 1)
    words = np.pad(words, (0, max(WORDS - len(words), 0)))
    grams = np.zeros(count, np.uint64)
    for index, factor in enumerate(ORDER):
        grams += words[index : index + count] * factor
    # Multiplications carry only upwards: fold the high bits down, so that all bits depend on all words.
    grams = (grams ^ (grams >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)
    grams ^= grams >> np.uint64(29)
    sampled = grams[grams % np.uint64(SAMPLED) == 0]
    return np.unique(sampled) if len(sampled) else grams.min(keepdims=True)


class SeenShingles:
    """A set of hashes in 2**bits bits. With n hashes in the set, n / 2**bits of all others seem to be in it."""

    def __init__(self, bits: int) -> None:
        self.shift = np.uint64(64 - bits)
        self.table = np.zeros(2**bits // 8, np.uint8)

    def containment(self, hashes: Hashes) -> float:
        """The share of the hashes that were added before."""
        cells, masks = self._cells(hashes)
        return float(np.count_nonzero(self.table[cells] & masks)) / len(hashes)

    def add(self, hashes: Hashes) -> None:
        cells, masks = self._cells(hashes)
        np.bitwise_or.at(self.table, cells, masks)

    def _cells(self, hashes: Hashes) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        bits = hashes >> self.shift
        return (bits >> np.uint64(3)).astype(np.int64), np.uint8(1) << (bits & np.uint64(7)).astype(np.uint8)


class DuplicateFilter:
    """Keeps a document if little of it is in the documents kept before. Show held-out documents first: of two copies
    the first is kept."""

    def __init__(self, limit: float = 0.5, held_out_limit: float = 0.2, bits: int = 31) -> None:
        self.limit, self.held_out_limit = limit, held_out_limit
        self.kept, self.held_out = SeenShingles(bits), SeenShingles(bits - 3)

    def keep(self, text: str, split: str) -> bool:
        """Whether a document is new; if so, it is remembered. For training documents the limit of what they may share
        with held-out documents is stricter than that of what documents of one split may share."""
        hashes = sketch(text)
        if self.kept.containment(hashes) > self.limit:
            return False
        if split == "train" and self.held_out.containment(hashes) > self.held_out_limit:
            return False
        self.kept.add(hashes)
        if split != "train":
            self.held_out.add(hashes)
        return True
