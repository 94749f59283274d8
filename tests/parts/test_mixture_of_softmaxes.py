"""The mixture of softmaxes is its equation, and its log-probabilities have a higher rank than those of one softmax."""

from typing import Any

import pytest
import torch
from tests.generation.small import log_probability
from torch import Tensor

from anyformer.core import EmbeddingSpec, Frame, Head, HeadSpec, Model, Work, cost
from anyformer.generation.beam.beam_search import Beam, search
from anyformer.generation.beam.penalties import Power
from anyformer.generation.engine import Engine, Request
from anyformer.models import Block, Branch, Decoder, Stack
from anyformer.ops import loss as losses
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.embeddings.adaptive import AdaptiveEmbedding
from anyformer.parts.embeddings.factorized import Factorized
from anyformer.parts.embeddings.plain import Plain
from anyformer.parts.heads.mixture_of_softmaxes import MixtureOfSoftmaxes
from anyformer.parts.heads.tied import Tied
from anyformer.training import load

VOCAB, DIM = 40, 6
PLAIN = Plain()


def spec(head: HeadSpec, embedding: EmbeddingSpec = PLAIN) -> Decoder:
    stack = Stack(blocks={"a": Block(branches=(Branch(part=MLP()),))}, depth=1)
    return Decoder(vocab=VOCAB, dim=DIM, stack=stack, head=head, embedding=embedding)


def model_of(head: HeadSpec, embedding: EmbeddingSpec = PLAIN) -> Model:
    """A model with large weights, so that probabilities are far from uniform and tanh is far from linear."""
    model = spec(head, embedding).build().eval()
    rng = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data += torch.randn(parameter.shape, generator=rng)
    return model


def hidden(tokens: int = 10) -> Tensor:
    return torch.randn(1, tokens, DIM, generator=torch.Generator().manual_seed(1))


@pytest.mark.row("NAR-35", clause="p = sum_k pi_k softmax(tanh(W_k h) E^T)")
@pytest.mark.parametrize(("scale", "factor"), [("one", 1.0), ("rsqrt_dim", DIM**-0.5)])
def test_the_output_is_the_logarithm_of_a_sum_of_softmaxes(scale: str, factor: float) -> None:
    model, h = model_of(MixtureOfSoftmaxes(components=4, scale=scale)), hidden(3).requires_grad_()
    expected = torch.stack([component_by_component(model, factor * x, 4) for x in h[0]])[None]
    mine, slope = model.head(h, Frame()), torch.randn(1, 3, VOCAB)
    torch.testing.assert_close(mine, expected.log(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(mine.softmax(-1), expected)  # so that sampling reads it like logits
    leaves = [h, model.head.prior.weight, model.head.contexts.weight, model.embedding.weight]
    for a, b in zip(*(torch.autograd.grad(y, leaves, slope) for y in (mine, expected.log())), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def component_by_component(model: Any, x: Tensor, components: int) -> Tensor:
    """p of all words after one hidden state [d]."""
    prior = [(x * weight).sum().exp() for weight in model.head.prior.weight]
    chances = torch.zeros(VOCAB)
    for k in range(components):
        context = torch.tanh(model.head.contexts.weight[k * DIM : (k + 1) * DIM] @ x)
        words = torch.stack([(context * vector).sum().exp() for vector in model.embedding.weight])
        chances = chances + prior[k] / sum(prior) * (words / words.sum())
    return chances


@pytest.mark.row("NAR-35", clause="pi = softmax(W_pi h), K = 15")
def test_the_preset_has_fifteen_components_whose_weights_follow_the_context() -> None:
    preset: Any = load("vanilla-mixture-of-softmaxes").build(device="meta")
    assert preset.decoder.head.components == MixtureOfSoftmaxes().components == 15
    assert preset.decoder.head.prior.weight.shape == (15, 768)
    assert preset.decoder.head.contexts.weight.shape == (15 * 768, 768)
    model = model_of(MixtureOfSoftmaxes(components=2))
    model.head.prior.weight.data = torch.stack((torch.zeros(DIM), 1000 * torch.eye(DIM)[0]))
    h, second = hidden(), model.head.contexts.weight[DIM:]
    h[..., 0] = 1.0  # pi = (0, 1)
    expected = (torch.tanh(h @ second.T) @ model.embedding.weight.T).log_softmax(-1)
    torch.testing.assert_close(model.head(h, Frame()), expected)


@pytest.mark.row("NAR-35", clause="with K = 1 it reduces to one softmax of tanh(W h)")
def test_one_component_is_one_softmax() -> None:
    model, h = model_of(MixtureOfSoftmaxes(components=1)), hidden()
    logits = torch.tanh(h @ model.head.contexts.weight.T) @ model.embedding.weight.T
    torch.testing.assert_close(model.head(h, Frame()), logits.log_softmax(-1))


def rank(head: HeadSpec) -> int:
    """Rank of the log-probabilities of all words in more random contexts than there are words."""
    model = model_of(head).double()
    log_p = model.head(hidden(2 * VOCAB).double(), Frame()).log_softmax(-1)[0]
    return int(torch.linalg.matrix_rank(log_p))


@pytest.mark.row("NAR-35", clause="log-prob matrix of random contexts has rank above d + 1")
def test_log_probabilities_of_a_mixture_have_a_rank_above_the_width() -> None:
    assert rank(MixtureOfSoftmaxes(components=3)) > DIM + 1


@pytest.mark.row("NAR-35", clause="plain softmax's log-prob matrix has rank at most d + 1")
def test_log_probabilities_of_one_softmax_have_the_rank_of_the_width() -> None:
    assert rank(Tied()) <= DIM + 1
    assert rank(MixtureOfSoftmaxes(components=1)) <= DIM + 1


@pytest.mark.row("NAR-35")
@pytest.mark.parametrize(
    "embedding", [Plain(), Factorized(width=3), AdaptiveEmbedding(clusters=((8, 6), (9, 4)), rest=2)], ids=str
)
def test_chances_sum_to_one_whatever_the_embedding(embedding: EmbeddingSpec) -> None:
    model = model_of(MixtureOfSoftmaxes(components=3), embedding)
    torch.testing.assert_close(model.head(hidden(), Frame()).exp().sum(-1), torch.ones(1, 10))
    assert MixtureOfSoftmaxes().has_probabilities


def test_training_keeps_no_scores_of_the_components_so_the_cost_card_counts_none() -> None:
    work = Work(batch=2, length=10)
    one, mixed = (cost(spec(head), work).total for head in (Tied(), MixtureOfSoftmaxes(components=15)))
    assert mixed.activation_bytes <= one.activation_bytes
    contexts, prior = 15 * DIM * DIM, 15 * DIM
    assert mixed.params - one.params == contexts + prior
    assert mixed.flops_forward - one.flops_forward == 2 * 20 * (contexts + prior + 14 * VOCAB * DIM)


@pytest.mark.parametrize(("smoothing", "z"), [(0.0, 0.0), (0.1, 0.01)])
def test_a_loss_in_chunks_is_that_of_all_tokens(smoothing: float, z: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "_SCORES", 3 * VOCAB * 4)  # four tokens at a time
    model, h = model_of(MixtureOfSoftmaxes(components=3)), hidden().requires_grad_()
    targets, weight = torch.randint(VOCAB, (1, 10)), torch.rand(1, 10)
    in_chunks = model.head.loss(h, Frame(), targets, weight, smoothing, z)
    whole = Head.loss(model.head, h, Frame(), targets, weight, smoothing, z)
    torch.testing.assert_close(in_chunks, whole)
    leaves = [h, *model.head.parameters(), *model.embedding.parameters()]
    for a, b in zip(*(torch.autograd.grad(loss, leaves) for loss in (in_chunks, whole)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_beam_search_scores_are_sums_of_its_log_probabilities() -> None:
    model = model_of(MixtureOfSoftmaxes(components=3))
    beam = Beam(width=4, best=3, penalty=Power(exponent=0.0))
    (hypotheses,) = search(Engine(model, max_len=16), [Request(prompt=[1, 20])], beam, max_new=5)
    for hypothesis in hypotheses:
        total = log_probability(model, [1, 20], list(hypothesis.tokens)).sum().item()
        assert hypothesis.score == pytest.approx(total, abs=1e-4)
