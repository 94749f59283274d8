"""Every family: the outputs of an imported model are transformers', and an export of it has the same bits."""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.equality.comparing import lengths_mask
from tests.interop.folders import CASES, LONGEST
from torch import Tensor

from anyformer.core import Frame
from anyformer.interop.counterpart import counterpart
from anyformer.interop.folder import PretrainedFolder


def loaded(folder: Path) -> tuple[PretrainedFolder, Any]:
    pretrained = PretrainedFolder.open(folder)
    model = pretrained.spec.build().eval()
    model.load_state_dict(pretrained.tensors())
    return pretrained, model


@torch.no_grad()
def outputs(model: Any, peer: Any, tokens: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Of both models, where tokens exist; of an encoder-decoder, for a target that is the source itself."""
    mask = valid.long()
    if model.needs_source:
        ours = model(tokens, Frame(memory=model.encode(tokens, Frame(valid=valid)))).y
        return ours, peer(input_ids=tokens, attention_mask=mask, decoder_input_ids=tokens).logits
    ours, out = model(tokens, Frame(valid=valid)).y, peer(input_ids=tokens, attention_mask=mask)
    names = ("logits", "pooler_output", "last_hidden_state")
    theirs = next(out[name] for name in names if out.get(name) is not None)
    if "logits" not in out and theirs.dim() == 3:  # a body without a head
        ours = model(tokens, Frame(valid=valid), logits=False).y
    if ours.dim() == 3 and theirs.dim() == 2 and "last_hidden_state" in out:  # its pooler is random: ours has none
        theirs = out["last_hidden_state"]
    return (ours, theirs) if ours.dim() == 2 else (ours.squeeze(-1)[valid], theirs[valid])


OPTIONS = ("gpt2_untied", "llama_tied_with_biases", "mistral_without_window", "eurobert_tied", "t5_1_1_tied")
"""Cases of a class that another case has with other options: in the slow suite."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in OPTIONS else name for name in CASES]
)
def test_a_folder_gives_the_outputs_of_transformers_and_is_exported_bit_by_bit(
    transformers: ModuleType, tmp_path: Path, name: str
) -> None:
    """One folder of each family for all three checks: to write and to read it takes longer than any of them."""
    peer = CASES[name].make(transformers, tmp_path)
    pretrained, model = loaded(tmp_path)
    check_outputs(model, peer, CASES[name].within)
    check_config(pretrained)
    peer.to(torch.bfloat16).save_pretrained(tmp_path)
    check_tensors(*loaded(tmp_path))


def check_outputs(model: Any, peer: Any, within: float) -> None:
    """Equal outputs, alone and with padding, for one token up to the longest text."""
    for lengths in ([1], [2, 1], [LONGEST - 1, 3, 7]):
        tokens = torch.randint(5, 90, (len(lengths), max(lengths)))
        ours, theirs = outputs(model, peer, tokens, lengths_mask(lengths))
        assert ours.shape == theirs.shape
        assert (ours - theirs).abs().max() <= within * max(1.0, theirs.abs().max().item())


def check_tensors(pretrained: PretrainedFolder, model: Any) -> None:
    """An export has the tensors of a bfloat16 folder, bit by bit."""
    config = pretrained.config
    target = counterpart(pretrained.spec, config["model_type"], config["architectures"][0])
    assert target.config["model_type"] == config["model_type"] and target.architecture == config["architectures"][0]
    tensors = target.tensors(model.state_dict())
    used = {name for entry in pretrained.entries for name in entry.theirs}
    kept = {name: pretrained.weights[name] for name in pretrained.weights if name in used}
    assert all(pretrained.family.is_unused(name) for name in pretrained.weights if name not in used)
    assert tensors.keys() == kept.keys()
    for key, tensor in kept.items():
        assert tensor.dtype == torch.bfloat16 and torch.equal(tensors[key].to(tensor.dtype), tensor)


def check_config(pretrained: PretrainedFolder) -> None:
    """The config of the spec is that of the folder, and gives the same spec."""
    config, _, differences = pretrained.family.relative(pretrained.spec)
    assert not differences
    assert pretrained.family.spec(config, pretrained.weights) == pretrained.spec
    same_words = ("architectures", "tie_word_embeddings")  # a body may be written with a head, a T5 as tied or not
    shared = [key for key in config if key in pretrained.config and key not in same_words]
    assert [config[key] for key in shared] == [pretrained.config[key] for key in shared]
