"""`anyformer doctor`: versions, hardware and optional dependencies of this installation."""

import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

import anyformer
from anyformer.cli.output.screen import Screen, pairs, verb
from anyformer.core.readable_numbers import counted, human_bytes

CPU_INFO, CONTAINER = Path("/proc/cpuinfo"), Path("/sys/fs/cgroup")
FLAGS = {"avx2": "avx2", "avx512f": "avx512", "avx512_bf16": "avx512_bf16", "amx_tile": "amx", "amx_bf16": "amx_bf16"}
FLAGS |= {"asimd": "neon", "sve": "sve", "bf16": "bf16"}  # as ARM calls them


@verb("anyformer doctor", "anyformer doctor --json", panel="Look up")
def doctor(*, screen: Screen) -> None:
    """Show versions, devices, memory and optional dependencies.

    Says how to install the dependencies that are missing.
    """
    facts = _examine()
    if screen.json:
        screen.data(facts)
        return
    if not screen.quiet:
        screen.show(pairs(_machine(facts)), "")
    extras = {name: extra for name, extra in facts["extras"].items() if not (screen.quiet and extra["present"])}
    if extras:
        needs = {name: f"needs {', '.join(extra['missing'])}\n{extra['install']}" for name, extra in extras.items()}
        rows = ((f"extra {name}", "present" if extras[name]["present"] else need) for name, need in needs.items())
        screen.show(pairs(rows))
    elif not screen.quiet:
        screen.show("extras     unknown: anyformer runs from a source tree and is not installed")


def _examine() -> dict[str, Any]:
    import torch

    flags = set((_cpu_info("flags") or _cpu_info("features")).split())
    devices = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return {
        "anyformer": anyformer.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": platform.platform(terse=True),
        "cpu": {
            "model": _cpu_info("model name") or platform.processor() or platform.machine(),
            "cores": len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count(),
            "flags": [ours for theirs, ours in FLAGS.items() if theirs in flags],
        },
        "threads": torch.get_num_threads(),
        "memory": _memory(),
        "disk": {"folder": str(Path.cwd()), "free_bytes": shutil.disk_usage(Path.cwd()).free},
        "cuda": [
            {"name": device.name, "memory_bytes": device.total_memory, "capability": f"{device.major}.{device.minor}"}
            for device in devices
        ],
        "extras": _extras(),
    }


def _cpu_info(field: str) -> str:
    try:
        text = CPU_INFO.read_text(errors="replace")
    except OSError:
        return ""
    match = re.search(rf"^{field}\s*:\s*(.*)$", text, re.MULTILINE | re.IGNORECASE)
    return match[1] if match else ""


def _memory() -> dict[str, int]:
    """Total and free memory of the machine, or of the container if its limit is lower."""
    memory, limit = psutil.virtual_memory(), _number(CONTAINER / "memory.max")
    if limit is None or limit > memory.total:
        return {"total_bytes": memory.total, "free_bytes": memory.available}
    used = _number(CONTAINER / "memory.current") or 0
    return {"total_bytes": limit, "free_bytes": min(memory.available, limit - used)}


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # no such limit, or the word "max"
        return None


def _extras() -> dict[str, Any]:
    """Extra -> whether its requirements, as the installed package declares them, are met, and how to install it."""
    try:
        requirements = metadata.requires("anyformer") or []
    except metadata.PackageNotFoundError:  # run from a source tree
        return {}
    extras: dict[str, Any] = {}
    for need, _, marker in (line.partition(";") for line in requirements):
        if name := re.search(r"extra\s*==\s*['\"]([\w-]+)['\"]", marker):
            usual = {"present": True, "missing": [], "install": f"pip install 'anyformer[{name[1]}]'"}
            extra = extras.setdefault(name[1], usual)
            extra["missing"] += [] if _is_met(need.strip()) else [need.strip()]
            extra["present"] = not extra["missing"]
    return extras


def _is_met(need: str) -> bool:
    name = re.match(r"[\w.-]+", need)
    least = re.search(r">=\s*([\d.]+)", need)
    try:
        version = metadata.version(name[0] if name else need)
    except metadata.PackageNotFoundError:
        return False
    return not least or _release(version) >= _release(least[1])


def _release(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(piece) for piece in match[0].split(".")) if match else ()


def _machine(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    cpu, memory = facts["cpu"], facts["memory"]
    yield from ((name, facts[name]) for name in ("anyformer", "python", "torch", "system"))
    yield "cpu", f"{cpu['model']}, {counted(cpu['cores'] or 1, 'cores')}"
    yield "cpu flags", ", ".join(cpu["flags"]) or "none that matter"
    yield "threads", f"{facts['threads']} (OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'not set')})"
    yield "memory", f"{human_bytes(memory['free_bytes'])} free of {human_bytes(memory['total_bytes'])}"
    yield "disk", f"{human_bytes(facts['disk']['free_bytes'])} free in {facts['disk']['folder']}"
    devices = [
        f"{device['name']}, {human_bytes(device['memory_bytes'])}, capability {device['capability']}"
        for device in facts["cuda"]
    ]
    yield "cuda", "\n".join(devices) or "none"
