"""Fresh weights: the spread of every role under every scheme, and that a seed and a name decide them."""

from dataclasses import dataclass
from functools import cache

import pytest
import torch
from torch import Tensor

from anyformer.core import InitSpec, Matrix, Model, Role
from anyformer.models import Block, Branch, Decoder, Stack
from anyformer.parts.channels.glu import GLU
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.combine.shared import Shared
from anyformer.parts.heads.untied import Untied
from anyformer.parts.inits.fan_in import FanIn
from anyformer.parts.inits.fixup import FixupInit
from anyformer.parts.inits.normal import NormalInit
from anyformer.parts.inits.xavier import Xavier
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.positions.learned import LearnedPosition

VOCAB, DIM, HIDDEN, LENGTH, CHANNELS = 500, 256, 384, 300, 32
ROLES = ("embed", "position", "head", "query", "key", "value", "out", "gate", "in", "down")


def model(init: InitSpec, depth: int = 2, seed: int = 0, share: str | None = None) -> Model:
    attention, glu = Attention(heads=8, kv_heads=4), GLU(hidden=HIDDEN)
    block = Block(branches=(Branch(part=attention), Branch(part=glu)), share=share)
    stack = Stack(blocks={"a": block}, depth=depth)
    position = LearnedPosition(max_len=LENGTH)
    spec = Decoder(vocab=VOCAB, dim=DIM, stack=stack, init=init, head=Untied(), position=position)
    return spec.build(seed=seed)


def by_role(fresh: Model) -> dict[str, Tensor]:
    attention, glu = (branch.part for branch in fresh.stack.layers["0"].branches)
    query, key, value = attention.qkv.weight.split(attention.qkv.widths)
    gate, up = glu.up.weight.split(glu.up.widths)
    found = (fresh.embedding.weight, fresh.position.table.weight, fresh.head.words.weight, query, key, value)
    return dict(zip(ROLES, (*found, attention.out.weight, gate, up, glu.down.weight), strict=True))


@cache  # each role is a test
def fresh_weights(init: InitSpec) -> dict[str, Tensor]:
    return by_role(model(init))


def glorot(fan_in: int, fan_out: int) -> float:
    return (2 / (fan_in + fan_out)) ** 0.5


FORMULAS = {
    "bert": (NormalInit(out="same"), {}, 0.02),
    "zero outputs": (NormalInit(out="zero"), {"out": 0.0, "down": 0.0}, 0.02),
    "gpt2": (NormalInit(), {"out": 0.02 / 4**0.5, "down": 0.02 / 4**0.5}, 0.02),  # 2 layers of 2 branches
    "xavier": (
        Xavier(),
        {
            "embed": DIM**-0.5,
            "position": DIM**-0.5,
            "head": glorot(DIM, VOCAB),
            "key": glorot(DIM, 4 * CHANNELS),
            "value": glorot(DIM, 4 * CHANNELS),
            "gate": glorot(DIM, HIDDEN),
            "in": glorot(DIM, HIDDEN),
            "down": glorot(HIDDEN, DIM),
        },
        glorot(DIM, DIM),
    ),
    "fixup": (  # 4 branches
        FixupInit(),
        {
            "embed": 1.0,
            "position": DIM**-0.5,
            "head": 0.0,
            "out": 0.0,
            "down": 0.0,
            "gate": (2 / DIM) ** 0.5 * 4 ** (-1 / 2),
            "in": (2 / DIM) ** 0.5 * 4 ** (-1 / 2),
        },
        (2 / DIM) ** 0.5 * 4 ** (-1 / 6),
    ),
    "t5": (FanIn(), {"embed": 1.0, "query": (DIM * CHANNELS) ** -0.5, "down": HIDDEN**-0.5}, DIM**-0.5),
}


@pytest.mark.row("PRE-19", clause="scores not divided by sqrt(d): the scale is folded into the init")
@pytest.mark.row(
    "OPT-17",
    clause=(
        "one table maps the role of a weight to its initialisation",
        "GPT-2: normal 0.02, output projections alone at 0.02 / sqrt(2 L)",
        "T5: the scales of mesh, tied logits times d^-1/2",
        "BERT: normal 0.02",
        "Xavier is in the table",
        "Fixup is in the table",
        "the std of weights is within 2% of the formula",
    ),
)
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(("init", "special", "usual"), FORMULAS.values(), ids=FORMULAS)
def test_the_spread_of_each_role_is_the_formulas(
    init: InitSpec, special: dict[str, float], usual: float, role: str
) -> None:
    weights = fresh_weights(init)[role]
    assert weights.std().item() == pytest.approx(special.get(role, usual), rel=0.02)
    assert abs(weights.mean().item()) <= 5 * weights.std().item() / weights.numel() ** 0.5


@pytest.mark.row("OPT-17", clause="the weight sets of the heads differ")
def test_the_heads_and_the_layers_differ() -> None:
    fresh = model(NormalInit())
    sets = by_role(fresh)["query"].unflatten(0, (8, CHANNELS))
    assert all(not torch.equal(sets[i], sets[j]) for i in range(8) for j in range(i))
    first, second = (fresh.stack.layers[layer].branches[1].part.down.weight for layer in "01")
    assert not torch.equal(first, second)


@pytest.mark.row("OPT-17", clause="Fixup is in the table")
def test_fixup_embeddings_may_have_rows_of_length_one() -> None:
    assert by_role(model(FixupInit(embeddings="rsqrt_width")))["embed"].std().item() == pytest.approx(1 / 16, rel=0.02)


@pytest.mark.row("OPT-17")
def test_a_seed_and_a_name_decide_the_values() -> None:
    shallow, deep, other = model(Xavier()), model(Xavier(), depth=3), model(Xavier(), seed=1)
    for name, tensor in shallow.named_parameters():
        assert torch.equal(tensor, deep.get_parameter(name)), name
        assert tensor.dim() == 1 or not torch.equal(tensor, other.get_parameter(name)), name


@dataclass(frozen=True, kw_only=True)
class Counting(InitSpec):
    """Notes what it is asked for."""

    asked: list[Role]

    def std(self, role: Role, matrix: Matrix) -> float:
        self.asked.append(role)
        return 0.02


@pytest.mark.row("OPT-17")
def test_a_shared_block_is_filled_once() -> None:
    one, shared, own = ([], [], [])
    model(Counting(asked=one), depth=1)
    model(Counting(asked=shared), depth=4, share="all")
    model(Counting(asked=own), depth=4)
    assert len(one) == len(shared) < len(own)


@pytest.mark.row("OPT-17")
def test_a_shared_part_knows_the_depth_of_the_stack_that_it_feeds() -> None:
    block = Block(branches=(Branch(part=Shared(tag="think", part=MLP())),))
    fresh = Decoder(vocab=8, dim=DIM, stack=Stack(blocks={"a": block}, depth=9), init=NormalInit()).build()
    (down,) = (tensor for name, tensor in fresh.named_parameters() if name.endswith("down.weight"))
    assert down.std().item() == pytest.approx(0.02 / 3, rel=0.02)


def test_a_default_device_does_not_change_the_values() -> None:
    with torch.device("meta"):
        elsewhere = model(NormalInit())
    for mine, theirs in zip(elsewhere.parameters(), model(NormalInit()).parameters(), strict=True):
        assert torch.equal(mine, theirs)
