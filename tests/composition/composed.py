"""A random model with the batch that the checks run on: float64, noise on every weight, one length."""

from dataclasses import dataclass, replace
from functools import cached_property
from random import Random

import torch
from tests.composition.strategy import VOCAB
from tests.conformance.probes import row_of
from tests.conformance.subjects import all_pairs_count
from torch import Tensor

from anyformer.core import Cost, Frame, Memory, Model, ModelSpec, Out, State, Work, cost

ROWS, SOURCE, CLOSE = 3, 7, 1e-7


@dataclass(frozen=True)
class Composed:
    """One random model; the seed decides the length and where sequences are cut."""

    spec: ModelSpec
    seed: int

    @cached_property
    def length(self) -> int:
        return self.rng().randint(9, 17)

    def rng(self) -> Random:
        return Random(self.seed)

    @cached_property
    def limits(self) -> set[str]:
        return {limit for _, spec in self.spec.walk() for limit in spec.limits}

    @cached_property
    def model(self) -> Model:
        return self.fresh()

    def fresh(self) -> Model:
        """In eval mode, with noise on every weight so that nothing is zero or one."""
        model, rng = self.spec.build(seed=1).double(), torch.Generator().manual_seed(2)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.1 * torch.randn(parameter.shape, generator=rng, dtype=torch.float64)
        return model.eval()

    @cached_property
    def plain(self) -> Model:
        """As it is built, in float32."""
        return self.spec.build(seed=5).eval()

    @cached_property
    def card(self) -> Cost:
        """Where every mask counts all pairs, as torch's counter does."""
        with torch.enable_grad(), all_pairs_count():
            return cost(self.spec, self.work).total

    @property
    def work(self) -> Work:
        return Work(batch=2, length=self.length, source=SOURCE)

    @cached_property
    def tokens(self) -> Tensor:
        return torch.randint(0, VOCAB, (ROWS, self.length), generator=torch.Generator().manual_seed(3))

    @cached_property
    def source(self) -> Tensor:
        """Tokens for an encoder, or vectors for a decoder that stands alone."""
        rng = torch.Generator().manual_seed(4)
        if self.spec.needs_source:
            return torch.randint(0, VOCAB, (ROWS, SOURCE), generator=rng)
        return torch.randn(ROWS, SOURCE, self.spec.memory_width or 1, generator=rng, dtype=torch.float64)

    @cached_property
    def parallel(self) -> Tensor:
        """Hidden states of every token from one call without a state, which many checks compare with."""
        return self.run(self.tokens)

    @cached_property
    def lengths(self) -> list[int]:
        """Valid tokens of the rows of a padded batch."""
        return [self.length, self.rng().randint(1, self.length), self.length - 2]

    @cached_property
    def unpadded(self) -> dict[bool, list[Tensor]]:
        """Hidden states (False) and the head's output (True) of the first `lengths` tokens of each row alone."""
        memory, outputs = self.memory(), dict[bool, list[Tensor]]({False: [], True: []})
        for row, length in enumerate(self.lengths):
            frame = Frame(memory=row_of(memory, row))
            for logits, rows in outputs.items():
                rows.append(self.run(self.tokens[row : row + 1, :length], frame, logits=logits)[0])
        return outputs

    def memory(self, rows: slice = slice(None), frame: Frame | None = None, model: Model | None = None) -> Memory:
        """The encoder's output for these rows of the source."""
        return self.encode(self.source[rows], frame or Frame(), model)

    def encode(self, source: Tensor, frame: Frame, model: Model | None = None) -> Memory:
        model = model or self.model
        if self.spec.needs_source:
            return model.encode(source, frame)
        dtype = next(model.parameters()).dtype
        return Memory(x=source.to(dtype), valid=frame.valid, segments=frame.segments)

    def call(self, tokens: Tensor, frame: Frame, state: State | None = None, *, logits: bool = False) -> Out:
        return self.model(tokens, frame, state, logits=logits)

    def run(self, tokens: Tensor, frame: Frame | None = None, *, logits: bool = False) -> Tensor:
        """Hidden states (or the head's output) of every token, from one call without a state."""
        frame = frame or Frame()
        if frame.memory is None:
            frame = replace(frame, memory=self.memory(slice(tokens.shape[0])))
        return self.call(tokens, frame, logits=logits).y

    def state(self, memory: Memory | None = None) -> State:
        memory = memory or self.memory()
        return self.model.init_state(memory.x.shape[0], self.length + 4, memory)
