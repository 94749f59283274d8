"""Plain steps, replayed from a tape as soon as a shape comes often: what a CUDA graph is to a GPU, for a CPU."""

from collections import Counter
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils._pytree import tree_leaves

from anyformer.core import Contiguous, Frame, Model
from anyformer.generation.accelerate.cpu_trace import Tape, record
from anyformer.generation.decoding import Decoding, eager_step, shapes

OFTEN = 4
"""Steps of one shape before it is recorded: short answers need no tape."""
_SHORTEST = 32
"""A tape attends over a power of two of places, at least so many; what is beyond the last token is masked."""
_MOST = 256
"""Tapes that are kept."""


class Replays:
    """Tapes by shape and reach."""

    def __init__(self, model: Model):
        self._model = model
        self._times: Counter[Any] = Counter()
        self._tapes: dict[Any, Tape | None] = {}
        self._weights: list[int] = []

    def begin(self) -> None:
        """A text begins: tapes take weights as they are by now, but not other tensors in their places."""
        if self._tapes and self._held() != self._weights:
            self._tapes.clear()

    def step(self, decoding: Decoding, tokens: Int[Tensor, " b"]) -> Float[Tensor, "b v"]:
        if decoding.watched:  # a tape would pass by whoever looks on
            return eager_step(self._model, decoding, tokens)
        if decoding.tape is None or decoding.reach >= decoding.taped:
            decoding.taped = min(decoding.room, max(_SHORTEST, 1 << decoding.reach.bit_length()))
            tape = self._tapes.get(self._key(decoding))
            decoding.tape = tape(tokens, decoding.positions, *decoding.leaves) if tape else None
        if decoding.tape is None:
            return self._first(decoding, tokens)
        logits, *decoding.leaves = decoding.tape(tokens, decoding.positions, *decoding.leaves)
        return logits

    def _first(self, decoding: Decoding, tokens: Int[Tensor, " b"]) -> Float[Tensor, "b v"]:
        key = self._key(decoding)
        self._times[key] += 1
        if self._times[key] < OFTEN or key in self._tapes:
            return eager_step(self._model, decoding, tokens)
        if len(self._tapes) >= _MOST:
            self._tapes.clear()
        if not self._tapes:
            self._weights = self._held()
        tree, reach, alike = decoding.tree, decoding.taped, 1 if decoding.even else None

        def step(tokens: Tensor, positions: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
            frame = Frame(positions=positions[:alike, None].expand(len(tokens), 1), layout=Contiguous(reach))
            out = self._model(tokens[:, None], frame, tree.unflatten(leaves))
            return out.y[:, -1], *tree_leaves(out.state)

        outputs, self._tapes[key] = record(step, (tokens, decoding.positions, *decoding.leaves))
        decoding.leaves = list(outputs[1:])
        return outputs[0]

    def _held(self) -> list[int]:
        """Which tensors the weights are; those of a tape live as long as it, so that no other has the same id."""
        owned = ((*module._parameters.values(), *module._buffers.values()) for module in self._model.modules())
        return [id(tensor) for tensors in owned for tensor in tensors]

    def _key(self, decoding: Decoding) -> tuple[Any, ...]:
        kind = decoding.positions.device.type
        precision = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        return decoding.rows, decoding.even, decoding.taped, precision, shapes(decoding.leaves)
