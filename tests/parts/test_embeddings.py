"""Embeddings: a lookup is a product with one-hot rows, a tied head is the same table, a narrow table has low rank."""

import pytest
import torch
import torch.nn.functional as F

from anyformer.core import EmbeddingSpec, Frame, HeadSpec, Model, Site, initialise
from anyformer.errors import SpecError
from anyformer.models import Block, Branch, Decoder, Encoder, EncoderDecoder, Stack
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.combine.cross import Cross
from anyformer.parts.embeddings.factorized import Factorized, FactorizedModule
from anyformer.parts.embeddings.matches import Matches
from anyformer.parts.embeddings.n_grams import MULTIPLIER, PRIME, NGrams
from anyformer.parts.embeddings.plain import Plain
from anyformer.parts.heads.tied import Tied
from anyformer.parts.heads.untied import Untied
from anyformer.parts.inits.normal import NormalInit
from anyformer.parts.mixers.attention import Attention

VOCAB, DIM, WIDTH = 50, 32, 8
TOKENS = torch.randint(0, VOCAB, (2, 9), generator=torch.Generator().manual_seed(0))


def decoder(head: HeadSpec, embedding: EmbeddingSpec | None = None) -> Model:
    stack = Stack(blocks={"a": Block(branches=(Branch(part=MLP()),))}, depth=1)
    return Decoder(vocab=VOCAB, dim=DIM, stack=stack, head=head, embedding=embedding or Plain()).build()


def size(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.row(
    "TSK-16", clause=("an embedding is the one-hot code times the matrix E", "product F.one_hot(x) @ E equals E[x]")
)
@pytest.mark.row("TRF-11", clause=("input: row E[token] times sqrt(d)", "the lookup equals a one-hot matrix product"))
@pytest.mark.parametrize(("scale", "factor"), [("one", 1.0), ("sqrt_dim", DIM**0.5)])
def test_a_lookup_is_one_hot_rows_times_the_table(scale: str, factor: float) -> None:
    words = Plain(scale=scale).build(Site(dim=DIM), VOCAB)
    initialise(words, NormalInit(), 0)
    torch.testing.assert_close(words(TOKENS), F.one_hot(TOKENS, VOCAB).float() @ words.weight * factor)


@pytest.mark.row("NAR-30", clause="data_ptr equal for decoder input and softmax, not for the encoder")
@pytest.mark.row(
    "TRF-11",
    clause=(
        "output logits h E^T when tied, else by a matrix W of their own",
        "tied weights share storage (same data_ptr)",
    ),
)
@pytest.mark.row("TSK-16")
@pytest.mark.parametrize("scale", ["one", "rsqrt_dim"])
def test_a_tied_head_scores_with_the_embeddings_own_storage(scale: str) -> None:
    model = decoder(Tied(scale=scale))
    assert model.head.embedding.module.weight.data_ptr() == model.embedding.weight.data_ptr()
    assert not list(model.head.parameters())
    h = model(TOKENS, Frame(), logits=False).y
    factor = DIM**-0.5 if scale == "rsqrt_dim" else 1.0
    torch.testing.assert_close(model(TOKENS, Frame()).y, factor * h @ model.embedding.weight.T)


@pytest.mark.row("TRF-11", clause="tying removes V d parameters")
@pytest.mark.row("TSK-16")
def test_tying_saves_one_table() -> None:
    assert size(decoder(Untied())) - size(decoder(Tied())) == VOCAB * DIM


@pytest.mark.row("TRF-11")
def test_a_tied_table_learns_from_both_ends() -> None:
    model, tokens = decoder(Tied()), TOKENS.clamp(min=1)
    model(tokens, Frame()).y[..., 0].sum().backward()
    learns = set(model.embedding.weight.grad.abs().sum(1).nonzero()[:, 0].tolist())
    assert learns == {0} | set(tokens.flatten().tolist())  # word 0 as what is said, the others as what is read


def factorized() -> FactorizedModule:
    words = Factorized(width=WIDTH).build(Site(dim=DIM), VOCAB)
    initialise(words, NormalInit(), 0)
    return words


@pytest.mark.row("NAR-23", clause="block sharing with an input embedding V x 128 times 128 x d")
@pytest.mark.row("NAR-27", clause="input embedding is V x 128 times 128 x d")
def test_a_factorized_table_has_the_rank_of_its_width() -> None:
    words = factorized()
    table = words.lift(words(torch.arange(VOCAB)[None]))[0]  # [v d]
    torch.testing.assert_close(table, words.weight @ words.up.weight.T)
    assert torch.linalg.matrix_rank(table) == WIDTH
    assert size(words) == VOCAB * WIDTH + WIDTH * DIM


@pytest.mark.row("NAR-27", clause="rank of the embedding is at most 128, by SVD")
def test_the_usual_factorized_table_has_128_singular_values() -> None:
    words = Factorized().build(Site(dim=768), 512)
    initialise(words, NormalInit(), 0)
    values = torch.linalg.svdvals(words.lift(words(torch.arange(512)[None]))[0])
    assert int((values > 1e-5 * values[0]).sum()) == 128


@pytest.mark.row("NAR-24", clause="block sharing; input and softmax share the factorised matrix")
@pytest.mark.row("NAR-28", clause="logits = (h W2^T) W1^T d^-0.5 with the input's two factors")
def test_a_factorized_tied_head_goes_back_through_both_matrices() -> None:
    model = decoder(Tied(scale="rsqrt_dim"), Factorized(width=WIDTH))
    h, words = model(TOKENS, Frame(), logits=False).y, model.embedding
    torch.testing.assert_close(model(TOKENS, Frame()).y, h @ words.up.weight @ words.weight.T * DIM**-0.5)
    assert size(model) == size(decoder(Tied())) - VOCAB * DIM + VOCAB * WIDTH + WIDTH * DIM


def test_types_and_positions_live_at_the_width_of_the_table() -> None:
    stack = Stack(blocks={"a": Block(branches=(Branch(part=MLP()),))}, depth=1)
    model = Encoder(vocab=VOCAB, dim=DIM, stack=stack, embedding=Factorized(width=WIDTH), types=2).build()
    assert model.types.weight.shape == (2, WIDTH)
    assert model(TOKENS, Frame()).y.shape == (2, 9, DIM)


@pytest.mark.parametrize(
    ("embedding", "head", "millions"),
    [
        pytest.param(Plain(), Tied(), 222.9, marks=pytest.mark.row("NAR-01"), id="vanilla"),
        pytest.param(Factorized(), Untied(), 227.1, marks=pytest.mark.row("NAR-27"), id="factorized"),
        pytest.param(Factorized(), Tied(scale="rsqrt_dim"), 202.4, marks=pytest.mark.row("NAR-28"), id="shared"),
    ],
)
def test_the_base_model_has_its_published_size(embedding: EmbeddingSpec, head: HeadSpec, millions: float) -> None:
    look, think = Branch(part=Attention(heads=12)), Branch(part=MLP(hidden=3072, activation="relu", bias=True))
    reads, writes = Block(branches=(look, think)), Block(branches=(look, Branch(part=Cross(part=look.part)), think))
    same = {"vocab": 32128, "dim": 768, "embedding": embedding}
    model = EncoderDecoder(
        encoder=Encoder(stack=Stack(blocks={"a": reads}, depth=12), **same),
        decoder=Decoder(stack=Stack(blocks={"a": writes}, depth=12), head=head, **same),
    ).build(device="meta")
    matrices = sum(parameter.numel() for parameter in model.parameters() if parameter.dim() == 2)
    assert matrices / 1e6 == pytest.approx(millions, abs=0.1)


@pytest.mark.row("TRF-11")
def test_an_n_gram_is_hashed_within_its_document_and_over_padding() -> None:
    words = NGrams(longest=2, buckets=97).build(Site(dim=DIM, causal=False), VOCAB)
    initialise(words, NormalInit(), 0)
    alone = words(torch.tensor([[3, 7]]))
    torch.testing.assert_close(alone[0, 0], words.weight[3])
    bigram = words.grams[((7 + 1) * MULTIPLIER + 3 + 1) % PRIME % 97]
    torch.testing.assert_close(alone[0, 1], words.weight[7] + bigram)
    packed = words(torch.tensor([[3, 7]]), Frame(segments=torch.tensor([[0, 1]])))
    torch.testing.assert_close(packed[0, 1], words.weight[7])  # another document
    valid = torch.tensor([[True, False, True]])
    torch.testing.assert_close(words(torch.tensor([[3, 9, 7]]), Frame(valid=valid))[0, 2], alone[0, 1])


def test_a_decoder_with_n_grams_learns_followers_of_three_tokens_in_a_few_updates() -> None:
    """The next token is a random function of the last three, which a token alone does not tell."""
    generator = torch.Generator().manual_seed(0)
    follower = torch.randint(0, 8, (8, 8, 8), generator=generator)
    tokens = torch.randint(0, 8, (16, 64), generator=generator)
    for t in range(3, 64):
        tokens[:, t] = follower[tuple(tokens[:, t - 3 : t].T)]

    def loss_of(embedding: EmbeddingSpec) -> float:
        stack = Stack(blocks={"layer": Block(branches=(Branch(part=MLP()),))}, depth=1)
        model = Decoder(vocab=8, dim=DIM, embedding=embedding, stack=stack).build(seed=0).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.03)
        for _ in range(60):
            loss = F.cross_entropy(model(tokens[:, :-1]).y[:, 2:].flatten(0, 1), tokens[:, 3:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return loss.item()

    assert loss_of(NGrams(longest=3, buckets=4096)) < 0.1 < 1.0 < loss_of(Plain())


def test_a_word_of_both_texts_of_a_pair_is_marked() -> None:
    words = Matches().build(Site(dim=DIM, causal=False), VOCAB)
    initialise(words, NormalInit(), 0)
    tokens, types = torch.tensor([[3, 7, 7, 5, 3, 9]]), torch.tensor([[0, 0, 0, 1, 1, 1]])

    def marked(frame: Frame) -> list[bool]:
        added = words(tokens, frame) - F.embedding(tokens, words.weight)
        nearest = (added[0][:, None] - words.marks).norm(dim=-1).argmin(1)
        assert (nearest // 2).tolist() == ([0] * 6 if frame.types is None else types[0].tolist())
        return (nearest % 2 == 1).tolist()

    assert marked(Frame(types=types)) == [True, False, False, False, True, False]  # 7 is twice in one text
    assert not any(marked(Frame()))
    valid = torch.tensor([[True, True, True, True, False, True]])
    assert marked(Frame(types=types, valid=valid))[0] is False
    apart = torch.tensor([[0, 0, 0, 1, 1, 1]])
    assert not any(marked(Frame(types=types, segments=apart)))


def test_matches_are_for_encoders() -> None:
    with pytest.raises(SpecError, match="Use an encoder"):
        Matches().build(Site(dim=DIM, causal=True), VOCAB)
