"""What the encoders after BERT share: norms behind the branches, learned positions, words from one more layer."""

from collections.abc import Iterator

from anyformer.interop.family import NUM_LABELS
from anyformer.interop.mapping import ACTIVATIONS, Conversion, Entry, Variant, Variants, key, linear, norm, tensor
from anyformer.interop.shapes import FEED, LAYER, LOOK, block, layers
from anyformer.models import Encoder
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.heads.classifier import Classifier
from anyformer.parts.heads.hidden import Hidden
from anyformer.parts.heads.masked_words import MaskedWordsHead
from anyformer.parts.heads.pooled import Pooled
from anyformer.parts.heads.token_classifier import TokenClassifier
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.norms.layer import LayerNorm
from anyformer.parts.pools.first import First
from anyformer.parts.positions.learned import LearnedPosition

NORM = LayerNorm(eps=1e-12)
POST_NORM = Encoder(
    vocab=1,
    dim=1,
    types=2,
    stack=layers(block(Attention(heads=1, bias=True), MLP(bias=True), norm=NORM, place="post")),
    position=LearnedPosition(),
    entry_norm=NORM,
    head=MaskedWordsHead(),
)
SHAPE = (
    key("vocab_size", "vocab"),
    key("hidden_size", "dim"),
    key("num_hidden_layers", "stack.depth"),
    key("num_attention_heads", f"{LOOK}.heads"),
    key("intermediate_size", f"{FEED}.hidden"),
    key("max_position_embeddings", "max_len", default=512),
)
EPS = ("entry_norm.eps", f"{LAYER}.0.norm.eps", f"{LAYER}.1.norm.eps", "?head.eps")
DROPOUT = key("hidden_dropout_prob", "dropout", f"{LAYER}.0.dropout", f"{LAYER}.1.dropout", default=0.1)
COMMON = (
    key("type_vocab_size", "types", default=2, convert=Conversion(lambda types: types, lambda types: max(1, types))),
    key("hidden_act", f"{FEED}.activation", "?head.activation", default="gelu", convert=ACTIVATIONS),
    key("layer_norm_eps", *EPS, default=1e-12),
    DROPOUT,
    key("attention_probs_dropout_prob", f"{LOOK}.dropout", default=0.1),
)
FIXED = {"position_embedding_type": ("absolute",), "tie_word_embeddings": (True,)}
CLASSES = (key(NUM_LABELS, "?head.classes", default=2), key("hidden_size", "?head.hidden"))

BODY = Variant(Hidden())
"""No head."""


def masked_words(dense: str, normed: str, bias: str) -> Variant:
    """Words for masked places: one more layer, then the table of the embedding and a bias for each word."""
    layer = linear("head.layer", dense)
    gain, shift = tensor("head.gain", f"{normed}.weight"), tensor("head.shift", f"{normed}.bias")
    return Variant(MaskedWordsHead(), (*layer, *gain, *shift, *tensor("head.bias", bias)))


def pooler(dense: str) -> Variant:
    """BERT's pooler: a tanh layer on the first token."""
    return Variant(Pooled(pool=First(), layer="tanh"), (*linear("head.layer", dense),))


def text_classes(dense: str, classes: str = "classifier") -> Variant:
    """A class for each text, from the first token: a tanh layer, then the classes."""
    head = Classifier(classes=2, pool=First(), hidden=1)
    return Variant(head, (*linear("head.layer", dense), *linear("head.classes", classes)))


def token_classes() -> Variant:
    """A class for each token."""
    return Variant(TokenClassifier(classes=2), (*linear("head.classes", "classifier"),))


def encoder_heads(name: str, words: Variant, texts: tuple[bool, Variant], pooled: Variant) -> Variants:
    """The heads of a family with this class name, by architecture and whether the file has a pooler. `texts`: the head
    for classes of texts, and whether it has one."""
    return Variants(
        {
            (f"{name}ForMaskedLM", False): words,
            (f"{name}ForMaskedLM", True): words,  # an older file, with a pooler that is not used
            (f"{name}ForSequenceClassification", texts[0]): texts[1],
            (f"{name}ForTokenClassification", False): token_classes(),
            (f"{name}Model", True): pooled,
            (f"{name}Model", False): BODY,
        }
    )


def bert_entry(theirs: str, types: bool = True) -> Iterator[Entry]:
    """Tokens, positions, types, norm."""
    yield from tensor("embedding.weight", f"{theirs}.word_embeddings.weight")
    yield from tensor("position.table.weight", f"{theirs}.position_embeddings.weight")
    if types:
        yield from tensor("types.weight", f"{theirs}.token_type_embeddings.weight")
    yield from norm("entry_norm", f"{theirs}.LayerNorm")


def bert_layers(spec: Encoder, theirs: str) -> Iterator[Entry]:
    """The layers, by the names that BERT gave them."""
    for n in range(spec.stack.depth):
        ours, layer = f"stack.layers.{n}.branches", f"{theirs}.{n}"
        names = [f"{layer}.attention.self.{name}" for name in ("query", "key", "value")]
        yield from linear(f"{ours}.0.part.qkv", *names)
        yield from linear(f"{ours}.0.part.out", f"{layer}.attention.output.dense")
        yield from linear(f"{ours}.1.part.up", f"{layer}.intermediate.dense")
        yield from linear(f"{ours}.1.part.down", f"{layer}.output.dense")
        yield from norm(f"{ours}.0.after", f"{layer}.attention.output.LayerNorm")
        yield from norm(f"{ours}.1.after", f"{layer}.output.LayerNorm")
