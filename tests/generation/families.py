"""Small models of two families, with norms that do something."""

from typing import Any

import torch

from anyformer.core import Model
from anyformer.models import Block, Branch, Decoder, Stack
from anyformer.parts.channels.glu import GLU
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.inits.normal import NormalInit
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.norms.layer import LayerNorm
from anyformer.parts.norms.rms import RMSNorm
from anyformer.parts.positions.learned import LearnedPosition
from anyformer.parts.positions.rope import Rope

LAYERS = 2


def gpt2(**branch: Any) -> Model:
    parts = Attention(heads=2, bias=True), MLP(activation="gelu_tanh", bias=True)
    return _decoder(LayerNorm(), *parts, branch=branch, position=LearnedPosition())


def llama() -> Model:
    return _decoder(RMSNorm(), Attention(heads=4, kv_heads=2, position=Rope()), GLU(), branch={})


def _decoder(norm: Any, *parts: Any, branch: dict[str, Any], **options: Any) -> Model:
    block = Block(branches=tuple(Branch(part=part, norm=norm, **branch) for part in parts))
    stack, sure = Stack(blocks={"layer": block}, depth=LAYERS), NormalInit(deviation=0.5)
    model = Decoder(vocab=50, dim=32, stack=stack, max_len=64, exit_norm=norm, init=sure, **options).build().eval()
    rng = torch.Generator().manual_seed(0)
    for value in model.parameters():
        if value.ndim == 1:
            value.data += 0.3 * torch.randn(value.shape, generator=rng)
    return model
