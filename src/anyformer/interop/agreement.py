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

    @classmethod
    def between(cls, outputs: Tensor, expected: Tensor) -> "Agreement":
        """The agreement of outputs of equal shape."""
        return cls((outputs - expected).abs().max().item(), expected.abs().max().item())

    def checked(self, outputs: str, expected: str, consequence: str) -> "Agreement":
        """The same agreement; raises CheckpointError if the difference is larger than rounding."""
        if not self.difference <= TOLERANCE * max(1.0, self.scale):
            raise CheckpointError(
                f"{outputs} differ by {self.difference:.2g} from those of {expected} (largest output "
                f"{self.scale:.2g}), so {consequence}"
            )
        return self


def compare(folder: PretrainedFolder, model: Model, *batches: Tensor, outcome: str = "imported") -> Agreement | None:
    """The largest difference of the outputs for batches of tokens [b t]; None if transformers is not installed, or the
    config does not name its class. Raises CheckpointError if it is larger than rounding."""
    names = folder.config.get("architectures")
    peer = _peer(names[0], folder) if isinstance(names, list) and names else None
    if peer is None:
        return None
    worst = max(_difference(folder, model, peer, tokens) for tokens in batches)
    return worst.checked(f"{folder.path}: its outputs", "transformers", f"it was not {outcome}.")


@torch.no_grad()
def _difference(folder: PretrainedFolder, model: Model, peer: Any, tokens: Tensor) -> Agreement:
    if folder.sentence is not None:  # the states before the pooling
        out = {"last_hidden_state": peer.base_model(input_ids=tokens).last_hidden_state}
    else:
        out = peer(input_ids=tokens, decoder_input_ids=tokens) if model.needs_source else peer(input_ids=tokens)
    outputs = [out.get(name) for name in ("logits", "pooler_output", "last_hidden_state")]
    present = [output for output in outputs if output is not None]
    # a body has no head in transformers, or a random pooler: the outputs that are compared have the same size
    for ours in (outputs_of(model, tokens), outputs_of(model, tokens, logits=False)):
        for theirs in (output for output in present if output.numel() == ours.numel()):
            return Agreement.between(ours, theirs.reshape(ours.shape))
    shapes = f"outputs {tuple(outputs_of(model, tokens).shape)}, transformers' model {tuple(present[0].shape)}"
    raise CheckpointError(f"{folder.path}: {shapes}.")


@torch.no_grad()
def outputs_of(model: Model, tokens: Tensor, logits: bool = True) -> Tensor:
    """The outputs for tokens [b t], or the hidden states; of an encoder-decoder, for a target that is the source."""
    frame = Frame(memory=model.encode(tokens)) if model.needs_source else Frame()
    return model(tokens, frame, logits=logits).y


def sentence(agreement: Agreement | None) -> str:
    """The result of `compare`, in words."""
    if agreement is None:
        return "The outputs were not compared with transformers: pip install 'anyformer[hf]' to do that."
    largest = f"largest output {agreement.scale:.3g}"
    return f"largest difference from transformers {agreement.difference:.2g}, {largest}."


def compare_models(ours: Model, again: Model, *batches: Tensor) -> Agreement:
    """The largest difference between the outputs of a model and those of its export, read again."""
    worst = max(Agreement.between(outputs_of(again, tokens), outputs_of(ours, tokens)) for tokens in batches)
    consequence = "it was not written. This is a mistake in the mapping: please report it."
    return worst.checked("the outputs of the export", "the run", consequence)


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
