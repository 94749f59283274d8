"""On a GPU: the kernel of one token a row against its definition."""

from typing import Any

import pytest
import torch
from tests.generation.small import SURE, stack

from anyformer.generation.engine import Engine, Request
from anyformer.models import Decoder
from anyformer.ops.decode_step import attend_step, attend_step_loop
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.heads.untied import Untied
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.positions.rope import Rope

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "room"), [(5, 600), (5, 400), (70, 600)])  # few programs, with little room, and many
@pytest.mark.parametrize(
    ("heads", "groups", "channels"), [(4, 4, 2), (4, 4, 16), (12, 12, 64), (8, 2, 128), (4, 1, 256)]
)
def test_it_writes_and_reads_what_the_definition_does(
    dtype: torch.dtype, rows: int, room: int, heads: int, groups: int, channels: int
) -> None:
    kind = {"device": "cuda", "dtype": dtype}
    given = torch.randn(rows, heads + 2 * groups, channels, **kind)
    keys, values = torch.randn(2, rows, room, groups, channels, **kind)
    filled = torch.zeros(rows, room, dtype=torch.bool, device="cuda")
    state = keys, values, filled
    places = torch.tensor([0, 1, 127, 128, room - 1], device="cuda")
    positions = places.repeat(-(-rows // 5))[:rows]
    apart = tuple(tensor.float().cpu() if tensor.is_floating_point() else tensor.cpu() for tensor in state)
    expected = attend_step_loop(given.float().cpu(), apart, positions.cpu(), 0.3)
    y = attend_step(given, *state, positions, 0.3)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(y.float().cpu(), expected, rtol=tolerance, atol=tolerance)
    assert all(mine.float().cpu().equal(other.float()) for mine, other in zip(state, apart, strict=True))


@pytest.mark.parametrize("position", [None, Rope()], ids=["plain", "turned"])
@pytest.mark.parametrize("steps", ["graph", pytest.param("compiled_graph", marks=pytest.mark.compile)])
def test_steps_with_one_key_for_several_queries_write_what_the_cpu_writes(steps: Any, position: Any) -> None:
    look = Attention(heads=4, kv_heads=2, position=position)
    spec = Decoder(vocab=23, dim=16, stack=stack(look, MLP()), head=Untied(), init=SURE)
    requests = [Request(prompt=[3 + row, 7, 2][: 1 + row % 3]) for row in range(3)]
    expected = Engine(spec.build(seed=2), max_len=40).generate(requests, max_new=20)
    there = Engine(spec.build(seed=2).cuda(), max_len=40, steps=steps)
    assert there.generate(requests, max_new=20) == expected
