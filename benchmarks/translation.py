"""Translation against the reference: `python -m benchmarks.translation en-de.tsv.gz --out FILE.jsonl`

Ours is `anyformer train PATH` with nothing else, or with more overrides. The reference is a MarianMTModel from
transformers of the same width, depth and heads in a plain loop with AdamW in bf16, on our batches in our order, with
our schedule; it takes as many steps as it manages alone in the time of our run, at each of five rates. Both translate
greedily. One line of JSON for each run, with sacrebleu's BLEU and a bootstrap interval.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.data.batching.batch import Batch
from anyformer.data.record import Record
from anyformer.evaluation.evaluating import held_out
from anyformer.evaluation.metrics.translations import translation_scores
from anyformer.optim.optimizer import clip
from anyformer.run import train
from anyformer.training import Trainer
from anyformer.training.loop.loss_module import autocast
from benchmarks.trainers import trainer_of

RATES = (3e-4, 6e-4, 1e-3, 2e-3, 4e-3)
LONGEST, TOGETHER = 128, 256
FIRST, TIMED = 20, 100
"""Steps before the clock of a speed starts, and steps that it times."""


def ours(path: str, overrides: Sequence[str], cache: Path, split: str) -> dict[str, Any]:
    """Our verbs: `train`, then `evaluate` with the best checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        run = train(path, *overrides, out=Path(folder) / "run", cache=cache)
        seconds = time.perf_counter() - began
        score = run.evaluate(split=split, metrics=["bleu"])["bleu"]
        steps = [json.loads(line) for line in (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()]
    last = next(row for row in reversed(steps) if "wall_s" in row)
    return {"seconds": seconds, "steps_s": last["wall_s"], "steps": last["step"], **_numbers(score)}


def marian(trainer: Trainer) -> nn.Module:
    """The reference, fresh, in the size of the trainer's model."""
    from transformers import MarianConfig, MarianMTModel  # a development tool

    words, half = trainer.prepared.words, trainer.recipe.model.to_dict()["encoder"]
    branch = half["stack"]["blocks"]["layer"]["branches"][0]
    heads, layers, dim = branch["part"]["heads"], half["stack"]["depth"], half["dim"]
    config = MarianConfig(
        vocab_size=words.size, decoder_vocab_size=words.size, d_model=dim, encoder_layers=layers, decoder_layers=layers,
        encoder_attention_heads=heads, decoder_attention_heads=heads, encoder_ffn_dim=4 * dim, decoder_ffn_dim=4 * dim,
        dropout=branch.get("dropout", 0.0), attention_dropout=0.0, activation_dropout=0.0, activation_function="relu",
        scale_embedding=True, max_position_embeddings=512, pad_token_id=words.pad, eos_token_id=words.eos,
        bos_token_id=words.bos, decoder_start_token_id=words.bos, forced_eos_token_id=None,
        share_encoder_decoder_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(trainer.recipe.seed)
    return MarianMTModel(config).to(trainer.world.device)


def updates(model: nn.Module, trainer: Trainer, rate: float, total: int) -> Iterator[Tensor]:
    """A plain loop around the reference; yields the loss of each update."""
    recipe, device = trainer.recipe, trainer.world.device
    betas = (recipe.optimizer.to_dict().get("beta1", 0.9), recipe.optimizer.to_dict().get("beta2", 0.98))
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=betas, weight_decay=0.0, fused=True)
    model.train()
    for ready in trainer.feed():
        with autocast(trainer.precision, device):
            loss = _sum(model, ready.batch.to(device), recipe.objective.smoothing) / ready.counts["words"]  # type: ignore[union-attr]
        loss.backward()
        clip(model.parameters(), recipe.train.clip)
        for group in optimizer.param_groups:
            group["lr"] = rate * recipe.schedule.factor(ready.step, total)
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()


def speed(trainer: Trainer) -> float:
    """Steps per second of the reference."""
    steps = updates(marian(trainer), trainer, 1e-3, TIMED)
    for _ in islice(steps, FIRST):
        pass
    last = next(steps).item()
    began = time.perf_counter()
    for loss in islice(steps, TIMED):
        last = loss
    float(last)  # waits for the device
    return TIMED / (time.perf_counter() - began)


def reference(trainer: Trainer, rate: float, steps: int, records: Sequence[Record]) -> dict[str, Any]:
    """The reference after some steps at a rate, with its own `generate`."""
    model, began = marian(trainer), time.perf_counter()
    for number, loss in enumerate(islice(updates(model, trainer, rate, steps), steps), 1):
        if number % 500 == 0:
            print(json.dumps({"rate": rate, "step": number, "loss": loss.item()}), flush=True)
    seconds = time.perf_counter() - began
    texts = _generate(model.eval(), trainer, [record.text for record in records])
    score = translation_scores(texts, [record.target or "" for record in records])["bleu"]
    return {"rate": rate, "steps": steps, "seconds": seconds, **_numbers(score), "sample": texts[:2]}


def _numbers(score: Any) -> dict[str, Any]:
    return {"bleu": score.value, "low": score.low, "high": score.high, "signature": score.signature}


def _sum(model: nn.Module, batch: Batch, smoothing: float) -> Tensor:
    assert batch.source is not None and batch.targets is not None and batch.weight is not None
    out = model(
        input_ids=batch.source.tokens, attention_mask=batch.source.counted.long(),
        decoder_input_ids=batch.tokens, decoder_attention_mask=batch.counted.long(),
    )  # fmt: skip
    losses = F.cross_entropy(
        out.logits.flatten(0, 1).float(), batch.targets.flatten(), reduction="none", label_smoothing=smoothing
    )
    return (losses * batch.weight.flatten()).sum()


@torch.no_grad()
def _generate(model: nn.Module, trainer: Trainer, texts: Sequence[str]) -> list[str]:
    tokenizer, words, written = trainer.prepared.tokenizer, trainer.prepared.words, dict[int, str]()
    sources = [[*tokenizer.encode(text)[: LONGEST - 2], words.sep] for text in texts]
    order = sorted(range(len(sources)), key=lambda row: len(sources[row]))
    for start in range(0, len(order), TOGETHER):
        places = order[start : start + TOGETHER]
        rows = [torch.tensor(sources[place]) for place in places]
        ids = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=words.pad).to(trainer.world.device)
        mask = nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True).to(ids.device)
        out = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=LONGEST, do_sample=False, num_beams=1)
        for place, row in zip(places, out.tolist(), strict=True):
            written[place] = tokenizer.decode([id for id in row if id not in (words.bos, words.eos, words.pad)])
    return [written[place] for place in range(len(texts))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--cache", type=Path, default=Path("~/.cache/anyformer/data").expanduser())
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", choices=["ours", "speed", "reference"], help="one part of the comparison")
    parser.add_argument("--rates", type=float, nargs="+", default=RATES, help="rates of the reference")
    parser.add_argument("--steps", type=int, help="steps of the reference; from the time of our run if left out")
    parser.add_argument("--split", default="test")
    parser.add_argument("--out", type=Path)
    parser.add_argument("more", nargs="*", help="key=value, as for `anyformer train`")
    options = parser.parse_intermixed_args()
    steps, device = options.steps, torch.device(options.device)

    def tell(name: str, row: dict[str, Any]) -> None:
        line = json.dumps({"run": name, **row})
        print(line, flush=True)
        if options.out:
            with options.out.open("a", encoding="utf-8") as file:
                file.write(line + "\n")

    def fresh() -> Trainer:
        return trainer_of(options.data, [f"train.device={options.device}", *options.more], options.cache, device)

    if options.only in (None, "ours"):
        mine = ours(options.data, [f"train.device={options.device}", *options.more], options.cache, options.split)
        tell("ours", mine)
    if options.only in (None, "speed"):
        per_second = speed(fresh())
        tell("speed", {"steps_per_s": per_second})
    if options.only is None and steps is None:
        steps = round(per_second * mine["steps_s"])
    for rate in options.rates if options.only in (None, "reference") else ():
        trainer = fresh()
        assert steps is not None and trainer.recipe.data is not None
        records = list(held_out(trainer.recipe.data, options.split))
        tell("reference", reference(trainer, rate, steps, records))


if __name__ == "__main__":
    main()
