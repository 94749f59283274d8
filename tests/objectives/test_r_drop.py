"""R-Drop: two passes with different dropout, and the divergence of their probabilities."""

import pytest
import torch
import torch.nn.functional as F
from tests.objectives.reading import pair_model
from tests.objectives.small import WORDS, batch, built, model, noise
from torch import Tensor

from anyformer.errors import SpecError
from anyformer.models import Decoder, Encoder
from anyformer.objectives.classify import Classify
from anyformer.objectives.contrastive import Contrastive
from anyformer.objectives.next_token import NextToken
from anyformer.objectives.r_drop import RDrop
from anyformer.objectives.seq2seq import Seq2Seq
from anyformer.objectives.words import read_pair

row = pytest.mark.row("XF-13", clause="regularisers: R-Drop adds the KL of two dropout passes")
LABEL, ALPHA = torch.tensor([0, 2, 1, 1, 0, 2]), 3.0


def divergence(one: Tensor, other: Tensor) -> Tensor:
    """KL(P_1 || P_2) + KL(P_2 || P_1) of each distribution, written out."""
    p, q = one.softmax(-1), other.softmax(-1)
    return (p * (p.log() - q.log()) + q * (q.log() - p.log())).sum(-1)


@row
def test_classes_are_scored_twice_and_the_passes_compared_by_the_equation() -> None:
    objective = RDrop(objective=Classify(classes=3), alpha=ALPHA)
    models = built(objective, model(Encoder, dropout=0.3))
    ready = objective.prepare(batch(label=LABEL), WORDS, noise())
    torch.manual_seed(0)
    one, other = (models["model"](ready.tokens, ready.frame).y for _ in range(2))
    torch.manual_seed(0)
    terms = objective.loss(models, ready, noise())
    assert divergence(one, other).min() > 1e-4, "dropout differs in the two passes"
    truth = [F.cross_entropy(scores, LABEL, reduction="sum") for scores in (one, other)]
    torch.testing.assert_close(terms["label"].sum, sum(truth) / 2)
    torch.testing.assert_close(terms["divergence"].sum, ALPHA / 4 * divergence(one, other).sum())
    assert terms["divergence"].weight == terms["label"].weight == 6


@row
@pytest.mark.parametrize("pairs", [False, True], ids=["texts", "pairs"])
def test_words_are_compared_where_they_count(pairs: bool) -> None:
    spec = pair_model().with_("decoder.dropout", 0.3) if pairs else model(Decoder, dropout=0.3)
    objective = RDrop(objective=Seq2Seq() if pairs else NextToken(), alpha=ALPHA)
    models = built(objective, spec)
    ready = objective.prepare(batch(source=pairs), WORDS, noise())
    torch.manual_seed(0)
    one, other = (read_pair(models["model"], ready)[0].through(models["model"].output_head()) for _ in range(2))
    torch.manual_seed(0)
    term = objective.loss(models, ready, noise())["divergence"]
    torch.testing.assert_close(term.sum, ALPHA / 4 * (divergence(one, other) * ready.weight).sum())
    assert term.sum > 1e-3 and term.weight == ready.weight.sum()


@row
def test_both_passes_learn_from_their_divergence() -> None:
    """With one fixed pass the gradient would be that of half of the equation alone."""
    objective = RDrop(objective=Classify(classes=3))
    one, other = torch.randn(2, 4, 3, generator=noise(), dtype=torch.float64).requires_grad_()
    total = objective._divergence(one, other).sum()
    expected = torch.autograd.grad(divergence(one, other).sum() / 4, (one, other))
    for mine, theirs in zip(torch.autograd.grad(total, (one, other)), expected, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-5)


def test_in_evaluation_there_is_one_pass_and_no_divergence() -> None:
    objective = RDrop(objective=Classify(classes=3))
    models = built(objective, model(Encoder, dropout=0.3))
    ready = objective.prepare(batch(label=LABEL), WORDS, noise())
    models["model"].eval()
    calls: list[object] = []
    models["model"].register_forward_hook(lambda *call: calls.append(call))
    terms = objective.loss(models, ready, noise())
    assert terms.keys() == {"label"} and len(calls) == 1


def test_vectors_without_probabilities_are_refused() -> None:
    with pytest.raises(SpecError, match="contrastive has none"):
        RDrop(objective=Contrastive()).adapt(model(Encoder))
