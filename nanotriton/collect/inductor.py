"""Route compile: a module in, a `ModelNew` out that launches the Triton which Inductor would run on an H100,
in plain text.

The kernels are rewritten (inductor_kernel.py), the wrapper's statements become lines of forward, and sizes
are read from the inputs' shapes: only what weights fix stays a number. Refused, with a reason: library
calls, random numbers, kernels that need helpers of Inductor's own.
"""

import ast
import logging
import re

import torch

from nanotriton.collect.compose import without_annotations, without_docstrings
from nanotriton.collect.inductor_emit import emit
from nanotriton.collect.inductor_kernel import Kernel
from nanotriton.collect.ir import Unfit
from nanotriton.tasks.task import Task

DROPPED = re.compile(
    r"args\.clear|assert_|torch\.cuda\.|stream\d* =|raw_stream\d+ =|del |.* = copy_if_misaligned"
)
FOREIGN = re.compile(r"extern_kernels|torch\.ops|aten\.|inductor_seeds|inductor_random|_seed|cpp_fused")


def compiled(task: Task) -> str:
    """The source of a ModelNew for a task. Raises Unfit."""
    torch.set_num_threads(1)
    logging.disable(
        logging.CRITICAL
    )  # Inductor logs a traceback for every module that it can't trace: the reason is in the report
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
    for dynamic in (True, False):  # with symbolic sizes if Inductor can, else for these sizes alone
        try:
            model = names["Model"](*names["get_init_inputs"]())  # tracing leaves its tensors fake
            code, signature = emit(model, inputs, dynamic)
            return Wrapper(task, code, signature, inputs, single).write()
        except Exception as error:
            why = error
    raise Unfit(f"Inductor: {type(why).__name__}: {why}".split("\n")[0])


class Wrapper:
    """Makes a file of Inductor's output code."""

    def __init__(self, task: Task, code: str, signature, inputs: list, single: bool):
        self.task, self.tree, self.signature, self.inputs, self.single = (
            task,
            ast.parse(code),
            signature,
            inputs,
            single,
        )
        self.kernels = {name: Kernel(name, text) for name, text in kernel_texts(self.tree).items()}
        if not self.kernels:
            raise Unfit("no kernel in Inductor's code")
        file = ast.parse(task.source)
        self.cls = next(n for n in file.body if isinstance(n, ast.ClassDef) and n.name == "Model")
        self.file = file
        forward = next(
            (n for n in self.cls.body if isinstance(n, ast.FunctionDef) and n.name == "forward"), None
        )
        if forward is None:
            raise Unfit("forward is inherited")
        self.forward = forward
        self.names: dict[str, str] = {}  # Inductor's name -> ours
        self.values: dict[str, int] = {}  # a size's value in the example
        self.lines: list[str] = []

    def write(self) -> str:
        for node in statements(call_body(self.tree)):
            self.statement(node, ast.unparse(node))
        text = self.model()
        functions = [
            f"@triton.jit\n{ast.unparse(f)}" for k in self.kernels.values() for f in (*k.combine, k.function)
        ]
        body = "\n\n\n".join(dict.fromkeys(functions))
        if found := re.search(r"triton_helpers\.(\w+)|tl_math\.(\w+)", body):
            raise Unfit(f"a helper of Inductor's own: {found[0]}")
        imports = ["import torch", "import torch.nn as nn", "import triton", "import triton.language as tl"]
        imports += ["from triton.language.extra import libdevice"] if "libdevice." in body else []
        others = [ast.unparse(n) for n in self.file.body if isinstance(n, ast.Import | ast.ImportFrom)]
        heads = list(dict.fromkeys([*imports, *(o for o in others if o.split()[-1] in text)]))
        return renamed("\n\n\n".join(["\n".join(heads), body, *self.needed(text), text]) + "\n", self.kernels)

    # ---- forward ----

    def statement(self, node: ast.stmt, text: str) -> None:
        if DROPPED.match(text):
            return
        if FOREIGN.search(text):
            raise Unfit("a library call: " + text.split("(")[0].split("=")[-1].strip()[:60])
        if text.endswith("= args"):
            self.arguments(node.targets[0])
        elif found := re.fullmatch(r"(\w+)_size = (\w+)\.size\(\)", text):
            self.names[found[1] + "_size"] = f"{self.names[found[2]]}.shape"
        elif found := re.fullmatch(r"(s\d+) = (\w+_size)\[(\d+)\]", text):
            self.size(found[1], self.names[found[2]], int(found[3]))
        elif ".run(" in text:
            self.launch(node.value)
        elif "empty_strided_cuda" in text or "empty_strided_cpu" in text:
            self.allocate(node)
        elif text.startswith("return"):
            self.returned(node.value)
        else:
            self.lines.append(self.said(text).replace("reinterpret_tensor(", "torch.as_strided("))

    def arguments(self, target: ast.expr) -> None:
        """Which of Inductor's arguments is which parameter, buffer or input."""
        ids = [t.id for t in target.elts] if isinstance(target, ast.Tuple | ast.List) else [target.id]
        params, buffers = self.signature.inputs_to_parameters, self.signature.inputs_to_buffers
        inputs = [
            a.arg for a, x in zip(self.forward.args.args[1:], self.inputs) if isinstance(x, torch.Tensor)
        ]
        order = [*params.values(), *buffers.values()]
        paths = [re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", "self." + p.removeprefix("model.")) for p in order]
        for name, text in zip(ids, [*paths, *inputs]):
            self.names[name] = text

    def size(self, symbol: str, shape: str, dim: int) -> None:
        tensor = shape.removesuffix(".shape")
        arguments = [a.arg for a in self.forward.args.args[1:]]
        self.values[symbol] = self.inputs[arguments.index(tensor)].shape[dim]
        self.lines.append(f"{symbol} = {shape}[{dim}]")

    def said(self, text: str) -> str:
        """A text with our names."""
        return re.sub(r"\b(\w+)\b", lambda m: self.names.get(m[1], m[1]), text)

    def launch(self, call: ast.Call) -> None:
        name = ast.unparse(call.func).removesuffix(".run")
        kernel = self.kernels[name]
        arguments = [self.said(ast.unparse(a)) for a in call.args]
        options = kernel.options(len(arguments))
        self.lines.append(f"{name}[{kernel.grid(arguments)}]({', '.join(arguments + options)})")

    def allocate(self, node: ast.Assign) -> None:
        size, stride, dtype = (ast.unparse(a) for a in node.value.args[:3])
        device = next(
            a.arg for a, x in zip(self.forward.args.args[1:], self.inputs) if isinstance(x, torch.Tensor)
        )
        numbers = [
            eval(t, {"__builtins__": {"max": max, "min": min}}, dict(self.values)) for t in (size, stride)
        ]  # Inductor's own arithmetic of sizes
        tail = f"dtype={dtype}, device={device}.device"
        if contiguous(*numbers):
            self.lines.append(f"{node.targets[0].id} = torch.empty({size}, {tail})")
        else:
            self.lines.append(f"{node.targets[0].id} = torch.empty_strided({size}, {stride}, {tail})")

    def returned(self, value: ast.expr) -> None:
        elements = [
            self.said(ast.unparse(e)).replace("reinterpret_tensor(", "torch.as_strided(") for e in value.elts
        ]
        changed = len(self.signature.buffers_to_mutate)
        for path, text in zip(self.signature.buffers_to_mutate.values(), elements):
            self.lines.append(f"{'self.' + path.removeprefix('model.')}.copy_({text})")
        elements = elements[changed:]
        self.lines.append(
            "return " + (elements[0] if self.single and len(elements) == 1 else f"({', '.join(elements)},)")
        )

    # ---- the rest of the file ----

    def model(self) -> str:
        methods = [
            without_docstrings(n)
            for n in self.cls.body
            if isinstance(n, ast.FunctionDef) and n.name != "forward"
        ]
        text = "class ModelNew(nn.Module):\n"
        for method in methods:
            body = ast.unparse(method)
            body = re.sub(r"super\(Model, self\)", "super()", body)
            text += "".join(f"    {line}\n" for line in body.split("\n")) + "\n"
        text += f"    def forward({ast.unparse(without_annotations(self.forward.args))}):\n"
        return text + "".join(f"        {line}\n" for line in self.lines).rstrip()

    def needed(self, text: str) -> list[str]:
        """Classes, functions and constants of the task's file that the constructor needs."""
        defined: dict[str, ast.stmt] = {}
        for node in self.file.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name not in (
                "Model",
                "get_inputs",
                "get_init_inputs",
            ):
                defined[node.name] = node
            elif isinstance(node, ast.Assign):
                defined |= {
                    t.id: node
                    for t in ast.walk(node)
                    if isinstance(t, ast.Name) and isinstance(t.ctx, ast.Store)
                }
        used, todo = [], [ast.parse(text)]
        while todo:
            for n in ast.walk(todo.pop()):
                if isinstance(n, ast.Name) and n.id in defined and defined[n.id] not in used:
                    used.append(defined[n.id])
                    todo.append(defined[n.id])
        return [ast.unparse(n) for n in self.file.body if n in used]


def kernel_texts(tree: ast.Module) -> dict[str, str]:
    """name -> source of every `name = async_compile.triton('name', '''source''')`."""
    found = {}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Call)
            and ast.unparse(node.value.func) == "async_compile.triton"
        ):
            found[node.targets[0].id] = ast.literal_eval(node.value.args[1])
    return found


def call_body(tree: ast.Module) -> list[ast.stmt]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == "call":
            return node.body
    raise Unfit("no call function in Inductor's code")


def statements(body: list[ast.stmt]):
    for node in body:
        if isinstance(node, ast.With):
            yield from statements(node.body)
        else:
            yield node


def contiguous(size: tuple, stride: tuple) -> bool:
    expected = 1
    for n, s in reversed(list(zip(size, stride))):
        if n != 1 and s != expected:
            return False
        expected *= n
    return True


def renamed(text: str, kernels: dict[str, Kernel]) -> str:
    """Kernels are called after what they do: triton_poi_fused_add_relu_0 -> add_relu_kernel."""
    for number, name in enumerate(kernels):
        said = re.sub(r"^triton_(poi|red|per|tem|for)_fused_?", "", name)
        said = re.sub(r"_?\d+$", "", said).strip("_") or "fused"
        short = "_".join(said.split("_")[:4])
        text = re.sub(rf"\b{name}_(\w*numel)\b", rf"{short}_{number}_\1" if len(kernels) > 1 else r"\1", text)
        text = re.sub(
            rf"\b{name}\b", f"{short}_kernel_{number}" if len(kernels) > 1 else f"{short}_kernel", text
        )
    return text
