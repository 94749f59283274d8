"""Fast encoders: the same ids as the `tokenizers` library, for tokenizers whose units are known.

Bytes and whole words are looked up. Otherwise text is cut where its tokens are certain to end; most of these units
repeat, so the ids of each are cached:

tokens(text) = tokens(unit_1) + tokens(unit_2) + ...
"""

import re
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any, TypeAlias

from tokenizers import Tokenizer as Library
from tokenizers.pre_tokenizers import ByteLevel

Read: TypeAlias = Callable[[str], list[int]]

LONG = 10
"""Mean length of units, in characters, above which caching is not worth it."""
ANY_CHARACTER = r"[\s\S]"
SPACE = "\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
"""White space as the library has it; Python's \\s has four control characters more."""
_SIGN = "!-/:-@[-`{-~"
_WORDS = re.compile(f"[^{SPACE}]+")
# The library's byte-level pattern where it meets ASCII only. Elsewhere the rest of the word is one unit: which of the
# other characters are letters, only the library knows.
_ASCII_NEXT = r"(?![^\x00-\x7f])"
_BYTE_LEVEL = re.compile(
    f" ?[A-Za-z]++{_ASCII_NEXT}"
    "|'(?:[stmd]|re|ve|ll)"
    rf"| ?(?:[0-9]++|[{_SIGN}\x00-\x08\x0e-\x1f\x7f]++){_ASCII_NEXT}"
    f"| ?[^{SPACE}]+|[{SPACE}]+(?![^{SPACE}])|[{SPACE}]+"
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


def byte_letters() -> list[str]:
    """The letter that the library writes for each byte: itself where it can be seen, the rest in order behind them."""
    alphabet = sorted(ByteLevel.alphabet())
    itself = {ord(letter): letter for letter in alphabet if ord(letter) < 256}
    others = iter(letter for letter in alphabet if ord(letter) >= 256)
    return [itself.get(byte) or next(others) for byte in range(256)]


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
