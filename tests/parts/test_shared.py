"""One set of weights at many places: counted once, run everywhere, taught by all."""

import copy

import pytest
import torch

from anyformer.core import Frame, Model, PartSpec, Site, Work, capture, cost
from anyformer.errors import SpecError
from anyformer.models import Block, Branch, Decoder, Stack
from anyformer.optim import AdamW
from anyformer.optim.optimizer import learned
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.combine.shared import Shared
from anyformer.parts.mixers.attention import Attention

VOCAB, DIM, DEPTH = 29, 32, 3
LOOK, THINK = Attention(), MLP()
TOKENS = torch.randint(0, VOCAB, (2, 9), generator=torch.Generator().manual_seed(0))


def decoder(*parts: PartSpec, share: str | None = None, depth: int = DEPTH) -> Decoder:
    block = Block(branches=tuple(Branch(part=part) for part in parts), share=share)
    return Decoder(vocab=VOCAB, dim=DIM, stack=Stack(blocks={"a": block}, depth=depth))


def shared_parts() -> Decoder:
    return decoder(Shared(tag="look", part=LOOK), Shared(tag="think", part=THINK))


def size(model: Model, ending: str = "weight") -> int:
    return sum(parameter.numel() for name, parameter in model.named_parameters() if name.endswith(ending))


def twins() -> tuple[Model, Model]:
    """A stack that shares its parts, and one whose layers have copies of them."""
    shared, own = shared_parts().build(), decoder(LOOK, THINK).build()
    own.embedding.load_state_dict(shared.embedding.state_dict())
    for layer in own.stack.layers.values():
        for branch, tag in zip(layer.branches, ("look", "think"), strict=True):
            branch.part.load_state_dict(shared.shared.owned[f"stack/part/{tag}"].part.state_dict())
    return shared, own


@pytest.mark.row("OPT-08", clause="N shared layers have the parameters of one layer")
@pytest.mark.row("NAR-22", clause="parameters of N shared layers are those of one")
def test_the_weights_of_all_layers_are_those_of_one() -> None:
    one, many = decoder(LOOK, THINK, depth=1).build(), decoder(LOOK, THINK).build()
    parts, block = shared_parts().build(), decoder(LOOK, THINK, share="all").build()
    assert size(parts) == size(block) == size(one) < size(many)
    assert size(block, "") == size(one, "")
    assert size(parts, "") == len(parts.stack.layers) * 2 * DIM + size(one, "weight")  # norms stay their own


@pytest.mark.row("OPT-08", clause="one block's weights serve several layers: all, cycle or sequence")
@pytest.mark.parametrize("layout", ["aaaa", "abab", "aabb"], ids=["all", "cycle", "sequence"])
def test_a_layout_says_which_layers_are_one_and_the_same(layout: str) -> None:
    branches = (Branch(part=LOOK), Branch(part=THINK))
    blocks = {name: Block(branches=branches, share=name) for name in sorted({*layout})}
    stack = Decoder(vocab=VOCAB, dim=DIM, stack=Stack(blocks=blocks, layout=tuple(layout), depth=4)).build().stack
    same = [[one is other for other in stack.calls()] for one in stack.calls()]
    assert same == [[one == other for other in layout] for one in layout]
    assert len(stack.layers) == len(blocks)


@pytest.mark.row("OPT-08", clause="the optimiser state shrinks with the parameters")
def test_an_optimiser_remembers_one_layer_if_all_are_one() -> None:
    def held(spec: Decoder) -> int:
        state = AdamW().build(learned({"model": spec.build()})).state_dict()
        return sum(tensor.numel() for name, tensor in state.items() if "exp_avg" in name and ".stack." in name)

    one, many = held(decoder(LOOK, THINK, depth=1)), held(decoder(LOOK, THINK))
    assert held(decoder(LOOK, THINK, share="all")) == one and many == DEPTH * one > 0


@pytest.mark.row("OPT-08")
def test_the_weights_are_saved_once() -> None:
    model = shared_parts().build()
    names = [name for name in model.state_dict() if name.endswith("down.weight")]
    assert names == ["shared.owned.stack/part/think.part.down.weight"]


@pytest.mark.row("OPT-08", clause="FLOPs are unchanged by sharing")
@pytest.mark.row("NAR-22", clause="operations are unchanged by sharing")
def test_sharing_saves_no_work() -> None:
    work = Work(batch=2, length=9)
    own = cost(decoder(LOOK, THINK), work).total
    for spec in (shared_parts(), decoder(LOOK, THINK, share="all")):
        shared = cost(spec, work).total
        assert (shared.flops_forward, shared.flops_backward) == (own.flops_forward, own.flops_backward)
        assert shared.params < own.params


@pytest.mark.row("OPT-08", clause="the gradient is the sum of the gradients of the layers")
def test_a_shared_weight_learns_the_sum_of_what_the_layers_would() -> None:
    shared, own = twins()
    for model in (shared, own):
        model(TOKENS, Frame()).y.square().mean().backward()
    torch.testing.assert_close(shared(TOKENS, Frame()).y, own(TOKENS, Frame()).y)
    for branch, tag in enumerate(("look", "think")):
        for name, weight in shared.shared.owned[f"stack/part/{tag}"].part.named_parameters():
            theirs = [layer.branches[branch].part.get_parameter(name).grad for layer in own.stack.layers.values()]
            torch.testing.assert_close(weight.grad, torch.stack(theirs).sum(0))


@pytest.mark.row("OPT-08", clause="the gradient is the sum of the gradients of the layers")
@pytest.mark.row("NAR-22", clause="gradient of the shared block is the sum of the layers' gradients")
def test_a_shared_block_learns_the_sum_too() -> None:
    shared, own = decoder(LOOK, THINK, share="all").build(), decoder(LOOK, THINK).build()
    own.embedding.load_state_dict(shared.embedding.state_dict())
    for layer in own.stack.layers.values():
        layer.load_state_dict(shared.stack.layers["shared/all"].state_dict())
    for model in (shared, own):
        model(TOKENS, Frame()).y.square().mean().backward()
    for name, weight in shared.stack.layers["shared/all"].named_parameters():
        theirs = [layer.get_parameter(name).grad for layer in own.stack.layers.values()]
        torch.testing.assert_close(weight.grad, torch.stack(theirs).sum(0))


def test_every_place_has_a_state_of_its_own() -> None:
    model = shared_parts().build()
    first, second = (layer[0] for layer in model.init_state(2, 16)[:2])
    assert first.k.data_ptr() != second.k.data_ptr()
    with capture(model, "*pattern") as seen:
        model(TOKENS, Frame())
    assert [len(calls) for calls in seen.values()] == [DEPTH]


def test_one_tag_may_not_mean_two_parts() -> None:
    clash = decoder(Shared(tag="same", part=MLP(hidden=32)), Shared(tag="same", part=MLP(hidden=64)))
    with pytest.raises(SpecError, match="two different parts have the tag 'same'"):
        clash.build(device="meta")
    site = Site(dim=DIM)
    Shared(tag="same", part=MLP()).build(site)
    with pytest.raises(SpecError, match="two different parts"):
        Shared(tag="same", part=MLP()).build(Site(dim=2 * DIM, shared=site.shared))


def test_a_copy_of_a_model_shares_within_itself() -> None:
    model = shared_parts().build()
    twin = copy.deepcopy(model)
    twin.shared.owned["stack/part/think"].part.down.weight.data.zero_()
    assert not torch.allclose(twin(TOKENS, Frame()).y, model(TOKENS, Frame()).y)
    assert twin.stack.layers["0"].branches[1].part.weights.module is twin.shared.owned["stack/part/think"]


def test_a_shared_part_does_not_hold_another_with_its_own_tag() -> None:
    with pytest.raises(SpecError, match="used again inside"):
        Shared(tag="one", part=Shared(tag="one", part=MLP()))
    assert Shared(tag="one", part=Shared(tag="two", part=MLP())).tag == "one"
