"""The base of every tokenizer spec, and the trained tokenizer: text to ids and back, stored as a tokenizer.json.

The `tokenizers` library trains, merges and decodes. Added here are special tokens, which text can never produce, and a
cache of the ids of each word, which encodes several times as fast.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

from tokenizers import Tokenizer as Library
from tokenizers.decoders import ByteLevel as ByteDecoder
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import Trainer

from anyformer.core import Amount, Count, Spec
from anyformer.data.tokenizers.units import reader
from anyformer.data.tokenizers.vocabulary import Vocabulary, WordStarts, complete, put_first, reserved, text_only
from anyformer.data.tokenizers.vocabulary import word_starts as word_starts_of
from anyformer.errors import DataError, Problem, SpecError

MOST_BYTES = 1 << 28
MOST_IDS = 1 << 24
_RARE = "\ue000 \U0010fffd"
"""Characters of no script: a tokenizer that knows unknown words calls these unknown."""


@dataclass(frozen=True, kw_only=True)
class TokenizerSpec(Spec):
    """How text becomes token ids."""

    sentinels: Amount = 100
    """Reserved tokens for the gaps of span corruption; 0 if none are needed, or the model has no room for more."""

    def train(self, texts: Iterable[str]) -> "Tokenizer":
        """Learns from the texts, read once and streamed; the same texts give the same tokenizer."""
        raise NotImplementedError

    @property
    def likely_size(self) -> int:
        """The vocabulary size to expect before anything is learned, for the cost of a model."""
        return 512

    def fingerprint(self) -> str:
        """A hash that changes when training on the same texts would give other ids."""
        return self.digest()


@dataclass(frozen=True, kw_only=True)
class LearnedTokenizer(TokenizerSpec):
    """A tokenizer whose vocabulary is learned from texts."""

    letters_needed: ClassVar[int] = 1
    """Smallest number of tokens to spell with."""

    size: Count = 8192
    """Vocabulary size, special tokens included; less if the text has fewer pieces."""

    def check(self) -> None:
        self.room()

    @property
    def likely_size(self) -> int:
        return self.size

    def room(self, least: int | None = None) -> int:
        """Number of tokens that training can learn; SpecError if it is below the minimum."""
        special, least = len(reserved(self.sentinels)), least or self.letters_needed
        if self.size < special + least:
            needed = f"{special} special tokens and {least} to spell with"
            problem = Problem("size", f"must be at least {special + least} ({needed}), got {self.size}.")
            raise SpecError(problems=[problem])
        return self.size - special


class Tokenizer:
    """Text to ids and back. Ids of special tokens never come from text."""

    words: Vocabulary

    def __init__(self, text: str, sentinels: int = 0):
        """`text` is that of a tokenizer.json; it gets the special tokens it lacks and at least so many sentinels."""
        try:
            self._library = Library.from_str(text)
        except Exception as error:  # the library raises nothing more precise
            raise DataError(f"is not a tokenizer.json: {error}") from None
        self.words = complete(self._library, sentinels)
        if self.words.size > MOST_IDS:
            raise DataError(f"the tokenizer has the id {self.words.size - 1}; at most {MOST_IDS} ids can be used.")
        self._text = self._library.to_str()
        config = text_only(json.loads(self._text))
        self._reader = Library.from_str(json.dumps(config))
        self._read = reader(config, self._reader)
        self._silent = frozenset(self.words.special) - ({self.words.unk} & {*self.encode(_RARE)})

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without special tokens around it."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text."""
        try:
            if self._read is not None:
                return [self._read(text) for text in texts]
            return [one.ids for one in self._reader.encode_batch_fast(list(texts), add_special_tokens=False)]
        except (TypeError, UnicodeEncodeError):
            list(characters(texts))  # raises an error that names the character
            raise

    def decode(self, ids: Sequence[int], special: Literal["skip", "show"] = "skip") -> str:
        """The text of ids. An unknown word shows as such, if texts can have one; other special tokens on request."""
        wrong = next((index for index in ids if not 0 <= index < self.words.size), None)
        if wrong is not None:
            raise DataError(f"the token id {wrong} is outside the vocabulary of {self.words.size}.")
        shown = ids if special == "show" else [index for index in ids if index not in self._silent]
        return self._library.decode(list(shown), skip_special_tokens=False)

    def save(self, path: str | Path) -> None:
        """Writes a tokenizer.json atomically."""
        part = Path(path).with_name(f"{Path(path).name}.part")
        part.write_text(self._library.to_str(pretty=True), encoding="utf-8")
        os.replace(part, path)

    @classmethod
    def load(cls, path: str | Path, sentinels: int = 0) -> "Tokenizer":
        """Loads a tokenizer.json, ours or not."""
        try:
            if os.path.getsize(path) > MOST_BYTES:
                raise DataError(f"larger than {MOST_BYTES >> 20} MiB, which no tokenizer.json is.")
            return cls(Path(path).read_text(encoding="utf-8"), sentinels)
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror}). Give the path of a tokenizer.json.") from None
        except UnicodeDecodeError:
            raise DataError(f"{path}: is not a tokenizer.json, nor any other text.") from None
        except DataError as error:
            raise DataError(f"{path}: {error}") from None

    @cached_property
    def word_starts(self) -> WordStarts | None:
        """Which tokens begin a word; None: this tokenizer does not show it."""
        return word_starts_of(json.loads(self._text), self.words)

    def fingerprint(self) -> str:
        """A hash that changes when any id may change."""
        return hashlib.sha256(self._text.encode()).hexdigest()

    def __reduce__(self) -> tuple[type["Tokenizer"], tuple[str]]:
        return Tokenizer, (self._text,)  # for worker processes


def byte_level(model: Any, use_regex: bool = True) -> Library:
    """An untrained tokenizer over the 256 bytes; `use_regex`: words are separated before the model sees them."""
    library = Library(model)
    library.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=use_regex)
    library.decoder = ByteDecoder()
    return library


def fit(library: Library, trainer: Trainer, texts: Iterable[str], sentinels: int) -> Tokenizer:
    """Trains on text alone, so that nothing is learned about special tokens, and then puts these in front."""
    library.train_from_iterator(characters(texts), trainer)
    if not library.get_vocab_size():
        raise DataError("there is no text to train a tokenizer on. Use the byte tokenizer, or give it text.")
    return finish(library, sentinels)


def finish(library: Library, sentinels: int) -> Tokenizer:
    """A trained tokenizer with the special tokens at its first ids."""
    return Tokenizer(json.dumps(put_first(json.loads(library.to_str()), sentinels)))


def characters(texts: Iterable[str]) -> Iterator[str]:
    """The texts, checked to be valid Unicode."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            code = f"U+{ord(text[error.start]):04X}"
            raise DataError(
                f"a text holds {code}, half of a surrogate pair, in place {error.start}: that is no character. "
                "Write the file again as UTF-8."
            ) from None
        yield text
