"""Translators from before the Transformer: encoder-decoders whose halves meet in other ways than by attention heads."""

from collections.abc import Iterator, Mapping
from typing import Any

from anyformer.core import ModelSpec, decode

Tree = Mapping[str, Any]
GRU, LSTM, MIN_GRU = ({"kind": kind} for kind in ("gru", "lstm", "min_gru"))


def branch(part: Tree, **fields: Any) -> Tree:
    """A layer without norm and residual, as recurrent networks are stacked."""
    return {"part": part, "place": "none", "join": {"kind": "replace"}, **fields}


def translator(encoder: list[Tree], decoder: list[Tree], depth: int = 2, **sizes: int) -> ModelSpec:
    halves = {
        name: {**sizes, "stack": {"depth": depth, "blocks": {"layer": {"branches": branches}}}}
        for name, branches in (("encoder", encoder), ("decoder", decoder))
    }
    return decode(ModelSpec, {"kind": "encoder_decoder", **halves})


def from_encoder(part: Tree, **fields: Any) -> Tree:
    return {"kind": "init_from_encoder", "part": part, **fields}


def translators(**sizes: int) -> Iterator[tuple[str, ModelSpec]]:
    """The state alone, in one direction and two; attention of both kinds; deep ones; convolutions, looking or not."""
    cross = {"kind": "cross", "part": {"kind": "luong_attention"}}
    both = {"kind": "bidirectional", "part": GRU}
    ahead = branch({"kind": "unidirectional", "part": LSTM})
    yield "rnn", translator([ahead], [branch(from_encoder(LSTM))], **sizes)
    scan = branch({"kind": "unidirectional", "part": MIN_GRU, "direction": "back"})
    yield "scan", translator([scan], [branch(from_encoder(MIN_GRU, bridge="project"))], **sizes)
    yield "luong", translator([branch(both)], [branch(from_encoder(GRU)), branch(cross)], **sizes)
    look = {
        "kind": "attention_fed",
        "part": from_encoder(GRU, bridge="project"),
        "look": {"kind": "additive_attention"},
    }
    yield "bahdanau", translator([branch(both)], [branch(look)], depth=1, **sizes)
    find = {"kind": "attention_fed", "part": LSTM, "look": {"kind": "additive_attention"}, "gives": "state_and_context"}
    above = branch({"kind": "half_stream", "part": LSTM, "half": "added"})
    yield "gnmt", translator([ahead], [branch(find), above], depth=1, **sizes)
    turns = [
        branch({"kind": "unidirectional", "part": LSTM, "direction": direction}) for direction in ("ahead", "back")
    ]
    fast = [{**turn, "part": {"kind": "fast_forward", "part": turn["part"]}} for turn in turns]
    yield (
        "deep_att",
        translator(
            fast, [branch({**look, "part": GRU}), branch({"kind": "fast_forward", "part": LSTM})], depth=1, **sizes
        ),
    )
    gated = {"part": {"kind": "conv_glu"}, "place": "none", "join": {"kind": "scaled_add"}}
    again = {**gated, "part": {"kind": "cross", "part": {"kind": "multi_step_attention"}}}
    yield "convs2s", translator([gated], [gated, again], **sizes)
    block = {"part": {"kind": "byte_net", "dilation": 2}}
    stand = branch({"kind": "cross", "part": {"kind": "aligned"}}, join={"kind": "add"})
    yield "bytenet", translator([branch({"kind": "unfold"}), block], [stand, block], depth=1, **sizes)
    look, think = {"part": {"kind": "attention"}}, {"part": {"kind": "mlp"}}
    shorter = [look, branch({"kind": "shorten"}), think, branch({"kind": "pooled_queries", "part": look["part"]})]
    yield "funnel", translator(shorter, [look, {"part": {"kind": "cross", **look}}, think], depth=1, **sizes)
