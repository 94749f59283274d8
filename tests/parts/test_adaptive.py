"""Adaptive embeddings and the adaptive softmax: a table per cluster, a loop over words, torch's adaptive softmax."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from tests.conformance.checks import CHECKS, apply
from tests.conformance.subjects import Subject
from tests.generation.small import log_probability, uncached
from torch import Tensor, nn

from anyformer.core import EmbeddingSpec, Frame, Head, HeadSpec, Model, Site, Work, cost
from anyformer.data.tokenizers.word import Word
from anyformer.errors import SpecError
from anyformer.generation.beam.beam_search import Beam, search
from anyformer.generation.beam.penalties import Power
from anyformer.generation.engine import Engine, Request, generate
from anyformer.generation.samplers.sample import Sample
from anyformer.models import Block, Branch, Decoder, Stack
from anyformer.ops import loss as losses
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.embeddings.adaptive import AdaptiveEmbedding
from anyformer.parts.embeddings.plain import Plain
from anyformer.parts.heads.adaptive_softmax import AdaptiveSoftmax
from anyformer.parts.heads.tied import Tied
from anyformer.parts.mixers.attention import Attention
from anyformer.training import load

VOCAB, DIM, FIRST, SECOND = 29, 32, 9, 17
"""Ids below FIRST are in the first cluster, those from SECOND on in the last."""
CLUSTERS, REST = ((FIRST, DIM), (SECOND - FIRST, 16)), 8
ADAPTIVE = AdaptiveEmbedding(clusters=CLUSTERS, rest=REST)
FLAT = AdaptiveEmbedding(clusters=((FIRST, DIM), (SECOND - FIRST, DIM)), rest=DIM)
OWN_TABLES = AdaptiveSoftmax(clusters=CLUSTERS, rest=REST)
TIED_OR_NOT = [
    pytest.param(AdaptiveSoftmax(), ADAPTIVE, id="tied"),
    pytest.param(OWN_TABLES, Plain(), id="tables of the head"),
]
ALL_IDS = torch.arange(VOCAB)


def spec(head: HeadSpec, embedding: EmbeddingSpec) -> Decoder:
    branches = Branch(part=Attention(heads=4)), Branch(part=MLP(hidden=48))
    stack = Stack(blocks={"layer": Block(branches=branches)}, depth=2)
    return Decoder(vocab=VOCAB, dim=DIM, max_len=48, stack=stack, head=head, embedding=embedding)


def model_of(head: HeadSpec, embedding: EmbeddingSpec = ADAPTIVE) -> Model:
    """A model whose probabilities are far from uniform."""
    model, rng = spec(head, embedding).build(seed=1).eval(), torch.Generator().manual_seed(2)
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=rng)
    return model


def tables(name: str) -> list[tuple[int, int, bool]]:
    """Size, width and whether there is a projection to d, of each cluster of a preset."""
    model: Any = load(name).build(device="meta")
    clusters = model.decoder.words.module.clusters()
    return [(*cluster.weight.shape, cluster.projection is not None) for cluster in clusters]


def hidden() -> Tensor:
    return torch.randn(2, 7, DIM, generator=torch.Generator().manual_seed(0))


def same_gradients(mine: Tensor, expected: Tensor, leaves: Iterable[Tensor]) -> None:
    """Both are equal, and so are the gradients of all leaves for random gradients of the outputs."""
    torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-4)
    every, slope = list(leaves), torch.randn(mine.shape, generator=torch.Generator().manual_seed(3))
    for a, b in zip(*(torch.autograd.grad(y, every, slope) for y in (mine, expected)), strict=True):
        assert a.abs().max() > 0
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.row("NAR-32", clause="words by frequency in clusters 2500:768, 6000:256, 23628:64")
def test_the_preset_with_adaptive_inputs_has_the_clusters_of_the_study() -> None:
    assert tables("vanilla-adaptive-input") == [(2500, 768, False), (6000, 256, True), (23_628, 64, True)]


@pytest.mark.row("NAR-32", clause="words by frequency in clusters 2500:768, 6000:256, 23628:64")
def test_the_first_cluster_holds_the_most_frequent_words() -> None:
    tokenizer = Word(sentinels=2).train(["rare now and then", "and now and then", "and now and"])
    vocab = tokenizer.words.size
    embedding = AdaptiveEmbedding(clusters=((vocab - 2, DIM),), rest=4).build(Site(dim=DIM), vocab)
    frequent, _ = embedding.clusters()
    assert frequent.holds(torch.tensor(tokenizer.encode("rare then now and"))).tolist() == [False, False, True, True]
    assert frequent.holds(torch.tensor([tokenizer.words.pad, *tokenizer.words.sentinels])).all()


@pytest.mark.row("NAR-32", clause=("lookup equals nn.Embedding of each cluster", "each cluster is projected to d"))
def test_a_lookup_is_that_of_an_embedding_for_each_cluster_and_its_projection() -> None:
    words = model_of(Tied()).embedding
    tokens = torch.randint(VOCAB, (2, 40), generator=torch.Generator().manual_seed(0))
    expected = torch.zeros(2, 40, DIM)
    for cluster, first, end in zip(words.clusters(), (0, FIRST, SECOND), (FIRST, SECOND, VOCAB), strict=True):
        inside, lookup = (tokens >= first) & (tokens < end), nn.Embedding(*cluster.weight.shape)
        assert inside.any() and len(cluster.weight) == end - first
        lookup.weight = cluster.weight  # one parameter on both sides, so that gradients can be compared
        projection = torch.eye(DIM) if cluster.projection is None else cluster.projection.weight
        assert projection.shape == (DIM, lookup.embedding_dim)
        expected = expected.masked_scatter(inside[..., None], lookup(tokens[inside] - first) @ projection.T)
    same_gradients(words(tokens), expected, words.parameters())


@pytest.mark.row("NAR-32", clause="every id is in exactly one cluster")
@pytest.mark.parametrize("vocab", [FIRST, SECOND + 1, VOCAB, 500])
def test_every_id_is_in_exactly_one_cluster(vocab: int) -> None:
    words = ADAPTIVE.build(spec(Tied(), ADAPTIVE).site(), vocab)
    ids = torch.arange(vocab)
    assert torch.stack([cluster.holds(ids) for cluster in words.clusters()]).sum(0).eq(1).all()
    rows = torch.cat([cluster.rows(ids)[cluster.holds(ids)] for cluster in words.clusters()])
    assert rows.tolist() == [row for cluster in words.clusters() for row in range(len(cluster.weight))]


@pytest.mark.row("NAR-32", clause="ordinary softmax over the clusters' concatenated logits")
def test_a_tied_head_gives_one_softmax_over_the_logits_of_all_clusters() -> None:
    model, h = model_of(Tied()), hidden()
    vectors = model.embedding(ALL_IDS[None])[0]  # [v d]
    torch.testing.assert_close(model.head(h, Frame()), h @ vectors.T, rtol=1e-4, atol=1e-4)
    chances = model.head(h, Frame()).softmax(-1)
    torch.testing.assert_close(chances, (h @ vectors.T).exp() / (h @ vectors.T).exp().sum(-1, keepdim=True))
    assert not list(model.head.parameters())


@pytest.mark.row("NAR-33", clause="clusters 2500:768, 6000:256, 23500:64 and 128 sentinels:768")
def test_the_preset_with_an_adaptive_softmax_has_a_cluster_of_sentinels() -> None:
    clusters = [(2500, 768, False), (6000, 256, True), (23_500, 64, True), (128, 768, False)]
    assert tables("vanilla-adaptive-softmax") == clusters


def words_one_by_one(head: Any, x: Tensor) -> Tensor:
    """log p of all words after one hidden state [d], each word's score from its vector of width d."""
    scores = list[list[Tensor]]()
    for cluster in head.clusters():
        down = torch.eye(DIM) if cluster.projection is None else cluster.projection.weight
        up = down if down.shape == (DIM, cluster.weight.shape[1]) else down.T  # [d w]
        scores.append([(x * (up @ vector)).sum() for vector in cluster.weight])
    frequent, *others = scores
    choices = [*frequent, *((x * gate).sum() for gate in head.gates)]
    first_sum = sum(choice.exp() for choice in choices)
    chances = [choice.exp() / first_sum for choice in choices[:FIRST]]
    for words, choice in zip(others, choices[FIRST:], strict=True):
        within = sum(word.exp() for word in words)
        chances += [choice.exp() / first_sum * (word.exp() / within) for word in words]
    return torch.stack(chances).log()


@pytest.mark.row("NAR-33", clause="p(w) is the head's, or p(cluster) p(w | cluster)")
@pytest.mark.parametrize(("head", "embedding"), TIED_OR_NOT)
def test_a_word_has_the_chance_of_its_cluster_times_its_chance_within_it(
    head: HeadSpec, embedding: EmbeddingSpec
) -> None:
    model, h = model_of(head, embedding), hidden()[:1].requires_grad_()
    expected = torch.stack([words_one_by_one(model.head, x) for x in h[0]])[None]
    tables = model.embedding.parameters() if head.tied else ()
    same_gradients(model.head(h, Frame()), expected, (h, *model.head.parameters(), *tables))


@pytest.mark.row("NAR-33", clause="tied with the adaptive input")
def test_without_clusters_of_its_own_the_head_has_those_of_the_embedding() -> None:
    model = model_of(AdaptiveSoftmax())
    assert [name for name, _ in model.head.named_parameters()] == ["gates"]
    for mine, theirs in zip(model.head.clusters(), model.embedding.clusters(), strict=True):
        assert mine.weight.data_ptr() == theirs.weight.data_ptr()
    preset: Any = load("vanilla-adaptive-softmax").build(device="meta")
    assert preset.decoder.head.clusters() == preset.encoder.embedding.clusters()


def test_with_clusters_the_head_has_tables_of_its_own() -> None:
    model = model_of(OWN_TABLES, Plain())
    assert [tuple(cluster.weight.shape) for cluster in model.head.clusters()] == [(9, 32), (8, 16), (12, 8)]
    assert {id(weight) for weight in model.head.parameters()}.isdisjoint(map(id, model.embedding.parameters()))
    both = model_of(OWN_TABLES, ADAPTIVE)
    assert both.head.clusters()[0].weight is not both.embedding.clusters()[0].weight


def torch_head(model: Model) -> nn.AdaptiveLogSoftmaxWithLoss:
    """torch's adaptive softmax with the weights of a head; its widths are dim / 2 and dim / 4."""
    theirs = nn.AdaptiveLogSoftmaxWithLoss(DIM, VOCAB, [FIRST, SECOND], div_value=2.0)
    first, *others = model.head.clusters()
    theirs.head.weight.data = torch.cat((first.weight, model.head.gates)).detach()
    for cluster, (projection, words) in zip(others, theirs.tail, strict=True):
        down = cluster.lower(torch.eye(DIM)).T
        assert projection.weight.shape == down.shape and words.weight.shape == cluster.weight.shape
        projection.weight.data, words.weight.data = down.detach().clone(), cluster.weight.detach().clone()
    return theirs


@pytest.mark.row("NAR-33", clause="probabilities sum to 1, as nn.AdaptiveLogSoftmaxWithLoss's")
@pytest.mark.parametrize(("head", "embedding"), TIED_OR_NOT)
def test_log_probabilities_are_those_of_torchs_adaptive_softmax(head: HeadSpec, embedding: EmbeddingSpec) -> None:
    model, h = model_of(head, embedding), hidden()
    log_p = model.head(h, Frame())
    torch.testing.assert_close(log_p.flatten(0, 1), torch_head(model).log_prob(h.flatten(0, 1)), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(log_p.exp().sum(-1), torch.ones(2, 7))
    torch.testing.assert_close(log_p.softmax(-1), log_p.exp())  # so that sampling reads it like logits
    assert head.has_probabilities


@pytest.mark.row("NAR-33", clause="loss equals nn.AdaptiveLogSoftmaxWithLoss")
@pytest.mark.parametrize(("head", "embedding"), TIED_OR_NOT)
def test_the_loss_is_that_of_torchs_adaptive_softmax(head: HeadSpec, embedding: EmbeddingSpec) -> None:
    model, theirs = model_of(head, embedding), torch_head(model_of(head, embedding))
    h = torch.randn(1, VOCAB, DIM, generator=torch.Generator().manual_seed(0)).requires_grad_()
    total = model.head.loss(h, Frame(), ALL_IDS[None], torch.ones(1, VOCAB))  # each word is a target once
    expected = theirs(h[0], ALL_IDS).loss * VOCAB
    torch.testing.assert_close(total, expected)
    first, *others = model.head.clusters()
    weights = [h, first.weight, model.head.gates, *(cluster.weight for cluster in others)]
    mine = torch.autograd.grad(total, weights)
    from_h, by_choice, *by_word = torch.autograd.grad(
        expected, [h, theirs.head.weight, *(words.weight for _, words in theirs.tail)]
    )
    for a, b in zip(mine, (from_h, *by_choice.split([FIRST, 2]), *by_word), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("smoothing", "z"), [(0.0, 0.0), (0.1, 0.01)])
@pytest.mark.parametrize("spec", [AdaptiveSoftmax(), Tied()], ids=str)
def test_the_loss_of_tied_clusters_is_what_the_output_says(
    spec: HeadSpec, smoothing: float, z: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses, "_SCORES", 3 * VOCAB)  # three tokens at a time
    model, h = model_of(spec), hidden().requires_grad_()
    targets, weight = torch.randint(VOCAB, (2, 7)), torch.rand(2, 7) * (torch.arange(7) % 3 > 0)
    mine, whole = (loss(h, Frame(), targets, weight, smoothing, z) for loss in (model.head.loss, plain_loss(model)))
    torch.testing.assert_close(mine, whole)
    leaves = [h, *model.embedding.parameters(), *model.head.parameters()]
    for a, b in zip(*(torch.autograd.grad(loss, leaves) for loss in (mine, whole)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def plain_loss(model: Model) -> Callable[..., Tensor]:
    """The loss of all tokens at once, from the output of the head."""
    return partial(Head.loss, model.head)


def test_targets_in_the_first_cluster_need_no_scores_of_other_words() -> None:
    model, h = model_of(AdaptiveSoftmax()), hidden()
    targets, weight = torch.randint(FIRST, (2, 7)), torch.ones(2, 7)
    expected = -model.head(h, Frame()).gather(-1, targets[..., None]).sum()
    for cluster in model.embedding.clusters()[1:]:
        cluster.weight.data.fill_(torch.nan)
    torch.testing.assert_close(model.head.loss(h, Frame(), targets, weight), expected)


@pytest.mark.row("NAR-34", clause="clusters of the adaptive softmax, all embeddings of size d")
def test_the_preset_without_projections_has_the_same_clusters_all_of_width_d() -> None:
    sizes = [size for size, *_ in tables("vanilla-adaptive-softmax")]
    assert tables("vanilla-adaptive-softmax-flat") == [(size, 768, False) for size in sizes]


@pytest.mark.row("NAR-34", clause="probabilities sum to 1")
def test_without_projections_the_chances_of_all_words_sum_to_one() -> None:
    model = model_of(AdaptiveSoftmax(), FLAT)
    assert all(cluster.projection is None for cluster in model.head.clusters())
    torch.testing.assert_close(model.head(hidden(), Frame()).exp().sum(-1), torch.ones(2, 7))


@pytest.mark.row("NAR-34", clause="equals the full softmax only as p(cluster) p(w | cluster)")
def test_it_is_the_full_softmax_within_a_cluster_and_not_across_clusters() -> None:
    model, h = model_of(AdaptiveSoftmax(), FLAT), hidden()
    vectors = torch.cat([cluster.weight for cluster in model.head.clusters()])
    mine, full = model.head(h, Frame()).exp(), (h @ vectors.T).softmax(-1)
    assert (mine - full).abs().max() > 0.1
    sizes = [FIRST, SECOND - FIRST, VOCAB - SECOND]
    parts = [(a.sum(-1, keepdim=True), a, b) for a, b in zip(mine.split(sizes, -1), full.split(sizes, -1), strict=True)]
    for chance, a, b in parts:
        torch.testing.assert_close(a / chance, b / b.sum(-1, keepdim=True))
    corrected = [a / chance * b.sum(-1, keepdim=True) for chance, a, b in parts]  # with the full softmax's p(cluster)
    torch.testing.assert_close(torch.cat(corrected, dim=-1), full)


def test_a_tied_adaptive_softmax_conforms(subtests: pytest.Subtests) -> None:
    """The conformance suite puts heads on a plain embedding, where it has tables of its own."""
    subject = Subject("adaptive_softmax/tied", spec(AdaptiveSoftmax(), ADAPTIVE))
    for check in CHECKS:
        torch.manual_seed(0)
        with subtests.test(check.name):
            apply(check, subject)


def test_beam_search_scores_are_sums_of_its_log_probabilities() -> None:
    model, prompt = model_of(AdaptiveSoftmax()), [3, 9]
    beam = Beam(width=4, best=3, penalty=Power(exponent=0.0))
    (hypotheses,) = search(Engine(model, max_len=16), [Request(prompt=prompt)], beam, max_new=6)
    for hypothesis in hypotheses:
        total = log_probability(model, prompt, list(hypothesis.tokens)).sum().item()
        assert hypothesis.score == pytest.approx(total, abs=1e-4)
    words = torch.tensor([hypothesis.tokens for hypothesis in hypotheses])
    assert all(cluster.holds(words).any() for cluster in model.head.clusters())


def test_sampled_words_are_drawn_from_all_clusters_by_their_probabilities() -> None:
    model = model_of(AdaptiveSoftmax())
    log_p = model.head(hidden(), Frame())[0, :1]
    draws = torch.arange(0.5, 4000) / 4000  # in place of random numbers between 0 and 1
    words = Sample().pick(log_p.expand(4000, -1), draws)
    shares = torch.bincount(words, minlength=VOCAB) / 4000
    torch.testing.assert_close(shares, log_p[0].exp(), rtol=0.0, atol=5e-4)


def test_greedy_words_are_the_most_probable_ones_of_all_clusters() -> None:
    model = model_of(AdaptiveSoftmax())
    model.head.gates.data *= 4  # rare words too
    words = list(generate(model, [5], max_new=12))
    assert words == uncached(model, [5], 12)
    assert max(words) >= SECOND


def test_a_narrow_table_costs_as_many_flops_as_its_weights() -> None:
    tree = cost(spec(AdaptiveSoftmax(), ADAPTIVE), Work(batch=1, length=10))
    head = next(node for _, node in tree.walk() if node.name == "head").total
    weights = FIRST * DIM + 2 * DIM + (SECOND - FIRST + DIM) * 16 + (VOCAB - SECOND + DIM) * REST
    assert head.flops_forward == 2 * 10 * weights and head.flops_backward == 2 * head.flops_forward


def test_training_keeps_no_probabilities_of_all_words_so_the_cost_card_counts_none() -> None:
    work = Work(batch=2, length=10)
    tied, adaptive = (cost(spec(head, ADAPTIVE), work).total for head in (Tied(), AdaptiveSoftmax()))
    assert adaptive.activation_bytes <= tied.activation_bytes
    assert adaptive.params == tied.params + 2 * DIM


@pytest.mark.parametrize(("vocab", "sizes"), [(8, [8]), (9, [9]), (12, [9, 3]), (18, [9, 8, 1])])
def test_a_small_vocabulary_ends_in_an_earlier_cluster(vocab: int, sizes: list[int]) -> None:
    model = replace(spec(AdaptiveSoftmax(), ADAPTIVE), vocab=vocab).build()
    assert [len(cluster.weight) for cluster in model.embedding.clusters()] == sizes
    log_p = model.head(hidden(), Frame())
    torch.testing.assert_close(log_p.exp().sum(-1), torch.ones(2, 7))
    targets = torch.randint(vocab, (2, 7))
    loss = model.head.loss(hidden(), Frame(), targets, torch.ones(2, 7))
    torch.testing.assert_close(loss, -log_p.gather(-1, targets[..., None]).sum())


def test_a_cluster_is_a_pair_of_numbers() -> None:
    with pytest.raises(SpecError, match=r"got \[0, 5\]"):
        AdaptiveSoftmax(clusters=((0, 5),))
    with pytest.raises(SpecError, match=r"clusters: expected pairs \[size, width\] of positive numbers, got \[5\]"):
        AdaptiveEmbedding(clusters=((5,),))


def test_an_adaptive_softmax_needs_clusters_from_somewhere() -> None:
    with pytest.raises(SpecError, match="head: adaptive_softmax: the embedding has no clusters to be tied to"):
        spec(AdaptiveSoftmax(), Plain()).build()
