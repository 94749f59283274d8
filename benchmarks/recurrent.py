"""Recurrence on the CPU, one thread: `python -m benchmarks.recurrent`.

Our recurrent parts against torch's modules, forward and backward: whole rows, rows with padding, and packed documents,
which torch's modules can only read one by one or as a PackedSequence. The chunked scan against the step loop. What is
compared takes turns, each round once, and the best CPU time of each counts. Printed: milliseconds and ratios.
"""

import argparse
import json
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from anyformer.core import Frame, Part, PartSpec, Site, decode
from anyformer.ops.scan import linear_scan, linear_scan_loop

Run = Callable[[], object]
PEERS: dict[str, type[nn.RNNBase]] = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}


def best_ms(runs: dict[str, Run], rounds: int) -> dict[str, float]:
    """Name -> the best CPU time of all rounds, in milliseconds."""
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds + 1):
        for name, run in runs.items():
            start = time.process_time()
            run()
            best[name] = min(best[name], 1000 * (time.process_time() - start))
    return {name: round(value, 2) for name, value in best.items()}


def pair(kind: str, dim: int) -> tuple[Part, nn.RNNBase]:
    """Ours and torch's with the same weights."""
    ours, peer = decode(PartSpec, {"kind": kind}).build(Site(dim=dim)), PEERS[kind](dim, dim, batch_first=True)
    theirs = dict(peer.named_parameters())
    if kind == "rnn":
        theirs["bias_ih_l0"] = nn.Parameter(theirs["bias_ih_l0"] + theirs.pop("bias_hh_l0"))
    with torch.no_grad():
        for mine, other in zip(ours.parameters(), theirs.values(), strict=True):
            mine.copy_(other)
    return ours, peer


def trained(parameters: list[Tensor], run: Callable[[], Tensor]) -> Run:
    return lambda: torch.autograd.grad(run().sum(), parameters)


def kernels(kind: str, batch: int, length: int, dim: int, rounds: int) -> dict[str, object]:
    """Rows without gaps, rows padded to a random length, and rows of documents of about 40 tokens."""
    ours, peer = pair(kind, dim)
    x = torch.randn(batch, length, dim, requires_grad=True)
    lengths = torch.randint(length // 8, length + 1, (batch,))
    valid = torch.arange(length) < lengths[:, None]
    segments = (torch.rand(batch, length) < 1 / 40).cumsum(1)
    begins = torch.cat((torch.ones(batch, 1, dtype=torch.bool), segments[:, 1:] != segments[:, :-1]), dim=1)
    places = torch.arange(length).expand(batch, -1)
    packed = Frame(segments=segments, positions=places - places.where(begins, 0).cummax(1).values)

    def torch_padded() -> Tensor:
        rows = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        y: Tensor = pad_packed_sequence(peer(rows)[0], batch_first=True)[0]
        return y

    torch.testing.assert_close(ours(x, Frame()).y, peer(x)[0], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(ours(x, Frame(valid=valid)).y[:, : lengths.max()], torch_padded(), atol=1e-5, rtol=1e-4)
    mine, theirs = [x, *ours.parameters()], [x, *peer.parameters()]
    runs = {
        "ours": trained(mine, lambda: ours(x, Frame()).y),
        "torch": trained(theirs, lambda: peer(x)[0]),
        "ours_padded": trained(mine, lambda: ours(x, Frame(valid=valid)).y),
        "torch_padded": trained(theirs, torch_padded),
        "ours_packed": trained(mine, lambda: ours(x, packed).y),
    }
    ms = best_ms(runs, rounds)
    speed = {"speed": round(ms["torch"] / ms["ours"], 3), "padded": round(ms["torch_padded"] / ms["ours_padded"], 3)}
    return {"ms": ms, **speed, "packed_over_whole": round(ms["ours_packed"] / ms["ours"], 2)}


def scans(batch: int, length: int, dim: int, rounds: int) -> dict[str, object]:
    """Chunks against the loop: forward alone, and forward and backward."""
    given = [torch.rand(batch, length, dim), torch.randn(batch, length, dim), torch.randn(batch, dim)]
    given = [x.requires_grad_() for x in given]
    torch.testing.assert_close(linear_scan(*given), linear_scan_loop(*given), atol=1e-5, rtol=1e-4)
    no_grad = [x.detach() for x in given]
    runs: dict[str, Run] = {
        "chunked": lambda: linear_scan(*no_grad),
        "loop": lambda: linear_scan_loop(*no_grad),
        "chunked_training": trained(given, lambda: linear_scan(*given)),
        "loop_training": trained(given, lambda: linear_scan_loop(*given)),
    }
    ms = best_ms(runs, rounds)
    times = {what: round(ms[f"loop{what}"] / ms[f"chunked{what}"], 2) for what in ("", "_training")}
    return {"batch": batch, "dim": dim, "ms": ms, "forward": times[""], "training": times["_training"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--scan-length", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5, help="the best of so many counts")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    found: dict[str, object] = {**vars(options), "torch": torch.__version__}
    for kind in PEERS:
        found[kind] = kernels(kind, options.batch, options.length, options.dim, options.rounds)
    found["scan"] = [
        scans(b, options.scan_length, d, options.rounds) for b, d in ((1, 64), (1, 256), (4, 256), (8, 512))
    ]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
