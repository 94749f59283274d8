"""How good a model is at what it learned: the objective of a run says which scores mean something."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, fields, replace
from functools import partial, singledispatch
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from anyformer.core.fields import did_you_mean
from anyformer.data.preparation.pipeline import DataSpec, look
from anyformer.data.record import Record
from anyformer.errors import DataError, SpecError
from anyformer.evaluation.document_likelihood import context_scores, language_scores, position_scores
from anyformer.evaluation.metrics import retrieval, summaries, translations
from anyformer.evaluation.metrics.classes import class_scores
from anyformer.evaluation.metrics.likelihood import Likelihood
from anyformer.evaluation.metrics.matches import match_scores
from anyformer.evaluation.metrics.numbers import number_scores
from anyformer.evaluation.metrics.score import Score, Scores
from anyformer.inference.classifying import scores_of
from anyformer.inference.embedding import embed, normalised
from anyformer.inference.predictor import Predictor, aspects
from anyformer.inference.record_batches import checked, lots
from anyformer.inference.text_generator import GenerationConfig, describe, write
from anyformer.objectives.classify import Classify
from anyformer.objectives.contrastive import Contrastive
from anyformer.objectives.heads import head_of
from anyformer.objectives.masked_words import MaskedWords
from anyformer.objectives.multiple_choice import MultipleChoice
from anyformer.objectives.next_token import NextToken
from anyformer.objectives.objective import Objective
from anyformer.objectives.permutation import PermutationLM
from anyformer.objectives.prefix_lm import PrefixLM
from anyformer.objectives.regress import Regress
from anyformer.objectives.scoring import label_of
from anyformer.objectives.sentence_pairs import SentencePairs
from anyformer.objectives.seq2seq import Seq2Seq
from anyformer.objectives.span_corruption import SpanCorruption
from anyformer.objectives.token_labels import TokenLabels
from anyformer.objectives.word_order import WordOrder
from anyformer.objectives.words import WORDS, asked_of, read_pair
from anyformer.statistics.intervals import Floats, bootstrap, mean, ratio

LIKELIHOOD = ("loss", "perplexity")
CLASSES = ("loss", "accuracy", "macro_f1", "matthews", "calibration_error")
CURVES = ("by_position", "by_context")
ROWS, TOKENS = 32, 2048
"""Of a batch, where the scores of all words are held at once."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is to be scored."""

    trained: Predictor
    records: list[Record]
    manner: GenerationConfig = GenerationConfig()
    """How texts are written, where they are."""
    tell: Callable[[int], None] = lambda done: None
    """Hears how many records are done."""


class Family(NamedTuple):
    """Scores that are measured together."""

    names: tuple[str, ...]
    measure: Callable[[], Scores]
    needs: str | None = None
    """A module of the extra `text`."""
    usual: bool = True
    """False: only if asked for."""


class Evaluation(NamedTuple):
    """Scores by name, and what should be said beside them."""

    scores: dict[str, Score]
    notes: list[str]


def evaluate(job: Job, wanted: Collection[str] = ()) -> Evaluation:
    """All scores that mean something for this model, or those that are wanted, by name."""
    if not job.records:
        raise DataError("there are no records to evaluate on.")
    parts = aspects(job.trained)
    scores: dict[str, Score] = {}
    notes: list[str] = []
    known: list[str] = []
    for objective, model in parts:
        trained = replace(job.trained, objective=plain(objective), models={**job.trained.models, "model": model})
        prefix = f"{objective.kind}." if len(parts) > 1 else ""
        for family in families(objective, replace(job, trained=trained)):
            names = [prefix + name for name in family.names]
            known += names
            asked = set(names) & set(wanted)
            if wanted and not asked:
                continue
            if not asked and (not family.usual or _is_missing(family)):
                notes += [f"{', '.join(names)}: left out. pip install 'anyformer[text]'"] if family.needs else []
                continue
            found = {prefix + name: score for name, score in family.measure().items()}
            scores |= {name: it for name, it in found.items() if not asked or name in asked or name not in names}
    for name in wanted:
        if name not in known:
            raise SpecError(
                f"metric: {job.trained.name} ({job.trained.objective.kind}) has no {name!r}.{did_you_mean(name, known)}"
            )
    return Evaluation(scores, notes)


def held_out(data: DataSpec, split: str) -> Iterator[Record]:
    """The records of one split, as text."""
    view = look(data)
    return (record for record in view.records() if view.splitter.assign(record) == split)


def plain(objective: Objective) -> Objective:
    """Without what makes training go better but a loss no longer one of words: smoothing, a term on the scores' sum."""
    named = {field.name for field in fields(objective)}
    off: Any = {name: 0.0 for name in ("smoothing", "z") if name in named}
    return replace(objective, **off) if off else objective


@singledispatch
def families(objective: Objective, job: Job) -> list[Family]:
    """What can be measured; of an objective that nobody here knows, the terms of its loss."""
    return [Family(("loss",), partial(_terms, job))]


@families.register
def _(objective: NextToken, job: Job) -> list[Family]:
    texts = [record.text for record in job.records]
    return [
        Family((*LIKELIHOOD, "bits_per_byte"), partial(language_scores, job.trained, texts, job.tell)),
        Family(("by_position",), partial(position_scores, job.trained, texts), usual=False),
        Family(("by_context",), partial(context_scores, job.trained, texts), usual=False),
    ]


@families.register(PrefixLM)
@families.register(SpanCorruption)
def _(objective: Objective, job: Job) -> list[Family]:
    return [Family(LIKELIHOOD, partial(_words, job, False))]


@families.register(MaskedWords)
@families.register(WordOrder)
@families.register(PermutationLM)
def _(objective: Objective, job: Job) -> list[Family]:
    return [Family((*LIKELIHOOD, "accuracy"), partial(_words, job, True))]


@families.register
def _(objective: Seq2Seq, job: Job) -> list[Family]:
    texts = _Texts(job)
    return [
        Family(LIKELIHOOD, partial(_words, job, False)),
        Family(("exact_match",), lambda: match_scores(*texts())),
        Family(translations.NAMES, lambda: translations.translation_scores(*texts()), "sacrebleu"),
        Family(tuple(summaries.NAMES), lambda: summaries.summary_scores(*texts()), "rouge_score"),
    ]


@families.register(Classify)
@families.register(MultipleChoice)
def _(objective: Objective, job: Job) -> list[Family]:
    return [Family(CLASSES, partial(_classes, job))]


@families.register
def _(objective: SentencePairs, job: Job) -> list[Family]:
    if objective.classes == 1:
        return [Family(("squared_error", "pearson", "spearman"), partial(_numbers, job))]
    return [Family(CLASSES, partial(_classes, job))]


@families.register
def _(objective: Regress, job: Job) -> list[Family]:
    return [Family(("squared_error", "pearson", "spearman"), partial(_numbers, job))]


@families.register
def _(objective: TokenLabels, job: Job) -> list[Family]:
    return [Family(CLASSES, partial(_tags, job))]


@families.register
def _(objective: Contrastive, job: Job) -> list[Family]:
    names = (*(f"recall@{cut}" for cut in retrieval.CUTS), "mrr", f"ndcg@{retrieval.CUT}")
    return [Family(names, partial(_found, job))]


class _Texts:
    """What the model writes, what was wanted, and how; written once for all metrics."""

    def __init__(self, job: Job):
        self.job = job
        self.found: tuple[list[str], list[str], str] | None = None

    def __call__(self) -> tuple[list[str], list[str], str]:
        if self.found is None:
            job = self.job
            records = [checked(job.trained, record) for record in job.records]
            written = write(job.trained, [record.text for record in records], job.manner, job.tell)
            wanted = [record.target or "" for record in records]
            self.found = written, wanted, describe(job.trained, job.manner)
        return self.found


@torch.no_grad()
def _words(job: Job, guessed: bool) -> Scores:
    """The likelihood of the words that the objective asks for, text by text; `guessed`: how many are right."""
    trained, words = job.trained, job.trained.tokenizer.words
    rng, nats, tokens, hits = (
        torch.Generator().manual_seed(0),
        dict[int, float](),
        dict[int, float](),
        dict[int, float](),
    )
    trained.model.eval()
    for lot in lots(trained, job.records, tokens=TOKENS, most_rows=ROWS):
        batch = trained.objective.prepare(lot.batch, words, rng).to(trained.device)
        if not len(batch.tokens):
            continue
        reading, read_as = read_pair(trained.model, batch)
        assert read_as.weight is not None
        h, targets, weight = asked_of(reading.h, read_as, read_as.weight)
        logits = head_of(trained.model).named(WORDS)(h, reading.frame).float()
        losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(targets.shape)
        columns = (losses * weight, weight, (logits.argmax(-1) == targets) * weight)
        sums = [column.double().sum(1).tolist() for column in columns]
        rows = (
            lot.rows
            if len(lot.rows) == len(batch.tokens)
            else [max(nats, default=-1) + 1 + it for it in range(len(batch.tokens))]
        )
        for row, *three in zip(rows, *sums, strict=True):
            for column, value in zip((nats, tokens, hits), three, strict=True):
                column[row] = column.get(row, 0.0) + value
        job.tell(min(len(nats), len(job.records)))
    kept = [row for row in nats if tokens[row]]
    if not kept:
        raise DataError("nothing in these data was asked for: the texts are too short.")
    what = "pairs" if trained.contents.pair else "texts"
    lists = [np.array([column[row] for row in kept]) for column in (nats, tokens, hits)]
    found = dict(Likelihood(lists[0], lists[1], what).scores(trained.objective.kind))
    if guessed:
        found["accuracy"] = Score.of(
            ratio(lists[2], lists[1]), len(kept), what, f"{int(lists[1].sum()):,} words guessed"
        )
    return found


@torch.no_grad()
def _terms(job: Job) -> Scores:
    """The terms of the loss, batch by batch."""
    trained, rng = job.trained, torch.Generator().manual_seed(0)
    sums: dict[str, list[tuple[float, float]]] = {}
    for lot in lots(trained, job.records, most_rows=16):
        batch = trained.objective.prepare(lot.batch, trained.tokenizer.words, rng).to(trained.device)
        for name, term in trained.objective.loss(trained.models, batch, rng).items():
            sums.setdefault(name, []).append((float(term.sum), float(term.weight)))
    columns = {name: np.array(rows).T for name, rows in sums.items()}
    batches = max(len(rows) for rows in sums.values())
    whole = {name: it for name, it in columns.items() if it.shape[1] == batches}

    def total(weights: Floats) -> float:
        return sum(float(weights @ above) / max(float(weights @ below), 1e-300) for above, below in whole.values())

    found = {"loss": Score.of(bootstrap(total, batches), batches, "batches", trained.objective.kind)}
    if len(columns) > 1:
        found |= {
            name: Score.of(ratio(*it), it.shape[1], "batches", "a term of the loss") for name, it in columns.items()
        }
    return found


def _classes(job: Job) -> Scores:
    right, said, sure, nats = list[int](), list[int](), list[float](), list[float]()
    for found in scores_of(job.trained, job.records, labelled=True):
        labels = label_of(found.lot.batch)
        chances = found.scores.softmax(-1)
        right += labels.tolist()
        said += chances.argmax(-1).tolist()
        sure += chances.max(-1).values.tolist()
        nats += F.cross_entropy(found.scores, labels, reduction="none").tolist()
        job.tell(len(right))
    _refuse_nothing(right)
    classes = job.trained.contents.choices or len(job.trained.contents.classes)
    loss = Score.of(mean(nats), len(nats), "texts", "nats per text")
    return {"loss": loss, **class_scores(np.array(right), np.array(said), classes, np.array(sure))}


def _tags(job: Job) -> Scores:
    """Word by word; texts are what is resampled, since words of one text are no independent samples."""
    columns: list[list[float]] = [[], [], [], [], []]
    texts = 0
    for found in scores_of(job.trained, job.records, labelled=True):
        tags = found.lot.batch.labels.tags
        assert tags is not None
        there = tags >= 0
        chances = found.scores.softmax(-1)[there]
        nats = F.cross_entropy(found.scores[there], tags[there], reduction="none")
        unit = torch.arange(texts, texts + len(tags))[:, None].expand_as(tags)[there]
        for column, values in zip(
            columns, (tags[there], chances.argmax(-1), chances.amax(-1), nats, unit), strict=True
        ):
            column += values.tolist()
        texts += len(tags)
        job.tell(texts)
    right, said, sure, nats_, unit_ = (np.array(column) for column in columns)
    _refuse_nothing(columns[0])
    sums = np.bincount(unit_.astype(np.int64), weights=nats_)
    loss = Score.of(ratio(sums, np.bincount(unit_.astype(np.int64))), len(sums), "texts", "nats per word")
    classes = len(job.trained.contents.tags)
    whole = (right.astype(np.int64), said.astype(np.int64))
    return {"loss": loss, **class_scores(*whole, classes, sure, unit_.astype(np.int64))}


def _numbers(job: Job) -> Scores:
    right, said = list[float](), list[float]()
    for found in scores_of(job.trained, job.records, labelled=True):
        labels = found.lot.batch.labels
        numbers = labels.label if labels.number is None else labels.number
        assert numbers is not None
        right += numbers.tolist()
        said += found.scores[:, 0].tolist()
        job.tell(len(right))
    _refuse_nothing(right)
    return number_scores(np.array(right), np.array(said))


def _found(job: Job) -> Scores:
    """Does each text find its partner among the partners of all? Those that are the same text count as one."""
    records = [checked(job.trained, record) for record in job.records]
    documents = list(dict.fromkeys(str(record.target) for record in records))
    places = {text: place for place, text in enumerate(documents)}
    queries, _ = embed(job.trained, [record.text for record in records], job.tell)
    vectors, _ = embed(job.trained, documents)
    wanted = np.array([places[str(record.target)] for record in records])
    ranks = retrieval.ranks_of(normalised(queries), normalised(vectors), wanted)
    return retrieval.retrieval_scores(ranks, len(documents))


def _is_missing(family: Family) -> bool:
    return family.needs is not None and find_spec(family.needs) is None


def _refuse_nothing(items: Collection[Any]) -> None:
    if not items:
        raise DataError("nothing could be read: every text is empty.")
