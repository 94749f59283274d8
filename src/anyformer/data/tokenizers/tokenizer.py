"""The base of every tokenizer spec, and the trained tokenizer: text to ids and back, stored as a tokenizer.json.

The `tokenizers` library trains, merges and decodes. Added here are special tokens, which text can never produce, and
fast encoders that give the same ids where the units of a tokenizer are known. Bytes and words are looked up; other text
is cut where its tokens are certain to end. Most of these units repeat, so their ids are cached:

tokens(text) = tokens(unit_1) + tokens(unit_2) + ...
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal, TypeAlias

from tokenizers import Tokenizer as Library
from tokenizers.decoders import ByteLevel as ByteDecoder
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import Trainer

from anyformer.core import Amount, Count, Spec
from anyformer.data.tokenizers.vocabulary import (
    ANY_CHARACTER,
    NAMES,
    Vocabulary,
    WordStarts,
    byte_letters,
    complete,
    put_first,
    reserved,
    text_only,
    with_roles,
)
from anyformer.data.tokenizers.vocabulary import word_starts as word_starts_of
from anyformer.disk import store
from anyformer.errors import DataError, Problem, SpecError

MOST_BYTES = 1 << 28
NO_ROLES: Mapping[str, str] = MappingProxyType({})
MOST_IDS = 1 << 24
BROKEN = "\N{REPLACEMENT CHARACTER}"
"""What bytes that are no whole character are decoded to."""
_RARE = "\ue000 \U0010fffd"
"""Characters of no script: they become the unknown token, if the tokenizer has one."""


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

    def __init__(self, text: str, sentinels: int = 0, roles: Mapping[str, str] = NO_ROLES):
        """`text` is that of a tokenizer.json; it gets the special tokens it lacks and at least so many sentinels.
        `roles`: role -> the token of the file that takes it."""
        try:
            self._library = Library.from_str(text)
            if roles:
                ids = self._library.get_vocab()
                if missing := [name for name in roles.values() if name not in ids]:
                    raise DataError(f"has no token {missing[0]!r}.")
                self._library = Library.from_str(json.dumps(with_roles(json.loads(text), roles, ids)))
        except DataError:
            raise
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

    def encode_control(self, text: str) -> list[int]:
        """The ids of a text in which the names of special tokens are these tokens, such as what a chat template writes.
        <bos>, <eos> and the other usual names stand for the token that has the role."""
        known = self._library.token_to_id
        for role, (name, *_) in NAMES.items():
            if name in text and known(name) is None:
                text = text.replace(name, str(self._library.id_to_token(getattr(self.words, role))))
        ids: list[int] = self._library.encode(text, add_special_tokens=False).ids
        return ids

    @cached_property
    def control_ids(self) -> frozenset[int]:
        """Ids of all special tokens, also of those without a role, such as the marks of a chat."""
        added = json.loads(self._text)["added_tokens"]
        return frozenset(token["id"] for token in added if token["special"]) | {*self.words.special}

    def decode(self, ids: Sequence[int], special: Literal["skip", "show"] = "skip") -> str:
        """The text of ids. An unknown word shows as such, if texts can have one; other special tokens on request."""
        wrong = next((index for index in ids if not 0 <= index < self.words.size), None)
        if wrong is not None:
            raise DataError(f"the token id {wrong} is outside the vocabulary of {self.words.size}.")
        shown = ids if special == "show" else [index for index in ids if index not in self._silent]
        return self._library.decode(list(shown), skip_special_tokens=False)

    def name(self, index: int) -> str:
        """The text of one token, to be shown; bytes that are only a part of a character are written as <0xC3>."""
        text = self.decode([index], special="show")
        if BROKEN not in text:
            return text
        piece = str(self._library.id_to_token(index))
        byte_of = {letter: byte for byte, letter in enumerate(byte_letters())}
        if not set(piece) <= byte_of.keys():
            return piece
        letters = bytes(byte_of[letter] for letter in piece).decode("utf-8", "surrogateescape")  # byte -> U+DC00 + byte
        return "".join(f"<0x{ord(one) - 0xDC00:02X}>" if "\udc80" <= one <= "\udcff" else one for one in letters)

    def save(self, path: str | Path) -> None:
        """Writes a tokenizer.json atomically."""
        store(Path(path), self._library.to_str(pretty=True))

    @classmethod
    def load(cls, path: str | Path, sentinels: int = 0, roles: Mapping[str, str] = NO_ROLES) -> "Tokenizer":
        """Loads a tokenizer.json, ours or not."""
        try:
            if os.path.getsize(path) > MOST_BYTES:
                raise DataError(f"larger than {MOST_BYTES >> 20} MiB, which no tokenizer.json is.")
            return cls(Path(path).read_text(encoding="utf-8"), sentinels, roles)
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


Read: TypeAlias = Callable[[str], list[int]]

LONG = 10
"""Mean length of units, in characters, above which caching is not worth it."""
WHITE_SPACE = "\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
"""White space as the library has it; Python's \\s has four control characters more."""
_SIGN = "!-/:-@[-`{-~"
_WORDS = re.compile(f"[^{WHITE_SPACE}]+")
# The library's byte-level pattern where it meets ASCII only. Elsewhere the rest of the word is one unit: the
# library alone defines which of the other characters are letters.
_ASCII_NEXT = r"(?![^\x00-\x7f])"
_BYTE_LEVEL = re.compile(
    f" ?[A-Za-z]++{_ASCII_NEXT}"
    "|'(?:[stmd]|re|ve|ll)"
    rf"| ?(?:[0-9]++|[{_SIGN}\x00-\x08\x0e-\x1f\x7f]++){_ASCII_NEXT}"
    f"| ?[^{WHITE_SPACE}]+|[{WHITE_SPACE}]+(?![^{WHITE_SPACE}])|[{WHITE_SPACE}]+"
)
# BERT ends a word at these, and drops control characters from it, form feeds among them
_BERT = re.compile(f"[{_SIGN}]|[A-Za-z0-9]++(?=[{_SIGN} \t\n\r]|\\Z)|[^ \t\n\r]+")


def reader(config: Mapping[str, Any], library: Library) -> Read | None:
    """A fast reader for this tokenizer.json, from which `library` was made; None if only the library can read it."""
    model, cut, clean = config["model"], config["pre_tokenizer"] or {}, (config["normalizer"] or {}).get("type")
    if config["added_tokens"] or model.get("dropout"):
        return None
    match model["type"], cut.get("type"), clean:
        case "BPE", "ByteLevel", None if not model["merges"] and not cut["add_prefix_space"]:
            return _bytes(model["vocab"])
        case _, "ByteLevel", None if cut["use_regex"] and not cut["add_prefix_space"]:
            return _units(_BYTE_LEVEL.findall, library)
        case "WordLevel", "WhitespaceSplit", None:
            return _lookup(_WORDS.findall, model)
        case "WordLevel", "Split", None if cut["pattern"] == {"Regex": ANY_CHARACTER} and cut["behavior"] == "Isolated":
            return _lookup(iter, model)
        case _, "BertPreTokenizer", None | "BertNormalizer":
            return _units(_BERT.findall, library)
    return None


def _bytes(vocab: Mapping[str, int]) -> Read | None:
    letters = byte_letters()
    if vocab.keys() != set(letters):
        return None
    ids = [vocab[letter] for letter in letters]
    return lambda text: [ids[byte] for byte in text.encode()]


def _lookup(split: Callable[[str], Iterable[str]], model: Mapping[str, Any]) -> Read | None:
    ids, unknown = model["vocab"].get, model["vocab"].get(model["unk_token"])
    return None if unknown is None else lambda text: [ids(word, unknown) for word in split(text)]


def _units(split: Callable[[str], list[str]], library: Library) -> Read:
    ids = Memo(library).__getitem__

    def read(text: str) -> list[int]:
        units = split(text)
        if len(text) > LONG * len(units):  # Chinese, base64: such units hardly come again
            return library.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return list(chain.from_iterable(map(ids, units)))

    return read


class Memo(dict[str, tuple[int, ...]]):
    """A cache, unit -> its ids. Its size is bounded: frequent units are met first."""

    LONGEST, MOST = 64, 1 << 18

    def __init__(self, library: Library):
        super().__init__()
        # the stages of the library one by one: `encode` also computes offsets, which takes longer than all the rest
        self.clean, self.cut, self.model = library.normalizer, library.pre_tokenizer, library.model

    def __missing__(self, unit: str) -> tuple[int, ...]:
        words = self.cut.pre_tokenize_str(self.clean.normalize_str(unit) if self.clean else unit)
        ids = tuple(token.id for word, _ in words for token in self.model.tokenize(word))
        if len(unit) <= self.LONGEST and len(self) < self.MOST:
            self[unit] = ids
        return ids
