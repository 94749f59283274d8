"""Writing against Hugging Face's `generate` with the same weights: `python -m benchmarks.decode [--model gpt2]`.

Greedy and beam 4. Both must write the same tokens first; then they take turns, and the best round of each counts, by
the processor's time on one thread.
"""

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import transformers
from tests.equality.copying import copy, gpt2
from tests.generation import peers

from anyformer.generation.beam import Beam, search
from anyformer.generation.engine import Engine, Request
from anyformer.generation.layout import by_columns
from anyformer.models import Block, Branch, Decoder, Stack
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.norms.layer import LayerNorm
from anyformer.parts.positions.learned import Learned

Run = Callable[[], list[list[int]]]
SHAPES = {"gpt2": (50_257, 768, 12, 12), "small": (8_000, 256, 4, 6)}
"""Words, width, heads, layers."""


def twins(name: str) -> tuple[Any, Any]:
    """A random GPT-2 of this shape, ours and theirs."""
    vocab, dim, heads, layers = SHAPES[name]
    config = transformers.GPT2Config(
        vocab_size=vocab, n_embd=dim, n_head=heads, n_layer=layers, bos_token_id=None, eos_token_id=None
    )
    parts = Attention(heads=heads, bias=True), MLP(activation="gelu_tanh", bias=True)
    block = Block(branches=tuple(Branch(part=part, norm=LayerNorm()) for part in parts))
    stack = Stack(blocks={"layer": block}, depth=layers)
    spec = Decoder(vocab=vocab, dim=dim, stack=stack, max_len=1024, position=Learned(), exit_norm=LayerNorm())
    theirs, ours = transformers.GPT2LMHeadModel(config).eval(), spec.build().eval()
    copy(theirs, ours, partial(gpt2, layers=layers))
    return ours, theirs


def translators() -> tuple[Any, Any]:
    """A random Transformer-base with 8,000 words, ours and Marian's."""
    peers.VOCAB, peers.DIM, peers.HEADS, peers.HIDDEN, peers.LAYERS, peers.LENGTH = 8_000, 512, 8, 2048, 6, 160
    return peers.twins(transformers, "marian")


def greedy(ours: Any, theirs: Any, batch: int, length: int, new: int) -> dict[str, Run]:
    rows = torch.randint(6, 1000, (batch, length)).tolist()
    engine, requests = Engine(by_columns(ours), max_len=length + new), [Request(prompt=row) for row in rows]
    return {
        "ours": lambda: [list(row.tokens) for row in engine.generate(requests, max_new=new)],
        "theirs": lambda: peers.written(theirs, rows, new),
    }


def beams(ours: Any, theirs: Any, batch: int, length: int, new: int) -> dict[str, Run]:
    """Sources of several lengths, all as many words to write."""
    rows = [torch.randint(6, 1000, (length - 2 * (row % 8),)).tolist() for row in range(batch)]
    engine, requests = Engine(by_columns(ours), max_len=new + 1, bos=0), [Request(source=row) for row in rows]
    return {
        "ours": lambda: [list(r[0].tokens) for r in search(engine, requests, Beam(width=4), max_new=new)],
        "theirs": lambda: peers.written(theirs, rows, new, num_beams=4),
    }


def race(name: str, runs: dict[str, Run], rounds: int, written: int) -> None:
    """One line: the same tokens? then tokens a second of each, and the ratio."""
    words = {who: run() for who, run in runs.items()}
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds):
        for who, run in runs.items():
            start = time.process_time()
            run()
            best[who] = min(best[who], time.process_time() - start)
    speed = {f"{who}_tok_s": round(written / seconds, 1) for who, seconds in best.items()}
    ratio = round(best["theirs"] / best["ours"], 2)
    same = words["ours"] == words["theirs"]
    print(
        json.dumps({"work": name, "same_tokens": same, **speed, "ratio": ratio, "torch": torch.__version__}), flush=True
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=[*SHAPES, "translator"], nargs="*", default=[*SHAPES, "translator"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--new", type=int, default=64)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for model in options.model:
        torch.manual_seed(0)
        ours, theirs = translators() if model == "translator" else twins(model)
        for batch in (1, 8):
            contest = beams if model == "translator" else greedy
            runs = contest(ours, theirs, batch, 32, options.new)
            race(f"{model}, batch {batch}", runs, options.rounds, batch * options.new)


if __name__ == "__main__":
    main()
