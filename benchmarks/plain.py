"""Plain scripts around transformers that do the work of our verbs: `python -m benchmarks.plain VERB --help`

`benchmarks.verbs` compares whole commands with them, so they import nothing of anyformer. Models have the shape that
the options give, and are trained with AdamW, bf16 on a GPU and a linear schedule, without tricks.
"""

import argparse
import csv
import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn

PAD, BOS, EOS = 0, 1, 2
SPECIAL = ["<pad>", "<bos>", "<eos>"]
EVERY = 100
"""Steps between two validations."""


def lines_of(path: Path) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
        return file.read().splitlines()


def pairs_of(path: Path) -> list[tuple[str, str]]:
    rows = csv.reader(lines_of(path), delimiter="\t", quoting=csv.QUOTE_NONE)
    return [(row[0], row[1]) for row in rows if len(row) == 2]


def bpe(texts: Iterator[str], size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def train_text(options: argparse.Namespace) -> None:
    """A decoder on one text: blocks of `context` tokens, drawn at random; a twentieth is held out."""
    from transformers import GPT2Config, GPT2LMHeadModel

    text = "\n".join(lines_of(options.data))
    tokenizer = bpe(iter([text]), options.vocab)
    ids = torch.tensor(tokenizer.encode(text).ids)
    held_out = ids[-len(ids) // 20 :]
    config = GPT2Config(
        vocab_size=options.vocab, n_positions=options.context, n_embd=options.dim, n_layer=options.depth,
        n_head=options.heads, bos_token_id=BOS, eos_token_id=EOS, use_cache=True,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).to(options.device)
    rows = max(1, options.batch_tokens // options.context)

    def batch(source: Tensor) -> dict[str, Tensor]:
        starts = torch.randint(max(1, len(source) - options.context), (rows,))
        block = torch.stack([source[start : start + options.context] for start in starts.tolist()])
        return {"input_ids": block, "labels": block}

    fit(model, lambda: batch(ids[: -len(held_out)]), lambda: batch(held_out), options)
    save(model, tokenizer, options.out)


def train_pairs(options: argparse.Namespace) -> None:
    """An encoder-decoder on pairs of sentences of similar length."""
    from transformers import MarianConfig, MarianMTModel

    pairs = pairs_of(options.data)
    tokenizer = bpe((side for pair in pairs for side in pair), options.vocab)
    sides = [tokenizer.encode_batch([pair[side] for pair in pairs]) for side in (0, 1)]
    sources, targets = ([[*row.ids[: options.context - 1], EOS] for row in side] for side in sides)
    encoded = list(zip(sources, targets, strict=True))
    config = MarianConfig(
        vocab_size=options.vocab, d_model=options.dim, encoder_layers=options.depth, decoder_layers=options.depth,
        encoder_attention_heads=options.heads, decoder_attention_heads=options.heads, encoder_ffn_dim=4 * options.dim,
        decoder_ffn_dim=4 * options.dim, dropout=0.1, scale_embedding=True, max_position_embeddings=options.context,
        pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS, decoder_start_token_id=BOS, forced_eos_token_id=None,
        share_encoder_decoder_embeddings=True,
    )  # fmt: skip
    model = MarianMTModel(config).to(options.device)
    held_out, train = encoded[::20], [pair for place, pair in enumerate(encoded) if place % 20]

    def batch(chosen: list[tuple[list[int], list[int]]]) -> dict[str, Tensor]:
        start = random.randrange(len(chosen))
        near = sorted(random.sample(chosen, min(len(chosen), 2048)), key=lambda pair: max(map(len, pair)))
        some, tokens = [], 0
        for pair in near[start % len(near) :] + near[: start % len(near)]:
            tokens = 2 * (len(some) + 1) * max(max(map(len, each)) for each in (*some, pair))
            if some and tokens > options.batch_tokens:
                break
            some.append(pair)
        source, target = (padded([pair[side] for pair in some]) for side in (0, 1))
        labels = target.masked_fill(target == PAD, -100)
        return {"input_ids": source, "attention_mask": (source != PAD).long(), "labels": labels}

    fit(model, lambda: batch(train), lambda: batch(held_out), options)
    save(model, tokenizer, options.out)


def train_classes(options: argparse.Namespace) -> None:
    """An encoder on texts with a label, of similar length in a batch."""
    from transformers import BertConfig, BertForSequenceClassification

    rows = [json.loads(line) for line in lines_of(options.data)]
    names = sorted({row["label"] for row in rows})
    tokenizer = bpe((row["text"] for row in rows), options.vocab)
    ids = [[*text.ids[: options.context - 1], EOS] for text in tokenizer.encode_batch([row["text"] for row in rows])]
    encoded = sorted(zip(ids, (names.index(row["label"]) for row in rows), strict=True), key=lambda text: len(text[0]))
    config = BertConfig(
        vocab_size=options.vocab, hidden_size=options.dim, num_hidden_layers=options.depth, pad_token_id=PAD,
        num_attention_heads=options.heads, intermediate_size=4 * options.dim, num_labels=len(names),
        max_position_embeddings=options.context,
    )  # fmt: skip
    held_out, train = encoded[::20], [text for place, text in enumerate(encoded) if place % 20]

    def batch(chosen: list[tuple[list[int], int]]) -> dict[str, Tensor]:
        start = random.randrange(len(chosen))
        some = chosen[start : start + max(1, options.batch_tokens // len(chosen[start][0]))]
        tokens = padded([row for row, _ in some])
        labels = torch.tensor([label for _, label in some])
        return {"input_ids": tokens, "attention_mask": (tokens != PAD).long(), "labels": labels}

    model = BertForSequenceClassification(config).to(options.device)
    fit(model, lambda: batch(train), lambda: batch(held_out), options)
    save(model, tokenizer, options.out)


def fit(model: nn.Module, batch: Any, held_out: Any, options: argparse.Namespace) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, fused=options.device == "cuda")
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=options.steps, pct_start=0.1)
    model.train()
    for step in range(1, options.steps + 1):
        with torch.autocast(options.device, torch.bfloat16, enabled=options.device == "cuda"):
            loss = model(**moved(batch(), options.device)).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % EVERY == 0:
            with torch.no_grad():
                losses = [model(**moved(held_out(), options.device)).loss.item() for _ in range(10)]
            print(json.dumps({"step": step, "loss": loss.item(), "valid": sum(losses) / len(losses)}), flush=True)


def evaluate(options: argparse.Namespace) -> None:
    """BLEU of translations by beam search."""
    import sacrebleu
    from transformers import MarianMTModel

    model, tokenizer = loaded(MarianMTModel, options)
    pairs = pairs_of(options.data)[: options.count]
    texts = generated(model, tokenizer, [source for source, _ in pairs], options, end=[EOS], num_beams=4)
    print(sacrebleu.corpus_bleu(texts, [[target for _, target in pairs]]))


def generate(options: argparse.Namespace) -> None:
    """A continuation of each prompt."""
    from transformers import GPT2LMHeadModel

    model, tokenizer = loaded(GPT2LMHeadModel, options)
    prompts = [line[: options.prompt] for line in lines_of(options.data) if line.strip()][: options.count]
    print(generated(model, tokenizer, prompts, options, end=[], do_sample=True)[0])


def embed(options: argparse.Namespace) -> None:
    """The mean of the hidden states of each text."""
    from transformers import GPT2LMHeadModel

    model, tokenizer = loaded(GPT2LMHeadModel, options)
    texts = lines_of(options.data)[: options.count]
    order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
    vectors = []
    for start in range(0, len(order), 64):
        ids = tokenizer.encode_batch([texts[place] for place in order[start : start + 64]])
        rows = padded([row.ids[: options.context] or [EOS] for row in ids]).to(options.device)
        mask = (rows != PAD).long()
        with torch.no_grad(), torch.autocast(options.device, torch.bfloat16, enabled=options.device == "cuda"):
            hidden = model.transformer(rows, attention_mask=mask).last_hidden_state
        vectors.append(((hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)).float().cpu())
    print(torch.cat(vectors).shape)


def classify(options: argparse.Namespace) -> None:
    """The class of each text."""
    from transformers import BertForSequenceClassification

    model, tokenizer = loaded(BertForSequenceClassification, options)
    texts = lines_of(options.data)[: options.count]
    order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
    found: dict[int, int] = {}
    for start in range(0, len(order), 64):
        places = order[start : start + 64]
        ids = tokenizer.encode_batch([texts[place] for place in places])
        rows = padded([[*row.ids[: options.context - 1], EOS] for row in ids]).to(options.device)
        with torch.no_grad(), torch.autocast(options.device, torch.bfloat16, enabled=options.device == "cuda"):
            chosen = model(rows, attention_mask=(rows != PAD).long()).logits.argmax(-1)
        found.update(zip(places, chosen.tolist(), strict=True))
    for place in range(len(texts)):
        print(found[place])


def generated(
    model: Any, tokenizer: Tokenizer, texts: list[str], options: argparse.Namespace, end: list[int], **how: Any
) -> list[str]:
    order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
    written: dict[int, str] = {}
    for start in range(0, len(order), 64):
        places = order[start : start + 64]
        ids = [tokenizer.encode(texts[place]).ids[-options.context // 2 :] + end for place in places]
        rows = padded(ids, left=not end).to(options.device)
        with torch.no_grad(), torch.autocast(options.device, torch.bfloat16, enabled=options.device == "cuda"):
            out = model.generate(
                rows, attention_mask=(rows != PAD).long(), max_new_tokens=options.max_new, pad_token_id=PAD, **how
            )
        for place, row in zip(places, out.tolist(), strict=True):
            written[place] = tokenizer.decode([token for token in row if token > EOS])
    return [written[place] for place in range(len(texts))]


def padded(rows: list[list[int]], left: bool = False) -> Tensor:
    longest = max(map(len, rows))
    fill = [[PAD] * (longest - len(row)) for row in rows]
    return torch.tensor([[*pad, *row] if left else [*row, *pad] for row, pad in zip(rows, fill, strict=True)])


def moved(batch: dict[str, Tensor], device: str) -> dict[str, Tensor]:
    return {name: tensor.to(device) for name, tensor in batch.items()}


def save(model: Any, tokenizer: Tokenizer, out: Path) -> None:
    model.save_pretrained(out)
    tokenizer.save(str(out / "words.json"))


def loaded(kind: Any, options: argparse.Namespace) -> tuple[Any, Tokenizer]:
    """The trained model; no text may be longer than it can read."""
    model = kind.from_pretrained(options.out).to(options.device).eval()
    options.context = model.config.max_position_embeddings
    options.max_new = min(options.max_new, options.context - 1)
    return model, Tokenizer.from_file(str(options.out / "words.json"))


VERBS = {
    "train_text": train_text,
    "train_pairs": train_pairs,
    "train_classes": train_classes,
    "evaluate": evaluate,
    "generate": generate,
    "embed": embed,
    "classify": classify,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=VERBS)
    parser.add_argument("--data", type=Path, required=True, help="lines of text, or pairs with a tab between them")
    parser.add_argument(
        "--out", type=Path, required=True, help="folder of the model: written by train, read by the rest"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    for name, default in (("dim", 256), ("depth", 6), ("heads", 4), ("vocab", 8192), ("context", 512)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, default in (("batch-tokens", 8192), ("steps", 1000), ("count", 1000), ("max-new", 100), ("prompt", 60)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    VERBS[options.verb](options)


if __name__ == "__main__":
    main()
