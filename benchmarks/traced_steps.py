"""Traced decoding steps against eager ones: `python -m benchmarks.traced_steps [--model small gpt2] [--repeats 11]`.

Greedy decoding of 128 tokens for one row on one thread, prompt of 8 tokens. Both write the same tokens first; then they
take turns in one process. Printed: milliseconds for a token, wall clock and processor time, median with lowest and
highest; and the ratio eager / traced of neighbouring runs.
"""

import argparse
import json
import statistics
import time
import tomllib
from functools import partial

import torch

from anyformer.core import ModelSpec, decode
from anyformer.generation.decoding import eager_step, for_writing
from anyformer.generation.engine import Engine, Request
from anyformer.training.recipes.toml_layers import preset_file

PROMPT, NEW = list(range(1, 9)), 128
CHANGES = {"small": {"vocab": 8192, "dim": 320, "stack.depth": 7}}
"""Ten million parameters in the shape of the preset."""


def spec_of(name: str) -> ModelSpec:
    spec = decode(ModelSpec, tomllib.loads(preset_file(name).read_text())["model"])
    for field, value in CHANGES.get(name, {}).items():
        spec = spec.with_(field, value)
    return spec


def spread(values: list[float]) -> list[float]:
    return [round(each, 3) for each in (statistics.median(values), min(values), max(values))]


def measure(name: str, repeats: int) -> dict[str, object]:
    model = for_writing(spec_of(name).build(seed=0))
    engines = {kind: Engine(model, max_len=len(PROMPT) + NEW) for kind in ("traced", "eager")}
    engines["eager"]._step = partial(eager_step, model)
    runs = {kind: partial(engine.generate, [Request(prompt=PROMPT)], max_new=NEW) for kind, engine in engines.items()}
    assert runs["traced"]() == runs["eager"]() == runs["traced"]()
    times: dict[str, list[tuple[float, float]]] = {kind: [] for kind in runs}
    for turn in range(repeats):
        for kind in sorted(runs, reverse=turn % 2 == 1):
            wall, processor = time.perf_counter(), time.process_time()
            runs[kind]()
            times[kind].append((time.perf_counter() - wall, time.process_time() - processor))
    row: dict[str, object] = {"model": name, "parameters": sum(each.numel() for each in model.parameters())}
    for index, clock in enumerate(("wall", "processor")):
        for kind in runs:
            row[f"{kind}_{clock}_ms"] = spread([1e3 * each[index] / NEW for each in times[kind]])
        pairs = zip(times["eager"], times["traced"], strict=True)
        row[f"ratio_{clock}"] = spread([eager[index] / traced[index] for eager, traced in pairs])
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="*", default=["small", "gpt2"])
    parser.add_argument("--repeats", type=int, default=11)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.model:
        print(json.dumps(measure(name, options.repeats)), flush=True)


if __name__ == "__main__":
    main()
