"""Translation against the reference: `python -m benchmarks.translation en-de.tsv.gz train.minutes=2`

A Transformer of the base shape through our trainer and decoder, and transformers' MarianMTModel of the same size in a
plain loop: the same batches in the same order, Adam, schedule, label smoothing, precision, time or steps; both decode
greedily. One line of JSON each, with sacrebleu's BLEU and chrF, its signature and a bootstrap interval.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.data.batching.batch import Batch
from anyformer.data.sources.csv import CSV
from anyformer.generation.engine import Engine, Request
from anyformer.optim.optimizer import clip
from anyformer.training import Trainer
from anyformer.training.loop.precision import autocast
from benchmarks.trainers import trainer_of

SHAPE = (
    "model.preset=transformer-base", "objective.kind=seq2seq", "objective.smoothing=0.1", "data.context=128",
    "data.tokenizer.size=8192", "train.batch_tokens=32768", "optimizer.lr=1e-3", "optimizer.weight_decay=0.0",
    "optimizer.beta2=0.98", "schedule.kind=inverse_square_root", "schedule.warmup=1000",
)  # fmt: skip
LONGEST = 128


def ours(trainer: Trainer, sources: list[list[int]]) -> list[list[int]]:
    """Our loop and our decoder."""
    for step in trainer.steps():
        if step.number % 100 == 0:
            print(json.dumps({"ours": step.number, "loss": step.loss, "s": step.wall_s}), flush=True)
    model = trainer.loss_module.model.eval()
    words = trainer.prepared.words
    engine = Engine(model, max_len=LONGEST + 2, bos=words.bos, batch=256, steps="eager")
    requests = [Request(prompt=(), source=tuple(source)) for source in sources]
    return [list(found.tokens) for found in engine.generate(requests, max_new=LONGEST, stop=(words.eos,))]


def marian(trainer: Trainer) -> nn.Module:
    """The reference, fresh, in the size of the trainer's model."""
    from transformers import MarianConfig, MarianMTModel  # a development tool

    words, half = trainer.prepared.words, trainer.recipe.model.to_dict()["encoder"]
    heads, layers, dim = (
        half["stack"]["blocks"]["layer"]["branches"][0]["part"]["heads"],
        half["stack"]["depth"],
        half["dim"],
    )
    config = MarianConfig(
        vocab_size=words.size, decoder_vocab_size=words.size, d_model=dim, encoder_layers=layers, decoder_layers=layers,
        encoder_attention_heads=heads, decoder_attention_heads=heads, encoder_ffn_dim=4 * dim, decoder_ffn_dim=4 * dim,
        dropout=0.1, attention_dropout=0.0, activation_dropout=0.0, activation_function="relu", scale_embedding=True,
        max_position_embeddings=512, pad_token_id=words.pad, eos_token_id=words.eos, bos_token_id=words.bos,
        decoder_start_token_id=words.bos, forced_eos_token_id=None, share_encoder_decoder_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(trainer.recipe.seed)
    return MarianMTModel(config).to(trainer.world.device)


def reference(trainer: Trainer, sources: list[list[int]]) -> list[list[int]]:
    """A plain loop around the reference, and its own `generate`."""
    recipe, device, model = trainer.recipe, trainer.world.device, marian(trainer)
    spec = recipe.optimizer.to_dict()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=spec["lr"], betas=(spec["beta1"], spec["beta2"]), weight_decay=0.0, fused=True
    )
    model.train()
    began = time.perf_counter()
    for ready in trainer.feed():
        spent = time.perf_counter() - began
        if trainer.budget.spent(ready.step, spent):
            break
        with autocast(trainer.precision, device):
            loss = _sum(model, ready.batch.to(device)) / ready.counts["words"]
        loss.backward()
        clip(model.parameters(), recipe.train.clip)
        for group in optimizer.param_groups:
            group["lr"] = recipe.optimizer.lr * recipe.schedule.factor(
                ready.step, trainer.budget.total(ready.step, spent)
            )
        optimizer.step()
        optimizer.zero_grad()
        if ready.step % 100 == 99:
            print(json.dumps({"reference": ready.step + 1, "loss": loss.item(), "s": spent}), flush=True)
    return _generate(model.eval(), trainer, sources)


def _sum(model: nn.Module, batch: Batch) -> Tensor:
    assert batch.source is not None and batch.targets is not None and batch.weight is not None
    out = model(
        input_ids=batch.source.tokens, attention_mask=batch.source.counted.long(),
        decoder_input_ids=batch.tokens, decoder_attention_mask=batch.counted.long(),
    )  # fmt: skip
    losses = F.cross_entropy(
        out.logits.flatten(0, 1).float(), batch.targets.flatten(), reduction="none", label_smoothing=0.1
    )
    return (losses * batch.weight.flatten()).sum()


@torch.no_grad()
def _generate(model: nn.Module, trainer: Trainer, sources: list[list[int]]) -> list[list[int]]:
    words, found = trainer.prepared.words, []
    order = sorted(range(len(sources)), key=lambda row: len(sources[row]))
    for start in range(0, len(order), 256):
        rows = [torch.tensor(sources[row]) for row in order[start : start + 256]]
        ids = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=words.pad).to(trainer.world.device)
        mask = nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True).to(ids.device)
        out = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=LONGEST, do_sample=False, num_beams=1)
        found += [[token for token in row if token not in (words.bos, words.eos, words.pad)] for row in out.tolist()]
    return [found[order.index(row)] for row in range(len(sources))]


def scores(texts: list[str], wanted: list[str]) -> dict[str, object]:
    from sacrebleu.metrics import BLEU, CHRF  # a development tool

    found: dict[str, object] = {}
    for name, metric in (("bleu", BLEU()), ("chrf", CHRF())):
        score = metric.corpus_score(texts, [wanted], n_bootstrap=1000)
        mean, margin = float(score._mean), float(score._ci)
        found[name] = {"value": float(score.score), "low": mean - margin, "high": mean + margin}
        found[f"{name}_signature"] = str(metric.get_signature())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--cache", type=Path, default=Path("~/.cache/anyformer/data"))
    parser.add_argument("--only", choices=["ours", "reference"], help="one of the two")
    parser.add_argument("--sentences", type=int, default=1000, help="of the test split")
    parser.add_argument("more", nargs="*", help="key=value, as for `anyformer train`")
    arguments = parser.parse_intermixed_args()
    runs: dict[str, Callable[[Trainer, list[list[int]]], list[list[int]]]] = {"ours": ours, "reference": reference}
    for name in [arguments.only] if arguments.only else runs:
        told, device = [*SHAPE, *arguments.more], torch.device(arguments.device)
        trainer = trainer_of(arguments.data, told, arguments.cache, device)
        assert trainer.recipe.data is not None and isinstance(trainer.recipe.data.source, CSV)
        tokenizer, words = trainer.prepared.tokenizer, trainer.prepared.words
        records = [it for it in trainer.recipe.data.source.records() if it.split == "test"][: arguments.sentences]
        sources = [[*tokenizer.encode(it.text)[: LONGEST - 2], words.sep] for it in records]
        began = time.perf_counter()
        texts = [tokenizer.decode(ids) for ids in runs[name](trainer, sources)]
        found = scores(texts, [it.target or "" for it in records])
        print(
            json.dumps({"run": name, **found, "seconds": time.perf_counter() - began, "sample": texts[:2]}), flush=True
        )


if __name__ == "__main__":
    main()
