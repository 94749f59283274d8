"""Reformer: attention inside the buckets of a hash, against a loop over pairs of tokens with equal hashes."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.core import Frame, Site, Work, capture, cost, initialise
from anyformer.errors import SpecError
from anyformer.models import Block, Branch, Decoder, Stack
from anyformer.parts.inits.normal import NormalInit
from anyformer.parts.mixers.reformer import Reformer, ReformerPart

DIM, HEADS = 8, 2
SHARED = "Reformer: attention inside LSH buckets, queries and keys shared"


def built(spec: Reformer, causal: bool = True, seed: int = 0) -> ReformerPart:
    part = spec.build(Site(dim=DIM, causal=causal))
    initialise(part, NormalInit(deviation=0.4), seed)
    return part


def bucket(part: ReformerPart, x: Tensor, head: int, round: int) -> int:
    """The nearest of all directions and their opposites."""
    if part.buckets == 1:
        return 0
    scores = [float(x.detach() @ part.rotations[head, :, round, n]) for n in range(part.buckets // 2)]
    scores += [-score for score in scores]
    return scores.index(max(scores))


def by_pairs(part: ReformerPart, x: Tensor) -> Tensor:
    """The equation: in every round look for tokens of the same bucket, step by step away from the query."""
    q, v = part.qv(x).unflatten(-1, (2, HEADS, -1)).unbind(2)
    y = torch.zeros_like(v)
    for b in range(x.shape[0]):
        for h in range(HEADS):
            hashes = [[bucket(part, token, h, r) for r in range(part.rounds)] for token in q[b, :, h]]
            for i in range(x.shape[1]):
                met = [i] * part.rounds if part.itself == "always" else []
                sides = [range(i - 1, -1, -1)] if part.causal else [range(i - 1, -1, -1), range(i + 1, x.shape[1])]
                for r in range(part.rounds):
                    for side in sides:
                        met += [j for j in side if hashes[j][r] == hashes[i][r]][: part.window]
                met = met or [i]
                keys = q[b, met, h]
                weights = (keys / keys.norm(dim=-1, keepdim=True) @ q[b, i, h]).softmax(0)
                y[b, i, h] = weights @ v[b, met, h]
    return part.out(y.flatten(2))


@pytest.mark.row("XF-10", clause=SHARED)
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both ways"])
@pytest.mark.parametrize("itself", ["alone", "always"])
@pytest.mark.parametrize("window", [3, 32], ids=["sorted", "pairs"])
def test_it_is_a_loop_over_pairs_of_equal_hash(window: int, itself: str, causal: bool) -> None:
    part = built(Reformer(heads=HEADS, buckets=4, rounds=2, window=window, itself=itself), causal)
    x = torch.randn(1, 16, DIM, generator=torch.Generator().manual_seed(1)).requires_grad_()
    loop, y = by_pairs(part, x), part(x, Frame()).y
    torch.testing.assert_close(y, loop, atol=1e-5, rtol=1e-4)
    leaves = (x, part.qv.weight, part.out.weight)
    wanted, grads = (torch.autograd.grad(z.square().sum(), leaves) for z in (loop, y))
    torch.testing.assert_close(grads, wanted, atol=1e-4, rtol=1e-3)


@pytest.mark.row("XF-10", clause="Reformer: with one bucket it equals full attention")
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both ways"])
def test_with_one_bucket_it_is_full_attention_with_tied_queries_and_keys(causal: bool) -> None:
    x = torch.randn(2, 9, DIM)
    for rounds in (1, 3):
        part = built(Reformer(heads=HEADS, buckets=1, rounds=rounds, window=64, itself="always"), causal)
        q, v = part.qv(x).unflatten(-1, (2, HEADS, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, F.normalize(q, dim=-1), v, is_causal=causal, scale=1.0)
        torch.testing.assert_close(part(x, Frame()).y, part.out(y.transpose(1, 2).flatten(2)), atol=1e-5, rtol=1e-4)


@pytest.mark.row("XF-10", clause="Reformer: with one bucket it equals full attention")
def test_a_token_sees_itself_only_if_it_sees_no_other() -> None:
    """As in the paper: full attention without its diagonal, but for the first token."""
    part, x = built(Reformer(heads=HEADS, buckets=1, window=64)), torch.randn(2, 9, DIM)
    q, v = part.qv(x).unflatten(-1, (2, HEADS, -1)).permute(2, 0, 3, 1, 4)
    mask = torch.ones(9, 9, dtype=torch.bool).tril(-1)
    mask[0, 0] = True
    y = F.scaled_dot_product_attention(q, F.normalize(q, dim=-1), v, mask, scale=1.0)
    torch.testing.assert_close(part(x, Frame()).y, part.out(y.transpose(1, 2).flatten(2)), atol=1e-5, rtol=1e-4)


def test_sorted_blocks_equal_all_pairs_with_padding_and_documents() -> None:
    """A captured tap makes the part compute all pairs."""
    x, positions = torch.randn(2, 40, DIM), torch.arange(40).expand(2, -1) % 20
    frame = Frame(positions=positions, segments=torch.arange(40).expand(2, -1) // 20, valid=positions < 17)
    for causal in (True, False):
        part = built(Reformer(heads=HEADS, buckets=4, rounds=3, window=5), causal)
        with capture(part, "meetings"):
            expected = part(x, frame).y
        torch.testing.assert_close(part(x, frame).y[frame.valid], expected[frame.valid], atol=1e-5, rtol=1e-4)


def test_near_tokens_share_a_bucket_more_often_the_more_rounds_there_are() -> None:
    near = F.normalize(torch.randn(200, 1, DIM), dim=-1).repeat(1, 2, 1) + 0.1 * torch.randn(200, 2, DIM)
    shares = []
    for rounds in (1, 2, 8):
        part = built(Reformer(heads=1, buckets=16, rounds=rounds, window=4))
        with capture(part, "meetings") as seen:
            part.qv.weight.data[:DIM] = torch.eye(DIM)
            part(near, Frame())
        shares.append((seen["meetings"][0][:, 0, 1, 0] > 0).float().mean().item())
    assert 0.3 < shares[0] < shares[1] < shares[2] and shares[2] > 0.95


def test_hashing_comes_from_the_seed() -> None:
    spec = Reformer(heads=HEADS)
    one, same, other = (built(spec, seed=seed).rotations for seed in (3, 3, 4))
    assert torch.equal(one, same) and not torch.equal(one, other)
    assert "rotations" in built(spec).state_dict()  # a loaded model hashes as the one that was trained


def test_step_by_step_beyond_the_window_it_is_the_same() -> None:
    part, x, pieces = built(Reformer(heads=HEADS, buckets=2, window=3)), torch.randn(2, 30, DIM), []
    state = part.init_state(2, 30)
    for at in range(30):
        out = part(x[:, at : at + 1], Frame(positions=torch.full((2, 1), at)), state)
        state, pieces = out.state, [*pieces, out.y]
    torch.testing.assert_close(torch.cat(pieces, dim=1), part(x, Frame()).y, atol=1e-5, rtol=1e-4)


def test_the_cost_is_linear_in_the_length() -> None:
    block = Block(branches=(Branch(part=Reformer(heads=HEADS, window=16)),))
    spec = Decoder(vocab=16, dim=DIM, max_len=4096, stack=Stack(blocks={"layer": block}, depth=1))
    short, long = (cost(spec, Work(batch=1, length=length)).total for length in (1024, 4096))
    assert long.flops_forward == 4 * short.flops_forward
    assert long.activation_bytes == pytest.approx(4 * short.activation_bytes, rel=0.01)


def test_an_odd_number_of_buckets_is_refused() -> None:
    with pytest.raises(SpecError, match="buckets=5 must be 1 or even"):
        Reformer(buckets=5)
