"""The loss of every head over words is what its logits say, value and gradients."""

import pytest
import torch
from torch import Tensor

from anyformer.core import EmbeddingSpec, Frame, Head, HeadSpec
from anyformer.models import Block, Branch, Encoder, Stack
from anyformer.ops import loss as losses
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.embeddings.adaptive import AdaptiveEmbedding
from anyformer.parts.embeddings.factorized import Factorized
from anyformer.parts.embeddings.plain import Plain
from anyformer.parts.heads.adaptive_softmax import AdaptiveSoftmax
from anyformer.parts.heads.capped import Capped
from anyformer.parts.heads.classifier import Classifier
from anyformer.parts.heads.masked_words import MaskedWordsHead
from anyformer.parts.heads.mixture_of_softmaxes import MixtureOfSoftmaxes
from anyformer.parts.heads.tied import Tied
from anyformer.parts.heads.untied import Untied
from anyformer.parts.pools.mean import Mean

HEADS = [
    *(Tied(), Tied(scale="rsqrt_dim"), Untied(), Untied(bias=True), MaskedWordsHead(), Capped(head=Tied(), cap=2.0)),
    *(AdaptiveSoftmax(clusters=((10, 32), (15, 8)), rest=4), MixtureOfSoftmaxes(components=3, scale="rsqrt_dim")),
]
EMBEDDINGS = [Plain(), Factorized(width=8), AdaptiveEmbedding(clusters=((10, 32), (15, 8)), rest=4)]
VOCAB, DIM = 50, 32


def head_and_table(head: HeadSpec, embedding: EmbeddingSpec) -> tuple[Head, list[Tensor]]:
    stack = Stack(blocks={"a": Block(branches=(Branch(part=MLP()),))}, depth=1)
    model = Encoder(vocab=VOCAB, dim=DIM, stack=stack, head=head, embedding=embedding).build()
    for parameter in model.parameters():
        parameter.data.add_(0.3 * torch.randn_like(parameter))
    return model.head, [*model.embedding.parameters(), *model.head.parameters()]


@pytest.mark.parametrize("embedding", EMBEDDINGS, ids=lambda embedding: embedding.kind)
@pytest.mark.parametrize("spec", HEADS, ids=str)
@pytest.mark.parametrize(("smoothing", "z"), [(0.0, 0.0), (0.1, 0.01)])
def test_a_head_scores_as_its_logits_say(
    spec: HeadSpec, embedding: EmbeddingSpec, smoothing: float, z: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses, "_SCORES", 4 * VOCAB)  # several chunks, where they are of this size
    head, leaves = head_and_table(spec, embedding)
    h, targets = torch.randn(3, 7, DIM, requires_grad=True), torch.randint(VOCAB, (3, 7))
    weight = torch.rand(3, 7) * (torch.rand(3, 7) < 0.5)
    mine = head.loss(h, Frame(), targets, weight, smoothing, z)
    plain = Head.loss(head, h, Frame(), targets, weight, smoothing, z)
    torch.testing.assert_close(mine, plain)
    used = [
        leaf
        for leaf in (h, *leaves)
        if torch.autograd.grad(plain, leaf, retain_graph=True, allow_unused=True)[0] is not None
    ]
    for a, b in zip(*(torch.autograd.grad(loss, used) for loss in (mine, plain)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("spec", HEADS, ids=str)
def test_tokens_of_weight_zero_have_no_loss(spec: HeadSpec) -> None:
    head, _ = head_and_table(spec, Plain())
    h, targets = torch.randn(3, 7, DIM, requires_grad=True), torch.randint(VOCAB, (3, 7))
    loss = head.loss(h, Frame(), targets, torch.zeros(3, 7))
    assert loss == 0 and not torch.autograd.grad(loss, h)[0].any()


@pytest.mark.parametrize("spec", HEADS, ids=str)
def test_without_options_a_loss_is_neither_smoothed_nor_has_a_term_of_the_normaliser(spec: HeadSpec) -> None:
    head, _ = head_and_table(spec, Plain())
    h, targets, weight = torch.randn(3, 7, DIM), torch.randint(VOCAB, (3, 7)), torch.rand(3, 7)
    log_p = head(h, Frame()).log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    torch.testing.assert_close(head.loss(h, Frame(), targets, weight), -(weight * log_p).sum())


def test_a_class_for_each_row_has_a_loss_too() -> None:
    head, _ = head_and_table(Classifier(classes=3, pool=Mean()), Plain())
    h, targets, weight = torch.randn(4, 5, DIM), torch.tensor([0, 2, 1, 1]), torch.tensor([1.0, 0.0, 2.0, 1.0])
    chance = head(h, Frame()).log_softmax(-1)
    expected = -(weight * chance[torch.arange(4), targets]).sum()
    torch.testing.assert_close(head.loss(h, Frame(), targets, weight), expected)


def test_hidden_places_cost_the_layer_before_the_table_nothing() -> None:
    head, _ = head_and_table(MaskedWordsHead(), Plain())
    seen: list[int] = []
    head.layer.register_forward_hook(lambda _module, inputs, _out: seen.append(inputs[0].shape[0]))
    weight = torch.zeros(3, 7)
    weight[1, 2] = weight[2, 6] = 1.0
    head.loss(torch.randn(3, 7, DIM), Frame(), torch.randint(VOCAB, (3, 7)), weight)
    assert seen == [2]
