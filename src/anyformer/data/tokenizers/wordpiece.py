"""WordPiece as BERT has it: words and punctuation, cut greedily into the longest pieces that the vocabulary holds.

word = p_1 ##p_2 ...  with p_1 its longest known beginning, p_2 that of the rest, ...     (arXiv 1609.08144, 1810.04805)

A word with a letter that is not in the alphabet is <unk> as a whole, and white space is not kept: where every text must
come back as it was, use `bpe` or `unigram`.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import IO, Literal

from tokenizers import Tokenizer as Library
from tokenizers.decoders import WordPiece as PieceDecoder
from tokenizers.models import WordPiece as Pieces
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.trainers import WordPieceTrainer

from anyformer.core import Count
from anyformer.data.tokenizers.tokenizer import LearnedTokenizer, Tokenizer, characters, fit

INSIDE = "##"


@dataclass(frozen=True, kw_only=True)
class WordPiece(LearnedTokenizer, kind="wordpiece"):
    """BERT's longest match: a word with a letter that training did not see is unknown."""

    case: Literal["keep", "lower"] = "keep"
    """lower: small letters without accents, as in BERT's uncased models."""
    letters: Count = 1000
    """Largest number of letters and signs, the most frequent ones; words with others are unknown."""
    min_count: Count = 2
    """A pair that is seen more rarely is not merged."""

    def train(self, texts: Iterable[str]) -> Tokenizer:
        library = Library(Pieces(unk_token="<unk>"))
        library.normalizer = BertNormalizer(lowercase=self.case == "lower")
        library.pre_tokenizer = BertPreTokenizer()
        library.decoder = PieceDecoder(prefix=INSIDE)
        with TemporaryFile("w+", encoding="utf-8") as spool:  # texts may come once only, and need not fit in memory
            alphabet = _alphabet(library, _kept(characters(texts), spool), self.letters)
            inside = [INSIDE + letter for letter in alphabet if _stands_inside(library, letter)]
            trainer = WordPieceTrainer(
                vocab_size=self.room(len(alphabet) + len(inside)),
                min_frequency=self.min_count,
                initial_alphabet=alphabet,
                limit_alphabet=len(alphabet),
                special_tokens=inside,  # or their ids, which decide between equally frequent pairs, would be random
                continuing_subword_prefix=INSIDE,
                show_progress=False,
            )
            spool.seek(0)
            return fit(library, trainer, (json.loads(line) for line in spool), self.sentinels)


def _kept(texts: Iterable[str], spool: IO[str]) -> Iterator[str]:
    for text in texts:
        spool.write(json.dumps(text) + "\n")
        yield text


def _alphabet(library: Library, texts: Iterable[str], most: int) -> list[str]:
    """The most frequent letters and signs, of equals the first in Unicode; in Unicode's order."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(library.normalizer.normalize_str(text))
    letters = [letter for letter in counts if not letter.isspace()]
    return sorted(sorted(letters, key=lambda letter: (-counts[letter], letter))[:most])


def _stands_inside(library: Library, letter: str) -> bool:
    """Whether a character can be part of a longer word: punctuation and Chinese characters are words of their own."""
    text = library.normalizer.normalize_str(f"a{letter}a")
    return len(library.pre_tokenizer.pre_tokenize_str(text)) == 1
