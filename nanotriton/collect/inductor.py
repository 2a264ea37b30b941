"""Route compile: a module in, a `ModelNew` out that launches the Triton which Inductor would run on an H100,
in plain text.

The kernels are rewritten (inductor_kernel.py), the wrapper's statements become lines of forward, and sizes
are read from the shapes of inputs and parameters. Refused, with a reason: library calls, random numbers,
kernels that need helpers of Inductor's own.
"""

import ast
import logging
import re

import torch

from nanotriton.collect.compose import without_annotations, without_docstrings
from nanotriton.collect.inductor_emit import emit
from nanotriton.collect.inductor_host import Host
from nanotriton.collect.inductor_kernel import Kernel
from nanotriton.collect.ir import Unfit
from nanotriton.tasks.task import Task


def compiled(task: Task) -> str:
    """The source of a ModelNew for a task. Raises Unfit."""
    torch.set_num_threads(1)
    # Inductor logs a traceback for every module that it can't trace: the reason is in the report
    logging.disable(logging.CRITICAL)
    names: dict = {"__name__": "task"}
    try:
        exec(compile(task.source, f"<task {task.name}>", "exec"), names)
        torch.manual_seed(0)
        model, inputs = names["Model"](*names["get_init_inputs"]()), list(names["get_inputs"]())
        with torch.no_grad():
            single = isinstance(model(*inputs), torch.Tensor)
    except Exception as error:
        raise Unfit(f"it doesn't run: {type(error).__name__}: {error}".split("\n")[0]) from None
    why = None
    # with symbolic sizes of everything if Inductor can, else of the inputs, else for these sizes alone
    for dynamic in ("all", "inputs", ""):
        try:
            model = names["Model"](*names["get_init_inputs"]())  # tracing leaves its tensors fake
            code, signature = emit(model, inputs, dynamic)
            return File(task, code, signature, model, inputs, single).write()
        except Exception as error:
            why = why or error  # the first is about the module, a later one about its sizes
    raise Unfit(f"{type(why).__name__}: {why}".split("\n")[0].removeprefix("Unfit: "))


class File:
    """Makes a file of Inductor's output code."""

    def __init__(self, task: Task, code: str, signature, model, inputs: list, single: bool):
        self.tree, self.file = ast.parse(code), ast.parse(task.source)
        self.cls = next(n for n in self.file.body if isinstance(n, ast.ClassDef) and n.name == "Model")
        methods = {n.name: n for n in self.cls.body if isinstance(n, ast.FunctionDef)}
        if "forward" not in methods:
            raise Unfit("forward is inherited")
        self.forward = methods["forward"]
        kernels = {name: Kernel(name, *text) for name, text in kernel_texts(code, self.tree).items()}
        if not kernels:
            raise Unfit("no kernel in Inductor's code")
        arguments = [a.arg for a in self.forward.args.args[1:]]
        tensors = [(a, x) for a, x in zip(arguments, inputs) if isinstance(x, torch.Tensor)]
        self.host = Host(kernels, signature, model, tensors, single)

    def write(self) -> str:
        lines = self.host.lines(call_body(self.tree))
        text = self.model(lines)
        kernels = [kernel.text for kernel in self.host.launched()]
        body = "\n\n\n".join(dict.fromkeys(kernels))
        imports = ["import torch", "import torch.nn as nn", "import triton", "import triton.language as tl"]
        imports += ["from triton.language.extra import libdevice"] if "libdevice." in body else []
        needed = self.needed(text)
        rest = "\n".join([text, *needed])
        others = [n for n in self.file.body if isinstance(n, ast.Import | ast.ImportFrom)]
        others = [ast.unparse(n) for n in others if any(re.search(rf"\b{name}\b", rest) for name in bound(n))]
        heads = list(dict.fromkeys([*imports, *others]))
        return "\n\n\n".join(["\n".join(heads), body, *needed, text]) + "\n"

    def model(self, lines: list[str]) -> str:
        """The class with the task's constructor and the new forward."""
        called = {n.attr for n in ast.walk(self.cls) if isinstance(n, ast.Attribute)}
        text = "class ModelNew(nn.Module):\n"
        for node in self.cls.body:
            # other methods than the constructor matter as far as it calls them
            kept = isinstance(node, ast.FunctionDef) and node.name != "forward"
            if kept and (node.name == "__init__" or node.name in self.called_by_constructor(called)):
                method = ast.unparse(without_docstrings(node)).replace("super(Model, self)", "super()")
                text += "".join(f"    {line}\n" for line in method.split("\n")) + "\n"
        text += f"    def forward({ast.unparse(without_annotations(self.forward.args))}):\n"
        return text + "".join(f"        {line}\n" for line in lines).rstrip()

    def called_by_constructor(self, called: set[str]) -> set[str]:
        """The class's methods that its constructor needs, directly or not."""
        methods = {n.name: n for n in self.cls.body if isinstance(n, ast.FunctionDef)}
        found, todo = set(), ["__init__"]
        while todo:
            node = methods.get(todo.pop())
            for n in ast.walk(node) if node else ():
                if isinstance(n, ast.Attribute) and n.attr in methods.keys() - found:
                    found.add(n.attr)
                    todo.append(n.attr)
        return found

    def needed(self, text: str) -> list[str]:
        """Classes, functions and constants of the task's file that the constructor needs."""
        defined: dict[str, ast.stmt] = {}
        for node in self.file.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                if node.name not in ("Model", "get_inputs", "get_init_inputs"):
                    defined[node.name] = node
            elif isinstance(node, ast.Assign):
                stored = (n for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
                defined |= {n.id: node for n in stored}
        used, todo = [], [ast.parse(text)]
        while todo:
            for n in ast.walk(todo.pop()):
                if isinstance(n, ast.Name) and n.id in defined and defined[n.id] not in used:
                    used.append(defined[n.id])
                    todo.append(defined[n.id])
        return [ast.unparse(n) for n in self.file.body if n in used]


def bound(node: ast.Import | ast.ImportFrom) -> list[str]:
    """The names that an import binds."""
    return [(a.asname or a.name).split(".")[0] for a in node.names]


def kernel_texts(code: str, tree: ast.Module) -> dict[str, tuple[str, str]]:
    """name -> (source, the line about its operators) of every `name = async_compile.triton('name', '''source''')`."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("async_compile.triton("):
            name = node.targets[0].id
            before = code[: code.index(f"{name} = async_compile")].rstrip().split("\n")
            told = [line for line in before if "Original ATen:" in line]
            found[name] = ast.literal_eval(node.value.args[1]), told[-1] if told else ""
    return found


def call_body(tree: ast.Module) -> list[ast.stmt]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == "call":
            return node.body
    raise Unfit("no call function in Inductor's code")
