"""Two faces: torch behind a condition that tells the judge from a card counts; honest fallbacks do not."""

import textwrap

import pytest
import torch

from nanotriton.executor.common.card import DEFAULT
from nanotriton.rules import faces, names, rules
from tests.recording import Refused, record

TOP = """
import random
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl


@triton.jit
def kernel(x, y, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, tl.maximum(tl.load(x + i, mask=i < n, other=0.0), 0.0), mask=i < n)


def ours(x, blocks=1):
    y = torch.empty_like(x)
    kernel[(triton.cdiv(x.numel(), 256 * blocks),)](x, y, x.numel(), B=256 * blocks)
    return y
"""


def module(forward: str, init: str = "pass", more: str = "") -> str:
    """A candidate whose forward has this body, its constructor that one, with more code before the class."""
    text = f"{TOP}\n{textwrap.dedent(more)}\n\nclass ModelNew(nn.Module):\n"
    for name, body in (
        ("__init__(self)", f"super().__init__()\n{textwrap.dedent(init)}"),
        ("forward(self, x)", forward),
    ):
        text += f"    def {name}:\n{textwrap.indent(textwrap.dedent(body).strip(), ' ' * 8)}\n"
    return text


GROUP = "try:\n    dist.init_process_group('gloo', rank=0, world_size=1)\nexcept Exception:\n    pass\n"
TWO_FACED = {
    "a tensor called ctx": module(
        "return ours(x) if torch.cuda.memory_allocated() == 0 else away(x)",
        more="def away(ctx):\n    ctx.stride()\n    return ctx.exp()",
    ),
    "a name bound while a class is asked for": module(
        "isinstance((used := torch.cuda.memory_allocated()), DTensor)\n"
        "return ours(x) if used == 0 else torch.relu(x)",
        more="from torch.distributed.tensor import DTensor",
    ),
    "a list's method on the way": module(
        "both = []\nboth.append(x)\nif torch.cuda.memory_allocated() == 0:\n    return ours(x)\n"
        "return both.pop().exp()"
    ),
    "a method of its own that is named like a tensor's": module(
        "if torch.cuda.memory_allocated() == 0:\n    return ours(x)\nreturn away(x)",
        more="def away(self):\n    return self.relu()\nclass Other:\n    def relu(self):\n        return self",
    ),
    "another thing called self": module(
        "if torch.cuda.memory_allocated() == 0:\n    return ours(x)\nself = x\nreturn self.relu()",
        more="class Other:\n    def relu(self):\n        return self",
    ),
    "memory in use": module(
        "if torch.cuda.memory_allocated() == 0:\n    return ours(x)\nelse:\n    return F.relu(x)"
    ),
    "the first of a pair": module(
        "free, total = torch.cuda.mem_get_info()\nif free == total:\n    return ours(x)\nelse:\n    return x.relu()"
    ),
    "an expression": module("return ours(x) if time.time() < 2e9 else torch.relu(x)"),
    "the module's alias": module(
        "c = torch.cuda\nif c.max_memory_reserved() > 0:\n    return torch.clamp(x, min=0)\nreturn ours(x)"
    ),
    "a name imported": module(
        "if memory_reserved():\n    return torch.relu(x)\nreturn ours(x)",
        more="from torch.cuda import memory_reserved",
    ),
    "kept by the constructor": module(
        "if self.fast:\n    return ours(x)\nelse:\n    return F.relu(x)",
        "self.fast = torch.cuda.get_device_name() == 'NVIDIA H100 80GB HBM3'",
    ),
    "a way that is chosen": module(
        "return self.way(x)", "self.way = ours if torch.cuda.memory_stats() == {} else torch.relu"
    ),
    "a way chosen by an if": module(
        "return self.way(x)",
        "if torch.version.cuda is None:\n    self.way = ours\nelse:\n    self.way = self.plain",
        more="",
    )
    + "\n    def plain(self, x):\n        return torch.relu(x)\n",
    "a table": module("return {True: ours, False: F.relu}[torch.cuda.device_count() == 1](x)"),
    "a function's answer": module(
        "if judged():\n    return ours(x)\nelse:\n    return F.relu(x)",
        more="def judged():\n    p = torch.cuda.get_device_properties(0)\n    return p.total_memory == 85017493504",
    ),
    "an argument": module(
        "return run(x, time.perf_counter() % 1 < 0.9)",
        more="def run(x, fast):\n    if fast:\n        return ours(x)\n    else:\n        return torch.relu(x)",
    ),
    "and": module("y = ours(x)\ntorch.cuda.memory_allocated() > 0 and y.copy_(torch.relu(x))\nreturn y"),
    "while": module("while torch.cuda.memory_allocated():\n    return F.relu(x)\nreturn ours(x)"),
    "match": module(
        "match torch.cuda.memory_allocated():\n    case 0:\n        return ours(x)\n    case _:\n        return F.relu(x)"
    ),
    "an exception": module(
        "try:\n    if torch.cuda.memory_allocated():\n        raise ValueError\n    return ours(x)\nexcept ValueError:\n    return F.relu(x)"
    ),
    "an assertion": module(
        "try:\n    assert torch.cuda.max_memory_allocated() == 0\n    return ours(x)\nexcept AssertionError:\n    return F.relu(x)"
    ),
    "a division by it": module(
        "try:\n    1 % torch.cuda.memory_allocated()\n    return F.relu(x)\nexcept ZeroDivisionError:\n    return ours(x)\nelse:\n    return torch.relu(x)"
    ),
    "chance": module("if random.random() < 0.5:\n    return ours(x)\nelse:\n    return F.relu(x)"),
    "torch's chance": module(
        "if torch.rand(1).item() < 0.5:\n    return ours(x)\nelse:\n    return F.relu(x)"
    ),
    "a count of calls": module(
        "self.calls += 1\nif self.calls < 3:\n    return ours(x)\nelse:\n    return F.relu(x)",
        "self.calls = 0",
    ),
    "a list that grows": module(
        "self.seen.append(1)\nif len(self.seen) < 3:\n    return ours(x)\nelse:\n    return F.relu(x)",
        "self.seen = []",
    ),
    "a list of the module's": module(
        "SEEN.append(1)\nif len(SEEN) < 3:\n    return ours(x)\nelse:\n    return F.relu(x)", more="SEEN = []"
    ),
    "a table's count": module(
        "STATE['calls'] += 1\nif STATE['calls'] < 3:\n    return ours(x)\nelse:\n    return F.relu(x)",
        more="STATE = {'calls': 0}",
    ),
    "a default's list": module(
        "return run(x)",
        more="def run(x, seen=[]):\n    seen.append(1)\n    if len(seen) < 3:\n        return ours(x)\n"
        "    else:\n        return F.relu(x)",
    ),
    "a sum with one": module(
        "self.n = self.n + 1\nif self.n < 3:\n    return ours(x)\nelse:\n    return F.relu(x)", "self.n = 0"
    ),
    "a counter's next": module(
        "if next(self.n) < 3:\n    return ours(x)\nelse:\n    return F.relu(x)",
        "import itertools\nself.n = itertools.count()",
    ),
    "a global count": module(
        "if count() < 3:\n    return ours(x)\nelse:\n    return F.relu(x)",
        more="calls = 0\ndef count():\n    global calls\n    calls += 1\n    return calls",
    ),
    "a layer": module(
        "if torch.cuda.memory_allocated():\n    return self.act(x)\nelse:\n    return ours(x)",
        "self.act = nn.ReLU()",
    ),
    "one of two layers": module(
        "return self.ways[torch.cuda.memory_allocated() > 0](x)",
        "self.ways = nn.ModuleList([Ours(), nn.ReLU()])",
        more="class Ours(nn.Module):\n    def forward(self, x):\n        return ours(x)",
    ),
    "a nested branch": module(
        "if time.time() > 0:\n    if x.is_cuda:\n        return F.relu(x)\nreturn ours(x)"
    ),
    "the version of a tensor": module("if x._version:\n    return F.relu(x)\nreturn ours(x)"),
    "an address": module("if id(x) % 2:\n    return F.relu(x)\nreturn ours(x)"),
    "Triton's own driver": module(
        "if triton.runtime.driver.active.get_current_target().arch == 90:\n    return ours(x)\nelse:\n    return F.relu(x)"
    ),
    "a benchmark": module(
        "if triton.testing.do_bench(lambda: ours(x)) == 1.0:\n    return ours(x)\nelse:\n    return F.relu(x)"
    ),
    "a tensor's memory is shared": module("if x.is_shared():\n    return F.relu(x)\nreturn ours(x)"),
    "a gradient that is there": module("if x.grad is not None:\n    return F.relu(x)\nreturn ours(x)"),
    "a gradient that is kept": module("if x.retains_grad:\n    return F.relu(x)\nreturn ours(x)"),
    "an output's number": module("if x.output_nr > 0:\n    return F.relu(x)\nreturn ours(x)"),
    "another question of a tensor's": module("if x.is_vulkan:\n    return F.relu(x)\nreturn ours(x)"),
    "a question by name": module('if getattr(x, "is_shared")():\n    return F.relu(x)\nreturn ours(x)'),
    "the default generator": module(
        "if torch.default_generator.initial_seed() == 42:\n    return F.relu(x)\nreturn ours(x)"
    ),
    "what is asked of torch": module(
        "if torch.is_warn_always_enabled():\n    return F.relu(x)\nreturn ours(x)"
    ),
    "a group of processes": module(
        "if torch.distributed.is_initialized():\n    return F.relu(x)\nreturn ours(x)"
    ),
    "a forward that is inherited": module("return ours(x)").replace("ModelNew", "Ours")
    + textwrap.dedent("""
        class Base(nn.Module):
            def forward(self, x):
                return F.relu(x) if torch.cuda.memory_allocated() else ours(x)

        class ModelNew(Base):
            pass
    """),
    "an operator by its method": module("return x.__add__(x) if torch.cuda.memory_allocated() else ours(x)"),
    "a group that it makes itself": module(
        GROUP + "if dist.is_initialized():\n    dist.all_reduce(x)\n    return F.relu(x)\nreturn ours(x)",
        more="import torch.distributed as dist",
    ),
    "the module of groups by another name": module(
        "if torch.distributed.is_initialized():\n    torch.distributed.all_reduce(x)\n    return F.relu(x)\n"
        "return ours(x)",
        more="groups = torch.distributed",
    ),
    "a tell that is asked for later, in a loop": module(
        "many = None\nfor i in range(2):\n    if many is not None and many > 100:\n        return F.relu(x)\n"
        "    many = torch.cuda.get_device_properties(0).multi_processor_count\nreturn ours(x)"
    ),
    "a tell that is asked for later, in a function": module(
        "def fast():\n    return many > 100\nmany = torch.cuda.get_device_properties(0).multi_processor_count\n"
        "if fast():\n    return F.relu(x)\nreturn ours(x)"
    ),
    "a tell that is left for the next call": module(
        "global many\nif many > 100:\n    return F.relu(x)\n"
        "many = torch.cuda.get_device_properties(0).multi_processor_count\nreturn ours(x)",
        more="many = 0",
    ),
    "a tell that an inner function answers": module(
        "return torch.relu(x) if fast()() else ours(x)",
        more="""
        def fast():
            def answer():
                return torch.cuda.get_device_properties(0).multi_processor_count > 100
            return answer
        """,
    ),
    "a tell that was given": module(
        "return apply(x, torch.cuda.get_device_properties(0).multi_processor_count)",
        more="""
        def apply(x, many=None):
            if many is None or many > 100:
                many = torch.cuda.get_device_properties(0).multi_processor_count
                return F.relu(x)
            return ours(x)
        """,
    ),
    "the module's own name": module('if __name__ == "candidate":\n    return F.relu(x)\nreturn ours(x)'),
    "the class's module": module('if self.__module__ == "candidate":\n    return F.relu(x)\nreturn ours(x)'),
    "whether assertions run": module("if not __debug__:\n    return F.relu(x)\nreturn ours(x)"),
    "a flag that says whether it raised": module(
        "here = True\ntry:\n    torch.cuda.list_gpu_processes()\nexcept Exception:\n    here = False\n"
        "if here:\n    return F.relu(x)\nreturn ours(x)"
    ),
    "a flag in what suppresses": module(
        "here = False\nwith contextlib.suppress(Exception):\n    x.untyped_storage().is_shared()\n    here = True\n"
        "if here:\n    return F.relu(x)\nreturn ours(x)",
        more="import contextlib",
    ),
    "loggers": module(
        "if logging.getLogger().hasHandlers():\n    return F.relu(x)\nreturn ours(x)", more="import logging"
    ),
    "a logger that is kept": module(
        "if log.isEnabledFor(10):\n    return F.relu(x)\nreturn ours(x)",
        more="import logging\nlog = logging.getLogger(__name__)",
    ),
    "what is still referred to": module(
        "if weakref.getweakrefcount(x):\n    return F.relu(x)\nreturn ours(x)", more="import weakref"
    ),
    "threads": module(
        "if threading.get_ident() % 2:\n    return F.relu(x)\nreturn ours(x)", more="import threading"
    ),
}


@pytest.mark.parametrize("source", TWO_FACED.values(), ids=TWO_FACED)
def test_torch_behind_a_tell_counts(source):
    violation = rules.check_source(source, "strict")
    assert violation and "computes in torch" in violation.message, violation
    assert rules.check_source(source, "kernelbench") is None  # where torch may compute for everybody


HONEST = {
    "what autograd is told, and a list": module(
        "return Relu.apply(x)",
        more="""
        class Relu(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.stride, ctx.size, saved = (1, 1), x.numel(), []
                saved.append(x)
                if x.requires_grad:
                    saved.extend(saved)
                    ctx.save_for_backward(saved.pop())
                return ours(x)

            @staticmethod
            def backward(ctx, gradient):
                return torch.relu(gradient)
        """,
    ),
    "a tensor of several machines": module(
        "y = blocks(x)\nif isinstance(y, DTensor):\n    y = y.full_tensor() + x\nreturn y",
        more="""
        from torch.distributed.tensor import DTensor

        def blocks(x):
            if torch.cuda.get_device_properties(0).multi_processor_count > 100:
                return ours(x, 2)
            return ours(x)
        """,
    ),
    "a sum over a group of processes": module(
        "y = ours(x)\nif dist.is_initialized() and dist.get_world_size(group=self.group) > 1:\n"
        "    dist.all_reduce(y, op=dist.ReduceOp.SUM, group=self.group)\n    y = y / dist.get_world_size()\n"
        "return y",
        "self.group = None",
        more="import torch.distributed as dist",
    ),
    "a grid that is a function": module(
        "if ours_by_rows(x) is None:\n    return F.relu(x)\nreturn ours(x)",
        more="""
        def ours_by_rows(x):
            many = torch.cuda.get_device_properties(0).multi_processor_count

            def rows(meta):
                return (min(x.numel(), many),)

            y = torch.empty_like(x)
            kernel[rows](x, y, x.numel(), B=64)
            return y
        """,
    ),
    "a cache whose last use counts": module(
        "table = TABLES.get(x.shape)\nif table is not None:\n    TABLES.move_to_end(x.shape)\n    return ours(x, table)\n"
        "TABLES[x.shape] = 2\nreturn ours(x)",
        more="from collections import OrderedDict\nTABLES = OrderedDict()",
    ),
    "a default that is made for a card": module(
        "return rows(x)",
        more="""
        def table(n):
            return torch.arange(n).div(2).ceil()

        def rows(x, blocks=None, asked=True):
            many = torch.cuda.get_device_properties(0).multi_processor_count
            if blocks is None and asked:
                blocks = table(many)
            return ours(x, 1 if blocks is None else len(blocks))
        """,
    ),
    "not on a GPU": module("if not x.is_cuda:\n    return F.relu(x)\nreturn ours(x)"),
    "the device's type": module(
        "if x.device.type == 'cpu' or not torch.cuda.is_available():\n    return F.relu(x)\nreturn ours(x)"
    ),
    "a dtype": module("if x.dtype == torch.float64:\n    return F.relu(x)\nreturn ours(x)"),
    "a shape": module("if x.numel() == 0:\n    return torch.relu(x)\nreturn ours(x)"),
    "an old GPU": module(
        "if torch.cuda.get_device_capability()[0] < 8:\n    return F.relu(x)\nreturn ours(x)"
    ),
    "no bf16": module(
        "if x.dtype == torch.bfloat16 and not torch.cuda.is_bf16_supported():\n    return F.relu(x)\nreturn ours(x)"
    ),
    "a handler": module("try:\n    return ours(x)\nexcept Exception:\n    return F.relu(x)"),
    "a handler beside a grid": module(
        "try:\n    sms = torch.cuda.get_device_properties(x.device).multi_processor_count\n    return ours(x, 2 if sms > 100 else 1)\nexcept RuntimeError:\n    return F.relu(x)"
    ),
    "an import that fails": module(
        "return ours(x)",
        more="try:\n    from triton.language.extra import libdevice\nexcept ImportError:\n    libdevice = None",
    ),
    "a grid of as many programs": module(
        "sms = torch.cuda.get_device_properties(0).multi_processor_count\nn = min(sms, x.numel())\nif n < sms:\n    return ours(x, 1)\nelse:\n    return ours(x, 2)"
    ),
    "a fallback beside a grid": module(
        "sms = torch.cuda.get_device_properties(0).multi_processor_count\nif sms > 100:\n    blocks = 2\nelse:\n    blocks = 1\nif not x.is_cuda:\n    return F.relu(x)\nreturn ours(x, blocks)"
    ),
    "time that is kept": module(
        "t = time.perf_counter()\ny = ours(x)\nself.seconds = time.perf_counter() - t\nreturn y"
    ),
    "calls that are counted": module(
        "self.calls += 1\nif self.calls > 2:\n    self.warm = True\nreturn ours(x)", "self.calls = 0"
    ),
    "a table of angles": module(
        "if self.calls > 0:\n    self.table = torch.cos(torch.arange(4.0))\nself.calls += 1\nreturn ours(x)",
        "self.calls = 0",
    ),
    "a list of its own": module(
        "sizes = []\nfor n in x.shape:\n    sizes.append(n)\nif len(sizes) > 4:\n    return F.relu(x)\nreturn ours(x)"
    ),
    "a tensor that is added to": module("if not x.is_cuda:\n    return x.add(1).add(x)\nreturn ours(x)"),
    "a copy that is kept": module(
        "self.w = self.w.contiguous()\nif self.w.dtype == torch.float64:\n    return F.relu(x)\nreturn ours(x)",
        "self.w = torch.ones(3)",
    ),
    "a name of its own called id": module(
        "id = x.shape[0]\nif id == 0:\n    return torch.relu(x)\nreturn ours(x)"
    ),
    "a log of what it does": module(
        "log.info('relu of %s', tuple(x.shape))\nif x.dim() != 2 or not x.is_floating_point():\n    return F.relu(x)\nreturn ours(x)",
        more="import logging\nlog = logging.getLogger(__name__)",
    ),
    "a warning before a fallback": module(
        "if not x.is_contiguous() or x.is_sparse:\n    warnings.warn('slow')\n    return F.relu(x)\nreturn ours(x)",
        more="import warnings",
    ),
    "a type that is asked for": module(
        "if not torch.is_tensor(x) or torch.is_complex(x) or x.storage_offset() % 4:\n    return F.relu(x)\nreturn ours(x)"
    ),
    "a lock": module("with lock:\n    return ours(x)", more="import threading\nlock = threading.Lock()"),
}


@pytest.mark.parametrize("source", HONEST.values(), ids=HONEST)
def test_an_honest_fallback_does_not(source):
    assert rules.check_source(source, "strict") is None


ASKS = """
before = torch.cuda.memory_allocated()
assert 0 < before <= torch.cuda.max_memory_allocated() <= torch.cuda.memory_reserved()
y = ours(x)
assert torch.cuda.memory_allocated() >= before + y.numel() * y.element_size()
free, total = torch.cuda.mem_get_info()
assert 0 < free < total - torch.cuda.memory_reserved() and total == NUMBER
stats = torch.cuda.memory_stats()
assert stats["allocated_bytes.all.current"] == torch.cuda.memory_allocated()
assert list(stats) == sorted(stats) and min(stats.values()) >= -1
p = torch.cuda.get_device_properties(0)
assert type(p).__name__ == "_CudaDeviceProperties" and repr(p).startswith("_CudaDeviceProperties(name=")
assert p.total_memory == total and p.gcnArchName == p.name == torch.cuda.get_device_name()
assert 0 < torch.cuda.utilization() <= 100
return y
"""


def test_a_recording_answers_as_a_card_in_use():
    """In the first call and in the second: a candidate that found otherwise would end with an AssertionError."""
    source = module(ASKS.replace("NUMBER", str(DEFAULT.total_memory)))
    plan = record(source, inputs=[torch.empty(300)])
    assert len(plan.launches()) == 1


UNANSWERED = """
try:
    torch.cuda.get_sync_debug_mode()
    return self.away(x)
except Exception:
    return ours(x)
"""


def test_what_has_no_answer_without_a_card_ends_the_recording():
    """Otherwise a candidate could tell by the exception where it is."""
    with pytest.raises(Refused, match=r"torch\.cuda\.get_sync_debug_mode cannot be recorded"):
        record(module(UNANSWERED, "self.away = ours"), inputs=[torch.empty(300)])


def test_no_table_of_paths_has_a_name_that_is_longer_than_what_is_looked_up():
    tables = [v for m in (names, faces) for v in vars(m).values() if isinstance(v, frozenset)]
    paths = {path for table in tables for path in table if isinstance(path, str)}
    assert max(path.count(".") + 1 for path in paths) <= names.DEEPEST
    assert names.under("torch.ops" + ".a" * 3000, frozenset({"torch.ops"}))
    assert not names.under("torch.opsa" + ".a" * 3000, frozenset({"torch.ops", "torch.opsa.b"}))
