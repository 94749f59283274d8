"""Yardsticks: each is what its formula says, and is scored by the code that scores a model."""

import math
import shutil
from collections import Counter
from pathlib import Path

import bm25s
import numpy as np
import pytest
from tests.evaluation.runs import run_of

from anyformer.data.record import Record
from anyformer.evaluation.metrics.classes import class_scores
from anyformer.evaluation.metrics.score import Score
from anyformer.evaluation.yardsticks.bag_of_words import BagOfWords
from anyformer.evaluation.yardsticks.bm25 import BM25, B, K, bm25_weights, words_of
from anyformer.evaluation.yardsticks.class_chances import scores_of
from anyformer.evaluation.yardsticks.first_sentence import FirstSentence
from anyformer.evaluation.yardsticks.frequent_tag import FrequentTag
from anyformer.evaluation.yardsticks.majority import MajorityClass
from anyformer.evaluation.yardsticks.n_gram import KneserNey, NGram
from anyformer.evaluation.yardsticks.nearest_source import NearestSource
from anyformer.evaluation.yardsticks.ridge import RidgeRegression
from anyformer.evaluation.yardsticks.xz import Xz
from anyformer.evaluation.yardsticks.yardstick_comparison import YardstickComparison, Yardsticks
from anyformer.objectives.classify import Classify
from anyformer.statistics.intervals import Interval, mean, share
from anyformer.study.study_yardsticks import measured_lines, stored_lines

TEXTS = ["abracadabra", "banana bandana", "an abacus", "a cab ran"]
START, END = "<", ">"


class PlainKneserNey:
    """The formula as it is written: character by character, gram by gram."""

    def __init__(self, texts: list[str], order: int) -> None:
        self.order = order
        self.alphabet = {*"".join(texts), END, "?"}  # the last one is an unknown character
        self.counts: list[Counter[str]] = [Counter() for _ in range(order + 1)]
        for text in texts:
            row = START * (order - 1) + text + END
            self.counts[order].update(row[at - order + 1 : at + 1] for at in range(order - 1, len(row)))
        for length in range(order - 1, 0, -1):
            self.counts[length].update(gram[1:] for gram in self.counts[length + 1])

    def chance(self, context: str, character: str) -> float:
        shorter = self.chance(context[1:], character) if context else 1 / len(self.alphabet)
        grams = self.counts[len(context) + 1]
        after = {gram: count for gram, count in grams.items() if gram[:-1] == context}
        if not after:
            return shorter
        ones, twos = (sum(count == times for count in grams.values()) for times in (1, 2))
        discount = ones / (ones + 2 * twos) if ones and twos else 0.5
        seen = max(after.get(context + character, 0) - discount, 0)
        return (seen + discount * len(after) * shorter) / sum(after.values())

    def nats(self, text: str) -> float:
        row = START * (self.order - 1) + text + END
        nats = 0.0
        for at in range(self.order - 1, len(row)):
            known = row[at] in self.alphabet
            nats -= math.log(self.chance(row[at - self.order + 1 : at], row[at] if known else "?"))
            nats += 0.0 if known else len(row[at].encode()) * math.log(256)
        return nats


@pytest.mark.parametrize("order", [1, 2, 4, 6])
def test_the_n_gram_is_the_formula(order: int) -> None:
    held_out = ["a banana", "cabana", "Zürich", "x"]
    expected = [PlainKneserNey(TEXTS, order).nats(text) for text in held_out]
    assert [nats.sum() for nats in KneserNey(TEXTS, order).nats(held_out)] == pytest.approx(expected)


def test_the_probabilities_after_a_context_sum_to_one() -> None:
    plain = PlainKneserNey(TEXTS, 4)
    for context in ("aba", "ana", "<<a", "zzz"):
        assert sum(plain.chance(context, one) for one in plain.alphabet) == pytest.approx(1)


def test_more_text_makes_a_better_n_gram() -> None:
    train = [Record(text) for text in TEXTS * 3]
    few, many = (NGram().measure(train[:count], [Record("a bandana")])["bits_per_byte"].value for count in (1, 12))
    assert many < few < 16


def test_xz_counts_the_bits_that_held_out_text_adds() -> None:
    train = [Record("the cat sat on the mat. " * 50)]
    again, other = (Xz().measure(train, [Record(text)])["bits_per_byte"].value for text in (train[0].text, "q%7w!" * 9))
    assert again < 1 < other


def test_the_bag_of_words_learns_what_the_majority_cannot() -> None:
    words = {"good": ("fine", "lovely"), "bad": ("awful", "poor")}
    train = [
        Record(f"{adjective} thing {n}", label=name)
        for n in range(60)
        for name, pair in words.items()
        for adjective in pair
    ]
    held_out = [Record("a lovely day", label="good"), Record("poor soup", label="bad"), Record("fine", label="good")]
    majority, bag = (each.measure(train, held_out) for each in (MajorityClass(), BagOfWords()))
    assert bag["accuracy"].value == 1.0 and bag["loss"].value < 0.3
    assert majority["loss"].value == pytest.approx(math.log(2))


def test_the_bag_of_words_sees_what_two_texts_have_in_common() -> None:
    words = [f"word{n}" for n in range(60)]
    pairs = [
        Record(f"the {word}", target=f"a {words[n - (n + turn) % 2]}", label=str((n + turn) % 2))
        for turn in range(2)
        for n, word in enumerate(words)
    ]
    accuracy = BagOfWords().measure(pairs[::2], pairs[1::2])["accuracy"].value
    assert accuracy == 1.0


def test_a_class_that_training_did_not_have_is_wrong_and_not_an_error() -> None:
    train = [Record(f"text {n}", label="ab"[n % 2]) for n in range(8)]
    scores = BagOfWords().measure(train, [Record("text", label="c"), Record("text 2", label="a")])
    assert scores["accuracy"].value <= 0.5 and math.isfinite(scores["loss"].value)


def test_a_small_probability_of_a_known_class_counts_in_full() -> None:
    scores = scores_of(np.array([[1 - 1e-9, 1e-9]]), ["a", "b"], [Record("text", label="b")])
    assert scores["loss"].value == pytest.approx(9 * math.log(10))


def test_ridge_predicts_numbers_from_words() -> None:
    train = [Record(f"{'big' if n % 2 else 'small'} house {n}", label=str(10 * (n % 2))) for n in range(40)]
    held_out = [Record("a big one", label="10"), Record("a small one", label="0")]
    assert RidgeRegression().measure(train, held_out)["squared_error"].value < 15


def test_bm25_ranks_as_the_library_does() -> None:
    documents = ["the cat sat", "a dog and a cat", "dogs bark at night at the moon", "the moon is far"]
    weights, columns = bm25_weights(documents)
    library = bm25s.BM25(k1=K, b=B, method="lucene")
    library.index([words_of(text) for text in documents], show_progress=False)
    for query in ("cat", "the moon", "night dog a"):
        words = [word for word in words_of(query) if word in columns]
        ours = np.asarray(weights[:, [columns[word] for word in words]].sum(axis=1)).ravel()
        assert ours / (K + 1) == pytest.approx(library.get_scores(words), abs=1e-6)


def test_bm25_finds_partners_by_their_rare_words() -> None:
    pairs = [Record(f"what is {name}", target=f"{name} is a thing") for name in ("iron", "gold", "wood")]
    assert BM25().measure([], pairs)["mrr"].value == 1.0


def test_the_nearest_training_pair_gives_its_target() -> None:
    train = [Record("the red house", target="das rote Haus"), Record("a blue car", target="ein blaues Auto")]
    scores = NearestSource().measure(train, [Record("the red houses", target="das rote Haus")])
    assert scores["chrf"].value == pytest.approx(100)


def test_the_nearest_training_pair_is_found_in_a_script_without_spaces() -> None:
    train = [Record("蓝色的车", target="ein blaues Auto"), Record("红色的房子", target="das rote Haus")]
    scores = NearestSource().measure(train, [Record("大红房子", target="das rote Haus")])
    assert scores["chrf"].value == pytest.approx(100)


def test_the_first_sentence_is_a_summary() -> None:
    held_out = [Record("Rain fell. Then the sun came out!", target="Rain fell.")]
    assert FirstSentence().measure([], held_out)["rougel"].value == 1.0


def test_every_word_gets_its_most_frequent_tag() -> None:
    train = [
        Record("time flies", tags=("N", "V")),
        Record("flies time flies", tags=("N", "V", "V")),
        Record("time", tags=("N",)),
    ]
    scores = FrequentTag().measure(train, [Record("time flies fast", tags=("N", "V", "N"))])
    assert scores["accuracy"].value == 1.0


def labelled(count: int) -> list[Record]:
    return [Record(f"{'good' if n % 2 else 'bad'} text {n}", label=str(n % 2)) for n in range(count)]


def beside(accuracy: Score, tmp_path: Path, reads: list[int]) -> list[YardstickComparison]:
    train, held_out = labelled(80), labelled(40)

    def records() -> list[Record]:
        reads.append(1)
        return train

    return Yardsticks(Classify(classes=2), records, "data", tmp_path).beside({"accuracy": accuracy}, held_out)[0]


def test_a_difference_is_paired_told_in_a_sentence_and_kept(tmp_path: Path) -> None:
    reads: list[int] = []
    half = class_scores(np.arange(40) % 2, np.zeros(40, dtype=np.int64), 2)["accuracy"]
    comparisons = {each.yardstick.kind: each for each in beside(half, tmp_path, reads)}
    assert comparisons["majority"].difference.value == 0 and comparisons["majority"].difference.low is None
    assert comparisons["bag_of_words"].sentence.startswith("a bag of words is better by 50.0 points (")
    again = {each.yardstick.kind: each for each in beside(half, tmp_path, reads)}
    assert len(reads) == 2 and [each.sentence for each in again.values()] == [
        each.sentence for each in comparisons.values()
    ]


def test_the_loss_is_compared_text_by_text_in_nats() -> None:
    train, held_out = labelled(40), labelled(8)
    rng = np.random.default_rng(0)
    chances = rng.dirichlet([2, 2], size=8)
    ours = -np.log([chances[n, n % 2] for n in range(8)])
    theirs = np.array([BagOfWords().measure(train, [record])["loss"].value for record in held_out])
    loss = scores_of(chances, ["0", "1"], held_out)["loss"]
    (comparison,), _ = Yardsticks(Classify(classes=2), lambda: train, "data").beside({"loss": loss}, held_out)
    difference, reference = comparison.difference, mean(ours - theirs)
    expected = (reference.value, reference.low, reference.high)
    assert (difference.value, difference.low, difference.high) == pytest.approx(expected)


def test_each_score_of_a_yardstick_has_a_sentence_in_its_unit() -> None:
    theirs, (accuracy, loss) = Score(0.5, None, None, ""), BagOfWords.scores
    better = YardstickComparison(BagOfWords(), accuracy, theirs, Interval(0.021, 0.008, 0.034))
    lower = YardstickComparison(BagOfWords(), loss, theirs, Interval(-0.04, -0.07, -0.012))
    assert better.sentence == "better than a bag of words by 2.1 points (0.8 to 3.4)"
    assert lower.sentence == "better than a bag of words by 0.040 nats (0.012 to 0.070)"
    unsettled = YardstickComparison(BagOfWords(), loss, theirs, Interval(0.02, -0.01, 0.05))
    sentence = "not clearly different from a bag of words: 0.020 nats worse (0.050 worse to 0.010 better)"
    assert unsettled.sentence == sentence


def test_a_study_keeps_a_line_for_each_score(tmp_path: Path) -> None:
    run = tmp_path / "encoder" / "seed-0"
    shutil.copytree(run_of("classes").folder, run)
    lines = measured_lines(tmp_path, run, "valid", tmp_path / "cache")
    bag = {line.score: line.sentence for line in lines if line.yardstick == "bag_of_words"}
    assert bag["accuracy"].startswith("a bag of words: accuracy ") and "encoder, seed 0: " in bag["loss"]
    assert stored_lines(tmp_path) == lines and " nats" in bag["loss"]


def test_shares_have_an_interval_even_if_all_are_right() -> None:
    interval = share([True] * 20)
    assert interval.value == interval.high == 1.0 and interval.low == pytest.approx(0.8389, abs=1e-4)
