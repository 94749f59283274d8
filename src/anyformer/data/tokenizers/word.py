"""Words: what stands between white space. Text comes back with one space between its words.

A word that training did not see is unknown, and so is one that looks like a special token.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tokenizers import Tokenizer as Library
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.trainers import WordLevelTrainer

from anyformer.core import Count
from anyformer.data.tokenizers.tokenizer import LearnedTokenizer, Tokenizer, fit


@dataclass(frozen=True, kw_only=True)
class Word(LearnedTokenizer, kind="word"):
    """What stands between white space; words that training did not see are unknown."""

    size: Count = 32_768
    """Largest number of tokens, special ones included; the most frequent are chosen."""
    min_count: Count = 1
    """A word that is seen more rarely is unknown."""

    def train(self, texts: Iterable[str]) -> Tokenizer:
        library = Library(WordLevel(unk_token="<unk>"))
        library.pre_tokenizer = WhitespaceSplit()
        trainer = WordLevelTrainer(vocab_size=self.room(), min_frequency=self.min_count, show_progress=False)
        return fit(library, trainer, texts, self.sentinels)
