"""What a candidate changes for the whole process it must put back: settings of torch's, and the random stream."""

import pytest

from tests.test_draws import task

TASK = task("return x.abs() + 1", "torch.randn(6, 32)")
KERNEL = """
import torch
import torch.nn as nn
import triton
import triton.language as tl
IMPORT


@triton.jit
def kernel(x, out, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + at, tl.abs(tl.load(x + at)) + 1)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        BUILD

    def forward(self, x):
        FORWARD
        out = torch.empty_like(x)
        kernel[(6,)](x, out, B=32)
        LAST
        return out
"""


def candidate(at_import="", build="pass", forward="pass", last="pass"):
    source = KERNEL
    for name, text in {"IMPORT": at_import, "BUILD": build, "FORWARD": forward, "LAST": last}.items():
        source = source.replace(name, text)
    return source


CHANGES = {
    "default dtype": candidate("torch.set_default_dtype(torch.bfloat16)"),
    "deterministic": candidate(forward="torch.use_deterministic_algorithms(True)"),
    "gradients": candidate(build="torch.set_grad_enabled(False)"),
    "random": candidate(forward="torch.manual_seed(7)"),
}
HARMLESS = {
    "the dtype is put back": candidate(forward="torch.set_default_dtype(torch.float16)", last="torch.set_default_dtype(torch.float32)"),
    "a seed of the weights": candidate(build="torch.manual_seed(3)"),
    "a context": candidate(forward="with torch.set_grad_enabled(False): y = x.detach()"),
    "a decorator": candidate(build="self.view = torch.no_grad()(lambda x: x)"),
    "gradients are put back": candidate(forward="before = torch.is_grad_enabled(); torch.set_grad_enabled(False)", last="torch.set_grad_enabled(before)"),
    "a precision": candidate("torch.backends.cuda.matmul.allow_tf32 = True"),
    "the usual again": candidate("torch.set_default_dtype(torch.float32)"),
}  # fmt: skip


@pytest.mark.parametrize("source", CHANGES.values(), ids=CHANGES)
def test_a_change_for_the_whole_process_is_refused(executors, source):
    verdict = executors(device="cpu", policy="strict").submit(TASK, source).result()
    assert verdict.status == "rule_violation" and "for the whole process" in verdict.message


@pytest.mark.parametrize("source", HARMLESS.values(), ids=HARMLESS)
def test_what_is_put_back_is_not(executors, source):
    verdict = executors(device="cpu", policy="strict").submit(TASK, source).result()
    assert verdict.status == "correct", verdict


def test_what_the_task_sets_a_candidate_may_set(executors):
    head = "torch.use_deterministic_algorithms(True)"
    given = task("return x.abs() + 1", "torch.randn(6, 32)", head=head)
    verdict = executors(device="cpu", policy="strict").submit(given, CHANGES["deterministic"]).result()
    assert verdict.status == "correct", verdict
