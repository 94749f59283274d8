"""A mixture of experts: each token goes through the k of many feed-forward networks that a router selects.

y = sum_{i in top k} g_i W2_i phi(W1_i x) ;  p = softmax(W_r x)          W_r x is computed in float32
k = 1: g = p_i (Switch, arXiv 2101.03961) ;  k > 1: g = p_i / sum of the k largest p (GShard, arXiv 2006.16668)
balance loss  E sum_i f_i P_i    f_i: share of tokens whose first expert is i; P_i: mean of p_i. 1 if either is uniform

gating = "noisy" (arXiv 1701.06538): logits W_r x + normal noise times softplus(W_n x), in training. Its balance loss is
CV^2(sum of g_i) + CV^2(sum of P(i is among the k largest if its noise is drawn again)): importance and load.

In training an expert computes at most C = max(4, ceil(capacity tokens / E)) tokens of a document, the first ones. The
others are dropped: the choice adds zero, and the token passes by the residual connection. Counted by position and in
each document alone, a choice depends on no other row, and on later tokens only by their number. (The release of arXiv
2102.11972 counts in groups of rows, all first choices before any second one, and drops in evaluation, too.)
"""

from dataclasses import dataclass
from math import sqrt
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.core import (
    Call,
    Chance,
    Count,
    Fill,
    Frame,
    Out,
    Part,
    PartSpec,
    Positive,
    Range,
    Site,
    State,
    Tap,
    param,
)
from anyformer.errors import SpecError
from anyformer.ops.activations import ACTIVATION_FUNCTIONS, Activation
from anyformer.ops.devices import at_least_float32, no_autocast
from anyformer.ops.grouped_linear import grouped_linear
from anyformer.ops.routing import (
    balance_loss,
    expert_capacity,
    selection_chance,
    squared_variation,
    token_sum,
    within_capacity,
)


@dataclass(frozen=True, kw_only=True)
class Experts(PartSpec, kind="experts"):
    """A mixture of experts: each token goes through the few feed-forward networks that a router selects."""

    perspective = "efficiency"

    experts: Count = 8
    """Number of experts."""
    top_k: Count = 2
    """Experts that each token uses."""
    hidden: Count | None = None
    """Width between the two matrices of an expert; 4 dim if not given."""
    activation: Activation = "gelu"
    """Activation of the hidden values."""
    gating: Literal["softmax", "noisy"] = "softmax"
    """Logits of the experts as they are, or with learned noise in training and losses of importance and load."""
    capacity: Positive | None = None
    """Most tokens of a document that an expert computes in training, as a multiple of tokens / experts and at least 4;
    further tokens are dropped. No limit if not given. In evaluation no token is dropped."""
    balance: Annotated[float, Range(low=0.0)] = 0.01
    """Weight of the loss that balances the experts, in training."""
    sure_gate: Positive | None = None
    """In training a choice after the first is used with probability min(1, gate / sure_gate); always if not given."""
    jitter: Chance = 0.0
    """In training the router's input is multiplied by uniform random numbers between 1 - jitter and 1 + jitter."""
    init_scale: Positive = 1.0
    """Factor on the variance of the initial weights of router and experts."""
    dropout: Chance = 0.0
    """Dropout on the hidden values."""

    def check(self) -> None:
        if self.top_k > self.experts:
            raise SpecError(f"top_k={self.top_k} must be at most experts={self.experts}. Lower it, or add experts.")

    def build(self, site: Site) -> "ExpertsPart":
        return ExpertsPart(self, site)

    @classmethod
    def examples(cls) -> "tuple[Experts, ...]":
        return cls(experts=4, hidden=48), cls(experts=3, top_k=1, capacity=1.0, activation="relu")


class ExpertsPart(Part):
    def __init__(self, spec: Experts, site: Site):
        super().__init__()
        self.e, self.k, self.d, self.f = spec.experts, spec.top_k, site.dim, spec.hidden or 4 * site.dim
        self.noisy, self.jitter, self.sure_gate = spec.gating == "noisy", spec.jitter, spec.sure_gate
        self.capacity, self.balance, self.init_scale = spec.capacity, spec.balance, spec.init_scale
        self.activation, self.dropout = ACTIVATION_FUNCTIONS[spec.activation], spec.dropout
        routers = 2 if self.noisy else 1
        # One tensor holds the matrices of all experts as its rows. Each has its entry in `roles`, so that it is
        # initialised and optimised like the weight of a Linear.
        self.router = param((routers * self.e, self.d), "gate")
        self.up, self.down = param((self.e * self.f, self.d), "in"), param((self.e * self.d, self.f), "out")
        self.roles |= {"up": (("in", self.f),) * self.e, "down": (("out", self.d),) * self.e}
        self.roles["router"] = (("gate", self.e),) * routers
        self.choices, self.gates, self.dropped = Tap(), Tap(), Tap()

    def init(self, fill: Fill) -> None:
        super().init(fill)
        for parameter in (self.router, self.up, self.down):
            parameter.mul_(sqrt(self.init_scale))

    def forward(self, x: Tensor, frame: Frame, state: State | None = None) -> Out:
        clean, spread = self._logits(x)
        logits = clean if spread is None or not self.training else clean + torch.randn_like(clean) * spread
        p = logits.softmax(-1)  # [b t e]
        largest, choices = logits.topk(self.k, dim=-1)  # [b t k]
        gates = largest.softmax(-1) if self.k > 1 else p.gather(-1, choices)
        valid = torch.ones_like(choices[..., 0], dtype=torch.bool) if frame.valid is None else frame.valid
        used = valid[..., None].expand_as(choices)
        if self.training and self.sure_gate is not None:
            used = self._without_small_gates(used, gates, self.sure_gate)
        if self.training and self.capacity is not None:
            starts, wanted = frame.document_starts(x, state), used
            limit = expert_capacity(valid, starts, self.capacity, self.e)
            used = within_capacity(choices, wanted, limit, starts, self.e)
            self.dropped((wanted & ~used).sum())
        y = self._mixture(x, self.choices(choices.where(used, self.e)), self.gates(gates.where(used, 0.0)))
        if not (self.training and self.balance):  # the loss of an evaluation is that of the task alone
            return Out(y, state)
        if spread is None:
            return Out(y, state, {"balance": self.balance * balance_loss(p, valid)})
        importance = token_sum(torch.zeros_like(p).scatter(-1, choices, gates), valid)
        load = token_sum(selection_chance(clean, logits, spread, self.k), valid)
        return Out(y, state, {"balance": self.balance * (squared_variation(importance) + squared_variation(load))})

    def _logits(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """The logits of the experts [b t e], and the size of their noise if it is learned."""
        x = x.to(at_least_float32(x))
        if self.training and self.jitter:
            x = x * torch.empty_like(x).uniform_(1 - self.jitter, 1 + self.jitter)
        with no_autocast(x):
            logits = F.linear(x, self.router.to(x.dtype))
        if not self.noisy:
            return logits, None
        clean, spread = logits.chunk(2, dim=-1)
        return clean, F.softplus(spread)

    @staticmethod
    def _without_small_gates(used: Tensor, gates: Tensor, sure: float) -> Tensor:
        """Leaves out choices at random, more often if their gates are small, but never the first choice of a token."""
        drawn = torch.rand_like(gates) < gates / sure
        return torch.cat((used[..., :1], (used & drawn)[..., 1:]), dim=-1)

    def _mixture(self, x: Tensor, choices: Tensor, gates: Tensor) -> Tensor:
        """sum_k g_k expert_k(x) for every token; a choice of expert `e` adds nothing."""
        # By time, then by row: what follows later never moves a token within the group of its expert.
        experts, order = choices.transpose(0, 1).flatten().sort(stable=True)  # [t b k]
        ends = torch.searchsorted(experts, torch.arange(self.e, device=x.device), right=True)
        rows = x.transpose(0, 1).flatten(0, 1)[order // self.k]  # [n d]
        hidden = self.activation(grouped_linear(rows, self.up.unflatten(0, (self.e, self.f)), ends))
        hidden = torch.dropout(hidden, self.dropout, self.training)
        rows = grouped_linear(hidden, self.down.unflatten(0, (self.e, self.d)), ends)
        outputs = rows[order.argsort()].unflatten(0, (x.shape[1], x.shape[0], self.k)).transpose(0, 1)  # [b t k d]
        y: Tensor = (outputs * gates[..., None].type_as(outputs)).sum(2)
        return y

    def core_flops(self, call: Call) -> tuple[int, int]:
        tokens, learns = call.batch * call.length, 2 if call.input_learns else 1
        router, matrix = 2 * tokens * self.router.numel(), 2 * tokens * self.k * self.d * self.f
        return router + 2 * matrix, learns * (router + matrix) + 2 * matrix
