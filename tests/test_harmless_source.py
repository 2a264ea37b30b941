"""Code that is dead, or that only asks or names something, is no reason to refuse a text. What it could hide is."""

import pytest

from nanotriton.executor.executor import Executor
from nanotriton.rules.rules import check_source
from nanotriton.tasks.task import Task
from tests.test_reward_rules import LAUNCH, module

EXP = Task(
    "exp",
    """
import torch, torch.nn as nn
class Model(nn.Module):
    def forward(self, x):
        return torch.exp(x)
def get_inputs():
    return [torch.randn(7, 31)]
def get_init_inputs():
    return []
""",
)


def indented(text: str) -> str:
    return text.replace("\n", "\n    ")


REGISTERED = f"    {indented(LAUNCH)}\n"
HONEST = {
    "operator's comparisons": module(
        LAUNCH, "import operator as op\nassert op.lt(1, 2) and op.not_(op.eq(1, 2))\n"
    ),
    "a template with a name": module(
        "print(NOTE.format(x, n=x.numel()))\n" + LAUNCH, "NOTE = '{0.shape}: {n:>8}'\n"
    ),
    "a template of two literals": module("print(('got {} ' '{:{w}d}').format(x.shape, 2, w=3))\n" + LAUNCH),
    "a dtype by its name": module("assert getattr(tl, str(x.dtype).split('.')[-1]) == tl.float32\n" + LAUNCH),
    "a dtype out of a table": module(
        "assert getattr(torch, NAMES[0 if x.is_cuda else 1])\n" + LAUNCH,
        "NAMES = {0: 'float32', 1: 'float16'}\n",
    ),
    "names in a loop": module(
        LAUNCH, "for name in ('sum', 'max'):\n    assert hasattr(tl, name) and getattr(tl, name)\n"
    ),
    "the module of a device's type": module(
        "device_type = x.device.type\ngetattr(torch, device_type).synchronize()\n" + LAUNCH
    ),
    "what is installed": module(
        LAUNCH,
        "from importlib.util import find_spec\nfrom importlib import metadata\nHAS = find_spec('xformers')\n"
        "try:\n    metadata.version('xformers')\nexcept metadata.PackageNotFoundError:\n    pass\n",
    ),
    "a lock": module("with LOCK:\n    pass\n" + LAUNCH, "import threading\nLOCK = threading.Lock()\n"),
    "torch.jit's questions": module(
        "if torch.jit.is_scripting() or torch.jit.is_tracing():\n    return x\n" + LAUNCH
    ),
    "dynamo's switches": module(
        LAUNCH,
        "import torch._dynamo\ntorch._dynamo.config.suppress_errors = True\n@torch._dynamo.disable\ndef f(x):\n    return x\n",
    ),
    "helpers under compilers": module(
        LAUNCH,
        "@torch.compile(fullgraph=True)\ndef check(x):\n    return torch.exp(x)\n@torch.jit.script\ndef other(x):\n    return x.exp()\n",
    ),
    "triton's private names": module(
        LAUNCH,
        "try:\n    from triton.language.standard import _log2\nexcept ImportError:\n    _log2 = None\nconstant = tl.core._unwrap_if_constexpr\n",
    ),
    "an operator by its name": module(
        "return torch.ops.harmless.exp(x)",
        "@torch.library.custom_op('harmless::exp', mutates_args=())\n"
        f"def harmless_exp(x: torch.Tensor) -> torch.Tensor:\n{REGISTERED}",
    ),
    "an operator with a function for CUDA": module(
        "return torch.ops.harmless2.exp(x)",
        "library = torch.library.Library('harmless2', 'DEF')\nlibrary.define('exp(Tensor x) -> Tensor')\n"
        "@torch.library.impl(library, 'exp', 'Meta')\ndef shape_of_exp(x):\n    return torch.empty_like(x)\n"
        f"@torch.library.impl(library, 'exp', 'CUDA')\ndef exp_on_cuda(x):\n{REGISTERED}",
    ),
    "operators by their methods, in a kernel": module(
        LAUNCH.replace("kernel[", "halves["),
        "@triton.jit\ndef halves(x, y, n, B: tl.constexpr):\n"
        "    i = tl.program_id(0).__lshift__(7) + tl.arange(0, B)\n"
        "    v = tl.load(x + i, mask=i < n)\n"
        "    tl.store(y + i, tl.exp(v), mask=i < n)\n",
    ),
    "a mark for tracers": module(
        "return launched(x)", f"@torch.fx.wrap\ndef launched(x):\n    {indented(LAUNCH)}\n"
    ),
    "an argument that is named like a module": module(
        LAUNCH,
        "import operator\ndef newer(package, operator, target):\n    return operator(package.__version__, target)\n"
        "assert newer(triton, operator.ge, '3.0')\n",
    ),
    "a class to test for": module(
        "assert not isinstance(x, DTensor)\n" + LAUNCH, "from torch.distributed.tensor import DTensor\n"
    ),
    "a layer of its own with the name of a method": module(
        "return self.softmax(x)",
        f"class Softmax(nn.Module):\n    def forward(self, x):\n        {indented(indented(LAUNCH))}\n",
        "self.softmax = Softmax()",
    ),
    "a method of its own with the name of a tensor's": module("return self.sigmoid(x)").replace(
        "    def forward",
        f"    def sigmoid(self, x):\n        {indented(indented(LAUNCH))}\n\n    def forward",
    ),
    "the sum of one split": module(
        "y = torch.empty((1, *x.shape), device=x.device)\n"
        "kernel[(2,)](x, y, x.numel(), B=128)\nreturn y.sum(0)"
    ),
    "a stream": module(
        "s = torch.cuda.Stream()\nwith torch.cuda.stream(s):\n    y = torch.empty_like(x)\n    kernel[(2,)](x, y, x.numel(), B=128)\n"
        "s.synchronize()\nreturn y"
    ),
}


@pytest.fixture(scope="module")
def judged():
    with Executor(workers=2, timeout=20.0) as executor:
        futures = {name: executor.submit(EXP, source) for name, source in HONEST.items()}
        return {name: future.result() for name, future in futures.items()}


@pytest.mark.parametrize("name", HONEST)
def test_a_harmless_text_is_correct(name, judged):
    assert judged[name].correct, f"{judged[name].status}: {judged[name].message}"


HIDING = {
    "a template that leads into a frame": "'{0.gi_frame}'.format(x)",
    "a template that leads into a class": "'{0.__class__}'.format(x)",
    "a template with a private name": "'{0._backward_hooks}'.format(x)",
    "a template that is an argument": "(lambda t: t.format(x))('{0.gi_frame}')",
    "a name that is an argument": "(lambda n: getattr(torch, n))('exp')",
    "a banned name out of a table": "getattr(torch, {0: 'exp', 1: 'load'}[0])",
    "a banned name in a loop": "[getattr(torch, n) for n in ('exp', 'load')]",
    "a name that is read from a tensor": "getattr(torch, x.names)",
    "operator's attributes": "operator.attrgetter('exp')(torch)",
    "a module's loader": "importlib.util.spec_from_file_location('a', 'b')",
    "importlib itself": "importlib.import_module('os')",
    "a module as a value": "[importlib, operator]",
    "a thread": "threading.Thread(target=print).start()",
    "a saved program": "torch.jit.load('x')",
    "a program in a text": "torch.jit.CompilationUnit('def f(x): return x')",
    "dynamo's evaluation of frames": "torch._dynamo.eval_frame.set_eval_frame(None)",
}


@pytest.mark.parametrize("policy", ["strict", "kernelbench"])
@pytest.mark.parametrize("name", HIDING)
def test_a_text_that_hides_what_it_runs_is_refused(name, policy):
    source = module(
        f"hidden = {HIDING[name]}\n{LAUNCH}", "import importlib.util\nimport operator\nimport threading\n"
    )
    violation = check_source(source, policy)
    assert violation is not None and "not allowed" in violation.message


TORCH = "    return torch.exp(x)\n"
CHEATS = {
    "compiled": module(
        f"y = fast(x)\n{LAUNCH.replace('return y', 'return fast(x)')}",
        f"@torch.compile\ndef fast(x):\n{TORCH}",
    ),
    "scripted": module(
        f"{LAUNCH.replace('return y', 'return fast(x)')}", f"@torch.jit.script\ndef fast(x):\n{TORCH}"
    ),
    "registered": module(
        LAUNCH.replace("return y", "return torch.ops.cheat.exp(x)"),
        "library = torch.library.Library('cheat', 'DEF')\nlibrary.define('exp(Tensor x) -> Tensor')\n"
        f"@torch.library.impl(library, 'exp', 'CUDA')\ndef exp_on_cuda(x):\n{TORCH}",
    ),
    "a method of its own with the name of the tensor's that computes": module(
        LAUNCH.replace("return y", "return self.softmax(x.softmax(0))")
    ).replace("    def forward", "    def softmax(self, x):\n        return x\n\n    def forward"),
    "a tensor called self": module(
        LAUNCH.replace("return y", "return cheat(y)"),
        "def cheat(self):\n    return self.sigmoid()\nclass Other:\n    def sigmoid(self):\n        return self\n",
    ),
    "the sum of two splits": module(
        "y = torch.zeros((2, *x.shape), device=x.device)\n"
        "kernel[(2,)](x, y, x.numel(), B=128)\nreturn y.sum(0)"
    ),
    "a kernel that nobody launches": module(
        "return torch.ops.cheat2.exp(x)",
        f"@torch.library.custom_op('cheat2::exp', mutates_args=())\ndef exp_op(x: torch.Tensor) -> torch.Tensor:\n{TORCH}"
        f"def unused(x):\n{REGISTERED}",
    ),
}


@pytest.mark.parametrize("name", CHEATS)
def test_torch_behind_a_compiler_or_an_operator_still_computes(name):
    with Executor(workers=1, timeout=20.0) as executor:
        verdict = executor.submit(EXP, CHEATS[name]).result()
    assert verdict.status == "rule_violation", verdict.message
