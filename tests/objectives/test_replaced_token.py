"""ELECTRA: a generator that fills in, a model that finds out."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from tests.objectives.small import DIM, WORDS, batch, built, check_adds_up, learn, model, noise, pieces

from anyformer.core import Frame
from anyformer.data.batching.batch import Batch
from anyformer.errors import SpecError
from anyformer.models import Decoder
from anyformer.objectives.replaced_token import ReplacedToken, choose, sample
from anyformer.objectives.words import read
from anyformer.parts.heads.masked_words import MaskedWordsHead
from anyformer.parts.heads.token_classifier import TokenClassifier
from anyformer.parts.positions.learned import LearnedPosition


def prepared(objective: ReplacedToken, raw: Batch | None = None) -> Batch:
    return objective.prepare(raw or batch(), WORDS, noise())


@pytest.mark.parametrize("embeddings", ["tied", "own"])
def test_micro_batches_add_up(embeddings: str) -> None:
    objective = ReplacedToken(rate=0.4, embeddings=embeddings)
    whole = prepared(objective)
    check_adds_up(objective, built(objective, model()), whole, pieces(whole))


@pytest.mark.row(
    "SST-08",
    clause=(
        "small masked-LM generator samples the replacements",
        "discriminator predicts replaced or original for every token",
        "loss is L_mlm + 50 L_disc",
        "a sample equal to the true token is labelled original",
    ),
)
def test_it_is_its_equation_and_a_right_guess_counts_as_original() -> None:
    objective = ReplacedToken(rate=0.5)
    models, made = built(objective, model()), prepared(objective)
    models["generator"].head.bias.data[made.targets[made.weight > 0][:2]] += 4  # now some of the guesses will be right
    chosen, valid = made.weight > 0, made.frame.valid
    words = models["generator"](made.tokens, made.frame).y
    filled = made.targets.clone()
    filled[chosen] = sample(words[chosen], made.inputs.noise[chosen])
    replaced = filled != made.targets
    assert 0 < replaced.sum() < chosen.sum()  # a right guess is no replacement
    found = models["model"](filled, made.frame).y[..., 0]
    expected = F.binary_cross_entropy_with_logits(found[valid], replaced[valid].float(), reduction="sum")
    term = objective.loss(models, made, noise())["replaced"]
    torch.testing.assert_close(term.sum, 50 * expected)
    assert term.weight == valid.sum()


@pytest.mark.row(
    "SST-08",
    clause=(
        "loss is L_mlm + 50 L_disc",
        "no gradient passes through the sampling",
        "discriminator loss gives no gradient to the generator",
    ),
)
def test_the_generator_learns_words_and_nothing_else() -> None:
    objective = ReplacedToken(rate=0.5, embeddings="own")
    models, made = built(objective, model()), prepared(objective)
    terms = objective.loss(models, made, noise())
    chosen = made.weight > 0
    logits = models["generator"](made.tokens, made.frame).y[chosen]
    torch.testing.assert_close(terms["words"].sum, F.cross_entropy(logits, made.targets[chosen], reduction="sum"))
    terms["replaced"].sum.backward(retain_graph=True)
    assert all(parameter.grad is None for parameter in models["generator"].parameters())
    assert all(parameter.grad is not None for parameter in models["model"].parameters())
    terms["words"].sum.backward()
    assert all(parameter.grad is not None for parameter in models["generator"].parameters())


@pytest.mark.row("SST-08")
def test_a_share_of_each_row_is_chosen_and_no_special_token() -> None:
    tokens = torch.randint(WORDS.size, (400, 50))
    valid = torch.arange(50) < torch.randint(1, 51, (400, 1))
    raw = Batch(tokens=tokens, frame=Frame(valid=valid))
    chosen = choose(raw, WORDS, 0.15, noise())
    free = valid & (tokens >= 10)
    assert torch.equal(chosen.sum(1), (free.sum(1) * 0.15).ceil().long()) and not (chosen & ~free).any()
    every = torch.stack([choose(replace(raw, frame=Frame()), WORDS, 0.15, noise(seed)) for seed in range(50)])
    assert every.float().mean(dim=(0, 1)).std() < 0.01  # no place is preferred


@pytest.mark.row("SST-08", clause="small masked-LM generator samples the replacements")
def test_words_are_drawn_as_often_as_the_generator_believes() -> None:
    logits = torch.tensor([0.2, -1.0, 2.0, 0.0, -torch.inf])
    drawn = sample(logits.expand(100_000, -1), torch.rand(100_000))
    often = torch.bincount(drawn, minlength=5) / 100_000
    torch.testing.assert_close(often, logits.softmax(-1), atol=0.006, rtol=0)
    assert often[4] == 0 and sample(logits[None], torch.tensor([1.0 - 2**-24])).item() == 3


@pytest.mark.row(
    "SST-08",
    clause=("small masked-LM generator samples the replacements", "generator and discriminator share embeddings"),
)
def test_the_generator_is_narrow_and_shares_the_tables() -> None:
    objective, given = ReplacedToken(width=0.5), model(position=LearnedPosition())
    models = built(objective, given)
    generator, discriminator = models["generator"], models["model"]
    assert objective.adapt(given).head == TokenClassifier(classes=1, hidden=DIM)
    assert objective.companions(given)["generator"].dim == DIM // 2
    assert objective.companions(given)["generator"].head == MaskedWordsHead()
    assert generator.embedding.weight is discriminator.embedding.weight
    assert generator.position.table.weight is discriminator.position.table.weight
    own = built(replace(objective, embeddings="own"), given)
    assert own["generator"].embedding.weight is not own["model"].embedding.weight


def test_a_width_that_heads_do_not_divide_is_rounded_up() -> None:
    assert ReplacedToken(width=0.3).companions(model())["generator"].dim == 6  # 0.3 x 16 = 5 by two heads
    given = model(depth=1).with_("dim", 8)
    found = ReplacedToken(generator=given).companions(model())["generator"]
    assert found.dim == 8 and found.stack.depth == 1


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(SpecError, match=r"a decoder sees one. Use an encoder"):
        ReplacedToken().adapt(model(Decoder))
    with pytest.raises(SpecError, match=r"generator.vocab=50 must be the model's, 40"):
        ReplacedToken(generator=model().with_("vocab", 50)).companions(model())


@pytest.mark.slow
def test_both_learn() -> None:
    objective = ReplacedToken(rate=0.3)
    rows = torch.arange(10, 20).repeat(48, 2) + torch.randint(10, (48, 1))  # a row counts up and starts again
    made = [objective.prepare(Batch(tokens=rows, frame=Frame()), WORDS, noise(seed)) for seed in range(20)]
    models = built(objective, model(position=LearnedPosition()))
    strange = torch.randint(10, WORDS.size, made[0].tokens.shape).where(made[0].weight > 0, made[0].targets)
    losses = []
    for steps in (0, 60):
        learn(objective, models, made[1:], steps, lr=0.01)
        seen = read(models["model"], replace(made[0], tokens=strange))
        found = objective.judge(models["model"], made[0], strange, seen)["replaced"].sum
        losses.append((objective.loss(models, made[0], noise())["words"].sum.item(), found.item()))
    assert losses[1][0] < 0.5 * losses[0][0] and losses[1][1] < 0.5 * losses[0][1]
