"""Writing against Hugging Face's `generate` with the same weights: `python -m benchmarks.decode [--model gpt2]`.

Greedy and beam 4. Both must write the same tokens first; then they take turns, and the best round of each counts, by
the processor's time on one thread. Greedy decoding with our int8 weights takes part too; its tokens may differ.
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
from torch import Tensor
from transformers import LogitsProcessorList

from anyformer.core import Frame, Memory, Model, Out, State
from anyformer.generation.beam.beam_search import Beam, search
from anyformer.generation.decoding import for_writing
from anyformer.generation.engine import Engine, Request
from anyformer.models import Block, Branch, Decoder, Stack
from anyformer.models.quantised import Quantised
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.norms.layer import LayerNorm
from anyformer.parts.positions.learned import LearnedPosition
from anyformer.shrink.quantising import quantised_model

Run = Callable[[], list[list[int]]]
SHAPES = {"gpt2": (50_257, 768, 12, 12), "small": (8_000, 256, 4, 6)}
"""Words, width, heads, layers."""
END = 5
"""The word that ends a translation."""


def spec_of(name: str) -> Decoder:
    """A GPT-2 of this shape."""
    vocab, dim, heads, layers = SHAPES[name]
    parts = Attention(heads=heads, bias=True), MLP(activation="gelu_tanh", bias=True)
    block = Block(branches=tuple(Branch(part=part, norm=LayerNorm()) for part in parts))
    stack = Stack(blocks={"layer": block}, depth=layers)
    return Decoder(vocab=vocab, dim=dim, stack=stack, max_len=1024, position=LearnedPosition(), exit_norm=LayerNorm())


def twins(name: str) -> tuple[Any, Any]:
    """A random GPT-2 of this shape, ours and theirs."""
    vocab, dim, heads, layers = SHAPES[name]
    config = transformers.GPT2Config(
        vocab_size=vocab, n_embd=dim, n_head=heads, n_layer=layers, bos_token_id=None, eos_token_id=None
    )
    theirs, ours = transformers.GPT2LMHeadModel(config).eval(), spec_of(name).build().eval()
    copy(theirs, ours, partial(gpt2, layers=layers))
    return ours, theirs


def with_int8(name: str) -> tuple[Any, Any, Any]:
    """The twins, and ours with int8 weights."""
    ours, theirs = twins(name)
    return ours, theirs, quantised_model(Quantised(model=spec_of(name)), ours.state_dict())


def translators() -> tuple[Any, Any]:
    """A random Transformer-base with 8,000 words, ours and Marian's."""
    peers.VOCAB, peers.DIM, peers.HEADS, peers.HIDDEN, peers.LAYERS, peers.LENGTH = 8_000, 512, 8, 2048, 6, 160
    ours, theirs = peers.twins(transformers, "marian")
    theirs.set_attn_implementation("sdpa")
    return ours, theirs


def greedy(ours: Any, theirs: Any, int8: Any, batch: int, length: int, new: int) -> dict[str, Run]:
    rows = torch.randint(6, 1000, (batch, length)).tolist()
    requests = [Request(prompt=row) for row in rows]

    def writer(model: Model) -> Run:
        engine = Engine(for_writing(model), max_len=length + new)
        return lambda: [list(row.tokens) for row in engine.generate(requests, max_new=new)]

    return {"ours": writer(ours), "ours_int8": writer(int8), "theirs": lambda: peers.written(theirs, rows, new)}


class Ending(Model):
    """A translator of random weights whose sentences end as real ones do: each when it is as long as its source."""

    def __init__(self, inner: Model):
        super().__init__()
        self.inner = inner

    def forward(self, tokens: Tensor, frame: Frame, state: State | None = None, *, logits: bool = True) -> Out:
        assert state is not None and frame.positions is not None
        inner, lengths = state
        out = self.inner(tokens, frame, inner, logits=logits)
        y = ended(out.y, frame.positions + 1 >= lengths[:, None]) if logits else out.y
        return Out(y, (out.state, lengths))

    def logits(self, h: Tensor, frame: Frame) -> Tensor:
        return ended(self.inner.logits(h, frame), torch.zeros_like(h[..., 0], dtype=torch.bool))

    def encode(self, tokens: Tensor, frame: Frame) -> Memory:
        return self.inner.encode(tokens, frame)

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> State:
        assert memory is not None
        exists = torch.ones_like(memory.x[..., 0]) if memory.valid is None else memory.valid
        return self.inner.init_state(batch, max_len, memory), exists.long().sum(1)


def ended(logits: Tensor, over: Tensor) -> Tensor:
    """Nothing but the end where a sentence is over, and anything else before."""
    is_end = torch.arange(logits.shape[-1]) == END
    return logits.masked_fill(is_end != over[..., None], -torch.inf)


def beams(ours: Any, theirs: Any, batch: int, length: int, new: int) -> dict[str, Run]:
    """Sources with the spread of lengths that sentences have."""
    lengths = (torch.randn(batch).mul(0.5).exp() * length).int().clamp(4, new)
    rows = [torch.randint(6, 1000, (each,)).tolist() for each in lengths.tolist()]
    engine, requests = Engine(for_writing(Ending(ours)), max_len=new + 1, bos=0), [Request(source=row) for row in rows]
    limits = lengths.repeat_interleave(4)
    endings = LogitsProcessorList([lambda words, scores: ended(scores, words.shape[1] >= limits)])
    options = {"num_beams": 4, "eos_token_id": END, "logits_processor": endings}
    return {
        "ours": lambda: [list(r[0].tokens) for r in search(engine, requests, Beam(width=4), max_new=new, stop=[END])],
        "theirs": lambda: [list(peers.cut(words, END)) for words in peers.written(theirs, rows, new, **options)],
    }


def race(name: str, runs: dict[str, Run], rounds: int) -> None:
    """One line: the same tokens? then tokens a second of each, and the ratio."""
    words = {who: run() for who, run in runs.items()}
    written = sum(map(len, words["ours"]))
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
        models = translators() if model == "translator" else with_int8(model)
        contest, batches = (beams, (1, 16)) if model == "translator" else (greedy, (1, 8))
        for batch in batches:
            race(f"{model}, batch {batch}", contest(*models, batch, 24, options.new), options.rounds)


if __name__ == "__main__":
    main()
