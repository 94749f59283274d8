"""Hidden words: what is chosen and what becomes of it, whole words, and pairs of sentences beside them."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from scipy.stats import chisquare
from tests.objectives.reading import adds_up, pair_model
from tests.objectives.small import WORDS, batch, built, ids, laid, model, noise
from torch import Tensor

from anyformer.core import Frame
from anyformer.data.batching.batch import Batch
from anyformer.data.tokenizers.vocabulary import Vocabulary
from anyformer.data.tokenizers.word import Word
from anyformer.errors import DataError, SpecError
from anyformer.models import Decoder, Encoder
from anyformer.objectives.corruption import Corrupted, Shares, free, mask_words
from anyformer.objectives.masked_words import MaskedWords
from anyformer.parts.heads.masked_words import MaskedWordsHead as WordsHead
from anyformer.parts.heads.several import Several

row = pytest.mark.row
LARGE = Vocabulary(size=30_000, pad=0, unk=1, bos=2, eos=3, sep=4, cls=5, mask=6, sentinels=tuple(range(7, 107)))
BERT = Shares(0.15, 0.8, 0.1)


def a_million() -> tuple[Tensor, Corrupted]:
    """10^6 tokens, one in ten of them special, and what becomes of them."""
    tokens = torch.randint(107, LARGE.size, (1000, 1000), generator=noise())
    special = torch.rand(tokens.shape, generator=noise(1)) < 0.1
    tokens = torch.randint(107, tokens.shape, generator=noise(2)).where(special, tokens)
    there = torch.ones_like(special)
    return special, mask_words(tokens, free(tokens, there, LARGE), LARGE, BERT, noise(3))


@row(
    "PRE-12",
    clause=(
        "15% of the tokens are selected",
        "of these 80% become [MASK], 10% a random token, 10% stay unchanged",
        "all selected tokens are predicted, the unchanged ones too",
        "a chi-square test on 1e6 tokens accepts the proportions",
    ),
)
def test_15_percent_are_chosen_and_80_10_10_of_them_masked_replaced_and_kept() -> None:
    special, (inputs, targets, weight) = a_million()
    chosen = weight > 0
    able = int((~special).sum())
    assert chisquare([chosen.sum(), able - chosen.sum()], [0.15 * able, 0.85 * able]).pvalue > 1e-3
    masked, kept = chosen & (inputs == LARGE.mask), chosen & (inputs == targets)
    found = torch.tensor([masked.sum(), (chosen & ~masked & ~kept).sum(), kept.sum()]).double()
    assert chisquare(found, found.sum() * torch.tensor([0.8, 0.1, 0.1])).pvalue > 1e-3


@row(
    "PRE-12",
    clause=("of these 80% become [MASK], 10% a random token, 10% stay unchanged", "special tokens are never selected"),
)
def test_no_special_token_is_ever_chosen_or_put_in() -> None:
    special, (inputs, targets, weight) = a_million()
    assert not weight[special].any()
    replaced = (inputs != targets) & (inputs != LARGE.mask)
    assert replaced.sum() > 10_000
    assert not torch.isin(inputs[replaced], torch.tensor(LARGE.special)).any()


@row("PRE-12")
def test_other_words_are_drawn_evenly() -> None:
    _, (inputs, targets, _) = a_million()
    drawn = inputs[(inputs != targets) & (inputs != LARGE.mask)] - 107
    counts = torch.bincount(drawn * 20 // (LARGE.size - 107), minlength=20)
    assert chisquare(counts).pvalue > 1e-3


@row("PRE-03", clause="input and target together give back x exactly, for each objective")
def test_inputs_targets_and_weight_give_the_text_back() -> None:
    _, corrupted = a_million()
    assert not torch.equal(corrupted.inputs, corrupted.targets)
    told = corrupted.targets.where(corrupted.weight > 0, -1)  # the targets that count, all that a loss may read
    assert torch.equal(told.where(told >= 0, corrupted.inputs), corrupted.targets)


@row("SST-10")
def test_another_time_other_words_are_hidden_and_the_same_seed_hides_the_same() -> None:
    given = laid([ids(200, 1)])
    first, again, later = (MaskedWords().prepare(given, WORDS, noise(seed)).weight for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, later)


@row(
    "PRE-11",
    clause=(
        "learns P(s | s_mask): hidden tokens from the masked text",
        "loss counts masked positions only: unmasked targets do not change it",
    ),
)
def test_only_hidden_words_are_scored() -> None:
    """I [M] to the [M]"""
    went, store = 11, 14
    text, weight = torch.tensor([[5, 10, went, 12, 13, store, 4]]), torch.tensor([[0, 0, 1.0, 0, 0, 1, 0]])
    ready = Batch(tokens=text.masked_fill(weight > 0, WORDS.mask), frame=Frame(), targets=text, weight=weight)
    models = built(MaskedWords(), model(Encoder))
    total, count = MaskedWords().loss(models, ready, noise())["words"]
    logits = models["model"](ready.tokens, Frame()).y[0]
    wanted = F.cross_entropy(logits[[2, 5]], torch.tensor([went, store]), reduction="sum")
    torch.testing.assert_close(total, wanted)
    assert count == 2
    other = replace(ready, targets=text.where(weight > 0, 39))
    assert torch.equal(MaskedWords().loss(models, other, noise())["words"].sum, total)


@row("PRE-11", clause="the example 'I [M] to the [M]' is reproduced")
def test_went_and_store_are_hidden_from_i_went_to_the_store() -> None:
    tokenizer = Word(sentinels=0).train(["I went to the store"])
    given, objective = laid([tokenizer.encode("I went to the store")]), MaskedWords(share=0.4, masked=1.0, random=0.0)
    chosen = torch.tensor([[0, 0, 1.0, 0, 0, 1, 0]])  # <cls> I went to the store <sep>
    tries = (objective.prepare(given, tokenizer.words, noise(seed)) for seed in range(1000))
    ready = next(ready for ready in tries if torch.equal(ready.weight, chosen))
    assert tokenizer.decode(ready.tokens[0, 1:-1].tolist(), special="show") == "I <mask> to the <mask>"
    assert tokenizer.decode(ready.targets[ready.weight > 0].tolist()) == "went store"


@row("PRE-16")
def test_a_row_is_cls_text_sep() -> None:
    ready = MaskedWords().prepare(laid([[11, 12, 13], [14]]), WORDS, noise())
    assert ready.targets[0].tolist() == [WORDS.cls, 11, 12, 13, WORDS.sep]
    assert ready.targets[1, :3].tolist() == [WORDS.cls, 14, WORDS.sep]
    assert ready.frame.valid.sum(1).tolist() == [5, 3]


def test_in_packed_rows_cls_takes_the_room_of_the_closing_eos() -> None:
    segments = torch.tensor([[0, 0, 0, 1, 1, -1]])
    frame = Frame(segments=segments, valid=segments >= 0, positions=torch.tensor([[0, 1, 2, 0, 1, 0]]))
    given = Batch(tokens=torch.tensor([[11, 12, 3, 13, 3, 0]]), frame=frame)
    ready = MaskedWords().prepare(given, WORDS, noise())
    assert ready.targets[0, :5].tolist() == [WORDS.cls, 11, 12, WORDS.cls, 13]
    assert ready.frame is frame


@row("PRE-11")
def test_whole_words_share_their_lot() -> None:
    starts = torch.rand(50, 60, generator=noise(5)) < 0.4
    starts[:, 0] = True
    given = replace(laid([ids(60, place) for place in range(50)]), word_starts=starts)
    chosen = MaskedWords(unit="word").prepare(given, WORDS, noise()).weight[:, 1:-1] > 0
    number = starts.cumsum(1) + 100 * torch.arange(50)[:, None]
    for word in number.unique():
        assert chosen[number == word].unique().numel() == 1
    assert 0.12 < chosen.float().mean() < 0.18
    with pytest.raises(DataError, match="where words begin"):
        MaskedWords(unit="word").prepare(laid([ids(9, 1)]), WORDS, noise())


def documents(count: int) -> Batch:
    """Each of eight tokens that no other has."""
    tokens = 10 + torch.arange(8 * count).view(count, 8)
    return Batch(tokens=tokens, frame=Frame(valid=torch.ones_like(tokens, dtype=torch.bool)))


def halves(ready: Batch) -> list[tuple[list[int], list[int]]]:
    """A and B of <cls> A <sep> B <sep>."""
    pairs = []
    rows = (ready.targets.tolist(), ready.frame.types.tolist(), ready.frame.valid.tolist())
    for tokens, types, valid in zip(*rows, strict=True):
        first, second = (
            [token for token, kind, there in zip(tokens, types, valid, strict=True) if there and kind == half]
            for half in (0, 1)
        )
        assert first[0] == WORDS.cls and first[-1] == second[-1] == WORDS.sep
        pairs.append((first[1:-1], second[:-1]))
    return pairs


def relation(first: list[int], second: list[int]) -> str:
    same = (first[0] - 10) // 8 == (second[0] - 10) // 8
    return "random" if not same else "next" if first[-1] < second[0] else "previous"


@row("SST-04", clause="swapped and unswapped pairs are balanced in the data")
@row(
    "SST-06",
    clause=("sentence objective: next, previous or random, three classes", "the three sentence classes are balanced"),
)
@row(
    "PRE-13",
    clause=(
        "input is [CLS] A [SEP] B [SEP]",
        "segment embeddings tell A from B",
        "binary label IsNext, half of the pairs each",
        "50 +- 1% of the generated pairs are true successors",
    ),
)
@pytest.mark.parametrize(
    ("sentences", "relations"),
    [
        ("next_sentence", ("next", "random")),
        ("sentence_order", ("next", "previous")),
        ("three_way", ("next", "previous", "random")),
    ],
)
def test_pairs_are_what_their_label_says_and_balanced(sentences: str, relations: tuple[str, ...]) -> None:
    words = WORDS._replace(size=10**6)
    ready = MaskedWords(sentences=sentences).prepare(documents(6_000), words, noise())
    labels = ready.labels.label
    assert [relation(*pair) for pair in halves(ready)] == [relations[label] for label in labels]
    shares = torch.bincount(labels) / len(labels)
    assert (shares - 1 / len(relations)).abs().max() < 0.01


@row("SST-04", clause="sentence-order prediction: consecutive segments, swapped or not")
def test_the_halves_of_a_pair_follow_each_other_and_are_swapped_where_the_label_says() -> None:
    texts = documents(200).tokens.tolist()
    padded = [*texts, [10**5] * 11]  # a longer row, so that nothing of the others is cut
    ready = MaskedWords(sentences="sentence_order").prepare(laid(padded), WORDS._replace(size=10**6), noise())
    pairs = list(zip(halves(ready), ready.labels.label.tolist(), strict=True))[: len(texts)]
    for ((first, second), swapped), text in zip(pairs, texts, strict=True):
        assert (second + first if swapped else first + second) == text
    assert {swapped for _, swapped in pairs} == {0, 1}


def test_a_pair_is_no_longer_than_the_rows_that_came() -> None:
    objective = MaskedWords(sentences="next_sentence")
    ready = objective.prepare(documents(30), WORDS._replace(size=10**6), noise())
    assert ready.tokens.shape[1] <= 8


@row("PRE-13")
def test_pairs_of_the_data_are_taken_as_they_are() -> None:
    given = replace(documents(40), source=laid([[10 + 8 * place] for place in range(40)]))
    ready = MaskedWords(sentences="next_sentence").prepare(given, WORDS._replace(size=10**6), noise())
    for (first, second), label in zip(halves(ready), ready.labels.label, strict=True):
        assert (second[0] == first[0]) == (label == 0)


def test_pairs_can_be_cut_into_micro_batches_whatever_was_known_of_the_rows_that_came() -> None:
    tokens, there = 10 + torch.arange(48).view(2, 24), torch.ones(2, 24, dtype=torch.bool)
    packed = Frame(valid=there, segments=torch.arange(24).expand(2, -1) // 6)
    given = Batch(tokens=tokens, frame=packed, word_starts=there)
    ready = MaskedWords(sentences="next_sentence").prepare(given, WORDS._replace(size=10**6), noise())
    assert [len(piece.tokens) for piece in map(ready.take, torch.arange(8).split(3))] == [3, 3, 2]


@pytest.mark.parametrize("sentences", ["none", "next_sentence", "sentence_order"])
def test_losses_add_up_over_micro_batches(sentences: str) -> None:
    adds_up(MaskedWords(share=0.5, sentences=sentences), model(Encoder), batch())


@row("PRE-13")
def test_a_second_task_brings_its_head_and_types() -> None:
    adapted = MaskedWords(sentences="next_sentence").adapt(model(Encoder))
    assert isinstance(adapted.head, Several) and adapted.types == 2
    assert adapted.head.heads["words"] == WordsHead() and adapted.head.heads["order"].classes == 2


@row("PRE-04", clause="the matrix of allowed pairs is enforced: other pairs are refused")
def test_what_does_not_fit_is_refused_and_told_what_would() -> None:
    with pytest.raises(SpecError, match=r"decoder sees one.*next_token"):
        MaskedWords().adapt(model(Decoder))
    with pytest.raises(SpecError, match="span_corruption"):
        MaskedWords().adapt(pair_model())
    with pytest.raises(SpecError, match=r"masked=0.8 and random=0.3"):
        MaskedWords(random=0.3)
