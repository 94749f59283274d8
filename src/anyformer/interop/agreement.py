"""Compares an imported model with transformers' own, on the same weights and tokens."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from anyformer.core import Frame, Model
from anyformer.errors import CheckpointError
from anyformer.interop.folder import PretrainedFolder
from anyformer.interop.mapping import to_theirs

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
    peer = _peer(names[0], folder) if isinstance(names, list) and names else None
    if peer is None:
        return None
    with torch.no_grad():
        if model.needs_source:
            ours = model(tokens, Frame(memory=model.encode(tokens))).y
            out = peer(input_ids=tokens, decoder_input_ids=tokens)
        elif folder.sentence is not None:  # the states before the pooling
            ours = model(tokens, logits=False).y
            out = {"last_hidden_state": peer.base_model(input_ids=tokens).last_hidden_state}
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


def _peer(name: str, folder: PretrainedFolder) -> Any:
    """transformers' model of a folder in single precision; None if it is not installed. Of a GGUF file, its model with
    the tensors that were read from the file."""
    try:
        import transformers
    except ImportError:
        return None
    library: Any = transformers
    library.utils.logging.set_verbosity_error()
    library.utils.logging.disable_progress_bar()
    kind = getattr(library, name)
    if folder.path.is_dir():
        load = {"local_files_only": True, "use_safetensors": True, "dtype": torch.float32}
        return kind.from_pretrained(str(folder.path.absolute()), **load).eval()
    peer = kind(kind.config_class(**folder.config))
    entries = folder.family.tensors(folder.spec)
    peer.load_state_dict(to_theirs(entries, folder.tensors()), strict=False)  # a tied head has no tensor
    return peer.float().eval()
