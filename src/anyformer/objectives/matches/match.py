"""The base of everything inside the layers of a teacher that a student can learn to copy, beside its probabilities.

L = weight / M sum_m distance(student_m, teacher_g(m)),   g(m) = ceil(m N / M),   m = 1 .. M
M, N: the number of layers of the student and of the teacher. The layers are matched evenly over depth and the last with
the last: TinyBERT's uniform map (arXiv 1909.10351) where M divides N. A distance is a mean over the tokens of a row.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from anyformer.core import Frame, Linear, Memory, Model, ModelSpec, Out, Positive, Spec, State, WrappedModel, capture
from anyformer.core.module import taps_of
from anyformer.errors import SpecError, at
from anyformer.models.single import stack_modules_of, stacks_of
from anyformer.models.stack import reconstructs

_LENGTHS = 3, 2
"""Tokens of a source and of a target in the pass that finds out what there is to match; they differ, so that attention
to the source and to the target have different shapes."""


@dataclass(frozen=True, kw_only=True)
class Match(Spec):
    """Something inside the layers of a teacher that a student learns to copy."""

    by_name = True

    taps: ClassVar[str]
    """Name of the taps that are compared, within a layer; * for any."""

    weight: Positive = 1.0
    """Weight of the term beside those of the teacher's probabilities and of the labels."""

    def projection(self, ours: int, theirs: int) -> Linear | None:
        """A matrix from the width of the student to the teacher's that is trained along; None if none is needed."""
        return None

    def distance(self, ours: Tensor, theirs: Tensor, projection: Linear | None) -> Float[Tensor, "b t"]:
        """How far a value of the student is from the teacher's, for each token; 0 where both are equal."""
        raise NotImplementedError


class TapValue(NamedTuple):
    """The value of a tap in one call of a layer."""

    tap: str
    """Name of the tap within its layer."""
    value: Tensor


class StackCall(NamedTuple):
    """What the taps of a stack have seen in one call."""

    length: int
    """Number of tokens of each row, padding included."""
    valid: Tensor | None
    """False for padding [b t]; None without padding."""
    values: list[TapValue]
    """In the order of the layers."""


class TappedModel(WrappedModel):
    """A model with the values of taps in the last call of each of its stacks; gradients pass through them."""

    def __init__(self, inner: Model, taps: Sequence[str]):
        super().__init__(inner)
        self.taps = taps
        self.calls: dict[str, StackCall] = {}

    def forward(
        self, tokens: Tensor, frame: Frame = Frame(), state: State | None = None, *, logits: bool = True
    ) -> Out:
        with self._tapped([*self.stack_models()][-1], tokens, frame):
            return self.inner(tokens, frame, state, logits=logits)

    def encode(self, tokens: Tensor, frame: Frame = Frame()) -> Memory:
        with self._tapped(next(iter(self.stack_models())), tokens, frame):
            return self.inner.encode(tokens, frame)

    @contextmanager
    def _tapped(self, name: str, tokens: Tensor, frame: Frame) -> Iterator[None]:
        call = self.calls[name] = StackCall(tokens.shape[1], frame.valid, [])

        def keep(path: str, value: Tensor) -> None:  # `capture` itself keeps values without their gradients
            _, _, tap = path.split(".", 2)  # layers.NUMBER.TAP
            call.values.append(TapValue(tap, value))

        with ExitStack() as taps:
            stack = stack_modules_of(self.inner)[name].stack
            for glob in (f"layers.*.{tap}" for tap in self.taps):
                if taps_of(stack, glob):  # otherwise no value is kept, and the check below names the model
                    taps.enter_context(capture(stack, glob, edit=keep))
            yield


class Projections(Model):
    """The matrices from the widths of a student to its teacher's: trained and stored with the models of an objective,
    used by its loss alone."""

    def __init__(self, matrices: Mapping[str, Linear]):
        super().__init__()
        self.matrices = nn.ModuleDict(matrices)

    def matrix(self, name: str) -> Linear | None:
        """The matrix of this name; None if there is none."""
        if name not in self.matrices:
            return None
        return self.matrices[name]  # type: ignore[return-value]


def projections_between(matches: Sequence[Match], student: ModelSpec, teacher: ModelSpec) -> Projections | None:
    """A matrix for each match and stack that needs one; None if none does."""
    stacks = zip(student.stacks.values(), teacher.stacks.values(), strict=True)
    widths = [(ours.dim, theirs.dim) for ours, theirs in stacks]
    matrices = {
        _name(match, stack): matrix
        for match in matches
        for stack, pair in enumerate(widths)
        if (matrix := match.projection(*pair)) is not None
    }
    return Projections(matrices) if matrices else None


def distance_of_rows(
    match: Match, student: TappedModel, teacher: TappedModel, projections: Projections | None
) -> Float[Tensor, " b"]:
    """The distance of each row of the last calls of both models: a mean over its tokens, the layers and the stacks."""
    means = []
    for stack, (ours, theirs) in enumerate(zip(student.calls.values(), teacher.calls.values(), strict=True)):
        matrix = projections.matrix(_name(match, stack)) if projections else None
        for one, other in _pairs(match, ours, theirs):
            means.append(_mean_over_tokens(match.distance(one, other.detach(), matrix), ours.valid))
    return torch.stack(means).mean(0)


def uniform_map(layers: int, of: int) -> list[int]:
    """For each layer of a student the layer of its teacher, which has `of`, counted from 0: ceil(m N / M) from 1."""
    return [-(-layer * of // layers) - 1 for layer in range(1, layers + 1)]


def check_matches(matches: Sequence[Match], student: ModelSpec, teacher: ModelSpec) -> None:
    """Raises SpecError if one of the two models has nothing to match, or the other nothing that fits it."""
    if len(student.stacks) != len(teacher.stacks):
        ours, theirs = " and ".join(student.stacks), " and ".join(teacher.stacks)
        raise SpecError(f"matches: the student has {ours}, the teacher {theirs}. Use two models of the same shape.")
    models = []
    for name, spec in (("student", student), ("teacher", teacher)):
        if any(stack.exits is not None and stack.exits.threshold < 1.0 for stack in stacks_of(spec).values()):
            raise SpecError(f"matches: rows leave the {name} before its last layer. Set model.exits.threshold=1.")
        models.append(_read_on_meta(spec, [match.taps for match in matches]))
        if reconstructs(models[-1]):
            raise SpecError(f"matches: a reversible {name} gives no values of its layers. Use residual=plain.")
    for place, match in enumerate(matches):
        with at(f"matches[{place}]"):
            _check_match(match, *models)


def _check_match(match: Match, student: TappedModel, teacher: TappedModel) -> None:
    for (name, ours), theirs in zip(student.calls.items(), teacher.calls.values(), strict=True):
        where = f" of the {name}" if name else ""
        counts = [[*map(len, _by_tap(match, call).values())] for call in (ours, theirs)]
        for model, layers in zip(("student", "teacher"), counts, strict=True):
            if not layers:
                raise SpecError(f"{match.kind}: no layer{where} of the {model} has any. Leave it out.")
        if len(counts[0]) != len(counts[1]):
            raise SpecError(f"{match.kind}: a layer{where} of the student has {len(counts[0])}, of the teacher "
                            f"{len(counts[1])}. Use layers of the same kind, or leave it out.")  # fmt: skip
        for one, other in _pairs(match, ours, theirs):
            if one.shape[-1] != other.shape[-1] and match.projection(one.shape[-1], other.shape[-1]) is None:
                raise SpecError(f"{match.kind}: the student's{where} are of other tokens than the teacher's. Use "
                                f"layers of the same kind, or leave it out.")  # fmt: skip
            if not one.shape[-2] == other.shape[-2] == ours.length:
                raise SpecError(f"{match.kind}: a layer{where} changes the number of tokens. Leave it out.")


@torch.no_grad()
def _read_on_meta(spec: ModelSpec, taps: Sequence[str]) -> TappedModel:
    """A model without weights after one call of each of its stacks."""
    model = TappedModel(spec.build(device="meta").eval(), taps)
    source, target = (torch.zeros(1, length, dtype=torch.long, device="meta") for length in _LENGTHS)
    frame = Frame(memory=model.encode(source)) if spec.needs_source else Frame()
    model(target, frame, logits=False)
    return model


def _pairs(match: Match, student: StackCall, teacher: StackCall) -> Iterator[tuple[Tensor, Tensor]]:
    """The values to compare, layer by layer. Several in a layer (attention to the text and to the source) are matched
    in their order."""
    for ours, theirs in zip(_by_tap(match, student).values(), _by_tap(match, teacher).values(), strict=True):
        for value, layer in zip(ours, uniform_map(len(ours), len(theirs)), strict=True):
            yield value, theirs[layer]


def _by_tap(match: Match, call: StackCall) -> dict[str, list[Tensor]]:
    """The values of a match by the name of their tap, each in the order of the layers."""
    values = dict[str, list[Tensor]]()
    for tap, value in call.values:
        if fnmatch(tap, match.taps):
            values.setdefault(tap, []).append(value)
    return values


def _mean_over_tokens(each: Float[Tensor, "b t"], valid: Tensor | None) -> Float[Tensor, " b"]:
    if valid is None:
        return each.mean(1)
    return each.where(valid, 0.0).sum(1) / valid.sum(1).clamp(min=1)


def _name(match: Match, stack: int) -> str:
    return f"{match.kind}/{stack}"
