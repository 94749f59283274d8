"""The minimal gated recurrence: its equation, and the same in parallel, in chunks and under the compiler."""

import pytest
import torch

from anyformer.core import Frame, Site, capture, initialise
from anyformer.errors import SpecError
from anyformer.parts.inits.normal import NormalInit
from anyformer.parts.mixers.min_gru import MinGRU, MinGRUPart

DIM, T = 6, 40


def built() -> MinGRUPart:
    part = MinGRU().build(Site(dim=DIM))
    initialise(part, NormalInit(deviation=0.4), seed=0)
    return part


def test_it_is_its_equation() -> None:
    part, x, h = built(), torch.randn(2, T, DIM), torch.zeros(2, DIM)
    y = part(x, Frame()).y
    gate, candidate = part.gates(x).chunk(2, dim=-1)
    for t in range(T):
        z = gate[:, t].sigmoid()
        h = (1 - z) * h + z * candidate[:, t]
        torch.testing.assert_close(y[:, t], h, atol=1e-6, rtol=1e-5)


def test_chunks_through_the_state_are_the_whole() -> None:
    part, x, state, pieces, at = built(), torch.randn(2, T, DIM), None, [], 0
    state = part.init_state(2, T)
    for length in (20, 1, 19):
        out = part(x[:, at : at + length], Frame(positions=torch.arange(at, at + length).expand(2, -1)), state)
        state, at = out.state, at + length
        pieces.append(out.y)
    torch.testing.assert_close(torch.cat(pieces, dim=1), part(x, Frame()).y)


def test_a_shut_gate_passes_gradients_back_unchanged() -> None:
    part, x = built(), torch.randn(1, T, DIM, requires_grad=True)
    assert part.gates.bias is not None
    with torch.no_grad():
        part.gates.bias[:DIM] = -30.0
    state = torch.randn(1, DIM, requires_grad=True)
    y = part(x, Frame(positions=torch.arange(1, T + 1)[None]), state).y
    (gradient,) = torch.autograd.grad(y[:, -1].sum(), state)
    torch.testing.assert_close(gradient, torch.ones(1, DIM))


def test_the_gate_can_be_seen() -> None:
    part, x = built(), torch.randn(2, T, DIM)
    with capture(part, "update") as seen:
        part(x, Frame())
    torch.testing.assert_close(seen["update"][0], part.gates(x)[..., :DIM].sigmoid())


@pytest.mark.compile
def test_a_long_call_is_one_graph() -> None:
    part, x = built(), torch.randn(2, T, DIM)
    compiled = torch.compile(part, fullgraph=True, backend="eager")
    ours, theirs = (
        torch.autograd.grad(run(x, Frame()).y.square().sum(), [*part.parameters()]) for run in (compiled, part)
    )
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other)


def test_in_an_encoder_it_names_the_combinator() -> None:
    with pytest.raises(SpecError, match="bidirectional"):
        MinGRU().place(Site(dim=DIM, causal=False))
