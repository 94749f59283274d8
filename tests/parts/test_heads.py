"""What stands behind the last layer: words, classes, vectors."""

import pytest
import torch
from tests.parts.head_cases import DIM, VOCAB, encoder, noisy

from anyformer.core import Frame, Work, cost
from anyformer.errors import SpecError
from anyformer.parts.heads.capped import Capped
from anyformer.parts.heads.classifier import Classifier
from anyformer.parts.heads.pooled import Pooled
from anyformer.parts.heads.untied import Untied
from anyformer.parts.pools.attention import AttentionPool
from anyformer.parts.pools.first import First
from anyformer.parts.pools.mean import Mean


@pytest.mark.row(
    "TRF-16",
    clause=(
        "logits = W h, then log_softmax, argmax, vocab[index]",
        "with a 6-word vocabulary index 5 gives 'am'",
        "exp(log_probs) sums to 1",
    ),
)
def test_a_head_says_the_word_with_the_highest_log_probability() -> None:
    words = ("a", "student", "I", "thanks", "<eos>", "am")
    model = encoder(Untied(bias=True), vocab=6).build()
    model.head.words.weight.data.copy_(torch.eye(6, DIM))
    h = torch.zeros(1, 1, DIM)
    h[..., :6] = torch.tensor([0.2, 0.1, 0.7, -3.0, 0.0, 1.1])
    log_probabilities = model.head(h, Frame()).log_softmax(-1)
    assert log_probabilities.exp().sum().item() == pytest.approx(1.0)
    assert log_probabilities.argmax() == 5
    assert words[log_probabilities.argmax()] == "am"


def test_capped_scores_stay_below_the_limit_and_small_ones_as_they_are() -> None:
    model = encoder(Capped(cap=5.0, head=Untied(bias=True))).build()
    model.head.head.words.weight.data.copy_(100 * torch.eye(VOCAB, DIM))
    scores = model.head(torch.diag(torch.tensor([1e-3, 1.0, -1.0, *[0.0] * (DIM - 3)]))[None], Frame())[0].diagonal()
    torch.testing.assert_close(scores[:4], 5 * torch.tensor([0.02, 20.0, -20.0, 0.0]).tanh())
    assert model.head(torch.randn(1, 3, DIM), Frame()).abs().max() <= 5.0


def test_a_head_without_words_cannot_be_capped() -> None:
    with pytest.raises(SpecError, match="head: pooled does not score words"):
        Capped(head=Pooled(pool=First()))


def test_a_pooled_head_alone_is_its_pool() -> None:
    h = torch.randn(2, 5, DIM)
    assert torch.equal(encoder(Pooled(pool=Mean())).build().head(h, Frame()), h.mean(1))


@pytest.mark.row("TSK-01", clause="sum_i a_i x_i goes into a positive/negative classifier")
@pytest.mark.parametrize("hidden", [None, 24])
def test_a_classifier_is_its_equation(hidden: int | None) -> None:
    model = noisy(encoder(Classifier(classes=3, pool=AttentionPool(), hidden=hidden)).build())
    head, h = model.head, torch.randn(2, 5, DIM)
    alpha = (h @ head.pool.query.weight[0]).softmax(1)
    pooled = (alpha[..., None] * h).sum(1)
    if hidden:
        pooled = torch.tanh(pooled @ head.layer.weight.T + head.layer.bias)
    torch.testing.assert_close(head(h, Frame()), pooled @ head.classes.weight.T + head.classes.bias)
    assert head(h, Frame()).shape == (2, 3)


def test_a_pooled_layer_costs_one_token_however_long_the_sequence() -> None:
    def flops(length: int) -> int:
        tree = cost(encoder(Classifier(classes=3, pool=First(), hidden=24)), Work(batch=2, length=length))
        return next(node for _, node in tree.walk() if node.name == "head").total.flops_forward

    assert flops(5) == flops(500) == 2 * 2 * (DIM * 24 + 24 * 3)
