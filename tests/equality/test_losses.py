"""The losses of whole objectives against Hugging Face's with the same weights, value and gradients."""

from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.equality import test_bert, test_gpt2, test_openai_gpt, test_t5
from tests.equality.comparing import check_equal, check_gradients, randomise
from tests.equality.copying import Peer, Table, bert_for_pretraining, copy, openai_gpt, xlnet_for_words
from torch import Tensor

from anyformer.core import Frame, Model
from anyformer.data.batching.batch import Batch
from anyformer.data.tokenizers.vocabulary import Vocabulary
from anyformer.models import Block, Branch, Encoder, Stack
from anyformer.objectives.masked_words import MaskedWords
from anyformer.objectives.next_token import NextToken
from anyformer.objectives.objective import Loss, Objective
from anyformer.objectives.permutation import PermutationLM
from anyformer.objectives.span_corruption import SpanCorruption
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.heads.untied import Untied
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.norms.layer import LayerNorm
from anyformer.parts.positions.xl import XL

VOCAB, LAYERS = 97, 2
WORDS = Vocabulary(size=VOCAB, pad=0, unk=1, bos=2, eos=3, sep=4, cls=5, mask=6, sentinels=tuple(range(7, 17)))
row = pytest.mark.row


def noise() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def texts(lengths: tuple[int, ...]) -> Batch:
    """Plain words, filled up on the right."""
    valid = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
    return Batch(tokens=torch.randint(17, VOCAB, valid.shape).where(valid, WORDS.pad), frame=Frame(valid=valid))


def losses(objective: Objective, model: Model, batch: Batch) -> tuple[Tensor, Loss]:
    """The mean of each term, summed: what they train on."""
    terms = objective.loss({"model": model}, batch, noise())
    means = [term.sum / term.weight for term in terms.values()]
    return torch.stack(means).sum(), terms


def labels(batch: Batch) -> Tensor:
    """What counts as they are told it: -100 elsewhere."""
    assert batch.targets is not None and batch.weight is not None
    return batch.targets.where(batch.weight > 0, -100)


@row("PRE-13", clause="loss equals BertForPreTraining with copied weights")
@row("PRE-11")
def test_masked_words_and_next_sentence_are_bert_for_pretrainings(transformers: ModuleType) -> None:
    objective, table = MaskedWords(share=0.4, sentences="next_sentence"), partial(bert_for_pretraining, layers=LAYERS)
    config = transformers.BertConfig(max_position_embeddings=test_bert.LENGTH, **test_bert.SIZES)
    theirs = randomise(transformers.BertForPreTraining(config))
    ours = objective.adapt(test_bert.spec(test_bert.MaskedWordsHead())).build().eval()
    copy(theirs, ours, table)
    ready = objective.prepare(texts((12, 5, 9, 12)), WORDS, noise())
    mine, terms = losses(objective, ours, ready)
    out = theirs(
        ready.tokens,
        attention_mask=ready.frame.valid.long(),
        token_type_ids=ready.frame.types,
        labels=labels(ready),
        next_sentence_label=ready.labels.label,
    )
    check_equal(mine, out.loss)
    assert terms["order"].weight == 4 and 0 < ready.labels.label.sum() < 4
    mine.backward()
    out.loss.backward()
    check_gradients(ours, theirs, table)


@row("PRE-18")
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_span_corruption_is_t5s_loss(transformers: ModuleType, version: str) -> None:
    objective = SpanCorruption(share=0.3)
    ours, theirs = test_t5.twins(transformers, version, std=0.1)
    ready = objective.prepare(texts((17, 6, 11)), WORDS, noise())
    mine, _ = losses(objective, ours, ready)
    out = theirs(
        input_ids=ready.source.tokens,
        attention_mask=ready.source.frame.valid.long(),
        decoder_input_ids=ready.tokens,
        labels=labels(ready),
    )
    check_equal(mine, out.loss)
    mine.backward()
    out.loss.backward()
    check_gradients(ours, theirs, test_t5.TABLE)


@row("PRE-05", clause="objective: the sum of log P(w_n | w_<n) is maximised")
def test_next_token_is_gpt2s_loss(transformers: ModuleType) -> None:
    ours, theirs = test_gpt2.twins(transformers, std=0.15)
    text = texts((20, 7, 13))
    ready = NextToken().prepare(text, WORDS, noise())
    mine, terms = losses(NextToken(), ours, ready)
    told = torch.cat((ready.tokens, torch.full((3, 1), WORDS.pad)), dim=1)  # <bos> w <eos>: they shift by themselves
    ends = ready.weight.sum(1).long()
    told[torch.arange(3), ends] = WORDS.eos
    out = theirs(told, labels=torch.cat((torch.full((3, 1), -100), labels(ready)), dim=1))
    check_equal(mine, out.loss)
    assert terms["words"].weight == 20 + 7 + 13 + 3
    mine.backward()
    out.loss.backward()
    check_gradients(ours, theirs, test_gpt2.TABLE)


@row(
    "PRE-06",
    clause=("objective L1 sums log P of each token given the k tokens before it", "output P(u) = softmax(h_n W_e^T)"),
)
def test_next_token_is_the_language_term_of_gpts_double_heads(transformers: ModuleType) -> None:
    config = transformers.OpenAIGPTConfig(
        vocab_size=VOCAB, n_positions=16, n_embd=32, n_layer=LAYERS, n_head=4, embd_pdrop=0.0, resid_pdrop=0.0,
        attn_pdrop=0.0,
    )  # fmt: skip
    theirs, ours = randomise(transformers.OpenAIGPTDoubleHeadsModel(config)), test_openai_gpt.spec().build().eval()

    def table(read: Peer) -> Table:
        read.ignore("multiple_choice_head.summary.weight", "multiple_choice_head.summary.bias")
        return openai_gpt(read, LAYERS)

    copy(theirs, ours, table)
    ready = NextToken().prepare(texts((14, 14)), WORDS, noise())
    mine, _ = losses(NextToken(), ours, ready)
    told = torch.cat((ready.tokens, torch.full((2, 1), WORDS.eos)), dim=1)
    out = theirs(told[:, None], labels=told[:, None].clone())
    check_equal(mine, out.loss)
    mine.backward()
    out.loss.backward()
    check_gradients(ours, theirs, table)


def xlnets(transformers: ModuleType) -> tuple[Any, Any]:
    parts = Attention(heads=4, position=XL()), MLP(hidden=48, bias=True)
    block = Block(branches=tuple(Branch(part=part, norm=LayerNorm(eps=1e-12), place="post") for part in parts))
    stack = Stack(blocks={"layer": block}, depth=LAYERS)
    spec = PermutationLM().adapt(Encoder(vocab=VOCAB, dim=32, stack=stack, head=Untied(bias=True)))
    config = transformers.XLNetConfig(
        vocab_size=VOCAB, d_model=32, n_layer=LAYERS, n_head=4, d_inner=48, dropout=0.0, attn_type="bi",
        use_mems_eval=False,
    )  # fmt: skip
    theirs, ours = randomise(transformers.XLNetLMHeadModel(config)), spec.build().eval()
    copy(theirs, ours, partial(xlnet_for_words, layers=LAYERS, mask=WORDS.mask))
    return ours, theirs


def all_but_the_words(read: Peer) -> Table:
    """Theirs are tied, so that one gradient holds what two of ours do."""
    table = xlnet_for_words(read, LAYERS, WORDS.mask)
    return {name: pieces for name, pieces in table.items() if name not in ("embedding.weight", "head.words.weight")}


@row(
    "SST-07",
    clause=(
        "maximises log p(x_z_t | x_z_<t) over random orders z",
        "equals XLNetLMHeadModel with perm_mask and target_mapping",
    ),
)
def test_two_streams_are_xlnets_with_permutation_mask_and_target_mapping(transformers: ModuleType) -> None:
    ours, theirs = xlnets(transformers)
    objective = PermutationLM(share=0.5)
    ready = objective.prepare(texts((11, 11, 11)), WORDS, noise())
    length = 13  # with <cls> and <sep>
    order, at = ready.frame.marks.order[:, :length], ready.frame.positions[:, length:]
    out = theirs(
        ready.tokens[:, :length],
        perm_mask=(order[:, None, :] >= order[:, :, None]).float(),  # 1: may not be seen
        target_mapping=torch.nn.functional.one_hot(at, length).float(),
        labels=ready.targets[:, length:].contiguous(),
    )
    check_equal(ours(ready.tokens, ready.frame).y[:, length:], out.logits)
    mine, terms = losses(objective, ours, ready)
    check_equal(mine, out.loss)
    assert terms["words"].weight == out.logits.shape[0] * out.logits.shape[1]
    mine.backward()
    out.loss.backward()
    check_gradients(ours, theirs, all_but_the_words)
