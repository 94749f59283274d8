"""What a step of training sees."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils._pytree import tree_map_only

from anyformer.core import Frame


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """Token ids and what is known about them. Data give tokens and frame; an objective adds targets and weights."""

    tokens: Int[Tensor, "b t"]
    frame: Frame
    targets: Int[Tensor, "b t"] | None = None
    """What each place should say."""
    weight: Float[Tensor, "b t"] | None = None
    """How much each place counts; 0: not at all."""
    source: "Batch | None" = None
    """What the encoder reads; for a pair from the data, the text of which `tokens` is the target."""
    labels: Mapping[str, Tensor] = field(default_factory=dict)
    """Whatever is not a target for each place. From the data: label, number, choices, tags, word_starts [b t] (where a
    token begins a word) and, where texts may lose their ends, cut [b]: such a row must not be said to end. Of a stream:
    lane [b], which goes on in the row of that lane in the next batch. Of a stream and of rows cut out of a text: before
    [b], the token before the row in its document; -1: it begins there. Of rows whose documents see each other, so that
    no segment tells them apart: begins [b t], where one begins, and, if some tokens only fill a row up, live [b t]: the
    others."""
    parts: "Mapping[str, Batch]" = field(default_factory=dict)
    """What a mixture of objectives made of it, one batch for each task; labels["row"] says whose rows they are."""

    @property
    def shared(self) -> bool:
        """Whether a row may hold several documents, whose ends the data have marked."""
        return self.frame.segments is not None or "begins" in self.labels

    def to(self, device: str | torch.device) -> "Batch":
        """The same batch elsewhere; the copy does not wait."""
        if torch.device(device).type != "cuda":
            return self._each(lambda tensor: tensor.to(device, non_blocking=True))
        return self._each(lambda tensor: _pinned(tensor).to(device, non_blocking=True))

    def pinned(self) -> "Batch":
        """The same batch where a GPU can fetch it by itself."""
        return self._each(_pinned)

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        def changed(value: Any) -> Any:
            return tree_map_only(Tensor, change, value)

        return Batch(
            tokens=change(self.tokens),
            frame=self.frame.map(change),
            targets=changed(self.targets),
            weight=changed(self.weight),
            source=None if self.source is None else self.source._each(change),
            labels={name: change(value) for name, value in self.labels.items()},
            parts={name: part._each(change) for name, part in self.parts.items()},
        )

    def take(self, rows: Int[Tensor, " n"]) -> "Batch":
        """Some of its rows, and what a mixture made of them."""

        def pick(value: Any) -> Any:
            return value[rows] if isinstance(value, Tensor) else value

        labels = {name: pick(value) for name, value in self.labels.items()}
        own = {name: torch.isin(part.labels["row"], labels["row"]).nonzero()[:, 0] for name, part in self.parts.items()}
        return Batch(
            tokens=pick(self.tokens),
            frame=self.frame.take(rows),
            targets=pick(self.targets),
            weight=pick(self.weight),
            source=None if self.source is None else self.source.take(rows),
            labels=labels,
            parts={name: self.parts[name].take(mine) for name, mine in own.items() if len(mine)},
        )


def _pinned(tensor: Tensor) -> Tensor:
    """A copy from any other memory makes the host wait until the device has done all that was asked of it before."""
    return tensor.pin_memory() if tensor.is_cpu else tensor
