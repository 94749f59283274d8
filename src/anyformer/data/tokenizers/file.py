"""A tokenizer that exists: any tokenizer.json of the `tokenizers` library, ours or from elsewhere."""

from collections.abc import Iterable
from dataclasses import dataclass

from anyformer.data.tokenizers.tokenizer import Tokenizer, TokenizerSpec


@dataclass(frozen=True, kw_only=True)
class File(TokenizerSpec, kind="file"):
    """A tokenizer.json that exists; special tokens that it lacks are added at the end."""

    path: str
    """Path of the tokenizer.json."""

    @classmethod
    def examples(cls) -> "tuple[File, ...]":
        return (cls(path="tokenizer.json"),)

    def train(self, texts: Iterable[str]) -> Tokenizer:
        return Tokenizer.load(self.path, self.sentinels)

    def fingerprint(self) -> str:
        """A hash of the content of the file, not of its path."""
        return Tokenizer.load(self.path, self.sentinels).fingerprint()
