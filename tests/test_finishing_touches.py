"""Under strict torch may finish what kernels have done, with little data. It may not do the work."""

import pytest

from nanotriton.executor.executor import Executor
from nanotriton.executor.processes import LEAST, memory_share
from nanotriton.tasks.task import Task
from tests.recording import HEAD

ROWS = """
@triton.jit
def squares(x, y, out, n, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    d = tl.load(x + row * n + at, mask=at < n, other=0.0) - tl.load(y + row * n + at, mask=at < n, other=0.0)
    tl.store(out + row, tl.sum(d * d))

@triton.jit
def copy_row(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n), mask=at < n)

@triton.jit
def differences(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    d = tl.load(x + at, mask=at < n) - tl.load(y + at, mask=at < n)
    tl.store(out + at, d * d, mask=at < n)
"""


def loss(answer: str) -> Task:
    return Task(
        "loss",
        "import torch, torch.nn as nn\nclass Model(nn.Module):\n    def forward(self, x, y):\n"
        f"        return {answer}\n"
        "def get_inputs():\n    return [torch.randn(24, 200), torch.randn(24, 200)]\ndef get_init_inputs():\n    return []\n",
    )


def candidate(forward: str) -> str:
    lines = "\n".join("        " + line for line in forward.split("\n"))
    return f"{HEAD}{ROWS}\nclass ModelNew(nn.Module):\n    def forward(self, x, y):\n{lines}\n"


PER_ROW = "out = x.new_empty(24)\nsquares[(24,)](x, y, out, 200, BLOCK=256)\n"
MSE, SUM, ROW = (
    loss("((x - y) ** 2).mean()"),
    loss("((x - y) ** 2).sum().sqrt()"),
    loss("(x - y).abs()[:1].sum(1)"),
)
CASES = {
    "a mean of the rows": (MSE, PER_ROW + "return out.sum() / x.numel()", "correct"),
    "torch.mean": (MSE, PER_ROW + "return torch.mean(out) / 200", "correct"),
    "functions of a sum": (
        SUM,
        PER_ROW + "total = torch.sum(out)\nreturn torch.sqrt(torch.maximum(total, torch.zeros_like(total)))",
        "correct",
    ),
    "a function of everything": (
        loss("((x - y) ** 2).sqrt()"),
        "out = torch.empty_like(x)\ndifferences[(19,)](x, y, out, 4800, BLOCK=256)\nreturn torch.sqrt(out)",
        "rule_violation",
    ),
    "a root of the sum": (SUM, PER_ROW + "return torch.sum(out).sqrt()", "correct"),
    "a running sum of small counts": (
        MSE,
        PER_ROW + "return out.cumsum(0)[-1] / x.numel()",
        "correct",
    ),
    "a logarithm of a sum": (
        loss("torch.logsumexp(((x - y) ** 2).sum(1), 0)"),
        PER_ROW + "return torch.logsumexp(out, 0)",
        "correct",
    ),
    "a mean of everything": (
        MSE,
        "out = torch.empty_like(x)\ndifferences[(19,)](x, y, out, 4800, BLOCK=256)\nreturn out.mean()",
        "rule_violation",
    ),
    "element by element on the rows": (
        loss("((x - y) ** 2).sum(1, keepdim=True).expand(24, 100).contiguous()"),
        PER_ROW + "return (out[:, None].expand(24, 100) + 0)",
        "rule_violation",
    ),
    "a product of small vectors": (
        MSE,
        PER_ROW + "return torch.dot(out, torch.ones_like(out)) / 4800",
        "correct",
    ),
    "a product of small matrices": (
        MSE,
        PER_ROW + "return (out[None] @ torch.ones_like(out)[:, None])[0, 0] / 4800",
        "rule_violation",
    ),
    "all that counts, behind a copy": (
        ROW,
        "row = x.new_empty(200)\ncopy_row[(1,)](x, row, 200, BLOCK=256)\nreturn (row - y[0]).abs().sum().reshape(1)",
        "rule_violation",
    ),
}


@pytest.fixture(scope="module")
def judged():
    with Executor(workers=2, timeout=20.0) as executor:
        futures = {name: executor.submit(task, candidate(text)) for name, (task, text, _) in CASES.items()}
        return {name: future.result() for name, future in futures.items()}


@pytest.mark.parametrize("name", CASES)
def test_torch_may_finish_but_not_do_the_work(name, judged):
    assert judged[name].status == CASES[name][2], judged[name].message


def test_who_leaves_too_much_to_torch_reads_what_to_do(judged):
    assert "let a kernel reduce more" in judged["a mean of everything"].message


def test_a_process_may_take_its_share_of_the_machine(monkeypatch):
    pages = {"SC_PHYS_PAGES": 1 << 27, "SC_PAGE_SIZE": 4096}  # 512 GiB
    monkeypatch.setattr("os.sysconf", pages.__getitem__)
    assert memory_share(1) <= 128 << 30 and memory_share(1000) == LEAST
    assert memory_share(2) >= memory_share(4) >= LEAST
