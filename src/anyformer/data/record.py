"""Records, and the sources that read them: one document, pair or labelled text each, and where it came from."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from anyformer.core import Spec


class Piece(NamedTuple):
    """A piece of a conversation, as a chat template lays it out."""

    text: str
    control: bool = False
    """True: written by the template, so that names of special tokens in it are these tokens. The words of a message are
    text, whatever they say."""
    answer: bool = False
    """True for the words of an assistant, and for the piece of the template right behind them."""


@dataclass(frozen=True, slots=True)
class Record:
    """One example as text. `where` is its place for error messages: file:line, or the name of a generator."""

    text: str
    """The document; of a pair, the source."""
    target: str | None = None
    """The other half of a pair: the translation, the summary, the answer."""
    label: str | None = None
    """A class, or a number as text."""
    tags: tuple[str, ...] = ()
    """A label for each word of `text`, split at spaces."""
    choices: tuple[str, ...] = ()
    """Answers to choose from; `label` is the index of the right one."""
    pieces: tuple[Piece, ...] = ()
    """A conversation, laid out by its chat template; `text` has its messages alone, for splits and tokenizers."""
    group: str | None = None
    """Records of one group never cross a split."""
    split: str | None = None
    """train, valid or test, if the source has splits."""
    continues: bool = False
    """True: a piece of a text that goes on from the record before it. If both are in one split, they are one text."""
    repeated: bool = False
    """True: a copy of an earlier record that raises its weight in training; not read if the record is held out."""
    where: str = ""

    @property
    def labels(self) -> tuple[str, ...]:
        """The tags of its words, or else its label; empty without either."""
        return self.tags or ((self.label,) if self.label is not None else ())

    def characters(self) -> int:
        """Length of all its texts together; of a conversation, with what its template writes."""
        if self.pieces:
            return sum(len(piece.text) for piece in self.pieces)
        return len(self.text) + len(self.target or "") + sum(map(len, self.choices))


@dataclass(frozen=True, kw_only=True)
class SourceSpec(Spec):
    """Where records come from."""

    natural: ClassVar[bool] = True
    """False for generated sequences: defaults that were found on texts of people are not used for them."""
    usual_tokenizer: ClassVar[Mapping[str, Any]] = {"kind": "bpe"}
    """The default tokenizer of its texts."""
    expected: ClassVar[tuple[str, ...]] = ()
    """Checks whose findings are intended in these data."""
    plain: ClassVar[bool] = False
    """Records are texts and nothing else, whatever a file holds: known without reading it."""

    @property
    def chat_template(self) -> str | None:
        """The template that lays out conversations; None for other records."""
        return None

    def records(self) -> Iterator[Record]:
        """Every record once, in a stable order, streamed: a file may be larger than memory."""
        raise NotImplementedError

    def fingerprint(self) -> str:
        """A hash that changes when the data change; compared before a run resumes."""
        raise NotImplementedError

    def hash_with(self, sample: object) -> str:
        """The fingerprint of generated data: a hash of the options and of a sample, which changes when the generator
        does."""
        return hashlib.sha256(f"{self.digest()} {sample}".encode()).hexdigest()

    def warnings(self) -> list[str]:
        """What a user should know about the files before training, such as files that are not read."""
        return []

    def files(self) -> Mapping[str, Path]:
        """The files that are read, by name: while none of them changes, the fingerprint is not computed again. Empty if
        the fingerprint takes no time."""
        return {}
