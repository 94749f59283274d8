"""Every metric against the library that papers use for it."""

import math
import re
import sys
from collections import Counter
from typing import Any

import numpy as np
import pytest
import sacrebleu
from rouge_score import rouge_scorer
from scipy.stats import pearsonr, spearmanr
from sklearn import metrics as sklearn

from anyformer.errors import SpecError
from anyformer.evaluation.metrics.classes import calibration, class_scores
from anyformer.evaluation.metrics.likelihood import Likelihood
from anyformer.evaluation.metrics.matches import match_scores
from anyformer.evaluation.metrics.numbers import number_scores
from anyformer.evaluation.metrics.retrieval import ranks_of, retrieval_scores
from anyformer.evaluation.metrics.score import Score
from anyformer.evaluation.metrics.summaries import summary_scores
from anyformer.evaluation.metrics.translations import edit_rate_scores, translation_scores
from anyformer.statistics.intervals import mean, share

RNG = np.random.default_rng(0)
WORDS = ["the", "cat", "sat", "on", "a", "mat,", "and", "then", "it", "ran", "away", "from", "small", "dog"]
WANTED = [" ".join(RNG.choice(WORDS, size)) + "." for size in RNG.integers(5, 15, 40)]
WRITTEN = [" ".join(word for word in text.split() if RNG.random() < 0.85) for text in WANTED]


@pytest.mark.row("TSK-10", clause="score BLEU equals a reference implementation")
@pytest.mark.row(
    "WMT-07", clause=("equals sacrebleu to 1e-6 with tokenize none", "equals sacrebleu to 1e-6 with tokenize 13a")
)
@pytest.mark.parametrize("tokenize", ["13a", "none"])
def test_bleu_chrf_and_ter_are_those_of_sacrebleu(tokenize: str) -> None:
    found = translation_scores(WRITTEN, WANTED, tokenize=tokenize)
    bleu = sacrebleu.BLEU(tokenize=tokenize)
    assert found["bleu"].value == pytest.approx(bleu.corpus_score(WRITTEN, [WANTED]).score, abs=1e-6)
    assert found["bleu"].signature.startswith(str(bleu.get_signature()))
    assert found["chrf"].value == pytest.approx(sacrebleu.corpus_chrf(WRITTEN, [WANTED]).score, abs=1e-6)
    ter = edit_rate_scores(WRITTEN, WANTED)["ter"]
    assert ter.value == pytest.approx(sacrebleu.corpus_ter(WRITTEN, [WANTED]).score, abs=1e-6)


def clipped_precision(written: list[list[str]], wanted: list[list[str]], size: int) -> float:
    """Share of the written n-grams that the text wanted has too, each at most as often as there; over all texts."""
    shared = total = 0
    for text, right in zip(written, wanted, strict=True):
        counts, known = (
            Counter(tuple(words[i : i + size]) for i in range(len(words) - size + 1)) for words in (text, right)
        )
        shared, total = shared + (counts & known).total(), total + counts.total()
    return shared / total


@pytest.mark.row(
    "WMT-07",
    clause=(
        "geometric mean of clipped 1- to 4-gram precisions of the corpus",
        "brevity penalty when the output is shorter than the reference",
    ),
)
def test_bleu_is_the_mean_of_clipped_precisions_times_a_penalty_for_short_output() -> None:
    wanted = [text.split() for text in WANTED]
    repeated = [[*words, words[-1]] for words in wanted]  # longer, with a word more often than it is wanted
    short = [text.split() for text in WRITTEN]
    for written, is_short in ((short, True), (repeated, False)):
        precisions = [clipped_precision(written, wanted, size) for size in (1, 2, 3, 4)]
        lengths = [sum(map(len, texts)) for texts in (written, wanted)]
        penalty = math.exp(1 - lengths[1] / lengths[0]) if is_short else 1.0
        assert (lengths[0] < lengths[1]) == is_short and min(precisions) < 1
        score = translation_scores([" ".join(words) for words in written], WANTED, tokenize="none")["bleu"].value
        assert score == pytest.approx(100 * penalty * math.prod(precisions) ** 0.25, abs=1e-6)


def test_the_interval_of_bleu_is_that_of_resampled_sentences() -> None:
    found = translation_scores(WRITTEN, WANTED)["bleu"]
    theirs = sacrebleu.BLEU().corpus_score(WRITTEN, [WANTED], n_bootstrap=1000)
    assert found.low is not None and found.high is not None and found.low < found.value < found.high
    assert (found.high - found.low) / 2 == pytest.approx(theirs._ci, rel=0.15)


@pytest.mark.row(
    "SUM-10",
    clause=("also gives ROUGE-1 and ROUGE-2 (single words and pairs)", "equals the rouge-score package to 1e-6"),
)
@pytest.mark.row("TSK-10", clause="score ROUGE-2 equals a reference implementation")
@pytest.mark.parametrize("stem", [True, False])
def test_rouge_is_that_of_rouge_score(stem: bool) -> None:
    found = summary_scores(WRITTEN, WANTED, stem=stem)
    scorer = rouge_scorer.RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=stem)
    each = [scorer.score(right, text) for text, right in zip(WRITTEN, WANTED, strict=True)]
    for ours, theirs in (("rouge1", "rouge1"), ("rouge2", "rouge2"), ("rougel", "rougeL")):
        assert found[ours].value == pytest.approx(np.mean([row[theirs].fmeasure for row in each]))


def longest_common(a: list[str], b: list[str]) -> int:
    """The length of the longest sequence of words that both have in this order, maybe with gaps."""
    best = np.zeros((len(a) + 1, len(b) + 1), dtype=int)
    for i, one in enumerate(a):
        for j, other in enumerate(b):
            best[i + 1, j + 1] = best[i, j] + 1 if one == other else max(best[i, j + 1], best[i + 1, j])
    return int(best[-1, -1])


@pytest.mark.row("SUM-10", clause="an F score from the longest common subsequence")
def test_rouge_l_is_the_f_score_of_the_longest_common_subsequence() -> None:
    scores = []
    for written, wanted in zip(WRITTEN, WANTED, strict=True):
        a, b = (re.findall("[a-z0-9]+", text.lower()) for text in (written, wanted))
        precision, recall = longest_common(a, b) / len(a), longest_common(a, b) / len(b)
        scores.append(2 * precision * recall / (precision + recall))
    assert summary_scores(WRITTEN, WANTED, stem=False)["rougel"].value == pytest.approx(np.mean(scores), rel=1e-6)


@pytest.mark.row("SST-11", clause="accuracy equals sklearn")
@pytest.mark.row("TSK-10", clause="accuracy, F1 and EM equal a reference implementation")
def test_scores_of_classes_are_those_of_scikit_learn() -> None:
    right, said = RNG.integers(0, 4, 200), RNG.integers(0, 4, 200)
    said[:120] = right[:120]
    found = class_scores(right, said, classes=5)
    assert found["accuracy"].value == pytest.approx(sklearn.accuracy_score(right, said))
    assert found["macro_f1"].value == pytest.approx(sklearn.f1_score(right, said, average="macro"))
    assert found["matthews"].value == pytest.approx(sklearn.matthews_corrcoef(right, said))


@pytest.mark.row("TSK-10", clause="accuracy, F1 and EM equal a reference implementation")
def test_exact_match_is_the_accuracy_of_whole_texts_of_scikit_learn() -> None:
    written = [f" {text}" if place % 3 else text.upper() for place, text in enumerate(WANTED * 3)]
    stripped = [text.strip() for text in written]
    score = match_scores(written, WANTED * 3)["exact_match"].value
    assert score == pytest.approx(sklearn.accuracy_score(WANTED * 3, stripped))
    assert 0 < score < 1


def test_one_class_alone_has_no_correlation() -> None:
    assert class_scores(np.zeros(5, int), np.zeros(5, int), classes=2)["matthews"].value == 0.0


def test_words_of_one_text_are_resampled_together() -> None:
    right, said = np.tile([0, 1], 50), np.tile([0, 0], 50)
    alone = class_scores(right, said, 2)["accuracy"]
    together = class_scores(right, said, 2, unit=np.repeat(np.arange(50), 2))["accuracy"]
    assert alone.low is not None and together.low is not None and together.low < alone.low  # 100 items, or 50 texts
    one_wrong = np.where(np.arange(100) == 3, 1 - right, right)
    resampled = class_scores(right, one_wrong, 2, unit=np.repeat(np.arange(50), 2))["accuracy"]
    assert "1000 resamples of 50 texts" in resampled.signature


PERFECT = {
    "classes": lambda n: class_scores(np.arange(n) % 2, np.arange(n) % 2, 2, np.ones(n)),
    "tags": lambda n: class_scores(np.zeros(3 * n, int), np.zeros(3 * n, int), 2, unit=np.repeat(np.arange(n), 3)),
    "search": lambda n: retrieval_scores(np.ones(n), n),
    "exact": lambda n: match_scores(WANTED[:n], WANTED[:n]),
    "translation": lambda n: translation_scores(WANTED[:n], WANTED[:n]),
    "summary": lambda n: summary_scores(WANTED[:n], WANTED[:n]),
    "numbers": lambda n: number_scores(np.arange(n), np.arange(n)),
}


@pytest.mark.parametrize("count", [1, 3, 29])
@pytest.mark.parametrize("task", PERFECT)
def test_no_perfect_score_has_an_interval_of_one_point(task: str, count: int) -> None:
    for name, score in PERFECT[task](count).items():
        assert score.low is None or score.low < score.high, name
        if name in ("accuracy", "exact_match", "recall@1"):
            assert score.low is not None and score.high == 1.0
        elif score.low is None:
            assert ("too few" if count < 10 else "every resample") in score.signature


def test_few_documents_are_resampled_in_blocks_and_too_few_are_said() -> None:
    nats = [RNG.gamma(2.0, size=size) for size in (900, 2100)]
    scores = Likelihood.of_documents(nats, [4_000, 8_000]).scores()
    assert "of 30 blocks of text" in scores["loss"].signature and scores["bits_per_byte"].low is not None
    assert scores["loss"].value == pytest.approx(np.concatenate(nats).mean())
    short = Likelihood.of_documents([nats[0][:50]] * 3, [200] * 3).scores()["loss"]
    assert short.low is None and short.signature.endswith("3 documents: too few for an interval")
    many = Likelihood.of_documents(nats * 5, [4_000, 8_000] * 5).scores()["loss"]
    assert "of 10 documents" in many.signature


def test_probabilities_that_mean_what_they_say_are_calibrated() -> None:
    sure = RNG.uniform(0.5, 1.0, 20_000)
    hits = (RNG.random(20_000) < sure).astype(float)
    assert calibration(hits, sure, np.ones(20_000)) < 0.02
    assert calibration(np.zeros(4), np.full(4, 0.9), np.ones(4)) == pytest.approx(0.9)


def test_scores_of_numbers_are_those_of_scipy() -> None:
    right = RNG.normal(size=50)
    said = right + RNG.normal(size=50)
    found = number_scores(right, said)
    assert found["pearson"].value == pytest.approx(pearsonr(right, said).statistic)
    assert found["spearman"].value == pytest.approx(spearmanr(right, said).statistic)
    assert found["squared_error"].value == pytest.approx(sklearn.mean_squared_error(right, said))
    assert found["absolute_error"].value == pytest.approx(sklearn.mean_absolute_error(right, said))
    assert found["r2"].value == pytest.approx(sklearn.r2_score(right, said))
    for name in ("absolute_error", "r2"):
        low, high = found[name].low, found[name].high
        assert low is not None and high is not None and low < found[name].value < high


def test_the_interval_of_r_squared_is_that_of_plain_resamples() -> None:
    right = RNG.normal(size=30)
    predicted = right + RNG.normal(size=30)
    rng = np.random.default_rng(0)
    drawn = [rng.integers(30, size=30) for _ in range(1_000)]
    plain = [sklearn.r2_score(right[rows], predicted[rows]) for rows in drawn]
    assert number_scores(right, predicted)["r2"].resampled == pytest.approx(plain)
    assert number_scores(np.ones(12), np.zeros(12))["r2"].value == 0


@pytest.mark.row("TSK-03")
def test_scores_of_search_are_those_of_scikit_learn() -> None:
    queries, documents = RNG.normal(size=(30, 8)), RNG.normal(size=(50, 8))
    wanted = RNG.integers(0, 50, 30)
    scores, truth = queries @ documents.T, np.eye(50)[wanted]
    found = retrieval_scores(ranks_of(queries, documents, wanted), 50)
    assert found["ndcg@10"].value == pytest.approx(sklearn.ndcg_score(truth, scores, k=10))
    assert found["mrr"].value == pytest.approx(sklearn.label_ranking_average_precision_score(truth, scores))
    assert found["recall@5"].value == pytest.approx(sklearn.top_k_accuracy_score(wanted, scores, k=5, labels=range(50)))


def test_equal_documents_share_their_ranks() -> None:
    assert ranks_of(np.ones((1, 2)), np.ones((5, 2)), np.array([3])) == [3.0]


@pytest.mark.row(
    "SUM-11", clause=("exp of the mean negative log-likelihood per token", "equals exp(loss) on a given loss")
)
@pytest.mark.row("PRE-05", clause="perplexity = exp(loss)")
def test_perplexity_and_bits_follow_from_the_sums() -> None:
    found = Likelihood(np.array([3.0, 5.0]), np.array([2.0, 2.0]), "documents", np.array([8.0, 10.0])).scores()
    assert found["loss"].value == 2.0 and found["perplexity"].value == pytest.approx(math.exp(2.0))
    assert found["bits_per_byte"].value == pytest.approx(8.0 / math.log(2) / 18)


def test_a_sum_of_weights_is_not_called_tokens() -> None:
    scores = Likelihood(np.array([3.0]), np.array([0.5]), "texts", scored=np.array([4.0])).scores()
    assert "4 tokens of weight 0.5" in scores["loss"].signature


def test_exact_match_looks_past_white_space_at_the_ends() -> None:
    assert match_scores(["a b ", "c"], ["a b", "C"])["exact_match"].value == 0.5


@pytest.mark.parametrize("measure", [translation_scores, edit_rate_scores, summary_scores])
def test_a_missing_library_is_named_with_its_line(measure: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("sacrebleu", "rouge_score.rouge_scorer"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SpecError, match=r"pip install 'anyformer\[text\]'"):
        measure(["a"], ["a"])


def test_one_text_is_called_a_text() -> None:
    interval = share([1.0])
    assert interval.low is not None and Score.of(interval, 1, "texts").signature.endswith("of 1 text")


@pytest.mark.parametrize(("units", "unit"), [("texts", "text"), ("queries", "query"), ("batches", "batch")])
def test_one_unit_is_named_in_the_singular(units: str, unit: str) -> None:
    assert Score.of(mean([0.5]), 1, units).signature == f"1 {unit}: too few for an interval"
