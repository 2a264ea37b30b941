"""README's first command on a machine with a GPU, short: a model from nothing, SFT, GRPO, held-out measurements."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

from nanotriton.executor import Executor
from nanotriton.tasks.synthetic import generate

ROOT = Path(__file__).parents[2]
SHORT = "--sft-steps 60 --sft-examples 600 --steps 3 --prompts 8 --group 4 --eval-tasks 16 --eval-every 2 --max-tokens 96"


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_default_command(tmp_path):
    start = [sys.executable, "-m", "torch.distributed.run", "train_grpo.py", "--out", str(tmp_path)]
    done = subprocess.run([*start, *SHORT.split()], cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    folder = tmp_path / "laptop"
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["heldout_samples"] == 32 and summary["heldout_tasks"] == 16
    losses = [row["loss"] for row in lines(folder / "sft" / "metrics.jsonl") if row["stage"] == "sft"]
    assert len(losses) == 60 and losses[-1] < losses[0] / 2
    steps = [row for row in lines(folder / "metrics.jsonl") if row["stage"] == "grpo"]
    assert len(steps) == 3 and all(row["samples"] == 32 and row["scored"] == 1 for row in steps)
    samples = lines(folder / "samples.jsonl")
    splits = {row["split"] for row in samples}
    assert splits == {"train", "dev/success", "dev/greedy", "test/success", "test/greedy"}
    assert sum(row["count"] for row in samples if row["split"] == "train") == 3 * 32
    assert not {row["verdict"]["status"] for row in samples} & {"infra_error", "unsupported", "weak_task"}
    assert (folder / "curves.png").exists() and (folder / "model" / "model.safetensors").exists()


def test_what_it_learns_to_write_is_right_on_a_gpu():
    tasks = generate("dev", 16, 0)
    with Executor(device="cuda", timeout=30.0) as executor:
        futures = [executor.submit(task, task.solution) for task in tasks]
        verdicts = [future.result(timeout=300) for future in futures]
    wrong = [
        (task.name, v.status, v.message) for task, v in zip(tasks, verdicts, strict=True) if not v.correct
    ]
    assert wrong == []
