"""Every kind that exists, each put into a small model: what the conformance suite runs on.

Nothing here names a kind. A kind is found by discovery, its small values come from `examples()`, and it is placed into
the slot of its family in a decoder and in an encoder, wherever it can stand.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
from tests.conformance.memories import rows_of
from tests.conformance.wholes import LOOK, THINK, whole_models
from torch import Tensor
from torch.utils._pytree import tree_leaves

from anyformer.core import (
    EmbeddingSpec,
    Frame,
    Heads,
    HeadSpec,
    InitSpec,
    JoinSpec,
    MaskRule,
    Memory,
    Model,
    ModelSpec,
    NormSpec,
    PartSpec,
    PoolSpec,
    Position,
    PositionSpec,
    Site,
    Spec,
    State,
    Work,
    cost,
    decode,
    fork,
)
from anyformer.core.costs import Cost
from anyformer.core.discovery import discover
from anyformer.errors import SpecError
from anyformer.models import Block, Branch, Decoder, Encoder, EncoderDecoder, Stack
from anyformer.parts.combine.cross import Cross
from anyformer.parts.combine.unidirectional import Unidirectional
from anyformer.parts.joins.replace import Replace
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.mixers.gru import GRU

DIM, VOCAB, MAX_LEN, SOURCE = 32, 29, 48, 7
LENGTHS = (6, 14, 9)
"""Valid tokens of the rows of a padded batch."""
WORK = Work(batch=2, length=14, source=SOURCE)


@dataclass(frozen=True)
class Subject:
    """One kind in one model."""

    name: str
    spec: ModelSpec

    @cached_property
    def limits(self) -> dict[str, str]:
        return {key: why for _, spec in self.spec.walk() for key, why in spec.limits.items()}

    @property
    def causal(self) -> bool:
        return not isinstance(self.spec, Encoder)

    @cached_property
    def model(self) -> Model:
        return self.fresh()

    def fresh(self) -> Model:
        """In eval mode, with noise on every weight so that nothing is trivially zero or one."""
        model, rng = self.spec.build(seed=1), torch.Generator().manual_seed(2)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.1 * torch.randn(parameter.shape, generator=rng)
        return model.eval()

    @cached_property
    def in_training(self) -> Model:
        return self.fresh().train()

    @cached_property
    def in_bf16(self) -> Model:
        return self.fresh().bfloat16()

    @cached_property
    def mixes(self) -> bool:
        """Whether tokens meet: what looks at others must keep something of them, or cannot decode at all."""
        if "causal" in self.limits:
            return True
        state = self.state(1)
        before, frame = fork(state), Frame(positions=torch.zeros(1, 1, dtype=torch.long))
        with torch.no_grad():
            after = self.model(self.tokens(1, 1), frame, state).state
        return not all(map(torch.equal, tree_leaves(before), tree_leaves(after)))

    @cached_property
    def hidden(self) -> Tensor:
        """Hidden states of `tokens()` outside training, which many checks compare with. Not for equality of every bit:
        on a CPU without bf16, torch takes other kernels after the first product in bf16."""
        with torch.no_grad():
            return self.run(self.tokens())

    @cached_property
    def unpadded(self) -> list[tuple[Tensor, Tensor]]:
        """Hidden states and scores of the first `LENGTHS` tokens of each row in a batch of its own."""
        outputs = []
        with torch.no_grad():
            for row, length in enumerate(LENGTHS):
                frame = Frame(memory=rows_of(self.memory(3), torch.tensor([row])))
                outputs.append(self.hidden_and_scores(self.tokens()[row : row + 1, :length], frame))
        return outputs

    def hidden_and_scores(self, tokens: Tensor, frame: Frame) -> tuple[Tensor, Tensor]:
        out = self.model(tokens, frame, logits=False)
        return out.y, self.model.logits(out.y, out.frame or frame)

    @cached_property
    def shallow(self) -> "Subject":
        """One layer, in each half of a translator too; whole models as they are."""
        if self.name.startswith("whole"):
            return self
        spec = self.spec
        for path in spec.stack_paths:
            spec = spec.with_(f"{path}.stack.depth".removeprefix("."), 1)
        return self if spec == self.spec else Subject(self.name, spec)

    @cached_property
    def card(self) -> Cost:
        """What `WORK` costs, where every mask rule counts all pairs."""
        with all_pairs_count():
            return cost(self.spec, WORK).total

    def tokens(self, batch: int = 3, length: int = 14) -> Tensor:
        return torch.randint(0, VOCAB, (batch, length), generator=torch.Generator().manual_seed(3))

    def given(self, batch: int) -> Memory | Tensor:
        """What the encoder gets: a source where there is one, else something to look at for those who look."""
        rng = torch.Generator().manual_seed(4)
        if self.spec.needs_source:
            return torch.randint(0, VOCAB, (8, SOURCE), generator=rng)[:batch]
        return Memory(x=torch.randn(8, SOURCE, DIM, generator=rng)[:batch], valid=self.source_valid(batch))

    def memory(self, batch: int, model: Model | None = None) -> Memory:
        """The encoded source, computed once for all checks outside training. Row r does not depend on the batch."""
        if torch.is_grad_enabled() or (model is not None and model is not self.model):
            return self.encoded(batch, model or self.model)
        if batch not in self.memories:
            self.memories[batch] = self.encoded(batch, self.model)
        return self.memories[batch]

    @cached_property
    def memories(self) -> dict[int, Memory]:
        """The encoded source by the number of rows."""
        return {}

    def encoded(self, batch: int, model: Model) -> Memory:
        given = self.given(batch)
        if isinstance(given, Tensor):
            return model.encode(given, Frame(valid=self.source_valid(batch)))
        return given

    def source_valid(self, batch: int) -> Tensor:
        return torch.arange(SOURCE)[None] < torch.tensor([7, 5, 6, 7, 4, 7, 3, 7])[:batch, None]

    def run(self, tokens: Tensor, frame: Frame | None = None, **options: Any) -> Tensor:
        """Hidden states of every token."""
        model = options.pop("model", self.model)
        frame = frame or Frame(memory=self.memory(tokens.shape[0], model))
        return model(tokens, frame, options.pop("state", None), logits=options.pop("logits", False)).y

    def state(self, batch: int, max_len: int = MAX_LEN) -> State:
        return self.model.init_state(batch, max_len, self.memory(batch))


@contextmanager
def all_pairs_count() -> Iterator[None]:
    with ExitStack() as undo:
        for rule in (MaskRule, *MaskRule.kinds.values()):
            if "pairs" in vars(rule):
                undo.enter_context(mock.patch.object(rule, "pairs", lambda self, q, k: q * k))
        yield


def kinds(family: type[Spec]) -> Iterator[type[Spec]]:
    discover()
    yield from family.kinds.values()


class Slot(NamedTuple):
    """One example of a kind, for one shape of model. Nothing is built before it is placed."""

    kind: type[Spec]
    index: int
    shape: type[Decoder] | type[Encoder]

    @property
    def name(self) -> str:
        number = f"#{self.index}" if self.index else ""
        return f"{self.kind.family.__name__}/{self.kind.kind}{number}/{self.shape.kind}"

    @property
    def limits(self) -> set[str]:
        """The limits that the example itself declares."""
        return {limit for _, spec in self.kind.examples()[self.index].walk() for limit in spec.limits}


@cache
def slots() -> dict[str, Slot]:
    """Every example of every kind, third-party kinds too, in both shapes, by name."""
    return {slot.name: slot for family in HOSTS for kind in kinds(family) for slot in slots_of(kind)}


def slots_of(kind: type[Spec]) -> list[Slot]:
    return [Slot(kind, index, shape) for index in range(len(kind.examples())) for shape in (Decoder, Encoder)]


@cache
def wholes() -> dict[str, Subject]:
    """Whole models, by name."""
    return {
        f"whole/{name}": Subject(f"whole/{name}", spec)
        for name, spec in whole_models(vocab=VOCAB, dim=DIM, max_len=MAX_LEN)
    }


def names() -> list[str]:
    """What the suite runs on, for the ids of tests: known without building a model."""
    return [*slots(), *wholes()]


def writers() -> list[Any]:
    """Names of models that may be able to decode: decoders without a limit of their state, and whole models.

    The first example of a kind that can is in the fast suite, its variants in the slow one; so are initialisers, on
    which no step depends."""
    decoders = [slot for slot in slots().values() if slot.shape is Decoder and "state" not in slot.limits]
    first = {slot.kind: slot.name for slot in reversed(decoders) if slot.kind.family is not InitSpec}
    cases = [
        pytest.param(slot.name, marks=() if first.get(slot.kind) == slot.name else pytest.mark.slow)
        for slot in decoders
    ]
    return [*cases, *map(pytest.param, wholes())]


def writer_named(name: str) -> Subject:
    """The model of a name, built; skips the test if it cannot decode."""
    subject = subject_named(name)
    if not subject.causal or "state" in subject.limits:
        pytest.skip("does not decode")
    return subject


def subject_named(name: str) -> Subject:
    """The model of a name, built; skips the test if the kind cannot stand in that shape, but can in another."""
    if name in wholes():
        return wholes()[name]
    subject = placed(slots()[name])
    if isinstance(subject, str):
        subjects_of(slots()[name].kind)
        pytest.skip(subject)
    return subject


@cache
def placed(slot: Slot) -> Subject | str:
    """The first model in which the example can stand; if it can stand in none, why."""
    refusals = []
    for suffix, host in HOSTS[slot.kind.family](slot.kind.examples()[slot.index]):
        try:
            subject = Subject(slot.name + suffix, host(slot.shape))
            subject.run(subject.tokens(1, 4))  # builds it and runs it once
            return subject
        except SpecError as refusal:
            refusals.append(f"{slot.name}: {refusal}")
    return "\n".join(refusals)


def subjects_of(kind: type[Spec]) -> list[Subject]:
    """One kind, in every model in which it can stand, one at least."""
    results = [placed(slot) for slot in slots_of(kind)]
    subjects = [result for result in results if isinstance(result, Subject)]
    assert subjects or not results, "\n".join(map(str, results))
    return subjects


Host = Callable[[type[Decoder] | type[Encoder]], ModelSpec]


def _model(shape: type[Decoder] | type[Encoder], *branches: Branch, depth: int = 2, **fields: Any) -> ModelSpec:
    """Two layers, so that what the first leaves at padding or in a state can harm the second."""
    stack = Stack(blocks={"layer": Block(branches=branches)}, depth=depth)
    return shape(vocab=VOCAB, dim=DIM, max_len=MAX_LEN, stack=stack, **fields)


def _part(value: Any) -> Iterator[tuple[str, Host]]:
    """Alone; or looking at an encoder; or in one half of a translator, for those who need the other half, with a
    residual connection or, if the length changes, without."""
    yield "", lambda shape: _model(shape, Branch(part=value))
    yield "/cross", lambda shape: _model(shape, Branch(part=Cross(part=value)))
    yield "/translator", lambda shape: _translator(Branch(part=value), shape)
    yield "/changing", lambda shape: _translator(Branch(part=value, place="none", join=Replace()), shape)


def _translator(branch: Branch, shape: type[Decoder] | type[Encoder]) -> ModelSpec:
    halves: dict[Any, tuple[Branch, ...]] = {
        Encoder: (Branch(part=Unidirectional(part=GRU()), place="none", join=Replace()),),
        Decoder: (LOOK, Branch(part=Cross(part=Attention(heads=4)))),
    }
    halves[shape] = (branch,)
    encoder, decoder = (_model(half, *branches) for half, branches in halves.items())
    return EncoderDecoder(encoder=encoder, decoder=decoder)


def _norm(value: Any) -> Iterator[tuple[str, Host]]:
    branch = Branch(part=Attention(heads=4), norm=value)
    yield "", lambda shape: _model(shape, branch, exit_norm=value)
    yield "/qk", lambda shape: _model(shape, Branch(part=Attention(heads=4, kv_heads=2, qk_norm=value)))


def _join(value: Any) -> Iterator[tuple[str, Host]]:
    yield "", lambda shape: _model(shape, Branch(part=Attention(heads=4), join=value))


def _mask(value: Any) -> Iterator[tuple[str, Host]]:
    yield "", lambda shape: _model(shape, Branch(part=Attention(heads=4, mask=value)))


def _position(value: PositionSpec) -> Iterator[tuple[str, Host]]:
    doors = type(value.build(Site(dim=DIM), Heads(4, DIM // 4, 0.3)))
    inside = Branch(part=Attention(heads=4, position=value))
    if any(getattr(doors, door) is not getattr(Position, door) for door in ("rotate", "bias", "values")):
        yield "/inside", lambda shape: _model(shape, inside)
    else:
        yield "", lambda shape: _model(shape, LOOK, position=value)


def _embedding(value: Any) -> Iterator[tuple[str, Host]]:
    yield "", lambda shape: _model(shape, LOOK, depth=1, embedding=value)


def _head(value: Any) -> Iterator[tuple[str, Host]]:
    yield "", lambda shape: _model(shape, LOOK, depth=1, head=value)


def _pool(value: Any) -> Iterator[tuple[str, Host]]:
    head = {"kind": "classifier", "classes": 3, "pool": value}
    yield "", lambda shape: _model(shape, LOOK, depth=1, head=decode(HeadSpec, head))


def _init(value: Any) -> Iterator[tuple[str, Host]]:
    yield "", lambda shape: _model(shape, LOOK, THINK, depth=1, init=value)


HOSTS: dict[type[Spec], Callable[[Any], Iterator[tuple[str, Host]]]] = {
    PartSpec: _part,
    NormSpec: _norm,
    JoinSpec: _join,
    MaskRule: _mask,
    PositionSpec: _position,
    EmbeddingSpec: _embedding,
    HeadSpec: _head,
    PoolSpec: _pool,
    InitSpec: _init,
}
