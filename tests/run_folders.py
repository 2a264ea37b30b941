"""Folders of runs that were never run, for tests of what reads them."""

import json
import random
from pathlib import Path

STATUSES = ["wrong_value", "correct", "syntax_error", "compile_error", "no_code"]
MESSAGES = {
    "wrong_value": "output[0, {n}] is {n}.5; the reference says -0.25 ({n} of 376 values differ)",
    "syntax_error": "line {n}: not Python: unmatched ')'",
    "compile_error": "CompilationError: NameError('x{n}' is not defined)",
    "no_code": "no fenced Python block defines ModelNew",
}
TASK = "import torch\n\n\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return torch.{op}(x)\n"
KERNEL = """Here it is.

```python
import triton
import triton.language as tl


@triton.jit
def kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    # number {n}
    col = tl.arange(0, BLOCK)
    tl.store(out_ptr + col, tl.{op}(tl.load(x_ptr + col)) * {n}, mask=col < n)


class ModelNew(nn.Module):
    def forward(self, x):
        return x
```"""


def sample(step: int, task: int, group: int, status: str, n: int, /, **changed) -> dict:
    """A row of samples.jsonl. `n` makes its completion and its message unlike others."""
    op = ["exp", "sin", "cos"][task % 3]
    verdict = {"status": status, "stage": "judge"}
    if status in MESSAGES:
        verdict["message"] = MESSAGES[status].format(n=n)
    reward = float(status == "correct")
    return {
        "step": step,
        "split": "train",
        "group": group,
        "task": f"task-{task}",
        "task_source": TASK.format(op=op),
        "completion": "" if status == "no_code" else KERNEL.format(n=n, op=op),
        "verdict": verdict,
        "finish_reason": "stop",
        "tokens": 100 + n % 50,
        "reward": reward,
        "advantage": reward - 0.25,
        "count": 1 + n % 3,
    } | changed


def many_samples(number: int, seed: int = 0, size: int = 8) -> list[dict]:
    """Rows in groups of `size`, 32 groups a step."""
    draw = random.Random(seed)
    rows = []
    for n in range(number):
        group = n // size
        step, task = 1 + group // 32, draw.randrange(200) if n % size == 0 else rows[-1]["_task"]
        status = draw.choices(STATUSES, [5, 4, 2, 1, 1])[0]
        rows.append(sample(step, task, group % 32, status, n) | {"_task": task})
    return [{key: value for key, value in row.items() if key != "_task"} for row in rows]


def metrics(steps: int, seed: int = 0, shift: float = 0.0) -> list[dict]:
    draw = random.Random(seed)
    rows = [{"stage": "grpo/test", "step": 0, "success": 0.4 + shift, "greedy": 0.5, "seconds": {}}]
    for step in range(1, steps + 1):
        right = min(90, int(30 + 40 * step / steps + 100 * shift + draw.randrange(12)))
        rows.append(
            {
                "stage": "grpo",
                "step": step,
                "reward": right / 100,
                "length": 100.0,
                "entropy": 0.5 / step,
                "statuses": {"correct": right, "wrong_value": 100 - right},
                "seconds": {"sample": 1.5},
            }
        )
    rows.append({"stage": "grpo/test", "step": steps, "success": 0.6 + shift, "greedy": 0.7, "seconds": {}})
    return rows


def write_run(folder: Path, rows: list[dict], samples: list[dict] = (), **settings) -> Path:
    """A run's folder with these files, as log.py and runs/run.py write them."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"seed": 0, "lr": 1e-4, "loss": "dapo"} | settings))
    for name, lines in (("metrics.jsonl", rows), ("samples.jsonl", samples)):
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder
