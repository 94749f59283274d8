"""Rows to test with: made up, or of a real trial run."""

from typing import Any

from benchmarks.rows import Row

SAID: dict[str, Any] = {"item": "lm", "shape": {"layers": 2}, "device": "cpu", "peer": "transformers", "ours_ms": 10.0}


def row(ratio: float | None = 1.5, **changes: Any) -> Row:
    """A comparison that went well."""
    peer_ms = None if ratio is None else 10.0 * ratio
    return Row(**{**SAID, "ratio": ratio, "peer_ms": peer_ms, **changes})


def point(axis: str, value: int, ms: float, bytes_: int) -> Row:
    """One step of a growth."""
    shape = {"axis": axis, "value": value}
    return Row(item="growth", shape=shape, device="cpu", ours_ms=ms, limit_ms=ms / 2, mem_ours=bytes_)
