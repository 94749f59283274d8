"""What an update finds: on its way to the host at once, waited for only when somebody reads it."""

from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor


class StepResults:
    """Sums of terms and the norm of a gradient. Who reads them waits for these alone, not for what was asked of the
    device after them."""

    def __init__(self, names: Sequence[str], totals: Float[Tensor, "2 n"], norm: Float[Tensor, ""]):
        self._names, self._there = names, None
        numbers = self._numbers = torch.cat((totals.flatten(), norm.to(totals.device)[None]))
        self.wrong: Float[Tensor, ""] = numbers.isfinite().all().logical_not().float()
        """1 where one of them is no number, else 0; on the device, which may act on it before anybody has read them."""
        if numbers.is_cuda:
            self._numbers = numbers.to("cpu", non_blocking=True)  # into pinned memory: the copy does not wait either
            self._there = torch.cuda.Event()
            self._there.record(torch.cuda.current_stream(numbers.device))

    def read(self) -> tuple[dict[str, float], float]:
        """The sums by name, and the norm."""
        if self._there is not None:
            self._there.synchronize()
        *totals, norm = self._numbers.tolist()
        count = len(self._names)
        return held(self._names, totals[:count], totals[count:]), norm


def held(names: Iterable[str], sums: Iterable[float], holders: Iterable[float]) -> dict[str, float]:
    """Those sums that any process has."""
    return {name: total for name, total, count in zip(names, sums, holders, strict=True) if count}
