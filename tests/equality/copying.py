"""Which of a peer's tensors make up each of ours.

A table is the same for weights and for their gradients: it only renames, transposes and stacks. Its pieces, laid below
each other, are our tensor; they stay apart so that each is compared by its own size (a fused q, k, v).
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from anyformer.interop.encoders import POST_NORM, bert_entry, bert_layers, pooler
from anyformer.interop.families.bert import WORDS
from anyformer.interop.family import known_families
from anyformer.interop.mapping import Entry
from anyformer.parts.channels.glu import GLU
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.heads.hidden import Hidden
from anyformer.parts.heads.tied import Tied
from anyformer.parts.heads.untied import Untied

Pieces = tuple[Tensor, ...]
Table = dict[str, Pieces]


class Peer:
    """Reads the tensors of another implementation by name, and remembers which."""

    def __init__(self, model: nn.Module, pick: Callable[[nn.Parameter], Tensor]):
        self.tensors = {name: pick(parameter) for name, parameter in model.named_parameters()}
        self.unread = set(self.tensors)

    def __call__(self, name: str) -> Tensor:
        self.unread.discard(name)
        return self.tensors[name]

    def ignore(self, *endings: str) -> None:
        """Leaves aside what the peer does not use in this call."""
        self.unread = {name for name in self.unread if not name.endswith(endings)}


Tabulate = Callable[[Peer], Table]


def weights_of(model: nn.Module) -> Peer:
    return Peer(model, lambda parameter: parameter.detach())


def gradients_of(model: nn.Module) -> Peer:
    return Peer(model, lambda parameter: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)


@torch.no_grad()
def copy(peer: nn.Module, ours: nn.Module, tabulate: Tabulate) -> None:
    """Writes every parameter of ours from the peer's, and insists that none of either is left over."""
    read, own = weights_of(peer), dict(ours.named_parameters())
    table = tabulate(read)
    assert own.keys() == table.keys(), f"without a partner: {sorted(own.keys() ^ table.keys())}"
    assert not read.unread, f"not copied: {sorted(read.unread)}"
    for name, pieces in table.items():
        tensor = torch.cat(pieces)
        assert own[name].shape == tensor.shape, f"{name}: {tuple(own[name].shape)} from {tuple(tensor.shape)}"
        own[name].copy_(tensor)


def linear(read: Peer, ours: str, *theirs: str) -> Table:
    """Matrices [out, in] of the peer, stacked; with their biases where there are any."""
    table = {f"{ours}.weight": tuple(read(f"{name}.weight") for name in theirs)}
    if f"{theirs[0]}.bias" in read.tensors:
        table[f"{ours}.bias"] = tuple(read(f"{name}.bias") for name in theirs)
    return table


def norm(read: Peer, ours: str, theirs: str) -> Table:
    table = {f"{ours}.gain": (read(f"{theirs}.weight"),)}
    if f"{theirs}.bias" in read.tensors:
        table[f"{ours}.bias"] = (read(f"{theirs}.bias"),)
    return table


def only(read: Peer, ours: str, theirs: str) -> Table:
    """A tensor as it is."""
    return {ours: (read(theirs),)}


# ---- torch.nn


def multihead(read: Peer, ours: str = "", theirs: str = "", cross: bool = False) -> Table:
    """nn.MultiheadAttention; both names with their dot."""
    weight, bias = read(f"{theirs}in_proj_weight").chunk(3), read(f"{theirs}in_proj_bias").chunk(3)
    out = linear(read, f"{ours}out", f"{theirs}out_proj")
    if not cross:
        return {f"{ours}qkv.weight": weight, f"{ours}qkv.bias": bias} | out
    queries = {f"{ours}q.weight": weight[:1], f"{ours}q.bias": bias[:1]}
    return queries | {f"{ours}kv.weight": weight[1:], f"{ours}kv.bias": bias[1:]} | out


def torch_layer(read: Peer, ours: str, theirs: str, place: str, cross: bool = False) -> Table:
    """nn.TransformerEncoderLayer or, with cross-attention, nn.TransformerDecoderLayer; names with their dot."""
    table = multihead(read, f"{ours}branches.0.part.", f"{theirs}self_attn.")
    if cross:
        table |= multihead(read, f"{ours}branches.1.part.", f"{theirs}multihead_attn.", cross=True)
    last = 2 if cross else 1
    table |= linear(read, f"{ours}branches.{last}.part.up", f"{theirs}linear1")
    table |= linear(read, f"{ours}branches.{last}.part.down", f"{theirs}linear2")
    for branch in range(last + 1):
        table |= norm(read, f"{ours}branches.{branch}.{place}", f"{theirs}norm{branch + 1}")
    return table


def torch_transformer(read: Peer, layers: int, place: str) -> Table:
    """An embedding, nn.Transformer (with its final norms) and a projection tied to the embedding."""
    table = only(read, "encoder.embedding.weight", "words.weight")
    for half, cross in (("encoder", False), ("decoder", True)):
        table |= norm(read, f"{half}.exit_norm", f"transformer.{half}.norm")
        for n in range(layers):
            table |= torch_layer(read, f"{half}.stack.layers.{n}.", f"transformer.{half}.layers.{n}.", place, cross)
    return table


# ---- Hugging Face: the mappings of the importer


def mapped(read: Peer, entries: Iterable[Entry]) -> Table:
    """Our tensors by a mapping of `anyformer.interop`; a fused q, k, v in three pieces."""
    table = {entry.ours: tuple(entry.arrangement.ours(read(name)) for name in entry.theirs) for entry in entries}
    return {name: one[0].chunk(3) if ".qkv." in name and len(one) == 1 else one for name, one in table.items()}


def family(read: Peer, name: str, **changes: Any) -> Table:
    """The tensors of a family; `changes`: fields of its template, with __ in place of dots."""
    known = known_families()[name]
    spec = known.template
    for path, value in changes.items():
        spec = spec.with_(path.replace("__", "."), value)
    read.unread = {tensor for tensor in read.unread if not known.is_unused(tensor)}
    entries = list(known.tensors(spec))
    if not any(tensor.startswith(known.base) for tensor in read.tensors):  # a model without a head
        bare = [tuple(tensor.removeprefix(known.base) for tensor in entry.theirs) for entry in entries]
        entries = [entry._replace(theirs=names) for entry, names in zip(entries, bare, strict=True)]
    return mapped(read, entries)


def gpt2(read: Peer, layers: int) -> Table:
    return family(read, "gpt2", stack__depth=layers)


def openai_gpt(read: Peer, layers: int) -> Table:
    return family(read, "openai-gpt", stack__depth=layers)


def llama(read: Peer, layers: int) -> Table:
    return family(read, "llama", stack__depth=layers, head=Untied() if "lm_head.weight" in read.tensors else Tied())


def mamba(read: Peer, layers: int) -> Table:
    kind = "mamba" if "backbone.layers.0.mixer.x_proj.weight" in read.tensors else "mamba2"
    return family(read, kind, stack__depth=layers)


def bert(read: Peer, layers: int) -> Table:
    """BertForMaskedLM."""
    return family(read, "bert", stack__depth=layers)


def bert_body(read: Peer, layers: int, root: str) -> Table:
    """The embeddings and the layers of BERT or ELECTRA, whatever stands behind them."""
    body = POST_NORM.with_("stack.depth", layers)
    return mapped(read, [*bert_entry(f"{root}embeddings"), *bert_layers(body, f"{root}encoder.layer")])


def bert_for_pretraining(read: Peer, layers: int) -> Table:
    """BertForPreTraining: words, and whether the second sentence follows the first, as `several` heads."""
    words = [entry._replace(ours=entry.ours.replace("head.", "head.heads.words.")) for entry in WORDS.tensors]
    table = bert_body(read, layers, "bert.") | mapped(read, words)
    table |= linear(read, "head.heads.order.layer", "bert.pooler.dense")
    return table | linear(read, "head.heads.order.classes", "cls.seq_relationship")


def bert_alone(read: Peer, layers: int) -> Table:
    """BertModel without its pooler."""
    return family(read, "bert", stack__depth=layers, head=Hidden())


def bert_with_pooler(read: Peer, layers: int) -> Table:
    """BertModel."""
    return family(read, "bert", stack__depth=layers, head=pooler("").spec)


def roberta(read: Peer, layers: int) -> Table:
    """RobertaForMaskedLM."""
    return family(read, "roberta", stack__depth=layers)


def albert(read: Peer, groups: tuple[str, ...]) -> Table:
    """AlbertForMaskedLM: one set of weights for each group of layers; `groups` are the tags that we share them by."""
    layer = next(iter(POST_NORM.stack.blocks.values()))
    return family(read, "albert", stack__blocks={tag: replace(layer, share=tag) for tag in groups})


def xlnet(read: Peer, layers: int) -> Table:
    """XLNetModel without memory and token types."""
    return family(read, "xlnet", stack__depth=layers, head=Hidden())


def xlnet_with_segments(read: Peer, layers: int) -> Table:
    """XLNetModel with token types: `relative_segments` around `xl`."""
    table = {name.replace(".position.", ".position.inner."): pieces for name, pieces in xlnet(read, layers).items()}
    root = "transformer." if "transformer.mask_emb" in read.tensors else ""
    for n in range(layers):
        ours, theirs = f"stack.layers.{n}.branches.0.part.position", f"{root}layer.{n}.rel_attn"
        table |= only(read, f"{ours}.query_bias", f"{theirs}.r_s_bias")
        table[f"{ours}.segment_bias"] = (read(f"{theirs}.seg_embed").flatten(0, 1),)
    return table


def xlnet_for_words(read: Peer, layers: int, mask: int, stack: Callable[[Peer, int], Table] = xlnet) -> Table:
    """XLNetLMHeadModel. Its queries start from a vector of their own, ours from the row of <mask>; scores are untied
    then, since that row scores nothing with them."""
    words, query = read("transformer.word_embedding.weight"), read("transformer.mask_emb")[0]
    table = stack(read, layers) | only(read, "head.words.bias", "lm_loss.bias")
    table["embedding.weight"] = (words[:mask], query, words[mask + 1 :])
    return table | {"head.words.weight": (words,)}


def t5(read: Peer, layers: int) -> Table:
    """T5ForConditionalGeneration: the first layer of each half owns the bias of all."""
    gated = "encoder.block.0.layer.1.DenseReluDense.wi_0.weight" in read.tensors
    return family(
        read,
        "t5",
        encoder__stack__depth=layers,
        decoder__stack__depth=layers,
        encoder__stack__blocks__layer__branches__1__part=GLU() if gated else MLP(),
        decoder__head=Untied() if "lm_head.weight" in read.tensors else Tied(),
    )
