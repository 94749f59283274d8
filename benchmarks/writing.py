"""Writing against `generate` of transformers with the same weights: greedy with a GPT-2 shape, and beam 4 with Marian.

In single precision both must write the same words first. On a GPU the race is then run in bf16, where near-ties are
broken differently: words may differ there, work does not. Static cache: transformers' fixed buffers, which it compiles
on a GPU by itself.
"""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from functools import partial
from typing import Any, Literal

import torch
from torch.nn.utils.rnn import pad_sequence

from anyformer.core import Model
from anyformer.generation.beam.beam_search import Beam, search
from anyformer.generation.decoding import for_writing
from anyformer.generation.engine import Engine, Request
from benchmarks import decode as shapes
from benchmarks.harness import Bench, Case, Contender, Size, compare
from benchmarks.rows import Row
from benchmarks.runner import single

Words = list[list[int]]
GREEDY: dict[Size, tuple[str, tuple[int, ...], int, int]] = {
    "gpu": ("gpt2", (1, 64), 16, 256),
    "cpu": ("small", (1, 8), 32, 64),
    "tiny": ("small", (2,), 4, 4),
}
"""Shape, batches, tokens of a prompt, tokens to write."""
BEAM: dict[Size, tuple[int, int, int]] = {"gpu": (64, 64, 64), "cpu": (4, 24, 24), "tiny": (2, 4, 3)}
"""Sentences, tokens of the longest, tokens to write."""
CHECKED, BEAMS = 16, 4
MOST = 0.95
"""Of the rows must be equal to the last word: among many, one may meet a tie within the roundings."""


def steps_of(device: torch.device) -> Literal["compiled_graph"] | None:
    """Compiled on a GPU, whatever that takes: calls are timed when everything is compiled."""
    return "compiled_graph" if device.type == "cuda" else None


def decode(bench: Bench) -> Iterator[Row]:
    """One token after the other, the likeliest."""
    name, batches, length, new = GREEDY[bench.size]
    ours, theirs = placed(bench, shapes.twins(name))
    for batch in batches:
        rows = torch.randint(6, 1000, (batch, length)).tolist()
        requests = [Request(prompt=row) for row in rows]
        engine = Engine(ours, max_len=length + new, steps=steps_of(bench.device))
        plain, static = (partial(written, theirs, rows, new, cache_implementation=kind) for kind in (None, "static"))
        case = Case(
            item="decode", shape={"model": name, "batch": batch, "prompt": length, "new": new}, amount=batch * new,
            unit="token", moved=new * weights_bytes(ours),
            ours=Contender(lambda e=engine, r=requests: e.generate(r, max_new=new)),
            peers={"transformers": Contender(plain), "transformers, static cache": Contender(static)},
            check=partial(same_words, ours, theirs, rows, min(new, CHECKED), 1),
        )  # fmt: skip
        yield from compare(bench, case)


def beam(bench: Bench) -> Iterator[Row]:
    """Four hypotheses at a time, from sources of several lengths."""
    sentences, length, new = BEAM[bench.size]
    ours, theirs = placed(bench, shapes.translators())
    rows = [torch.randint(6, 1000, (max(2, length - 2 * (row % 8)),)).tolist() for row in range(sentences)]
    requests = [Request(source=row) for row in rows]
    engine = Engine(ours, max_len=new + 1, bos=0, steps=steps_of(bench.device))
    shape = {"model": "transformer-base", "batch": sentences, "source": length, "new": new, "beams": BEAMS}
    case = Case(
        item="beam", shape=shape, amount=sentences, unit="sentence", moved=new * weights_bytes(ours),
        ours=Contender(lambda: search(engine, requests, Beam(width=BEAMS), max_new=new)),
        peers={"transformers": Contender(partial(written, theirs, rows, new, num_beams=BEAMS))},
        check=partial(same_words, ours, theirs, rows, min(new, CHECKED), BEAMS),
    )  # fmt: skip
    yield from compare(bench, case)


def placed(bench: Bench, pair: tuple[Any, Any]) -> tuple[Any, Any]:
    """Both on the device, in the precision that people decode with there."""
    dtype = torch.bfloat16 if bench.device.type == "cuda" else torch.float32
    ours, theirs = (model.to(bench.device, dtype).eval() for model in pair)
    theirs.set_attn_implementation("sdpa")  # what it comes with
    return for_writing(ours), theirs


def weights_bytes(model: Model) -> int:
    """Each step reads all of them, however many rows there are."""
    return sum(weight.numel() * weight.element_size() for weight in model.parameters())


@torch.no_grad()
def written(peer: Any, rows: Sequence[Sequence[int]], new: int, **options: Any) -> Words:
    """What transformers writes, prompts padded on the side that it wants."""
    left = not peer.config.is_encoder_decoder
    sides = [(torch.tensor(row), torch.ones(len(row), dtype=torch.long)) for row in rows]
    ids, there = (
        pad_sequence(side, batch_first=True, padding_side="left" if left else "right").to(peer.device)
        for side in zip(*sides, strict=True)
    )
    found = peer.generate(
        ids, attention_mask=there, max_new_tokens=new, min_new_tokens=new, do_sample=False, pad_token_id=0, **options
    )
    return found[:, ids.shape[1] if left else 1 :].tolist()


def same_words(ours: Model, theirs: Any, rows: Sequence[Sequence[int]], new: int, beams: int) -> bool:
    """In single precision, plainly, for some words."""
    mine, other = (deepcopy(model).float() for model in (ours, theirs))
    longest = max(map(len, rows)) + new
    engine = Engine(mine, max_len=longest, bos=0, steps="eager")
    if beams == 1:
        found = engine.generate([Request(prompt=row) for row in rows], max_new=new)
    else:
        requests = [Request(source=row) for row in rows]
        found = [best[0] for best in search(engine, requests, Beam(width=beams), max_new=new)]
    options = {"num_beams": beams} if beams > 1 else {}
    pairs = zip(found, written(other, rows, new, **options), strict=True)
    return sum(list(one.tokens) == words for one, words in pairs) >= MOST * len(rows)


def rows(bench: Bench) -> Iterator[Row]:
    """Both."""
    yield from decode(bench)
    yield from beam(bench)


if __name__ == "__main__":
    single(__doc__, rows)
