"""Vectors of texts against sentence-transformers with the same weights: `python -m benchmarks.embeddings a.jsonl.gz`.

A random model of MiniLM's shape (6 layers of 384) and a tokenizer trained on the texts, both read by both sides. The
vectors must agree first; then both take turns, and the best round of each counts, by the processor's time on one
thread. sentence-transformers is no dependency of ours: pip install sentence-transformers.
"""

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from tests.equality.copying import bert_alone, copy

from anyformer.data.batching.packings.bucket import Bucket
from anyformer.data.preparation.contents import Contents
from anyformer.data.sources.jsonl import JSONLines
from anyformer.data.tokenizers.tokenizer import Tokenizer
from anyformer.data.tokenizers.wordpiece import WordPiece
from anyformer.inference.embedding import embed
from anyformer.models import Block, Branch, Encoder, Stack
from anyformer.objectives.contrastive import Contrastive
from anyformer.objectives.objective import Predictor
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.heads.pooled import Pooled
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.norms.layer import LayerNorm
from anyformer.parts.pools.mean import Mean
from anyformer.parts.positions.learned import LearnedPosition

Encode = Callable[[list[str]], NDArray[np.float32]]
DIM, HEADS, HIDDEN, LAYERS, PLACES = 384, 12, 1536, 6, 512
CONTEXT = 256
"""Tokens that are read of a text, as MiniLM does."""
LEAST_COSINE = 0.999


def sample(path: str, field: str, count: int) -> list[str]:
    """So many texts of the file, drawn once for all: lengths as they are."""
    texts = [record.text for record in JSONLines(path=path, text=field).records()]
    return random.Random(0).sample(texts, min(count, len(texts)))


def peer(tokenizer: Tokenizer, folder: Path) -> transformers.BertModel:
    """A random BERT, saved with the tokenizer as sentence-transformers reads it."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=tokenizer.words.size,
        hidden_size=DIM,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=HIDDEN,
        max_position_embeddings=PLACES,
    )
    model = transformers.BertModel(config, add_pooling_layer=False).eval()
    model.save_pretrained(folder)
    tokenizer.save(folder / "tokenizer.json")
    file = str(folder / "tokenizer.json")
    transformers.PreTrainedTokenizerFast(tokenizer_file=file, pad_token="<pad>").save_pretrained(folder)
    return model


def theirs(folder: Path) -> Encode:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Normalize, Pooling, Transformer

    body = Transformer(str(folder), max_seq_length=CONTEXT)
    model = SentenceTransformer(modules=[body, Pooling(DIM, "mean"), Normalize()], device="cpu")
    return lambda texts: np.asarray(model.encode(texts, show_progress_bar=False))


def ours(tokenizer: Tokenizer, model: transformers.BertModel) -> Encode:
    normed = LayerNorm(eps=1e-12)
    parts = Attention(heads=HEADS, bias=True), MLP(hidden=HIDDEN, bias=True)
    block = Block(branches=tuple(Branch(part=part, norm=normed, place="post") for part in parts))
    spec = Encoder(
        vocab=tokenizer.words.size,
        dim=DIM,
        stack=Stack(blocks={"layer": block}, depth=LAYERS),
        types=2,
        position=LearnedPosition(max_len=PLACES),
        entry_norm=normed,
        head=Pooled(pool=Mean()),
    )
    built = spec.build().eval()
    copy(model, built, partial(bert_alone, layers=LAYERS))
    trained = Predictor(
        name="MiniLM",
        spec=spec,
        models={"model": built},
        tokenizer=tokenizer,
        objective=Contrastive(),
        contents=Contents(pair=True),
        context=CONTEXT + 2,
        packing=Bucket(),
    )
    return lambda texts: embed(trained, texts)[0]


def seconds(encode: Encode, texts: list[str]) -> float:
    start = time.process_time()
    encode(texts)
    return time.process_time() - start


def measure(texts: list[str], rounds: int) -> dict[str, float]:
    """How many times faster ours is, and the texts that each reads in a second."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = WordPiece(case="lower").train(texts)
        model = peer(tokenizer, Path(folder))
        encoders = {"ours": ours(tokenizer, model), "theirs": theirs(Path(folder))}
    vectors = {who: encode(texts) for who, encode in encoders.items()}
    cosine = float((vectors["ours"] * vectors["theirs"]).sum(-1).min())
    if cosine < LEAST_COSINE:
        raise SystemExit(f"the vectors differ: the lowest cosine is {cosine:.5f}. Nothing to measure.")
    best = {who: min(taken) for who, taken in _turns(encoders, texts, rounds).items()}
    speeds = {f"{who}_texts_s": round(len(texts) / taken, 1) for who, taken in best.items()}
    return {"cosine": round(cosine, 6), **speeds, "ratio": round(best["theirs"] / best["ours"], 2)}


def _turns(encoders: dict[str, Encode], texts: list[str], rounds: int) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {who: [] for who in encoders}
    for _ in range(rounds):
        for who, encode in encoders.items():
            taken[who].append(seconds(encode, texts))
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="a .jsonl file")
    parser.add_argument("--fields", default="synopsis,description", help="each is measured on its own")
    parser.add_argument("--texts", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for field in options.fields.split(","):
        texts = sample(options.data, field, options.texts)
        letters = sum(map(len, texts)) / len(texts)
        print(
            json.dumps(
                {"field": field, "texts": len(texts), "letters": round(letters), **measure(texts, options.rounds)}
            )
        )


if __name__ == "__main__":
    main()
