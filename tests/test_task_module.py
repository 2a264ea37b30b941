"""A task is imported as Python would import it, whatever else its file does; so is a candidate."""

import pytest
import torch

from nanotriton.executor.__main__ import read
from nanotriton.executor.common import probe
from nanotriton.executor.judge.reference.reference import Reference
from nanotriton.executor.judge.task.module import PRINTED, arguments
from nanotriton.python_text import decode, plain
from nanotriton.tasks.task import Task, load_task
from nanotriton.verdict import Fault

SOURCE, RIGHT = probe.TASK["source"], probe.CANDIDATE
WRONG = RIGHT.replace("x * 2 + 1", "x * 2.02 + 1")


def reference(source: str) -> Reference:
    return Reference(Task("t", source))


def refused(source: str) -> str:
    with pytest.raises(Fault) as error:
        reference(source)
    assert error.value.status == "unsupported"
    return error.value.message


def answers_right(source: str) -> bool:
    """Whether the task of this file is loaded, and computes 2 x + 1."""
    found = reference(source)
    inputs = found.inputs.draw("plain", 3)
    (x,) = [x for x in inputs if isinstance(x, torch.Tensor)]
    return torch.allclose(found.run(inputs, 3), 2 * x + 1)


# ---- the file's text ----


@pytest.mark.parametrize(
    "text", ["\ufeff{}", "# -*- coding: latin-1 -*-\n# \xe9\n{}", "\n# vim: set coding=utf-8 :\n{}"]
)
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_marks_coding_lines_and_line_ends_are_no_part_of_a_task_or_a_candidate(
    text, end, tmp_path, executors
):
    encoding = "latin-1" if "latin" in text else "utf-8"
    for name, source in {"task.py": SOURCE, "candidate.py": RIGHT}.items():
        (tmp_path / name).write_bytes(text.format(source).replace("\n", end).encode(encoding))
    task = load_task(tmp_path / "task.py")
    assert answers_right(task.source)
    candidate = read(str(tmp_path / "candidate.py"))
    assert executors().submit(task, candidate).result(300).status == "correct"
    changed = candidate.replace("x * 2 + 1", "x * 2.02 + 1")
    assert executors().submit(task, changed).result(300).status == "wrong_value"


def test_text_in_rows_of_data_is_plain_too():
    assert Task("t", "\ufeff" + SOURCE.replace("\n", "\r\n")) == Task("t", SOURCE)
    assert Task("t", "\ud83d").key  # half of a character, as a JSON file may hold it
    assert "UnicodeEncodeError" in refused(SOURCE + "# \ud83d")


def test_a_coding_line_can_make_no_other_program_of_a_text(executors):
    """Python would decode the file once more, and run what no rule has seen."""
    assert plain("#!x\n# coding: utf-7\n# +AAo-import os") == "#!x\n# coding: utf-8\n# +AAo-import os"
    assert plain("x = 1\n# coding: utf-7") == "x = 1\n# coding: utf-7"  # behind code it means nothing
    assert decode(b"# coding: utf-7\n# +AAo-x = 1") == "# coding: utf-8\n# \nx = 1"
    hidden = "# coding: utf-7\n# +AAo-raise SystemExit\n" + RIGHT
    assert executors().submit(Task(**probe.TASK), hidden).result(300).status == "correct"


@pytest.mark.parametrize("data", [b"# coding: no-such-one\n", b"x = '\xff'\n"])
def test_bytes_that_are_no_text_are_one_line(data, tmp_path):
    path = tmp_path / "task.py"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"task.py: cannot read: .+") as error:
        load_task(path)
    assert "\n" not in str(error.value)
    assert isinstance(read(str(path)), str)  # a candidate gets a verdict


# ---- the module ----

FORWARD = "        return x * 2 + 1"
FINDS_ITSELF = {
    "a dataclass whose annotations are text": (
        "from __future__ import annotations\nimport dataclasses, typing\n"
        "@dataclasses.dataclass(slots=True, kw_only=True)\n"
        "class Sizes:\n    scale: typing.ClassVar[float] = 2.0\n    rest: dataclasses.InitVar[int] = 0\n"
    ),
    "pickle": "import pickle\nclass P: pass\npickle.loads(pickle.dumps(P()))\n",
    "its own source": "import inspect\ndef f():\n    return 7\nassert 'return 7' in inspect.getsource(f)\n",
    "its own name": "import os, sys\nassert sys.modules[__name__].__file__ == __file__ == os.path.join(__file__)\n",
    "type hints": "import typing\nclass A:\n    x: 'B'\nclass B: pass\nassert typing.get_type_hints(A) == {'x': B}\n",
}


@pytest.mark.parametrize("top", FINDS_ITSELF.values(), ids=FINDS_ITSELF)
def test_a_module_finds_itself(top):
    assert answers_right(top + SOURCE)


def test_a_module_finds_itself_in_forward_and_not_its_neighbour():
    top = "import sys\nMARK = {}\n"
    line = "        assert sys.modules[__name__].MARK == {}\n"
    one, two = (
        reference((top + SOURCE.replace(FORWARD, line + FORWARD)).replace("{}", mark)) for mark in "12"
    )
    for found in (one, two, one):
        found.run(found.inputs.draw("plain", 3), 3)


COMPILED = {
    "a class": lambda s: s.replace("class Model", "@torch.compile\nclass Model"),
    "a method": lambda s: s.replace(
        "    def forward", "    @torch.compile(mode='max-autotune')\n    def forward"
    ),
    "in forward": lambda s: s.replace("x * 2 + 1", "torch.compile(lambda x: x * 2 + 1, dynamic=True)(x)"),
    "in place": lambda s: s.replace(
        "    def forward",
        "    def __init__(self):\n        super().__init__()\n        self.compile()\n\n    def forward",
    ),
    "TorchScript": lambda s: s.replace(
        "class Model", "@torch.jit.script\ndef f(x):\n    return x * 2 + 1\n\nclass Model"
    ).replace(FORWARD, "        return f(x)"),
}


@pytest.mark.parametrize("write", COMPILED.values(), ids=COMPILED)
def test_a_compiled_module_is_what_it_computes(write):
    before = torch.compile
    assert answers_right(write(SOURCE))
    assert torch.compile is before


def test_a_task_asks_for_the_machine_it_runs_on():
    line = "torch.randn(4, 33).to('cuda:0' if torch.cuda.device_count() > 0 else 'cpu')"
    assert answers_right(SOURCE.replace("torch.randn(4, 33)", line))


# ---- what ends a process, and what prints ----

EXITS = [
    "raise KeyboardInterrupt('k')",
    "raise GeneratorExit('g')",
    "quit(3)",
    "class E(BaseException): pass\n{}raise E('e')",
]


@pytest.mark.parametrize("line", EXITS)
@pytest.mark.parametrize("where", ["import", "forward", "inputs", "constructor"])
def test_what_would_end_the_process_is_one_line_with_its_line(line, where):
    places = {
        "import": ("class Model", ""),
        "forward": (FORWARD, " " * 8),
        "inputs": ("    return [torch.randn", " " * 4),
        "constructor": ("    return []", " " * 4),
    }
    at, indentation = places[where]
    source = SOURCE.replace(at, f"{indentation}{line.format(indentation)}\n{at}")
    assert any(
        name in (told := refused(source))
        for name in ("KeyboardInterrupt: k", "GeneratorExit: g", "SystemExit: 3", "E: e")
    )
    assert "the reference itself fails" in told and "of the task)" in told


def test_an_exit_under_stress_alone_is_a_stress_that_the_reference_does_not_survive():
    line = "        if x.abs().max() > 12: raise SystemExit(1)\n"
    found = reference(SOURCE.replace(FORWARD, line + FORWARD))
    assert "plain" in found.findings.kinds and "padded" not in found.findings.kinds


def test_of_megabytes_that_a_task_prints_the_first_are_shown(capfd):
    line = "        print('a' * 1_000_000)\n        import sys; sys.stderr.write('b' * 1_000_000)\n"
    assert answers_right("print('first')\n" + SOURCE.replace(FORWARD, line + FORWARD))
    shown = capfd.readouterr()
    assert shown.err.startswith("first\na") and len(shown.err) < PRINTED + 200
    assert shown.err.endswith(f"[task t prints more than {PRINTED} characters]\n")


# ---- arguments ----


def test_arguments_by_name_are_put_in_their_places():
    def function(a, b=2, *rest, c=3, **more): ...

    assert arguments({"a": 1}, function, "get_inputs") == [1]
    assert arguments({"b": 5, "a": 1}, function, "get_inputs") == [1, 5]
    assert arguments([[], {"a": 7}], function, "get_init_inputs") == [7]  # KernelBook's form
    assert arguments([[7], {"b": 8}], function, "get_init_inputs") == [7, 8]
    assert arguments([[], {}], lambda: 0, "get_init_inputs") == []
    assert arguments([[1], {}], lambda x, y: 0, "get_init_inputs") == [[1], {}]  # two arguments
    assert arguments([[], {"q": 7}], lambda x, y: 0, "get_init_inputs") == [[], {"q": 7}]
    assert arguments([[], {"a": 7}], function, "get_inputs") == [[], {"a": 7}]
    for given in ({"a": 1, "c": 4}, {"b": 1}, torch.ones(2), "text", 3):
        with pytest.raises(Fault, match="get_inputs"):
            arguments(given, function, "get_inputs")


NUMPY = [
    "[np.random.rand(4, 33)]",
    "[np.random.rand(33, 4).T[::-1].astype('float32')]",
    "{'x': np.random.rand(4, 33)}",
    "iter([torch.randn(4, 33)])",
    "[torch.randn(4, 33, requires_grad=True) * 2]",
    "[nn.Parameter(torch.randn(4, 33))]",
]


@pytest.mark.parametrize("inputs", NUMPY)
def test_inputs_of_other_kinds_are_judged(inputs, executors):
    source = "import numpy as np\n" + SOURCE.replace("[torch.randn(4, 33)]", inputs)
    assert answers_right(source)
    executor = executors(policy="none")
    pieces = RIGHT.replace("y = torch", "x = torch.cat([x, x.relu()])[:4]\n        y = torch").replace(
        "tl.load(x", "tl.load(x"
    )
    pieces = pieces.replace(
        "tl.load(x_ptr + i, mask=i < n)", "tl.load(x_ptr + i, mask=i < n).to(y_ptr.dtype.element_ty)"
    )
    verdicts = [
        executor.submit(Task("t", source), s).result(300).status
        for s in (pieces, WRONG, f"{source}\nModelNew = Model")
    ]
    assert verdicts == ["correct", "wrong_value", "correct"]


def test_an_argument_that_no_process_can_be_given_is_one_line():
    for given in ("[nn.ReLU()]", "[len]", "[np.array([object()])]"):
        told = refused("import numpy as np\n" + SOURCE.replace("return []", f"return {given}"))
        assert "get_init_inputs() returned an argument of type" in told or "object" in told


# ---- lazy layers ----

LAZY = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.{conv}
        self.norm = nn.{norm}
        self.drop = nn.Dropout(0.0)
        self.out = nn.{out}

    def forward(self, x):
        return self.out(self.drop(self.norm(self.conv(x)).flatten(1)))

def get_inputs():
    return [torch.randn(2, 3, 5)]

def get_init_inputs():
    return []
"""


def test_lazy_layers_have_the_weights_that_others_would_draw():
    lazy = reference(LAZY.format(conv="LazyConv1d(4, 2)", norm="LazyBatchNorm1d()", out="LazyLinear(3)"))
    eager = reference(LAZY.format(conv="Conv1d(3, 4, 2)", norm="BatchNorm1d(4)", out="Linear(16, 3)"))
    one, two = lazy.modules.weights(5), eager.modules.weights(5)
    assert list(one) == list(two) and all(torch.equal(one[name], two[name]) for name in two)
    x = eager.inputs.draw("plain", 5)
    assert torch.equal(lazy.run(x, 5), eager.run(x, 5))


def test_a_lazy_layer_that_is_never_called_is_said():
    source = LAZY.format(conv="Conv1d(3, 4, 2)", norm="BatchNorm1d(4)", out="Linear(16, 3)")
    told = refused(
        source.replace("        self.drop =", "        self.spare = nn.LazyLinear(2)\n        self.drop =")
    )
    assert "does not call a lazy layer" in told
