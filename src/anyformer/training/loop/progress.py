"""All that a run remembers besides tensors."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from anyformer.data.batching.order import LoaderPosition


@dataclass
class Progress:
    """How far a run is; with the seed, enough to go on exactly."""

    step: int = 0
    """Batches used."""
    tokens: int = 0
    """Seen, padding not counted."""
    wall_s: float = 0.0
    """Seconds spent in the loop."""
    position: LoaderPosition = LoaderPosition()
    """Where the data go on."""
    skipped: int = 0
    """Updates in a row that were not applied, because something in them was no number."""
    scale: float = 1.0
    """fp16's loss scale, and the steps since it last changed."""
    calm: int = 0
    micro_batch: int | None = None
    """Tokens that go through at once; None: the whole batch."""
    best: float | None = None
    """Lowest validation loss, and the step that had it."""
    best_step: int | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"position": list(self.position)}

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> "Progress":
        return cls(**{**data, "position": LoaderPosition(*data["position"])})
