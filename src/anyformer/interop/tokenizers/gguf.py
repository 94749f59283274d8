"""The tokenizer in a GGUF file as a kind of tokenizer, for runs that start from such a file."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer as Library

from anyformer.data.tokenizers.tokenizer import Tokenizer, TokenizerSpec
from anyformer.interop.gguf_header import SUFFIX, Header
from anyformer.interop.gguf_tokens import tokenizer_files
from anyformer.interop.tokens import token_roles


@dataclass(frozen=True, kw_only=True)
class GGUF(TokenizerSpec, kind="gguf"):
    """The tokenizer of a GGUF file, with the special tokens that the file names."""

    path: str
    """Path of the GGUF file."""

    @classmethod
    def examples(cls) -> "tuple[GGUF, ...]":
        return (cls(path=f"model{SUFFIX}"),)

    def train(self, texts: Iterable[str]) -> Tokenizer:
        text, named = tokenizer_files(Header.read(Path(self.path)))
        return Tokenizer(text, self.sentinels, token_roles(Library.from_str(text).get_vocab(), named))

    def fingerprint(self) -> str:
        """A hash of the tokenizer, not of the path of its file."""
        return self.train(()).fingerprint()
