"""Items one after the other, each in a process of its own: what crashes or hangs takes nothing else with it."""

import argparse
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from benchmarks.harness import Bench
from benchmarks.rows import Row, to_line
from benchmarks.tables import speed

Item = Callable[[Bench], Iterator[Row]]
ITEMS = {
    "roofs": "roofs", "lm": "lm", "mlm": "mlm", "seq2seq": "seq2seq", "decode": "writing:decode",
    "beam": "writing:beam", "encode": "encode", "window": "blocked_attention", "loss": "loss", "muon": "optimizers",
    "lstm": "recurrent", "scans": "scans", "compiled_scans": "scans:compiled", "tokenise": "tokenise",
    "growth": "growth", "profile": "profiles:training", "decoding_profile": "profiles:decoding",
}  # fmt: skip
"""Name -> file, and the function in it where that is not `rows`."""
FORK = multiprocessing.get_context("fork")
"""torch is imported once, items by their child: a library that looks for the GPU in the parent takes it from all."""
WORD = {True: "", False: "  NOT OK"}


def item_of(name: str) -> Item:
    file, _, function = ITEMS[name].partition(":")
    found: Item = getattr(import_module(f"benchmarks.{file}"), function or "rows")
    return found


def run(names: Sequence[str], bench: Bench, budget_s: float) -> Iterator[Row]:
    """Rows as they come. What does not fit into the budget says so."""
    end = time.monotonic() + budget_s
    for name in names:
        if time.monotonic() >= end:
            yield _missing(name, bench, "not begun: the budget was spent")
        else:
            yield from _apart(name, bench, end)


def _apart(name: str, bench: Bench, end: float) -> Iterator[Row]:
    ours, theirs = FORK.Pipe(duplex=False)
    child = FORK.Process(target=_work, args=(name, bench, theirs))
    child.start()
    theirs.close()
    try:
        while ours.poll(max(0.0, end - time.monotonic())):
            yield ours.recv()
        yield _missing(name, bench, "did not finish within the budget")
    except EOFError:
        child.join()
        if child.exitcode:
            yield _missing(name, bench, f"ended with exit code {child.exitcode}")
    finally:
        child.kill()
        child.join()


def _work(name: str, bench: Bench, rows: Connection) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for row in item_of(name)(bench):
        rows.send(row)
    rows.close()


def _missing(name: str, bench: Bench, why: str) -> Row:
    return Row(item=name, shape={}, device=bench.name, ok=False, note=why)


def main(description: str, bench: Bench, usual: Sequence[str], budget_s: float) -> None:
    """The command line of both runners."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", default=",".join(usual), help=f"of {', '.join(ITEMS)}")
    parser.add_argument("--budget-s", type=float, default=budget_s, help="seconds in all")
    parser.add_argument("--rounds", type=int, default=bench.rounds)
    parser.add_argument("--data", type=Path, help="folder with speeches, descriptions and en-de; else stand-ins")
    parser.add_argument("--cache", type=Path, help="folder that keeps prepared texts between items and runs")
    parser.add_argument("--tiny", action="store_true", help="a trial run on the CPU, whose figures mean nothing")
    parser.add_argument("--out", type=Path, required=True, help="rows are added to this .jsonl")
    options = parser.parse_args()
    names = options.items.split(",")
    if unknown := [name for name in names if name not in ITEMS]:
        parser.error(f"no item is called {', '.join(unknown)}; there are {', '.join(ITEMS)}")
    bench = replace(bench, rounds=options.rounds, data=options.data, cache=options.cache)
    bench = replace(bench, device=torch.device("cpu"), size="tiny") if options.tiny else bench
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("a") as file:
        for row in run(names, bench, options.budget_s):
            print(told(row), flush=True)
            file.write(f"{to_line(row)}\n")
            file.flush()


def single(description: str | None, item: Item) -> None:
    """The command line of one item: its rows, in this process."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--tiny", action="store_true", help="a trial run")
    options = parser.parse_args()
    size = "tiny" if options.tiny else "gpu" if options.device == "cuda" else "cpu"
    torch.set_num_threads(1)
    torch.manual_seed(0)
    bench = Bench(torch.device(options.device), size, options.rounds, options.data, cache=options.cache)
    for row in item(bench):
        print(to_line(row), flush=True)


def told(row: Row) -> str:
    """A row for the eye."""
    shape = " ".join(f"{name}={value}" for name, value in row.shape.items())
    figures = speed(row, row.ours_ms)
    figures += "" if row.ratio is None else f", {row.ratio:.2f}x {row.peer}"
    figures += "" if row.eff is None else f", {row.eff:.0%} of the roofline"
    noise = " (noisy)" if row.noisy else ""
    return f"{row.item:9} {shape}: {figures}{noise}{WORD[row.ok]} {row.note}".rstrip()
