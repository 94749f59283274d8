"""Averages of weights: an exponential moving average during a run, and the mean of several checkpoints.

e <- e + (1 - r) (w - e)   with r = min(decay, (1 + n) / (10 + n)) at update n = 0, 1, ...: it moves faster at the start
mean = (w_1 + ... + w_k) / k          (arXiv 1706.03762, section 6.1: the last 5 or 20 checkpoints)
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from anyformer.errors import CheckpointError
from anyformer.ops.devices import at_least_float32
from anyformer.optim.optimizer import check_same, copy_into

_UPDATES = "updates"


class Ema:
    """An exponential moving average of named tensors, which can be swapped with them for evaluation."""

    def __init__(self, tensors: Mapping[str, Tensor], decay: float):
        self.decay, self.updates = decay, 0
        self.tensors = {name: tensor.detach() for name, tensor in tensors.items()}
        self.averages = {name: tensor.clone() for name, tensor in self.tensors.items()}

    @torch.no_grad()
    def update(self) -> None:
        """Moves the averages towards the current values of the tensors."""
        rate = min(self.decay, (1 + self.updates) / (10 + self.updates))
        torch._foreach_lerp_([*self.averages.values()], [*self.tensors.values()], 1 - rate)
        self.updates += 1

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Inside the context, the tensors hold the averages: for evaluation, not for training."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def state_dict(self) -> dict[str, Tensor]:
        """The averages by name (not copies), and the number of updates."""
        return {**self.averages, _UPDATES: torch.tensor(self.updates)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Loads stored averages; raises CheckpointError and changes nothing if names or shapes differ."""
        updates = torch.zeros((), dtype=torch.int64)
        copy_into({**self.averages, _UPDATES: updates}, state, "the moving average")
        self.updates = int(updates)

    @torch.no_grad()
    def _swap(self) -> None:
        for name, tensor in self.tensors.items():
            held = tensor.clone()
            tensor.copy_(self.averages[name])
            self.averages[name].copy_(held)


@torch.no_grad()
def average(states: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of several state dicts, read one at a time, so that only one is in memory besides the result.

    Tensors that are not floating-point, such as counters, are taken from the last state dict.
    """
    mean: dict[str, Tensor] = {}
    latest: Mapping[str, Tensor] = {}
    for count, state in enumerate(states, 1):
        if count == 1:
            mean = {
                name: tensor.to(at_least_float32(tensor), copy=True)
                for name, tensor in state.items()
                if tensor.is_floating_point()
            }
        else:
            check_same(latest, state, "a state to average")
            for name, running in mean.items():
                running.lerp_(state[name].to(running), 1 / count)
        latest = state
    if not latest:
        raise CheckpointError("there is nothing to average.")
    return {name: mean[name].to(tensor.dtype) if name in mean else tensor.clone() for name, tensor in latest.items()}
