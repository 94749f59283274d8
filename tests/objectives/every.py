"""Every objective with a model and data that suit it."""

from dataclasses import replace
from typing import NamedTuple

import torch
from tests.objectives.reading import pair_model
from tests.objectives.small import batch, ids, model, noise

from anyformer.core import ModelSpec
from anyformer.data.batching.batch import Batch
from anyformer.models import Block, Branch, Decoder, Encoder, Stack
from anyformer.objectives.both_directions import BothDirectionsObjective
from anyformer.objectives.chat import ChatAnswers
from anyformer.objectives.classify import Classify
from anyformer.objectives.contrastive import Contrastive
from anyformer.objectives.distillation import Distillation
from anyformer.objectives.every_exit import EveryExit
from anyformer.objectives.masked_words import MaskedWords
from anyformer.objectives.matches.attention import AttentionMatch
from anyformer.objectives.matches.hidden import HiddenMatch
from anyformer.objectives.mixture import Mixture, MixtureTask
from anyformer.objectives.multiple_choice import MultipleChoice
from anyformer.objectives.next_token import NextToken
from anyformer.objectives.objective import Objective
from anyformer.objectives.permutation import PermutationLM
from anyformer.objectives.prefix_lm import PrefixLM
from anyformer.objectives.r_drop import RDrop
from anyformer.objectives.regress import Regress
from anyformer.objectives.replaced_token import ReplacedToken
from anyformer.objectives.sentence_pairs import SentencePairs
from anyformer.objectives.seq2seq import Seq2Seq
from anyformer.objectives.skip_gram import SkipGram
from anyformer.objectives.span_corruption import SpanCorruption
from anyformer.objectives.token_labels import TokenLabels
from anyformer.objectives.word_order import WordOrder
from anyformer.parts.channels.identity import Identity
from anyformer.parts.combine.bidirectional import Bidirectional
from anyformer.parts.joins.replace import Replace
from anyformer.parts.mixers.min_gru import MinGRU

LABELS = {
    "label": torch.tensor([0, 2, 1, 1, 0, 2]),
    "number": torch.tensor([0.5, -1.0, 2.0, 0.0, 3.0, 1.5]),
    "tags": torch.randint(-1, 3, (6, 9), generator=noise(4)),
    "choices": torch.tensor(ids(36, 8)).view(6, 3, 2),
    "task": torch.tensor([0, 1, 1, 0, 1, 0]),
}
TASKS = {
    "topic": MixtureTask(objective=Classify(classes=3)),
    "tags": MixtureTask(objective=TokenLabels(classes=3), weight=0.5),
}
ENCODER, DECODER, PAIR = model(Encoder), model(Decoder), pair_model()
NOTHING = Block(branches=(Branch(part=Identity(), place="none", join=Replace()),))
STATIC = replace(ENCODER, stack=Stack(blocks={"layer": NOTHING}, depth=1))
"""An embedding and a head."""
WORDS, ABOVE = (
    Block(branches=(Branch(part=Bidirectional(part=MinGRU(), reads=reads), place="none"),))
    for reads in ("all", "own_half")
)
TWO_WAYS = replace(ENCODER, stack=Stack(blocks={"words": WORDS, "above": ABOVE}, depth=2))
"""Two language models that never meet."""


class Case(NamedTuple):
    objective: Objective
    spec: ModelSpec
    pairs: bool = False
    note: str = ""
    teacher: ModelSpec | None = None

    def __str__(self) -> str:
        return "-".join(filter(None, (self.objective.kind, self.spec.kind, self.note)))

    def data(self) -> Batch:
        """Six rows, none too short for what is done to it."""
        raw = batch(source=self.pairs, **LABELS)
        tokens = raw.tokens.clone()
        tokens[4, :3] = torch.tensor([11, 12, 13])
        starts = torch.ones(6, 9, dtype=torch.bool)
        return replace(raw, tokens=tokens, frame=replace(raw.frame, valid=tokens != 0), word_starts=starts)


CASES = [
    Case(NextToken(), DECODER),
    Case(ChatAnswers(), DECODER),
    Case(PrefixLM(), DECODER),
    Case(MaskedWords(share=0.4), ENCODER),
    Case(MaskedWords(share=0.4, unit="word"), ENCODER, note="words"),
    Case(MaskedWords(share=0.4, sentences="next_sentence"), ENCODER, note="next sentence"),
    Case(WordOrder(share=0.9), ENCODER),
    Case(WordOrder(share=0.9, sentences="three_way"), ENCODER, note="three ways"),
    Case(PermutationLM(share=0.4), ENCODER),
    Case(ReplacedToken(rate=0.4), ENCODER),
    Case(SkipGram(), STATIC),
    Case(SkipGram(predicts="word"), STATIC, note="cbow"),
    Case(BothDirectionsObjective(), TWO_WAYS),
    Case(SpanCorruption(share=0.3), PAIR),
    Case(SpanCorruption(share=0.3), DECODER),
    Case(Seq2Seq(smoothing=0.1), PAIR, pairs=True),
    Case(Seq2Seq(), DECODER, pairs=True),
    Case(Seq2Seq(scored="all"), DECODER, pairs=True, note="all"),
    Case(Classify(classes=3), ENCODER),
    Case(Classify(classes=3, language=0.5), DECODER, note="words"),
    Case(Regress(), ENCODER, note="a number"),
    Case(SentencePairs(classes=3, order="both", language=0.5), DECODER, pairs=True),
    Case(SentencePairs(classes=1), ENCODER, pairs=True, note="a number"),
    Case(MultipleChoice(language=0.5), DECODER),
    Case(TokenLabels(classes=3), ENCODER),
    Case(Contrastive(temperature=2.0), ENCODER, pairs=True),
    Case(Distillation(objective=NextToken(), teacher="runs/teacher"), DECODER, teacher=NextToken().adapt(DECODER)),
    Case(
        Distillation(objective=MaskedWords(share=0.4), teacher="runs/teacher"),
        ENCODER,
        note="masked",
        teacher=MaskedWords(share=0.4).adapt(ENCODER),
    ),
    Case(
        Distillation(objective=Seq2Seq(), teacher="runs/teacher"),
        DECODER,
        pairs=True,
        note="from both halves",
        teacher=Seq2Seq().adapt(PAIR),
    ),
    Case(
        Distillation(objective=Seq2Seq(), teacher="runs/teacher"),
        PAIR,
        pairs=True,
        note="from one row",
        teacher=Seq2Seq().adapt(DECODER),
    ),
    Case(
        Distillation(objective=Classify(classes=3), teacher="runs/teacher"),
        ENCODER,
        note="classes",
        teacher=Classify(classes=3).adapt(ENCODER),
    ),
    Case(
        Distillation(objective=NextToken(), teacher="runs/teacher", matches=(HiddenMatch(), AttentionMatch())),
        DECODER,
        note="layers",
        teacher=NextToken().adapt(DECODER),
    ),
    Case(
        Distillation(objective=Seq2Seq(), teacher="runs/teacher", matches=(HiddenMatch(), AttentionMatch())),
        PAIR,
        pairs=True,
        note="layers of both halves",
        teacher=Seq2Seq().adapt(PAIR),
    ),
    Case(EveryExit(objective=Classify(classes=3, language=0.5), weight=0.5), DECODER, note="classes and words"),
    Case(EveryExit(objective=Seq2Seq(), weight=0.5), PAIR, pairs=True),
    Case(EveryExit(objective=Mixture(tasks=TASKS), weight=0.5), ENCODER, note="mixture"),
    Case(RDrop(objective=NextToken()), DECODER),
    Case(RDrop(objective=Seq2Seq()), PAIR, pairs=True),
    Case(RDrop(objective=Classify(classes=3)), ENCODER, note="classes"),
    Case(Mixture(tasks=TASKS), ENCODER),
    Case(Mixture(tasks=TASKS, rows="task"), ENCODER, note="by task"),
]
