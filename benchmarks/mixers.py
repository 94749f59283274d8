"""Every mixer beside full attention, and beside public ones: `python -m benchmarks.mixers --out FILE.jsonl`

Two layers of each mixer alone (no feed-forward part) read rows of some lengths; time is that of a forward and backward
pass, and of a forward pass, in bf16 on a GPU and fp32 on a CPU. Then whole models of two layers against the models of
transformers of the same shape, at 4,096 tokens. All contenders of a length take turns, and the fastest round
counts. `--table FILE.jsonl` prints the tables, `--tiny` is a trial.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anyformer.core import ModelSpec, PartSpec
from anyformer.errors import SpecError
from anyformer.models import Block, Branch, Decoder, Encoder, Stack
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.masks.block_local import BlockLocal
from anyformer.parts.masks.global_tokens import GlobalTokens
from anyformer.parts.masks.random_blocks import RandomBlocks
from anyformer.parts.masks.strided import Strided
from anyformer.parts.masks.window import Window
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.mixers.dynamic_conv import DynamicConv
from anyformer.parts.mixers.gated_linear import GatedLinear
from anyformer.parts.mixers.gru import GRU
from anyformer.parts.mixers.lightweight_conv import LightweightConv
from anyformer.parts.mixers.linear_attention import LinearAttention
from anyformer.parts.mixers.linformer import Linformer
from anyformer.parts.mixers.longformer import Longformer
from anyformer.parts.mixers.lstm import LSTM
from anyformer.parts.mixers.mamba import Mamba
from anyformer.parts.mixers.mamba2 import Mamba2
from anyformer.parts.mixers.memory_compressed import MemoryCompressed
from anyformer.parts.mixers.min_gru import MinGRU
from anyformer.parts.mixers.performer import Performer
from anyformer.parts.mixers.reformer import Reformer
from anyformer.parts.mixers.s4d import S4D
from anyformer.parts.mixers.synthesizer import Synthesizer
from anyformer.parts.mixers.weighted_attention import WeightedAttention
from anyformer.parts.norms.layer import LayerNorm
from benchmarks.clock import clocked

Row = dict[str, Any]
Call = Callable[[Tensor], Tensor]
FULL = "full attention"
VOCAB, LAYERS = 1000, 2
BESIDE_PEERS = 4096
"""The length at which whole models are compared."""


def mixers(heads: int) -> dict[str, tuple[PartSpec, bool]]:
    """The mixers, and whether each reads from left to right."""
    causal: dict[str, PartSpec] = {
        FULL: Attention(heads=heads),
        "attention, window of 256": Attention(heads=heads, mask=Window(size=256)),
        "attention, blocks of 256": Attention(heads=heads, mask=BlockLocal(size=256)),
        "attention, strides of 64": Attention(heads=heads, mask=Strided(stride=64)),
        "memory-compressed": MemoryCompressed(heads=heads),
        "reformer": Reformer(heads=heads, buckets=32),
        "performer": Performer(heads=heads),
        "linear attention": LinearAttention(heads=heads),
        "gated linear attention": GatedLinear(heads=heads),
        "weighted attention": WeightedAttention(heads=heads),
        "synthesizer, dense": Synthesizer(heads=heads),
        "synthesizer, factorized random": Synthesizer(heads=heads, scores="factorized_random"),
        "dynamic convolution": DynamicConv(heads=heads),
        "lightweight convolution": LightweightConv(heads=heads),
        "mamba": Mamba(), "mamba-2": Mamba2(), "s4d": S4D(), "min_gru": MinGRU(), "lstm": LSTM(), "gru": GRU(),
    }  # fmt: skip
    both = {"linformer": Linformer(heads=heads), "longformer": Longformer(heads=heads)}
    return {name: (part, True) for name, part in causal.items()} | {name: (part, False) for name, part in both.items()}


def layers_of(parts: Sequence[PartSpec], causal: bool, dim: int, length: int) -> ModelSpec:
    """Two layers with these parts one after the other."""
    block = Block(branches=tuple(Branch(part=part, norm=LayerNorm()) for part in parts))
    model = Decoder if causal else Encoder
    return model(vocab=VOCAB, dim=dim, stack=Stack(blocks={"layer": block}, depth=LAYERS), max_len=length)


def peers(dim: int, heads: int, length: int) -> dict[str, tuple[ModelSpec, Callable[[], nn.Module]]]:
    """Models of ours, and the function that builds the model of transformers of the same shape."""
    shape: Row = {"vocab_size": VOCAB, "hidden_size": dim, "num_hidden_layers": LAYERS, "num_attention_heads": heads,
                  "intermediate_size": 4 * dim, "max_position_embeddings": length + 2, "pad_token_id": 0,
                  "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}  # fmt: skip
    window = min(512, length // 4)
    bird: Row = {**shape, "attention_type": "block_sparse", "block_size": 64, "num_random_blocks": 3}
    hashed: Row = {
        "vocab_size": VOCAB, "hidden_size": dim, "num_attention_heads": heads, "attention_head_size": dim // heads,
        "feed_forward_size": 4 * dim, "attn_layers": ["lsh"] * LAYERS, "num_hashes": 2, "num_buckets": 32,
        "axial_pos_embds": False, "max_position_embeddings": length, "hidden_dropout_prob": 0.0,
        "lsh_attention_probs_dropout_prob": 0.0, "is_decoder": True, "use_cache": False,
    }  # fmt: skip
    state: Row = {"vocab_size": VOCAB, "hidden_size": dim, "num_hidden_layers": LAYERS, "use_cache": False}
    two: Row = {**state, "num_heads": 2 * dim // 64, "head_dim": 64, "n_groups": 1, "use_cache": False}
    sparse = Window(size=2, block=64) | GlobalTokens(tokens=2, block=64) | RandomBlocks(count=3, block=64)
    import transformers  # takes seconds, and the tables need none of it

    t: Any = transformers  # its models have no annotations
    feed_forward = MLP(hidden=4 * dim, bias=True)

    def encoder(part: PartSpec) -> ModelSpec:
        return layers_of([part, feed_forward], False, dim, length)

    return {
        "BertModel": (encoder(Attention(heads=heads, bias=True)),
                      lambda: t.BertModel(t.BertConfig(**shape), add_pooling_layer=False)),
        "LongformerModel": (encoder(Longformer(heads=heads, window=window + 1, bias=True)),
                            lambda: t.LongformerModel(t.LongformerConfig(**shape, attention_window=window), False)),
        "BigBirdModel": (encoder(Attention(heads=heads, bias=True, mask=sparse)),
                         lambda: t.BigBirdModel(t.BigBirdConfig(**bird), add_pooling_layer=False)),
        "ReformerModel": (layers_of([Reformer(heads=heads, buckets=32), feed_forward], True, dim, length),
                          lambda: t.ReformerModel(t.ReformerConfig(**hashed))),
        "MambaModel": (layers_of([Mamba()], True, dim, length), lambda: t.MambaModel(t.MambaConfig(**state))),
        "Mamba2Model": (layers_of([Mamba2()], True, dim, length), lambda: t.Mamba2Model(t.Mamba2Config(**two))),
    }  # fmt: skip


def passes(call: Call, model: nn.Module, tokens: Tensor) -> dict[str, Callable[[], object]]:
    """A training pass and a forward pass."""
    gpu = tokens.device.type == "cuda"

    def precision() -> Any:
        return torch.autocast("cuda", torch.bfloat16) if gpu else nullcontext()

    def train() -> None:
        model.zero_grad(set_to_none=True)
        with precision():
            loss = call(tokens).float().square().mean()
        loss.backward()

    def forward() -> None:
        with torch.no_grad(), precision():
            call(tokens)

    return {"training": train, "forward": forward}


def ours(spec: ModelSpec, tokens: Tensor) -> dict[str, Callable[[], object]]:
    model = spec.build(seed=0).to(tokens.device)
    return passes(lambda words: model(words, logits=False).y, model, tokens)


def theirs(build: Callable[[], nn.Module], tokens: Tensor) -> dict[str, Callable[[], object]]:
    model = build().to(tokens.device).train()
    return passes(lambda words: model(words)[0], model, tokens)


def fastest(
    contenders: Mapping[str, Mapping[str, Callable[[], object]]], device: torch.device, rounds: int
) -> list[Row]:
    """Milliseconds of each pass; a contender that fails is told by its error."""
    rows: dict[str, Row] = {}
    for name, runs in contenders.items():
        try:
            for run in runs.values():
                clocked(device, run)
        except (RuntimeError, SpecError, ValueError, TypeError) as error:
            rows[name] = {"name": name, "failed": str(error)[:200]}
        else:
            rows[name] = {"name": name, **dict.fromkeys(runs, float("inf"))}
    for _ in range(rounds):
        for name, row in rows.items():
            for what, run in ({} if "failed" in row else contenders[name]).items():
                row[what] = min(row[what], round(clocked(device, run)[0], 3))
    return list(rows.values())


def measure(options: argparse.Namespace) -> Iterator[Row]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    gpu, dim, heads = device.type == "cuda", 64 if options.tiny else 512, 8
    lengths = (256,) if options.tiny else options.lengths
    facts = {"device": torch.cuda.get_device_name() if gpu else "CPU", "torch": torch.__version__, "dim": dim}
    torch.set_num_threads(1)
    for length in lengths:
        batch = max(1, (32768 if gpu else 1024) // length)
        tokens = torch.randint(6, VOCAB, (batch, length), device=device)
        shape = {**facts, "length": length, "batch": batch}
        chosen = {name: row for name, row in mixers(heads).items() if name in (options.only or mixers(heads))}
        specs = {name: layers_of([part], causal, dim, length) for name, (part, causal) in chosen.items()}
        for row in fastest(built(specs, tokens), device, options.rounds):
            yield {"table": "mixers", **shape, **row}
        if length == (256 if options.tiny else BESIDE_PEERS) and not options.only:
            for name, (spec, build) in peers(dim, heads, length).items():
                pair = {"ours": ours(spec, tokens), "theirs": theirs(build, tokens)}
                for row in fastest(pair, device, options.rounds):
                    yield {"table": "peers", **shape, "peer": name, **row}


def built(specs: Mapping[str, ModelSpec], tokens: Tensor) -> dict[str, dict[str, Callable[[], object]]]:
    return {name: ours(spec, tokens) for name, spec in specs.items()}


def tables(rows: Sequence[Row]) -> Iterator[str]:
    """Milliseconds of training passes, with the ratio to full attention; then the peers."""
    lengths = sorted({row["length"] for row in rows if row["table"] == "mixers"})
    cells = {(row["name"], row["length"]): row for row in rows if row["table"] == "mixers"}
    yield f"| two layers, training pass, ms | {' | '.join(f'{length:,} tokens' for length in lengths)} |"
    yield "|---" * (1 + len(lengths)) + "|"
    for name in dict.fromkeys(name for name, _ in cells):
        times = [cells.get((name, length), {}) for length in lengths]
        ratios = [
            row["training"] / cells[FULL, length]["training"] if "training" in row else None
            for row, length in zip(times, lengths, strict=True)
        ]
        shown = [
            "failed" if ratio is None else f"{row['training']:.2f} ({ratio:.2f})"
            for row, ratio in zip(times, ratios, strict=True)
        ]
        yield f"| {name} | {' | '.join(shown)} |"
    yield from ("", "| model of transformers | pass | theirs, ms | ours, ms | ratio |", "|---|---|---|---|---|")
    pairs = {(row["peer"], row["name"]): row for row in rows if row["table"] == "peers"}
    for peer in dict.fromkeys(peer for peer, _ in pairs):
        for what in ("training", "forward"):
            us, them = (pairs[peer, name].get(what) for name in ("ours", "theirs"))
            if us and them:
                yield f"| {peer} | {what} | {them:.2f} | {us:.2f} | {them / us:.2f} |"
            else:
                yield f"| {peer} | {what} | {pairs[peer, 'theirs'].get('failed', them)} | {us} | |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, BESIDE_PEERS, 16384])
    parser.add_argument("--only", nargs="+", choices=list(mixers(8)), help="these mixers, and no peers")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path, help="print the tables of stored results")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    if options.table:
        lines = options.table.read_text(encoding="utf-8").splitlines()
        print("\n".join(tables([json.loads(line) for line in lines])))
        return
    for row in measure(options):
        print(json.dumps(row), flush=True)
        if options.out:
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
