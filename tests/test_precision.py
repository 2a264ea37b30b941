"""fp32 work done in less is a wrong value on signed inputs at every size, and another honest order of summation is right."""

import pytest
import torch
from torch import nn

from nanotriton.executor.judge.reference import examination
from nanotriton.executor.judge.reference.reference import Reference
from nanotriton.executor.judge.task.computing import Computing, in_tf32
from nanotriton.executor.judge.trials.trial import judge_trial
from nanotriton.tasks.task import Task
from nanotriton.verdict import Fault, ValueFault

SIZES = [64, 256, 1024, 4096, 16384]
DRAWS = {"signed": "randn", "positive": "rand"}


def matmul_task(k: int, draw: str) -> Task:
    source = (
        "import torch\nfrom torch import nn\n\n\nclass Model(nn.Module):\n    def forward(self, a, b):\n        return a @ b\n\n\n"
        f"def get_inputs():\n    return [torch.{draw}(24, {k}), torch.{draw}({k}, 20)]\n\n\ndef get_init_inputs():\n    return []\n"
    )
    return Task(f"matmul {k}", source)


def tf32(x: torch.Tensor) -> torch.Tensor:
    """fp32 rounded to TF32's 10 bits of mantissa, as tensor cores read their operands."""
    bits = x.contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


def in_blocks(a: torch.Tensor, b: torch.Tensor, size: int = 32) -> torch.Tensor:
    """Blocks of K one after another into one fp32 accumulator, as a tiled kernel does."""
    total = torch.zeros(a.shape[0], b.shape[1])
    for k in range(0, a.shape[1], size):
        total += a[:, k : k + size] @ b[k : k + size]
    return total


LESS = {
    "tf32": lambda a, b: in_blocks(tf32(a), tf32(b)),
    "bf16": lambda a, b: in_blocks(a.bfloat16().float(), b.bfloat16().float()),
    "fp16": lambda a, b: in_blocks(a.half().float(), b.half().float()),
    "fp16 result": lambda a, b: (a @ b).half().float(),
}
HONEST = {
    "tiled": in_blocks,
    "split in four": lambda a, b: sum(in_blocks(x, y) for x, y in zip(a.chunk(4, 1), b.chunk(4, 0))),
    "backwards": lambda a, b: in_blocks(a.flip(1), b.flip(0), 16),
    "three tf32 products": lambda a, b: (
        in_blocks(tf32(a), tf32(b))
        + in_blocks(tf32(a), tf32(b - tf32(b)))
        + in_blocks(tf32(a - tf32(a)), tf32(b))
    ),
}


@pytest.fixture(scope="module")
def reference():
    known = {}
    return lambda k, draw: known.setdefault((k, draw), Reference(matmul_task(k, DRAWS[draw])))


def judge(reference: Reference, run):
    """The worst of a candidate's trials; raises Fault where it fails one."""
    return [
        judge_trial(reference, trial, lambda inputs, _: (run(*inputs), {}))
        for trial in reference.trials(b"secret", "candidate")
    ]


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("k", SIZES)
def test_honest_orders_of_summation_pass(reference, k, draw):
    for name, run in HONEST.items():
        assert next(iter(judge(reference(k, draw), run))).kernelbench_allclose is not None, name


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("k", SIZES)
def test_less_than_fp32_is_a_wrong_value(reference, k, draw):
    for name, run in LESS.items():
        with pytest.raises(Fault) as caught:
            judge(reference(k, draw), run)
        fault = caught.value
        assert isinstance(fault, ValueFault) and fault.status == "wrong_value", name
        assert fault.reduced, (
            f"{name}: the message should be able to say that it looks like reduced precision"
        )


@pytest.mark.parametrize("k", [1024, 4096, 16384])
def test_kernelbenchs_own_tolerance_takes_tf32_for_fp32_on_its_inputs(reference, k):
    """KernelBench draws with torch.rand: there TF32 is within its 1e-4, which the verdict reports beside ours."""
    trial = reference(k, "positive").trials(b"secret", "candidate")[0]
    a, b = reference(k, "positive").inputs.draw("plain", trial.inputs)
    assert torch.allclose(LESS["tf32"](a, b), a @ b, atol=1e-4, rtol=1e-4)


TF32_TASK = """
import torch
from torch import nn


def short(x):
    if x.dtype != torch.float32:
        return x
    return (x.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)


class Model(nn.Module):
    def forward(self, a, b):
        return short(a) @ short(b)


def get_inputs():
    return [torch.{draw}(96, {k}), torch.{draw}({k}, 80)]


def get_init_inputs():
    return []
"""


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("k", [64, 1024])
def test_where_the_reference_works_in_tf32_a_candidate_may_too(monkeypatch, k, draw):
    """Its own TF32 cuts bits off here, as tensor cores do; a candidate's rounds them."""
    task = Task(f"short {k}", TF32_TASK.replace("{draw}", DRAWS[draw]).replace("{k}", str(k)))
    monkeypatch.setattr(examination, "in_tf32", lambda called, device: frozenset(["mm"]))
    short = Reference(task)
    trials = short.trials(b"secret", "candidate")
    assert len(trials) > 2  # its own errors are no breakdown
    for name in ("tf32", "fp16"):  # fp16 has TF32's bits, and its range does here
        if name == "tf32" or draw == "positive":
            judge(short, LESS[name])
    for run in HONEST.values():
        judge(short, run)
    eighths = lambda a, b: in_blocks(a.bfloat16().float(), b.bfloat16().float())
    for wrong in (eighths, lambda a, b: in_blocks(tf32(a), tf32(b)) * 1.01):
        if draw == "signed" or wrong is not eighths:
            with pytest.raises(ValueFault):
                judge(short, wrong)


CONVOLUTION_TASK = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(16, 5, 3, stride=2, padding=1)

    def forward(self, x):
        return self.conv(x)


def get_inputs():
    return [torch.randn(2, 16, 11, 13)]


def get_init_inputs():
    return []
"""


def test_where_products_cancel_tf32_may_be_further_off(monkeypatch):
    """A value of 20 among products of 12,000, which TF32 knows to a thousandth each: three of the secrets drew such."""
    monkeypatch.setattr(examination, "in_tf32", lambda called, device: frozenset(["convolution"]))
    reference = Reference(Task("convolution", CONVOLUTION_TASK))

    def judged(secret, shorten) -> None:
        def run(inputs, weights):
            conv = reference.modules.build(weights).conv
            with torch.no_grad():
                x, weight = shorten(inputs[0]), shorten(conv.weight)
                return nn.functional.conv2d(x, weight, conv.bias, 2, 1), {}

        for trial in reference.trials(secret, "x"):
            judge_trial(reference, trial, run)

    for secret in (b"s%d" % i for i in range(40)):
        judged(secret, tf32)
    with pytest.raises(ValueFault):
        judged(b"secret", lambda x: x.bfloat16().float())


def test_what_is_tf32_by_torchs_default(monkeypatch):
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    assert in_tf32({"convolution", "add"}, cuda) and not in_tf32({"convolution"}, cpu)
    assert not in_tf32({"mm", "bmm", "add"}, cuda)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert not in_tf32({"convolution"}, cuda)


@pytest.mark.parametrize(
    ("call", "length"),
    [
        (lambda x: x.sum(1), 96),
        (lambda x: torch.logsumexp(x, (0, 1)), 960),
        (lambda x: torch.softmax(x, 0), 10),
        (lambda x: torch.cumsum(x, -1), 96),
        (lambda x: torch.nn.functional.layer_norm(x, (96,)), 96),
        (lambda x: torch.nn.functional.batch_norm(x, None, None, training=True), 10),
        (lambda x: torch.nn.functional.group_norm(x[None], 2), 5 * 96),
        (lambda x: x @ x.t(), 96),
        (lambda x: torch.nn.functional.conv1d(x, torch.ones(4, 10, 3)), 30),
        (lambda x: x * 2, 1),
    ],
)
def test_how_many_numbers_a_reference_sums_for_a_value(call, length):
    with Computing() as seen:
        call(torch.randn(10, 96))
    assert seen.facts.length == length
