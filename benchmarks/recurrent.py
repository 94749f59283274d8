"""Recurrent parts against torch's modules with the same weights, forward and backward: `python -m benchmarks.recurrent`

Whole rows, and rows with padding, which torch's modules read as a PackedSequence. On a GPU those are cuDNN's kernels.
The diagonal scan against its loop over tokens.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from anyformer.core import Frame, Part, PartSpec, Site, decode
from anyformer.ops.recurrence.linear_scan import linear_scan, linear_scan_loop
from benchmarks.agreement import agree
from benchmarks.clock import Run
from benchmarks.harness import Bench, Case, Contender, Size, compare
from benchmarks.rows import Row
from benchmarks.runner import single

SIZES: dict[Size, dict[str, int]] = {
    "gpu": {"batch": 64, "length": 512, "dim": 1024},
    "cpu": {"batch": 16, "length": 256, "dim": 256},
    "tiny": {"batch": 2, "length": 16, "dim": 16},
}
SCANS: dict[Size, tuple[dict[str, int], ...]] = {
    "gpu": ({"batch": 4, "length": 4096, "dim": 1024},),
    "cpu": ({"batch": 1, "length": 1024, "dim": 64}, {"batch": 4, "length": 1024, "dim": 256}),
    "tiny": ({"batch": 1, "length": 32, "dim": 8},),
}
PEERS: dict[str, type[nn.RNNBase]] = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
GATES = {"rnn": 1, "lstm": 4, "gru": 3}


def rows(bench: Bench) -> Iterator[Row]:
    for kind in PEERS:
        yield from kernels(bench, kind, SIZES[bench.size])
    for size in SCANS[bench.size]:
        yield from scans(bench, size)


def kernels(bench: Bench, kind: str, size: dict[str, int]) -> Iterator[Row]:
    """Rows without gaps, and rows padded to a random length."""
    ours, peer = pair(kind, size["dim"], bench.device)
    x = torch.randn(*size.values(), device=bench.device, requires_grad=True)
    lengths = torch.randint(size["length"] // 8, size["length"] + 1, (size["batch"],))
    valid = (torch.arange(size["length"]) < lengths[:, None]).to(bench.device)

    def packed() -> Tensor:
        row = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        y: Tensor = pad_packed_sequence(peer(row)[0], batch_first=True, total_length=size["length"])[0]
        return y

    forms = {
        "whole": (lambda: ours(x, Frame()).y, lambda: peer(x)[0], int(valid.numel())),
        "padded": (lambda: ours(x, Frame(valid=valid)).y * valid[..., None], packed, int(valid.sum())),
    }
    mine, theirs = [x, *ours.parameters()], [x, *peer.parameters()]
    for name, (run, other, tokens) in forms.items():
        yield from compare(bench, Case(
            item="lstm", shape={"kind": kind, "rows": name, **size}, amount=tokens, unit="token",
            flops=12.0 * GATES[kind] * tokens * size["dim"] ** 2, check=partial(close, run, other),
            ours=Contender(trained(mine, run)), peers={"torch": Contender(trained(theirs, other))},
        ))  # fmt: skip


def scans(bench: Bench, size: dict[str, int]) -> Iterator[Row]:
    """Chunks against the loop."""
    given = [torch.rand(*size.values()), torch.randn(*size.values()), torch.randn(size["batch"], size["dim"])]
    given = [x.to(bench.device).requires_grad_() for x in given]
    chunked, loop = partial(linear_scan, *given), partial(linear_scan_loop, *given)
    yield from compare(bench, Case(
        item="scan", shape={"kind": "diagonal", **size}, check=partial(close, chunked, loop),
        ours=Contender(trained(given, chunked)), peers={"loop over tokens": Contender(trained(given, loop))},
        moved=4.0 * 8 * size["batch"] * size["length"] * size["dim"],
    ))  # fmt: skip


def pair(kind: str, dim: int, device: torch.device) -> tuple[Part, nn.RNNBase]:
    """Ours and torch's with the same weights."""
    ours, peer = decode(PartSpec, {"kind": kind}).build(Site(dim=dim)), PEERS[kind](dim, dim, batch_first=True)
    theirs = dict(peer.named_parameters())
    if kind == "rnn":
        theirs["bias_ih_l0"] = nn.Parameter(theirs["bias_ih_l0"] + theirs.pop("bias_hh_l0"))
    with torch.no_grad():
        for mine, other in zip(ours.parameters(), theirs.values(), strict=True):
            mine.copy_(other)
    return ours.to(device), peer.to(device)


def trained(parameters: list[Tensor], run: Callable[[], Tensor]) -> Run:
    return lambda: torch.autograd.grad(run().sum(), parameters)


@torch.no_grad()
def close(ours: Callable[[], Tensor], theirs: Callable[[], Tensor]) -> bool:
    return agree([ours()], [theirs()])


if __name__ == "__main__":
    single(__doc__, rows)
