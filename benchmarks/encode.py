"""Vectors of texts with a MiniLM shape (6 layers of 384), against transformers and sentence-transformers.

The same weights and the same texts of real lengths, tokenising included. transformers' loop is the careful one: texts
sorted by length, batches of 64. sentence-transformers takes part where it is installed. The vectors must point the same
way first; on a GPU all are in bf16.
"""

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from tests.equality.copying import bert_alone, copy
from tokenizers.processors import TemplateProcessing

from anyformer.core import Work, cost
from anyformer.data.batching.packings.bucket import Bucket
from anyformer.data.preparation.contents import Contents
from anyformer.data.sources.jsonl import JSONLines
from anyformer.data.tokenizers.bpe import BPE
from anyformer.data.tokenizers.tokenizer import Tokenizer
from anyformer.inference.embedding import embed
from anyformer.objectives.masked_words import MaskedWords
from anyformer.objectives.objective import Predictor
from anyformer.training import load
from benchmarks import corpus
from benchmarks.harness import Bench, Case, Contender, Size, built, compare
from benchmarks.rows import Row
from benchmarks.runner import single

Vectors = NDArray[np.float32]
TEXTS: dict[Size, int] = {"gpu": 16384, "cpu": 96, "tiny": 8}
DIM, LAYERS, HEADS, LONGEST, BATCH, LEAST_COSINE = 384, 6, 12, 256, 64, 0.999


def rows(bench: Bench) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        texts = texts_of(bench, Path(folder))
        tokenizer = BPE(size=8192).train(texts[:2048])
        theirs = peer(tokenizer.words.size)
        trained = ours_with(tokenizer, theirs)
        dtype = torch.bfloat16 if bench.device.type == "cuda" else torch.float32
        for model in (trained.model, theirs):
            model.to(bench.device, dtype)
        ways = {"transformers": Contender(partial(sorted_loop, trained, theirs, texts))}
        if find_spec("sentence_transformers"):
            make = partial(sentence_transformer, tokenizer, theirs, Path(folder, "peer"), texts)
            ways["sentence-transformers"] = built(bench.device, make)
        price = cost(trained.spec, Work(batch=len(texts), length=mean_length(trained, texts))).total
        made_up = {} if bench.data else {"from": "stand-in"}
        shape = {"layers": LAYERS, "dim": DIM, "texts": len(texts), **made_up}
        for name, way in ways.items():
            yield from compare(bench, Case(
                item="encode", shape=shape, amount=len(texts),
                unit="text", flops=price.flops_forward, ours=Contender(lambda: embed(trained, texts)),
                peers={name: way}, check=lambda way=way: alike(embed(trained, texts)[0], way.run()),
            ))  # fmt: skip


def texts_of(bench: Bench, folder: Path) -> list[str]:
    """As people wrote them, as many as are wanted; the same again where there are too few."""
    path, _ = corpus.real_texts(bench, folder)
    field = "text" if bench.data is None else "description"
    found = [record.text for record in islice(JSONLines(path=path, text=field).records(), TEXTS[bench.size])]
    return (found * -(-TEXTS[bench.size] // len(found)))[: TEXTS[bench.size]]


def peer(vocab: int) -> transformers.BertModel:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=vocab, hidden_size=DIM, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        intermediate_size=4 * DIM, max_position_embeddings=LONGEST,
    )  # fmt: skip
    return transformers.BertModel(config, add_pooling_layer=False).eval()


def ours_with(tokenizer: Tokenizer, theirs: transformers.BertModel) -> Predictor:
    """The same model as one that has learned, from texts one in a row."""
    spec = load(
        "bert-base", f"model.vocab={tokenizer.words.size}", f"model.dim={DIM}", f"model.stack.depth={LAYERS}",
        f"model.stack.blocks.layer.branches.0.part.heads={HEADS}", f"model.max_len={LONGEST}",
        "model.head.layer=none", "model.head.pool.kind=mean",
    )  # fmt: skip
    model = spec.build().eval()
    copy(theirs, model, partial(bert_alone, layers=LAYERS))
    return Predictor(
        name="MiniLM", spec=spec, models={"model": model}, tokenizer=tokenizer,
        objective=MaskedWords(), contents=Contents(), context=LONGEST, packing=Bucket(),
    )  # fmt: skip


@torch.no_grad()
def sorted_loop(trained: Predictor, theirs: Any, texts: list[str]) -> Vectors:
    """Tokenise, sort, pad, mean over what is there: what a careful user writes."""
    words, found = trained.tokenizer.words, np.zeros((len(texts), DIM), dtype=np.float32)
    rows = [[words.cls, *ids[: LONGEST - 2], words.sep] for ids in trained.tokenizer.encode_batch(texts)]
    order = sorted(range(len(rows)), key=lambda row: len(rows[row]))
    for start in range(0, len(order), BATCH):
        group = order[start : start + BATCH]
        longest = max(len(rows[row]) for row in group)
        ids = torch.tensor([[*rows[row], *[0] * (longest - len(rows[row]))] for row in group], device=theirs.device)
        there = torch.tensor([[1] * len(rows[row]) + [0] * (longest - len(rows[row])) for row in group])
        there = there.to(theirs.device)
        hidden = theirs(input_ids=ids, attention_mask=there).last_hidden_state * there[..., None]
        found[group] = (hidden.sum(1) / there.sum(1, keepdim=True)).float().cpu().numpy()
    return found


def sentence_transformer(tokenizer: Tokenizer, theirs: Any, folder: Path, texts: list[str]) -> Callable[[], Vectors]:
    """From a folder of transformers' own, to which it adds the mean by itself."""
    from sentence_transformers import SentenceTransformer

    folder.mkdir()
    tokenizer.save(folder / "raw.json")
    fast = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "raw.json"), pad_token="<pad>")
    frame = [("<cls>", tokenizer.words.cls), ("<sep>", tokenizer.words.sep)]
    fast.backend_tokenizer.post_processor = TemplateProcessing(single="<cls> $A <sep>", special_tokens=frame)
    fast.model_max_length = LONGEST
    fast.save_pretrained(folder)
    theirs.save_pretrained(folder)
    model = SentenceTransformer(str(folder), device=str(theirs.device), model_kwargs={"dtype": theirs.dtype})
    return lambda: np.asarray(model.encode(texts, batch_size=BATCH, show_progress_bar=False), dtype=np.float32)


def mean_length(trained: Predictor, texts: list[str]) -> int:
    lengths = [min(len(ids) + 2, LONGEST) for ids in trained.tokenizer.encode_batch(texts)]
    return round(sum(lengths) / len(lengths))


def alike(ours: Vectors, theirs: Vectors) -> bool:
    """Every text's two vectors point the same way."""
    lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    return bool(((ours * theirs).sum(1) / lengths).min() > LEAST_COSINE)


if __name__ == "__main__":
    single(__doc__, rows)
