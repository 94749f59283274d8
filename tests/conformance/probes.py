"""The probes that the checks are made of: lay a batch out in some way, run it, compare."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from tests.conformance.memories import rows_of
from tests.conformance.subjects import DIM, LENGTHS, SOURCE, Subject
from torch import Tensor

from anyformer.core import Embedding, Frame, Memory, Model, ReadingMarks, State

CLOSE = 1e-5


def near(a: Tensor, b: Tensor, tolerance: float = CLOSE) -> None:
    scale = max(1.0, b.abs().max().item())
    assert (a - b).abs().max().item() <= tolerance * scale


def with_input(subject: Subject) -> tuple[Tensor, Tensor]:
    """The output, and the token vectors that it was made from."""
    seen: list[Tensor] = []
    words = next(module for module in subject.model.modules() if isinstance(module, Embedding))
    handle = words.register_forward_hook(lambda _module, _inputs, out: seen.append(out))
    memory = subject.memory(3)
    seen.clear()
    y = subject.run(subject.tokens(), Frame(memory=memory))
    handle.remove()
    return y, seen[0]


def padded(subject: Subject, left: bool) -> None:
    frame, laid = pad(subject.tokens(), LENGTHS, left)
    with torch.no_grad():
        memory = subject.memory(3)
        together = subject.hidden_and_scores(laid, replace(frame, memory=memory))
        for row, alone in enumerate(subject.unpadded):
            for mine, theirs in zip(together, alone, strict=True):
                per_token = mine.dim() == 3
                near(mine[row, frame.valid[row]] if per_token else mine[row], theirs[0])


def packed_pairs(subject: Subject) -> None:
    """A target finds in a row of several sources what it finds in its own alone."""
    tokens, given, targets, sources = subject.tokens(2, 12), subject.given(2), (5, 7), (3, SOURCE - 3)
    source = given if isinstance(given, Tensor) else given.x
    with torch.no_grad():
        packed = subject.run(tokens, replace(pack(targets), memory=_left(subject, source, pack(sources))))
        pairs = zip(tokens.split(targets, dim=1), source.split(sources, dim=1), strict=True)
        alone = [subject.run(target, Frame(memory=_left(subject, own, Frame()))) for target, own in pairs]
    near(packed, torch.cat(alone, dim=1))


def pack(lengths: Sequence[int]) -> Frame:
    """Two rows of documents of these lengths."""
    segments = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    positions = torch.cat([torch.arange(length) for length in lengths])
    return Frame(segments=segments.expand(2, -1), positions=positions.expand(2, -1))


def _left(subject: Subject, source: Tensor, frame: Frame) -> Memory:
    if subject.spec.needs_source:
        return subject.model.encode(source, frame)
    return Memory(x=source, segments=frame.segments)


def pad(tokens: Tensor, lengths: Sequence[int], left: bool) -> tuple[Frame, Tensor]:
    width, laid = tokens.shape[1], torch.zeros_like(tokens)
    valid = torch.zeros_like(tokens, dtype=torch.bool)
    positions = torch.zeros_like(tokens)
    for row, length in enumerate(lengths):
        place = slice(width - length, width) if left else slice(0, length)
        laid[row, place], valid[row, place] = tokens[row, :length], True
        positions[row, place] = torch.arange(length)
    return Frame(valid=valid, positions=positions if left else None), laid


def rows_alone(subject: Subject, training: bool) -> None:
    tokens, memory, order = subject.tokens(), subject.memory(3), torch.tensor([2, 0, 1])
    model = subject.in_training if training else subject.model
    shuffled = rows_of(memory, order)
    with torch.no_grad():
        together = subject.run(tokens, Frame(memory=memory), model=model) if training else subject.hidden
        near(subject.run(tokens[order], Frame(memory=shuffled), model=model), together[order])
        near(subject.run(tokens[1:2], Frame(memory=row_of(memory, 1)), model=model), together[1:2])


def row_of(memory: Memory, row: int) -> Memory:
    return rows_of(memory, torch.tensor([row]))


def shorter_source(subject: Subject) -> Memory:
    """Row 1 of the source, which is padded from 5 on, cut there."""
    given = subject.given(3)
    return Memory(x=given.x[1:2, :5]) if isinstance(given, Memory) else subject.model.encode(given[1:2, :5], Frame())


def low_memory(subject: Subject, model: Model) -> Memory:
    """In the precision of a model that computes in bfloat16."""
    memory = subject.memory(3, model)
    return memory if subject.spec.needs_source else replace(memory, x=memory.x.bfloat16())


def prefix_marks(prefix: Tensor | None) -> ReadingMarks | None:
    return None if prefix is None else ReadingMarks(prefix=prefix)


def step(subject: Subject, tokens: Tensor, at: int, state: State, prefix: Tensor | None = None) -> tuple[Tensor, State]:
    """The encoder's output is not handed in again: what is needed of it is in the state."""
    positions = torch.arange(at, at + tokens.shape[1]).expand(tokens.shape[0], -1)
    out = subject.model(tokens, Frame(positions=positions, marks=prefix_marks(prefix)), state, logits=False)
    return out.y, out.state


def in_chunks(subject: Subject, lengths: list[int], prefix: Tensor | None = None) -> None:
    tokens, state, at, pieces = subject.tokens(), subject.state(3), 0, []
    with torch.no_grad():
        for length in lengths:
            y, state = step(subject, tokens[:, at : at + length], at, state, prefix)
            pieces.append(y)
            at += length
        whole = subject.hidden if prefix is None else read_whole(subject, prefix)
        near(torch.cat(pieces, dim=1), whole)


def read_whole(subject: Subject, prefix: Tensor) -> Tensor:
    """Hidden states of all tokens at once, with a prefix for parts that read one in both directions."""
    with torch.no_grad():
        return subject.run(subject.tokens(), Frame(memory=subject.memory(3), marks=prefix_marks(prefix)))


def ragged(subject: Subject, left: bool, whole: Tensor, lengths: Tensor) -> None:
    """Prompts of these lengths, padded on one side, then three steps, each row at its own place: as in `whole`."""
    tokens = subject.tokens()
    frame, laid = pad(tokens[:, :11], lengths.tolist(), left)
    positions = torch.arange(11).expand(3, -1) if frame.positions is None else frame.positions
    frame = replace(frame, positions=positions, marks=prefix_marks(lengths))
    following = lengths[:, None] + torch.arange(3)
    with torch.no_grad():
        state = subject.model(laid, frame, subject.state(3), logits=False).state
        for step in range(3):
            column = following[:, step : step + 1]
            out = subject.model(tokens.gather(1, column), Frame(positions=column), state, logits=False)
            state = out.state
            near(out.y, whole.gather(1, column[..., None].expand(-1, -1, DIM)))


def unpadded_memory(subject: Subject, model: Model) -> Memory:
    if subject.spec.needs_source:
        return model.encode(torch.zeros(2, SOURCE, dtype=torch.long), Frame())
    return Memory(x=torch.randn(2, SOURCE, DIM))
