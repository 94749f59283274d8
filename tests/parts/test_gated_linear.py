"""Gated linear attention: its equation, and its gates at their ends."""

import pytest
import torch

from anyformer.core import Frame, Site, initialise
from anyformer.errors import SpecError
from anyformer.parts.inits.normal import NormalInit
from anyformer.parts.mixers.gated_linear import GatedLinear, GatedLinearPart

DIM, HEADS, T = 8, 2, 40


def built() -> GatedLinearPart:
    part = GatedLinear(heads=HEADS, gate_temperature=2.0).build(Site(dim=DIM))
    initialise(part, NormalInit(deviation=0.4), seed=0)
    return part


@pytest.mark.row("XF-10")
def test_it_is_its_equation() -> None:
    part, x = built(), torch.randn(2, T, DIM)
    q, k, v, a = part.qkva(x).unflatten(-1, (4 * HEADS, -1)).chunk(4, dim=2)
    memory, outputs = torch.zeros(2, HEADS, DIM // HEADS, DIM // HEADS), []
    for t in range(T):
        decay = a[:, t].sigmoid().sqrt()  # temperature 2
        memory = decay[..., None] * memory + k[:, t, :, :, None] * v[:, t, :, None]
        outputs.append(torch.einsum("bhn,bhnc->bhc", q[:, t], memory) * (DIM // HEADS) ** -0.5)
    y = part.out(torch.stack(outputs, dim=1).flatten(2))
    torch.testing.assert_close(part(x, Frame()).y, y, atol=1e-5, rtol=1e-4)


def test_a_shut_gate_forgets_and_an_open_one_keeps() -> None:
    part, x = built(), torch.randn(1, T, DIM)
    shape = part.init_state(1, T).shape
    frame, start = Frame(positions=torch.arange(1, T + 1)[None]), torch.randn(shape)
    for gate, kept in ((-1e4, 0.0), (1e4, 1.0)):
        part.decay.register_forward_hook(lambda _tap, _inputs, value, gate=gate: torch.full_like(value, min(gate, 0.0)))
        with_start, without = (part(x, frame, state).state for state in (start.clone(), torch.zeros(shape)))
        torch.testing.assert_close(with_start - without, kept * start, atol=1e-5, rtol=1e-5)


def test_in_an_encoder_it_names_the_combinator() -> None:
    with pytest.raises(SpecError, match="bidirectional"):
        GatedLinear().place(Site(dim=DIM, causal=False))
