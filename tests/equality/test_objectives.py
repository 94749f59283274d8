"""Objectives against Hugging Face's models with the same weights: scores, losses, the gradient of every parameter."""

from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from scipy.stats import chi2_contingency
from tests.equality.comparing import check_equal, check_gradients, randomise
from tests.equality.copying import Peer, Table, Tabulate, bert_body, copy, linear, openai_gpt
from tests.equality.test_bert import DIM, LAYERS, LENGTH, SIZES, VOCAB, spec
from tests.equality.test_openai_gpt import spec as gpt_spec
from tokenizers import Tokenizer as Library
from tokenizers import models
from torch import Tensor, nn

from anyformer.core import Frame, Model
from anyformer.data.batching.batch import Batch, RowLabels
from anyformer.data.tokenizers.vocabulary import Vocabulary
from anyformer.objectives.classify import Classify
from anyformer.objectives.corruption import Shares, mask_words
from anyformer.objectives.multiple_choice import MultipleChoice
from anyformer.objectives.objective import Loss, Objective
from anyformer.objectives.regress import Regress
from anyformer.objectives.replaced_token import ReplacedToken
from anyformer.objectives.token_labels import TokenLabels
from anyformer.objectives.transformations import Layout, flat
from anyformer.objectives.words import read
from anyformer.parts.heads.pooled import Pooled
from anyformer.parts.heads.token_classifier import TokenClassifier
from anyformer.parts.pools.first import First
from anyformer.training import load

WORDS = Vocabulary(size=VOCAB, pad=0, unk=1, bos=2, eos=3, sep=4, cls=5, mask=6, sentinels=())
BERT = Layout(form="bert")
POOLER = Pooled(pool=First(), layer="tanh")


def texts(*shape: int) -> Tensor:
    """Words only; the ends of some texts are padding."""
    tokens = torch.randint(10, VOCAB, shape)
    tokens[..., 3:] *= torch.rand(*shape[:-1], 1) < 0.6
    return tokens


def pooled_bert(read: Peer) -> Table:
    """BertForSequenceClassification, BertForMultipleChoice."""
    head = linear(read, "head.layer", "bert.pooler.dense") | linear(read, "head.classes", "classifier")
    return bert_body(read, LAYERS, "bert.") | head


def bert_with(classes: str) -> Tabulate:
    """Bert with one linear layer on every token."""
    return lambda read: bert_body(read, LAYERS, "bert.") | linear(read, "head.classes", classes)


def electra(read: Peer) -> Table:
    head = linear(read, "head.layer", "discriminator_predictions.dense")
    head |= linear(read, "head.classes", "discriminator_predictions.dense_prediction")
    return bert_body(read, LAYERS, "electra.") | head


def double_heads(read: Peer) -> Table:
    return openai_gpt(read, LAYERS) | linear(read, "head.heads.label.classes", "multiple_choice_head.summary")


def bert_config(transformers: ModuleType, **more: Any) -> Any:
    return transformers.BertConfig(max_position_embeddings=LENGTH, classifier_dropout=0.0, **SIZES, **more)


def mean(terms: Loss) -> Tensor:
    """What is minimised, each term by its own count."""
    return sum((term.sum / term.weight for term in terms.values()), torch.zeros(()))


def check_loss(ours: Model, theirs: nn.Module, loss: Tensor, their_loss: Tensor, tabulate: Tabulate) -> None:
    check_equal(loss, their_loss)
    loss.backward()
    their_loss.backward()
    for parameter in (*ours.parameters(), *theirs.parameters()):
        if parameter.grad is not None and parameter.grad.abs().max() < 1e-12:
            parameter.grad.zero_()  # the bias of a score that is compared with its like: nothing but rounding
    check_gradients(ours, theirs, tabulate)


def pooled_pair(objective: Objective, theirs: nn.Module) -> Model:
    """In double precision: what answers have in common leaves almost no gradient, and rounding would be seen."""
    ours = objective.adapt(spec(POOLER)).build().eval().double()
    copy(theirs.double(), ours, pooled_bert)
    return ours


def given(batch: Batch) -> dict[str, Tensor]:
    """A prepared batch as the peer wants it."""
    valid, types = batch.frame.valid, batch.frame.types
    assert valid is not None and types is not None
    return {"input_ids": batch.tokens, "attention_mask": valid.long(), "token_type_ids": types}


@pytest.mark.row(
    "PRE-17",
    clause=(
        "heads for sequence labels, token labels and answer spans",
        "each head equals its transformers class with copied weights",
    ),
)
@pytest.mark.row("RNN-18", clause="encoder summary: the state at [CLS]")
@pytest.mark.parametrize("classes", [3, 1], ids=["classes", "a number"])
def test_bert_for_sequence_classification(transformers: ModuleType, classes: int) -> None:
    objective = Classify(classes=classes, layout=BERT) if classes > 1 else Regress(layout=BERT)
    config = bert_config(transformers, num_labels=classes)
    theirs = randomise(transformers.BertForSequenceClassification(config))
    ours = pooled_pair(objective, theirs)
    labels = {"label": torch.tensor([0, 2, 1, 2]), "number": torch.tensor([0.5, -1.0, 2.0, 0.1])}
    made = objective.prepare(
        Batch(tokens=texts(4, 9), frame=Frame(), labels=RowLabels(**labels)), WORDS, torch.Generator()
    )
    expected = theirs(**given(made), labels=labels["label"] if classes > 1 else labels["number"].double())
    check_equal(ours(made.tokens, made.frame).y, expected.logits)
    loss = mean(objective.loss({"model": ours}, made, torch.Generator()))
    check_loss(ours, theirs, loss, expected.loss, pooled_bert)


@pytest.mark.row("TSK-07", clause="heads for answers, entailment, similarity and multiple choice")
@pytest.mark.row("PRE-17")
def test_bert_for_multiple_choice(transformers: ModuleType) -> None:
    theirs, objective = (
        randomise(transformers.BertForMultipleChoice(bert_config(transformers))),
        MultipleChoice(layout=BERT),
    )
    ours = pooled_pair(objective, theirs)
    labels = {"label": torch.tensor([0, 2, 1, 2]), "choices": texts(4, 3, 4)}
    made = objective.prepare(
        Batch(tokens=texts(4, 5), frame=Frame(), labels=RowLabels(**labels)), WORDS, torch.Generator()
    )
    rows = flat(made)
    expected = theirs(
        **{name: value.unflatten(0, (4, 3)) for name, value in given(rows).items()}, labels=labels["label"]
    )
    check_equal(ours(rows.tokens, rows.frame).y.view(4, 3), expected.logits)
    loss = mean(objective.loss({"model": ours}, made, torch.Generator()))
    check_loss(ours, theirs, loss, expected.loss, pooled_bert)


@pytest.mark.row(
    "PRE-17",
    clause=(
        "heads for sequence labels, token labels and answer spans",
        "each head equals its transformers class with copied weights",
    ),
)
def test_bert_for_token_classification(transformers: ModuleType) -> None:
    theirs = randomise(transformers.BertForTokenClassification(bert_config(transformers, num_labels=5)))
    objective, table = TokenLabels(classes=5), bert_with("classifier")
    ours = objective.adapt(spec(POOLER)).build().eval()
    copy(theirs, ours, table)
    tokens, tags = texts(4, 9), torch.randint(-1, 5, (4, 9))
    valid = tokens > 0
    made = objective.prepare(
        Batch(tokens=tokens, frame=Frame(valid=valid), labels=RowLabels(tags=tags)), WORDS, torch.Generator()
    )
    expected = theirs(tokens, attention_mask=valid.long(), labels=tags.where(valid & (tags >= 0), -100))
    check_equal(ours(tokens, made.frame).y[valid], expected.logits[valid])
    loss = mean(objective.loss({"model": ours}, made, torch.Generator()))
    check_loss(ours, theirs, loss, expected.loss, table)


@pytest.mark.row("TSK-07", clause="heads for answers, entailment, similarity and multiple choice")
@pytest.mark.row(
    "PRE-17",
    clause=(
        "heads for sequence labels, token labels and answer spans",
        "each head equals its transformers class with copied weights",
    ),
)
def test_berts_ends_of_an_answer_are_two_scores_of_each_token(transformers: ModuleType) -> None:
    theirs, table = randomise(transformers.BertForQuestionAnswering(bert_config(transformers))), bert_with("qa_outputs")
    ours = spec(TokenClassifier(classes=2)).build().eval()
    copy(theirs, ours, table)
    tokens, start, end = texts(4, 9), torch.tensor([1, 0, 2, 2]), torch.tensor([2, 2, 2, 2])
    valid = tokens > 0
    expected = theirs(tokens, attention_mask=valid.long(), start_positions=start, end_positions=end)
    starts, ends = ours(tokens, Frame(valid=valid)).y.unbind(-1)
    check_equal(starts[valid], expected.start_logits[valid])
    check_equal(ends[valid], expected.end_logits[valid])


@pytest.mark.row("SST-08", clause="equals ElectraForPreTraining with the weights copied")
def test_electra_for_pre_training(transformers: ModuleType) -> None:
    config = transformers.ElectraConfig(embedding_size=DIM, max_position_embeddings=LENGTH, **SIZES)
    theirs, objective = randomise(transformers.ElectraForPreTraining(config)), ReplacedToken(rate=0.4, width=0.5)
    given = spec(POOLER)
    ours, generator = objective.adapt(given).build().eval(), objective.companions(given)["generator"].build()
    copy(theirs, ours, electra)
    tokens = texts(4, 9)
    raw = Batch(tokens=tokens, frame=Frame(valid=tokens > 0))
    made = objective.prepare(raw, WORDS, torch.Generator().manual_seed(0))
    filled = torch.randint(10, VOCAB, made.tokens.shape).where(made.weight > 0, made.targets)
    expected = theirs(filled, attention_mask=made.frame.valid.long(), labels=(filled != made.targets).long())
    seen = read(ours, replace(made, tokens=filled))
    loss = mean(objective.judge(ours, made, filled, seen)) / 50
    check_loss(ours, theirs, loss, expected.loss, electra)
    assert objective.loss({"model": ours, "generator": generator}, made, torch.Generator()).keys() == {
        "words",
        "replaced",
    }


@pytest.mark.row("PRE-07", clause="optional loss L3 = L2 + lambda L1 with lambda = 0.5")
@pytest.mark.row("PRE-08")
def test_openai_gpt_with_two_heads(transformers: ModuleType) -> None:
    drops = dict.fromkeys(("embd_pdrop", "resid_pdrop", "attn_pdrop", "summary_first_dropout"), 0.0)
    sizes = {"vocab_size": VOCAB, "n_positions": 16, "n_embd": DIM, "n_layer": LAYERS, "n_head": 4}
    theirs = randomise(transformers.OpenAIGPTDoubleHeadsModel(transformers.OpenAIGPTConfig(**sizes, **drops)))
    objective = MultipleChoice(language=0.5)
    ours = objective.adapt(gpt_spec()).build().eval().double()
    copy(theirs.double(), ours, double_heads)
    labels = {"label": torch.tensor([0, 2, 1, 2]), "choices": texts(4, 3, 4)}
    made = objective.prepare(
        Batch(tokens=texts(4, 5), frame=Frame(), labels=RowLabels(**labels)), WORDS, torch.Generator()
    )
    tokens, valid, rows = made.inputs.tokens, made.inputs.valid, flat(made)
    extract = valid.sum(-1) - 1  # the last token of each row
    expected = theirs(tokens, mc_token_ids=extract, labels=tokens.where(valid, -100), mc_labels=labels["label"])
    check_equal(ours(rows.tokens, rows.frame).y.view(4, 3), expected.mc_logits)
    terms = objective.loss({"model": ours}, made, torch.Generator())
    check_equal(terms["words"].sum / terms["words"].weight, 0.5 * expected.loss)
    check_loss(ours, theirs, mean(terms), expected.mc_loss + 0.5 * expected.loss, double_heads)


def outcomes(before: Tensor, after: Tensor, chosen: Tensor, mask: int) -> list[int]:
    """How many tokens were masked, replaced, kept but predicted, and left alone."""
    masked, kept = chosen & (after == mask), chosen & (after == before)
    return [int(kind.sum()) for kind in (masked, chosen & ~masked & ~kept, kept, ~chosen)]


@pytest.mark.row("PRE-12", clause="statistics match DataCollatorForLanguageModeling of transformers")
def test_words_are_masked_as_often_as_by_the_collator_of_transformers(transformers: ModuleType) -> None:
    names = {f"w{number}": number for number in range(5000)} | {"[MASK]": 5000, "[UNK]": 5001}
    library = Library(models.WordLevel(names, unk_token="[UNK]"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=library, mask_token="[MASK]", pad_token="[UNK]")
    collator = transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15, seed=0)
    tokens = torch.randint(10, 5000, (1000, 1000), generator=torch.Generator().manual_seed(0))
    inputs, targets = collator.torch_mask_tokens(tokens.clone(), torch.zeros_like(tokens))
    theirs = outcomes(tokens, inputs, targets != -100, 5000)
    words = WORDS._replace(size=5000)
    rng = torch.Generator().manual_seed(1)
    mine = mask_words(tokens, torch.ones_like(tokens, dtype=torch.bool), words, Shares(0.15, 0.8, 0.1), rng)
    ours = outcomes(tokens, mine.inputs, mine.weight > 0, words.mask)
    assert chi2_contingency([ours, theirs]).pvalue > 1e-3


@pytest.mark.row("PRE-15", clause="published 340M is rounded or counts heads")
def test_340_million_are_those_of_bert_large_rounded_or_with_its_heads(transformers: ModuleType) -> None:
    sizes = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
    with torch.device("meta"):
        heads = transformers.BertForPreTraining(transformers.BertConfig(**sizes))
    counts = [
        sum(weight.numel() for weight in net.parameters()) for net in (load("bert-large").build(device="meta"), heads)
    ]
    assert [round(count / 1e6, 1) for count in counts] == [335.1, 336.2]
    assert [round(count, -7) for count in counts] == [340_000_000] * 2
