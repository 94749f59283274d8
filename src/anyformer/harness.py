"""Runs as models of lm-evaluation-harness, which scores language models on its tasks (extra `lm-eval`).

`python -m anyformer.harness --model anyformer --model_args run=runs/NAME --tasks ...` is the command line of the
harness, with these models added. The model needs a tokenizer and predicts the next word.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import torch
from lm_eval.__main__ import cli_evaluate
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from torch.nn.utils.rnn import pad_sequence

from anyformer.core import Frame
from anyformer.errors import SpecError
from anyformer.generation.engine import Request
from anyformer.generation.samplers.greedy import Greedy
from anyformer.generation.samplers.sample import Sample
from anyformer.generation.samplers.sampler import Filter, Sampler
from anyformer.generation.samplers.top_k import TopK
from anyformer.generation.samplers.top_p import TopP
from anyformer.inference.text_generator import TextGenerator, Writers
from anyformer.interop.tokens import CONFIGS
from anyformer.run import Run, opened

DEFAULT_BATCH = 16
DEFAULT_MAX_NEW = 256
LIMITS = ("max_gen_toks", "max_new_tokens", "max_tokens")
"""Names of the largest number of new tokens in the options of a task."""


@register_model("anyformer")
class HarnessModel(TemplateLM):  # type: ignore[misc]  # without types
    """A run that the harness asks for likelihoods and continuations."""

    def __init__(
        self,
        run: str | Run,
        device: str | None = None,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        add_bos_token: bool | None = None,
    ):
        """`run`: the folder. `add_bos_token`: whether a text starts with <bos>; if not given, as the model was trained.
        `max_batch_size` is accepted because the harness passes it."""
        super().__init__()
        self.run = opened(run)
        if not torch.cuda.is_available():
            device = None  # the command line of the harness passes cuda unless told otherwise
        self.writer = TextGenerator(self.run.trained(device or "auto"))
        self.predictor = self.writer.predictor
        if self.predictor.contents.pair:
            raise SpecError(f"{self.run.folder}: is a model of pairs; lm-evaluation-harness needs a language model.")
        self.model = self.predictor.model.eval()
        self.batch = DEFAULT_BATCH if batch_size in (None, "auto") else int(batch_size or 0)
        self.starts = _starts_with_bos(self.run) if add_bos_token is None else add_bos_token

    @property
    def eot_token_id(self) -> int:
        return self.predictor.tokenizer.words.eos

    @property
    def prefix_token_id(self) -> int:
        return self.predictor.tokenizer.words.bos

    @property
    def max_length(self) -> int:
        """Longest sequence that the model reads."""
        return self.predictor.max_len

    @property
    def tokenizer_name(self) -> str:
        return self.run.tokenizer.fingerprint()

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        starts = self.starts if add_special_tokens is None else add_special_tokens
        return [self.prefix_token_id] * starts + self.predictor.tokenizer.encode(string)

    @torch.no_grad()
    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """The log-probability of each continuation, and whether it is the greedy one."""
        order = sorted(range(len(requests)), key=lambda index: -len(requests[index][1] + requests[index][2]))
        scores: dict[int, tuple[float, bool]] = {}
        for start in range(0, len(order), self.batch):
            part = order[start : start + self.batch]
            scores |= dict(zip(part, self._score([requests[index][1:] for index in part]), strict=True))
        return [scores[index] for index in range(len(requests))]

    def _score(self, pairs: Sequence[tuple[list[int], list[int]]]) -> Iterator[tuple[float, bool]]:
        """Context and continuation of each row; a row that is too long loses its beginning."""
        rows = [torch.tensor((context + words)[-(self.max_length + 1) :][:-1]) for context, words in pairs]
        tokens = pad_sequence(rows, batch_first=True).to(self.predictor.device)  # on the right, which no token sees
        states = self.model(tokens, logits=False).y  # [b t d]
        for state, row, (_, words) in zip(states, rows, pairs, strict=True):
            inside = state[None, len(row) - len(words) : len(row)]
            logits = self.model.output_head()(inside, Frame())[0].float()  # [n v], of the continuation only
            targets = torch.tensor(words, device=logits.device)
            chosen = logits.log_softmax(-1).gather(1, targets[:, None])
            yield chosen.sum().item(), bool((logits.argmax(-1) == targets).all())

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        totals = []
        for request in requests:
            windows = get_rolling_token_windows(
                self.tok_encode(request.args[0]), self.prefix_token_id, self.max_length, context_len=1
            )
            rows = [(None, *make_disjoint_window(window)) for window in windows]
            totals.append(sum(score for score, _ in self._loglikelihood_tokens(rows)))
        return totals

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        texts = [""] * len(requests)
        keys = [json.dumps(request.args[1], sort_keys=True) for request in requests]
        for _, group in groupby(sorted(range(len(requests)), key=keys.__getitem__), key=keys.__getitem__):
            rows = list(group)
            written = self._write([requests[row].args[0] for row in rows], requests[rows[0]].args[1])
            for row, text in zip(rows, written, strict=True):
                texts[row] = text
        return texts

    def _write(self, prompts: Sequence[str], options: Mapping[str, Any]) -> list[str]:
        """Continuations of prompts that share the options of their task."""
        limit = next((options[name] for name in LIMITS if options.get(name)), DEFAULT_MAX_NEW)
        if (room := self.max_length - limit) < 1:
            raise SpecError(f"max_gen_toks: {limit} new tokens leave no room in {self.max_length}.")
        until = options.get("until") or []
        words, writers = self.predictor.tokenizer, Writers(self.predictor.tokenizer.decode, _listed(until))
        requests = [
            Request(prompt=self.tok_encode(prompt)[-room:] or [words.words.bos], seed=row)
            for row, prompt in enumerate(prompts)
        ]
        texts = [""] * len(prompts)
        stream = self.writer.engine.stream(
            requests, _sampler(options), max_new=limit, stop=(self.eot_token_id,), watch=writers
        )
        for chunk in stream:
            texts[chunk.row] += writers.piece(chunk)
        return texts


def _starts_with_bos(run: Run) -> bool:
    """True if texts started with <bos> in training: always here, elsewhere if the tokenizer added it."""
    if "imported" not in run.environment:
        return True
    file = run.folder / CONFIGS[0]
    return bool(json.loads(file.read_text(encoding="utf-8")).get("add_bos_token")) if file.is_file() else False


def _listed(until: str | Sequence[str]) -> list[str]:
    return [one for one in ([until] if isinstance(until, str) else until) if one]


def _sampler(options: Mapping[str, Any]) -> Sampler:
    """Greedy, unless the task samples."""
    if not options.get("do_sample") or not options.get("temperature", 1.0):
        return Greedy()
    filters: list[Filter] = [TopK(k=options["top_k"])] if options.get("top_k") else []
    filters += [TopP(p=options["top_p"])] if options.get("top_p", 1.0) < 1.0 else []
    return Sample(temperature=options.get("temperature", 1.0), filters=tuple(filters))


if __name__ == "__main__":
    cli_evaluate()
