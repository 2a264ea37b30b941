"""The host's side of Inductor's code as the lines of a forward: sizes, allocations, launches, the answer."""

import ast
import re
from dataclasses import dataclass

import torch

from nanotriton.collect.compile.kernel import Kernel
from nanotriton.collect.compile.lines import statements
from nanotriton.collect.compile.sizes import Sizes
from nanotriton.collect.compose.ir import Unfit
from nanotriton.collect.compose.names import distinct

DROPPED = re.compile(
    r"\w+_size = \w+\.size\(\)|args\.clear|assert_|torch\.cuda\.|(raw_)?stream\d* =|del |"
    r".* = copy_if_misaligned"
)
FOREIGN = re.compile(r"extern_kernels|torch\.ops|aten\.|inductor_seeds|inductor_random|_seed|cpp_fused")


@dataclass
class Buffer:
    """A tensor that the wrapper allocates."""

    size: ast.expr
    stride: ast.expr
    dtype: str
    name: str = ""
    line: int = 0  # of the launch before which it is allocated


class Host:
    """Reads the statements of Inductor's `call`.

    tensors: the forward's arguments that are tensors, with their examples. kind: the type of the answer.
    """

    def __init__(self, signature, model, tensors: list, kind: type):
        self.signature, self.kind = signature, kind
        self.kernels: dict[str, Kernel] = {}
        self.tensors = dict(tensors)
        self.model = model
        self.sizes = Sizes()
        self.names: dict[str, str] = {}  # Inductor's name of a tensor -> ours
        self.shapes: dict[str, tuple] = {}  # our name -> shape of the example
        self.alias: dict[str, ast.expr] = {}  # Inductor's name -> what it is a view of, with that view
        self.buffers: dict[str, Buffer] = {}
        self.steps: list = []  # ("launch", kernel, arguments) or ("line", text), in order
        self.answer: list[ast.expr] = []

    def lines(self, body: list[ast.stmt]) -> list[str]:
        """The lines of forward."""
        for node in statements(body, ast.With):
            self.statement(node, ast.unparse(node))
        self.name_buffers()
        self.write_kernels()
        found = [line for step in self.steps for line in self.step(step)]
        return self.unpacked([*found, *self.returned()])

    def launched(self) -> list[Kernel]:
        return list(dict.fromkeys(step[1] for step in self.steps if step[0] == "launch"))

    # ---- reading

    def statement(self, node: ast.stmt, text: str) -> None:
        if DROPPED.match(text):
            return
        if FOREIGN.search(text):
            raise Unfit("a library call: " + text.split("(")[0].split("=")[-1].strip()[:60])
        if text.endswith("= args"):
            self.arguments(node.targets[0])
        elif found := re.fullmatch(r"(s\d+) = (\w+)_size\[(\d+)\]", text):
            self.size(found[1], self.names[found[2]], int(found[3]))
        elif ".run(" in text:
            self.launch(node.value)
        elif "empty_strided_cuda" in text or "empty_strided_cpu" in text:
            size, stride, dtype = node.value.args[:3]
            self.buffers[node.targets[0].id] = Buffer(
                self.sizes.expand(size), self.sizes.expand(stride), ast.unparse(dtype), line=len(self.steps)
            )
        elif text.startswith("return"):
            self.answer = list(node.value.elts)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            self.assigned(node.targets[0].id, node.value)
        else:
            raise Unfit(f"a statement of a kind that isn't known: {text[:60]}")

    def assigned(self, name: str, value: ast.expr) -> None:
        """A view of a buffer, another name for one, or a size."""
        inner = value.args[0] if isinstance(value, ast.Call) and value.args else value
        tensor = isinstance(inner, ast.Name) and (inner.id in self.names or self.is_buffer(inner.id))
        if tensor and (inner is value or ast.unparse(value.func) == "reinterpret_tensor"):
            self.alias[name] = value
        elif isinstance(value, ast.Call) and ast.unparse(value.func) not in ("max", "min"):
            raise Unfit(f"a call on the host: {ast.unparse(value.func)}")
        else:
            self.sizes.expressions[name] = self.sizes.expand(value)

    def is_buffer(self, name: str) -> bool:
        return name in self.buffers or name in self.alias

    def arguments(self, target: ast.expr) -> None:
        """Which of Inductor's arguments is which parameter, buffer or input."""
        ids = [t.id for t in target.elts] if isinstance(target, ast.Tuple | ast.List) else [target.id]
        params, buffers = self.signature.inputs_to_parameters, self.signature.inputs_to_buffers
        order = [path.removeprefix("model.") for path in (*params.values(), *buffers.values())]
        shapes = {self.path(p): tuple(self.tensor_at(p).shape) for p in order}
        shapes |= {name: tuple(x.shape) for name, x in self.tensors.items()}
        for inductors, (name, shape) in zip(ids, shapes.items()):
            self.names[inductors], self.shapes[name] = name, shape

    @staticmethod
    def path(name: str) -> str:
        return re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", "self." + name)

    def tensor_at(self, path: str) -> torch.Tensor:
        found = self.model
        for part in path.split("."):
            found = getattr(found, part)
        return found

    def size(self, symbol: str, tensor: str, dim: int) -> None:
        shape = self.shapes[tensor]
        value = self.example(shape[dim])
        self.sizes.add(symbol, tensor, dim, len(shape), value)

    @staticmethod
    def example(size) -> int:
        """A size's number, where the parameter's own is a symbol by now."""
        return size if isinstance(size, int) else int(size.node.hint)

    def launch(self, call: ast.Call) -> None:
        kernel = self.kernels[ast.unparse(call.func).removesuffix(".run")]
        self.steps.append(("launch", kernel, dict(zip(kernel.parameters, call.args))))

    # ---- names of buffers, texts of kernels

    def base(self, node: ast.expr) -> str:
        """The name of the tensor that an argument is, or is a view of."""
        if isinstance(node, ast.Call):
            return self.base(node.args[0])
        return self.base(self.alias[node.id]) if node.id in self.alias else node.id

    def name_buffers(self) -> None:
        """What is returned is called out; another buffer after the kernel that fills it."""
        returned = [self.base(node) for node in self.answer if isinstance(node, ast.Name | ast.Call)]
        taken = {*self.tensors, "self", "torch", "triton", "nn", "tl", "n"}
        taken |= {symbol.name for symbol in self.sizes.symbols.values()}
        for number, step in enumerate(self.steps):
            for name, buffer in self.buffers.items():
                if not buffer.name and name in self.written(step):
                    word = "out" if name in returned else step[1].operators[-1:] or ["middle"]
                    buffer.name = distinct(word if isinstance(word, str) else word[0], taken)
                    buffer.line = number
                    taken.add(buffer.name)
                    self.names[name] = buffer.name

    def written(self, step) -> list[str]:
        """The buffers that a launch fills, in the order of its parameters.

        A set has another order in another process, and the same module would give another text there.
        """
        _, kernel, arguments = step
        return [self.base(arguments[p]) for p in kernel.pointers if p.startswith(("out", "in_out"))]

    def write_kernels(self) -> None:
        taken: set[str] = set()
        for kernel in self.launched():
            calls = [step[2] for step in self.steps if step[1] is kernel]
            launches = [self.sizes_of(kernel, call) for call in calls]
            name = distinct(f"{kernel.said}_kernel", taken)
            taken.add(name)
            kernel.write(name, self.sizes, launches, self.pointer_names(kernel, calls[0]))

    def sizes_of(self, kernel: Kernel, call: dict[str, ast.expr]) -> dict[str, ast.expr]:
        return {p: self.sizes.expand(a) for p, a in call.items() if p not in kernel.pointers}

    def pointer_names(self, kernel: Kernel, call: dict) -> dict[str, str]:
        """parameter -> x_ptr, after the tensor that is passed; of parameters the last part of their name, or
        the last two where that is needed to tell them apart.
        """
        paths = {p: self.names.get(self.base(call[p]), "value") for p in kernel.pointers}
        found: dict[str, str] = {}
        for p, path in paths.items():
            parts = re.sub(r"\[(\d+)\]", r"_\1", path.removeprefix("self.")).split(".")
            found[p] = parts[-1]
            if sum(other.split(".")[-1] == path.split(".")[-1] for other in set(paths.values())) > 1:
                found[p] = "_".join(parts[-2:])
        named: dict[str, str] = {}
        for p, name in found.items():
            named[p] = distinct(f"{name}_ptr", named.values())
        return named

    # ---- writing

    def step(self, step) -> list[str]:
        """The allocations before a launch, and the launch."""
        number = self.steps.index(step)
        _, kernel, arguments = step
        found = [self.allocation(b) for b in self.buffers.values() if b.name and b.line == number]
        at = [s[2] for s in self.steps if s[1] is kernel].index(arguments)
        passed = [self.tensor(arguments[p]) for p in kernel.pointers]
        for parameter in kernel.sizes:
            size = parameter.texts[at]
            passed.append(self.count(size, step) if parameter.name == "n" else self.text(size))
        for block, size in kernel.constants().items():
            passed.append(f"{block}={size or self.block_of(self.expression(arguments['r0_numel']))}")
        grid = self.grid(step)
        counted = self.count(self.sizes.expand(arguments["xnumel"]), step)
        if "(" in counted and counted in passed and counted in grid:  # what is asked for twice has a name
            found.append(f"n = {counted}")
            passed[passed.index(counted)], grid = "n", grid.replace(counted, "n")
        return [*found, f"{kernel.function.name}[{grid}]({', '.join(passed)})"]

    @staticmethod
    def block_of(size: str) -> str:
        """The block that holds a row of so many elements."""
        return str(1 << (int(size) - 1).bit_length()) if size.isdigit() else f"triton.next_power_of_2({size})"

    def grid(self, step) -> str:
        _, kernel, arguments = step
        size = lambda axis: self.expression(arguments[f"{axis}numel"])
        blocks = kernel.constants()
        if kernel.form.kind == "tiles":
            m = f"triton.cdiv({size('y')}, {blocks['BLOCK_M']})"
            n = f"triton.cdiv({size('x')}, {blocks['BLOCK_N']})"
            return f"({size('z')}, {m}, {n})" if "znumel" in arguments else f"({n}, {m})"
        if kernel.form.kind == "row":
            return f"({size('x')},)"
        count = self.count(self.sizes.expand(arguments["xnumel"]), step)
        return f"(triton.cdiv({count}, {blocks['BLOCK']}),)"

    def expression(self, node: ast.expr) -> str:
        return self.text(self.sizes.expand(node))

    def text(self, node: ast.expr) -> str:
        """An expression in symbols, with the names that forward gives them."""
        return ast.unparse(self.sizes.said(node))

    def count(self, node: ast.expr, step) -> str:
        """How many elements a launch makes: a number, or that of the tensor that it fills."""
        if isinstance(node, ast.Constant):
            return str(node.value)
        for name in self.written(step):
            buffer = self.buffers.get(name)
            if buffer and self.elements(buffer) == self.sizes.value(node):
                return f"{buffer.name}.numel()"
        return self.text(node)

    def elements(self, buffer: Buffer) -> int:
        found = 1
        for size in self.sizes.value(buffer.size):
            found *= size
        return found

    def tensor(self, node: ast.expr) -> str:
        """What is passed for a pointer: of a view that begins where its tensor does, the tensor."""
        start = self.start(node)
        if start is not None:
            return self.names[self.base(node)]
        return self.viewed(node)

    def start(self, node: ast.expr):
        """0 where an argument begins where its tensor does, else None."""
        while isinstance(node, ast.Call) or node.id in self.alias:
            if isinstance(node, ast.Call):
                if ast.unparse(node.args[3]) != "0":
                    return None
                node = node.args[0]
            else:
                node = self.alias[node.id]
        return 0

    def viewed(self, node: ast.expr) -> str:
        """A view as PyTorch makes it."""
        if isinstance(node, ast.Name):
            return self.viewed(self.alias[node.id]) if node.id in self.alias else self.names[node.id]
        inner, size, stride, start = node.args
        size, stride = self.sizes.expand(size), self.sizes.expand(stride)
        base = self.viewed(inner)
        if ast.unparse(start) == "0" and self.is_contiguous(size, stride):
            buffer = self.buffers.get(self.base(inner))
            if buffer is not None and self.is_contiguous(buffer.size, buffer.stride):
                same = self.sizes.value(buffer.size) == self.sizes.value(size)
                return base if same else f"{base}.view({self.text(size).strip('()').rstrip(',')})"
        return f"torch.as_strided({base}, {self.text(size)}, {self.text(stride)}, {self.expression(start)})"

    def is_contiguous(self, size: ast.expr, stride: ast.expr) -> bool:
        expected = 1
        for n, s in reversed(list(zip(self.sizes.value(size), self.sizes.value(stride)))):
            if n != 1 and s != expected:
                return False
            expected *= n
        return True

    def allocation(self, buffer: Buffer) -> str:
        """torch.empty_like where an input has the same shape, else the shape."""
        view = self.returned_as(buffer)
        size = view if view is not None else buffer.size
        first, example = next(iter(self.tensors.items()))
        contiguous = self.is_contiguous(buffer.size, buffer.stride)
        dtype = buffer.dtype if buffer.dtype != str(example.dtype) else f"{first}.dtype"
        for name, x in self.tensors.items():
            alike = str(x.dtype) == buffer.dtype and x.is_contiguous() and contiguous
            if alike and self.shape_of(name) == ast.unparse(size):
                return f"{buffer.name} = torch.empty_like({name})"
        rest = f"device={first}.device, dtype={dtype}"
        if contiguous:
            shape = self.text(size)
            shape = shape[1:-1].rstrip(",") if shape != "()" else shape
            return f"{buffer.name} = torch.empty({shape}, {rest})"
        return f"{buffer.name} = torch.empty_strided({self.text(size)}, {self.text(buffer.stride)}, {rest})"

    def returned_as(self, buffer: Buffer) -> ast.expr | None:
        """The size of the one view that is returned of a contiguous buffer: it is allocated so."""
        tensors = [n for n in self.answer if isinstance(n, ast.Name | ast.Call)]
        mine = [n for n in tensors if self.names.get(self.base(n)) == buffer.name]
        if len(mine) != 1:
            return None
        node = mine[0]
        while isinstance(node, ast.Name) and node.id in self.alias:
            node = self.alias[node.id]
        if not isinstance(node, ast.Call) or not isinstance(node.args[0], ast.Name):
            return None
        size = self.sizes.expand(node.args[1])
        stride = self.sizes.expand(node.args[2])
        plain = ast.unparse(node.args[3]) == "0" and self.is_contiguous(size, stride)
        if not plain or not self.is_contiguous(buffer.size, buffer.stride):
            return None
        buffer.size, buffer.stride = size, stride
        return size

    def shape_of(self, name: str) -> str:
        """An input's shape in symbols, as Inductor would print it."""
        shape = self.shapes[name]
        found = {(s.tensor, s.dim): symbol for symbol, s in self.sizes.symbols.items()}
        parts = [found.get((name, d), str(n)) for d, n in enumerate(shape)]
        return f"({', '.join(parts)}{',' * (len(parts) == 1)})"

    def returned(self) -> list[str]:
        """New values of the module's buffers, and the answer."""
        changed = list(self.signature.buffers_to_mutate.values())
        paths = [self.path(name.removeprefix("model.")) for name in changed]
        found = [f"{path}.copy_({self.viewed(node)})" for path, node in zip(paths, self.answer)]
        if len(self.signature.user_inputs_to_mutate):
            raise Unfit("an input is changed in place")
        tensor = lambda node: isinstance(node, ast.Name | ast.Call)
        rest = self.answer[len(changed) :]
        answer = [self.viewed(node) if tensor(node) else ast.unparse(node) for node in rest]
        if issubclass(self.kind, torch.Tensor) and len(answer) == 1:
            return [*found, f"return {answer[0]}"]
        if self.kind is list:
            return [*found, f"return [{', '.join(answer)}]"]
        return [*found, f"return ({', '.join(answer)}{',' * (len(answer) == 1)})"]

    def unpacked(self, lines: list[str]) -> list[str]:
        """With each tensor taken apart before, whose sizes are asked for: by name if there are several."""
        head = []
        by_tensor: dict[str, list] = {}
        for symbol in self.sizes.symbols.values():
            if any(re.search(rf"\b{symbol.name}\b", line) for line in lines):
                by_tensor.setdefault(symbol.tensor, []).append(symbol)
        for tensor, symbols in by_tensor.items():
            if len(symbols) == 1:
                (symbol,) = symbols
                said = f"{tensor}.shape[{symbol.dim}]"
                lines = [re.sub(rf"(?<![\w.]){symbol.name}\b(?!=)", said, line) for line in lines]
                continue
            targets = {s.dim: s.name for s in symbols}
            head.append(", ".join(targets.get(d, "_") for d in range(symbols[0].rank)) + f" = {tensor}.shape")
        return [*head, *lines]
