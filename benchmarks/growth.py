"""How time and memory of a training step grow with length, width, depth and batch: `python -m benchmarks.growth`

One axis at a time, our trainer as it runs but not compiled, a GPT-2 shape. The document fits exponents to it; beside
them stand those of the operations that the cost card counts.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks import lm, trainers
from benchmarks.harness import Bench, Size, compare
from benchmarks.rows import Row
from benchmarks.runner import single

BASE: dict[Size, dict[str, int]] = {
    "gpu": {"length": 1024, "dim": 768, "layers": 6, "batch": 16},
    "cpu": {"length": 128, "dim": 128, "layers": 4, "batch": 4},
    "tiny": {"length": 16, "dim": 16, "layers": 1, "batch": 2},
}
AXES: dict[Size, dict[str, tuple[int, ...]]] = {
    "gpu": {"length": (512, 1024, 2048, 4096), "dim": (384, 768, 1536), "layers": (3, 6, 12), "batch": (8, 16, 32)},
    "cpu": {"length": (64, 128, 256, 512, 1024), "dim": (64, 128, 256, 512), "layers": (2, 4, 8), "batch": (2, 4, 8)},
    "tiny": {"length": (16, 32), "batch": (2, 4)},
}  # fmt: skip
CHANNELS, VOCABULARY = 64, 1024


def rows(bench: Bench) -> Iterator[Row]:
    bench = replace(bench, data=None, rounds=min(bench.rounds, 5), seconds=min(bench.seconds, 8.0))
    for axis, values in AXES[bench.size].items():
        for value in values:
            yield from point(bench, axis, BASE[bench.size] | {axis: value})


def point(bench: Bench, axis: str, base: dict[str, int]) -> Iterator[Row]:
    size = {
        "layers": base["layers"], "dim": base["dim"], "heads": max(1, base["dim"] // CHANNELS), "vocab": VOCABULARY,
        "length": base["length"], "tokens": base["length"] * base["batch"],
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        trainer = lm.trainer_of(bench, Path(folder), size, "train.compile=false")
        case = trainers.case_of(bench, "growth", size, trainer, {})
        yield from compare(bench, replace(case, shape={"axis": axis, "value": base[axis], **base}))


if __name__ == "__main__":
    single(__doc__, rows)
