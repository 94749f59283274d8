"""Starting from another run: its weights, wherever names and shapes agree."""

import torch

from anyformer.errors import SpecError
from anyformer.optim.loading import placed
from anyformer.training.loop.trainer import Trainer
from anyformer.training.runs.run import Run


def start_from(trainer: Trainer, source: str | None) -> int:
    """Copies what fits from another run's model; the number of tensors that were taken over."""
    if source is None:
        return 0
    theirs = Run.open(source).model().state_dict()
    state = trainer.loss_module.model.state_dict()
    fitting = [name for name, tensor in state.items() if name in theirs and theirs[name].shape == tensor.shape]
    if not fitting:
        raise SpecError(f"init_from={source}: not one tensor of that model fits this one.")
    with torch.no_grad():
        for name in fitting:
            state[name].copy_(placed(theirs[name], state[name]))
    return len(fitting)
