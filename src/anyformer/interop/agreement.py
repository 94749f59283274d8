"""Compares an imported model with transformers' own, on the same weights and tokens."""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anyformer.core import Frame, Model
from anyformer.errors import CheckpointError
from anyformer.interop.folder import PretrainedFolder

TOLERANCE = 1e-3
"""Largest difference, in multiples of the largest output, that rounding in single precision explains."""


class Agreement(NamedTuple):
    """The largest difference between two outputs, and the largest output."""

    difference: float
    scale: float


def compare(folder: PretrainedFolder, model: Model, tokens: Tensor) -> Agreement | None:
    """The difference of the outputs for some tokens [b t]; None if transformers is not installed, or the config does
    not name its class. Raises CheckpointError if it is larger than rounding."""
    names = folder.config.get("architectures")
    peer = _peer(names[0], folder.path) if isinstance(names, list) and names else None
    if peer is None:
        return None
    with torch.no_grad():
        if model.needs_source:
            ours = model(tokens, Frame(memory=model.encode(tokens))).y
            out = peer(input_ids=tokens, decoder_input_ids=tokens)
        else:
            ours, out = model(tokens).y, peer(input_ids=tokens)
    outputs = [out.get(name) for name in ("logits", "pooler_output", "last_hidden_state")]
    theirs = next(output for output in outputs if output is not None)
    if ours.numel() != theirs.numel():
        raise CheckpointError(f"{folder.path}: outputs {tuple(ours.shape)}, transformers' model {tuple(theirs.shape)}.")
    result = Agreement((ours - theirs.reshape(ours.shape)).abs().max().item(), theirs.abs().max().item())
    if not result.difference <= TOLERANCE * max(1.0, result.scale):
        raise CheckpointError(
            f"{folder.path}: its outputs differ by {result.difference:.2g} from those of transformers "
            f"(largest output {result.scale:.2g}), so it was not imported."
        )
    return result


def _peer(name: str, folder: Path) -> Any:
    """transformers' model of a folder in single precision; None if it is not installed."""
    try:
        import transformers
    except ImportError:
        return None
    library: Any = transformers
    library.utils.logging.set_verbosity_error()
    library.utils.logging.disable_progress_bar()
    peer = getattr(library, name)
    load = {"local_files_only": True, "use_safetensors": True, "dtype": torch.float32}
    return peer.from_pretrained(str(folder.absolute()), **load).eval()
