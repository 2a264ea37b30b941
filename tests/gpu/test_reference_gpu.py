"""References on a GPU: assertions are not launched, draws are told, a lost context is the task's."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

from nanotriton.executor import Executor
from nanotriton.executor.common import probe
from nanotriton.executor.judge.reference.reference import Reference
from nanotriton.tasks.task import Task
from nanotriton.verdict import Fault

ROOT = Path(__file__).resolve().parents[2]
RIGHT = probe.CANDIDATE
WRONG = RIGHT.replace("x * 2 + 1", "x * 2.02 + 1")
NEIGHBOUR = Task(**probe.TASK)


def task(
    forward: str, inputs: str = "torch.randn(64, 33)", init: str = "pass", more: str = "", top: str = ""
) -> Task:
    return Task("t", f"""
import torch
import torch.nn as nn
import torch.nn.functional as F
{top}

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, x{more}):
        {forward}

def get_inputs():
    return [{inputs}]

def get_init_inputs():
    return []
""")  # fmt: skip


def alive() -> bool:
    return torch.ones(3, device="cuda").sum().item() == 3


# ---- assertions on the device ----


@pytest.mark.parametrize(
    "source, kinds",
    [
        (
            task(
                "return F.binary_cross_entropy(x, y, reduction='none').sum(1)",
                "torch.rand(64, 33), torch.rand(64, 33).round()",
                more=", y",
            ),
            {"plain", "edges", "moved plain"},
        ),
        (
            task(
                "return self.table[(10 * x).long()]",
                "torch.rand(64)",
                "self.table = nn.Parameter(torch.randn(10, 5))",
            ),
            {"plain"},
        ),
        (
            task(
                "return F.embedding((10 * x).long(), self.table)",
                "torch.rand(64)",
                "self.table = nn.Parameter(torch.randn(10, 5))",
            ),
            {"plain"},
        ),
        (
            task(
                "return x * keep", "torch.randn(64, 33), torch.bernoulli(torch.rand(64, 33))", more=", keep"
            ),
            {"plain", "edges", "moved plain", "sunk"},
        ),
        (
            task(
                "return F.nll_loss(F.log_softmax(x, 1), (33 * y).long(), reduction='none')",
                "torch.randn(64, 33), torch.rand(64)",
                more=", y",
            ),
            {"plain", "sunk"},
        ),
        (task("return x.gather(1, (32 * torch.sigmoid(x)).long())"), {"plain", "tied", "padded", "sunk"}),
    ],
)
def test_a_stress_that_a_kernel_would_assert_against_is_not_asked(source, kinds):
    reference = Reference(source, "cuda")
    in_range = {"positive", "uneven positive", "tied positive", "inside"}  # for some draws
    # "faint" is asked where it is survived, and is "padded" with something more
    found = {kind.replace("faint", "padded") for kind in reference.findings.kinds}
    assert found - in_range == kinds
    assert reference.findings.picky and alive()
    for candidate in "abcdef":
        for trial in reference.trials(b"secret", candidate):
            reference.answer(trial.kind, trial.inputs, trial.weights)
    assert alive()


# ---- contexts that are lost all the same ----

# It is no operator whose operands are looked at before.
ASSERTS = "torch._assert_async((x.abs() < {most}).all()); return x * 2 + 1"


def judged(executor: Executor, *pairs: tuple[Task, str]) -> list[tuple[str, str]]:
    verdicts = [future.result(300) for future in [executor.submit(task, source) for task, source in pairs]]
    return [(v.status, v.message) for v in verdicts]


@pytest.mark.parametrize("options", [{"mode": "replay", "time": True}, {"mode": "process", "policy": "none"}])
def test_a_context_that_the_reference_loses_is_never_the_candidates(options):
    under_stress, always = task(ASSERTS.format(most=9)), task(ASSERTS.format(most=1e-3))
    pairs = [
        (NEIGHBOUR, RIGHT),
        (under_stress, RIGHT),
        (always, RIGHT),
        (NEIGHBOUR, WRONG),
        (under_stress, WRONG),
        (always, WRONG),
        (under_stress, RIGHT + "#"),
    ]
    with Executor("cuda", timeout=60.0, **options) as executor:
        got = judged(executor, *pairs)
    assert [status for status, _ in got] == [
        "correct",
        "correct",
        "unsupported",
        "wrong_value",
        "wrong_value",
        "unsupported",
        "correct",
    ], got
    assert "ends the GPU's context, on its own inputs" in got[2][1]


def test_a_probability_is_planted_nowhere_that_a_kernel_asserts_against_it():
    """Timing looks for what an answer reads of its inputs by planting NaN in them."""
    source = task(
        "return F.binary_cross_entropy(x, y, reduction='none')",
        "torch.rand(512, 1024), torch.rand(512, 1024).round()",
        more=", y",
    )
    candidate = RIGHT.replace(
        "x * 2 + 1", "-(y * tl.maximum(tl.log(x), -100) + (1 - y) * tl.maximum(tl.log(1 - x), -100))"
    )
    candidate = candidate.replace("kernel(x_ptr, y_ptr,", "kernel(x_ptr, t_ptr, y_ptr,").replace(
        "    tl.store", "    y = tl.load(t_ptr + i, mask=i < n)\n    tl.store"
    )
    candidate = (
        candidate.replace("forward(self, x)", "forward(self, x, t)")
        .replace("(x, y, x.numel()", "(x, t, y, x.numel()")
        .replace("64", "1024")
    )
    with Executor("cuda", mode="replay", time=True, timeout=60.0) as executor:
        verdict = executor.submit(source, candidate).result(300)
    assert verdict.correct and verdict.speedup, verdict


# ---- draws ----


@pytest.mark.parametrize(
    "forward",
    [
        "return torch.sin(x) + 1e-9 * torch.randn_like(x)",
        "return F.dropout(torch.sin(x), 1e-4)",
        "return F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.1)",
        "return torch.sin(x) + torch.rand(33, generator=torch.Generator(x.device).manual_seed(3))",
        "return torch.sin(x) + 0.01 * torch.rand(33, device='cpu').to(x.device)",
    ],
)
def test_a_reference_that_draws_is_no_question(forward):
    with pytest.raises(Fault, match="the reference is not deterministic: it draws random numbers in forward"):
        Reference(task(forward), "cuda")


@pytest.mark.parametrize(
    "forward, init",
    [
        (
            "return torch.zeros(7, 33).index_add_(0, torch.arange(64) % 7, x)",
            "pass",
        ),
        (
            "return torch.zeros(33).scatter_add_(0, torch.arange(64 * 33) % 33, x.flatten())",
            "pass",
        ),
        ("return F.scaled_dot_product_attention(x[None], x[None], x[None])", "pass"),
        (
            "return F.scaled_dot_product_attention(*(x[None, None, :, :32].half(),) * 3, is_causal=True)",
            "pass",
        ),
        ("return self.rnn(x)[0]", "self.rnn = nn.LSTM(33, 8, 2)"),
        (
            "return self.layer(x[None, :, :32])",
            "self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0)",
        ),
        ("return F.dropout(torch.sin(x), 0.5, training=False)", "pass"),
        ("return self.conv(x[None, None])", "self.conv = nn.ConvTranspose2d(1, 4, 3)"),
    ],
)
def test_atomics_and_operators_that_may_draw_are_fine(forward, init):
    reference = Reference(task(forward, init=init), "cuda")
    assert "plain" in reference.findings.kinds and alive()


# ---- settings ----


def test_what_cuda_sets_when_a_task_starts_it_is_no_patch():
    """In a process that has not started it. On the CPU, because on a GPU the judge starts it first."""
    starts = task("return torch.sin(x)", top="torch.cuda.init()")
    code = f"""
import torch
from nanotriton.executor.judge.reference.reference import Reference
from nanotriton.tasks.task import Task
assert not torch.cuda.is_initialized()
Reference(Task("t", {starts.source!r}))
torch.cuda.manual_seed_all(3)
print(torch.cuda.get_device_properties(0).name, torch.nn.LSTM(3, 3).cuda()(torch.ones(2, 3).cuda())[0].shape)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_what_a_task_sets_is_gone_for_the_next_and_there_for_its_own():
    """A product in TF32 is a thousand times less exact, and the next task would be given its tolerance."""
    matmul = "return x.T @ x"
    torch.backends.cuda.matmul.allow_tf32 = False
    coarse = Reference(
        task(
            matmul,
            "torch.randn(512, 512)",
            top="torch.backends.cuda.matmul.allow_tf32 = True\ntorch.set_default_device('cuda')",
        ),
        "cuda",
    )
    assert not torch.backends.cuda.matmul.allow_tf32 and torch.get_default_device().type == "cpu"
    fine = Reference(task(matmul, "torch.randn(512, 512)"), "cuda")
    error = {}
    for name, reference in (("coarse", coarse), ("fine", fine), ("again", coarse)):
        answer = reference.answer("plain", 1, 1)
        error[name] = ((answer.own.double() - answer.exact).abs().max() / answer.exact.std()).item()
    assert error["fine"] < 1e-5 < 1e-4 < error["coarse"] == error["again"]
