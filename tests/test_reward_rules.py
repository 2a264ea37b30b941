"""The rules on the source: what is refused with which line, and what must not be refused. What was done is judged on the plan."""

import pytest

from nanotriton.rules.rules import POLICIES, check_source

HEAD = """import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl

@triton.jit
def kernel(x, y, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + o, tl.exp(tl.load(x + o, mask=o < n)), mask=o < n)

"""
LAUNCH = "y = torch.empty_like(x)\nkernel[(triton.cdiv(x.numel(), 128),)](x, y, x.numel(), B=128)\nreturn y"


def module(forward, before="", init="pass"):
    """A candidate with `forward`'s body given; `before` stands between the kernel and the class."""
    body = "\n".join("        " + line for line in forward.split("\n"))
    return f"{HEAD}{before}\nclass ModelNew(nn.Module):\n    def __init__(self):\n        super().__init__()\n        {init}\n\n    def forward(self, x):\n{body}\n"


HONEST = {
    "plain": module(LAUNCH),
    "helper function": module(
        "return run(x)", f"def run(x):\n    {LAUNCH.replace(chr(10), chr(10) + '    ')}\n"
    ),
    "autograd function with a torch backward": module(
        "return Exp.apply(x)",
        f"class Exp(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n        {LAUNCH.replace(chr(10), chr(10) + '        ')}\n"
        "    @staticmethod\n    def backward(ctx, g):\n        return g * torch.exp(g)\n",
    ),
    "submodule": module(
        "return self.act(x)",
        f"class Act(nn.Module):\n    def forward(self, x):\n        {LAUNCH.replace(chr(10), chr(10) + '        ')}\n",
        "self.act = Act()",
    ),
    "weights prepared by torch in the constructor": module(
        LAUNCH, init="self.w = nn.Parameter(torch.randn(3, 4).softmax(0) @ torch.randn(4, 4))"
    ),
    "torch on another branch": module(f"if not x.is_cuda:\n    return torch.exp(x)\n{LAUNCH}"),
    "kernel from a jit call": module(
        "y = torch.empty_like(x)\nfast[(1,)](x, y, 8, B=8)\nreturn y",
        "def plain(x, y, n, B: tl.constexpr):\n    tl.store(y, tl.load(x))\nfast = triton.jit(plain)\n",
    ),
    "kernels in a dict": module(
        "y = torch.empty_like(x)\nTABLE['exp'][(1,)](x, y, 8, B=8)\nreturn y", "TABLE = {'exp': kernel}\n"
    ),
    "launcher in a variable": module(
        "y = torch.empty_like(x)\ngo = kernel[(1,)]\ngo(x, y, 8, B=8)\nreturn y"
    ),
    "autotuned": module(
        LAUNCH.replace("kernel[", "tuned["),
        "@triton.autotune([triton.Config({}, num_warps=2)], key=['n'])\n@triton.jit\ndef tuned(x, y, n, B: tl.constexpr):\n    tl.store(y, tl.load(x))\n",
    ),
    "jit by another name": module(
        "y = torch.empty_like(x)\nk2[(1,)](x, y)\nreturn y",
        "from triton import jit as J\n@J\ndef k2(x, y):\n    tl.store(y, tl.load(x))\n",
    ),
    "layouts": module(
        "x = torch.cat([x.contiguous().view(-1), torch.zeros(4, device=x.device)]).t().permute(0)\n" + LAUNCH
    ),
    "input as a name": module("input = x\n" + LAUNCH),
    "format of a literal": module("print('{} of {:.2f}'.format(x.shape, 1.0))\n" + LAUNCH),
    "environment": module(LAUNCH, "import os\nos.environ['TRITON_PRINT_AUTOTUNING'] = '0'\n"),
    "demonstration": module(LAUNCH)
    + "\nif __name__ == '__main__':\n    import subprocess\n    print(torch.exp(torch.ones(2)))\n",
    "entry by assignment": module(LAUNCH).replace("class ModelNew", "class Fast") + "\nModelNew = Fast\n",
    "inductor's helpers": module(
        LAUNCH,
        "from torch._inductor.runtime.triton_helpers import libdevice\nfrom torch._C import _cuda_getCurrentRawStream as stream\n",
    ),
    "initialised as torch.nn does": module(
        LAUNCH,
        "from torch.nn.modules.utils import _pair\nfrom torch.nn.common_types import _size_2_t\n",
        "self.fan_in, _ = nn.init._calculate_fan_in_and_fan_out(torch.empty(3, 4))",
    ),
    "numbered layers": module(
        "ws = [getattr(self, f'w{i}') for i in range(2)] + [getattr(self, 'w' + str(0)), getattr(self, 'w%d' % 1)]\n"
        + LAUNCH,
        init="[setattr(self, f'w{i}', i) for i in range(2)]",
    ),
    "constants made by torch": module(
        "B, T = x.shape[0], x.size(-1)\nmask = torch.tril(torch.ones(T, T, device=x.device))\nangles = torch.outer(torch.arange(T).float(), 1.0 / (self.base ** torch.arange(4)))\n"
        "n = int(torch.prod(torch.tensor(x.shape)))\nt = table(T, 4)\n" + LAUNCH,
        "def table(n: int, d: int):\n    return torch.cos(torch.arange(n) / d)\n",
        "self.base = 10000.0",
    ),
    "a variable called vars": module("vars = x.shape\nx = x.view(vars)\n" + LAUNCH),
    "kernel registered by a decorator": module(
        "y = torch.empty_like(x)\nTABLE['k2'][(1,)](x, y)\nreturn y",
        "TABLE = {}\ndef register(k):\n    TABLE['k2'] = k\n    return k\n@register\n@triton.jit\ndef k2(x, y):\n    tl.store(y, tl.load(x))\n",
    ),
    "attributes of a class": module(
        LAUNCH, "class Config:\n    __slots__ = ('a',)\n    __constants__ = ['a']\n"
    ),
    "descriptor": module(LAUNCH, "from triton.tools.tensor_descriptor import TensorDescriptor\n"),
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", HONEST)
def test_honest_code_passes(name, policy):
    assert check_source(HONEST[name], policy) is None


REFUSED = {  # name: (source, line of the violation or None, words of the message)
    "no kernel": (module("return torch.exp(x)").replace("@triton.jit", ""), None, "no @triton.jit"),
    "kernel in a comment": (
        module("return x").replace("@triton.jit", "# @triton.jit"),
        None,
        "no @triton.jit",
    ),
    "kernel in a string": ('"""\n' + HEAD + '"""\nclass ModelNew:\n    pass\n', None, "no @triton.jit"),
    "a jit that is not triton's": (
        module(LAUNCH).replace("import triton\n", "from numpy import jit\n").replace("@triton.jit", "@jit"),
        None,
        "no @triton.jit",
    ),
    "never launched": (module("return x + 1"), 8, "no kernel is launched"),
    "launched where forward does not come": (
        module("return x + 1") + f"\ndef unused(x):\n    {LAUNCH.replace(chr(10), chr(10) + '    ')}\n",
        8,
        "no kernel is launched",
    ),
    "launched by a name that is none": (
        module(LAUNCH.replace("kernel[", "kernal[")),
        20,
        "launches kernal, which is defined nowhere; the kernels of this file: kernel",
    ),
    "exec": (module("exec('pass')\n" + LAUNCH), 19, "exec"),
    "eval by another name": (module("e = eval\n" + LAUNCH), 19, "eval"),
    "computed attribute": (module("f = getattr(torch, 'mat' + 'mul')\n" + LAUNCH), 19, "computed name"),
    "computed attribute that may be a frame's": (
        module("f = getattr(x, f'f_{x.b}')\n" + LAUNCH),
        19,
        "computed name",
    ),
    "computed attribute that begins with anything": (
        module("f = getattr(x, x.a + 'weight')\n" + LAUNCH),
        19,
        "computed name",
    ),
    "computed attribute put into a text": (
        module("f = getattr(x, ('f%s' + '') % x.a)\n" + LAUNCH),
        19,
        "computed name",
    ),
    "computed dunder": (module("f = getattr(x, f'__{x.a}__')\n" + LAUNCH), 19, "computed name"),
    "computed attribute of a module": (
        module("f = getattr(torch, f'comp{x.a}')\n" + LAUNCH),
        19,
        "computed name",
    ),
    "eval beside a variable of the name": (
        module("y = [eval for eval in ()]\neval('1')\n" + LAUNCH),
        19,
        "eval",
    ),
    "eval kept by a class": (module(LAUNCH, "class C:\n    eval = eval\n"), 13, "eval"),
    "getattr passed on": (
        module("from functools import reduce\nf = reduce(getattr, ['a'], x)\n" + LAUNCH),
        20,
        "getattr",
    ),
    "dunder walk": (module("y = ().__class__.__base__\n" + LAUNCH), 19, "__base__"),
    "builtins": (module("b = __builtins__\n" + LAUNCH), 19, "__builtins__"),
    "frames": (
        module("try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    f = e.__traceback__\n" + LAUNCH),
        22,
        "__traceback__",
    ),
    "generator's frame": (module("g = (i for i in x).gi_frame\n" + LAUNCH), 19, "gi_frame"),
    "frame by a class pattern": (
        module("match x:\n    case object(f_back=y):\n        pass\n" + LAUNCH),
        20,
        "f_back",
    ),
    "attributes in a format": (module("s = '{0.f_back}'.format(x)\n" + LAUNCH), 19, "format"),
    "a nested field in a format": (module("s = '{:{0.f_back}}'.format(x)\n" + LAUNCH), 19, "format"),
    "a broken format": (module("s = '{'.format(x)\n" + LAUNCH), 19, "format"),
    "a format that is computed": (module("s = ('{0' + '.f_back}').format(x)\n" + LAUNCH), 19, "format"),
    "annotations evaluated": (
        module("import typing\ntyping.get_type_hints(x)\n" + LAUNCH),
        20,
        "get_type_hints",
    ),
    "generated code": (module("g = torch.fx.Graph()\n" + LAUNCH), 19, "torch.fx"),
    "modes switched off": (
        module("m = torch.utils._python_dispatch._disable_current_modes()\n" + LAUNCH),
        19,
        "internal to torch",
    ),
    "torch again": (module("t = torch.torch.load\n" + LAUNCH), 19, "torch.load"),
    "internals of torch": (
        module("t = torch._utils._import_dotted_name('os')\n" + LAUNCH),
        19,
        "internal to torch",
    ),
    "internals of another module": (module("import re\nc = re._compile\n" + LAUNCH), 20, "internal to re"),
    "ctypes": (module("import ctypes\n" + LAUNCH), 19, "import of ctypes"),
    "sys from torch": (module("s = torch.sys.modules\n" + LAUNCH), 19, "sys"),
    "os from torch": (module("from torch import os\n" + LAUNCH), 19, "os"),
    "os.system": (module("import os\nos.system('true')\n" + LAUNCH), 20, "os.system"),
    "os as a value": (module("import os\no = os\no.getppid()\n" + LAUNCH), 20, "os"),
    "star import": (module("x\n" + LAUNCH, "from torch import *\n"), 12, "import *"),
    "relative import": (module(LAUNCH, "from . import other\n"), 12, "relative"),
    "another kernel library": (module(LAUNCH, "import flash_attn\n"), 12, "flash_attn"),
    "cpp extension": (module("torch.utils.cpp_extension.load_inline('x')\n" + LAUNCH), 19, "cpp_extension"),
    "cuda graph": (module("g = torch.cuda.CUDAGraph()\n" + LAUNCH), 19, "CUDAGraph"),
    "patched torch": (module("torch.allclose = lambda *a: True\n" + LAUNCH), 19, "torch.allclose"),
    "patched method": (module("torch.Tensor.__eq__ = lambda *a: True\n" + LAUNCH), 19, "__eq__"),
    "patched by setattr": (module("setattr(torch, 'allclose', None)\n" + LAUNCH), 19, "torch"),
    "patched triton": (module(LAUNCH, "triton.jit = lambda f: f\n"), 12, "triton.jit"),
    "no entry": (HEAD, None, "ModelNew"),
}


@pytest.mark.parametrize("policy", ["strict", "kernelbench"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_certain_is_refused_with_its_line(name, policy):
    source, line, words = REFUSED[name]
    violation = check_source(source, policy)
    assert violation is not None and violation.line == line and words in violation.message
    assert "\n" not in violation.message and check_source(source, "none") is None


TORCH = {
    "matmul operator": ("return x @ x", 19),
    "function": (f"x = torch.exp(x)\n{LAUNCH}", 19),
    "functional": (f"x = F.relu(x)\n{LAUNCH}", 19),
    "function by another name": (f"from torch import softmax as s\nx = s(x, 0)\n{LAUNCH}", 20),
    "method": (f"x = x.softmax(0)\n{LAUNCH}", 19),
    "aten": (f"x = torch.ops.aten.mm(x, x)\n{LAUNCH}", 19),
    "linalg": (f"x = torch.linalg.norm(x)\n{LAUNCH}", 19),
    "layer": (f"x = self.layer(x)\n{LAUNCH}", 19),
    "what torch makes of an input": (
        f"z = torch.arange(4, device=x.device) + x\nz = torch.exp(z)\n{LAUNCH}",
        20,
    ),
    "what a kernel wrote": (f"z = torch.empty_like(x)\nz = torch.exp(z)\n{LAUNCH}", 20),
    "a weight": (f"m = torch.tril(self.layer.weight)\n{LAUNCH}", 19),
    "inside a loop": (f"for i in range(3):\n    x = F.gelu(x)\n{LAUNCH}", 20),
    "inside try": (f"try:\n    x = F.gelu(x)\nfinally:\n    pass\n{LAUNCH}", 20),
}


@pytest.mark.parametrize("name", TORCH)
def test_strict_refuses_torch_on_a_path_that_is_always_taken(name):
    forward, line = TORCH[name]
    source = module(
        forward + ("" if LAUNCH in forward else "\n" + LAUNCH), init="self.layer = nn.Linear(3, 4)"
    )
    violation = check_source(source, "strict")
    assert violation is not None and violation.line == line and "computes in torch" in violation.message
    assert check_source(source, "kernelbench") is None


def test_strict_follows_helpers_and_submodules():
    helper = module(
        "return finish(x)",
        f"def finish(x):\n    {LAUNCH.replace(chr(10), chr(10) + '    ').replace('return y', 'return y.softmax(0)')}\n",
    )
    assert "softmax" in check_source(helper, "strict").message


def test_autotriton_reads_the_text_only():
    assert check_source("class ModelNew: pass  # @triton.jit", "autotriton") is None
    assert check_source("class ModelNew: pass", "autotriton").message == "the text has no @triton.jit"


@pytest.mark.parametrize("policy", POLICIES)
def test_broken_source_is_a_syntax_error_under_every_policy(policy):
    violation = check_source("def f(:\n", policy)
    assert violation.status == "syntax_error" and violation.line == 1


def test_an_error_that_only_the_symbol_table_finds_is_a_syntax_error():
    source = module(LAUNCH, "def f(x):\n    from math import *\n    return vars\n")
    violation = check_source(source, "strict")
    assert violation.status == "syntax_error" and "import * only allowed at module level" in violation.message


def test_a_file_of_functions_has_no_entry():
    source = HEAD + f"def run(x):\n    {LAUNCH.replace(chr(10), chr(10) + '    ')}\n"
    assert check_source(source, "strict", entry=None) is None
    assert check_source(source, "strict").status == "no_code"


def test_an_unknown_policy_is_an_error():
    with pytest.raises(ValueError, match="one of strict, kernelbench, autotriton, none"):
        check_source(HEAD, "lenient")
