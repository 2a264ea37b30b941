"""Route compile: a module in, a `ModelNew` out that launches the Triton which Inductor would run on an H100,
in plain text.

The kernels are rewritten (kernel.py), the wrapper's statements become lines of forward, and sizes
are read from the shapes of inputs and parameters. Refused, with a reason: library calls, random numbers,
kernels that need helpers of Inductor's own.
"""

import ast
import contextlib
import inspect
import logging
import re
from collections.abc import Iterator
from unittest import mock

import torch

from nanotriton.collect.compile.emit import emit
from nanotriton.collect.compile.host import Host
from nanotriton.collect.compile.kernel import Kernel
from nanotriton.collect.compile.lines import stored
from nanotriton.collect.compose.compose import without_annotations, without_docstrings
from nanotriton.collect.compose.ir import Unfit
from nanotriton.tasks.task import Task

BLOCK_SIZES = {2**i for i in range(4, 12)}
# What no other choice of symbols changes.
HOPELESS = re.compile(r"replace_random|mutated in the graph|data-dependent|Could not guard")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Inductor logs a traceback for every module that it can't trace. The reason is in the report."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


@quiet()
def compiled(task: Task) -> str:
    """The source of a ModelNew for a task. Raises Unfit."""
    torch.set_num_threads(1)
    names: dict = {"__name__": "task"}
    try:
        # a function that is scripted is traced as the Python that it is
        with mock.patch.object(torch.jit, "script", lambda function, *args, **kwargs: function):
            exec(compile(task.source, f"<task {task.name}>", "exec"), names)
        torch.manual_seed(0)
        model = names["Model"](*names["get_init_inputs"]())
        inputs = list(names["get_inputs"]())
        with torch.no_grad():
            kind = type(model(*inputs))
    except Exception as error:
        raise Unfit(f"it doesn't run: {type(error).__name__}: {error}".split("\n")[0]) from None
    arguments = list(inspect.signature(names["Model"].forward).parameters)[1:]
    tensors = [(a, x) for a, x in zip(arguments, inputs) if isinstance(x, torch.Tensor)]
    if not tensors:
        raise Unfit("no input is a tensor")
    why = None
    # with symbolic sizes of everything if Inductor can, else of the inputs, else for these sizes alone
    for dynamic in ("all", "inputs", ""):
        try:
            model = names["Model"](*names["get_init_inputs"]())  # tracing leaves its tensors fake
            code, signature = emit(model, inputs, dynamic)
            return File(task, code, Host(signature, model, tensors, kind)).write()
        except Unfit as error:
            why = why or error
            break
        except Exception as error:
            why = why or error  # the first is about the module, a later one about its sizes
            if HOPELESS.search(str(error)):
                break
    raise Unfit(f"{type(why).__name__}: {why}".split("\n")[0].removeprefix("Unfit: "))


class File:
    """Makes a file of Inductor's output code."""

    def __init__(self, task: Task, code: str, host: Host):
        self.tree = ast.parse(code)
        self.file = ast.parse(task.source)
        self.host = host
        self.cls = next(n for n in self.file.body if isinstance(n, ast.ClassDef) and n.name == "Model")
        host.kernels = {name: Kernel(name, *text) for name, text in kernel_texts(code, self.tree).items()}
        if not host.kernels:
            raise Unfit("no kernel in Inductor's code")

    def write(self) -> str:
        lines = self.host.lines(call_body(self.tree))
        text = self.model(lines)
        known = {n for n in numbers(ast.unparse(self.file)) if type(n) is int and n > 1}
        kernels = [spelled(kernel.text, known) for kernel in self.host.launched()]
        body = "\n\n\n".join(dict.fromkeys(kernels))
        imports = ["import torch", "import torch.nn as nn", "import triton", "import triton.language as tl"]
        imports += ["from triton.language.extra import libdevice"] if "libdevice." in body else []
        needed = self.needed(text)
        rest = "\n".join([text, *needed])
        for node in self.file.body:
            if isinstance(node, ast.Import | ast.ImportFrom) and binds_one_of(node, rest):
                imports.append(ast.unparse(node))
        heads = list(dict.fromkeys(imports))
        return "\n\n\n".join(["\n".join(heads), body, *needed, text]) + "\n"

    def model(self, lines: list[str]) -> str:
        """The class with the task's constructor and attributes, and the new forward."""
        bases = ", ".join(map(ast.unparse, self.cls.bases)) or "nn.Module"
        text = f"class ModelNew({bases}):\n"
        methods = self.called_by_constructor()
        for node in self.cls.body:
            if isinstance(node, ast.FunctionDef) and node.name in methods:
                said = ast.unparse(without_docstrings(node)).replace("super(Model, self)", "super()")
                said = re.sub(r"(?<![\w.])Model\b", "ModelNew", said)
                text += "".join(f"    {line}\n" for line in said.split("\n")) + "\n"
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                text += f"    {ast.unparse(node)}\n"
        text += f"    def forward({self.signature()}):\n"
        return text + "".join(f"        {line}\n" for line in lines).rstrip()

    def signature(self) -> str:
        """The parameters of forward, which may be inherited."""
        methods = {n.name: n for n in self.cls.body if isinstance(n, ast.FunctionDef)}
        if "forward" in methods:
            return ast.unparse(without_annotations(methods["forward"].args))
        return ", ".join(["self", *self.host.tensors])

    def called_by_constructor(self) -> set[str]:
        """The class's methods that its constructor needs, directly or not, and itself."""
        methods = {n.name: n for n in self.cls.body if isinstance(n, ast.FunctionDef)}
        found, todo = set(), ["__init__"] if "__init__" in methods else []
        while todo:
            name = todo.pop()
            found.add(name)
            called = {n.attr for n in ast.walk(methods[name]) if isinstance(n, ast.Attribute)}
            todo += (called & methods.keys()) - found - {"forward"}
        return found

    def needed(self, text: str) -> list[str]:
        """Classes, functions and constants of the task's file that the constructor needs."""
        defined: dict[str, ast.stmt] = {}
        for node in self.file.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                if node.name not in ("Model", "get_inputs", "get_init_inputs"):
                    defined[node.name] = node
            elif isinstance(node, ast.Assign):
                defined |= dict.fromkeys(stored(node), node)
        used, todo = [], [ast.parse(text)]
        while todo:
            for n in ast.walk(todo.pop()):
                if isinstance(n, ast.Name) and n.id in defined and defined[n.id] not in used:
                    used.append(defined[n.id])
                    todo.append(defined[n.id])
        return [ast.unparse(n) for n in self.file.body if n in used]


def numbers(text: str) -> set[float]:
    found = (n.value for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Constant))
    return {n for n in found if type(n) in (int, float)}


def spelled(kernel: str, known: set[int]) -> str:
    """A kernel in which a number that the task doesn't have, but two factors of, is said as their product: 9
    taps of a 3 x 3 convolution as 3 * 3.
    """

    class Spell(ast.NodeTransformer):
        def visit_Constant(self, node: ast.Constant) -> ast.AST:
            n = node.value
            if type(n) is not int or n < 4 or n in known or n in BLOCK_SIZES:
                return node
            first = next((a for a in sorted(known) if n % a == 0 and n // a in known), None)
            return node if first is None else ast.parse(f"{first} * {n // first}", mode="eval").body

    return ast.unparse(ast.fix_missing_locations(Spell().visit(ast.parse(kernel)))).replace("'", '"')


def bound(node: ast.Import | ast.ImportFrom) -> list[str]:
    """The names that an import binds."""
    return [(a.asname or a.name).split(".")[0] for a in node.names]


def binds_one_of(node: ast.Import | ast.ImportFrom, text: str) -> bool:
    """Whether a text mentions a name that an import binds."""
    return any(re.search(rf"\b{name}\b", text) for name in bound(node))


def kernel_texts(code: str, tree: ast.Module) -> dict[str, tuple[str, str]]:
    """name -> (source, the line about its operators) of every kernel in Inductor's code."""
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
