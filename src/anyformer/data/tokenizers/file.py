"""A tokenizer that exists: any tokenizer.json of the `tokenizers` library, ours or from elsewhere."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from anyformer.core.fields import did_you_mean
from anyformer.data.tokenizers.tokenizer import Tokenizer, TokenizerSpec
from anyformer.data.tokenizers.vocabulary import NAMES
from anyformer.errors import Problem, SpecError


@dataclass(frozen=True, kw_only=True)
class File(TokenizerSpec, kind="file"):
    """A tokenizer.json that exists; special tokens that it lacks are added at the end."""

    path: str
    """Path of the tokenizer.json."""
    roles: dict[str, str] = field(default_factory=dict)
    """Role (pad, unk, bos, eos, sep, cls, mask) -> its token, of a tokenizer made elsewhere. With all of them no token
    is added, and several roles may share one token."""

    @classmethod
    def examples(cls) -> "tuple[File, ...]":
        return (cls(path="tokenizer.json"),)

    def check(self) -> None:
        if unknown := [role for role in self.roles if role not in NAMES]:
            hints = {role: f"no such role.{did_you_mean(role, NAMES)}" for role in unknown}
            raise SpecError(problems=[Problem(f"roles.{role}", hint) for role, hint in hints.items()])

    def train(self, texts: Iterable[str]) -> Tokenizer:
        return Tokenizer.load(self.path, self.sentinels, self.roles)

    def fingerprint(self) -> str:
        """A hash of the content of the file, not of its path."""
        return self.train(()).fingerprint()
