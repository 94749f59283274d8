"""What tokenizers learn: as many merges as GPT had, and pieces whose probabilities are those of EM."""

import json
import math
from collections import Counter
from collections.abc import Mapping
from random import Random

import numpy as np
import pytest
from tests.data.test_tokenizers import TEXTS, pickle_text
from tokenizers import Tokenizer as Library

from anyformer.data.tokenizers.bpe import BPE
from anyformer.data.tokenizers.unigram import Unigram

Scores = Mapping[str, float]
"""Piece -> log-probability."""


@pytest.mark.slow
@pytest.mark.row("PRE-10", clause="the number of merges can be 40,000")
def test_40_000_pairs_can_be_merged() -> None:
    rng, syllables = Random(0), [consonant + vowel for consonant in "bcdfghjklmnprstvwz" for vowel in "aeiou"]
    words = ["".join(rng.choices(syllables, k=rng.randint(2, 6))) for _ in range(25_000)]
    symbols = 7 + 256  # special tokens and bytes
    tokenizer = BPE(size=40_000 + symbols, sentinels=0, min_count=1).train([" ".join(words)])
    assert len(json.loads(pickle_text(tokenizer))["model"]["merges"]) == 40_000
    assert tokenizer.decode(tokenizer.encode(" ".join(words[:50]))) == " ".join(words[:50])


def expected_counts(words: Mapping[str, int], scores: Scores) -> tuple[Counter[str], float]:
    """The E step: expected counts of the pieces over all ways to cut the words, and the log-likelihood of the words."""
    counts, likelihood, longest = Counter[str](), 0.0, max(map(len, scores))
    for word, times in words.items():
        spans = [(i, j) for i in range(len(word)) for j in range(i + 1, min(len(word), i + longest) + 1)]
        edges = [(i, j, word[i:j]) for i, j in spans if word[i:j] in scores]
        forward, backward = [0.0, *[-math.inf] * len(word)], [*[-math.inf] * len(word), 0.0]
        for i, j, piece in edges:
            forward[j] = float(np.logaddexp(forward[j], forward[i] + scores[piece]))
        for i, j, piece in reversed(edges):
            backward[i] = float(np.logaddexp(backward[i], backward[j] + scores[piece]))
        likelihood += times * forward[-1]
        for i, j, piece in edges:
            counts[piece] += times * math.exp(forward[i] + scores[piece] + backward[j] - forward[-1])  # type: ignore[assignment]
    return counts, likelihood


def normalised(counts: Mapping[str, float]) -> Scores:
    """The M step: log-probabilities of the pieces."""
    total = sum(counts.values())
    return {piece: math.log(max(count, 1e-9) / total) for piece, count in counts.items()}


@pytest.mark.row("TSK-15", clause="unigram model is trained by EM")
def test_the_probabilities_of_unigram_pieces_are_those_of_expectation_maximisation() -> None:
    file = pickle_text(Unigram(size=900).train(iter(TEXTS)))
    learned: Scores = dict(json.loads(file)["model"]["vocab"])
    cut = Library.from_str(file).pre_tokenizer.pre_tokenize_str
    words = Counter(word for text in TEXTS for word, _ in cut(text))
    seen = {piece: sum(times * word.count(piece) for word, times in words.items()) for piece in learned}
    plain = normalised(seen)  # what EM starts from
    counts, likelihood = expected_counts(words, learned)
    again, usual = normalised(counts), [piece for piece in counts if counts[piece] > 5]

    def distance(scores: Scores) -> float:
        return float(np.mean([abs(scores[piece] - learned[piece]) for piece in usual]))

    assert len(usual) > 300
    assert distance(again) < 0.25 < 0.8 < distance(plain)
    start, end = expected_counts(words, plain)[1], expected_counts(words, {**plain, **again})[1]
    assert start < likelihood < end  # EM never lowers it ...
    assert end - likelihood < 0.5 * (likelihood - start)  # ... and most of it was done
