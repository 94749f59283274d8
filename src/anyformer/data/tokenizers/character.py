"""Characters: every code point that the training text has. One that it has not is unknown."""

from collections.abc import Iterable
from dataclasses import dataclass

from tokenizers import Regex
from tokenizers import Tokenizer as Library
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from tokenizers.trainers import WordLevelTrainer

from anyformer.core import Count
from anyformer.data.tokenizers.tokenizer import LearnedTokenizer, Tokenizer, fit
from anyformer.data.tokenizers.vocabulary import ANY_CHARACTER


@dataclass(frozen=True, kw_only=True)
class Character(LearnedTokenizer, kind="character"):
    """Every character of the training text; others are unknown."""

    size: Count = 32_768
    """Largest number of tokens, special ones included; the most frequent are chosen."""
    min_count: Count = 1
    """A character that is seen more rarely is unknown."""

    @property
    def likely_size(self) -> int:
        return min(self.size, 512)

    def train(self, texts: Iterable[str]) -> Tokenizer:
        library = Library(WordLevel(unk_token="<unk>"))
        library.pre_tokenizer = Split(Regex(ANY_CHARACTER), "isolated")
        library.decoder = Fuse()
        trainer = WordLevelTrainer(vocab_size=self.room(), min_frequency=self.min_count, show_progress=False)
        return fit(library, trainer, texts, self.sentinels)
