"""A small GPT and its training recipe as a plain script would write them: the opponent of ours in several benchmarks.

Learned positions, LayerNorm, GELU, a tied head; AdamW with a warm-up and a cosine down to a tenth, clipping, windows
that are drawn anew at every step. The recipe is nanoGPT's (https://github.com/karpathy/nanoGPT), the code is not.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

DECAY, CLIP, FLOOR = 0.1, 1.0, 0.1


@dataclass(frozen=True)
class Shape:
    """The size of the model."""

    vocab: int
    context: int
    dim: int
    heads: int
    depth: int
    dropout: float = 0.0
    bias: bool = True


class PlainBlock(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        dim, bias = shape.dim, shape.bias
        self.heads, self.dropout = shape.heads, shape.dropout
        self.norms = nn.ModuleList(nn.LayerNorm(dim, bias=bias) for _ in range(2))
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=bias), nn.Linear(dim, dim, bias=bias)
        self.up, self.down = nn.Linear(dim, 4 * dim, bias=bias), nn.Linear(4 * dim, dim, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.norms[0](x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        dropout = self.dropout if self.training else 0.0
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
        x = x + F.dropout(self.out(seen.transpose(1, 2).flatten(2)), dropout)
        return x + F.dropout(self.down(F.gelu(self.up(self.norms[1](x)))), dropout)


class PlainModel(nn.Module):
    """Tokens [b t] -> logits [b t v]."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.dropout = shape.dropout
        self.words, self.places = nn.Embedding(shape.vocab, shape.dim), nn.Embedding(shape.context, shape.dim)
        self.blocks = nn.Sequential(*(PlainBlock(shape) for _ in range(shape.depth)))
        self.norm = nn.LayerNorm(shape.dim, bias=shape.bias)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                ends_branch = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(parameter, 0.0, 0.02 / math.sqrt(2 * shape.depth) if ends_branch else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return self.norm(self.blocks(F.dropout(x, self.dropout, self.training))) @ self.words.weight.T


def optimizer_of(model: nn.Module, beta2: float) -> torch.optim.AdamW:
    """AdamW with weight decay for matrices and tables."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    rest = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, betas=(0.9, beta2), fused=True)


def rate_at(step: int, steps: int, rate: float, warmup: int) -> float:
    """Linear warm-up, then a cosine down to a tenth."""
    if step < warmup:
        return rate * step / warmup
    wave = (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup))) / 2
    return rate * (FLOOR + (1 - FLOOR) * wave)


def windows_at(text: Tensor, starts: Tensor, context: int) -> Tensor:
    """Windows [rows context+1] of a text that begin at these places."""
    return text[(starts[:, None] + torch.arange(context + 1)).to(text.device)]


def update(loss: Tensor, model: nn.Module, optimizer: torch.optim.Optimizer, rate: float) -> None:
    """One update of the weights by the gradient of a loss."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
