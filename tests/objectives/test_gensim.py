"""Word2vec against gensim, where it is installed: the words that are drawn, and what the vectors say of each other."""

import warnings
from collections import Counter
from types import ModuleType

import numpy as np
import pytest
import torch
from tests.objectives.every import STATIC
from tests.objectives.small import WORDS, laid, learn, noise
from tests.objectives.test_skip_gram import FIRST, vectors

from anyformer.objectives.skip_gram import SkipGram

RING = 20
"""Words on a ring: each stands beside its neighbours, so that likeness falls with their distance."""


@pytest.fixture(scope="module")
def word2vec() -> ModuleType:
    with warnings.catch_warnings(action="ignore"):
        return pytest.importorskip("gensim.models.word2vec", reason="gensim is not installed")


def walks(count: int, length: int) -> list[list[int]]:
    """Texts that walk around the ring, one word to the next or back."""
    steps = torch.randint(2, (count, length), generator=noise(1)) * 2 - 1
    steps[:, 0] = torch.randint(RING, (count,), generator=noise(2))
    return ((steps.cumsum(1) % RING) + FIRST).tolist()


@pytest.mark.slow
@pytest.mark.row("PRE-01", clause="agrees with gensim where gensim is installed")
@pytest.mark.parametrize("predicts", ["neighbours", "word"])
def test_words_are_as_alike_as_gensim_finds_them(word2vec: ModuleType, predicts: str) -> None:
    texts = walks(200, 12)
    theirs = word2vec.Word2Vec(
        [[str(word) for word in text] for text in texts], vector_size=32, window=2, min_count=1, negative=5, sample=0,
        sg=int(predicts == "neighbours"), cbow_mean=1, workers=1, seed=1, epochs=60,
    )  # fmt: skip
    objective = SkipGram(window=2, negatives=5, predicts=predicts)
    models = {"model": objective.adapt(STATIC).build(seed=1)}
    learn(objective, models, [objective.prepare(laid(texts), WORDS, noise(seed)) for seed in range(10)], 300, lr=0.02)
    ours, others = vectors(models)[FIRST : FIRST + RING].numpy(), theirs.wv.get_normed_vectors()
    others = others[[theirs.wv.key_to_index[str(word)] for word in range(FIRST, FIRST + RING)]]
    pairs = np.triu_indices(RING, 1)
    assert np.corrcoef((ours @ ours.T)[pairs], (others @ others.T)[pairs])[0, 1] > 0.6


@pytest.mark.row("PRE-01", clause="agrees with gensim where gensim is installed")
def test_words_are_drawn_with_the_odds_of_gensim(word2vec: ModuleType) -> None:
    text = [10] * 810 + [11] * 160 + [12] * 30
    theirs = word2vec.Word2Vec(
        [[str(word) for word in text]], vector_size=4, min_count=1, sample=0, epochs=1, workers=1
    )
    odds = np.diff(theirs.cum_table, prepend=0) / theirs.cum_table[-1]
    order = [theirs.wv.key_to_index[str(word)] for word in (10, 11, 12)]
    drawn = SkipGram(window=1, negatives=20).prepare(laid([text]), WORDS, noise()).inputs.noise.flatten().tolist()
    shares = [Counter(drawn)[word] / len(drawn) for word in (10, 11, 12)]
    np.testing.assert_allclose(shares, odds[order], rtol=0.05, atol=0.005)
