"""Scans against the loops that define them, and state spaces against their peers.

`python -m benchmarks.scans`: on the CPU, one thread, each scan against its loop over tokens, forward alone and forward
and backward. `python -m benchmarks.scans --device cuda`: Mamba and Mamba-2 against Hugging Face's pure-torch mixers
with the same weights, and Mamba-2 against causal attention of the same width over a long row; forward and backward of
one layer in bfloat16. What is compared takes turns, each round once, and the best time of each counts. Printed:
milliseconds and ratios.
"""

import argparse
import importlib
import json
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from anyformer.core import Frame, Part, PartSpec, Site, initialise
from anyformer.ops.modes import modes
from anyformer.ops.outer_scan import outer_scan, outer_scan_loop
from anyformer.ops.selective_scan import selective_scan, selective_scan_loop
from anyformer.ops.state_space import state_space_loop, state_space_scan
from anyformer.parts.inits.normal import Normal
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.mixers.mamba import Mamba
from anyformer.parts.mixers.mamba2 import Mamba2

Run = Callable[[], object]
Scan = Callable[..., tuple[Tensor, object]]


def best_ms(runs: dict[str, Run], rounds: int, clock: Callable[[], float]) -> dict[str, float]:
    """Name -> the best time of all rounds but the first, in milliseconds."""
    best = dict.fromkeys(runs, float("inf"))
    for at in range(rounds + 1):
        for name, run in runs.items():
            start = clock()
            run()
            best[name] = min(best[name], 1000 * (clock() - start)) if at else best[name]
    return {name: round(value, 2) for name, value in best.items()}


def synchronised() -> float:
    torch.cuda.synchronize()
    return time.perf_counter()


def small(*shape: int) -> Tensor:
    return torch.rand(shape)


def inputs(batch: int, length: int, dim: int) -> dict[str, tuple[Scan, Scan, list[Tensor]]]:
    """Kind -> its scan, its loop and what both read, in the sizes that a layer of this width has."""
    b, t, d, n, c = batch, length, 2 * dim, 16, 64
    heads = max(1, d // c)
    key, key2 = (b, t, 1, c), (b, t, max(1, dim // c), c)
    decay = -0.1 * small(b, t, heads)

    def scanned(*values: Tensor) -> tuple[Tensor, object]:
        return state_space_scan(modes(*values[:4], "zoh"), values[4])

    def looped(*values: Tensor) -> tuple[Tensor, object]:
        return state_space_loop(modes(*values[:4], "zoh"), values[4])

    step, a = 0.1 * small(b, t, d), -small(n, d)
    found: dict[str, tuple[Scan, Scan, list[Tensor]]] = {
        "mamba": (selective_scan, selective_scan_loop, [small(b, t, d), step, a, small(b, t, n), small(b, t, n)]),
        "mamba2": (outer_scan, outer_scan_loop, [small(*key), small(*key), small(b, t, heads, c), decay]),
        "gated_linear": (outer_scan, outer_scan_loop, [small(*key2), small(*key2), small(*key2), -0.1 * small(*key2)]),
        "s4d": (
            scanned,
            looped,
            [-small(dim, n), 3 * small(dim, n), small(dim, n, 2), 0.1 * small(dim), small(b, t, dim)],
        ),
    }
    for _, _, values in found.values():
        for value in values:
            value.requires_grad_()
    return found


def scans(batch: int, length: int, dim: int, rounds: int) -> dict[str, object]:
    """Chunks against the loop."""
    found: dict[str, object] = {"batch": batch, "length": length, "dim": dim}
    for kind, (scan, loop, values) in inputs(batch, length, dim).items():
        torch.testing.assert_close(scan(*values)[0], loop(*values)[0], atol=1e-3, rtol=1e-3)
        fixed = [value.detach() for value in values]
        runs: dict[str, Run] = {}
        for name, form in (("chunked", scan), ("loop", loop)):
            runs[name] = lambda form=form, fixed=fixed: form(*fixed)
            runs[f"{name}_training"] = lambda form=form, values=values: trained(form(*values)[0], values)
        ms = best_ms(runs, rounds, time.process_time)
        ratios = {what: round(ms[f"loop{key}"] / ms[f"chunked{key}"], 1) for what, key in _FORMS.items()}
        found[kind] = {"ms": ms, **ratios}
    return found


_FORMS = {"forward": "", "training": "_training"}


def trained(y: Tensor, values: list[Tensor]) -> object:
    return torch.autograd.grad(y.sum(), values)


def placed(spec: PartSpec, dim: int) -> Part:
    part = spec.build(Site(dim=dim))
    initialise(part, Normal(), seed=0)
    return part.cuda()


def peers(dim: int) -> dict[str, tuple[Part, Any]]:
    """Ours and Hugging Face's with the same weights."""
    family = importlib.import_module("transformers.models")
    pairs: dict[str, tuple[Part, Any]] = {}
    for name, spec, options in (
        ("Mamba", Mamba(), {"state_size": 16}),
        ("Mamba2", Mamba2(), {"state_size": 128, "num_heads": 2 * dim // 64, "head_dim": 64, "n_groups": 1}),
    ):
        module = getattr(getattr(family, name.lower()), f"modeling_{name.lower()}")
        config = getattr(importlib.import_module("transformers"), f"{name}Config")(hidden_size=dim, **options)
        theirs, ours = getattr(module, f"{name}Mixer")(config, layer_idx=0).cuda(), placed(spec, dim)
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


def on_cuda(options: argparse.Namespace) -> dict[str, object]:
    found: dict[str, object] = {"gpu": torch.cuda.get_device_name()}
    for kind, (ours, theirs) in peers(options.width).items():
        x = torch.randn(2, 300, options.width, device="cuda")
        torch.testing.assert_close(ours(x, Frame()).y, theirs(x), atol=1e-2, rtol=1e-2)
        x = torch.randn(options.batch, 4096, options.width, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        mine, other = ours.bfloat16(), theirs.bfloat16()
        runs = {
            "ours": lambda mine=mine, x=x: trained(mine(x, Frame()).y, [x, *mine.parameters()]),
            "hugging_face": lambda other=other, x=x: trained(other(x), [x, *other.parameters()]),
        }
        ms = best_ms(runs, options.rounds, synchronised)
        found[kind] = {"ms": ms, "speed": round(ms["hugging_face"] / ms["ours"], 2)}
    found["long"] = against_attention(options)
    return found


def against_attention(options: argparse.Namespace) -> dict[str, object]:
    """Mamba-2 and attention, each one layer over a row of 32768 tokens."""
    parts = {
        "mamba2": placed(Mamba2(), options.width),
        "attention": placed(Attention(heads=options.width // 64), options.width),
    }
    x = torch.randn(1, 32_768, options.width, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    runs: dict[str, Run] = {}
    for name, part in parts.items():
        part = part.bfloat16()
        call: Any = torch.compile(part) if options.compile else part
        runs[name] = lambda part=part, call=call: trained(call(x, Frame()).y, [x, *part.parameters()])
    ms = best_ms(runs, options.rounds, synchronised)
    return {"ms": ms, "speed": round(ms["attention"] / ms["mamba2"], 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--length", type=int, default=1024, help="tokens, on the CPU")
    parser.add_argument("--width", type=int, default=768, help="of the stream, on the GPU")
    parser.add_argument("--batch", type=int, default=4, help="rows, on the GPU")
    parser.add_argument("--compile", action="store_true", help="long rows through torch.compile, as in a run on a GPU")
    parser.add_argument("--rounds", type=int, default=3, help="the best of so many counts")
    options = parser.parse_args()
    torch.manual_seed(0)
    found: dict[str, object] = {**vars(options), "torch": torch.__version__}
    if options.device == "cuda":
        found |= on_cuda(options)
    else:
        torch.set_num_threads(1)
        found["scans"] = [scans(b, options.length, d, options.rounds) for b, d in ((1, 64), (1, 256))]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
