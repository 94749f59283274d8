"""Schemes of position and of masks against attention in Hugging Face's models, with the same weights."""

import pytest
import torch
from tests.parts.position_cases import DIM, HEADS, WORDS, attending, scheme

from anyformer.core import Frame, Heads, Marks, Site, initialise
from anyformer.ops.distance_buckets import bucket_of
from anyformer.parts.inits.normal import NormalInit
from anyformer.parts.masks.global_tokens import GlobalTokens
from anyformer.parts.masks.window import Window
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.positions.t5_bias import T5Bias
from anyformer.parts.positions.xl import XL


@pytest.mark.row("PRE-19", clause="relative position bias")
@pytest.mark.row("NAR-55", clause="buckets equal transformers' T5 for all offsets -300..300")
@pytest.mark.row(
    "POS-08",
    clause=(
        "e_ij gains b_h[bucket(j - i)], a scalar per head and bucket",
        "32 buckets, max_distance 128",
        "bidirectional: 16 buckets per sign, 8 exact, the rest log-spaced",
        "causal: all 32 buckets for the past, 16 exact, the rest log-spaced",
        "buckets equal transformers' T5 function for all offsets -300..300",
    ),
)
@pytest.mark.parametrize("two_sided", [False, True])
@pytest.mark.parametrize("buckets, max_distance", [(32, 128), (8, 20), (16, 64)])
def test_t5_buckets_are_those_of_transformers(buckets: int, max_distance: int, two_sided: bool) -> None:
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    offsets = torch.arange(-300, 301)
    theirs = t5.T5Attention._relative_position_bucket(offsets, two_sided, buckets, max_distance)
    assert torch.equal(bucket_of(offsets, buckets, max_distance, two_sided), theirs)
    module = scheme(T5Bias(buckets=buckets, max_distance=max_distance), Heads(HEADS, 4), causal=not two_sided)
    q, rows = torch.zeros(1, 1, HEADS, 4), Marks(offsets[None])
    bias = module.bias(q, q, Marks(torch.zeros(1, 1, dtype=torch.long)), rows)
    torch.testing.assert_close(bias.dense()[0, :, 0], module.table.module.weight[theirs].T)


@pytest.mark.row(
    "POS-08", clause=("e_ij gains b_h[bucket(j - i)], a scalar per head and bucket", "32 buckets, max_distance 128")
)
def test_t5_attention_is_that_of_transformers() -> None:
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    config = t5.T5Config(d_model=DIM, d_kv=8, num_heads=HEADS, dropout_rate=0.0, attn_implementation="eager")
    theirs, site = t5.T5Attention(config, has_relative_attention_bias=True), Site(dim=DIM, causal=False)
    ours = Attention(heads=HEADS, scale=1.0, position=T5Bias(share="")).build(site)
    initialise(ours, NormalInit(), 0)
    with torch.no_grad():
        ours.qkv.weight.copy_(torch.cat([theirs.q.weight, theirs.k.weight, theirs.v.weight]))
        ours.out.weight.copy_(theirs.o.weight)
        ours.position.table.module.weight.copy_(theirs.relative_attention_bias.weight)
    x = torch.randn(2, 40, DIM)
    torch.testing.assert_close(ours(x, Frame()).y, theirs(x)[0], atol=1e-5, rtol=1e-5)


@pytest.mark.row("POS-09", clause="score [(q + u) . k_j + (q + v) . (W_r R_(i-j))] / sqrt(d_k)")
def test_xl_attention_is_that_of_xlnet() -> None:
    xlnet = pytest.importorskip("transformers.models.xlnet.modeling_xlnet")
    config = xlnet.XLNetConfig(vocab_size=WORDS, d_model=DIM, n_layer=1, n_head=HEADS, d_inner=8, dropout=0.0)
    theirs, ours = xlnet.XLNetModel(config), attending(XL())
    layer, x, u_v = theirs.layer[0].rel_attn, torch.randn(2, 7, DIM), ours.position.leanings.module
    with torch.no_grad():
        ours.qkv.weight.copy_(torch.cat([w.flatten(1).T for w in (layer.q, layer.k, layer.v)]))
        ours.out.weight.copy_(layer.o.flatten(1))
        ours.position.project.weight.copy_(layer.r.flatten(1).T)
        for tensor, bias in ((u_v.u, layer.r_w_bias), (u_v.v, layer.r_r_bias)):
            bias.normal_()
            tensor.copy_(bias)
    waves, swapped = theirs.relative_positional_encoding(7, 7, 2), x.transpose(0, 1)
    y = layer(swapped, None, None, None, waves, None)[0].transpose(0, 1)
    torch.testing.assert_close(layer.layer_norm(x + ours(x, Frame()).y), y, atol=1e-5, rtol=1e-5)


@pytest.mark.row("XF-09")
def test_window_and_global_tokens_are_longformer() -> None:
    longformer = pytest.importorskip("transformers.models.longformer.modeling_longformer")
    config = longformer.LongformerConfig(
        hidden_size=16, num_attention_heads=2, attention_window=[8], attention_probs_dropout_prob=0.0
    )
    theirs = longformer.LongformerSelfAttention(config, layer_id=0).eval()
    part = Attention(heads=2, bias=True, mask=Window(size=5) | GlobalTokens(tokens=2)).build(Site(dim=16, causal=False))
    names = ("query", "key", "value")
    with torch.no_grad():
        for name in names:  # one set of projections for local and global tokens, as a mask rule has it
            theirs.get_submodule(f"{name}_global").load_state_dict(theirs.get_submodule(name).state_dict())
        part.qkv.weight.copy_(torch.cat([theirs.get_submodule(name).weight for name in names]))
        part.qkv.bias.copy_(torch.cat([theirs.get_submodule(name).bias for name in names]))
        part.out.weight.copy_(torch.eye(16))
        part.out.bias.zero_()
        x, is_global = torch.randn(3, 24, 16), torch.arange(24).expand(3, -1) < 2
        expected = theirs(x, is_global.float(), torch.zeros_like(is_global), is_global, True)[0]
        torch.testing.assert_close(part(x, Frame()).y, expected, atol=1e-5, rtol=1e-4)
