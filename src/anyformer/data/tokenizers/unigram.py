"""Unigram language model: starts from many pieces and drops those whose removal lowers the likelihood least.

x = argmax over the ways to cut the text of  sum_i log p(x_i)     (arXiv 1804.10959; EM to learn p, Viterbi to read)

Here the pieces are of bytes, all 256 of which are kept: nothing is unknown.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass

from tokenizers.models import Unigram as Pieces
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import UnigramTrainer

from anyformer.core import Count
from anyformer.data.tokenizers.tokenizer import LearnedTokenizer, Tokenizer, byte_level, characters, finish


@dataclass(frozen=True, kw_only=True)
class Unigram(LearnedTokenizer, kind="unigram"):
    """The most likely pieces under a unigram model of bytes: nothing is unknown, and text comes back as it was."""

    letters_needed = 256

    longest: Count = 16
    """Largest number of bytes of a piece."""

    def train(self, texts: Iterable[str]) -> Tokenizer:
        library = byte_level(Pieces())
        most = self.room()
        trainer = UnigramTrainer(
            vocab_size=most,
            max_piece_length=self.longest,
            initial_alphabet=sorted(ByteLevel.alphabet()),
            show_progress=False,
        )
        library.train_from_iterator(characters(texts), trainer)
        library.model = Pieces(_settled(json.loads(library.to_str())["model"]["vocab"], most))
        return finish(library, self.sentinels)


def _settled(pieces: list[tuple[str, float]], most: int) -> list[tuple[str, float]]:
    """The pieces in a reproducible order, cut to the requested number: all bytes, then the most likely.

    The library sums in any order, ranks bytes that it never saw at random, and gives more where few are wanted.
    """
    lowest = min(score for _, score in pieces)
    unseen = lowest + 256 * 1e-4  # it sets them so far apart, from the lowest score upwards
    scores = {piece: round(lowest if len(piece) == 1 and score <= unseen else score, 6) for piece, score in pieces}
    ranked = sorted(scores, key=lambda piece: (len(piece) > 1, -scores[piece], piece))
    return [(piece, scores[piece]) for piece in ranked[:most]]
