"""GPT's input transformations, and BERT's: tasks of any form become plain rows of tokens.

gpt     <bos> x <cls>       <bos> premise <sep> hypothesis <cls>          (GPT, figure 1: start, delimiter, extract)
bert    <cls> x <sep>       <cls> premise <sep> hypothesis <sep>, types 0 and 1          (arXiv 1810.04805)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from anyformer.core import Count, Frame, Spec
from anyformer.data.batching.batch import Batch, RowTensors
from anyformer.data.tokenizers.vocabulary import Vocabulary
from anyformer.errors import DataError, SpecError

Ids = Sequence[int]
SPARE = 3
"""Special tokens that a pair needs."""


class InputRow(NamedTuple):
    """A sequence as the model reads it, and its token types; without any, all are 0."""

    ids: list[int]
    types: Sequence[int] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class GroupedRows(RowTensors):
    """Several rows for each text: both orders of a pair, or one row for each answer."""

    tokens: Int[Tensor, "b k t"]
    valid: Bool[Tensor, "b k t"]
    types: Int[Tensor, "b k t"]
    offered: Bool[Tensor, "b k"] | None = None
    """The answers that exist."""


@dataclass(frozen=True, kw_only=True)
class Layout(Spec):
    """How texts become rows of tokens."""

    form: Literal["gpt", "bert"] = "gpt"
    """Where the special tokens stand: gpt reads the answer from the last one, bert from the first."""
    longest: Count | None = None
    """Longest row, special tokens included; texts are cut at their ends, of a pair always the longer one."""

    def check(self) -> None:
        if self.longest is not None and self.longest <= SPARE:
            raise SpecError(f"longest={self.longest} leaves no room for a text beside {SPARE} special tokens.")

    def one(self, text: Ids, words: Vocabulary) -> InputRow:
        """A single text."""
        (text,), (start, end) = self._cut(text), self._ends(words)
        return InputRow([start, *text, end])

    def two(self, first: Ids, second: Ids, words: Vocabulary) -> InputRow:
        """A pair in this order: premise and hypothesis, context and answer."""
        (first, second), (start, end) = self._cut(first, second), self._ends(words)
        types = [0] * (len(first) + 2) + [1] * (len(second) + 1)
        return InputRow([start, *first, words.sep, *second, end], types)

    def both(self, first: Ids, second: Ids, words: Vocabulary) -> tuple[InputRow, InputRow]:
        """A pair that has no order, such as two sentences to be compared: each way once."""
        return self.two(first, second, words), self.two(second, first, words)

    def choices(self, context: Ids, answers: Sequence[Ids], words: Vocabulary) -> list[InputRow]:
        """The context with each of its answers."""
        return [self.two(context, answer, words) for answer in answers]

    def _ends(self, words: Vocabulary) -> tuple[int, int]:
        return (words.bos, words.cls) if self.form == "gpt" else (words.cls, words.sep)

    def _cut(self, *texts: Ids) -> tuple[Ids, ...]:
        if self.longest is None:
            return texts
        room, lengths = self.longest - len(texts) - 1, [len(text) for text in texts]
        while sum(lengths) > room:
            lengths[lengths.index(max(lengths))] -= 1
        return tuple(text[:length] for text, length in zip(texts, lengths, strict=True))


def texts(batch: Batch, words: Vocabulary, objective: str) -> list[list[int]]:
    """The rows of a batch as lists of ids, without padding and special tokens."""
    if batch.shared:
        raise DataError(
            f'{objective} needs one text in each row, but several are packed into one. Set data.packing = "bucket".'
        )
    return _unpad(batch.tokens, words)


def choice_texts(batch: Batch, words: Vocabulary, objective: str) -> list[list[list[int]]]:
    """The answers of each row as lists of ids; an empty answer is none."""
    choices = batch.labels.choices
    if choices is None:
        raise DataError(
            f"{objective} needs answers to choose from, and these data have none. Set data.source.choices to the field "
            f"of a list of answers."
        )
    return [_unpad(answers, words) for answers in choices]


def _unpad(tokens: Tensor, words: Vocabulary) -> list[list[int]]:
    ends = {words.pad, words.bos, words.eos, words.sep, words.cls}  # special ids never come from text
    return [[token for token in row if token not in ends] for row in tokens.tolist()]


def lay_groups(groups: Sequence[Sequence[InputRow]], words: Vocabulary) -> Batch:
    """As many rows for each text, in `Batch.inputs`; the batch itself has the first row of each text."""
    flat = lay([row for group in groups for row in group], words)
    assert flat.frame.valid is not None and flat.frame.types is not None
    several = (len(groups), len(groups[0]) if groups else 1)
    tokens, valid, types = (each.unflatten(0, several) for each in (flat.tokens, flat.frame.valid, flat.frame.types))
    inputs = GroupedRows(tokens=tokens, valid=valid, types=types)
    return Batch(tokens=tokens[:, 0], frame=Frame(valid=valid[:, 0], types=types[:, 0]), inputs=inputs)


def flat(batch: Batch) -> Batch:
    """The rows of all texts, one below the other [b k, t]."""
    groups = batch.inputs_as(GroupedRows)
    frame = Frame(valid=groups.valid.flatten(0, 1), types=groups.types.flatten(0, 1))
    return Batch(tokens=groups.tokens.flatten(0, 1), frame=frame)


def lay_texts(batch: Batch, words: Vocabulary, layout: Layout, objective: str) -> Batch:
    """Each text of a batch with its special tokens, padded as in the data: batches of one shape keep one shape."""
    rows = [layout.one(text, words) for text in texts(batch, words, objective)]
    return lay(rows, words, len(layout.one([words.pad] * batch.tokens.shape[1], words).ids))


def lay(rows: Sequence[InputRow], words: Vocabulary, least: int = 1) -> Batch:
    """Rows of any lengths, padded on the right, at least to this width; a rank's share of the last batch may have no
    rows."""
    width = max([least, *(len(row.ids) for row in rows)])
    tokens, valid = _grid([row.ids for row in rows], width, words.pad)
    types, _ = _grid([row.types for row in rows], width, 0)
    return Batch(tokens=tokens, frame=Frame(valid=valid, types=types))


def _grid(lists: Sequence[Ids], width: int, pad: int) -> tuple[Tensor, Tensor]:
    """Lists of numbers as the rows of a tensor, padded on the right, and a mask of the places that they fill."""
    lengths = torch.tensor([len(each) for each in lists], dtype=torch.long)
    filled = torch.arange(width) < lengths[:, None]
    grid = torch.full((len(lists), width), pad)
    grid[filled] = torch.tensor([number for each in lists for number in each], dtype=torch.long)
    return grid, filled
