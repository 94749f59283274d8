"""The plain recurrent network: its equation, the unrolled net, and how gradients flow back through time."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from anyformer.core import Frame, Site, State, detach, initialise
from anyformer.errors import SpecError
from anyformer.models import Block, Branch, Decoder, Stack
from anyformer.ops.recurrence.cells import RNN_CELL, recur_loop
from anyformer.parts.heads.untied import Untied
from anyformer.parts.inits.normal import NormalInit
from anyformer.parts.joins.replace import Replace
from anyformer.parts.mixers.rnn import RNN, RNNPart

DIM, T = 6, 9


def built(hidden: int | None = None, dim: int = DIM, bias: bool = True) -> RNNPart:
    part = RNN(hidden=hidden, bias=bias).build(Site(dim=dim)).double()
    initialise(part, NormalInit(deviation=0.4), seed=0)
    if part.bias is not None:
        nn.init.normal_(part.bias)
    return part


def tokens(batch: int = 2, length: int = T) -> Tensor:
    return torch.randn(batch, length, DIM, dtype=torch.float64, requires_grad=True)


@pytest.mark.row(
    "RNN-01",
    clause=("h_t = tanh(W_xh x_t + W_hh h_(t-1) + b_h), a loop over t", "starts from h_0 = 0 or from a given state"),
)
def test_it_is_its_equation() -> None:
    part, x, h = built(), tokens(), torch.zeros(2, DIM, dtype=torch.float64)
    y = part(x, Frame()).y
    for t in range(T):
        h = torch.tanh(x[:, t] @ part.input.T + h @ part.recurrent.T + part.bias)
        torch.testing.assert_close(y[:, t], h)


@pytest.mark.row("CLM-10", clause="the formulas are exact, with constants and any biases")
@pytest.mark.row(
    "RNN-01",
    clause=("2 d^2 + d weights when d_in = d_h = d", "d_in d + d d + d parameters: one bias where torch has two"),
)
@pytest.mark.parametrize(("dim", "hidden"), [(6, 6), (6, 10)])
def test_weights_are_counted(dim: int, hidden: int) -> None:
    count = sum(parameter.numel() for parameter in built(hidden, dim).parameters())
    projection = 0 if dim == hidden else hidden * dim
    assert count == dim * hidden + hidden**2 + hidden + projection


class Layer(nn.Module):
    """Layer t of the unrolled net: reads token t beside the layer below."""

    def __init__(self, cell: nn.Module, t: int):
        super().__init__()
        self.cell, self.t = cell, t

    def forward(self, carried: tuple[Tensor, list[Tensor]]) -> tuple[Tensor, list[Tensor]]:
        x, below = carried
        return x, [*below, torch.tanh(self.cell(torch.cat((x[:, self.t], below[-1]), dim=-1)))]


def depth(node: torch.autograd.graph.Node | None) -> int:
    """The most tanh on a way back from here."""
    if node is None:
        return 0
    return max((depth(parent) for parent, _ in node.next_functions), default=0) + (node.name() == "TanhBackward0")


@pytest.mark.row("CLM-06", clause="longest path in the autograd graph: |i - j| + c for the RNN")
@pytest.mark.row(
    "RNN-02",
    clause=(
        "the unrolled form is an nn.Sequential of T layers with tied weights",
        "outputs of the loop and of the unrolled graph agree to 1e-6",
        "gradients of the loop and of the unrolled graph agree to 1e-6",
        "a depth counter of the unrolled graph gives T",
    ),
)
def test_unrolled_it_is_a_deep_net_with_tied_weights() -> None:
    part, x = built(), tokens()
    tied = nn.Linear(2 * DIM, DIM).double()
    with torch.no_grad():
        tied.weight.copy_(torch.cat((part.input, part.recurrent), dim=1))
        tied.bias.copy_(part.bias)
    net = nn.Sequential(*(Layer(tied, t) for t in range(T)))
    theirs = torch.stack(net((x, [torch.zeros(2, DIM, dtype=torch.float64)]))[1][1:], dim=1)
    ours = part(x, Frame()).y
    torch.testing.assert_close(ours, theirs)
    (ours.square().sum() + theirs.square().sum()).backward()
    torch.testing.assert_close(torch.cat((part.input.grad, part.recurrent.grad), dim=1), tied.weight.grad)
    assert depth(theirs[:, -1].sum().grad_fn) == depth(recur_loop(RNN_CELL, part.weights, x)[0].sum().grad_fn) == T


@pytest.mark.row(
    "RNN-03",
    clause=(
        "a cell maps (x_t, h_(t-1)) to h_t",
        "a head maps h_t to y_t",
        "the head comes off the stack: it reads the top layer's state alone",
    ),
)
@pytest.mark.row("RNN-20", clause="f(x[:t])[-1] for each t equals one parallel call")
def test_a_cell_stepped_over_tokens_and_a_head_are_the_whole_model() -> None:
    layer = Block(branches=(Branch(part=RNN(), place="none", join=Replace()),))
    model = Decoder(vocab=11, dim=DIM, stack=Stack(blocks={"layer": layer}, depth=2)).build(seed=0).double()
    words = torch.randint(0, 11, (2, T))
    whole, state = model(words, Frame()).y, model.init_state(2, T)
    for t in range(T):
        out = model(words[:, t : t + 1], Frame(positions=torch.full((2, 1), t)), state, logits=False)
        state = out.state
        torch.testing.assert_close(model.head(out.y, Frame())[:, 0], whole[:, t])
        torch.testing.assert_close(model(words[:, : t + 1], Frame()).y[:, -1], whole[:, t])


@pytest.mark.row("RNN-01", clause="y_t = W_y h_t + b_y is read off the state")
@pytest.mark.row("RNN-03", clause="a head maps h_t to y_t")
def test_outputs_are_read_off_the_states_with_a_matrix_and_a_bias() -> None:
    layer = Block(branches=(Branch(part=RNN(), place="none", join=Replace()),))
    stack = Stack(blocks={"layer": layer}, depth=1)
    model = Decoder(vocab=11, dim=DIM, stack=stack, exit_norm=None, head=Untied(bias=True)).build(seed=0).double()
    nn.init.normal_(model.head.words.bias)  # type: ignore[union-attr, arg-type]
    words, cell = torch.randint(0, 11, (2, T)), model.stack.calls()[0].branches[0].part
    x, h = model.embedding(words), torch.zeros(2, DIM, dtype=torch.float64)
    for t, y in enumerate(model(words, Frame()).y.unbind(1)):
        h = torch.tanh(x[:, t] @ cell.input.T + h @ cell.recurrent.T + cell.bias)
        torch.testing.assert_close(y, h @ model.head.words.weight.T + model.head.words.bias)


def closed_form(part: RNNPart, x: Tensor, weight: Tensor) -> Tensor:
    """dL/dW_h for L = sum_t weight_t . h_t: over t and k <= t, the product of dh_i/dh_{i-1} times d+h_k/dW_h."""
    length, total = x.shape[0], torch.zeros_like(part.recurrent)
    h = torch.cat((torch.zeros_like(x[:1]), part(x[None], Frame()).y[0]))  # h_0 .. h_T
    slope = 1 - h.square()
    for t in range(1, length + 1):
        back = weight[t - 1]  # dL_t/dh_k, from k = t down
        for k in range(t, 0, -1):
            total += torch.outer(back * slope[k], h[k - 1])
            back = (back * slope[k]) @ part.recurrent
    return total


@pytest.mark.row(
    "RNN-13",
    clause=(
        "dL_t/dW_h sums over k = 1..t the paths through the Jacobian product",
        "d+h_k/dW_h is the immediate partial, h_(k-1) held fixed",
        "dh_i/dh_(i-1) = diag(1 - tanh^2) W_h",
        "the Jacobians are multiplied in the order t down to k+1",
        "the gradient of the total loss is the sum over t",
        "float64 closed form equals autograd, rel. error < 1e-10, T = 1..20",
    ),
)
@pytest.mark.parametrize("length", range(1, 21))
def test_backpropagation_through_time_is_its_closed_form(length: int) -> None:
    part, x, weight = built(), tokens(1, length)[0], torch.randn(length, DIM, dtype=torch.float64)
    (gradient,) = torch.autograd.grad((part(x[None], Frame()).y[0] * weight).sum(), part.recurrent)
    with torch.no_grad():
        expected = closed_form(part, x, weight)
    assert (gradient - expected).norm() <= 1e-10 * expected.norm()  # both are 0 for a single token


def in_segments(part: RNNPart, x: Tensor, size: int, between: Callable[[State], State]) -> Tensor:
    state, pieces = part.init_state(len(x), x.shape[1]), []
    for at in range(0, x.shape[1], size):
        piece = x[:, at : at + size]
        out = part(piece, Frame(positions=at + torch.arange(piece.shape[1]).expand(len(x), -1)), state)
        state = between(out.state)
        pieces.append(out.y)
    return torch.cat(pieces, dim=1)


@pytest.mark.row("RNN-01", clause="starts from h_0 = 0 or from a given state")
@pytest.mark.row(
    "RNN-14",
    clause=(
        "the state is detached every K steps",
        "the gradient to inputs before the window is exactly 0",
        "the gradient to inputs inside the window is non-zero",
    ),
)
def test_truncated_gradients_end_at_the_edge_of_their_segment() -> None:
    part, x = built(), tokens()
    y = in_segments(part, x, 4, detach)
    torch.testing.assert_close(y, part(x, Frame()).y)
    (gradient,) = torch.autograd.grad(y[:, 6].sum(), x)
    assert not gradient[:, :4].any() and not gradient[:, 7:].any()
    assert gradient[:, 4:7].abs().amax(dim=(0, 2)).min() > 0


@pytest.mark.row("RNN-14", clause="K >= T gives the gradients of full BPTT")
@pytest.mark.parametrize(("size", "between"), [(T, detach), (4, lambda state: state)], ids=["one", "not_cut"])
def test_without_a_cut_gradients_are_those_of_the_whole(size: int, between: Callable[[State], State]) -> None:
    part, x = built(), tokens()
    ours, whole = (
        torch.autograd.grad(y[:, -1].sum(), (x, *part.parameters()))
        for y in (in_segments(part, x, size, between), part(x, Frame()).y)
    )
    for mine, other in zip(ours, whole, strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.row(
    "RNN-20",
    clause=(
        "causal: y_t = f(x_1..x_t) with the same f and weights at each t",
        "f(x[:t])[-1] for each t equals one parallel call",
    ),
)
def test_one_function_for_every_length() -> None:
    part, x = built(), tokens()
    y = part(x, Frame()).y
    for t in range(1, T + 1):
        torch.testing.assert_close(part(x[:, :t], Frame()).y[:, -1], y[:, t - 1])
    assert {tuple(parameter.shape) for parameter in part.parameters()} == {(DIM, DIM), (DIM,)}


def test_in_an_encoder_it_names_the_combinator() -> None:
    with pytest.raises(SpecError, match="bidirectional"):
        RNN().place(Site(dim=DIM, causal=False))
