"""What a student copies from the layers of its teacher: hidden states and attention maps."""

import math
from dataclasses import replace

import pytest
import torch
from tests.objectives.reading import pair_model
from tests.objectives.small import WORDS, batch, built, check_adds_up, learn, model, noise, pieces
from torch import Tensor

from anyformer.core import Frame, Model, ModelSpec, PartSpec
from anyformer.data.batching.batch import Batch
from anyformer.errors import SpecError
from anyformer.models import Block, Branch, Decoder, Encoder, Stack
from anyformer.models.exits import Exits
from anyformer.objectives.classify import Classify
from anyformer.objectives.distillation import Distillation
from anyformer.objectives.matches.attention import AttentionMatch
from anyformer.objectives.matches.hidden import HiddenMatch
from anyformer.objectives.matches.match import uniform_map
from anyformer.objectives.next_token import NextToken
from anyformer.objectives.objective import Objective
from anyformer.objectives.sentence_pairs import SentencePairs
from anyformer.objectives.seq2seq import Seq2Seq
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.combine.shorten import Shorten
from anyformer.parts.joins.replace import Replace
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.mixers.gru import GRU
from anyformer.parts.mixers.linformer import Linformer

BOTH = (HiddenMatch(weight=0.5), AttentionMatch())
LABEL = torch.tensor([0, 2, 1, 1, 0, 2])


def stacked(shape: type[Decoder] | type[Encoder], part: PartSpec, dim: int = 16, depth: int = 2) -> Decoder | Encoder:
    branches = (Branch(part=part), Branch(part=MLP(hidden=24)))
    return replace(model(shape), dim=dim, stack=Stack(blocks={"layer": Block(branches=branches)}, depth=depth))


WIDE = stacked(Decoder, Attention(heads=3), dim=24, depth=3)


def matching(inner: Objective, *matches: HiddenMatch | AttentionMatch) -> Distillation:
    return Distillation(objective=inner, teacher="runs/teacher", matches=matches or BOTH)


def taught(objective: Distillation, student: ModelSpec, teacher: ModelSpec) -> dict[str, Model]:
    return built(objective, student, objective.objective.adapt(teacher))


def layer_by_layer(each: Model, tokens: Tensor, valid: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """The output of every layer of a decoder, and its attention weights, written out."""
    t, frame = tokens.shape[1], Frame(valid=valid)
    seen = torch.ones(t, t).tril().bool() & valid[:, None, None, :]
    x, hidden, maps = each._embed(tokens, frame)[0], [], []
    for block in each.stack.calls():
        branch = block.branches[0]
        part = branch.part
        q, k, _ = part.qkv(branch.before(x, frame)).unflatten(-1, (3, part.h, part.c)).unbind(2)
        scores = torch.einsum("bthc,bshc->bhts", q, k) * part.scale
        maps.append(scores.masked_fill(~seen, -torch.inf).softmax(-1).mean(1))
        x = block(x, frame).y
        hidden.append(x)
    return hidden, maps


@pytest.mark.row("OPT-12")
def test_the_terms_and_their_gradients_equal_a_plain_loop_over_layers() -> None:
    objective = matching(NextToken())
    models, whole = taught(objective, model(Decoder), WIDE), objective.prepare(batch(), WORDS, noise())
    (ours, looks), (theirs, their_looks) = (
        layer_by_layer(models[name], whole.tokens, whole.frame.valid) for name in ("model", "teacher")
    )
    matrix, distances = models["projections"].matrix("hidden/0").weight, {"hidden": 0.0, "attention": 0.0}
    for row, length in enumerate(whole.frame.valid.sum(1).tolist()):
        for t in range(length):
            for layer, taught_by in ((0, 1), (1, 2)):
                h, goal = matrix @ ours[layer][row, t], theirs[taught_by][row, t]
                distances["hidden"] += (h - goal).square().sum() / goal.square().sum() / length / 2
                p, q = their_looks[taught_by][row, t, : t + 1], looks[layer][row, t, : t + 1]
                distances["attention"] += (p * (p / q).log()).sum() / length / 2
    terms = objective.loss(models, whole, noise())
    learned = {"model": models["model"], "projections": models["projections"]}
    parameters = [parameter for each in learned.values() for parameter in each.parameters()]
    for name, weight in (("hidden", 0.5), ("attention", 1.0)):
        torch.testing.assert_close(terms[name].sum, weight * distances[name])
        assert terms[name].weight == 6
        slopes = [
            torch.autograd.grad(total, parameters, retain_graph=True, allow_unused=True)
            for total in (terms[name].sum, weight * distances[name])
        ]
        assert any(slope is not None and slope.abs().sum() > 0 for slope in slopes[0])
        for mine, expected in zip(*slopes, strict=True):
            torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-5)


def test_a_student_that_is_its_teacher_is_at_distance_0() -> None:
    objective = matching(NextToken())
    teacher = taught(objective, model(Decoder), model(Decoder))["teacher"].requires_grad_()
    models = {"model": teacher, "teacher": teacher}
    terms = objective.loss(models, objective.prepare(batch(), WORDS, noise()), noise())
    assert terms["hidden"].sum == 0 and terms["attention"].sum.abs() < 1e-5


def test_an_identity_projects_a_hidden_state_to_itself() -> None:
    h = torch.randn(2, 3, 8, generator=noise())
    with torch.device("cpu"):
        matrix = HiddenMatch().projection(8, 12)
    assert matrix is not None and HiddenMatch().projection(8, 8) is None
    matrix.weight.data.copy_(torch.eye(12, 8))
    wide = torch.cat((h, torch.zeros(2, 3, 4)), dim=-1)
    assert torch.equal(HiddenMatch().distance(h, wide, matrix), torch.zeros(2, 3))
    assert torch.equal(HiddenMatch().distance(0 * h, wide, matrix), torch.ones(2, 3))


@pytest.mark.parametrize(
    ("layers", "of", "expected"), [(2, 4, [1, 3]), (3, 3, [0, 1, 2]), (2, 3, [1, 2]), (3, 2, [0, 1, 1]), (1, 5, [4])]
)
def test_layers_are_matched_evenly_and_the_last_with_the_last(layers: int, of: int, expected: list[int]) -> None:
    assert uniform_map(layers, of) == expected
    assert uniform_map(layers, of) == [math.ceil(m * of / layers) - 1 for m in range(1, layers + 1)]


PAIRS = batch(source=True, label=LABEL)


@pytest.mark.parametrize(
    ("inner", "student", "teacher", "raw"),
    [
        (Seq2Seq(), pair_model(), pair_model().with_("decoder.stack.depth", 3), PAIRS),
        (SentencePairs(classes=3, order="both"), model(Decoder), WIDE, PAIRS),
        (Classify(classes=3), model(), stacked(Encoder, Attention(heads=3), dim=24), batch(label=LABEL)),
    ],
    ids=["encoder and decoder", "pairs read both ways", "classes"],
)
def test_micro_batches_add_up(inner: Objective, student: ModelSpec, teacher: ModelSpec, raw: Batch) -> None:
    objective = matching(inner)
    models, whole = taught(objective, student, teacher), objective.prepare(raw, WORDS, noise())
    objective.check_pretrained("teacher", inner.adapt(teacher), inner.adapt(student))
    check_adds_up(objective, models, whole, pieces(whole))


def test_padding_changes_nothing() -> None:
    objective = matching(Classify(classes=3))
    models, raw = taught(objective, model(Decoder), WIDE), batch(label=LABEL)
    wider = replace(raw, tokens=torch.nn.functional.pad(raw.tokens, (0, 4)))
    wider = replace(wider, frame=Frame(valid=wider.tokens != WORDS.pad))
    terms = [objective.loss(models, objective.prepare(each, WORDS, noise()), noise()) for each in (raw, wider)]
    for name in ("hidden", "attention"):
        torch.testing.assert_close(terms[0][name].sum, terms[1][name].sum)


@pytest.mark.parametrize(
    ("match", "student", "teacher", "says"),
    [
        (AttentionMatch(), stacked(Decoder, GRU()), WIDE, "no layer of the student has any"),
        (AttentionMatch(), model(Decoder), stacked(Decoder, GRU()), "no layer of the teacher has any"),
        (AttentionMatch(), model(), stacked(Encoder, Linformer(heads=2, rank=5)), "of other tokens"),
        (HiddenMatch(), model(Decoder), pair_model(), "the student has decoder, the teacher encoder and decoder"),
        (HiddenMatch(), model(Decoder).with_("stack.residual", "reversible"), WIDE, "a reversible student"),
        (HiddenMatch(), model(), replace(model(), exits=Exits(threshold=0.5)), "rows leave the teacher"),
        (HiddenMatch(), replace(model(), stack=Stack(blocks={
            "look": model().stack.blocks["layer"],
            "short": Block(branches=(Branch(part=Shorten(), place="none", join=Replace()),)),
        }, depth=2)), model(), "changes the number of tokens"),
    ],
)  # fmt: skip
def test_a_model_without_what_is_matched_is_refused_by_name(
    match: HiddenMatch | AttentionMatch, student: ModelSpec, teacher: ModelSpec, says: str
) -> None:
    with pytest.raises(SpecError, match=rf"matches.*{says}"):
        matching(NextToken(), match).check_pretrained("teacher", teacher, student)


def test_a_match_is_listed_once_and_named_in_a_word() -> None:
    with pytest.raises(SpecError, match="hidden is listed 2 times"):
        matching(NextToken(), HiddenMatch(), HiddenMatch(weight=2.0))
    plain = Distillation(objective=NextToken(), teacher="runs/teacher")
    assert plain.with_("matches", ["hidden", "attention"]).matches == (HiddenMatch(), AttentionMatch())
    assert plain.matches == () and not plain.reads_taps and matching(NextToken()).reads_taps


@pytest.mark.parametrize("match", [HiddenMatch(), AttentionMatch()], ids=["hidden", "attention"])
def test_a_student_learns_to_match_its_teacher(match: HiddenMatch | AttentionMatch) -> None:
    objective = replace(matching(NextToken(), match), alpha=0.0)
    models, whole = taught(objective, model(Decoder), WIDE), objective.prepare(batch(), WORDS, noise())
    before = objective.loss(models, whole, noise())[match.kind].sum.item()
    learn(objective, models, [whole], steps=60, lr=1e-2)
    assert objective.loss(models, whole, noise())[match.kind].sum.item() < 0.5 * before
