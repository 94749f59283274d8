"""Byte-pair encoding: starts from the 256 bytes and merges the most frequent pair, again and again.

a, b = argmax count(x y) ;  every `a b` becomes `ab`          (arXiv 1508.07909)

Over bytes, as in GPT-2: nothing is unknown.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tokenizers.models import BPE as Pairs
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from anyformer.core import Count
from anyformer.data.tokenizers.tokenizer import LearnedTokenizer, Tokenizer, byte_level, fit


@dataclass(frozen=True, kw_only=True)
class BPE(LearnedTokenizer, kind="bpe"):
    """Merges the most frequent pairs of bytes: nothing is unknown, and text comes back as it was."""

    letters_needed = 256

    min_count: Count = 2
    """A pair that is seen more rarely is not merged."""

    def train(self, texts: Iterable[str]) -> Tokenizer:
        library = byte_level(Pairs())
        trainer = BpeTrainer(
            vocab_size=self.room(),
            min_frequency=self.min_count,
            initial_alphabet=sorted(ByteLevel.alphabet()),
            show_progress=False,
        )
        return fit(library, trainer, texts, self.sentinels)
