"""Whether compiling or capturing pays off: the way with the lowest predicted time.

    seconds = seconds to compile or capture + steps x seconds of a step

The constants were measured on one NVIDIA H200 with torch 2.11 (docs/experiments.md, "When compiling pays"). They are
rough: where the two sides are close, the choice hardly matters. Neither a timing nor a cache enters, so the same work
is always executed in the same way.
"""

from dataclasses import dataclass
from typing import Literal

Execution = Literal["eager", "captured", "layers", "compiled", "recorded"]
"""How updates run: by plain calls; by plain calls that are captured as CUDA graphs; with compiled layers, and captured
where that is possible; compiled as a whole; or compiled as a whole and recorded as CUDA graphs."""
Setting = bool | Literal["auto", "layers"]
"""The values of `train.compile`."""

EAGER_HOST_S = 7.5e-3, 2.5e-3
"""Seconds in which the host launches an eager update: fixed, and for each layer."""
COMPILED_HOST_S = 5e-3, 1.5e-3
"""The same for a compiled update that is not recorded."""
RECORDED_HOST_S = 2e-3, 0.0
"""The same for a recorded update."""
CAPTURED_HOST_S = 3e-3, 0.0
"""The same for a captured update."""
CAPTURE_S = 0.05, 0.01
"""Seconds to capture an update for one shape of batches: fixed, and for each layer. An estimate, not measured alone."""
SHAPES = 40
"""Shapes that batches have if they do not all have the same."""
EAGER_FLOPS_PER_S, COMPILED_FLOPS_PER_S = 3e14, 4.5e14
"""Speed of updates that are large enough to be bound by the device."""
COMPILE_S = 10.0, 3.5
"""Seconds to compile training and validation for one shape of batches: fixed, and for each layer."""
MANY_SHAPES = 4
"""How many times as long it takes to compile for batches of all shapes."""
SMALL_UPDATE_FLOPS = 2e13
"""On a GPU, below this many FLOPs per update kernel launches cost more than the kernels: CUDA graphs are used."""
CPU_FLOPS = 3e15
"""On a CPU, a run above this many FLOPs takes hours, and compiling for minutes pays off."""

DECODE_COMPILE_S = 4.0, 0.65
"""Seconds to compile a decoding step of one batch size: fixed, and for each layer."""
DECODE_GAIN_S = 1.5e-5
"""Seconds that compiling saves in each layer of a decoding step that is replayed as a CUDA graph."""
BATCH_SIZES = 3
"""Batch sizes of a call: batches shrink as rows finish."""


@dataclass(frozen=True, kw_only=True)
class Updates:
    """The updates of a training run, as far as they are known before its start."""

    steps: int | None
    """Number of updates; None if the budget is a time."""
    seconds: float | None = None
    """The budget in seconds, if it is a time."""
    flops: int
    """FLOPs of one update."""
    layers: int
    """Layers that an update runs through, in all stacks."""
    one_shape: bool
    """True if all batches have the same shape."""
    recordable: bool
    """True if compiled updates can be recorded as CUDA graphs."""
    capturable: bool = False
    """True if eager updates can be captured as CUDA graphs."""


def execution_of(setting: Setting, updates: Updates, *, gpu: bool) -> Execution:
    """How a run executes its updates: what `train.compile` means for it."""
    compiled: Execution = "recorded" if updates.recordable else "compiled"
    if setting == "layers":
        return "layers"
    if setting != "auto":
        return compiled if setting else "eager"
    if not gpu:
        return compiled if (updates.steps or 0) * updates.flops >= CPU_FLOPS else "eager"
    ways: list[Execution] = ["eager", "captured", compiled] if updates.capturable else ["eager", compiled]
    return min(ways, key=lambda way: _gpu_seconds(way, updates))


def _gpu_seconds(way: Execution, updates: Updates) -> float:
    """The predicted seconds of a run on a GPU."""
    eager_s = _step_seconds("eager", updates)
    steps = (updates.seconds or 0.0) / eager_s if updates.steps is None else updates.steps
    once_s = {
        "eager": 0.0,
        "captured": _linear(CAPTURE_S, updates.layers) * (1 if updates.one_shape else SHAPES),
    }.get(way, _linear(COMPILE_S, updates.layers) * (1 if updates.one_shape else MANY_SHAPES))
    return once_s + steps * _step_seconds(way, updates)


def _step_seconds(way: Execution, updates: Updates) -> float:
    """Seconds of an update: those of the host or those of the GPU, whichever takes longer."""
    host_s = {
        "eager": EAGER_HOST_S, "captured": CAPTURED_HOST_S, "compiled": COMPILED_HOST_S, "recorded": RECORDED_HOST_S
    }[way]  # fmt: skip
    speed = EAGER_FLOPS_PER_S if way in ("eager", "captured") else COMPILED_FLOPS_PER_S
    return max(_linear(host_s, updates.layers), updates.flops / speed)


def compiling_decoding_pays(steps: int, layers: int) -> bool:
    """True if a call of this many decoding steps in CUDA graphs takes longer than with compiled ones."""
    return steps * layers * DECODE_GAIN_S > BATCH_SIZES * _linear(DECODE_COMPILE_S, layers)


def _linear(seconds: tuple[float, float], layers: int) -> float:
    return seconds[0] + seconds[1] * layers
