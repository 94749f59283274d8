"""Long short-term memory: its equation, its cost, its state, and what the compiler sees of it."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.exc import Unsupported
from torch._dynamo.utils import counters
from torch.utils.flop_counter import FlopCounterMode

from anyformer.core import Call, Frame, Out, Site, initialise
from anyformer.errors import SpecError
from anyformer.parts.inits.normal import NormalInit
from anyformer.parts.mixers.lstm import LSTM, LSTMPart, LSTMState

DIM = 6


def built(hidden: int | None = None, bias: bool = True) -> LSTMPart:
    part = LSTM(hidden=hidden, bias=bias).build(Site(dim=DIM))
    initialise(part, NormalInit(deviation=0.4), seed=0)
    return part


@pytest.mark.row(
    "RNN-05",
    clause=(
        "i, f, o are sigmoids and g a tanh of affine maps of [x_t; h_(t-1)]",
        "c_t = f c_(t-1) + i g and h_t = o tanh(c_t)",
    ),
)
def test_it_is_its_equation() -> None:
    part, x = built(), torch.randn(2, 5, DIM)
    h = c = torch.zeros(2, DIM)
    y = part(x, Frame()).y
    for t in range(5):
        gates = x[:, t] @ part.input.T + h @ part.recurrent.T + part.input_bias + part.recurrent_bias
        i, f, g, o = gates.chunk(4, dim=-1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        torch.testing.assert_close(y[:, t], h, atol=1e-6, rtol=1e-5)


@pytest.mark.row("RNN-05", clause="the cell path is additive like a residual: f = 1, i = 0 keeps c")
def test_with_forgetting_and_input_shut_off_a_cell_keeps_its_content() -> None:
    part, state = built(), LSTMState(torch.randn(2, DIM), torch.randn(2, DIM))
    assert part.input_bias is not None
    with torch.no_grad():
        part.input_bias.view(4, DIM)[:2] = torch.tensor([[-1e4], [1e4]])  # i = 0, f = 1
    frame = Frame(positions=torch.arange(1, 41).expand(2, -1))
    out = part(torch.randn(2, 40, DIM), frame, LSTMState(state.h.clone(), state.c.clone()))
    assert torch.equal(out.state.c, state.c) and not torch.equal(out.state.h, state.h)


@pytest.mark.row("RNN-05", clause="4 (d_in d + d^2 + 2 d) parameters with torch's two biases")
def test_weights_are_counted() -> None:
    count = sum(parameter.numel() for parameter in built(hidden=10).parameters())
    assert count == 4 * (DIM * 10 + 10**2 + 2 * 10) + 10 * DIM


def test_a_fresh_cell_remembers() -> None:
    part = built()
    assert part.input_bias is not None and part.recurrent_bias is not None
    assert part.input_bias.unflatten(0, (4, DIM)).mean(1).tolist() == [0.0, 1.0, 0.0, 0.0]
    assert not part.recurrent_bias.any()


def test_flops_are_those_of_unrolled_cells() -> None:
    part, cell, x = built(), nn.LSTMCell(DIM, DIM), torch.randn(3, 7, DIM, requires_grad=True)
    state = torch.zeros(3, DIM), torch.zeros(3, DIM)
    with FlopCounterMode(display=False) as counter:
        hidden = []
        for t in range(7):
            state = cell(x[:, t], state)
            hidden.append(state[0])
        forward = counter.get_total_flops()
        torch.stack(hidden).sum().backward()
    assert part.core_flops(Call(3, 7)) == (forward, counter.get_total_flops() - forward)


def test_the_state_is_single_precision_whatever_the_model() -> None:
    part = built().bfloat16()
    state, frame = part.init_state(2, 9), Frame(positions=torch.arange(5).expand(2, -1))
    out = part(torch.randn(2, 5, DIM).bfloat16(), frame, state)
    assert out.y.dtype == torch.bfloat16
    assert [leaf.dtype for leaf in (*state, *out.state)] == [torch.float32] * 4


def test_position_0_resets_a_row_in_the_middle_of_a_call() -> None:
    part, x = built(), torch.randn(2, 5, DIM)
    positions = torch.tensor([[4, 5, 6, 7, 8], [4, 5, 0, 1, 2]])
    state = LSTMState(torch.randn(2, DIM), torch.randn(2, DIM))
    out = part(x, Frame(positions=positions), state)
    alone = part(x[1:, 2:], Frame(positions=positions[1:, 2:]), part.init_state(1, 9))
    torch.testing.assert_close(out.y[1:, 2:], alone.y)
    for ours, theirs in zip(out.state, alone.state, strict=True):
        torch.testing.assert_close(ours[1:], theirs)


def test_a_state_needs_positions() -> None:
    part = built()
    with pytest.raises(SpecError, match=r"frame.positions"):
        part(torch.randn(2, 5, DIM), Frame(), part.init_state(2, 9))


def _stepped(part: Any, x: Tensor) -> Tensor:
    state, pieces = built().init_state(2, 9), []
    for t in range(x.shape[1]):
        out: Out = part(x[:, t : t + 1].clone(), Frame(positions=torch.full((2, 1), t)), state)
        state = out.state
        pieces.append(out.y)
    return torch.cat(pieces, dim=1)


@pytest.mark.compile
@pytest.mark.slow
def test_steps_and_short_calls_are_one_graph() -> None:
    torch._dynamo.reset()
    counters.clear()
    part, x = built(), torch.randn(2, 5, DIM)
    compiled = torch.compile(part, fullgraph=True, backend="eager")
    with torch.no_grad():
        torch.testing.assert_close(_stepped(compiled, x), part(x, Frame()).y)
    assert counters["stats"]["unique_graphs"] == 1
    torch.testing.assert_close(compiled(x, Frame()).y, part(x, Frame()).y)


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch looks there when it takes up its graph again
def test_long_calls_leave_the_graph_for_the_kernel() -> None:
    torch._dynamo.reset()
    part, x = built(), torch.randn(2, 40, DIM)
    compiled = torch.compile(lambda x: part(2 * x, Frame()).y + 1, backend="eager")
    for _ in range(2):
        torch.testing.assert_close(compiled(x), part(2 * x, Frame()).y + 1)
    torch._dynamo.reset()
    with pytest.raises(Unsupported):
        torch.compile(part, fullgraph=True, backend="eager")(x, Frame())
