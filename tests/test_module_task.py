"""A task made of anybody's file, and what is said of a file that is none."""

from pathlib import Path

import pytest
import torch

from nanotriton.tasks.module import module_task
from nanotriton.tasks.task import check_source

HEAD = "import torch\nfrom torch import nn\n"
NET = """
class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return torch.relu(x) * self.scale
"""
INPUTS = "\ndef get_inputs():\n    return [torch.randn(3, 4)]\n"


def task_of(tmp_path: Path, text: str, wanted: str = ""):
    (path := tmp_path / "mine.py").write_text(text)
    return module_task(path, wanted)


def answer(task) -> torch.Tensor:
    """What the task's Model says to its own inputs."""
    names: dict = {"__name__": "task"}
    exec(compile(check_source(task.source, "task"), "task", "exec"), names)
    return names["Model"](*names["get_init_inputs"]())(*names["get_inputs"]())


def test_a_task_of_kernelbench_stays_as_it_is(tmp_path):
    text = HEAD + NET.replace("Net", "Model") + INPUTS + "\n\ndef get_init_inputs():\n    return [4]\n"
    task = task_of(tmp_path, text)
    assert task.source == text and task.name == "mine"


@pytest.mark.parametrize(
    "text",
    [
        HEAD + NET + INPUTS,
        HEAD + NET + "\nexample_inputs = (torch.randn(3, 4),)\n",
        HEAD + NET + "\nexample_inputs: list = [\n    torch.randn(3, 4),  # a batch\n]\n",
        HEAD + NET + "\nexample_inputs = torch.randn(3, 4)\n",
        HEAD + NET + "\nexample_inputs = torch.randn(\n    3,\n    4,\n)\n",
        HEAD + NET + "\nROWS = 3\nexample_inputs = tuple(torch.randn(ROWS, 4) for _ in range(1))\n",
        HEAD + NET + "\nexample_inputs = list((torch.randn(3, 4),))\n",
        "\ufeff" + HEAD + NET + INPUTS,
        HEAD + NET.replace("width=4", "width") + INPUTS + "\ndef get_init_inputs():\n    return [4]\n",
        "import torch\nimport torch.nn\n" + NET.replace("nn.", "torch.nn.") + INPUTS,
        "import torch\nimport torch.nn as N\n" + NET.replace("nn.", "N.") + INPUTS,
        HEAD + "from torch.nn import Module as Base\n" + NET.replace("nn.Module", "Base") + INPUTS,
        HEAD + NET + "\nif __name__ == '__main__':\n    raise SystemExit('run')\n" + INPUTS,
        # the one that uses the others, whatever their order of names
        HEAD
        + NET
        + NET.replace("Net", "Whole").replace("nn.Parameter(torch.ones(width))", "Net()(torch.ones(4))")
        + INPUTS,
        HEAD + NET.replace("Net", "Base") + "\nclass Small(Base):\n    pass\n" + INPUTS,
    ],
)
def test_a_file_with_one_module_and_inputs_is_a_task(tmp_path, text):
    task = task_of(tmp_path, text)
    assert "class Model(" in task.source and "\ufeff" not in task.source
    assert answer(task).shape == (3, 4) and not answer(task).equal(answer(task))


def test_inputs_are_drawn_anew_at_each_call(tmp_path):
    task = task_of(tmp_path, HEAD + NET + "\nexample_inputs = (torch.randn(3, 4),)\n")
    names: dict = {}
    exec(task.source, names)
    assert not names["get_inputs"]()[0].equal(names["get_inputs"]()[0])


def test_inputs_may_be_given_by_name(tmp_path):
    """As get_inputs() may give them: the judge puts a dict's entries in their places."""
    names: dict = {}
    exec(task_of(tmp_path, HEAD + NET + "\nexample_inputs = dict(x=torch.randn(3, 4))\n").source, names)
    assert names["get_inputs"]()["x"].shape == (3, 4)


def test_the_class_may_be_named(tmp_path):
    text = HEAD + NET + NET.replace("Net", "Other").replace("torch.relu(x)", "-torch.relu(x)") + INPUTS
    assert answer(task_of(tmp_path, text, "Other")).max() <= 0 <= answer(task_of(tmp_path, text, "Net")).min()
    with pytest.raises(ValueError, match=r"several modules, Net, Other: name one with --module$"):
        task_of(tmp_path, text)
    with pytest.raises(ValueError, match=r"no nn.Module Othr; did you mean Other\?"):
        task_of(tmp_path, text, "Othr")


@pytest.mark.parametrize(
    "text, says",
    [
        ("x = (\n", "mine.py: not Python: '(' was never closed (line 1)"),
        ("\n\nif x\n    pass\n", "mine.py: not Python: expected ':' (line 3)"),
        ("x = 1\0\n", "mine.py: not Python: source code string cannot contain null bytes"),
        ("x = " + "(" * 5000, "mine.py: not Python: "),
        ("x = 1\n", "mine.py: it defines no nn.Module: a file is expected that defines one nn.Module class"),
        ("class Net:\n    pass\n", "it defines no nn.Module"),
        (HEAD + NET, "it has no inputs for Net.forward: a file is expected"),
        (
            HEAD + NET.replace("width=4", "width, /, depth, *, bias, gain=1.0") + INPUTS,
            "Net.__init__ takes width, depth, bias: get_init_inputs() is expected, which returns them in a list",
        ),
        (
            HEAD
            + NET.replace("Net", "Base").replace("width=4", "width")
            + "\nclass Small(Base):\n    pass\n"
            + INPUTS,
            "Small.__init__ takes width",
        ),
        (HEAD + NET + INPUTS + "\nModel = 3\n", "it uses the name Model for something else than Net"),
        (HEAD + NET + INPUTS + "\n\ndef Model():\n    pass\n", "it uses the name Model for something else"),
    ],
)
def test_what_is_no_task_is_one_line_that_says_what_is_accepted(tmp_path, text, says):
    with pytest.raises(ValueError) as error:
        task_of(tmp_path, text)
    assert says in str(error.value) and "\n" not in str(error.value) and "mine.py" in str(error.value)


def test_a_file_that_cannot_be_read_is_one_line(tmp_path):
    with pytest.raises(ValueError, match=r"none.py: cannot read: No such file or directory$"):
        module_task(tmp_path / "none.py")
    (tmp_path / "latin.py").write_bytes(b"# \xe9\n")
    with pytest.raises(ValueError, match="cannot read: no UTF-8 text"):
        module_task(tmp_path / "latin.py")


def test_the_class_is_renamed_where_nothing_else_may_have_its_name(tmp_path):
    old = NET.replace("super().__init__()", "super(Net, self).__init__()  # a Net")
    task = task_of(tmp_path, HEAD + old + INPUTS)
    assert task.source.startswith(HEAD + old.replace("Net(", "Model(").replace("(Net,", "(Model,") + INPUTS)
    assert "# a Net" in task.source and answer(task).shape == (3, 4)
    for line in (
        "named = 'Net'",
        "kind = f'{Net.__name__}'",
        "import types\nspace = types.SimpleNamespace(Net=1).Net",
    ):
        text = f"{HEAD}{NET}{INPUTS}\n\n{line}\n"
        task = task_of(tmp_path, text)
        assert task.source.startswith(text) and "\n\nclass Model(Net):\n    pass\n" in task.source
        assert answer(task).shape == (3, 4)
