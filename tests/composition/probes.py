"""The pieces that the checks of random models are made of."""

from dataclasses import fields, replace

import torch
from tests.composition.composed import CLOSE, Composed
from tests.composition.strategy import VOCAB
from tests.conformance.probes import near, pad
from torch import Tensor

from anyformer.core import Frame, ReadingMarks
from anyformer.core.fields import field_hints, range_of
from anyformer.errors import SpecError


def close(actual: Tensor, expected: Tensor) -> None:
    """Equal to 1e-7 of the largest value."""
    assert actual.shape == expected.shape
    near(actual, expected, CLOSE)


def in_chunks(composed: Composed, lengths: list[int]) -> None:
    """Calls with a state, one for each chunk, equal one call without."""
    state, at, pieces = composed.state(), 0, list[Tensor]()
    for tokens in composed.tokens.split(lengths, dim=1):
        positions = torch.arange(at, at + tokens.shape[1]).expand(tokens.shape[0], -1)
        out = composed.call(tokens, Frame(positions=positions), state)
        state, at = out.state, at + tokens.shape[1]
        pieces.append(out.y)
    close(torch.cat(pieces, dim=1), composed.parallel)


def padded(composed: Composed, left: bool) -> None:
    """Each row of a padded batch equals the row alone, in hidden states and behind the head."""
    memory, frame, laid = composed.memory(), *pad(composed.tokens, composed.lengths, left)
    for logits in (False, True):
        out = composed.call(laid, replace(frame, memory=memory), logits=logits)
        valid = (out.frame or frame).valid
        for row, alone in enumerate(composed.unpadded[logits]):
            close(out.y[row, valid[row]] if out.y.dim() == 3 else out.y[row], alone)


def counts_every_product(composed: Composed) -> bool:
    """False: a size of one, over which torch multiplies element by element, without counting it as a product."""
    sizes = [
        (getattr(spec, field.name), field.default)
        for _, spec in composed.spec.walk()
        for field in fields(spec)
        if spec.kind and range_of(field_hints(type(spec))[field.name]) is not None
    ]
    return not any(value == 1 != default for value, default in sizes)


def writes(composed: Composed) -> bool:
    """True: the head scores words, and a decoder that stands alone needs no encoder."""
    try:
        memory = composed.memory() if composed.spec.needs_source else None
        return composed.call(composed.tokens, Frame(memory=memory), logits=True).y.shape[-2:] == (
            composed.length,
            VOCAB,
        )
    except SpecError:
        return False


def greedy(composed: Composed, row: int, prompt: list[int], steps: int) -> tuple[int, ...]:
    """The most likely tokens, from calls without a state."""
    tokens, prefix = list(prompt), torch.tensor([len(prompt)])
    memory = composed.memory(slice(row, row + 1)) if composed.spec.needs_source else None
    for _ in range(steps):
        frame = Frame(memory=memory, marks=ReadingMarks(prefix=prefix))
        logits = composed.call(torch.tensor([tokens]), frame, logits=True).y
        tokens.append(int(logits[0, -1].argmax()))
    return tuple(tokens[len(prompt) :])
