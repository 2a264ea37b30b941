"""Two faces: branches that could tell the judge from a real card, and what stands behind them.

A candidate could launch its kernels for the judge alone and leave the work to torch for everybody else.
The condition needs an answer that differs between the two: how much of a GPU's memory is in use, what time
it is, what the GPU is called, how often forward was called before. Such an answer is called a tell here.
Under strict, torch behind a branch on a tell counts as executed.

Fallbacks that honest kernels have are no such branches: on is_cuda, a dtype, a shape or the compute
capability, or in the handler of an exception. A tell that sizes a grid or chooses a block is no harm, as no
torch stands behind it.
"""

import ast
from collections.abc import Iterator

from nanotriton.plan.aten import words
from nanotriton.rules.source import Source, walk

# Modules whose answers may differ between the judge and a card, or from call to call.
TELLS = words("""
    torch.cuda torch.version torch.__version__ torch.backends torch.accelerator torch.overrides torch.random
    torch.rand torch.randn torch.randint torch.randperm torch.initial_seed torch.seed torch.get_rng_state
    torch.get_num_threads triton.runtime triton.testing numpy.random time random os sys inspect
""")
# What of them answers alike, or is what an honest fallback asks.
ALIKE = words("""
    torch.cuda.is_available torch.cuda.get_device_capability torch.cuda.is_bf16_supported
    torch.cuda.is_tf32_supported torch.cuda.current_device torch.cuda.device torch.version.hip
    torch.accelerator.is_available sys.version_info sys.version sys.platform
""")
# Answers that differ in every run, by their last name: the module may have another name.
FLEETING = words("""
    memory_allocated max_memory_allocated memory_reserved max_memory_reserved memory_stats mem_get_info
    memory_snapshot memory_summary device_memory_used utilization temperature power_draw elapsed_time time
    time_ns perf_counter perf_counter_ns monotonic monotonic_ns process_time process_time_ns random randrange
    rand
""")
# Answers of a GPU's, and of a tensor's insides, in the same way.
FIXED = words("""
    get_device_properties get_device_name multi_processor_count total_memory L2_cache_size _version
    untyped_storage is_pinned
""")
BUILTINS = words("id hash repr next dir __file__")
# methods by which calls are counted, those that are statements and those that have an answer
GROWING = words("append add update extend insert appendleft")
TAKING = words("pop popleft popitem")
BRANCHES = ast.If | ast.IfExp | ast.While


class Tells:
    """The names of a candidate that depend on a tell, and by them its expressions that do.

    Attributes are known by their names alone. Other names are known by the function that they stand in, where
    a nested function is part of its outer one.
    """

    def __init__(self, source: Source):
        self.source = source
        self.attributes: set[str] = set()
        self.functions: set[str] = set()  # whose answers depend on a tell
        self.names: dict[int, set[str]] = {0: set()}  # by function; 0 is the module
        self.home: dict[int, int] = {}  # id of a node -> its function
        self._place_nodes()
        self.stored: dict[int, set[str]] = {}  # by function, the names that its statements bind
        self.bound = self._bound()
        self._count_calls()
        self.any = bool(self._size()) or any(
            self._is_tell(node) for node in source.nodes[ast.Name] + source.nodes[ast.Attribute]
        )
        while self.any and self._spread():
            pass

    def depends(self, *nodes: ast.AST) -> bool:
        """Whether a tell stands in one of these expressions, or a name that depends on one."""
        return self.any and any(self._tells(node) for node in walk(*nodes))

    def raises(self, body: list[ast.stmt]) -> bool:
        """Whether an exception in these statements may depend on a tell that differs in every run."""
        if not self.any:
            return False
        for node in walk(*body):
            if isinstance(node, ast.Attribute | ast.Name) and self._is_fleeting(node):
                return True
            asserts = isinstance(node, ast.Assert) and self.depends(node.test)
            if asserts or (
                isinstance(node, BRANCHES) and self.depends(node.test) and _holds(node, ast.Raise)
            ):
                return True
        return False

    def _tells(self, node: ast.AST) -> bool:
        if self._is_tell(node):
            return True
        if isinstance(node, ast.Attribute):
            return node.attr in self.attributes | self.functions
        if not isinstance(node, ast.Name):
            return False
        home = self.home.get(id(node), 0)
        outside = node.id in self.names[0] | self.functions and node.id not in self.bound[home]
        return node.id in self.names[home] or outside

    def _is_tell(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Attribute) and node.attr in FIXED | FLEETING - {"time", "random"}:
            return True
        if not isinstance(node, ast.Name | ast.Attribute):
            return False
        path = self.source.path(node)
        if path is None:
            return isinstance(node, ast.Name) and node.id in BUILTINS and node.id not in self.source.units
        if path in TELLS and path != "torch.__version__" and "rand" not in path and "seed" not in path:
            return False  # a module itself: what is asked of it decides
        return _under(path, TELLS) and not _under(path, ALIKE)

    def _is_fleeting(self, node: ast.Attribute | ast.Name) -> bool:
        last = node.attr if isinstance(node, ast.Attribute) else (self.source.path(node) or "").split(".")[-1]
        return last in FLEETING and self._is_tell(node)

    # ---- where names stand

    def _place_nodes(self) -> None:
        methods = [node for unit in self.source.nodes[ast.ClassDef] for node in unit.body]
        for node in [*self.source.tree.body, *methods]:
            if isinstance(node, ast.FunctionDef):
                self.names[id(node)] = set()
                for inner in walk(node):
                    self.home[id(inner)] = id(node)

    def _bound(self) -> dict[int, set[str]]:
        """For each function the names that it binds itself."""
        found: dict[int, set[str]] = {number: set() for number in self.names}
        for node in self.source.nodes[ast.Name]:
            if not isinstance(node.ctx, ast.Load):
                found[self.home.get(id(node), 0)].add(node.id)
        self.stored = {number: set(names) for number, names in found.items()}
        for node in self.source.nodes[ast.arg]:
            found[self.home.get(id(node), 0)].add(node.arg)
        for node in self._shared():
            found[self.home.get(id(node), 0)] -= set(node.names)
        return found

    def _shared(self) -> list[ast.Global | ast.Nonlocal]:
        return self.source.nodes[ast.Global] + self.source.nodes[ast.Nonlocal]

    # ---- how tells spread

    def _count_calls(self) -> None:
        """What forward itself moves on tells one call from another: self.calls += 1, SEEN.append(..)."""
        for node in self.source.nodes[ast.AugAssign]:
            if not isinstance(node.target, ast.Name):
                self._add_kept(node.target)
        for node in self.source.nodes[ast.Assign]:
            if isinstance(node.targets[0], ast.Attribute) and _is_sum_with(node.value, node.targets[0].attr):
                self._add_kept(node.targets[0])
        statements = {id(node.value) for node in self.source.nodes[ast.Expr]}  # a tensor's add has a result
        for call in self.source.nodes[ast.Call]:
            method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
            if method in TAKING or (method in GROWING and id(call) in statements):
                self._add_kept(call.func.value)
        for node in self._shared():
            self.names[0] |= set(node.names)

    def _add_kept(self, owner: ast.AST) -> None:
        """What an expression leads to, if it is kept from call to call: an attribute, or a name of the
        module's or of an argument. A list that a function makes itself is not."""
        while isinstance(owner, ast.Subscript):
            owner = owner.value
        if isinstance(owner, ast.Attribute):
            self.attributes.add(owner.attr)
        home = self.home.get(id(owner), 0)
        kept = isinstance(owner, ast.Name) and home and owner.id not in self.stored[home]
        if kept and owner.id not in self.source.imports:
            self.names[home].add(owner.id)
            self.names[0].add(owner.id)

    def _spread(self) -> bool:
        """One round over everything that binds a name. Returns whether another one did."""
        before = self._size()
        for target, value in self._bindings():
            if self.depends(value):
                self._add(target)
        for node in self.source.nodes[ast.If]:
            if self.depends(node.test):
                for inner in walk(*node.body, *node.orelse):
                    if isinstance(inner, ast.Name | ast.Attribute) and isinstance(inner.ctx, ast.Store):
                        self._add(inner)
        for function in self.source.nodes[ast.FunctionDef]:
            if not self.source.is_kernel(function) and self._answers_by_tells(function):
                self.functions.add(function.name)
        for call in self.source.nodes[ast.Call]:
            self._add_parameters(call)
        return self._size() > before

    def _size(self) -> int:
        return len(self.attributes) + len(self.functions) + sum(len(found) for found in self.names.values())

    def _bindings(self) -> Iterator[tuple[ast.AST, ast.AST]]:
        nodes = self.source.nodes
        for node in nodes[ast.Assign]:
            for target in node.targets:
                yield from _pairs(target, node.value)
        for node in nodes[ast.AugAssign] + nodes[ast.AnnAssign] + nodes[ast.NamedExpr]:
            if node.value is not None:
                yield node.target, node.value
        for node in nodes[ast.For] + nodes[ast.comprehension]:
            yield node.target, node.iter
        for node in nodes[ast.withitem]:
            if node.optional_vars is not None:
                yield node.optional_vars, node.context_expr

    def _answers_by_tells(self, function: ast.FunctionDef) -> bool:
        for node in walk(*function.body):
            if isinstance(node, ast.Return) and node.value is not None and self.depends(node.value):
                return True
            if (
                isinstance(node, BRANCHES)
                and _holds(node, ast.Return | ast.Raise)
                and self.depends(node.test)
            ):
                return True
        return False

    def _add_parameters(self, call: ast.Call) -> None:
        """The parameters of the candidate's own functions that are given what depends on a tell."""
        for function in self.source.called(call.func):
            if not isinstance(function, ast.FunctionDef) or self.source.is_kernel(function):
                continue
            names = [arg.arg for arg in (*function.args.posonlyargs, *function.args.args)]
            given = dict(zip(names[names[:1] == ["self"] :], call.args, strict=False))
            given |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
            for name, value in given.items():
                if self.depends(value):
                    self.names[self.home.get(id(function), 0)].add(name)

    def _add(self, target: ast.AST) -> None:
        """A target's names; of self.x[i] it is x."""
        for node in walk(target):
            if isinstance(node, ast.Attribute):
                self.attributes.add(node.attr)
                return
            if isinstance(node, ast.Name):
                self.names[self.home.get(id(node), 0)].add(node.id)


def executed(body: list[ast.AST], tells: Tells) -> Iterator[tuple[ast.AST, bool]]:
    """The nodes of a function's body that run on every call, or that stand behind a tell: (node, behind one).

    A node in another branch, in a handler, a nested function or a lambda is not among them.
    """
    todo = list(reversed(body))
    while todo:
        node = todo.pop()
        yield node, False
        always, behind = _parts(node, tells)
        for inner in walk(*behind):
            yield inner, True
        todo += reversed(always)


def _parts(node: ast.AST, tells: Tells) -> tuple[list[ast.AST], list[ast.AST]]:
    """(the parts of a node that always run with it, those that stand behind a tell)."""
    always, others, condition = list(ast.iter_child_nodes(node)), [], False
    if isinstance(node, BRANCHES):
        always = [node.test]
        others = [part for part in ast.iter_child_nodes(node) if part is not node.test]
        condition = tells.depends(node.test)
    elif isinstance(node, ast.BoolOp):
        always, others = node.values[:1], node.values[1:]
        condition = tells.depends(*node.values[:-1])
    elif isinstance(node, ast.Try):
        always, others = [*node.body, *node.finalbody], [*node.handlers, *node.orelse]
        condition = tells.raises(node.body)
    elif isinstance(node, ast.Match):
        always, others = [], list(node.cases)
        condition = tells.depends(node.subject)
    elif isinstance(node, ast.Subscript):  # {True: ours, False: torch.relu}[tell]
        condition = tells.depends(node.slice)
        others = [node.value] if condition else []
        always = [node.slice] if condition else always
    elif isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda | ast.Assert):
        always = []
    return always, others if condition else []


def _pairs(target: ast.AST, value: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """(target, value) of an assignment; of `a, b = x, y` there are two."""
    sequence = ast.Tuple | ast.List
    both = isinstance(target, sequence) and isinstance(value, sequence)
    if both and len(target.elts) == len(value.elts):
        for inner, given in zip(target.elts, value.elts, strict=True):
            yield from _pairs(inner, given)
    else:
        yield target, value


def _is_sum_with(value: ast.AST, attribute: str) -> bool:
    """Whether a value is an attribute of this name and a number, as in self.calls = self.calls + 1."""
    if not isinstance(value, ast.BinOp):
        return False
    parts = value.left, value.right
    named = any(isinstance(part, ast.Attribute) and part.attr == attribute for part in parts)
    return named and any(isinstance(part, ast.Constant) for part in parts)


def _holds(node: ast.AST, kind) -> bool:
    return any(isinstance(inner, kind) for inner in walk(node))


def _under(path: str, prefixes: frozenset[str]) -> bool:
    """Whether the dotted path is one of the prefixes, or below one."""
    parts = path.split(".")
    return any(".".join(parts[:n]) in prefixes for n in range(1, len(parts) + 1))
