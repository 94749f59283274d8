"""What holds for every objective: pieces add up, parts are heard, fresh models guess, what does not fit is told."""

import math
from dataclasses import replace

import pytest
import torch
from tests.objectives.every import CASES, DECODER, ENCODER, LABELS, PAIR, Case
from tests.objectives.small import WORDS, built, check_adds_up, noise
from torch import Tensor

from anyformer.core import Frame, ModelSpec, Out, Part, State, kind_of
from anyformer.core.discovery import discover
from anyformer.data.batching.batch import RowLabels
from anyformer.errors import DataError, SpecError
from anyformer.models.stack import BlockModule
from anyformer.objectives.contrastive import Contrastive
from anyformer.objectives.distillation import Distillation
from anyformer.objectives.every_exit import EveryExit
from anyformer.objectives.mixture import Mixture, MixtureTask
from anyformer.objectives.objective import Objective
from anyformer.objectives.words import PARTS

CUTTABLE = [case for case in CASES if case.objective.split_refusal is None]
ONE_TEXT = [case for case in CUTTABLE if not case.pairs and case.objective.kind != "span_corruption"]
COMPILED = ("next_token", "masked_words", "replaced_token")
COMPILED_FAST = ("next_token-decoder",)
SPLITS = {"one and five": (1, 5), "three, one, two": (3, 1, 2)}
CUTS = [
    pytest.param(case, sizes, id=f"{case}-{name}", marks=() if (number + place) % 2 == 0 else pytest.mark.slow)
    for number, case in enumerate(CUTTABLE)
    for place, (name, sizes) in enumerate(SPLITS.items())
]
"""Every case in the fast suite, cut in one of the two ways in turn; in the other in the slow suite."""


class Asking(Part):
    """A part that asks something for itself: the mean of a function of each live token."""

    def __init__(self, part: Part):
        super().__init__()
        self.part = part

    def forward(self, x: Tensor, frame: Frame, state: State | None = None) -> Out:
        out = self.part(x, frame, state)
        there = torch.ones(x.shape[:2]) if frame.valid is None else frame.valid.float()
        return out._replace(losses={"balance": 0.1 * (out.y.square().mean(-1) * there).sum() / there.sum()})


def with_asking_parts(case: Case) -> dict[str, torch.nn.Module]:
    models = built(case.objective, case.spec, case.teacher)
    for block in (module for module in models["model"].modules() if isinstance(module, BlockModule)):
        block.branches[-1].part = Asking(block.branches[-1].part)
    return models


def test_every_kind_is_here() -> None:
    discover()
    assert {case.objective.kind for case in CASES} == set(Objective.kinds)


@pytest.mark.parametrize("case", [case for case in CASES if case.objective.scored_by_weight], ids=str)
def test_rows_of_weight_0_change_nothing(case: Case) -> None:
    models = built(case.objective, case.spec, case.teacher)
    ready = case.objective.prepare(case.data(), WORDS, noise())
    filled = ready.with_rows(8)
    assert len(filled.tokens) == 8
    counts, terms = case.objective.counts(ready), case.objective.loss(models, ready, noise())
    more_counts, more_terms = case.objective.counts(filled), case.objective.loss(models, filled, noise())
    for name in terms:
        assert more_counts[name] == counts[name] == more_terms[name].weight
        torch.testing.assert_close(more_terms[name].sum, terms[name].sum)
    plain, more = (sum(term.sum for term in each.values()) for each in (terms, more_terms))
    gradients = [
        torch.autograd.grad(loss, [*models["model"].parameters()], allow_unused=True) for loss in (plain, more)
    ]
    for mine, other in zip(*gradients, strict=True):
        if mine is not None:
            torch.testing.assert_close(other, mine)


@pytest.mark.row(
    "OPT-14",
    clause=(
        "accumulation sums the gradients of the micro-batches",
        "the accumulated gradient equals the full-batch gradient",
    ),
)
@pytest.mark.parametrize(("case", "sizes"), CUTS)
def test_rows_cut_in_any_way_add_up(case: Case, sizes: tuple[int, ...]) -> None:
    ready = case.objective.prepare(case.data(), WORDS, noise())
    assert len(ready.tokens) == 6
    mixed = torch.tensor([4, 0, 3, 5, 1, 2])  # ranks take every so manyth row
    pieces = [ready.take(rows) for rows in mixed.split(sizes)]
    check_adds_up(case.objective, built(case.objective, case.spec, case.teacher), ready, pieces)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_counts_are_the_weights_of_the_terms(case: Case) -> None:
    ready, models = case.objective.prepare(case.data(), WORDS, noise()), with_asking_parts(case)
    terms, counts = case.objective.loss(models, ready, noise()), case.objective.counts(ready)
    assert terms.keys() == counts.keys() and PARTS in terms
    for name, term in terms.items():
        assert torch.equal(term.weight, counts[name]) and term.weight > 0, name
        assert term.sum.dim() == 0 and term.sum.isfinite(), name


@pytest.mark.parametrize("case", ONE_TEXT, ids=str)
def test_what_parts_ask_for_is_a_mean_over_all_tokens_however_they_are_cut(case: Case) -> None:
    ready, models = case.objective.prepare(case.data(), WORDS, noise()), with_asking_parts(case)
    whole = case.objective.loss(models, ready, noise())[PARTS]
    pieces = [case.objective.loss(models, ready.take(rows), noise())[PARTS] for rows in torch.arange(6).split((1, 5))]
    torch.testing.assert_close(sum(piece.sum for piece in pieces), whole.sum)
    assert whole.sum > 0
    whole.sum.backward()
    assert any(parameter.grad is not None for parameter in models["model"].parameters())


def test_an_encoder_is_heard_too() -> None:
    case = next(case for case in CASES if case.spec is PAIR)
    ready, models = case.objective.prepare(case.data(), WORDS, noise()), with_asking_parts(case)
    total = case.objective.loss(models, ready, noise())[PARTS].sum
    gradients = torch.autograd.grad(total, list(models["model"].encoder.stack.parameters()), allow_unused=True)
    assert any(gradient is not None and gradient.abs().sum() > 0 for gradient in gradients)


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler's own
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=() if str(case) in COMPILED_FAST else pytest.mark.slow)
        for case in CASES
        if case.objective.kind in COMPILED
    ],
    ids=str,
)
def test_a_whole_loss_is_one_graph(case: Case) -> None:
    torch._dynamo.reset()  # or it takes the graph of another case, or makes one for all shapes, which takes longer
    shallow = case.spec.with_("stack.depth", 1)  # a graph breaks in the first layer or in none
    ready, models = case.objective.prepare(case.data(), WORDS, noise()), built(case.objective, shallow, case.teacher)
    rng = noise()

    def sums() -> dict[str, Tensor]:
        return {name: term.sum for name, term in case.objective.loss(models, ready, rng).items()}

    learned = [parameter for parameter in models["model"].parameters() if parameter.requires_grad]
    compiled, plain = torch.compile(sums, fullgraph=True, backend="aot_eager")(), sums()
    slopes = (torch.autograd.grad(sum(found.values()), learned, allow_unused=True) for found in (compiled, plain))
    torch.testing.assert_close(compiled, plain)
    for mine, expected in zip(*slopes, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-6)


def share(objective: Objective, term: str) -> float:
    """How much a term counts."""
    if isinstance(objective, Mixture):
        return objective.tasks[term.split(".")[0]].weight
    if isinstance(objective, Distillation):
        return 1 - objective.alpha
    if isinstance(objective, EveryExit):
        inner = term.startswith("exits_")
        return (objective.weight if inner else 1.0) * share(objective.objective, term.removeprefix("exits_"))
    return vars(objective).get("language") or 1.0 if term == "words" else 1.0


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_fresh_model_does_about_as_well_as_a_blind_guess(case: Case) -> None:
    """Its weights are small: log V for a word, log n for a class, log 2 for yes or no, for numbers their squares."""
    adapted = case.objective.adapt(case.spec)
    models = {"model": adapted.build()}
    companions = {**case.objective.companions(adapted), **{name: case.teacher for name in case.objective.pretrained}}
    models |= {name: spec.build() for name, spec in companions.items()}
    case.objective.tie(models)
    terms = case.objective.loss(models, case.objective.prepare(case.data(), WORDS, noise()), noise())
    blind = dict.fromkeys(("words", "shuffled", "ahead", "back"), math.log(WORDS.size))
    blind |= dict.fromkeys(("label", "tags"), math.log(3))
    blind |= {"replaced": 50 * math.log(2), "pairs": math.log(6), "contexts": 6 * math.log(2), "teacher": 0.0}
    blind |= dict.fromkeys(("divergence", "hidden", "attention"), 0.0)
    blind["order"] = math.log(3 if case.note == "three ways" else 2)
    if case.note == "a number":
        blind["label"] = LABELS["number"].square().mean().item()
    for name, (total, weight) in terms.items():
        expected = share(case.objective, name) * blind[name.removeprefix("exits_").split(".")[-1]]
        assert (total / weight).item() == pytest.approx(expected, rel=0.1, abs=0.05), name


SHAPES = {"encoder": ENCODER, "decoder": DECODER, "encoder_decoder": PAIR}


@pytest.mark.row("PRE-04")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_model_fits_or_is_told_why_not_and_what_would(case: Case, shape: str) -> None:
    try:
        adapted = case.objective.adapt(SHAPES[shape])
    except SpecError as refusal:
        assert "Use " in str(refusal) or "objective.kind =" in str(refusal) or "scored = " in str(refusal), refusal
        assert any(word in str(refusal) for word in ("encoder", "decoder", "attention")), refusal
        assert SHAPES[shape] != case.spec
    else:
        assert isinstance(adapted, ModelSpec) and adapted.kind == SHAPES[shape].kind
        assert case.objective.adapt(adapted) == adapted


BOUND = {
    "encoder": {"masked_words", "word_order", "permutation", "replaced_token"},
    "decoder": {"chat", "next_token", "prefix_lm"},
    "decoder encoder_decoder": {"span_corruption", "seq2seq"},
    "encoder decoder": {"classify", "regress", "sentence_pairs", "multiple_choice", "token_labels", "contrastive"},
    "": {"skip_gram", "both_directions"},  # no attention: each word alone, or the words on one side of it
}


def fits(objective: Objective, spec: ModelSpec) -> bool:
    try:
        objective.adapt(spec)
    except SpecError:
        return False
    return True


@pytest.mark.row(
    "PRE-04",
    clause=(
        "a registry binds each objective to its architecture",
        "the matrix of allowed pairs is enforced: other pairs are refused",
    ),
)
@pytest.mark.parametrize("shapes", BOUND)
def test_an_objective_takes_the_shapes_of_the_table_and_no_others(shapes: str) -> None:
    others = {"distillation", "every_exit", "mixture", "r_drop"}  # which take what the objectives inside them take
    assert set[str]().union(*BOUND.values()) | others == {case.objective.kind for case in CASES}
    for kind in BOUND[shapes]:
        objective = kind_of(Objective, kind).examples()[0]
        assert [shape for shape, spec in SHAPES.items() if fits(objective, spec)] == shapes.split(), kind


TUNING = ("classify", "regress", "token_labels", "sentence_pairs", "multiple_choice")


@pytest.mark.row("PRE-24", clause="fine-tuning inputs hold no [MASK]: the reason for 80/10/10")
def test_mask_is_seen_in_pre_training_and_never_in_fine_tuning() -> None:
    seen = dict.fromkeys((*TUNING, "masked_words"), False)
    for case in (case for case in CASES if case.objective.kind in seen):
        ready = case.objective.prepare(case.data(), WORDS, noise())
        read = getattr(ready.inputs, "tokens", ready.tokens)  # several rows for a text, where it has several
        seen[case.objective.kind] |= bool((ready.tokens == WORDS.mask).any() or (read == WORDS.mask).any())
    assert seen == {**dict.fromkeys(TUNING, False), "masked_words": True}


BARE = {
    "classify": "data.source.label",
    "regress": "data.source.label",
    "sentence_pairs": "data.source.target",
    "multiple_choice": "data.source.choices",
    "token_labels": "data.source.tags",
    "contrastive": "data.source.target",
    "seq2seq": "data.source.target",
}


@pytest.mark.parametrize("kind", BARE)
def test_data_that_do_not_suit_are_told_the_key_to_set(kind: str) -> None:
    bare = replace(CASES[0].data(), labels=RowLabels())
    objective = kind_of(Objective, kind).examples()[0]
    for said in (kind, BARE[kind]):
        with pytest.raises(DataError, match=said):
            objective.prepare(bare, WORDS, noise())


def test_what_compares_rows_says_so_wherever_it_is() -> None:
    assert "other rows" in Contrastive().split_refusal
    assert "other rows" in Mixture(tasks={"near": MixtureTask(objective=Contrastive())}).split_refusal
    assert {case.objective.kind for case in CASES if case.objective.split_refusal} == {"contrastive"}
