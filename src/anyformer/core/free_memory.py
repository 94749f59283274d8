"""Memory that can be allocated now, on a GPU or, within the limits of a container, on a CPU."""

from pathlib import Path

import psutil
import torch


def available(device: torch.device) -> int | None:
    """Bytes that can be allocated on a device; None: the system does not say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    if device.type != "cpu":
        return None
    return min([int(psutil.virtual_memory().available), *_container_limits()])


def _container_limits() -> list[int]:
    """What a container allows, less what it uses already."""
    folder = Path("/sys/fs/cgroup")
    limit, used = folder / "memory.max", folder / "memory.current"
    if not limit.exists() or not used.exists() or limit.read_text().strip() == "max":
        return []
    return [max(0, int(limit.read_text()) - int(used.read_text()))]
