"""Initialises a model with the weights of another run, for all tensors whose names and shapes agree."""

import torch

from anyformer.errors import SpecError
from anyformer.optim.loading import placed
from anyformer.training.loop.trainer import Trainer
from anyformer.training.runs.run import Run


def start_from(trainer: Trainer, source: str | None) -> int:
    """Copies the tensors of another run's model whose names and shapes agree; returns their number."""
    if source is None:
        return 0
    theirs = Run.open(source).model().state_dict()
    state = trainer.loss_module.model.state_dict()
    fitting = [name for name, tensor in state.items() if name in theirs and theirs[name].shape == tensor.shape]
    if not fitting:
        raise SpecError(f"init_from={source}: no tensor of that model has the name and shape of one of this model.")
    with torch.no_grad():
        for name in fitting:
            state[name].copy_(placed(theirs[name], state[name]))
    return len(fitting)
