"""Bytes: the 256 bytes of UTF-8 are the vocabulary. Nothing to learn, nothing unknown; sequences are long.

id = special tokens + byte
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tokenizers.models import BPE as Pairs

from anyformer.data.tokenizers.tokenizer import Tokenizer, TokenizerSpec, byte_level, finish
from anyformer.data.tokenizers.vocabulary import byte_letters, reserved


@dataclass(frozen=True, kw_only=True)
class Byte(TokenizerSpec, kind="byte"):
    """The 256 bytes of UTF-8: nothing to learn, nothing unknown."""

    @property
    def likely_size(self) -> int:
        return 256 + len(reserved(self.sentinels))

    def train(self, texts: Iterable[str]) -> Tokenizer:
        model = Pairs(vocab={letter: byte for byte, letter in enumerate(byte_letters())}, merges=[])
        return finish(byte_level(model, use_regex=False), self.sentinels)
