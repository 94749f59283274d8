"""What reaches what in a trained model: how much its state at each token depends on each token that it has read.

share_ij = |dh_i/dx_j| / sum_k |dh_i/dx_k| ,  x: what goes into the first layer, h: what comes out of the last

It is the same measure for attention, recurrence, convolution and state space, so it can be set side by side.
"""

from jaxtyping import Float
from torch import Tensor, tensor

from anyformer.analysis.influence import influence
from anyformer.core import Frame, Model
from anyformer.models.single import stack_modules_of

WORK = 1 << 13
"""Tokens that go through the model, both ways: enough to see a shape, and seconds for millions of weights."""


def reach(model: Model, tokens: list[int]) -> Float[Tensor, "t s"]:
    """Shares of one for each token that looks; of a model with an encoder, the encoder's."""
    reader = next(iter(stack_modules_of(model).values()))
    entered: list[Tensor] = []
    hook = reader.stack.register_forward_pre_hook(lambda _, inputs: entered.append(inputs[0].detach()))
    try:
        reader.eval()(tensor([tokens], device=next(model.parameters()).device), Frame(), logits=False)
    finally:
        hook.remove()

    def states(x: Tensor) -> Tensor:
        return reader.stack(x, Frame(inputs=x)).y

    norms = influence(states, entered[0], WORK).norms.cpu()
    shares: Tensor = norms / norms.sum(-1, keepdim=True).clamp_min(1e-30)
    return shares


def from_farther(shares: Float[Tensor, "t t"]) -> list[float]:
    """For each distance, the share that comes from farther away, averaged over the tokens that look."""
    length = len(shares)
    return [float((shares.tril(-far - 1) + shares.triu(far + 1)).sum() / length) for far in range(length)]
