"""The size of a tokenizer's vocabulary, and its special ids: all that objectives need of it."""

from typing import NamedTuple


class Vocabulary(NamedTuple):
    """Ids of a tokenizer. Special ids never come from text, whatever the text says."""

    size: int
    pad: int
    unk: int
    bos: int
    eos: int
    sep: int
    cls: int
    mask: int
    sentinels: tuple[int, ...]
    """One for each span that span corruption cuts out, in order."""

    @property
    def special(self) -> tuple[int, ...]:
        """All special ids: never masked, never chosen at random."""
        return (self.pad, self.unk, self.bos, self.eos, self.sep, self.cls, self.mask, *self.sentinels)
