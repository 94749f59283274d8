"""`anyformer doctor`: versions, hardware and optional dependencies of this installation."""

import os
import platform
import re
import shutil
from importlib import metadata
from pathlib import Path
from typing import Any

import typer
from rich.table import Table
from rich.text import Text

import anyformer
from anyformer.cli.output.screen import Screen, example, human_bytes, verb

CPU_INFO, MEMORY_INFO, CONTAINER = Path("/proc/cpuinfo"), Path("/proc/meminfo"), Path("/sys/fs/cgroup")
FLAGS = {"avx2": "avx2", "avx512f": "avx512", "avx512_bf16": "avx512_bf16", "amx_tile": "amx", "amx_bf16": "amx_bf16"}
FLAGS |= {"asimd": "neon", "sve": "sve", "bf16": "bf16"}  # as ARM calls them


def register(app: typer.Typer) -> None:
    app.command("doctor", epilog=example("anyformer doctor", "anyformer doctor --json"))(examine)


@verb
def examine(*, screen: Screen) -> None:
    """Show versions, devices, threads, memory and disk, and how to install missing optional dependencies."""
    facts = _examine()
    if screen.json:
        screen.data(facts)
        return
    missing = {name: extra for name, extra in facts["extras"].items() if not extra["present"]}
    if not screen.quiet:
        screen.show(_machine(facts), "")
    extras = missing if screen.quiet else facts["extras"]
    if extras:
        screen.show(_extras(extras))
    elif not screen.quiet:
        screen.show("extras     unknown: anyformer runs from a source tree and is not installed")


def _examine() -> dict[str, Any]:
    import torch

    devices = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return {
        "anyformer": anyformer.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": platform.platform(terse=True),
        "cpu": {"model": _cpu_model(), "cores": _cores(), "flags": _cpu_flags()},
        "threads": torch.get_num_threads(),
        "memory": _memory(),
        "disk": {"folder": str(Path.cwd()), "free_bytes": shutil.disk_usage(Path.cwd()).free},
        "cuda": [
            {"name": device.name, "memory_bytes": device.total_memory, "capability": f"{device.major}.{device.minor}"}
            for device in devices
        ],
        "extras": {name: _extra(name, needs) for name, needs in _declared_extras().items()},
    }


def _cores() -> int:
    """The number of cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


def _cpu_info(field: str) -> str:
    try:
        text = CPU_INFO.read_text(errors="replace")
    except OSError:
        return ""
    match = re.search(rf"^{field}\s*:\s*(.*)$", text, re.MULTILINE | re.IGNORECASE)
    return match[1] if match else ""


def _cpu_model() -> str:
    return _cpu_info("model name") or platform.processor() or platform.machine()


def _cpu_flags() -> list[str]:
    flags = set((_cpu_info("flags") or _cpu_info("features")).split())
    return [ours for theirs, ours in FLAGS.items() if theirs in flags]


def _memory() -> dict[str, int | None]:
    """Total and free memory of the machine, or of the container if its limit is lower."""
    try:
        lines = MEMORY_INFO.read_text().splitlines()
        sizes = {line.split(":")[0]: 1024 * int(line.split()[1]) for line in lines}
    except OSError:
        return {"total_bytes": None, "free_bytes": None}
    total, free = sizes.get("MemTotal", 0), sizes.get("MemAvailable", 0)
    limit = _number(CONTAINER / "memory.max")
    used = _number(CONTAINER / "memory.current") or 0
    if limit is None or limit > total:
        return {"total_bytes": total, "free_bytes": free}
    return {"total_bytes": limit, "free_bytes": min(free, limit - used)}


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # no such limit, or the word "max"
        return None


def _declared_extras() -> dict[str, list[str]]:
    """Extra -> its requirements, as the installed package declares them."""
    try:
        requirements = metadata.requires("anyformer") or []
    except metadata.PackageNotFoundError:  # run from a source tree
        return {}
    extras: dict[str, list[str]] = {}
    for line in requirements:
        need, _, marker = line.partition(";")
        if name := re.search(r"extra\s*==\s*['\"]([\w-]+)['\"]", marker):
            extras.setdefault(name[1], []).append(need.strip())
    return extras


def _extra(name: str, needs: list[str]) -> dict[str, Any]:
    missing = [need for need in needs if not _is_met(need)]
    return {"present": not missing, "missing": missing, "install": f"pip install 'anyformer[{name}]'"}


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


def _machine(facts: dict[str, Any]) -> Table:
    cpu, memory = facts["cpu"], facts["memory"]
    known = memory["total_bytes"] is not None
    devices = [
        f"{device['name']}, {human_bytes(device['memory_bytes'])}, capability {device['capability']}"
        for device in facts["cuda"]
    ]
    rows = {
        "anyformer": facts["anyformer"],
        "python": facts["python"],
        "torch": facts["torch"],
        "system": facts["system"],
        "cpu": f"{cpu['model']}, {cpu['cores']} cores",
        "cpu flags": ", ".join(cpu["flags"]) or "none that matter",
        "threads": f"{facts['threads']} (OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'not set')})",
        "memory": f"{human_bytes(memory['free_bytes'])} free of {human_bytes(memory['total_bytes'])}" if known else "?",
        "disk": f"{human_bytes(facts['disk']['free_bytes'])} free in {facts['disk']['folder']}",
        "cuda": "\n".join(devices) or "none",
    }
    return _pairs(rows)


def _extras(extras: dict[str, Any]) -> Table:
    rows = {
        f"extra {name}": "present" if extra["present"] else f"needs {', '.join(extra['missing'])}\n{extra['install']}"
        for name, extra in extras.items()
    }
    return _pairs(rows)


def _pairs(rows: dict[str, str]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="cyan")
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(name, Text(value))
    return table
