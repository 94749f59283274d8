"""Language models: the next word, and the rest of a text whose first part is read in both directions."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from tests.objectives.reading import adds_up, sees
from tests.objectives.small import WORDS, batch, built, ids, laid, model, noise

from anyformer.core import Causal, Frame
from anyformer.data.batching.batch import Batch
from anyformer.errors import SpecError
from anyformer.models import Block, Branch, Decoder, Encoder, EncoderDecoder, Stack
from anyformer.objectives.next_token import NextToken
from anyformer.objectives.prefix_lm import PrefixLM
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.masks.prefix import Prefix
from anyformer.parts.masks.window import Window
from anyformer.parts.mixers.attention import Attention

row = pytest.mark.row
LM = NextToken()


def packed() -> Batch:
    """Two documents and padding in a row, ends marked, as the data pack them; the second row begins in mid-document."""
    tokens = torch.tensor([[11, 12, 3, 13, 14, 15, 3, 0], [21, 22, 23, 24, 25, 3, 31, 32]])
    segments = torch.tensor([[0, 0, 0, 1, 1, 1, 1, -1], [0, 0, 0, 0, 0, 0, 1, 1]])
    positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 0], [0, 1, 2, 3, 4, 5, 0, 1]])
    return Batch(tokens=tokens, frame=Frame(valid=segments >= 0, segments=segments, positions=positions))


@row(
    "PRE-05", clause=("input starts with <bos> and the last target is <eos>", "there are N + 1 predictions for N words")
)
@row("TRF-05", clause="an autoregressive head predicts the next token")
def test_n_words_are_n_plus_one_predictions_from_bos_to_eos() -> None:
    ready = LM.prepare(laid([[11, 12, 13], [14]]), WORDS, noise())
    assert ready.tokens[0].tolist() == [WORDS.bos, 11, 12, 13]
    assert ready.targets[0].tolist() == [11, 12, 13, WORDS.eos]
    assert ready.tokens[1, :2].tolist() == [WORDS.bos, 14] and ready.targets[1, :2].tolist() == [14, WORDS.eos]
    assert ready.weight.sum(1).tolist() == [4, 2]
    assert LM.counts(ready)["words"] == 6


@row("PRE-05")
def test_in_packed_rows_no_target_crosses_a_document() -> None:
    ready = LM.prepare(packed(), WORDS, noise())
    assert ready.tokens[0, :7].tolist() == [WORDS.bos, 11, 12, WORDS.bos, 13, 14, 15]
    assert ready.targets[0, :7].tolist() == [11, 12, 3, 13, 14, 15, 3]
    assert ready.tokens[1].tolist() == [WORDS.bos, 21, 22, 23, 24, 25, WORDS.bos, 31]
    assert ready.weight.sum(1).tolist() == [7, 8]


@row("OPT-18", clause="the packed loss equals the unpacked loss")
@row("PRE-05")
def test_a_packed_row_scores_as_its_documents_alone() -> None:
    models = built(LM, model(Decoder))
    together = LM.loss(models, LM.prepare(packed(), WORDS, noise()), noise())["words"]
    texts = [[11, 12, 3], [13, 14, 15, 3], [21, 22, 23, 24, 25, 3]]  # ends marked: none is added
    alone = [LM.loss(models, LM.prepare(laid([text]), WORDS, noise()), noise())["words"].sum for text in texts]
    rest = LM.prepare(laid([[31, 32]]), WORDS, noise())
    cut = replace(rest, weight=rest.weight * torch.tensor([[1.0, 1.0, 0.0]]))  # in mid-document there is no end
    torch.testing.assert_close(together.sum, sum(alone) + LM.loss(models, cut, noise())["words"].sum)


@row("PRE-03", clause="input and target together give back x exactly, for each objective")
def test_inputs_and_targets_give_the_text_back() -> None:
    text = ids(9, 1)
    ready = LM.prepare(laid([text]), WORDS, noise())
    assert [*ready.tokens[0, 1:].tolist(), int(ready.targets[0, -1])] == [*text, WORDS.eos]


@row("SUM-11", clause="exp of the mean negative log-likelihood per token")
@row(
    "PRE-05",
    clause=(
        "objective: the sum of log P(w_n | w_<n) is maximised",
        "loss equals the negative log-likelihood computed by hand",
        "perplexity = exp(loss)",
    ),
)
@row("TRF-05", clause="an autoregressive head predicts the next token")
def test_the_loss_is_the_negative_log_likelihood_and_its_exponential_the_perplexity() -> None:
    models, ready = built(LM, model(Decoder)), LM.prepare(batch(), WORDS, noise())
    total, count = LM.loss(models, ready, noise())["words"]
    chance = models["model"](ready.tokens, ready.frame).y.softmax(-1).gather(-1, ready.targets[..., None])[..., 0]
    likelihood = chance[ready.frame.valid].double().log()
    assert total.item() == pytest.approx(-likelihood.sum().item(), rel=1e-5)
    assert math.exp(total.item() / count.item()) == pytest.approx(likelihood.mean().neg().exp().item(), rel=1e-5)


@row("SUM-11", clause="a uniform model has perplexity V")
def test_a_model_that_knows_nothing_is_as_perplexed_as_there_are_words() -> None:
    models, ready = built(LM, model(Decoder)), LM.prepare(batch(), WORDS, noise())
    models["model"].embedding.weight.data.zero_()
    total, count = LM.loss(models, ready, noise())["words"]
    assert math.exp(total.item() / count.item()) == pytest.approx(WORDS.size, rel=1e-5)


@row("OPT-02", clause="equals nn.CrossEntropyLoss(label_smoothing=0.1)")
def test_smoothing_and_z_reach_the_loss() -> None:
    objective = NextToken(smoothing=0.1, z=0.01)
    models, ready = built(objective, model(Decoder)), objective.prepare(batch(), WORDS, noise())
    logits = models["model"](ready.tokens, ready.frame).y[ready.frame.valid]
    wanted = F.cross_entropy(logits, ready.targets[ready.frame.valid], label_smoothing=0.1, reduction="sum")
    total = objective.loss(models, ready, noise())["words"].sum
    torch.testing.assert_close(total, wanted + 0.01 * logits.logsumexp(-1).square().sum())


@pytest.mark.parametrize("objective", [LM, PrefixLM(), PrefixLM(share=0.5)], ids=lambda objective: objective.kind)
def test_losses_add_up_over_micro_batches(objective: NextToken | PrefixLM) -> None:
    adds_up(objective, model(Decoder), batch())


@row("PRE-04", clause="the matrix of allowed pairs is enforced: other pairs are refused")
@pytest.mark.parametrize("objective", [LM, PrefixLM()], ids=lambda objective: objective.kind)
def test_an_encoder_is_refused_because_it_sees_the_answer(objective: NextToken | PrefixLM) -> None:
    with pytest.raises(SpecError, match=r"sees the answer.*masked_words"):
        objective.adapt(model(Encoder))
    with pytest.raises(SpecError, match=r"span_corruption.*seq2seq"):
        objective.adapt(EncoderDecoder(encoder=model(Encoder), decoder=model(Decoder)))


def test_a_prefix_is_given_and_not_scored() -> None:
    ready = PrefixLM(share=0.5).prepare(laid([[11, 12, 13, 14, 15, 16]]), WORDS, noise())
    assert ready.frame.marks.prefix.tolist() == [4]  # <bos> 11 12 13
    assert ready.targets[ready.weight > 0].tolist() == [14, 15, 16, WORDS.eos]


def test_a_drawn_prefix_leaves_something_on_both_sides() -> None:
    text = laid([ids(7, place) for place in range(400)])
    ready = PrefixLM().prepare(text, WORDS, noise())
    assert ready.frame.marks.prefix.unique().tolist() == [1, 2, 3, 4, 5, 6, 7]  # of <bos> and 7 words
    assert torch.equal(ready.weight.sum(1), 9.0 - ready.frame.marks.prefix)


def test_the_prefix_sees_itself_and_nothing_behind_it() -> None:
    objective = PrefixLM(share=0.5)
    models, ready = built(objective, model(Decoder)), objective.prepare(laid([ids(7, 1)]), WORDS, noise())
    seen = sees(models["model"], ready)
    assert torch.equal(seen[:4, :4], torch.ones(4, 4, dtype=torch.bool))
    assert torch.equal(seen[4:], torch.ones(8, 8, dtype=torch.bool).tril()[4:])
    assert not seen[:4, 4:].any()


def test_a_prefix_joins_the_masks_that_are_there() -> None:
    looks = (Attention(heads=2), Attention(heads=2, mask=Causal()), Attention(heads=2, mask=Window(size=3)))
    stack = Stack(blocks={"layer": Block(branches=tuple(Branch(part=part) for part in looks))}, depth=1)
    adapted = PrefixLM().adapt(Decoder(vocab=40, dim=16, stack=stack))
    masks = [branch.part.mask for branch in adapted.stack.blocks["layer"].branches]
    assert masks == [Prefix(), Prefix(), Window(size=3) & Prefix()]


def test_without_attention_there_is_no_prefix() -> None:
    stack = Stack(blocks={"layer": Block(branches=(Branch(part=MLP()),))}, depth=1)
    with pytest.raises(SpecError, match="next_token"):
        PrefixLM().adapt(Decoder(vocab=40, dim=16, stack=stack))
