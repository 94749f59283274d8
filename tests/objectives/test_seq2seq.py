"""One text from another: teacher forcing with an encoder-decoder, and in one row with a decoder."""

import pytest
import torch
from tests.objectives.reading import adds_up, pair_model, sees
from tests.objectives.small import WORDS, batch, built, laid, model, noise
from torch import nn

from anyformer.core import Frame
from anyformer.data.batching.batch import Batch
from anyformer.errors import DataError, SpecError
from anyformer.models import Decoder, Encoder
from anyformer.objectives.prefix_lm import PrefixLM
from anyformer.objectives.seq2seq import Seq2Seq
from anyformer.objectives.words import in_one_row
from anyformer.training import load

row = pytest.mark.row
PLAIN = Seq2Seq()


def pair() -> Batch:
    source, target = laid([[11, 12, 13], [14]]), laid([[21, 22], [23, 24, 25]])
    return Batch(tokens=target.tokens, frame=target.frame, source=source)


@row("RNN-12", clause="training inputs are the gold targets shifted right behind <bos>")
@row("TRF-03", clause="N encoder layers, and N decoder layers over the shifted targets")
@row("TRF-17", clause="at step t the decoder sees y_1..y_(t-1) behind <bos>")
def test_the_decoder_is_given_the_gold_words_shifted_right() -> None:
    ready = PLAIN.prepare(pair(), WORDS, noise())
    assert ready.source.tokens.tolist() == [[11, 12, 13, WORDS.sep], [14, WORDS.sep, 0, 0]]
    assert ready.tokens[0, :3].tolist() == [WORDS.bos, 21, 22] and ready.tokens[1].tolist() == [WORDS.bos, 23, 24, 25]
    assert ready.targets[0, :3].tolist() == [21, 22, WORDS.eos]
    assert ready.weight.sum(1).tolist() == [3, 4]


@row("RNN-12", clause="training logits at t equal step decoding forced with the gold prefix")
def test_training_at_once_gives_the_logits_of_decoding_with_the_gold_prefix() -> None:
    ready, whole = PLAIN.prepare(pair(), WORDS, noise()), built(PLAIN, pair_model())["model"].eval()
    memory = whole.encode(ready.source.tokens, ready.source.frame)
    at_once = whole(ready.tokens, Frame(memory=memory)).y
    state = whole.init_state(2, 8, memory)
    for at in range(4):
        out = whole(ready.tokens[:, at : at + 1], Frame(positions=torch.full((2, 1), at)), state)
        state = out.state
        torch.testing.assert_close(out.y[:, 0], at_once[:, at], rtol=1e-4, atol=1e-5)


@row("RNN-12", clause="changing gold y_t' for t' >= t leaves the logits at t unchanged")
@row("TRF-17", clause="at step t the decoder sees y_1..y_(t-1) behind <bos>")
def test_a_gold_word_changes_nothing_before_it() -> None:
    ready, whole = PLAIN.prepare(pair(), WORDS, noise()), built(PLAIN, pair_model())["model"]
    memory = whole.encode(ready.source.tokens, ready.source.frame)
    other = ready.tokens.clone()
    other[:, 2] = 39
    before, after = (whole(tokens, Frame(memory=memory)).y for tokens in (ready.tokens, other))
    assert torch.equal(before[:, :2], after[:, :2]) and not torch.equal(before[:, 2], after[:, 2])


@row("OPT-02", clause="equals nn.CrossEntropyLoss(label_smoothing=0.1)")
@row("TRF-03", clause="a linear layer and a softmax end it")
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_torchs_with_smoothed_labels(smoothing: float) -> None:
    objective = Seq2Seq(smoothing=smoothing)
    ready, models = objective.prepare(pair(), WORDS, noise()), built(objective, pair_model())
    memory = models["model"].encode(ready.source.tokens, ready.source.frame)
    logits = models["model"](ready.tokens, Frame(memory=memory, valid=ready.frame.valid)).y
    judge = nn.CrossEntropyLoss(label_smoothing=smoothing, ignore_index=WORDS.pad)
    total, count = objective.loss(models, ready, noise())["words"]
    torch.testing.assert_close(total / count, judge(logits.flatten(0, 1), ready.targets.flatten()))


@row(
    "SUM-03",
    clause=(
        "one causal stack over source tokens, <sep>, summary tokens",
        "concatenation equals a fixed example token for token",
    ),
)
def test_a_decoder_reads_source_separator_target_in_one_row() -> None:
    one = in_one_row(PLAIN.prepare(pair(), WORDS, noise()))
    rows = [tokens[valid].tolist() for tokens, valid in zip(one.tokens, one.frame.valid, strict=True)]
    assert rows == [[11, 12, 13, WORDS.sep, 21, 22], [14, WORDS.sep, 23, 24, 25]]
    places = [where[valid].tolist() for where, valid in zip(one.frame.positions, one.frame.valid, strict=True)]
    assert places == [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4]]
    said = [
        list(zip(*(x[w > 0].tolist() for x in (t, y)), strict=True))
        for t, y, w in zip(one.tokens, one.targets, one.weight, strict=True)
    ]
    assert said[0] == [(WORDS.sep, 21), (21, 22), (22, WORDS.eos)]
    assert said[1] == [(WORDS.sep, 23), (23, 24), (24, 25), (25, WORDS.eos)]


@row("SUM-03", clause="language-model loss over the full sequence, source included")
def test_all_words_of_the_row_can_be_scored() -> None:
    objective = Seq2Seq(scored="all")
    ready = objective.prepare(pair(), WORDS, noise())
    one = in_one_row(ready)
    assert one.targets[0][one.weight[0] > 0].tolist() == [12, 13, WORDS.sep, 21, 22, WORDS.eos]
    assert objective.counts(ready)["words"] == one.weight.sum() == 11
    with pytest.raises(SpecError, match="sees all of the source"):
        objective.adapt(pair_model())


@row("SUM-03", clause="one causal stack over source tokens, <sep>, summary tokens")
def test_one_row_scores_as_its_words_alone() -> None:
    models, ready = built(PLAIN, model(Decoder)), PLAIN.prepare(pair(), WORDS, noise())
    total = PLAIN.loss(models, ready, noise())["words"].sum
    expected = torch.zeros(())
    for text, first in (([11, 12, 13, WORDS.sep, 21, 22, WORDS.eos], 3), ([14, WORDS.sep, 23, 24, 25, WORDS.eos], 1)):
        logits = models["model"](torch.tensor([text[:-1]]), Frame()).y[0].log_softmax(-1)
        expected = expected - sum(logits[at, text[at + 1]] for at in range(first, len(text) - 1))
    torch.testing.assert_close(total, expected)


@row("SUM-03")
def test_a_prefix_mask_reads_the_source_in_both_directions() -> None:
    whole = PrefixLM().adapt(model(Decoder)).build()
    one = in_one_row(
        PLAIN.prepare(Batch(tokens=torch.tensor([[21, 22]]), frame=Frame(), source=laid([[11, 12]])), WORDS, noise())
    )
    valid = one.frame.valid[0]
    seen = sees(whole, one)[valid][:, valid]
    assert seen.int().tolist() == [[1, 1, 1, 0, 0]] * 3 + [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]


@pytest.mark.parametrize("spec", [pair_model(), model(Decoder)], ids=["encoder_decoder", "decoder"])
def test_losses_add_up_over_micro_batches(spec: Decoder) -> None:
    adds_up(PLAIN, spec, batch(source=True))


def test_single_texts_and_encoders_are_refused() -> None:
    with pytest.raises(DataError, match=r"needs pairs.*span_corruption"):
        PLAIN.prepare(batch(), WORDS, noise())
    with pytest.raises(SpecError, match="sees the answer"):
        PLAIN.adapt(model(Encoder))


@row("SUM-03", clause="about half the parameters of the encoder-decoder")
def test_a_decoder_has_about_half_of_the_weights_of_an_encoder_and_a_decoder_of_its_depth() -> None:
    layer = "model.stack.blocks.layer.branches"
    sizes = ("model.dim=512", "model.stack.depth=6", f"{layer}.0.part.heads=8", f"{layer}.1.part.hidden=2048")
    one, two = load("gpt", *sizes).build(device="meta"), load("transformer-base").build(device="meta")
    alone, both = (
        sum(weight.numel() for stack in stacks for weight in stack.parameters())
        for stacks in ([one.stack], [two.encoder.stack, two.decoder.stack])
    )
    assert 0.4 < alone / both < 0.6
