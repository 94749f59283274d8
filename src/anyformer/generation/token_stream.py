"""What comes of a batch while it is written: some tokens of each request, until it has said enough."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from anyformer.generation.decode_loop import Pen

Finish = Literal["stop", "length"]
Watch = Callable[[int, Sequence[int]], bool]
"""(request, its new tokens) -> has it said enough? Asked before they are given out."""


class Chunk(NamedTuple):
    """Some more tokens of a request."""

    row: int
    """Which of the requests."""
    tokens: tuple[int, ...]
    finish: Finish | None = None
    """Why it ended; None: there is more to come."""


def chunks(pen: Pen, limits: Mapping[int, int], stop: frozenset[int], watch: Watch | None) -> Iterator[Chunk]:
    """Until all are done. `limits`: request -> how many tokens it may get, in the order of the batch."""
    left, places = dict(limits), dict(zip(limits, range(len(limits)), strict=True))
    while True:
        columns = pen.write(min(left[row] for row in places))
        kept = []
        for row, place in places.items():
            chunk = _cut(row, [column[place] for column in columns], left[row], stop)
            if watch is not None and watch(row, chunk.tokens):
                chunk = chunk._replace(finish="stop")
            left[row] -= len(chunk.tokens)
            if chunk.finish is None:
                kept.append(row)
            yield chunk
        if not kept:
            return
        places = dict(zip(kept, pen.keep([places[row] for row in kept]), strict=True))


def _cut(row: int, tokens: list[int], left: int, stop: frozenset[int]) -> Chunk:
    """Up to the first stopping token, and not more than may be written."""
    for index, token in enumerate(tokens[:left]):
        if token in stop:
            return Chunk(row, tuple(tokens[:index]), "stop")
    return Chunk(row, tuple(tokens[:left]), "length" if len(tokens) >= left else None)
