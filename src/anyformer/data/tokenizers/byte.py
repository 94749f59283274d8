"""Bytes: the 256 bytes of UTF-8 are the vocabulary. Nothing to learn, nothing unknown; sequences are long.

id = special tokens + byte
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tokenizers import Tokenizer as Library
from tokenizers.decoders import ByteLevel as ByteDecoder
from tokenizers.models import BPE as Pairs
from tokenizers.pre_tokenizers import ByteLevel

from anyformer.data.tokenizers.tokenizer import Tokenizer, TokenizerSpec, finish
from anyformer.data.tokenizers.units import byte_letters


@dataclass(frozen=True, kw_only=True)
class Byte(TokenizerSpec, kind="byte"):
    """The 256 bytes of UTF-8: nothing to learn, nothing unknown."""

    def train(self, texts: Iterable[str]) -> Tokenizer:
        library = Library(Pairs(vocab={letter: byte for byte, letter in enumerate(byte_letters())}, merges=[]))
        library.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
        library.decoder = ByteDecoder()
        return finish(library, self.sentinels)
