"""Questions that had to be answered before the house was built on them: `python -m benchmarks.spikes [NAME ...]`.

Each spike prints one JSON line. Those that need a GPU say so where there is none.
"""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from anyformer.core import Causal, Frame, Marks, Model, ModelSpec, State, capture, decode
from anyformer.ops.attention.attend import dispatch
from anyformer.ops.attention.call import AttentionCall
from anyformer.ops.attention.flex import attend_flex, block_mask
from anyformer.parts.masks.window import Window

GPU = torch.cuda.is_available()


def gpt2(depth: int = 12, dim: int = 768, share: str | None = None) -> ModelSpec:
    """A GPT-2-shaped decoder."""
    layer: dict[str, Any] = {
        "branches": [
            {"part": {"kind": "attention", "heads": dim // 64, "bias": True}, "norm": {"kind": "layer"}},
            {"part": {"kind": "mlp", "activation": "gelu_tanh", "bias": True}, "norm": {"kind": "layer"}},
        ]
    }
    return decode(
        ModelSpec,
        {
            "kind": "decoder",
            "vocab": 50304,
            "dim": dim,
            "max_len": 1024,
            "position": {"kind": "learned"},
            "exit_norm": {"kind": "layer"},
            "stack": {"depth": depth, "blocks": {"layer": layer | ({"share": share} if share else {})}},
        },
    )


def seconds(run: Callable[[], Any], rounds: int = 20) -> float:
    """Median wall time of a call, after three to warm up."""
    for _ in range(3):
        run()
    times = []
    for _ in range(rounds):
        _wait()
        start = time.perf_counter()
        run()
        _wait()
        times.append(time.perf_counter() - start)
    return sorted(times)[rounds // 2]


def decode_graph() -> dict[str, Any]:
    """One decoding step, compiled and captured by hand in a CUDA graph, with the state in static buffers."""
    figures: dict[str, Any] = {}
    with torch.no_grad():
        model = gpt2().build(device="cuda").bfloat16().eval()
        for batch in (1, 64):
            step, first_s = _graph_step(model, batch, 320)
            difference = _forced(batch, 64, step) - _forced(batch, 64, _eager_step(model, batch, 320))
            figures[f"worst_logit_difference_{batch}"] = round(float(difference.abs().max()), 4)
            figures[f"graph_tok_s_{batch}"] = round(batch / seconds(_repeat(step), 200))
            figures[f"eager_tok_s_{batch}"] = round(batch / seconds(_repeat(_eager_step(model, batch, 320)), 20))
            figures[f"capture_s_{batch}"] = round(first_s, 1)
    return figures


def flex_cache() -> dict[str, Any]:
    """Is a block mask worth keeping, and does a compiled model keep it?"""
    rule, length = Window(size=256) & Causal(), 16384
    q, k, v = (
        torch.randn(1, length, 12, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)
    )
    first = _timed(lambda: block_mask(rule.text, q, k))
    again = _timed(lambda: block_mask(rule.text, q, k))
    marks = Marks(torch.arange(length, device="cuda")[None])
    window, causal = AttentionCall(rule, marks, marks, plain=True), AttentionCall(Causal(), marks, marks, plain=True)
    return {
        "build_s": round(first, 4),
        "cached_s": round(again, 6),
        "window_ms": round(1e3 * seconds(lambda: attend_flex(q, k, v, window, 0.125, None).sum().backward()), 3),
        "causal_ms": round(1e3 * seconds(lambda: dispatch(q, k, v, causal, scale=0.125).sum().backward()), 3),
    }


def flex_in_compile() -> dict[str, Any]:
    """Does a model with a sparse rule compile to one graph, and how much does its step gain?"""
    spec = gpt2(depth=2).with_("stack.blocks.layer.branches.0.part.mask", {"kind": "window", "size": 2, "block": 128})
    spec = spec.with_("max_len", 8192)
    model = spec.build(device="cuda").bfloat16()
    tokens = torch.zeros(1, 8192, dtype=torch.long, device="cuda")
    compiled = torch.compile(model, fullgraph=True)
    first = _timed(lambda: compiled(tokens, Frame(), logits=False).y.sum().backward())
    step = seconds(lambda: compiled(tokens, Frame(), logits=False).y.sum().backward(), 10)
    eager = seconds(lambda: model(tokens, Frame(), logits=False).y.sum().backward(), 10)
    return {"compile_s": round(first, 1), "step_ms": round(1e3 * step, 2), "eager_ms": round(1e3 * eager, 2)}


def hopper_order() -> dict[str, Any]:
    """cuDNN first against torch's own order, causal attention forward and backward."""
    q, k, v = (torch.randn(64, 12, 1024, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    figures = {}
    for name, order in {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}.items():
        with sdpa_kernel([order]):
            run = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()  # noqa: E731
            figures[f"{name}_ms"] = round(1e3 * seconds(run), 3)
    ours = [x.detach().transpose(1, 2).contiguous().requires_grad_() for x in (q, k, v)]
    marks = Marks(torch.arange(1024, device="cuda")[None])
    sight = AttentionCall(Causal(), marks, marks, plain=True)
    figures["attend_ms"] = round(1e3 * seconds(lambda: dispatch(*ours, sight, scale=0.125).sum().backward()), 3)
    return figures


def recompute_under_compile() -> dict[str, Any]:
    """Activation checkpointing around a block, compiled to one graph, gives the same gradients."""
    device = "cuda" if GPU else "cpu"
    model = gpt2(depth=2, dim=128).build(device=device)
    tokens = torch.arange(64, device=device)[None]
    model(tokens, Frame(), logits=False).y.square().mean().backward()
    expected = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    for block in model.get_submodule("stack.layers").children():
        plain = block.forward
        block.forward = lambda *args, plain=plain: checkpoint(plain, *args, use_reentrant=False)  # type: ignore[method-assign]
    run = torch.compile(model, fullgraph=True, backend="inductor" if GPU else "aot_eager")
    run(tokens, Frame(), logits=False).y.square().mean().backward()
    got = [p.grad for p in model.parameters() if p.grad is not None]
    worst = max(float((mine - theirs).abs().max()) for mine, theirs in zip(got, expected, strict=True))
    return {"worst_gradient_difference": worst}


def capture_shared() -> dict[str, Any]:
    """A tap of a shared block gives one tensor for each call."""
    model = gpt2(depth=4, dim=128, share="all").build()
    with capture(model, "*.pattern") as seen:
        model(torch.zeros(1, 8, dtype=torch.long), Frame())
    return {name: len(values) for name, values in seen.items()}


def scan_compile_time() -> dict[str, Any]:
    """What a log-depth scan costs to compile, against its length."""
    device = "cuda" if GPU else "cpu"
    figures = {}
    for length in (64, 256, 1024):
        torch._dynamo.reset()
        a, b = (torch.rand(2, length, 64, device=device, requires_grad=True) for _ in range(2))
        run = torch.compile(_scan, fullgraph=True)
        figures[f"compile_s_{length}"] = round(_timed(lambda run=run, a=a, b=b: run(a, b).sum().backward()), 1)
        figures[f"step_ms_{length}"] = round(1e3 * seconds(lambda run=run, a=a, b=b: run(a, b).sum().backward(), 5), 2)
    return figures


def _scan(a: Tensor, b: Tensor) -> Tensor:
    """h_t = a_t h_{t-1} + b_t, by doubling."""
    step = 1
    while step < a.shape[1]:
        b = b + a * F.pad(b[:, :-step], (0, 0, step, 0))
        a = a * F.pad(a[:, :-step], (0, 0, step, 0), value=1.0)
        step *= 2
    return b


def _eager_step(model: Model, batch: int, max_len: int) -> Callable[[Tensor | None], Tensor]:
    holder: dict[str, State] = {"state": model.init_state(batch, max_len), "at": 0}

    def step(tokens: Tensor | None) -> Tensor:
        tokens = torch.zeros(batch, 1, dtype=torch.long, device="cuda") if tokens is None else tokens
        out = model(tokens, Frame(positions=torch.full_like(tokens, holder["at"])), holder["state"])
        holder["state"], holder["at"] = out.state, min(holder["at"] + 1, max_len - 1)
        return out.y[:, -1]

    return step


def _graph_step(model: Model, batch: int, max_len: int) -> tuple[Callable[[Tensor | None], Tensor], float]:
    state = model.init_state(batch, max_len)
    tokens = torch.zeros(batch, 1, dtype=torch.long, device="cuda")
    positions = torch.zeros_like(tokens)
    torch._dynamo.reset()  # a second batch size would be compiled with symbolic shapes
    compiled = torch.compile(model, fullgraph=True, dynamic=False)

    def body() -> Tensor:
        out = compiled(tokens, Frame(positions=positions), state)
        for old, new in zip(tree_leaves(state), tree_leaves(out.state), strict=True):
            if old is not new:
                old.copy_(new)  # static addresses: what was not written in place is copied back
        positions.add_(1).clamp_(max=max_len - 1)
        tokens.copy_(out.y[:, -1].argmax(-1, keepdim=True))
        return out.y[:, -1]

    start = time.perf_counter()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            body()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = body()
    static = (*tree_leaves(state), positions)  # must outlive the graph, which knows only their addresses
    for buffer in static:
        buffer.zero_()

    def step(given: Tensor | None, _kept: tuple[Tensor, ...] = static) -> Tensor:
        if given is not None:
            tokens.copy_(given)
        graph.replay()
        return result

    return step, time.perf_counter() - start


def _forced(batch: int, steps: int, step: Callable[[Tensor | None], Tensor]) -> Tensor:
    """The logits of every step, with the same words put in."""
    words = torch.randint(0, 50000, (steps, batch, 1), generator=torch.Generator().manual_seed(0)).cuda()
    return torch.stack([step(word).float().clone() for word in words])


def _repeat(step: Callable[[Tensor | None], Tensor]) -> Callable[[], Tensor]:
    return lambda: step(None)


def _timed(run: Callable[[], Any]) -> float:
    _wait()
    start = time.perf_counter()
    run()
    _wait()
    return time.perf_counter() - start


def _wait() -> None:
    if GPU:
        torch.cuda.synchronize()


ANYWHERE = (recompute_under_compile, capture_shared, scan_compile_time)
ON_GPU = (decode_graph, flex_cache, flex_in_compile, hopper_order)


def main(names: list[str]) -> None:
    """Runs the named spikes, or all that this machine can."""
    for spike in (*ANYWHERE, *ON_GPU):
        if names and spike.__name__ not in names:
            continue
        figures = spike() if GPU or spike in ANYWHERE else {"skipped": "needs a GPU"}
        print(json.dumps({"spike": spike.__name__, "torch": torch.__version__, **figures}), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = [spike.__name__ for spike in (*ANYWHERE, *ON_GPU)]
    parser.add_argument("names", nargs="*", help=f"some of {', '.join(known)}; default: all")
    chosen = parser.parse_args().names
    if unknown := set(chosen) - set(known):
        parser.error(f"no spike is called {', '.join(sorted(unknown))}. Known: {', '.join(known)}.")
    main(chosen)
