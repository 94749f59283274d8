"""Spans that are cut out of a text: T5's example, its lengths, its statistics, and the text put together again."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.objectives.reading import adds_up, pair_model
from tests.objectives.small import WORDS, batch, built, ids, laid, model, noise

from anyformer.core import Frame
from anyformer.data.batching.batch import Batch
from anyformer.errors import DataError, SpecError
from anyformer.models import Decoder, Encoder
from anyformer.objectives.span_corruption import SpanCorruption
from anyformer.objectives.spans import choose, cut_out, gaps, sizes, spans_of

row = pytest.mark.row
T5 = {"share": 0.15, "mean": 3.0, "most": 100}
SENTINELS = tuple(range(1000, 1100))


def restored(inputs: Sequence[int], target: Sequence[int], sentinels: Sequence[int]) -> list[int]:
    """The text of an input and its target: `cut_out` reversed."""
    spans = spans_of(target, sentinels)
    return [token for place in inputs for token in spans.get(place, [place])]


@row(
    "PRE-18",
    clause=(
        "each span is replaced by a sentinel of its own",
        "target lists each sentinel followed by its span",
        "a final sentinel only if the text ends un-noised",
        "'Thank you for inviting ... last week.' gives the exact input, target",
    ),
)
def test_the_papers_example() -> None:
    text = ["Thank", "you", "for", "inviting", "me", "to", "your", "party", "last", "week", "."]
    book = {word: place for place, word in enumerate([*text, "<X>", "<Y>", "<Z>"])}
    gone = [word in ("for", "inviting", "last") for word in text]
    inputs, target = cut_out([book[word] for word in text], gone, [book[name] for name in ("<X>", "<Y>", "<Z>")])
    words = list(book)
    assert " ".join(words[token] for token in inputs) == "Thank you <X> me to your party <Y> week ."
    assert " ".join(words[token] for token in target) == "<X> for inviting <Y> last <Z>"


@row(
    "PRE-18",
    clause=(
        "a final sentinel only if the text ends un-noised",
        "the sampler ends in noise, as in T5: no final sentinel",
        "512 input tokens give 114 targets: 85 noise + 28 sentinels + EOS",
    ),
)
@row("NAR-00", clause="inputs of 512 tokens, targets of 114")
def test_568_tokens_are_512_of_input_and_114_of_target() -> None:
    assert sizes(568, **T5) == (512, 114) and sizes(569, **T5)[0] > 512
    inputs, target = cut_out(range(568), choose(568, *gaps(568, **T5), noise()), SENTINELS)
    assert (len(inputs) + 1, len(target) + 1) == (512, 114)  # and a closing token each


@row(
    "PRE-18",
    clause=(
        "15% of the tokens are noise, in spans of mean length 3",
        "measured noise density and mean span length are 15% and 3",
    ),
)
@row("NAR-00", clause="span corruption: 15 % of the tokens, mean span 3")
def test_15_percent_go_in_spans_of_3_on_average() -> None:
    rng, lengths, share = noise(), list[int](), 0.0
    for _ in range(300):
        gone = torch.tensor(choose(500, *gaps(500, **T5), rng)).int()
        share += gone.float().mean().item() / 300
        edges = gone.diff(prepend=torch.zeros(1), append=torch.zeros(1))
        lengths += ((edges < 0).nonzero() - (edges > 0).nonzero()).flatten().tolist()
    assert share == pytest.approx(0.15)
    assert torch.tensor(lengths).float().mean().item() == pytest.approx(3.0)
    assert min(lengths) == 1 and max(lengths) > 8


@row("PRE-18")
def test_every_division_into_spans_is_as_likely() -> None:
    rng, counts = noise(), dict[tuple[bool, ...], int]()
    for _ in range(6000):
        gone = tuple(choose(7, 3, 2, rng))
        counts[gone] = counts.get(gone, 0) + 1
    assert len(counts) == 3 * 2  # 4 kept tokens in 2 runs, 3 cut ones in 2
    assert min(counts.values()) > 850


@row("PRE-03", clause="input and target together give back x exactly, for each objective")
@row("PRE-18", clause="input and target give back the text")
@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), min_size=1, max_size=60))
def test_input_and_target_give_the_text_back(tokens: list[tuple[int, bool]]) -> None:
    text, gone = [token for token, _ in tokens], [cut for _, cut in tokens]
    inputs, target = cut_out(text, gone, SENTINELS)
    assert restored(inputs, target, SENTINELS) == text


@row("PRE-18", clause="input and target give back the text")
@row("PRE-03")
def test_a_batch_can_be_put_together_again() -> None:
    texts = [ids(length, length) for length in (9, 2, 15)]
    ready = SpanCorruption().prepare(laid(texts), WORDS, noise())
    for place, text in enumerate(texts):
        inputs = ready.source.tokens[place, ready.source.frame.valid[place]].tolist()
        target = ready.targets[place, ready.frame.valid[place]].tolist()
        assert inputs[-1] == WORDS.sep and target[-1] == WORDS.eos
        assert restored(inputs[:-1], target[:-1], WORDS.sentinels) == text


def test_packed_documents_become_rows_and_too_short_ones_are_left_out() -> None:
    segments = torch.tensor([[0, 0, 0, 0, 1, 1, 2, 2]])
    given = Batch(tokens=torch.tensor([[11, 12, 13, 3, 14, 3, 15, 16]]), frame=Frame(segments=segments))
    ready = SpanCorruption().prepare(given, WORDS, noise())
    assert len(ready.tokens) == 2
    with pytest.raises(DataError, match="sentinels"):
        SpanCorruption().prepare(given, WORDS._replace(sentinels=()), noise())


def test_there_are_never_more_spans_than_sentinels() -> None:
    ready = SpanCorruption(share=0.5, mean=1.0).prepare(laid([ids(40, 1)]), WORDS, noise())
    assert torch.isin(ready.source.tokens, torch.tensor(WORDS.sentinels)).sum() == len(WORDS.sentinels)


@pytest.mark.parametrize("spec", [pair_model(), model(Decoder)], ids=["encoder_decoder", "decoder"])
def test_losses_add_up_over_micro_batches(spec: Decoder) -> None:
    adds_up(SpanCorruption(share=0.3), spec, batch())


@row("PRE-04", clause="the matrix of allowed pairs is enforced: other pairs are refused")
def test_an_encoder_alone_cannot_write_them() -> None:
    with pytest.raises(SpecError, match=r"sees the answer.*masked_words"):
        SpanCorruption().adapt(model(Encoder))
    assert built(SpanCorruption(), pair_model())
