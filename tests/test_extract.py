"""The one rule of nanotriton/rules/extract.py on completions as models (and cheats) write them."""

import pytest

from nanotriton.rules.extract import extract_candidate, parse, python_blocks

CODE = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    pass\n"
OLD = "class ModelNew:\n    draft = True\n"


def fence(code, info="python", mark="```"):
    return f"{mark}{info}\n{code}{mark}\n"


# A line that looks like a fence for long, and is none. Each was read again from each of its characters.
LONG = 400_000
NEARLY = {
    "spaces": "```" + " " * LONG + "`",
    "tabs": "~~~" + "\t " * (LONG // 2) + "`",
    "backticks": "`" * LONG + "x`",
    "tildes": "~" * LONG + "`",
    "words": "```" + "python " * (LONG // 7) + "`",
    "an indentation": " " * LONG + "``",
}


@pytest.mark.parametrize("line", NEARLY.values(), ids=NEARLY)
def test_a_long_line_is_read_once(line):
    """In quadratic time one of these lines would take this test past any limit."""
    assert extract_candidate(f"{line}\n{fence(CODE)}").strip() == CODE.strip()


ACCEPTED = {
    "plain": fence(CODE),
    "prose around": f"Here is the kernel:\n\n{fence(CODE)}\nIt fuses both operations.",
    "the last of two": fence(OLD) + "Wait, better:\n" + fence(CODE),
    "a usage example after it": fence(CODE) + "Use it so:\n" + fence("model = ModelNew()\nmodel(x)\n"),
    "a shell block after it": fence(CODE) + fence("pip install triton\n", "bash"),
    "a draft inside the reasoning": f"<think>\n{fence(OLD)}</think>\n{fence(CODE)}",
    "reasoning opened by the template": f"Let me see.\n{fence(OLD)}</think>\n\n{fence(CODE)}",
    "reasoning that quotes its own end": f"<think>I must close </think> first.\n{fence(OLD)}</think>{fence(CODE)}",
    "</think> inside the answer's code": fence(OLD)
    + "\n".join(["</think>", fence("x = '</think>'\n" + CODE)]),
    "prompt echoed before it": f"Example answer:\n{fence(OLD)}\nYour task: write ModelNew.\n{fence(CODE)}",
    "no language": fence(CODE, ""),
    "language in capitals": fence(CODE, "Python"),
    "language with attributes": fence(CODE, 'python title="kernel.py"'),
    "tildes": fence(CODE, "python", "~~~"),
    "four backticks": fence(CODE, "py", "````"),
    "carriage returns": fence(CODE).replace("\n", "\r\n"),
    "end of text without a closing fence": "```python\n" + CODE,
    "inside a list": "1. The code:\n\n   ```python\n"
    + "".join(f"   {line}\n" for line in CODE.splitlines())
    + "   ```\n",
    "fence in the middle of a line is no fence": "I use ```python a lot.\n" + fence(CODE),
    "entry named only in the text after it": fence(CODE)
    + "`class ModelNew` is above.\n"
    + fence("y = 1  # ModelNew\n"),
    "entry in a string of a later block": fence(CODE) + fence('s = """\nclass ModelNew: pass\n"""\n'),
    "entry in a comment of a later block": fence(CODE) + fence("# class ModelNew\nz = 2\n"),
    "entry nested in a function of a later block": fence(CODE)
    + fence("def f():\n    class ModelNew: pass\n"),
}

KERNEL = "import triton\n\n\n@triton.jit\ndef double(x):\n    pass\n\n\n" + CODE
ACCEPTED |= {
    "labelled triton": fence(CODE, "triton"),
    "labelled with a version": fence(CODE, "python3.11"),
    "labelled with a version and a title": fence(CODE, "python3.12 kernel.py"),
    "a naive version quoted last": fence(KERNEL) + "It replaces this:\n" + fence(OLD),
    "a naive version quoted before and after": fence(OLD) + fence(KERNEL) + fence(OLD),
    "the last of two kernels": fence(KERNEL.replace("pass", "draft = 1")) + fence(KERNEL) + fence(OLD),
    "a kernel that is made by a call": fence("k = triton.jit(f)\n" + CODE) + fence(OLD),
    "a kernel in a comment only": fence("# @triton.jit\n" + OLD) + fence(CODE),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_the_answer_is_found(name):
    found = extract_candidate(ACCEPTED[name])
    assert found is not None and found.strip().endswith(CODE.strip())
    assert "draft" not in found


@pytest.mark.parametrize("head", ["if True:", "try:", "with x:", "if False:\n    pass\nelse:"])
def test_the_entry_may_stand_in_a_branch(head):
    tail = "finally:\n    pass\n" if head == "try:" else ""
    code = f"{head}\n    class ModelNew:\n        pass\n{tail}"
    assert extract_candidate(fence(code)) == code
    assert extract_candidate(fence(code.replace(head, "def f():"))) is None or tail


REFUSED = {
    "nothing": "",
    "prose": "I would write class ModelNew with a kernel.",
    "code without a fence": CODE,
    "reasoning that never ends": f"<think>\n{fence(CODE)}",
    "only in the reasoning": f"<think>\n{fence(CODE)}</think>\nDone.",
    "another language": fence(CODE, "cpp"),
    "a block without the entry": fence("def kernel(): pass\n"),
    "a language that only begins like Python": fence(CODE, "pythonic"),
    "another language with a version": fence(CODE, "c11"),
    "the entry in a docstring only": fence('"""\nclass ModelNew: pass\n"""\n'),
    "the entry in a comment only": fence("# class ModelNew\n"),
    "the entry as a longer name": fence("class ModelNewer:\n    pass\n"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_there_is_no_answer(name):
    assert extract_candidate(REFUSED[name]) is None


def test_a_fence_in_a_docstring_further_in_does_not_end_the_block():
    code = 'class ModelNew:\n    """Use:\n\n    ```\n    ModelNew()\n    ```\n    """\n    x = 1\n'
    assert extract_candidate(fence(code)) == code


def test_a_slip_in_the_last_answer_is_not_replaced_by_an_older_draft():
    broken = "class ModelNew:\n    def forward(self x):\n        pass\n"
    assert extract_candidate(fence(OLD) + fence(broken)) == broken


def test_other_entry_points():
    code = "def softmax(x):\n    return x\n"
    assert extract_candidate(fence(code), entry="softmax") == code
    assert extract_candidate(fence("ModelNew = make()\n")) == "ModelNew = make()\n"


def test_blocks_keep_relative_indentation():
    assert python_blocks("  ```py\n  if x:\n      y\n  ```") == ["if x:\n    y\n"]


@pytest.mark.parametrize(
    "source",
    ["a\0b", "\ud800", "(" * 5000, "-" * 100_000 + "1", "x = " + "+".join("1" * 50_000), "y" * 300_000],
)
def test_what_breaks_the_parser_is_a_syntax_error(source):
    with pytest.raises(SyntaxError):
        parse(source)


def test_a_long_completion_is_read_to_its_end():
    """bench.executor.rules has the time that this takes."""
    block = "```python\nclass ModelNew: pass\n"
    text = block * 20_000 + "`" * 100_000
    assert extract_candidate(text + "</think>") is None
    assert extract_candidate(text + "</think>\n" + block) == "class ModelNew: pass\n"
