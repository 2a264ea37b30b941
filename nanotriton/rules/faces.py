"""Two faces: answers that could tell the judge from a real card, and what in a candidate depends on them.

A candidate could launch its kernels for the judge alone and leave the work to torch for everybody else.
The condition needs an answer that differs between the two: how much of a GPU's memory is in use, what time
it is, what the GPU is called, how often forward was called before, whether the module is in training. Such an
answer is called a tell here. branches.py says what stands behind a branch on one.

Fallbacks that honest kernels have are no such branches: on is_cuda, a dtype, a shape or the compute
capability, or in the handler of an exception. A tell that sizes a grid or chooses a block is no harm, as no
torch stands behind it.
"""

import ast
import functools

import torch

from nanotriton.plan.aten import words
from nanotriton.rules.kept import Kept
from nanotriton.rules.names import under
from nanotriton.rules.scopes import MODULE, Scopes, bindings
from nanotriton.rules.source import Source, last_name, walk
from nanotriton.rules.tensors import Tensors

# Modules whose answers may differ between the judge and a card, or from call to call.
MODULES = words("""
    torch.cuda torch.version torch.backends torch.accelerator torch.overrides torch.random torch.distributed
    torch.profiler torch.monitor torch.autograd.profiler torch.autograd.forward_ad torch.autograd.graph
    torch.utils.deterministic triton.runtime triton.testing numpy.random
""")
# Of Python's modules, those whose answers depend on nothing but what they are given. Any other one tells.
PURE = words("""
    __future__ abc bisect cmath collections contextlib copy dataclasses enum fractions functools hashlib heapq
    importlib itertools json math numbers numpy operator packaging re statistics string struct textwrap torch
    triton types typing typing_extensions
""")
# Functions whose answers may. So do all of torch's own that begin like QUESTIONS: in which mode it is.
TELLS = MODULES | words("""
    torch.__version__ torch.rand torch.randn torch.randint torch.randperm torch.initial_seed torch.seed
    torch.default_generator
""")
QUESTIONS = ("is_", "are_", "has_", "get_")
# What of them answers alike, or is what an honest fallback asks.
ALIKE = words("""
    torch.cuda.is_available torch.cuda.get_device_capability torch.cuda.is_bf16_supported
    torch.cuda.is_tf32_supported torch.cuda.current_device torch.cuda.device torch.version.hip
    torch.accelerator.is_available sys.version_info sys.version sys.platform sys.maxsize sys.float_info
    sys.byteorder logging.DEBUG logging.INFO logging.WARNING logging.ERROR
    torch.is_tensor torch.is_floating_point torch.is_complex torch.is_signed torch.is_storage torch.is_conj
    torch.is_neg torch.is_nonzero torch.is_same_size torch.get_device torch.get_device_module
    torch.distributed.tensor
""")
# How the members of a group of processes exchange tensors, by names of torch.distributed.
GROUP_CALLS = words("""
    all_reduce all_gather all_gather_into_tensor all_gather_single _all_gather_base reduce_scatter
    reduce_scatter_tensor _reduce_scatter_base all_to_all all_to_all_single broadcast reduce gather scatter
    send recv isend irecv
""")
# What a candidate may name there beside, if it has to know nothing of the group but its size.
GROUP_NAMES = GROUP_CALLS | words("""
    is_available is_initialized get_rank get_world_size ProcessGroup ReduceOp group tensor.DTensor
""")
# Answers that differ in every run, by their last name: the module may have another name.
FLEETING = words("""
    memory_allocated max_memory_allocated memory_reserved max_memory_reserved memory_stats mem_get_info
    memory_snapshot memory_summary device_memory_used utilization temperature power_draw elapsed_time time
    time_ns perf_counter perf_counter_ns monotonic monotonic_ns process_time process_time_ns random randrange
    rand
""")
# What a branch may ask of a tensor, among what torch answers with a truth value.
PLAIN_QUESTIONS = words("""
    is_complex is_conj is_contiguous is_cpu is_cuda is_floating_point is_meta is_mps is_mtia is_neg is_nested
    is_nonzero is_quantized is_same_size is_signed is_sparse is_sparse_csr is_xpu
""")
# Answers of a GPU's, and of a tensor's insides, by their last name too.
FIXED = words("""
    get_device_properties get_device_name multi_processor_count total_memory L2_cache_size _version
    untyped_storage is_pinned data_ptr const_data_ptr is_shared storage grad retains_grad grad_dtype output_nr
    has_names volatile __module__
""")
# So are all other questions that a tensor answers.
FIXED |= {name for name in dir(torch.Tensor) if name.startswith(QUESTIONS[:3])} - PLAIN_QUESTIONS
BUILTINS = words("id hash repr next dir __file__ __name__ __debug__")
READING = words("getattr hasattr")
# Modes of torch's and of a module's, which whoever calls it chooses.
MODES = words("training requires_grad is_leaf grad_fn is_inference")
BRANCHES = ast.If | ast.IfExp | ast.While
FUNCTIONS = ast.FunctionDef | ast.Lambda
TOLD = FIXED | MODES | FLEETING - {"time", "random"}  # attributes that are tells, whatever they belong to


class Tells:
    """The names of a candidate that depend on a tell, and by them its expressions that do."""

    def __init__(self, source: Source):
        self.source = source
        self.scopes = Scopes(source)
        self.tensors = Tensors(source, self.scopes)
        self.alike = self._alike()
        self.kept = Kept(source, self.scopes, self.tensors)
        self.attributes = set(self.kept.attributes)
        self.functions: set[str] = set()  # whose answers depend on a tell
        self.raising: set[str] = set()  # that raise or not by a tell that differs from call to call
        self.names = {number: set(found) for number, found in self.kept.names.items()}
        self.since: dict[tuple[int, str], int] = {}  # (function, name) -> the first line that made it depend
        asking = source.nodes[ast.Name] + source.nodes[ast.Attribute] + source.nodes[ast.Call]
        self.any = bool(self._size()) or any(self._tells(node) for node in asking)
        while self.any and self._spread():
            pass

    def _alike(self) -> set[int]:
        """The x, by id, of every `isinstance(x, DTensor)`: no candidate can make one, whatever x is."""
        found: set[int] = set()
        for call in self.source.nodes[ast.Call]:
            asks = isinstance(call.func, ast.Name) and call.func.id == "isinstance" and len(call.args) == 2
            named = asks and isinstance(call.args[0], ast.Name)
            if named and self.source.path(call.args[1]) == "torch.distributed.tensor.DTensor":
                found.add(id(call.args[0]))
        return found

    @functools.cached_property
    def order(self) -> "Order":
        return Order(self.source)

    @functools.cached_property
    def exchanges(self) -> bool:
        """Whether a candidate exchanges tensors with other processes, in a group that somebody else has made.

        Nothing has made one where a module runs alone, with the judge or on a card: all questions about it
        have one answer there. A candidate that makes a group itself could see whether that fails.
        """
        within = {id(node.value) for node in self.source.nodes[ast.Attribute]}  # parts of longer paths
        for call in self.source.nodes[ast.Call]:
            if getattr(call.func, "id", "") in ("dir", "hasattr"):
                within |= {id(value) for value in call.args[:1]}
        named = set()
        for node in self.source.nodes[ast.Attribute] + self.source.nodes[ast.Name]:
            path = self.source.path(node) or ""
            if id(node) not in within and under(path, {"torch.distributed"}):
                named.add(path.removeprefix("torch.distributed").removeprefix("."))
        return bool(named & GROUP_CALLS) and all(under(name, GROUP_NAMES) for name in named)

    def depends(self, *nodes: ast.AST) -> bool:
        """Whether a tell stands in one of these expressions, or a name that depends on one."""
        return self.any and any(self._tells(node) for node in walk(*nodes))

    def chooses(self, callee: ast.AST) -> bool:
        """Whether a tell decides which function an expression is.

        A function whose answer depends on one is always the same.
        """
        if isinstance(callee, ast.Attribute):
            return self.any and (callee.attr in self.attributes or self.depends(callee.value))
        if isinstance(callee, ast.Name):
            return self.any and self.scopes.holds(self.names, callee)
        return self.depends(callee)

    def raises(self, body: list[ast.stmt]) -> bool:
        """Whether an exception in these statements may depend on a tell that differs in every run, or on
        what calls move on."""
        if not self.any:
            return False
        for node in walk(*body):
            if isinstance(node, ast.Attribute | ast.Name) and self._is_fleeting(node):
                return True
            if isinstance(node, ast.Call) and self._runs_raising(node):
                return True
            asserts = isinstance(node, ast.Assert) and self.depends(node.test)
            branches = isinstance(node, BRANCHES) and _holds(node, ast.Raise) and self.depends(node.test)
            if asserts or branches:
                return True
        return False

    def _runs_raising(self, call: ast.Call) -> bool:
        """Whether a call may run a function that raises or not by a tell."""
        return last_name(call.func) in self.raising

    def _tells(self, node: ast.AST) -> bool:
        """Whether a node, without what stands in it, is a tell or depends on one."""
        if id(node) in self.alike:
            return False
        if self._is_tell(node):
            return True
        if isinstance(node, ast.Attribute):
            return node.attr in self.attributes or node.attr in self.functions
        if isinstance(node, ast.Call):
            return self._reads_by_name(node)
        if not isinstance(node, ast.Name):
            return False
        home = self.scopes.home(node)
        if node.id in self.functions and node.id not in self.scopes.bound[home]:
            return True
        return self.scopes.holds(self.names, node) and not self._is_before(node, home)

    def _is_before(self, node: ast.Name, home: int) -> bool:
        """Whether a name is used before its function makes it depend on a tell: x in `if x is None`, where
        the body is `x = default(tell)`."""
        own = node.id in self.scopes.bound[home] and self.order.once(node)
        return own and node.lineno < self.since.get((home, node.id), 0)

    def _reads_by_name(self, call: ast.Call) -> bool:
        """`hasattr(self, "seen")`, `getattr(self, "training")`; one whose name is no literal may read any."""
        if not isinstance(call.func, ast.Name) or call.func.id not in READING or len(call.args) < 2:
            return False
        if self.source.path(call.args[0]) is not None:  # of a module
            return False
        name = call.args[1]
        if not isinstance(name, ast.Constant):
            return bool(self.kept.attributes)
        return name.value in self.attributes | self.functions | FIXED | MODES | FLEETING

    def _is_tell(self, node: ast.AST) -> bool:
        """Whether a node is a tell by what it is called, whatever the candidate does with it."""
        if isinstance(node, ast.Attribute) and node.attr in TOLD:
            return True
        if not isinstance(node, ast.Name | ast.Attribute):
            return False
        path = self.source.path(node)
        if path is None:
            return isinstance(node, ast.Name) and node.id in BUILTINS and node.id not in self.source.units
        if path in MODULES or "." not in path:
            return False  # a module itself: what is asked of it decides
        if under(path, ALIKE) or (path.startswith("torch.distributed.") and self.exchanges):
            return False
        root, name, *_ = path.split(".")
        asks = root == "torch" and name.startswith(QUESTIONS)
        return asks or root not in PURE or under(path, TELLS)

    def _is_fleeting(self, node: ast.Attribute | ast.Name) -> bool:
        """Whether a node is an answer that differs from call to call."""
        if isinstance(node, ast.Name) and self.scopes.holds(self.kept.names, node):
            return True
        if isinstance(node, ast.Attribute) and node.attr in self.kept.attributes:
            return True
        last = node.attr if isinstance(node, ast.Attribute) else (self.source.path(node) or "").split(".")[-1]
        return last in FLEETING | {"next"} and self._is_tell(node)

    # ---- how tells spread

    def _spread(self) -> bool:
        """One round over everything that binds a name. Returns whether another one did."""
        before = self._size()
        for target, value in bindings(self.source):
            if self.depends(value):
                self._add(target)
        for node in self.source.nodes[ast.If]:
            if self.depends(node.test):
                self._add_stored(node)
        for node in self.source.nodes[ast.Try] + self.source.nodes[ast.With]:
            if self.depends(*node.body):
                self._add_flags(node)
        for function in self.source.nodes[ast.FunctionDef]:
            if not self.source.is_kernel(function):
                self._add_function(function)
        for call in self.source.nodes[ast.Call]:
            self._add_parameters(call)
        return self._size() > before

    def _add_stored(self, node: ast.If) -> None:
        """What a branch on a tell writes to, and what it defines."""
        for inner in walk(*node.body, *node.orelse):
            if isinstance(inner, ast.FunctionDef | ast.ClassDef):
                self.attributes.add(inner.name)
                self.names[MODULE].add(inner.name)
            if isinstance(inner, ast.Name | ast.Attribute) and isinstance(inner.ctx, ast.Store):
                self._add(inner)

    def _add_flags(self, node: ast.Try | ast.With) -> None:
        """What is set to a constant around a tell that may raise: it says whether it did."""
        for inner in walk(node):
            if isinstance(inner, ast.Assign) and isinstance(inner.value, ast.Constant):
                for target in inner.targets:
                    self._add(target)

    def _add_function(self, function: ast.FunctionDef) -> None:
        if function.name not in self.functions and self._answers_by_tells(function):
            self.functions.add(function.name)
        if function.name not in self.raising and self.raises(function.body):
            self.raising.add(function.name)

    def _size(self) -> int:
        own = len(self.attributes) + len(self.functions) + len(self.raising)
        return own + sum(len(found) for found in self.names.values())

    def _answers_by_tells(self, function: ast.FunctionDef) -> bool:
        """Whether a function's answer, or which of its ways out it takes, depends on a tell."""
        nodes = walk(*function.body)
        inner = [node for node in nodes if isinstance(node, ast.FunctionDef)]
        others = {id(part) for function in inner for part in walk(*function.body)}
        for node in nodes:
            if id(node) in others:  # what a function inside of it answers
                continue
            gives = isinstance(node, ast.Return | ast.Yield | ast.YieldFrom)
            if gives and node.value is not None and self.depends(node.value):
                return True
            leaves = isinstance(node, BRANCHES) and _holds(node, ast.Return | ast.Raise)
            if leaves and self.depends(node.test):
                return True
        return False

    def _add_parameters(self, call: ast.Call) -> None:
        """The parameters of the candidate's own functions that are given what depends on a tell."""
        for function in self.scopes.run_by(call):
            for name, value in self.scopes.given(function, call):
                if self.depends(value):
                    self._add_name(self.scopes.home(function), name, 0)

    def _add(self, target: ast.AST) -> None:
        """A target's names; of self.x[i] it is x."""
        for node in walk(target):
            if isinstance(node, ast.Attribute):
                self.attributes.add(node.attr)
                return
            if isinstance(node, ast.Name):
                self._add_name(self.scopes.home(node), node.id, node.lineno if self.order.once(node) else 0)

    def _add_name(self, home: int, name: str, line: int) -> None:
        """A name depends on a tell from a line of its function on, 0 if from the beginning."""
        known = self.since.get((home, name), 0) if name in self.names[home] else line
        self.since[home, name] = min(known, line)
        self.names[home].add(name)


class Order:
    """Which names of a function are used and bound from top to bottom, once in each call."""

    def __init__(self, source: Source):
        nodes = source.nodes
        inner = [f for outer in nodes[ast.FunctionDef] for f in walk(*outer.body) if isinstance(f, FUNCTIONS)]
        again = nodes[ast.For] + nodes[ast.While] + nodes[ast.comprehension] + nodes[ast.NamedExpr]
        self._elsewhere = {id(node) for node in walk(*inner, *again)}

    def once(self, node: ast.Name) -> bool:
        """Not so in a loop, in a function inside of another one, and where an expression binds the name."""
        return id(node) not in self._elsewhere


def _holds(node: ast.AST, kind) -> bool:
    return any(isinstance(inner, kind) for inner in walk(node))
