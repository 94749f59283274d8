"""Feed-forward parts against torch and their equations; and dropout wherever a model has it."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.core import Frame, Module, Part, PartSpec, Site, initialise
from anyformer.models import Block, Branch, Encoder, Stack
from anyformer.models.stack import BranchModule
from anyformer.ops.activations import ACTIVATION_FUNCTIONS, Activation, gelu_by_exponential, gelu_by_sigmoid
from anyformer.parts.channels.glu import GLU
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.inits.xavier import Xavier
from anyformer.parts.joins.rezero import ReZero
from anyformer.parts.mixers.attention import Attention

DIM, HIDDEN = 32, 48


def built(spec: PartSpec) -> Part:
    part = spec.build(Site(dim=DIM))
    initialise(part, Xavier(), 0)
    for name, parameter in part.named_parameters():
        if name.endswith("bias"):
            parameter.data.normal_()
    return part


def tokens() -> Tensor:
    return torch.randn(2, 7, DIM)


def row(name: str, *values: object) -> object:
    return pytest.param(*values, marks=pytest.mark.row(name), id=str(values[0]))


@pytest.mark.row("TRF-06", clause="equals two 1x1 convolutions")
@pytest.mark.row("TRF-13", clause="the same block serves every position")
def test_an_mlp_is_two_convolutions_of_width_one() -> None:
    part, x = built(MLP(activation="relu", bias=True)), tokens()
    up, down = nn.Conv1d(DIM, 4 * DIM, 1), nn.Conv1d(4 * DIM, DIM, 1)
    for conv, mine in ((up, part.up), (down, part.down)):
        conv.weight.data, conv.bias.data = mine.weight.data[..., None], mine.bias.data
    torch.testing.assert_close(part(x, Frame()).y, down(up(x.mT).relu()).mT, atol=1e-5, rtol=1e-5)


@pytest.mark.row("TRF-06", clause="each position is computed independently of the others")
@pytest.mark.parametrize("spec", [MLP(), GLU()], ids=lambda spec: spec.kind)
def test_each_position_is_worked_on_by_itself(spec: PartSpec) -> None:
    x = tokens()
    changed = x.index_fill(1, torch.tensor(3), 0.0)
    part, others = built(spec), torch.arange(7) != 3
    assert torch.equal(part(x, Frame()).y[:, others], part(changed, Frame()).y[:, others])
    assert not torch.allclose(part(x, Frame()).y[:, 3], part(changed, Frame()).y[:, 3])


@pytest.mark.row("TRF-06", clause=("d_ff = 4 d by default", "8 d^2 parameters, 8 d^2 + 5 d with biases"))
@pytest.mark.parametrize(("bias", "expected"), [(False, 8 * DIM**2), (True, 8 * DIM**2 + 5 * DIM)])
def test_an_mlp_has_eight_dim_squared_weights(bias: bool, expected: int) -> None:
    assert sum(parameter.numel() for parameter in built(MLP(bias=bias)).parameters()) == expected


ACTIVATIONS = [
    row("NAR-01", "relu", F.relu),
    row("NAR-02", "gelu", F.gelu),
    row("NAR-02", "gelu_tanh", lambda x: F.gelu(x, approximate="tanh")),
    row("NAR-03", "silu", F.silu),
    row("NAR-04", "elu", F.elu),
    row("NAR-08", "selu", F.selu),
    row("NAR-11", "sigmoid", torch.sigmoid),
    row("NAR-12", "softplus", F.softplus),
]
EQUATIONS = [
    row("NAR-02", "gelu", lambda x: x * torch.distributions.Normal(0.0, 1.0).cdf(x)),
    row("NAR-03", "silu", lambda x: x / (1 + (-x).exp())),
    row("NAR-04", "elu", lambda x: torch.where(x > 0, x, x.exp() - 1)),
    row("NAR-08", "selu", lambda x: 1.0507009873554805 * torch.where(x > 0, x, 1.6732632423543772 * (x.exp() - 1))),
    row("NAR-11", "sigmoid", lambda x: 1 / (1 + (-x).exp())),
    row("NAR-12", "softplus", lambda x: (1 + x.exp()).log()),
]


@pytest.mark.row("NAR-02", clause=("tanh approximation as an option", "equals F.gelu"))
@pytest.mark.row("NAR-03", clause="equals F.silu")
@pytest.mark.row("NAR-04", clause="equals F.elu")
@pytest.mark.row("NAR-08", clause="equals F.selu")
@pytest.mark.row("NAR-11", clause=("sigmoid is the activation of the feed-forward net", "equals torch.sigmoid"))
@pytest.mark.row("NAR-12", clause="equals F.softplus")
@pytest.mark.row("TRF-06", clause="m_i = W_2 relu(W_1 x_i + b_1) + b_2")
@pytest.mark.parametrize(("name", "function"), ACTIVATIONS)
def test_an_mlp_bends_with_the_activation_it_names(name: str, function: Callable[[Tensor], Tensor]) -> None:
    part, x = built(MLP(activation=name, hidden=HIDDEN, bias=True)), tokens()
    hidden = function(x @ part.up.weight.T + part.up.bias)
    torch.testing.assert_close(part(x, Frame()).y, hidden @ part.down.weight.T + part.down.bias)


@pytest.mark.row("NAR-02", clause="x Phi(x), with the normal distribution function")
@pytest.mark.row("NAR-03", clause="x sigmoid(beta x) with beta = 1")
@pytest.mark.row("NAR-04", clause="x above 0, exp(x) - 1 below")
@pytest.mark.row(
    "NAR-08", clause=("lambda x above 0, lambda alpha (exp(x) - 1) below", "lambda = 1.0507, alpha = 1.67326")
)
@pytest.mark.row("NAR-12", clause="log(1 + exp(x))")
@pytest.mark.parametrize(("name", "equation"), EQUATIONS)
def test_an_activation_is_its_equation(name: str, equation: Callable[[Tensor], Tensor]) -> None:
    x = torch.linspace(-6, 6, 101, dtype=torch.float64)
    torch.testing.assert_close(ACTIVATION_FUNCTIONS[name](x), equation(x))


@pytest.mark.parametrize(("name", "mine"), [("gelu_tanh", gelu_by_sigmoid), ("gelu", gelu_by_exponential)])
def test_a_gelu_of_a_gpu_has_the_values_and_the_slopes_of_its_definition(
    name: Activation, mine: Callable[[Tensor], Tensor]
) -> None:
    x = torch.linspace(-12, 12, 4001, requires_grad=True)
    ours, theirs = ((y, *torch.autograd.grad(y.sum(), x)) for y in (mine(x), ACTIVATION_FUNCTIONS[name](x)))
    torch.testing.assert_close(ours, theirs, atol=3e-6, rtol=1e-5)


@pytest.mark.row("NAR-05", clause="output is (sigmoid(x W) * (x V)) W_2")
@pytest.mark.row("NAR-06", clause="output is (GELU(x W) * (x V)) W_2")
@pytest.mark.row(
    "NAR-07", clause=("gate is ReLU(x W), times x V, then W_2", "equals the written equation on random weights")
)
@pytest.mark.row("NAR-09", clause="output is (Swish(x W) * (x V)) W_2")
@pytest.mark.row(
    "NAR-10",
    clause=("bilinear: ((x W) * (x V)) W_2 without a non-linearity", "equals the written equation on random weights"),
)
@pytest.mark.parametrize(
    ("name", "gate"),
    [
        row("NAR-05", "sigmoid", torch.sigmoid),
        row("NAR-06", "gelu", F.gelu),
        row("NAR-07", "relu", F.relu),
        row("NAR-09", "silu", F.silu),
        row("NAR-10", "identity", lambda x: x),
    ],
)
def test_a_gated_unit_is_its_equation(name: str, gate: Callable[[Tensor], Tensor]) -> None:
    part, x = built(GLU(activation=name, hidden=HIDDEN)), tokens()
    w, v = part.up.weight[:HIDDEN], part.up.weight[HIDDEN:]
    torch.testing.assert_close(part(x, Frame()).y, (gate(x @ w.T) * (x @ v.T)) @ part.down.weight.T)


@pytest.mark.row("NAR-05", clause="equals F.glu, given its order of value and gate")
def test_a_glu_is_torchs_with_the_halves_changed() -> None:
    part, x = built(GLU(activation="sigmoid", hidden=HIDDEN)), tokens()
    value_then_gate = part.up(x).roll(HIDDEN, -1)
    torch.testing.assert_close(part(x, Frame()).y, part.down(F.glu(value_then_gate)))


@pytest.mark.row(
    "NAR-05",
    clause=("d_ff = 2048, two thirds of 3072", "weights as many as vanilla's: 3 * 768 * 2048 = 2 * 768 * 3072"),
)
@pytest.mark.row("NAR-06", clause="d_ff = 2048")
def test_two_thirds_of_the_width_make_a_gated_unit_as_large_as_an_mlp() -> None:
    def size(spec: PartSpec) -> int:
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in spec.build(Site(dim=768)).parameters())

    assert size(GLU(hidden=2048)) == size(MLP(hidden=3072)) == 3 * 768 * 2048
    assert size(GLU()) == size(MLP())


@pytest.mark.row("NAR-10", clause="without biases f(c x) = c^2 f(x)")
def test_a_bilinear_unit_is_homogeneous_of_degree_two() -> None:
    part, x = built(GLU(activation="identity")), tokens()
    torch.testing.assert_close(part(3 * x, Frame()).y, 9 * part(x, Frame()).y, atol=1e-4, rtol=1e-4)


def only_embedding(dropout: float) -> Module:
    """A fresh rezero layer is the identity, so what comes out is what went in."""
    stack = Stack(blocks={"a": Block(branches=(Branch(part=MLP(), join=ReZero()),))}, depth=1)
    return Encoder(vocab=16, dim=DIM, stack=stack, dropout=dropout).build()


def branch(dropout: float) -> Module:
    module = BranchModule(Branch(part=MLP(), dropout=dropout), Site(dim=DIM))
    initialise(module, Xavier(), 0)
    return module


PLACES = {
    "attention": lambda dropout: built(Attention(dropout=dropout)),
    "hidden": lambda dropout: built(MLP(dropout=dropout)),
    "gated": lambda dropout: built(GLU(dropout=dropout)),
    "residual": branch,
    "embedding": only_embedding,
}


@pytest.mark.row("XF-13", clause="regularisers: dropout and attention dropout")
@pytest.mark.row(
    "TRF-20", clause=("the mean output equals the input within Monte-Carlo error", "the identity in evaluation mode")
)
@pytest.mark.parametrize("place", PLACES)
def test_dropout_keeps_the_mean_and_is_off_in_evaluation(place: str) -> None:
    x = torch.arange(7)[None] if place == "embedding" else torch.randn(1, 7, DIM)
    dropping, exact = PLACES[place](0.3), PLACES[place](0.0)(x, Frame()).y
    assert torch.equal(dropping.eval()(x, Frame()).y, exact)
    with torch.no_grad():
        samples = dropping.train()(x.repeat_interleave(2000, 0), Frame()).y
    error = samples.std(0) / 2000**0.5
    assert (error > 0).all()
    assert ((samples.mean(0) - exact[0]).abs() < 5 * error).all()


def dropped_weights(x: Tensor, turn: Tensor) -> tuple[Tensor, Tensor]:
    """What attention makes of values that are a turned identity, turned back: its weights; and what they should be."""
    part = built(Attention(heads=1, dropout=0.3))
    q, k, _ = part.qkv.weight.detach().chunk(3)
    part.qkv.weight.data[-DIM:], part.out.weight.data = turn, torch.eye(DIM)
    scores = (x @ q.T) @ (x @ k.T).mT / DIM**0.5
    hidden = torch.ones(DIM, DIM, dtype=torch.bool).triu(1)
    return part(x, Frame()).y @ turn, scores.masked_fill(hidden, -torch.inf).softmax(-1)


def dropped_hidden(x: Tensor, turn: Tensor) -> tuple[Tensor, Tensor]:
    part = built(MLP(hidden=DIM, dropout=0.3))
    part.down.weight.data = turn
    return part(x, Frame()).y @ turn, F.gelu(x @ part.up.weight.T)


def dropped_residual(x: Tensor, _turn: Tensor) -> tuple[Tensor, Tensor]:
    module = BranchModule(Branch(part=MLP(), dropout=0.3, place="none"), Site(dim=DIM))
    initialise(module, Xavier(), 0)
    return module(x, Frame()).y - x, module.part(x, Frame()).y


@pytest.mark.row(
    "TRF-20",
    clause=(
        "inverted dropout: kept entries are scaled by 1 / (1 - p)",
        "acts on residual outputs, attention weights and FFN hidden units",
    ),
)
@pytest.mark.parametrize("place", [dropped_weights, dropped_hidden, dropped_residual])
def test_dropout_makes_zeros_of_weights_hidden_units_or_outputs_and_scales_the_rest(
    place: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
) -> None:
    turn = torch.linalg.qr(torch.randn(DIM, DIM)).Q  # so that zeros made at another place are spread over all channels
    found, exact = place(torch.eye(DIM)[None], turn)
    gone = found.abs() < 1e-5
    torch.testing.assert_close(found, torch.where(gone, 0.0, exact / 0.7), atol=1e-5, rtol=1e-4)
    assert 0.2 < gone[exact.abs() > 1e-3].float().mean() < 0.4
