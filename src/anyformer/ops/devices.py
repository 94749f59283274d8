"""Facts about devices and tensors: dtypes, free memory, Triton kernels, asynchronous copies; empty and sharded tensors.

Tensors that FSDP shards over ranks (DTensor) are recognised without an import of torch.distributed.tensor, which takes
more than a second: in a process that has not made it, no tensor is sharded.
"""

import importlib.util
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeGuard, TypeVar

import psutil
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

resource: Any
try:
    import resource
except ImportError:  # Windows
    resource = None

TRITON = importlib.util.find_spec("triton") is not None
"""True: Triton is installed, so that kernels can be imported. It is absent on a CPU."""
_TORCH_KERNELS: ContextVar[bool] = ContextVar("torch_kernels", default=False)


def supports_triton(x: Tensor) -> bool:
    """True: x is on an NVIDIA GPU and Triton is installed, outside of `torch_kernels`. ROCm calls its devices cuda too,
    but is not supported."""
    if not TRITON or not x.is_cuda or torch.version.hip is not None:
        return False
    return torch.compiler.is_compiling() or not _TORCH_KERNELS.get()  # a compiler cannot trace the context


@contextmanager
def torch_kernels(only: bool = True) -> Iterator[None]:
    """Inside the context torch's kernels run instead of ours. Triton takes a second to compile a kernel that its cache
    does not have, which short work does not earn back."""
    before = _TORCH_KERNELS.set(only)
    try:
        yield
    finally:
        _TORCH_KERNELS.reset(before)


def on_gpu(device: torch.device) -> bool:
    """True on a CUDA device: work is queued, so that copies from pinned memory overlap with computation, CUDA graphs
    save launches, and the host waits for the queue when it reads a value."""
    return device.type == "cuda"


def kind_of_device(setting: str) -> Literal["cpu", "gpu"]:
    """The kind of device that a setting (auto, cpu, cuda, mps) stands for on this machine."""
    return "gpu" if setting == "cuda" or (setting == "auto" and torch.cuda.is_available()) else "cpu"


def to_device(x: Tensor, device: torch.device) -> Tensor:
    """x on another device. To a GPU it is copied from pinned memory, so that the host does not wait for the queue."""
    if not on_gpu(device):
        return x.to(device)
    return (x.pin_memory() if x.is_cpu else x).to(device, non_blocking=True)


def synchronizer(device: torch.device) -> Callable[[], None]:
    """A function that waits for the work that is queued on a device now; elsewhere than on a GPU nothing is queued."""
    return torch.cuda.current_stream(device).record_event().synchronize if on_gpu(device) else lambda: None


def has_bf16(device: torch.device) -> bool:
    """Whether a device multiplies matrices in bfloat16 in hardware. Emulated, bfloat16 is slower than float32."""
    if on_gpu(device):
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type != "cpu":
        return False
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))  # the last is ARM's


def at_least_float32(x: Tensor) -> torch.dtype:
    """float32, or x's dtype if that is wider: for sums over many tokens."""
    return torch.promote_types(x.dtype, torch.float32)


def no_autocast(x: Tensor) -> AbstractContextManager[object]:
    """Disables autocast, so that products run in the dtype of their factors."""
    return nullcontext() if x.device.type == "meta" else torch.autocast(x.device.type, enabled=False)


def as_stream(x: Tensor) -> Tensor:
    """x in the dtype of the residual stream: bfloat16 under bfloat16 autocast, which halves the memory traffic.

    Sums are rounded when they are stored, not when they are computed. float16 lacks the range: then it is float32.
    """
    device = x.device.type
    if device == "meta" or not torch.is_autocast_enabled(device):
        return x
    return x.to(torch.bfloat16 if torch.get_autocast_dtype(device) == torch.bfloat16 else torch.float32)


def cast_like(x: Tensor, y: Tensor) -> Tensor:
    """y in the dtype of x: norms, gains and scans return float32 under autocast."""
    return y if y.dtype == x.dtype else y.type_as(x)


def is_empty(x: Tensor) -> bool:
    """True for meta and fake tensors, but not for the fake tensors of torch.compile."""
    return x.device.type == "meta" or (not torch.compiler.is_compiling() and isinstance(x, FakeTensor))


F = TypeVar("F", bound=Callable[..., object])


def constant_in_graphs(function: F) -> F:
    """Marks a function of strings and numbers. torch.compiler's decorator sets the same mark, but imports the compiler,
    which takes two seconds in every command that never compiles."""
    function.__dict__["_dynamo_marked_constant"] = True
    return function


def compiled_code_runs_eagerly() -> AbstractContextManager[object]:
    """Inside the context, compiled functions run eagerly. If the compiler is not loaded, nothing is compiled yet: torch
    would load it here, which takes seconds."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


def available(device: torch.device) -> int | None:
    """Bytes that can be allocated on a device; None: the system does not say."""
    if on_gpu(device):
        return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    if device.type != "cpu":
        return None
    free = int(psutil.virtual_memory().available)
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")  # of a container
    if not limit.exists() or not used.exists() or limit.read_text().strip() == "max":
        return free
    return min(free, max(0, int(limit.read_text()) - int(used.read_text())))


def peak_bytes(device: torch.device) -> int:
    """Peak memory of this process: of tensors on a GPU, of everything on a CPU."""
    if device.type == "cuda":
        # `max_memory_allocated` sorts all statistics first, which takes a tenth of a small update
        statistics = torch.cuda.memory_stats_as_nested_dict(device)
        return int(statistics["allocated_bytes"]["all"]["peak"]) if statistics else 0
    if resource is None:
        return int(psutil.Process().memory_info().peak_wset)
    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, others KiB
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * unit


def device_name(device: torch.device) -> str:
    """The name of a GPU, or of this machine's processor."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()


def seed_dropout(device: torch.device, seed: int) -> None:
    """Seeds torch's default generators of the CPU and of this device. `torch.manual_seed` also seeds all other device
    types, which takes a millisecond."""
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed)


def fork_rng(device: torch.device) -> AbstractContextManager[None]:
    """Restores the default generators of the CPU and of this device at the end."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [])


def is_sharded(tensor: Tensor) -> "TypeGuard[DTensor]":
    """Whether a tensor is sharded over ranks."""
    return _is_a(tensor, "torch.distributed.tensor", "DTensor")


def is_fsdp_unit(module: nn.Module) -> "TypeGuard[FSDPModule]":
    """Whether FSDP gathers the parameters of a module while it runs."""
    return _is_a(module, "torch.distributed.fsdp", "FSDPModule")


def shard_like(source: Tensor, target: Tensor) -> Tensor:
    """The source, sharded like the target if only the target is sharded."""
    if not is_sharded(target) or is_sharded(source):
        return source
    tensors: Any = sys.modules["torch.distributed.tensor"]
    sharded: Tensor = tensors.distribute_tensor(source.to(target.device), target.device_mesh, target.placements)
    return sharded


def _is_a(value: object, module: str, name: str) -> bool:
    return module in sys.modules and isinstance(value, getattr(sys.modules[module], name))
