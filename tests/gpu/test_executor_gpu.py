"""The executor on a GPU, whole: verdicts, lost contexts, hangs, timing. Everyone gets their own verdict, whoever shared a worker."""

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

from nanotriton.executor.executor import Executor
from nanotriton.tasks.task import Task

TASK = Task(
    "double",
    """
import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, x):
        return x * 2 + 1

def get_inputs():
    return [torch.randn(512, 1000)]

def get_init_inputs():
    return []
""",
)
HEAD = "import torch\nimport torch.nn as nn\nimport triton\nimport triton.language as tl\n\n"
MODEL = """
class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        n = x.numel()
        kernel[lambda m: (triton.cdiv(n, m["BLOCK"]),)](x, y, n{block})
        return y
"""
KERNEL = """
@triton.jit
def kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    {store}
"""
RIGHT = "tl.store(y_ptr + i, x * 2 + 1, mask=i < n)"
BODIES = {
    "correct": RIGHT,
    "wrong_value": "tl.store(y_ptr + i, x * 2 + 1.01, mask=i < n)",
    "illegal_memory": "tl.store(y_ptr + i + (n.to(tl.int64) << 32), x, mask=i < n)",
    "out_of_bounds": "tl.store(y_ptr + i + BLOCK, x * 2 + 1, mask=i < n)",
    "timeout": "while tl.load(x_ptr) == tl.load(x_ptr):\n        tl.store(y_ptr + i, x * 2 + 1, mask=i < n)",
    "compile_error": "tl.store(y_ptr + i, torch.exp(x), mask=i < n)",
}


def candidate(body: str, tuned: bool = False) -> str:
    configs = ", ".join(
        f'triton.Config({{"BLOCK": {b}}}, num_warps={w})' for b, w in ((256, 1), (1024, 4), (4096, 8))
    )
    head = f"\n@triton.autotune([{configs}], key=['n'])" if tuned else ""
    return HEAD + head + KERNEL.format(store=body) + MODEL.format(block="" if tuned else ", BLOCK=1024")


def test_everyone_gets_their_own_verdict():
    with Executor(device="cuda", mode="replay", timeout=4.0) as executor:
        futures = []
        for turn in range(3):
            for status, body in BODIES.items():
                if status != "timeout" or turn == 0:
                    futures.append((status, executor.submit(TASK, candidate(body) + f"\n# {turn}\n")))
        got = [(want, future.result(timeout=100)) for want, future in futures]
    assert [(want, v.status, v.message) for want, v in got if v.status != want] == []
    right = next(v for want, v in got if want == "correct")
    assert (
        right.device == "cuda"
        and right.mode == "replay"
        and right.effective_launches == 1
        and right.speedup is None
    )


def test_timing_is_beside_the_reference_and_sane():
    with Executor(device="cuda", mode="replay", time=True, timeout=20.0) as executor:
        plain, tuned = (
            executor.submit(TASK, candidate(RIGHT, tuned)).result(timeout=100) for tuned in (False, True)
        )
    for v in (plain, tuned):
        assert v.status == "correct", v.message
        assert 1 < v.time_us < 100 and 1 < v.reference_us < 200
        assert v.speedup == pytest.approx(v.reference_us / v.time_us)


def test_a_task_of_many_gigabytes_beside_small_ones(card_alone):
    """It has the GPU alone for a while; nobody fails for want of memory."""
    if not card_alone:
        pytest.skip("needs the whole card: run this file with -n 0")
    # 4 GiB, and 4 GiB of answers
    huge = Task("huge", TASK.source.replace("torch.randn(512, 1000)", "torch.randn(1 << 30)"))
    with Executor(device="cuda", mode="replay", time=True, timeout=30.0) as executor:
        futures = [
            executor.submit(task, candidate(RIGHT) + f"\n# {i}\n") for i in range(3) for task in (TASK, huge)
        ]
        verdicts = [future.result(timeout=300) for future in futures]
    assert [(v.status, v.message) for v in verdicts if not v.correct] == []
    assert all(v.time_us > 1000 for v in verdicts[1::2])


def test_large_weights_are_not_sent():
    """Half a gigabyte of parameters, under the reference's name and under another one."""
    model = "        self.w = nn.Parameter(torch.randn(1 << 27))\n"
    task = Task(
        "weights",
        TASK.source.replace(
            "    def forward",
            f"    def __init__(self):\n        super().__init__()\n{model}\n    def forward",
        )
        .replace("x * 2 + 1", "x * self.w")
        .replace("torch.randn(512, 1000)", "torch.randn(1 << 27)"),
    )
    kernel = KERNEL.format(
        store="tl.store(y_ptr + i, x * tl.load(w_ptr + i, mask=i < n), mask=i < n)"
    ).replace("x_ptr, y_ptr", "x_ptr, w_ptr, y_ptr")
    sources = [
        HEAD
        + kernel
        + MODEL.format(block=", BLOCK=1024")
        .replace("(x, y, n", f"(x, self.{name}, y, n")
        .replace(
            "    def forward",
            f"    def __init__(self):\n        super().__init__()\n{model.replace('self.w', f'self.{name}')}\n    def forward",
        )
        for name in ("w", "other")
    ]
    with Executor(device="cuda", mode="replay", timeout=60.0) as executor:
        verdicts = [f.result(timeout=300) for f in [executor.submit(task, source) for source in sources]]
    assert [(v.status, v.message) for v in verdicts] == [("correct", "")] * 2
