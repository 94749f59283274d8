"""Layers that are split over two processes compute what one process computes, forward and backward."""

from collections.abc import Callable, Sequence

import pytest
import torch
from tests.training.ranks import together
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode

from anyformer.core import Frame, Memory, PartSpec, Site, initialise
from anyformer.errors import SpecError
from anyformer.models import Block, Branch, Decoder, Stack
from anyformer.parts.channels.glu import GLU
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.combine.cross import Cross
from anyformer.parts.combine.lora import LoRA
from anyformer.parts.inits.normal import NormalInit
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.mixers.gru import GRU
from anyformer.parts.norms.rms import RMSNorm
from anyformer.parts.positions.alibi import Alibi
from anyformer.parts.positions.rope import Rope
from anyformer.training import gather, load, split_layers

row = pytest.mark.row
DIM, EXACT = 16, {"rtol": 1e-6, "atol": 1e-6}
WEIGHTS = (torch.rand(2, 9, DIM, generator=torch.Generator().manual_seed(3)) - 0.5) / 9


def built(spec: PartSpec) -> nn.Module:
    part = spec.build(Site(dim=DIM))
    initialise(part, NormalInit(deviation=0.2), seed=0)
    for name, parameter in part.named_parameters():
        if name.endswith("bias"):  # zeros would hide a bias that is added by every rank
            nn.init.normal_(parameter.detach(), generator=torch.Generator().manual_seed(len(name)))
    return part


def inputs() -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(1)
    return tuple(torch.randn(2, 9, DIM, generator=rng).requires_grad_() for _ in range(2))  # type: ignore[return-value]


def ran(part: nn.Module) -> dict[str, Tensor]:
    """The output, and the gradients of both sequences."""
    x, source = inputs()
    y = part(x, Frame(memory=Memory(x=source))).y
    (y * WEIGHTS).sum().backward()
    return {"y": y.detach(), "x": x.grad} | ({} if source.grad is None else {"source": source.grad})


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: value for name, value in gather(model, lambda one: one.grad).items() if value is not None}


def on_two(work: Callable[[DeviceMesh], None]) -> None:
    together(lambda rank: work(init_device_mesh("cpu", (2,))))


SPLIT = (
    MLP(bias=True), MLP(hidden=6), GLU(), GLU(bias=True), Attention(heads=4, bias=True),
    Attention(heads=4, kv_heads=2, position=Rope()), Attention(heads=2, head_dim=3),
    Cross(part=Attention(heads=4, kv_heads=2, bias=True)),
)  # fmt: skip


@row("OPT-15", clause="a simulated tensor-parallel MLP equals the serial one")
@row("OPT-15", clause="a simulated tensor-parallel attention equals the serial one")
def test_split_parts_equal_the_whole_ones() -> None:
    """Output and all gradients of two processes, each with half of the weights, are those of one process."""

    def check(spec: PartSpec, mesh: DeviceMesh) -> None:
        whole = built(spec)
        wanted, learned = ran(whole), {name: one.grad for name, one in whole.named_parameters()}
        part = built(spec)
        split_layers(part, mesh)
        torch.testing.assert_close(ran(part), wanted, **EXACT)
        torch.testing.assert_close(gradients(part), learned, **EXACT)
        torch.testing.assert_close(
            gather(part), {name: one.detach() for name, one in whole.named_parameters()}, **EXACT
        )
        for name, one in part.named_parameters():
            assert isinstance(one, DTensor)
            halves = 1 if name.endswith(("down.bias", "out.bias")) else 2
            assert one.to_local().numel() * halves == one.numel()

    on_two(lambda mesh: each(SPLIT, lambda spec: check(spec, mesh)))


def each(specs: Sequence[PartSpec], check: Callable[[PartSpec], None]) -> None:
    """Checks all specs in the same processes, since a new process takes longer than a check; errors name the spec."""
    for spec in specs:
        try:
            check(spec)
        except Exception as error:
            error.add_note(repr(spec))
            raise


@row("OPT-15", clause="tensor parallel: W_1 split by columns, W_2 by rows, one all-reduce")
def test_a_rank_has_half_of_the_columns_and_rows_and_adds_up_once() -> None:
    def check(spec: PartSpec, mesh: DeviceMesh) -> None:
        whole = {name: one.detach() for name, one in built(spec).named_parameters()}
        first, second = (value for name, value in whole.items() if name.endswith("weight"))
        part, rank = built(spec), mesh.get_local_rank()
        split_layers(part, mesh)
        one, two = (one.to_local() for one in part.parameters() if isinstance(one, DTensor))
        widths = next(child.widths for child in part.children() if len(child.state_dict()))
        mine = [
            projection.chunk(2)[rank] for projection in first.split(widths)
        ]  # stored as [out, in]: columns are rows
        torch.testing.assert_close(one, torch.cat(mine), rtol=0, atol=0)
        torch.testing.assert_close(two, second.chunk(2, dim=1)[rank], rtol=0, atol=0)
        with CommDebugMode() as sent:
            y = part(inputs()[0], Frame()).y
        assert counts(sent) == {"all_reduce": 1}
        with CommDebugMode() as sent:
            y.sum().backward()
        assert counts(sent) == {"all_reduce": 1}  # of the gradient of x

    on_two(lambda mesh: each((MLP(), GLU(), Attention(heads=4)), lambda spec: check(spec, mesh)))


def counts(sent: CommDebugMode) -> dict[str, int]:
    """Number of collectives of each kind."""
    return {str(kind).rpartition(".")[2]: number for kind, number in sent.get_comm_counts().items() if number}


@row("SCL-07", clause="tensor-parallel layers, as used to train it, equal the serial ones")
def test_the_layers_of_megatron_train_split_as_they_do_whole() -> None:
    spec = load("megatron-8.3b").with_("vocab", 32).with_("dim", 64).with_("stack.depth", 2).with_("max_len", 16)
    tokens = torch.randint(0, 32, (2, 9), generator=torch.Generator().manual_seed(1))
    reference = spec.build().eval()
    wanted = [trained(reference, tokens) for _ in range(2)]
    weights = {name: one.detach() for name, one in reference.named_parameters()}

    def work(mesh: DeviceMesh) -> None:
        model = spec.build().eval()
        assert len(split_layers(model, mesh)) == 2 * 2  # attention and the feed-forward net of both layers
        for logits, grads in wanted:
            mine = trained(model, tokens)
            torch.testing.assert_close(mine[0], logits, rtol=0, atol=2e-6)
            torch.testing.assert_close(mine[1], grads, rtol=0, atol=1e-6)
        torch.testing.assert_close(gather(model), weights, rtol=0, atol=1e-6)

    on_two(work)


def trained(model: nn.Module, tokens: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits and gradients, before a step of gradient descent."""
    model.zero_grad()
    logits = model(tokens, Frame()).y
    logits.log_softmax(-1)[:, :-1].gather(-1, tokens[:, 1:, None]).mean().neg().backward()
    grads = {name: value.clone() for name, value in gradients(model).items()}
    for one in model.parameters():
        one.data.add_(one.grad, alpha=-0.1)
    return logits.detach(), grads


def test_parts_that_cannot_be_divided_stay_whole_in_a_mixed_stack() -> None:
    block = Block(branches=(Branch(part=GRU()), Branch(part=GLU(hidden=8))))
    spec = Decoder(vocab=11, dim=8, stack=Stack(blocks={"layer": block}, depth=1))
    tokens = torch.arange(10).view(2, 5)
    logits, grads = trained(spec.build(), tokens)

    def work(mesh: DeviceMesh) -> None:
        model = spec.build()
        (name,) = split_layers(model, mesh)
        assert name.endswith("branches.1.part")
        mine = trained(model, tokens)
        torch.testing.assert_close(mine, (logits, grads), **EXACT)

    on_two(work)


REFUSED = (
    (Attention(heads=2, kv_heads=1), "heads or hidden units: 1 cannot be divided by 2 ranks"),
    (MLP(hidden=7), "heads or hidden units: 7 cannot be divided by 2 ranks"),
    (GLU(hidden=7), "heads or hidden units: 7 cannot be divided by 2 ranks"),
    (Attention(position=Alibi()), "only some of the heads"),
    (Attention(qk_norm=RMSNorm()), "only some of the heads"),
    (LoRA(part=Attention(heads=2), rank=2), r"not those with a low-rank update \(lora\). Merge the updates"),
    (LoRA(part=MLP(), rank=2, roles=("in",)), "not those with a low-rank update"),
    (GRU(), "the model has none of them"),
)


def test_what_cannot_be_divided_is_refused_with_the_reason() -> None:
    def work(mesh: DeviceMesh) -> None:
        for spec, reason in REFUSED:
            with pytest.raises(SpecError, match=reason):
                split_layers(built(spec), mesh)

    on_two(work)
