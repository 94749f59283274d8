"""What a token costs far into a text: decoding one by one, early and late, for every mixer that keeps a fixed state.

`python -m benchmarks.flat_decoding`: one layer of each kind, one row, one thread. Windows of steps at growing distances
take turns with each other, each kind from a state that has read so many tokens, and the best time of each counts.
Printed: microseconds of CPU time for a step at each distance, and the slope: how much a step grows, relative to itself,
over the whole distance. Attention stands last, as what is not flat.
"""

import argparse
import json
import time

import torch

from anyformer.core import Frame, Part, PartSpec, Site, State, decode, initialise
from anyformer.parts.inits.normal import NormalInit

KINDS = ("rnn", "lstm", "gru", "min_gru", "linear_attention", "gated_linear", "s4d", "s4", "mamba", "mamba2",
         "conv", "lightweight_conv", "dynamic_conv", "attention")  # fmt: skip
DISTANCES = (64, 1024, 8192)
STEPS, ROUNDS = 32, 8


def built(kind: str, dim: int) -> Part:
    part = decode(PartSpec, {"kind": kind}).build(Site(dim=dim, max_len=2 * DISTANCES[-1]))
    initialise(part, NormalInit(), seed=0)
    return part.eval()


@torch.no_grad()
def after(part: Part, distance: int, dim: int) -> State:
    """The state behind so many tokens; with room for as many as were read, as an engine would give it."""
    state = part.init_state(1, distance + STEPS * (ROUNDS + 1))
    positions = torch.arange(distance)[None]
    return part(torch.randn(1, distance, dim), Frame(positions=positions), state).state


@torch.no_grad()
def steps_us(part: Part, state: State, at: int, dim: int) -> tuple[float, State]:
    """CPU time of one step, as a mean over some, and the state behind them."""
    x, places = torch.randn(STEPS, 1, 1, dim), torch.arange(at, at + STEPS).view(-1, 1, 1)
    start = time.process_time()
    for token, place in zip(x, places, strict=True):
        state = part(token, Frame(positions=place), state).state
    return 1e6 * (time.process_time() - start) / STEPS, state


def measure(kind: str, dim: int) -> dict[str, float | str]:
    part = built(kind, dim)
    states = {distance: after(part, distance, dim) for distance in DISTANCES}
    best = dict.fromkeys(DISTANCES, float("inf"))
    for turn in range(ROUNDS + 1):
        for distance in DISTANCES:
            spent, states[distance] = steps_us(part, states[distance], distance + turn * STEPS, dim)
            best[distance] = min(best[distance], spent) if turn else best[distance]
    first, last = best[DISTANCES[0]], best[DISTANCES[-1]]
    return {
        "kind": kind,
        **{f"us_at_{it}": round(best[it], 1) for it in DISTANCES},
        "slope": round(last / first - 1, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dim", type=int, default=256)
    dim = parser.parse_args().dim
    torch.set_num_threads(1)
    for kind in KINDS:
        print(json.dumps(measure(kind, dim)), flush=True)


if __name__ == "__main__":
    main()
