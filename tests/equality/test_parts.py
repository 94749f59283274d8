"""Single parts against the same parts of Hugging Face's models, with the same weights."""

from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from tests.parts import funnels, mixtures
from tests.parts.head_cases import DIM, VOCAB, encoder, noisy
from tests.parts.mixtures import EXPERTS, LENGTH, ROWS, seen
from torch import Tensor, nn

from anyformer.core import Frame, Part, PartSpec, Site, initialise
from anyformer.parts.channels.glu import GLU
from anyformer.parts.embeddings.factorized import Factorized
from anyformer.parts.heads.masked_words import MaskedWordsHead
from anyformer.parts.heads.pooled import Pooled
from anyformer.parts.inits.xavier import Xavier
from anyformer.parts.norms.rms import RMSNorm
from anyformer.parts.pools.first import First

HIDDEN, WIDTH = 48, 8
CONFIG = {"vocab_size": VOCAB, "hidden_size": DIM, "num_attention_heads": 4, "intermediate_size": 64}


def built(spec: PartSpec) -> Part:
    part = spec.build(Site(dim=DIM))
    initialise(part, Xavier(), 0)
    return part


def tokens() -> Tensor:
    return torch.randn(2, 7, DIM)


@pytest.mark.row("NAR-13", clause="equals nn.RMSNorm and T5LayerNorm")
@pytest.mark.parametrize("name", ["torch", "t5"])
def test_rms_norm_is_the_known_one(transformers: ModuleType, name: str) -> None:
    peers = {"torch": nn.RMSNorm, "t5": transformers.models.t5.modeling_t5.T5LayerNorm}
    theirs, norm, x = peers[name](DIM, eps=1e-6), RMSNorm().build(Site(dim=DIM)), tokens()
    norm.gain.data = theirs.weight.data = torch.randn(DIM)
    torch.testing.assert_close(norm(x, Frame()), theirs(x))


@pytest.mark.row("NAR-06", clause="equals transformers' T5 v1.1 gated-gelu net with copied weights")
def test_a_geglu_is_t5s(transformers: ModuleType) -> None:
    part, x = built(GLU(activation="gelu_tanh", hidden=HIDDEN)), tokens()
    config = transformers.T5Config(d_model=DIM, d_ff=HIDDEN, feed_forward_proj="gated-gelu")
    theirs = transformers.models.t5.modeling_t5.T5DenseGatedActDense(config).eval()
    theirs.wi_0.weight.data, theirs.wi_1.weight.data = part.up.weight.data.chunk(2)
    theirs.wo.weight.data = part.down.weight.data
    torch.testing.assert_close(part(x, Frame()).y, theirs(x))


@pytest.mark.row("NAR-09", clause="equals transformers' LLaMA MLP (gate, up, down), copied weights")
def test_a_swiglu_is_llamas(transformers: ModuleType) -> None:
    part, x = built(GLU(hidden=HIDDEN)), tokens()
    theirs = transformers.models.llama.modeling_llama.LlamaMLP(
        transformers.LlamaConfig(hidden_size=DIM, intermediate_size=HIDDEN)
    )
    theirs.gate_proj.weight.data, theirs.up_proj.weight.data = part.up.weight.data.chunk(2)
    theirs.down_proj.weight.data = part.down.weight.data
    torch.testing.assert_close(part(x, Frame()).y, theirs(x))


def copy_masked_words(head: MaskedWordsHead, dense: nn.Linear, norm: nn.LayerNorm) -> None:
    dense.weight.data, dense.bias.data = head.layer.weight.data, head.layer.bias.data
    norm.weight.data, norm.bias.data = head.gain.data, head.shift.data


def test_masked_words_are_berts(transformers: ModuleType) -> None:
    model, h = noisy(encoder(MaskedWordsHead()).build()), torch.randn(2, 5, DIM)
    theirs = transformers.models.bert.modeling_bert.BertLMPredictionHead(transformers.BertConfig(**CONFIG))
    copy_masked_words(model.head, theirs.transform.dense, theirs.transform.LayerNorm)
    theirs.decoder.weight.data, theirs.decoder.bias.data = model.embedding.weight.data, model.head.bias.data
    torch.testing.assert_close(model.head(h, Frame()), theirs(h), atol=1e-5, rtol=1e-5)


def test_masked_words_of_a_factorized_embedding_are_alberts(transformers: ModuleType) -> None:
    spec = encoder(MaskedWordsHead(activation="gelu_tanh"), Factorized(width=WIDTH))
    model, h = noisy(spec.build()), torch.randn(2, 5, DIM)
    config = transformers.AlbertConfig(embedding_size=WIDTH, hidden_act="gelu_new", **CONFIG)
    theirs = transformers.models.albert.modeling_albert.AlbertMLMHead(config)
    copy_masked_words(model.head, theirs.dense, theirs.LayerNorm)
    theirs.decoder.weight.data, theirs.decoder.bias.data = model.embedding.weight.data, model.head.bias.data
    torch.testing.assert_close(model.head(h, Frame()), theirs(h), atol=1e-5, rtol=1e-5)


def test_a_pooled_head_with_a_layer_is_berts_pooler(transformers: ModuleType) -> None:
    model, h = noisy(encoder(Pooled(pool=First(), layer="tanh")).build()), torch.randn(2, 5, DIM)
    theirs = transformers.models.bert.modeling_bert.BertPooler(transformers.BertConfig(**CONFIG))
    theirs.dense.weight.data, theirs.dense.bias.data = model.head.layer.weight.data, model.head.layer.bias.data
    torch.testing.assert_close(model.head(h, Frame()), theirs(h))


@pytest.mark.row("NAR-49", clause="equals transformers' SwitchTransformers router")
@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
def test_switch_routes_as_transformers_does(transformers: ModuleType, training: bool) -> None:
    switch = transformers.models.switch_transformers.modeling_switch_transformers
    part = mixtures.built(top_k=1, capacity=1.2).train(training)
    capacity = 6 if training else LENGTH
    config = transformers.SwitchTransformersConfig(
        d_model=mixtures.DIM, num_experts=EXPERTS, expert_capacity=capacity, router_jitter_noise=0.0
    )
    peer = switch.SwitchTransformersTop1Router(config).train(training)
    peer.classifier.weight.data, x = part.router.data.float(), mixtures.tokens().float()
    part, taps = part.float(), seen(part.float(), x)
    dispatch, gates, logits = peer(x)
    assert torch.equal(F.one_hot(taps["choices"], EXPERTS + 1)[:, :, 0, :-1], dispatch)
    torch.testing.assert_close(taps["gates"], gates * dispatch.sum(-1, keepdim=True))
    assert (dispatch.sum() < ROWS * LENGTH) == training
    row = x[:1]  # transformers averages the losses of rows
    loss = switch.load_balancing_loss_func(logits[:1].softmax(-1), logits[:1].argmax(-1))
    torch.testing.assert_close(part.train()(row, Frame()).losses["balance"], 0.01 * torch.as_tensor(loss))


@pytest.mark.row("NAR-50", clause="block shapes equal transformers' FunnelModel")
@pytest.mark.parametrize("length", [16, 13])
def test_blocks_have_the_shapes_of_transformers_funnel(transformers: ModuleType, length: int) -> None:
    """Without its special treatment of a first token [CLS], which the study's tokens do not have."""
    config = transformers.FunnelConfig(
        vocab_size=funnels.VOCAB, block_sizes=[4, 4, 4], d_model=funnels.DIM, n_head=funnels.HEADS, d_head=4,
        d_inner=16, separate_cls=False, truncate_seq=False, pooling_type="mean", pool_q_only=True,
    )  # fmt: skip
    peer = transformers.FunnelModel(config).eval()
    ids = torch.arange(length)[None] % funnels.VOCAB
    with torch.no_grad():
        states = peer.encoder(peer.embeddings(ids), torch.ones_like(ids), output_hidden_states=True)
    shapes = [state.shape[1] for state in states.hidden_states]
    assert shapes[1:] == funnels.lengths_of(funnels.small().build(), length) and shapes[0] == length
