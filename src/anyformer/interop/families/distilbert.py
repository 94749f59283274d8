"""DistilBERT: its masked words, body and classifier of tokens. BERT without token types and pooler."""

from collections.abc import Iterator

from anyformer.interop.encoders import BODY, POST_NORM, bert_entry, masked_words, token_classes
from anyformer.interop.family import NUM_LABELS, Family
from anyformer.interop.mapping import ACTIVATIONS, Entry, Variants, key, linear, norm
from anyformer.interop.shapes import FEED, LAYER, LOOK
from anyformer.models import Encoder

HEADS = Variants(
    {
        "DistilBertForMaskedLM": masked_words("vocab_transform", "vocab_layer_norm", "vocab_projector.bias"),
        "DistilBertForTokenClassification": token_classes(),
        "DistilBertModel": BODY,
    }
)


def tensors(spec: Encoder) -> Iterator[Entry]:
    yield from bert_entry("distilbert.embeddings", types=False)
    for n in range(spec.stack.depth):
        ours, theirs = f"stack.layers.{n}.branches", f"distilbert.transformer.layer.{n}"
        yield from linear(f"{ours}.0.part.qkv", *(f"{theirs}.attention.{name}_lin" for name in "qkv"))
        yield from linear(f"{ours}.0.part.out", f"{theirs}.attention.out_lin")
        yield from linear(f"{ours}.1.part.up", f"{theirs}.ffn.lin1")
        yield from linear(f"{ours}.1.part.down", f"{theirs}.ffn.lin2")
        yield from norm(f"{ours}.0.after", f"{theirs}.sa_layer_norm")
        yield from norm(f"{ours}.1.after", f"{theirs}.output_layer_norm")
    yield from HEADS.tensors(spec.head)


FAMILY = Family(
    model_types=("distilbert",),
    template=POST_NORM.with_("types", 0),
    tensors=tensors,
    base="distilbert.",
    keys=(
        key("architectures", "head", convert=HEADS.convert),
        key(NUM_LABELS, "?head.classes", default=2),
        key("vocab_size", "vocab"),
        key("dim", "dim"),
        key("n_layers", "stack.depth"),
        key("n_heads", f"{LOOK}.heads"),
        key("hidden_dim", f"{FEED}.hidden"),
        key("max_position_embeddings", "max_len", default=512),
        key("activation", f"{FEED}.activation", "?head.activation", default="gelu", convert=ACTIVATIONS),
        key("dropout", "dropout", f"{LAYER}.1.dropout", default=0.1),
        key("attention_dropout", f"{LOOK}.dropout", default=0.1),
    ),
    fixed={"tie_word_embeddings": (True,), "tie_weights_": (True,)},
    harmless=("qa_dropout", "seq_classif_dropout", "sinusoidal_pos_embds"),  # a table of sinusoids is stored as well
    unused=("*position_ids",),
    copies={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
)
