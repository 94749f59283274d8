"""Memory that can be allocated now, on a GPU or, within the limits of a container, on a CPU."""

from pathlib import Path

import torch


def available(device: torch.device) -> int | None:
    """Bytes that can be allocated on a device; None: the system does not say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    meminfo = Path("/proc/meminfo")
    if device.type != "cpu" or not meminfo.exists():
        return None
    free = next(line for line in meminfo.read_text().splitlines() if line.startswith("MemAvailable"))
    return min([int(free.split()[1]) * 1024, *_container_limits()])


def _container_limits() -> list[int]:
    """What a container allows, less what it uses already."""
    folder = Path("/sys/fs/cgroup")
    limit, used = folder / "memory.max", folder / "memory.current"
    if not limit.exists() or not used.exists() or limit.read_text().strip() == "max":
        return []
    return [max(0, int(limit.read_text()) - int(used.read_text()))]
