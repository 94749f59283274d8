"""lm-evaluation-harness: a run has the scores of the harness's own `hf` backend on the same weights."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.interop.folders import CASES, LONGEST, write_tokenizer

import anyformer
from anyformer.errors import SpecError

WORDS = [f"{first}{second}{third}" for first in "abcde" for second in "xyz" for third in "uvw"]
CHOICE = """
task: local_choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
"""
ROLLING = """
task: local_rolling
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{text}}}}"
metric_list: [{{metric: word_perplexity}}, {{metric: bits_per_byte}}]
"""
WRITING = """
task: local_writing
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{choices[0]}}}}"
generation_kwargs: {{until: ["z"], max_gen_toks: 8, do_sample: false}}
metric_list: [{{metric: exact_match}}]
"""


@pytest.fixture(scope="module")
def lm_eval() -> Any:
    return pytest.importorskip("lm_eval", reason="the adapter needs lm-evaluation-harness")


def write_tasks(folder: Path) -> None:
    rows = [
        {
            "question": " ".join(WORDS[number : number + 1 + number % 3]),
            "choices": [f" {WORDS[(number * step) % 45]}" for step in (3, 5, 7)],
            "answer": number % 3,
            "text": " ".join(WORDS[(number * step) % 45] for step in range(2, 5 + 3 * (number % 4))),
        }
        for number in range(1, 25)
    ]
    file = folder / "rows.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    for name, text in {"choice": CHOICE, "rolling": ROLLING, "writing": WRITING}.items():
        (folder / f"{name}.yaml").write_text(text.format(file=file))


def results(lm_eval: Any, model: Any, folder: Path) -> tuple[dict[str, Any], list[Any]]:
    """The scores of the three tasks, and the answer to every request."""
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(folder), include_defaults=False)
    tasks = ["local_choice", "local_rolling", "local_writing"]
    out = lm_eval.simple_evaluate(
        model, tasks=tasks, task_manager=manager, bootstrap_iters=0, log_samples=True, verbosity="ERROR"
    )
    scores = {task: {key: value for key, value in out["results"][task].items() if _is_score(key)} for task in tasks}
    return scores, [sample["resps"] for task in tasks for sample in out["samples"][task]]


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # the harness and its data library
def test_scores_of_local_tasks_equal_those_of_the_hf_backend(
    transformers: ModuleType, lm_eval: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lm_eval.models.huggingface import HFLM

    from anyformer.harness import HarnessModel

    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    folder = tmp_path / "model"
    peer = CASES["gpt2"].make(transformers, folder)
    write_tokenizer(folder, "<|endoftext|>")
    library = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), bos_token="<|endoftext|>", eos_token="<|endoftext|>"
    )
    library.pad_token = "<|endoftext|>"
    write_tasks(tmp_path)
    run = anyformer.from_pretrained(folder, tmp_path / "run")
    theirs, their_answers = results(lm_eval, HFLM(peer, tokenizer=library, batch_size=4, max_length=LONGEST), tmp_path)
    ours, answers = results(lm_eval, HarnessModel(run, batch_size=4), tmp_path)
    assert len(answers) == 72 and len({json.dumps(answer) for answer in answers[48:]}) > 5  # texts differ
    for task, scores in theirs.items():
        assert scores and ours[task] == pytest.approx(scores, rel=1e-5), task
    texts = [[one for one in _flat(each) if isinstance(one, str)] for each in (answers, their_answers)]
    numbers = [[one for one in _flat(each) if not isinstance(one, str)] for each in (answers, their_answers)]
    assert texts[0] == texts[1] and len(texts[0]) == 24
    assert numbers[0] == pytest.approx(numbers[1], rel=1e-5) and len(numbers[0]) == 24 * 3 * 2 + 24


def _is_score(key: str) -> bool:
    return key.endswith(",none") and "stderr" not in key


def _flat(answer: Any) -> list[Any]:
    """Numbers and texts of a nested answer, booleans as numbers."""
    if isinstance(answer, list | tuple):
        return [one for part in answer for one in _flat(part)]
    return [answer if isinstance(answer, str) else float(answer)]


@pytest.mark.slow
def test_the_command_line_prints_the_scores_of_a_task(transformers: ModuleType, lm_eval: Any, tmp_path: Path) -> None:
    CASES["gpt2"].make(transformers, tmp_path / "model")
    write_tokenizer(tmp_path / "model", "<|endoftext|>")
    write_tasks(tmp_path)
    anyformer.from_pretrained(tmp_path / "model", tmp_path / "run")
    options = f"--model anyformer --model_args run={tmp_path / 'run'} --tasks local_choice --include_path {tmp_path}"
    environment = {**os.environ, "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-m", "anyformer.harness", *options.split()]
    out = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, check=False)
    assert out.returncode == 0, out.stderr[-2000:]
    assert "|local_choice|" in out.stdout and "acc_norm" in out.stdout


def test_a_model_that_reads_pairs_is_refused(transformers: ModuleType, lm_eval: Any, tmp_path: Path) -> None:
    from anyformer.harness import HarnessModel

    CASES["t5"].make(transformers, tmp_path)
    write_tokenizer(tmp_path, "<pad>", "</s>", "<unk>")
    with pytest.raises(SpecError, match="needs a language model"):
        HarnessModel(anyformer.from_pretrained(tmp_path, tmp_path / "run"))
