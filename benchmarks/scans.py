"""Scans against the loops that define them, and state spaces against their peers: `python -m benchmarks.scans`

On a CPU each scan against its loop over tokens, forward alone and forward and backward. With `--device cuda` Mamba and
Mamba-2 against transformers' pure-torch mixers with the same weights, and Mamba-2 against causal attention of the same
width over a long row: forward and backward of one layer in bfloat16. `python -m benchmarks.gpu --items compiled_scans`
compiles both of the last, which takes minutes.
"""

import importlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from anyformer.core import Frame, Part, PartSpec, Site, initialise
from anyformer.ops.recurrence.outer_product_scan import outer_scan, outer_scan_loop
from anyformer.ops.recurrence.selective_scan import selective_scan, selective_scan_loop
from anyformer.ops.state_space.diagonal import modes
from anyformer.ops.state_space.state_space_scan import state_space_loop, state_space_scan
from anyformer.parts.inits.normal import NormalInit
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.mixers.mamba import Mamba
from anyformer.parts.mixers.mamba2 import Mamba2
from benchmarks.agreement import agree
from benchmarks.clock import Run
from benchmarks.harness import Bench, Case, Contender, Size, compare
from benchmarks.rows import Row
from benchmarks.runner import single

Scan = Callable[..., tuple[Tensor, object]]
LOOPS: dict[Size, tuple[dict[str, int], ...]] = {
    "gpu": (),
    "cpu": ({"batch": 1, "length": 1024, "dim": 64}, {"batch": 1, "length": 1024, "dim": 256}),
    "tiny": ({"batch": 1, "length": 32, "dim": 16},),
}
LAYERS: dict[Size, dict[str, int]] = {
    "gpu": {"batch": 4, "length": 4096, "dim": 768},
    "cpu": {"batch": 1, "length": 512, "dim": 128},
    "tiny": {"batch": 1, "length": 32, "dim": 64},
}
LONG: dict[Size, dict[str, int]] = {
    "gpu": {"batch": 1, "length": 32768, "dim": 768},
    "cpu": {"batch": 1, "length": 2048, "dim": 128},
    "tiny": {"batch": 1, "length": 64, "dim": 64},
}


def rows(bench: Bench) -> Iterator[Row]:
    for size in LOOPS[bench.size]:
        for kind, (scan, loop, values) in inputs(**size).items():
            yield from against_loop(bench, {"kind": kind, **size}, scan, loop, values)
    yield from against_transformers(bench, LAYERS[bench.size])
    yield from against_attention(bench, LONG[bench.size])


def inputs(batch: int, length: int, dim: int) -> dict[str, tuple[Scan, Scan, list[Tensor]]]:
    """Kind -> its scan, its loop and what both read, in the sizes that a layer of this width has."""
    b, t, d, n, c = batch, length, 2 * dim, 16, 64
    heads, step, a = max(1, d // c), 0.1 * torch.rand(b, t, d), -torch.rand(n, d)
    key, keys = torch.rand(4, b, t, 1, c), torch.rand(4, b, t, max(1, dim // c), c)
    value, decay = torch.rand(b, t, heads, c), -0.1 * torch.rand(b, t, heads)
    poles = [-torch.rand(dim, n), 3 * torch.rand(dim, n), torch.rand(dim, n, 2), 0.1 * torch.rand(dim)]
    chosen = [torch.rand(b, t, d), step, a, torch.rand(b, t, n), torch.rand(b, t, n)]
    found: dict[str, tuple[Scan, Scan, list[Tensor]]] = {
        "mamba": (selective_scan, selective_scan_loop, chosen),
        "mamba2": (outer_scan, outer_scan_loop, [key[0], key[1], value, decay]),
        "gated_linear": (outer_scan, outer_scan_loop, [keys[0], keys[1], keys[2], -0.1 * keys[3]]),
        "s4d": (partial(_s4d, state_space_scan), partial(_s4d, state_space_loop), [*poles, torch.rand(b, t, dim)]),
    }
    for _, _, values in found.values():
        values[:] = [value.clone().requires_grad_() for value in values]
    return found


def _s4d(scan: Scan, *values: Tensor) -> tuple[Tensor, object]:
    return scan(modes(*values[:4], "zoh"), values[4])


def against_loop(
    bench: Bench, shape: dict[str, int | str], scan: Scan, loop: Scan, values: list[Tensor]
) -> Iterator[Row]:
    fixed = [value.detach() for value in values]
    forms: dict[str, Callable[[Scan], Run]] = {
        "forward": lambda form: partial(form, *fixed),
        "training": lambda form: lambda: trained(form(*values)[0], values),
    }
    for what, made in forms.items():
        yield from compare(bench, Case(
            item="scans", shape={"of": what, **shape}, check=lambda: agree([scan(*fixed)[0]], [loop(*fixed)[0]]),
            ours=Contender(made(scan)), peers={"loop over tokens": Contender(made(loop))},
        ))  # fmt: skip


def against_transformers(bench: Bench, size: dict[str, int]) -> Iterator[Row]:
    """One layer each, with the same weights."""
    for kind, (ours, theirs) in mixers(size["dim"], bench.device).items():
        short = torch.randn(2, 48, size["dim"], device=bench.device)
        with torch.no_grad():
            same = agree([ours(short, Frame()).y], [theirs(short)])
        x, mine, other = lowered(bench, size, ours, theirs)
        yield from compare(bench, Case(
            item="scans", shape={"kind": kind, **size}, check=lambda same=same: same,
            ours=Contender(partial(layer, mine, x)),
            peers={"transformers": Contender(lambda x=x, it=other: trained(it(x), [x, *it.parameters()]))},
        ))  # fmt: skip


def against_attention(bench: Bench, size: dict[str, int], backend: str | None = None) -> Iterator[Row]:
    """Another function at the same work: there is nothing to compare but time."""
    specs = Mamba2(), Attention(heads=size["dim"] // 64)
    x, *parts = lowered(bench, size, *(placed(spec, size["dim"], bench.device) for spec in specs))
    mamba, attention = (torch.compile(part, backend=backend) if backend else part for part in parts)
    shape = {"kind": "mamba2, compiled" if backend else "mamba2", **size}
    yield from compare(bench, Case(
        item="scans", shape=shape, ours=Contender(partial(layer, mamba, x)),
        peers={"causal attention": Contender(partial(layer, attention, x))},
    ))  # fmt: skip


def compiled(bench: Bench) -> Iterator[Row]:
    """The long row once more, through the compiler."""
    yield from against_attention(bench, LONG[bench.size], "eager" if bench.size == "tiny" else "inductor")


def lowered(bench: Bench, size: dict[str, int], *modules: Any) -> tuple[Any, ...]:
    """An input and the modules, in bf16 on a GPU."""
    dtype = torch.bfloat16 if bench.device.type == "cuda" else torch.float32
    return torch.randn(*size.values(), device=bench.device, dtype=dtype, requires_grad=True), *(
        module.to(dtype) for module in modules
    )


def layer(part: Part, x: Tensor) -> object:
    return trained(part(x, Frame()).y, [x, *part.parameters()])


def trained(y: Tensor, values: list[Tensor]) -> object:
    return torch.autograd.grad(y.sum(), values)


def placed(spec: PartSpec, dim: int, device: torch.device) -> Part:
    part = spec.build(Site(dim=dim))
    initialise(part, NormalInit(), seed=0)
    return part.to(device)


def mixers(dim: int, device: torch.device) -> dict[str, tuple[Part, Any]]:
    """Ours and transformers' with the same weights."""
    family = importlib.import_module("transformers.models")
    pairs: dict[str, tuple[Part, Any]] = {}
    for name, spec, options in (
        ("Mamba", Mamba(), {"state_size": 16}),
        ("Mamba2", Mamba2(), {"state_size": 128, "num_heads": 2 * dim // 64, "head_dim": 64, "n_groups": 1}),
    ):
        module = getattr(getattr(family, name.lower()), f"modeling_{name.lower()}")
        config = getattr(importlib.import_module("transformers"), f"{name}Config")(hidden_size=dim, **options)
        theirs, ours = getattr(module, f"{name}Mixer")(config, layer_idx=0).to(device), placed(spec, dim, device)
        copy(theirs, ours)
        pairs[name.lower()] = ours, theirs
    return pairs


NAMES = {
    "in_proj.weight": "enter.weight", "conv1d.weight": "conv", "conv1d.bias": "conv_bias", "A_log": "log_a",
    "x_proj.weight": "select.weight", "dt_proj.weight": "step", "dt_proj.bias": "step_bias", "dt_bias": "step_bias",
    "D": "skip", "norm.weight": "gain", "out_proj.weight": "out.weight",
}  # fmt: skip


@torch.no_grad()
def copy(theirs: nn.Module, ours: Part) -> None:
    """Ours -> theirs, whose own start may be left to their models."""
    for name, parameter in theirs.named_parameters():
        parameter.copy_(ours.get_parameter(NAMES[name]).view_as(parameter))


if __name__ == "__main__":
    single(__doc__, rows)
