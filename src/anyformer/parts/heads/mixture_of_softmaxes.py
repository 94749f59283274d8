"""Words from a mixture of softmaxes: log p of all words and contexts is a matrix of higher rank than the width allows.

p = sum_k pi_k softmax(tanh(W_k h) E^T),  pi = softmax(W_pi h)          (arXiv 1711.03953, section 2)
E is the embedding's own table. The output is log p of every word.
"""

from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from anyformer.core import Borrowed, Call, Count, Embedding, Frame, Head, HeadSpec, Linear, Site
from anyformer.ops.devices import at_least_float32
from anyformer.ops.loss import loss_in_chunks


@dataclass(frozen=True, kw_only=True)
class MixtureOfSoftmaxes(HeadSpec, kind="mixture_of_softmaxes"):
    """Words from a weighted sum of several softmaxes over the embedding's own table."""

    tied = True
    scores_words = True
    chunked_loss = True

    components: Count = 15
    """Number of softmaxes."""
    scale: Literal["one", "rsqrt_dim"] = "one"
    """Factor on the hidden states: 1, or 1 / sqrt(dim) as in T5."""

    @classmethod
    def examples(cls) -> "tuple[MixtureOfSoftmaxes, ...]":
        return cls(components=3), cls(components=2, scale="rsqrt_dim")

    def build(self, site: Site, embedding: Borrowed[Embedding], vocab: int) -> "MixtureOfSoftmaxesHead":
        return MixtureOfSoftmaxesHead(self, site.dim, embedding, vocab)


class MixtureOfSoftmaxesHead(Head):
    def __init__(self, spec: MixtureOfSoftmaxes, dim: int, embedding: Borrowed[Embedding], vocab: int):
        super().__init__()
        self.embedding, self.components, self.vocab = embedding, spec.components, vocab
        self.scale = dim**-0.5 if spec.scale == "rsqrt_dim" else 1.0
        self.prior = Linear(dim, spec.components, role="gate")
        self.contexts = Linear(dim, (embedding.module.width,) * spec.components, role="in")

    def forward(self, h: Tensor, frame: Frame) -> Tensor:
        log_prior, scores = self._components(h)
        log_words = scores.log_softmax(-1, log_prior.dtype).unflatten(1, (-1, self.components))  # [b t k v]
        log_p: Tensor = (log_prior[..., None] + log_words).logsumexp(2)
        return log_p

    def loss(
        self, h: Tensor, frame: Frame, targets: Tensor, weight: Tensor, smoothing: float = 0.0, z: float = 0.0
    ) -> Tensor:
        loss = super().loss if smoothing else self._loss_of_targets  # smoothing needs log p of every word
        return loss_in_chunks(loss, self.components * self.vocab, h, frame, targets, weight, smoothing, z)

    def _loss_of_targets(
        self, h: Tensor, frame: Frame, targets: Tensor, weight: Tensor, smoothing: float, z: float
    ) -> Tensor:
        """The loss without smoothing, from log p of the targets alone, which is faster than log p of every word. z has
        no effect, because the logarithm of the sum of all probabilities is 0."""
        log_prior, scores = self._components(h)
        words = targets.repeat_interleave(self.components, dim=1)  # [b t*k]
        cross_entropies = F.cross_entropy(scores.flatten(0, 1).to(log_prior.dtype), words.flatten(), reduction="none")
        log_p: Tensor = (log_prior - cross_entropies.view_as(log_prior)).logsumexp(-1)  # [b t]
        return -(log_p * weight).sum()

    def _components(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """log pi [b t k], and the scores of all components [b t*k v]."""
        h = h if self.scale == 1.0 else h * self.scale
        contexts = self.contexts(h).tanh().unflatten(-1, (self.components, -1))  # [b t k w]
        scores = self.embedding.module.table_scores(contexts.flatten(1, 2))
        return self.prior(h).log_softmax(-1, at_least_float32(h)), scores

    def core_flops(self, call: Call) -> tuple[int, int]:
        forward = self.embedding.module.table_flops(call.batch * call.length * self.components)
        return forward, 2 * forward
