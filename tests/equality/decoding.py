"""Decoding loops written out: token by token through a state."""

from typing import Any

import torch
from torch import Tensor, nn

from anyformer.core import Frame, Memory, Model


def step_by_step(model: Model, tokens: Tensor, prompt: int, memory: Memory | None = None) -> Tensor:
    """The logits of every token: the prompt in one call, then each token in a call of its own."""
    b, t = tokens.shape
    state, logits = model.init_state(b, t, memory), []
    for start, end in [(0, prompt), *((at, at + 1) for at in range(prompt, t))]:
        positions = torch.arange(start, end).expand(b, -1)
        out = model(tokens[:, start:end], Frame(positions=positions), state)
        state, logits = out.state, [*logits, out.y]
    return torch.cat(logits, dim=1)


@torch.no_grad()
def greedy(model: Model, prompt: Tensor, new: int, frame: Frame | None = None, memory: Memory | None = None) -> Tensor:
    """The `new` likeliest tokens after the prompts, [b new]; the frame of a ragged batch says where they stand."""
    b, t = prompt.shape
    frame = frame or Frame(positions=torch.arange(t).expand(b, -1))
    state, tokens, words = model.init_state(b, t + new, memory), prompt, []
    for _ in range(new):
        out, last = model(tokens, frame, state), last_token(frame)
        tokens, state = out.y.argmax(-1).gather(1, last), out.state
        frame = Frame(positions=frame.positions.gather(1, last) + 1)
        words.append(tokens)
    return torch.cat(words, dim=1)


def last_token(frame: Frame) -> Tensor:
    """Where each row has its last token, [b 1]."""
    valid = torch.ones_like(frame.positions) if frame.valid is None else frame.valid
    return (valid * torch.arange(valid.shape[1])).argmax(1, keepdim=True)


def generate(peer: Any, prompt: Tensor, exists: Tensor, new: int) -> Tensor:
    """What a Hugging Face model says after the prompts, [b new]."""
    words = peer.generate(prompt, attention_mask=exists, do_sample=False, max_new_tokens=new, pad_token_id=0)
    return words[:, prompt.shape[1] :]


def padded(prompts: list[Tensor], side: str) -> tuple[Tensor, Frame]:
    """Prompts of several lengths, filled up on the left or on the right, and the frame that says so."""
    tokens = nn.utils.rnn.pad_sequence(prompts, batch_first=True, padding_side=side)
    lengths = torch.tensor([len(prompt) for prompt in prompts])[:, None]
    gaps = tokens.shape[1] - lengths if side == "left" else torch.zeros_like(lengths)
    positions = torch.arange(tokens.shape[1]) - gaps
    return tokens, Frame(positions=positions.clamp(min=0), valid=(positions >= 0) & (positions < lengths))
