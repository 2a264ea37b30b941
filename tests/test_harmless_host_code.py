"""Host code that computes nothing for the answer is no reason to refuse a kernel: what it asks has an answer."""

import pytest
import torch

from nanotriton.executor.executor import Executor
from nanotriton.plan.plan import Choice
from nanotriton.tasks.task import Task
from tests.recording import HEAD, Refused, record
from tests.test_recorder import X, module

ROWS = Task(
    "row_scale",
    """
import torch, torch.nn as nn
class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(n))
    def forward(self, x):
        return x * self.scale + 3
def get_inputs():
    return [torch.randn(5, 48)]
def get_init_inputs():
    return [48]
""",
)
KERNEL = """
@triton.jit
def rows(x_ptr, s_ptr, o_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0) * n
    x = tl.load(x_ptr + row + at, mask=at < n)
    tl.store(o_ptr + row + at, x * tl.load(s_ptr + at, mask=at < n) + 3, mask=at < n)
"""
PLAIN = "rows[(x.shape[0],)](x, self.scale, out, x.shape[1], BLOCK=64)"
TUNED = """
tuned = triton.autotune([triton.Config({"BLOCK": b}, num_warps=w) for b, w in ((64, 2), (128, 4))], key=["n"])(rows)
"""


def candidate(forward: str, top: str = "") -> str:
    """A ModelNew whose forward has `out`, runs these lines and returns `out`."""
    lines = "\n".join("        " + line for line in forward.strip("\n").split("\n"))
    return (
        f"{HEAD}{KERNEL}{top}\n"
        "class ModelNew(nn.Module):\n    def __init__(self, n):\n        super().__init__()\n"
        "        self.scale = nn.Parameter(torch.randn(n))\n"
        f"    def forward(self, x):\n        out = torch.empty_like(x)\n{lines}\n        return out\n"
    )


HONEST = {
    "configurations that a generator leaves": (
        "def fitting(configs, given, **others):\n"
        "    yield from (config for config in configs if config.kwargs['BLOCK'] >= 48)\n\n"
        "configs = [triton.Config({'BLOCK': b}) for b in (16, 64, 128)]\n"
        "pruned = triton.autotune(configs, key=['n'], prune_configs_by={'early_config_prune': fitting})(rows)\n"
        "pruned[(x.shape[0],)](x, self.scale, out, x.shape[1])"
    ),
    "alignment of a weight": f"assert self.scale.data_ptr() % 16 == 0 and x[1].data_ptr() % 8 == 0\n{PLAIN}",
    "no overlap": f"assert x.data_ptr() + x.numel() * 4 <= out.data_ptr() or out.data_ptr() < x.data_ptr()\n{PLAIN}",
    "one storage": (
        "flat = out.view(-1)[48:]\n"
        "assert flat.untyped_storage().data_ptr() == out.untyped_storage().data_ptr()\n"
        "assert flat.data_ptr() - out.data_ptr() == 48 * 4\n"
        f"assert x.untyped_storage().data_ptr() != out.untyped_storage().data_ptr()\n{PLAIN}"
    ),
    "best_config after a launch": (
        "tuned[(x.shape[0],)](x, self.scale, out, x.shape[1])\n"
        "config = tuned.best_config\n"
        "assert config.kwargs['BLOCK'] in (64, 128) and config.num_warps in (2, 4)"
    ),
    "do_bench": (
        "time = triton.testing.do_bench(lambda: rows[(x.shape[0],)](x, self.scale, out, 48, BLOCK=64))\n"
        f"assert time > 0\n{PLAIN}"
    ),
    "a compiled kernel, launched without constants": (
        "compiled = rows.warmup(x, self.scale, out, x.shape[1], BLOCK=64, grid=(1,))\n"
        "compiled[(x.shape[0], 1, 1)](x, self.scale, out, x.shape[1])"
    ),
    "a NumPy integer in a grid": (
        "import numpy as np\n"
        "rows[(np.int32(x.shape[0]), np.int64(1))](x, self.scale, out, x.shape[1], BLOCK=64)"
    ),
    "launch options": (
        "rows[(x.shape[0],)](x, self.scale, out, x.shape[1], BLOCK=64, enable_fp_fusion=False, launch_pdl=True)"
    ),
    "properties": (
        "p = torch.cuda.get_device_properties(x.device)\n"
        "assert p.max_threads_per_block >= 256 and p.total_memory > 0 and str(p.uuid) and p.major >= 8\n"
        + PLAIN
    ),
    "a stream that is waited for": (
        "stream = torch.cuda.Stream()\nstream.wait_stream(torch.cuda.current_stream())\n"
        f"with torch.cuda.stream(stream):\n    {PLAIN}\ntorch.cuda.current_stream().wait_stream(stream)"
    ),
    "an event that is waited for": (
        f"stream, done = torch.cuda.Stream(), torch.cuda.Event()\nwith torch.cuda.stream(stream):\n    {PLAIN}\n"
        "    done.record()\ntorch.cuda.current_stream().wait_event(done)"
    ),
}


@pytest.fixture(scope="module")
def judged():
    with Executor(workers=2, timeout=20.0) as executor:
        futures = {name: executor.submit(ROWS, candidate(text, TUNED)) for name, text in HONEST.items()}
        return {name: future.result() for name, future in futures.items()}


@pytest.mark.parametrize("name", HONEST)
def test_harmless_host_code_is_correct(name, judged):
    assert judged[name].correct, f"{judged[name].status}: {judged[name].message}"


def test_a_stream_that_nobody_waits_for_is_refused():
    forward = "out = torch.empty_like(x)\nwith torch.cuda.stream(torch.cuda.Stream()):\n    out = add(x, x)\nreturn out"
    with pytest.raises(Refused, match="wait_stream"):
        record(module(forward), [X])
    waits = forward.replace("return", "torch.cuda.synchronize()\nreturn")
    assert len(record(module(waits), [X]).launches()) == 1


def test_an_answer_kept_by_its_inputs_address_is_wrong():
    top = "\nkept = {}\n"
    forward = f"key = x.data_ptr()\nif key not in kept:\n    {PLAIN}\n    kept[key] = out\nout = kept[key]"
    with Executor(workers=1, timeout=20.0) as executor:
        verdict = executor.submit(ROWS, candidate(forward, top)).result()
    assert verdict.status in ("wrong_value", "rule_violation"), verdict.message


def test_what_is_made_of_the_best_configuration_fits_what_ran():
    top = """
@triton.autotune([triton.Config({"BLOCK": b}) for b in (64, 32)], key=["n"])
@triton.jit
def partial_sums(x_ptr, o_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(o_ptr + tl.program_id(0), tl.sum(tl.load(x_ptr + at, mask=at < n, other=0)))
"""
    launch = "partial_sums[lambda m: (triton.cdiv(120, m['BLOCK']),)](x, y, 120)\n"
    forward = f"y = x.new_empty(8)\n{launch}size = 120 // partial_sums.best_config.kwargs['BLOCK']\n{launch}return y[:size]"
    plan = record(module(forward, top=top), [X])
    assert [len(step.alternatives) for step in plan.steps if isinstance(step, Choice)] == [1]
    assert [call.grid[0] for call in plan.launches()] == [2, 2]
    with pytest.raises(Refused, match="before its first launch"):
        record(module("return x if partial_sums.best_config else x", top=top), [X])
    assert isinstance(record(module(f"y = x.new_empty(8)\n{launch}return y", top=top), [X]).steps[0], Choice)


def test_an_empty_tensor_of_the_host_is_a_null_pointer():
    top = """
@triton.jit
def optional(x_ptr, bias_ptr, o_ptr, n, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    v = tl.load(x_ptr + at, mask=at < n)
    if HAS_BIAS:
        v += tl.load(bias_ptr + at, mask=at < n)
    tl.store(o_ptr + at, v, mask=at < n)
"""
    forward = "y = torch.empty_like(x)\noptional[(1,)](x, torch.empty({}), y, 120, HAS_BIAS=False, BLOCK=128)\nreturn y"
    plan = record(module(forward.format(0), top=top), [X])
    (launch,) = plan.launches()
    assert plan.storages[plan.tensors[launch.args[1][1]].storage].nbytes == 0
    with pytest.raises(Refused, match="cpu tensor"):
        record(module(forward.format(1), top=top), [X])


def test_a_number_that_triton_does_not_take_is_refused_with_what_it_takes():
    forward = "import numpy as np\ny = torch.empty_like(x)\nadd_kernel[(2,)](x, x, y, np.int64(120), BLOCK=64)\nreturn y"
    with pytest.raises(Refused, match=r"int\(n\)"):
        record(module(forward), [X])
    assert torch.empty(0).data_ptr() == 0  # outside of a recording torch answers itself
