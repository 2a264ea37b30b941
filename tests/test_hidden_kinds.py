"""Python that runs where the text does not show it: each kind is refused, and what honest code writes is not."""

import importlib
import types

import pytest

from nanotriton.rules import rules
from nanotriton.rules.names import refused
from nanotriton.rules.standard import LISTED, held_back, held_by_another, public
from tests.test_faces import module


def with_code(code: str) -> str:
    return f"{code}\n{module('return ours(x)')}"


HELD = {
    "builtins in enum": "import enum\nenum.bltns.exec('x = 1')",
    "imported from there": "from enum import bltns\nbltns.exec('x = 1')",
    "by getattr": "import enum\ngetattr(enum, 'bltns').exec('x = 1')",
    "the module as a value": "import enum\ne = enum\ne.IntEnum",
    "in a list": "import typing\n[m.Optional for m in [typing]]",
    "as an argument": "import json\nrepr(json)",
    "codecs in json": "import json\njson.codecs.open('x')",
    "types in typing": "from typing import types\ntypes.CodeType",
    "types in dataclasses": "import dataclasses\ndataclasses.types.FunctionType",
    "copyreg in re": "import re\nre.copyreg.pickle",
    "a resolver of names": "import logging.config\nlogging.config.BaseConfigurator({}).resolve('os.system')",
    "a module of logging's": "from logging import config",
    "sockets of logging's": "import logging.handlers",
    "through torch": "import torch\ntorch.nn.modules.module.functools.singledispatch",
    "through Triton": "import triton\ntriton.testing.functools.singledispatch",
}
EVALUATED = {
    "a text that is timed": "import torch.utils.benchmark as b\nb.Timer('x = 1').timeit(1)",
    "its own module": "from torch.utils.benchmark.utils.timer import Timer",
    "a dispatch by annotations": "import functools\n@functools.singledispatch\ndef f(x): pass",
    "as a method": "from functools import singledispatchmethod",
    "the hints of a type": "from typing import get_type_hints",
    "by a star": "from typing import *\nget_type_hints(1)",
    "a signature": "import inspect\ndef f(x): pass\ninspect.signature(f, eval_str=True)",
    "a reference": "import typing_extensions\ntyping_extensions.ForwardRef('1')",
    "a class of texts": "import dataclasses\ndataclasses.make_dataclass('C', ['x'])",
    "an annotation that calls": "def f(x: \"print('x')\"): pass",
    "of what is returned": "def f(x) -> '[1 for x in ()]': pass",
    "of a variable": "x: '(lambda: 1)()' = 1",
    "inside of a type": "import typing\nx: typing.Optional['print(1)'] = None",
    "a dunder in an annotation": "def f(x: 'int.__subclasses__'): pass",
    "a class without a statement": "C = type('C', (), {'__annotations__': {'x': 'exec(1)'}})",
    "with its arguments in a tuple": "C = type(*('C', (), {}))",
}


@pytest.mark.parametrize("code", [*HELD.values(), *EVALUATED.values()], ids=[*HELD, *EVALUATED])
@pytest.mark.parametrize("policy", ["strict", "kernelbench"])
def test_hidden_code_is_refused(code, policy):
    violation = rules.check_source(with_code(code), policy)
    assert violation and violation.status == "rule_violation" and violation.line < 5


ALLOWED = {
    "what modules offer": """
import collections, enum, functools, json, logging, math, re, typing, warnings
functools.partial, functools.lru_cache, json.dumps({}), re.compile('x'), math.sqrt(2), enum.IntEnum
logging.getLogger(__name__).setLevel(logging.INFO)
collections.OrderedDict()
warnings.warn('x')
typing.Optional[int]
""",
    "from them": """
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import *
from math import *
from json.decoder import JSONDecodeError
""",
    "a module that may lack a name": """
import math, functools
if hasattr(functools, 'cache'): pass
f = getattr(math, 'exp2', None)
""",
    "a module or None": "try:\n    import json\nexcept ImportError:\n    json = None\nif json is not None: pass",
    "a variable of that name": "import time\ndef f(time): return time + 1",
    "submodules of that name": """
import torch
import numpy as np
import triton.language as tl
torch.random.manual_seed(0), np.random.seed, tl.math.exp, torch.types.Device, np.copy
""",
    "types as texts": """
from __future__ import annotations
import torch
from typing import Optional
def f(x: 'torch.Tensor', y: "Optional['torch.Tensor']" = None, z: 'Float[Tensor, "b n"]' = 0) -> 'int | None': pass
""",
    "shapes as texts": "def f(x: 'batch seq dim', y: '(b, n)') -> 'b n d': pass",
    "a type that is asked for": "x = type(3)\nassert isinstance(x, type)",
    "a measurement's type": "import torch.utils.benchmark as benchmark\nbenchmark.Measurement",
}


@pytest.mark.parametrize("code", ALLOWED.values(), ids=ALLOWED)
def test_what_honest_code_writes_is_allowed(code):
    assert rules.check_source(with_code(code), "strict") is None


def test_no_listed_module_gives_away_another():
    """Whatever module another one holds and does not offer is refused, on this version of Python."""
    seen = 0
    for name in sorted(LISTED - {"typing_extensions"}):
        for held, value in vars(importlib.import_module(name)).items():
            if not isinstance(value, types.ModuleType) or public(name) is None:
                continue
            seen += 1
            assert held in public(name) or refused(f"{name}.{held}", importing=False), f"{name}.{held}"
    assert seen > 20


def test_paths_lead_to_the_module_that_they_name():
    assert held_back("enum.bltns") == "bltns" and held_back("enum.Enum") is None and held_back("enum") is None
    assert held_by_another("torch.utils._pytree.json.codecs") == "json.codecs"
    assert held_by_another("torch.random.seed") is None and held_by_another("enum.Enum") is None


DEEP = {
    "a sum": "1" + " + 1" * 2500,
    "attributes": "x" + ".real" * 2500,
    "calls": "x" + ".float()" * 1200,
    "conditions": "1 if x.is_cuda else " * 900 + "0",
    "texts": "'a'" + " + 'a'" * 2500,
    "subscripts": "x" + "[0]" * 2500,
}
LINES = (
    "torch.relu({})",
    "getattr(x, {})",
    "vars = {}\nvars",
    "def f(a: {}): pass",
    "y: {} = 1",
    "if {}: F.relu(x)",
)


@pytest.mark.parametrize("expression", DEEP.values(), ids=DEEP)
@pytest.mark.parametrize("line", LINES)
def test_no_expression_is_too_deep_for_the_rules(expression, line):
    """They answer, whatever it is: a worker that raises would die."""
    violation = rules.check_source(module(f"{line.format(expression)}\nreturn ours(x)"), "strict")
    assert violation is None or violation.status in ("syntax_error", "rule_violation")
