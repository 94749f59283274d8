"""FLOPs as torch counts them on a real model."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from anyformer.core import Frame, MaskRule, Memory, Model, ModelSpec, Work
from anyformer.core.masks import dense
from anyformer.parts.mixers.memory_compressed import MemoryCompressedPart


def memory_for(spec: ModelSpec, model: Model, work: Work) -> Memory | None:
    source, width = work.source or work.length, spec.memory_width
    if spec.needs_source:
        return model.encode(torch.zeros(work.batch, source, dtype=torch.long), Frame())
    return Memory(x=torch.randn(work.batch, source, width)) if width else None


def run(spec: ModelSpec, model: Model, work: Work) -> Tensor:
    return model(torch.zeros(work.batch, work.length, dtype=torch.long), Frame(memory=memory_for(spec, model, work))).y


class Counted(NamedTuple):
    """FLOPs as torch counts them on a real model; `masked`: those of the forward pass that a mask forbids."""

    forward: int
    backward: int
    masked: int


def count(spec: ModelSpec, work: Work) -> Counted:
    model, masked = spec.build(), []

    def note(part: Any, args: tuple[Any, ...], _out: Any) -> None:
        batch, queries = args[0].shape[:2]
        if isinstance(part, MemoryCompressedPart):  # a key for each complete block
            keys = queries // part.stride + part.firsts
            hidden = sum(keys - part.firsts - (place + 1) // part.stride for place in range(queries))
            masked.append(4 * batch * part.h * part.c * hidden)
        else:
            allowed = int(dense(part.rule, queries, queries).sum())
            masked.append(batch * part.pair_flops * (queries**2 - allowed))

    for module in model.modules():
        rule = getattr(module, "rule", None)
        if isinstance(rule, MaskRule) and not rule.is_full and not getattr(module, "cross", False):
            module.register_forward_hook(note)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        y = run(spec, model, work)
        forward = counter.get_total_flops()
        y.sum().backward()
    return Counted(forward, counter.get_total_flops() - forward, sum(masked))
