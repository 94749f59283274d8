"""Decoding steps on a CPU, traced and replayed without the Python between torch calls once a shape occurs often.

`traced_step(model)` equals `eager_step` of the model. Measured in docs/experiments.md, "Traced steps on a CPU".
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_structure

from anyformer.core import Model, State
from anyformer.generation.accelerate.cpu_trace import FlatFunction, Trace, record
from anyformer.generation.decoding import Decoding, Step, advance, eager_step, shapes, step_frame

OFTEN = 4
"""Steps of one shape before it is traced: short outputs need no trace."""
_SHORTEST = 32
"""A trace attends over a power of two of positions, at least this many; positions after the last token are masked."""
_MOST = 256
"""Traces that are kept."""


def traced_step(model: Model) -> Step:
    """A step of the model that is traced and replayed. Models with hooks are always called eagerly."""
    return _TracedStep(model)


@dataclass
class _Replay:
    """The trace that one decoding replays."""

    hooked: bool
    """True: the model has hooks, which a replay would not run."""
    state: State = None
    """The state after the last step, and its tensors: a replay is valid for these alone."""
    leaves: Sequence[Tensor] = ()
    play: FlatFunction | None = None
    limit: int = 0
    """The replay is valid while `reach` is below this."""


class _TracedStep:
    """Traces by shape and reach, and the replay of every decoding that is being stepped."""

    def __init__(self, model: Model):
        self._model = model
        self._counts: Counter[Any] = Counter()
        self._traces: dict[Any, Trace | None] = {}
        self._weights: list[int] = []
        self._replays: WeakKeyDictionary[Decoding, _Replay] = WeakKeyDictionary()

    def __call__(self, decoding: Decoding, tokens: Int[Tensor, " b"]) -> None:
        replay = self._replays.get(decoding) or self._begin(decoding)
        if replay.hooked:
            return eager_step(self._model, decoding, tokens)
        if decoding.state is not replay.state:
            leaves = tree_leaves(decoding.state)
            if len(leaves) != len(replay.leaves) or not all(map(is_, leaves, replay.leaves)):
                replay.play = None
            replay.state, replay.leaves = decoding.state, leaves
        if replay.play is None or decoding.reach >= replay.limit:
            replay.limit = min(decoding.room, max(_SHORTEST, 1 << decoding.reach.bit_length()))
            trace = self._traces.get(self._key(decoding, replay))
            replay.play = trace(tokens, decoding.positions, *replay.leaves) if trace else None
        if replay.play is None:
            return self._trace(decoding, tokens, replay)
        logits, *leaves = replay.play(tokens, decoding.positions, *replay.leaves)
        if not all(map(is_, leaves, replay.leaves)):
            replay.state, replay.leaves = tree_structure(decoding.state).unflatten(leaves), leaves
        advance(decoding, replay.state, logits)

    def _begin(self, decoding: Decoding) -> _Replay:
        """Traces read the weights in place, so they are dropped when a weight was replaced by another tensor."""
        if self._traces and self._weight_ids() != self._weights:
            self._traces.clear()
        hooked = any(module._forward_hooks or module._forward_pre_hooks for module in self._model.modules())
        self._replays[decoding] = replay = _Replay(hooked)
        return replay

    def _trace(self, decoding: Decoding, tokens: Int[Tensor, " b"], replay: _Replay) -> None:
        """An eager step, which is traced if its shape has occurred often enough."""
        key = self._key(decoding, replay)
        self._counts[key] += 1
        if self._counts[key] < OFTEN or key in self._traces:
            return eager_step(self._model, decoding, tokens)
        if len(self._traces) >= _MOST:
            self._traces.clear()
        if not self._traces:
            self._weights = self._weight_ids()
        tree, reach, rows = tree_structure(decoding.state), replay.limit, 1 if decoding.aligned else None

        def step(tokens: Tensor, positions: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
            frame = step_frame(positions[:rows, None].expand(len(tokens), 1), reach=reach)
            out = self._model(tokens[:, None], frame, tree.unflatten(leaves))
            return out.y[:, -1], *tree_leaves(out.state)

        (logits, *leaves), self._traces[key] = record(step, (tokens, decoding.positions, *replay.leaves))
        advance(decoding, tree.unflatten(leaves), logits)

    def _weight_ids(self) -> list[int]:
        """Identities of all weights. Traces keep their weights alive, so that no other tensor gets the same id."""
        tensors = ((*module._parameters.values(), *module._buffers.values()) for module in self._model.modules())
        return [id(tensor) for each in tensors for tensor in each]

    def _key(self, decoding: Decoding, replay: _Replay) -> tuple[Any, ...]:
        kind = decoding.positions.device.type
        precision = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        return decoding.rows, decoding.aligned, replay.limit, precision, shapes(replay.leaves)
