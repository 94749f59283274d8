"""What a source gives: one document, pair or labelled text, and where it came from."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from anyformer.core import Spec


@dataclass(frozen=True, slots=True)
class Record:
    """One example as text. `where` is what an error message says: file:line, or the name of a generator."""

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
    group: str | None = None
    """Records of one group never cross a split."""
    split: str | None = None
    """train, valid or test, where the source says so."""
    where: str = ""


@dataclass(frozen=True, kw_only=True)
class SourceSpec(Spec):
    """Where records come from."""

    usual_tokenizer: ClassVar[Mapping[str, Any]] = {"kind": "bpe"}
    """What to read it with, where nobody says."""
    expected: ClassVar[tuple[str, ...]] = ()
    """Checks that would find fault with what is as it should be."""

    def records(self) -> Iterator[Record]:
        """Every record once, in a stable order, streamed: a file may be larger than memory."""
        raise NotImplementedError

    def fingerprint(self) -> str:
        """Changes when the data change: what a run compares before it resumes."""
        raise NotImplementedError
