"""The state of a run apart from tensors, as stored in state.json."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from anyformer.data.batching.order import LoaderPosition


@dataclass
class Progress:
    """Counters of a run; together with the seed they allow an exact resume."""

    step: int = 0
    """Number of batches used so far."""
    tokens: int = 0
    """Number of tokens used so far, without padding."""
    wall_s: float = 0.0
    """Seconds spent in the loop."""
    position: LoaderPosition = LoaderPosition()
    """Position of the loader after the last batch."""
    skipped: int = 0
    """Consecutive updates that were not applied because loss or gradient was not finite."""
    scale: float = 1.0
    """Loss scale of fp16."""
    calm: int = 0
    """Steps since the loss scale last changed."""
    micro_batch: int | None = None
    """Tokens of a micro-batch; None for the whole batch."""
    best: float | None = None
    """Lowest validation loss so far."""
    best_step: int | None = None
    """Step of the lowest validation loss."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"position": list(self.position)}

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> "Progress":
        return cls(**{**data, "position": LoaderPosition(*data["position"])})
