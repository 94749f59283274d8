"""Attention without a mask: a call for each token, on the tokens up to it, against one call with the causal mask.

y_t = softmax(q_t K_1..t^T) V_1..t for t = 1..T takes T calls; the mask computes all rows in one.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from anyformer.analysis.claim import Decision, Figures, TimedClaim, curves
from anyformer.analysis.complexity import SECONDS, TIMED, timed
from anyformer.core import Causal, Full, Marks, MaskRule
from anyformer.drawing.figures import Lines, Panel
from anyformer.ops.attention.attend import dispatch
from anyformer.ops.attention.call import AttentionCall

HEADS, CHANNELS, COMPARED = 4, 16, 64
SAME = 1e-5
PREFIXES, MASKED = "a call for each prefix", "one masked call"


class Prefixes(TimedClaim):
    ids = ("ATT-09",)
    says = "Changing the set of keys at every step keeps a decoder from seeing the future, but it is inefficient."
    sizes = (64, 128, 256, 512, 1024)

    def count(self) -> Figures:
        x = _input(COMPARED)
        return {"difference": float((by_prefix(x) - masked(x)).abs().max())}

    @torch.no_grad()
    def clock(self, sizes: Sequence[int]) -> Figures:
        return timed({PREFIXES: by_prefix, MASKED: masked}, [_input(length) for length in sizes])

    def decide(self, figures: Figures) -> Decision:
        times = ratios(figures)
        return figures["difference"] < SAME and min(times) > 1, (
            f"the outputs differ by {figures['difference']:.0e} at most, and a call for each prefix takes "
            f"{times[0]:.1f} times as long as one masked call over {figures[TIMED][0]} tokens, {times[-1]:.1f} times "
            f"over {figures[TIMED][-1]}"
        )

    def picture(self, figures: Figures) -> list[Panel]:
        times = curves(figures, TIMED, (PREFIXES, MASKED), SECONDS)
        title = f"Attention of {HEADS} heads of {CHANNELS}"
        return [Lines(title, "tokens T", "seconds", times, log_x=True, log_y=True)]


def ratios(figures: Figures) -> list[float]:
    """The time of a call for each prefix, in multiples of one masked call, at each length."""
    pairs = zip(figures[SECONDS + PREFIXES], figures[SECONDS + MASKED], strict=True)
    return [prefixes / masked for prefixes, masked in pairs]


def by_prefix(x: Tensor) -> Tensor:
    """Self-attention of x [b t h c], where each query is computed alone with the keys up to it."""
    length = x.shape[1]
    rows = [_attend(x[:, t : t + 1], x[:, : t + 1], Full()) for t in range(length)]
    return torch.cat(rows, dim=1)


def masked(x: Tensor) -> Tensor:
    """Self-attention of x [b t h c] with the causal mask."""
    return _attend(x, x, Causal())


def _attend(q: Tensor, k: Tensor, rule: MaskRule) -> Tensor:
    queries, keys = (Marks(torch.arange(x.shape[1])[None]) for x in (q, k))
    call = AttentionCall(rule, queries, keys, plain=q.shape[1] == k.shape[1])
    return dispatch(q, k, k, call, scale=CHANNELS**-0.5)


def _input(length: int) -> Tensor:
    return torch.randn(1, length, HEADS, CHANNELS, generator=torch.Generator().manual_seed(0))
