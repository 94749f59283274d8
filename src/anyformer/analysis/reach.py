"""Influence in a trained model: how much its hidden state at each token depends on each input token.

share_ij = |dh_i/dx_j| / sum_k |dh_i/dx_k| ,  x: input of the first layer, h: output of the last

The measure is the same for attention, recurrence, convolution and state space, so models can be compared.
"""

from jaxtyping import Float
from torch import Tensor, tensor

from anyformer.analysis.influence import influence
from anyformer.core import Frame, Model
from anyformer.models.single import stack_modules_of

WORK = 1 << 13
"""Maximum number of tokens in all passes: enough for a clear picture, and seconds for millions of weights."""


def reach(model: Model, tokens: list[int]) -> Float[Tensor, "t s"]:
    """The share of each input token in each output token; rows sum to one. Uses the encoder if there is one."""
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
    """For each distance, the share that comes from farther away, averaged over the output tokens."""
    length = len(shares)
    return [float((shares.tril(-far - 1) + shares.triu(far + 1)).sum() / length) for far in range(length)]
