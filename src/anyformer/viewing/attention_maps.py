"""Attention weights of every layer and head of a model on a text.

For parts that mix tokens without attention weights (recurrence, convolution, state space) the influence |dy_i/dx_j| is
computed instead. Of a long text only the weights between its first tokens are stored, with summaries of all tokens.
"""

import math
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from anyformer.analysis.head_roles import HeadRole, head_roles
from anyformer.analysis.influence import distance, entropy, influence, mixes
from anyformer.core import Frame, Model, ModelSpec, capture
from anyformer.core.module import taps_of
from anyformer.models.single import stack_modules_of

Measure = Literal["attention", "influence"]
MOST_TOKENS = 128
"""Maximum number of tokens for which all pairs are stored, and for which an influence is computed."""
MOST_NUMBERS = 1 << 21
"""Maximum number of weights that are stored for one stack."""
OVERVIEW = 48
"""Maximum side of the reduced picture of a whole matrix."""
PATTERNS = "*.pattern"
"""Taps that carry attention weights [b h t s]."""
WHOLE = "all"
"""Label of the sheet for a whole stack."""


@dataclass(frozen=True, eq=False)
class PartWeights:
    """The weights of every head of one part."""

    label: str
    """The layer, counted from 1, or `all`."""
    measure: Measure
    shape: tuple[int, int]
    """Rows and columns of the full matrix."""
    weights: Float[Tensor, "h n m"]
    """Weights between the first tokens."""
    overview: Float[Tensor, "h p q"]
    """Weights between all tokens, averaged over blocks of rows and summed over blocks of columns."""
    entropy: Float[Tensor, " h"]
    distance: Float[Tensor, " h"] | None
    """Mean distance of each head in tokens; None if rows and columns are not the same tokens."""
    roles: tuple[HeadRole | None, ...] | None = None
    """Role of each attention head; None if rows and columns are not the same tokens."""
    slots: bool = False
    """Whether the columns are a fixed number of mixtures of tokens instead of tokens."""
    directions: tuple[int, int] | None = None
    """For an influence: number of output directions that were used, and number of all directions."""


@dataclass(frozen=True, eq=False)
class StackWeights:
    """The weights of all parts of one stack."""

    name: str
    """encoder, decoder or cross."""
    length: int
    """Number of query tokens (rows)."""
    width: int
    """Number of key tokens (columns)."""
    sheets: tuple[PartWeights, ...]


@dataclass(frozen=True, eq=False)
class _Call:
    """One recorded call of a part or of a whole stack, which can be repeated with other inputs."""

    stack: str
    label: str
    part: nn.Module
    x: Tensor
    frame: Frame
    sheets: tuple[PartWeights, ...] = ()
    """Attention weights that were captured during the call."""

    def of_tokens(self, x: Tensor) -> Tensor:
        """The output as a function of the input, for any batch size."""
        y: Tensor = self.part(x, self.frame.expand(len(x))).y
        return y

    def of_memory(self, x: Tensor) -> Tensor:
        """The output as a function of the encoder's output."""
        frame, rows = self.frame.expand(len(x)), self.x.expand(len(x), -1, -1)
        assert frame.memory is not None
        y: Tensor = self.part(rows, replace(frame, memory=replace(frame.memory, x=x))).y
        return y

    def looks_across(self) -> bool:
        """Whether the output depends on the encoder's output."""
        if self.frame.memory is None:
            return False
        with torch.enable_grad():
            memory = self.frame.memory.x.detach().clone().requires_grad_()
            y = self.of_memory(memory)
            return y.requires_grad and torch.autograd.grad(y.sum(), memory, allow_unused=True)[0] is not None


@torch.no_grad()
def looks(
    spec: ModelSpec, model: Model, tokens: Sequence[int], source: Sequence[int] | None = None
) -> list[StackWeights]:
    """The weights of every stack on `tokens`, and on `source` if the model has an encoder and a decoder.

    If an influence must be computed, only the first tokens are read; `StackWeights.length` is their number.
    """
    model.eval()
    stack_name = "decoder" if spec.decodes else "encoder"
    calls, entries = _read(model, stack_name, tokens, source)
    across = {id(call) for call in calls if call.looks_across()}
    silent = [call for call in calls if not call.sheets and (id(call) in across or mixes(call.of_tokens, call.x))]
    if (silent or not any(call.sheets for call in calls)) and max(len(tokens), len(source or ())) > MOST_TOKENS:
        return looks(spec, model, tokens[:MOST_TOKENS], None if source is None else source[:MOST_TOKENS])
    slots, sheets_by_stack = _slots(model, stack_name, source is not None), dict[str, list[PartWeights]]()
    for call in calls:
        crosses = id(call) in across
        sheets = call.sheets or ((_influence(call, crosses),) if call in silent else ())
        for sheet in sheets:
            sheet = replace(sheet, slots=slots.get((call.stack, sheet.label), False))
            sheet = replace(sheet, distance=None, roles=None) if crosses or sheet.slots else sheet
            sheets_by_stack.setdefault("cross" if crosses else call.stack, []).append(sheet)
    for name, entry in entries.items():
        if name not in sheets_by_stack or any(call.stack == name and id(call) not in across for call in silent):
            sheets_by_stack.setdefault(name, []).append(_influence(entry, across=False))
    lengths = {"encoder": len(source or tokens), "decoder": len(tokens), "cross": len(tokens)}
    widths = {**lengths, "cross": len(source or ())}
    return [
        StackWeights(name, lengths[name], widths[name], _fitting(sheets_by_stack[name]))
        for name in lengths
        if name in sheets_by_stack
    ]


@torch.no_grad()
def tapped(
    spec: ModelSpec, model: Model, tokens: Sequence[int], source: Sequence[int] | None, name: str, label: str
) -> dict[str, list[Tensor]]:
    """The captured tensors of every tap of the part with this stack name and layer label."""
    calls, _ = _read(model, "decoder" if spec.decodes else "encoder", tokens, source)
    for call in calls:
        if call.label == label and call.sheets and name == ("cross" if call.looks_across() else call.stack):
            with capture(call.part) as seen:
                call.part(call.x, call.frame)
            return seen
    return {}


def _read(
    model: Model, stack_name: str, tokens: Sequence[int], source: Sequence[int] | None
) -> tuple[list[_Call], dict[str, _Call]]:
    """Runs the model, and returns the call of every part in order and the call of every stack by name."""
    calls, entries, turns = list[_Call](), dict[str, _Call](), list[tuple[str, str]]()
    taps = capture(model, PATTERNS) if taps_of(model, PATTERNS) else nullcontext(dict[str, list[Tensor]]())
    with taps as seen, ExitStack() as undo:

        def leave(part: nn.Module, inputs: Any, _out: Any) -> None:
            stack, label = turns.pop(0)
            # With several attentions in one part their orientation is unknown: one may read in reverse.
            patterns = next(iter(seen.values())) if len(seen) == 1 else []
            shown = [pattern[0].float() for pattern in patterns if pattern.dim() == 4]
            seen.clear()  # one layer at a time: the weights of all layers of a long text need too much memory
            labels = [label] if len(shown) == 1 else [f"{label}.{number + 1}" for number in range(len(shown))]
            ids = source if stack == "encoder" and source is not None else tokens
            sheets = tuple(_sheet(name, "attention", weights, ids) for name, weights in zip(labels, shown, strict=True))
            calls.append(_Call(stack, label, part, inputs[0].detach(), inputs[1], sheets))

        def enter(stack: Any, inputs: Any, name: str) -> None:
            turns[:] = [(name, str(layer + 1)) for layer, block in enumerate(stack.calls()) for _ in block.branches]
            entries[name] = _Call(name, WHOLE, stack, inputs[0].detach(), inputs[1])

        for name, single in stack_modules_of(model).items():
            stack = single.stack
            undo.callback(stack.register_forward_pre_hook(partial(enter, name=name or stack_name)).remove)
            branches = (branch for block in stack.calls() for branch in block.get_submodule("branches").children())
            for part in dict.fromkeys(branch.get_submodule("part") for branch in branches):
                undo.callback(part.register_forward_hook(leave).remove)  # runs at each call of a shared part
        device, frame = next(model.parameters()).device, Frame()
        if source is not None:
            frame = Frame(memory=model.encode(torch.tensor([list(source)], device=device), Frame()))
        model(torch.tensor([list(tokens)], device=device), frame, logits=False)
    return calls, entries


def _slots(model: Model, stack_name: str, pair: bool) -> dict[tuple[str, str], bool]:
    """Which sheets have columns that are not tokens: their number does not grow with the length of the text."""
    few, more = (_read(model, stack_name, [0] * count, [0] * count if pair else None)[0] for count in (2, 3))
    return {
        (call.stack, one.label): other.shape[1] - one.shape[1] != 1
        for call, again in zip(few, more, strict=True)
        for one, other in zip(call.sheets, again.sheets, strict=True)
    }


def _influence(call: _Call, across: bool) -> PartWeights:
    memory = call.frame.memory
    measured = influence(call.of_memory, memory.x.detach()) if across and memory else influence(call.of_tokens, call.x)
    sheet = _sheet(call.label, "influence", measured.norms[None])
    return replace(sheet, directions=(measured.directions, measured.of))


def _sheet(label: str, measure: Measure, weights: Float[Tensor, "h t s"], tokens: Sequence[int] = ()) -> PartWeights:
    rows, columns = weights.shape[1:]
    small = F.adaptive_avg_pool2d(weights, (min(rows, OVERVIEW), min(columns, OVERVIEW)))
    return PartWeights(
        label=label,
        measure=measure,
        shape=(rows, columns),
        weights=weights[:, :MOST_TOKENS, :MOST_TOKENS].cpu().clone(),
        overview=(small * (columns / small.shape[-1])).cpu(),
        entropy=entropy(weights).cpu(),
        distance=distance(weights).cpu() if rows == columns else None,
        roles=tuple(head_roles(weights, tokens)) if rows == columns == len(tokens) else None,
    )


def _fitting(sheets: Sequence[PartWeights]) -> tuple[PartWeights, ...]:
    """The sheets of a stack, with weights of fewer tokens if the stack has very many heads."""
    most = math.isqrt(MOST_NUMBERS // sum(len(sheet.weights) for sheet in sheets))
    return tuple(replace(sheet, weights=sheet.weights[:, :most, :most].contiguous()) for sheet in sheets)
