"""The rule against torch that computes, as far as a candidate's text shows it.

Two measures apply. On a path that every call takes, only what is certain to compute is refused here: the
rules on the plan see all of it. Behind a tell (branches.py) nothing is recorded, so there everything counts
that torch does with a tensor, but for views, moves and memory.
"""

import ast
import collections
import functools
import operator
from collections.abc import Iterator

import torch

from nanotriton.plan.aten import words
from nanotriton.plan.facts import CREATE
from nanotriton.rules import names
from nanotriton.rules.branches import Branches, Runs
from nanotriton.rules.constants import Constants
from nanotriton.rules.faces import Tells
from nanotriton.rules.policy import Violation
from nanotriton.rules.source import Source, arguments, walk
from nanotriton.rules.tensors import ASKING, OF_TENSORS, PLAIN_ANSWERS

# What torch may do with a tensor behind a tell: look at it otherwise, move it, ask about it.
MOVES = words("""
    T mT H mH view view_as reshape reshape_as permute transpose t expand expand_as unsqueeze unsqueeze_
    squeeze squeeze_ flatten unflatten ravel narrow narrow_copy select chunk split split_with_sizes
    tensor_split hsplit vsplit dsplit unbind movedim moveaxis swapaxes swapdims diagonal as_strided
    contiguous clone detach detach_ to cuda cpu float half bfloat16 double int long short bool char byte
    type type_as requires_grad_ repeat tile roll flip fliplr flipud copy_ new_empty new_tensor
    new_empty_strided cat concat concatenate stack hstack vstack dstack column_stack row_stack
    broadcast_to broadcast_tensors atleast_1d atleast_2d atleast_3d pad pin_memory share_memory_ resize_
    set_ unsafe_chunk unsafe_split view_as_real view_as_complex real imag zero_grad is_tensor apply
    values indices mtia record_stream data grad tensor as_tensor from_numpy empty_strided rand randn
    randint rand_like randn_like randperm normal meshgrid tensors repeat_interleave
""")
# Methods that no tensor has: of containers, and of what autograd gives to `forward`. A tensor that is spread
# over several machines has the last two, and there is but one machine.
CONTAINERS = (list, dict, set, tuple, collections.deque, collections.OrderedDict, collections.Counter)
OF_OTHERS = frozenset(
    name for kind in CONTAINERS for name in dir(kind) if not hasattr(torch.Tensor, name)
) | words("""
    save_for_backward save_for_forward mark_dirty mark_non_differentiable set_materialize_grads
    to_local full_tensor
""")
READING = words("item tolist numpy")  # what Python then computes, torch has no part in, nor a kernel
FREE = (MOVES | OF_OTHERS | CREATE | ASKING | PLAIN_ANSWERS) - READING
# Those of them that leave data in another place or order. In a task that is about moving data, they do its
# work.
MOVING = words("""
    T mT H mH t permute transpose movedim moveaxis swapaxes swapdims contiguous clone copy_ repeat tile roll
    flip fliplr flipud cat concat concatenate stack hstack vstack dstack column_stack row_stack pad
    narrow_copy repeat_interleave
""")
# Modules whose functions and classes compute if they are given a tensor
OTHERS = (
    "numpy.",
    "operator.",
    "math.",
    "functools.reduce",
    "torch.distributions.",
    "torch.sparse.",
    "torch.nested.",
    "torch.masked.",
    "torch.nn.utils.",
)
# Python's own functions that do
BUILTINS = words("sum abs pow max min round divmod float int bool complex")
PLAIN_LAYERS = words("""
    Module Parameter Buffer ModuleList ModuleDict Sequential Identity ParameterList ParameterDict Flatten
    Unflatten
""")
NOT_JUDGED = words("backward jvp vjp vmap setup_context extra_repr")  # methods that no call of forward runs
CALLS = words("forward __call__")  # a layer's attributes that run it
# Methods of a container, or of an iterator, that give what is in it.
GIVING = words("pop popleft popitem get setdefault values items copy __getitem__ __next__ __iter__ send")
TURNED = words("T mT H mH")  # attributes that are the tensor in another order
# What finishes a count or a sum of few numbers (plan_rules.py): whether it does, the plan shows.
TOUCHES = words("""
    torch.clamp torch.clamp_max torch.clamp_min torch.div torch.dot torch.maximum torch.minimum torch.sqrt
""")
COMPARISON = "a comparison"
# What to write instead of torch behind a tell.
OTHER_CONDITIONS = " (a condition on shapes, dtypes, is_cuda or the compute capability may choose)"
NUMBERS = " (numbers may be compared: keep them in attributes of their own, in no container beside tensors)"
COMPARING = ast.Is | ast.IsNot | ast.In | ast.NotIn
Unit = tuple[ast.AST, Runs]


def torch_computes(source: Source, entry: str | None, moving: bool = False) -> Violation | None:
    """Torch doesn't compute in a statement that every call of `forward` executes, nor behind a tell.

    moving: the task is about moving data, so behind a tell torch doesn't move any either.
    """
    if entry is None:
        return None
    search = Search(source, FREE - MOVING if moving else FREE)
    return search.from_entry(entry) or search.elsewhere(entry)


class Search:
    """The search through the definitions that a call of `forward` may run."""

    def __init__(self, source: Source, free: frozenset[str]):
        self.source = source
        self.free = free  # what torch may do behind a tell, by its name
        self.tells = Tells(source)
        self.tensors = self.tells.tensors
        self.branches = Branches(self.tells)
        self.seen: set[tuple[int, Runs]] = set()
        # the objects of which no more than an attribute is asked: `self.fc` in `self.fc.weight`
        self.asked = {
            id(node.value) for node in source.nodes[ast.Attribute] if node.attr not in CALLS | GIVING
        }
        self.callees = {id(call.func) for call in source.nodes[ast.Call]}
        self.tests = _tests(source)

    def from_entry(self, entry: str) -> Violation | None:
        return self._go([(unit, Runs.ALWAYS) for unit in self.source.units[entry]])

    def elsewhere(self, entry: str) -> Violation | None:
        """What is not called by name: hooks, callbacks, methods of own objects. Only tells count there."""
        if not self.tells.any:
            return None
        for unit in self.source.reachable(entry):
            plain = isinstance(unit, ast.FunctionDef) and unit.name not in NOT_JUDGED
            if plain and (violation := self._go([(unit, Runs.MAYBE)])):
                return violation
        return None

    def _go(self, todo: list[Unit]) -> Violation | None:
        while todo:
            unit, runs = todo.pop()
            if self._is_kept_generator(unit):  # how far it has come tells one call from another
                runs = Runs.BEHIND
            if (id(unit), runs) in self.seen or self.source.is_kernel(unit) or self._becomes_kernel(unit):
                continue
            self.seen.add((id(unit), runs))
            if isinstance(unit, ast.ClassDef):
                todo += self._ways_in(unit, runs)
                continue
            nodes = list(self._nodes(unit, runs))
            if violation := self._computation(unit, nodes):
                return violation
            todo += self._ways_on(unit, nodes)
        return None

    def _is_kept_generator(self, unit: ast.AST) -> bool:
        return isinstance(unit, ast.FunctionDef) and unit.name in self.tells.kept.generators

    def _becomes_kernel(self, unit: ast.AST) -> bool:
        """Whether a function is only given to triton.jit: `kernel = triton.jit(function)`."""
        return isinstance(unit, ast.FunctionDef) and unit.name in self._jitted

    @functools.cached_property
    def _jitted(self) -> set[str]:
        calls = [call for call in self.source.nodes[ast.Call] if self.source.is_jit(call)]
        return {arg.id for call in calls for arg in call.args if isinstance(arg, ast.Name)}

    def _ways_in(self, unit: ast.ClassDef, runs: Runs) -> list[Unit]:
        """What runs when a module is called, or an autograd.Function is applied. What `forward` is set to
        later on counts as behind a tell."""
        found = []
        for node, when in self.branches.block(unit.body, runs):
            if isinstance(node, ast.FunctionDef) and node.name in CALLS:
                found.append((node, when))
        if not found:  # what it inherits
            bases = [base for node in unit.bases for base in self.source.called(node)]
            found += [(base, runs) for base in bases if isinstance(base, ast.ClassDef)]
        methods = [method for method, _ in found]
        if "forward" in self.tells.attributes:
            found += [(value, Runs.BEHIND) for value in self.source.units["forward"] if value not in methods]
        if "__class__" in self.tells.attributes:
            for value in self.source.units["__class__"]:
                found += [(other, Runs.BEHIND) for other in self.source.called(value)]
        return found

    def _nodes(self, unit: ast.AST, runs: Runs) -> Iterator[tuple[ast.AST, Runs]]:
        """The nodes of a function's body, or of a value that a name has."""
        if isinstance(unit, ast.FunctionDef):
            return self.branches.block(unit.body, runs)
        if isinstance(unit, ast.Lambda):
            return self.branches.node(unit.body, runs)
        return self.branches.node(unit, runs)

    def _ways_on(self, unit: ast.AST, nodes: list[Unit]) -> list[Unit]:
        """The definitions that run with a unit: those that it calls, and those that a tell may choose."""
        found: list[Unit] = []
        value = not isinstance(unit, ast.FunctionDef | ast.Lambda)
        for node, runs in nodes:
            named = isinstance(node, ast.Name | ast.Attribute) and id(node) not in self.asked
            if runs == Runs.BEHIND and named and not (value and id(node) in self.callees):
                if value and isinstance(node, ast.Attribute):  # m.n.pop(), where m is what a hook is given
                    units = self.source.units.get(node.attr, [])
                else:
                    units = self.source.called(node)
                found += [(other, runs) for other in units]
            if not isinstance(node, ast.Call):
                continue
            if value:  # it was called where the value was made; what it gave is what counts
                found += [(answer, runs) for answer in self._answers(node.func)]
            elif _computing_call(self.source, node, unit) is None and runs != Runs.MAYBE:
                found += self._called(node.func, runs)
        return found

    def _called(self, callee: ast.AST, runs: Runs) -> list[Unit]:
        chosen = Runs.BEHIND if self.tells.chooses(callee) else runs
        units = self.source.called(callee)
        found = []
        for other in units:  # of several values that a name may have, one is called
            one_of = len(units) > 1 and not isinstance(other, ast.FunctionDef)
            found.append((other, max(chosen, Runs.MAYBE) if one_of else chosen))
        # a method of an object that changes, or what its attribute was set to
        if chosen == Runs.BEHIND and isinstance(callee, ast.Attribute):
            found += [(other, chosen) for other in self.source.units.get(callee.attr, [])]
        if chosen == Runs.BEHIND and isinstance(callee, ast.Call | ast.Subscript):
            found.append((callee, chosen))
        return found

    def _answers(self, callee: ast.AST) -> list[ast.AST]:
        """What the functions return or yield that an expression calls; of a class it is the class."""
        found: list[ast.AST] = []
        for unit in self.source.called(callee):
            if isinstance(unit, ast.ClassDef):
                found.append(unit)
            elif isinstance(unit, ast.FunctionDef):
                gives = [n for n in walk(*unit.body) if isinstance(n, ast.Return | ast.Yield | ast.YieldFrom)]
                found += [node.value for node in gives if node.value]
        return found

    # ---- what computes

    def _computation(self, unit: ast.AST, nodes: list[Unit]) -> Violation | None:
        """The first expression of a unit that is executed, or stands behind a tell, and in which torch
        computes with data."""
        constants = None
        function = isinstance(unit, ast.FunctionDef)
        for node, runs in nodes:
            called = None
            if runs == Runs.BEHIND:
                called = self._behind(node, value=not isinstance(unit, ast.FunctionDef | ast.Lambda))
            elif runs == Runs.ALWAYS and function:
                called = _computing_call(self.source, node, unit)
            if called and function and not self._is_choice(node):
                if constants is None:
                    attributes = self.tensors.attributes
                    constants = Constants(unit, self.source.path, self.source.units, attributes)
                if constants.holds(node):
                    continue
            if called:
                where, advice = "in torch", ""
                if runs == Runs.BEHIND:
                    where += ", behind a condition that may tell the judge from a card"
                    advice = NUMBERS if called == COMPARISON else OTHER_CONDITIONS
                message = f"{called} computes {where}: under strict, your own Triton kernels compute{advice}"
                return Violation(node.lineno, message)
        return None

    def _is_choice(self, node: ast.AST) -> bool:
        """Whether a node names a function, and does not call it."""
        return isinstance(node, ast.Name | ast.Attribute)

    def _behind(self, node: ast.AST, value: bool) -> str | None:
        """What computes in a node behind a tell. value: it stands in a value that was made elsewhere."""
        if isinstance(node, ast.Name | ast.Attribute):
            path = self.source.path(node)
            if path is None:
                return self._attribute(node) if isinstance(node, ast.Attribute) else None
            named = id(node) not in self.callees and computes(path, self.free)
            return path if named or _is_layer(path) else None
        if value:
            return None
        if isinstance(node, ast.Call):
            return self._call(node)
        may_be = self.tensors.may_be
        if isinstance(node, ast.BinOp) and (may_be(node.left) or may_be(node.right)):
            return f"the operator {_sign(node.op)}"
        if isinstance(node, ast.AugAssign) and (may_be(node.target) or may_be(node.value)):
            return f"the operator {_sign(node.op)}="
        if isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.Not) and may_be(node.operand):
            return f"the operator {_sign(node.op)}"
        if isinstance(node, ast.Compare) and not any(isinstance(op, COMPARING) for op in node.ops):
            compared = [node.left, *node.comparators]
            asked = self._is_tensor if id(node) in self.tests else may_be
            return COMPARISON if any(asked(part) for part in compared) else None
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            gathers = may_be(node.value) and may_be(node.slice)
            return "an index that is a tensor" if gathers else None
        return None

    def _attribute(self, node: ast.Attribute) -> str | None:
        """What an attribute behind a tell computes: `x.T`, or `f = x.relu` without its call."""
        named = id(node) not in self.callees | self.asked and not self._is_free(node.attr)
        method = named and callable(getattr(torch.Tensor, node.attr, None))
        computes = node.attr in TURNED - self.free or method
        return f".{node.attr}" if computes and self.tensors.may_be(node.value) else None

    def _is_free(self, method: str) -> bool:
        """Whether a tensor's method of this name computes nothing, or is one of the candidate's own."""
        return method in self.free or method.startswith(("is_", "get_")) or method in self.source.units

    def _is_tensor(self, node: ast.AST) -> bool:
        """`may_be`, but no name alone: what a branch compares by its name is a number."""
        return not isinstance(node, ast.Name) and self.tensors.may_be(node)

    def _call(self, node: ast.Call) -> str | None:
        """What a call behind a tell computes."""
        path = self.source.path(node.func)
        on_data = any(self.tensors.may_be(value) for value in arguments(node))
        if path is not None:
            return path if computes(path, self.free) or (on_data and path.startswith(OTHERS)) else None
        if isinstance(node.func, ast.Name):
            builtin = node.func.id in BUILTINS and node.func.id not in self.source.units
            return f"{node.func.id}()" if builtin and on_data else None
        if not isinstance(node.func, ast.Attribute):
            return None
        method = node.func.attr
        if not self._is_free(method) and self.tensors.may_be(node.func.value):
            return f".{method}()"
        return _computing_call(self.source, node)


def computes(path: str, free: frozenset[str] = FREE) -> bool:
    """Whether a dotted path names a function of torch's that does more than move a tensor or ask about it.

    free: the last names of those that do no more.
    """
    head, _, last = path.rpartition(".")
    if head.startswith("torch.ops."):
        return path.split(".")[-1] not in free
    if head not in OF_TENSORS or last in free or last.startswith(("is_", "get_", "set_", "empty", "_assert")):
        return False
    try:
        found = operator.attrgetter(path.removeprefix("torch."))(torch)
    except AttributeError:  # another version's
        return names.computes(path)
    return callable(found) and not isinstance(found, type)


def _tests(source: Source) -> set[int]:
    """The conditions of branches, by id: whole ones, and what `and`, `or` and `not` join."""
    branches = source.nodes[ast.If] + source.nodes[ast.While] + source.nodes[ast.IfExp]
    todo = [node.test for node in branches + source.nodes[ast.Assert]]
    todo += [test for node in source.nodes[ast.comprehension] for test in node.ifs]
    found = set()
    while todo:
        node = todo.pop()
        found.add(id(node))
        if isinstance(node, ast.BoolOp):
            todo += node.values
        elif isinstance(node, ast.UnaryOp):
            todo.append(node.operand)
    return found


def _is_layer(path: str) -> bool:
    """Whether a path names a layer of torch's that computes."""
    head, _, last = path.rpartition(".")
    return head == "torch.nn" and last[:1].isupper() and last not in PLAIN_LAYERS


def _sign(op: ast.operator | ast.unaryop) -> str:
    return SIGNS.get(type(op), type(op).__name__.lower())


SIGNS = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.MatMult: "@",
    ast.USub: "-",
    ast.UAdd: "+",
    ast.Invert: "~",
}


def _computing_call(source: Source, node: ast.AST, unit: ast.AST | None = None) -> str | None:
    """The name of a torch function, tensor method or operator that is certain to compute, or None.

    One that may be a finishing touch, as torch.clamp of a count is, is left to the rules on the plan.
    unit: the definition that the node stands in. In a method `self.softmax(x)` may be the candidate's own.
    """
    if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.MatMult):
        return "the operator @"
    if not isinstance(node, ast.Call):
        return None
    path = source.path(node.func)
    if path is not None:
        return path if names.computes(path) and path not in TOUCHES else None
    if not isinstance(node.func, ast.Attribute):
        return None
    attribute = node.func.attr
    of_self = isinstance(node.func.value, ast.Name) and node.func.value.id == "self"
    if attribute in names.COMPUTING_METHODS:
        own = of_self and attribute in source.units and _is_method(source, unit)
        if not own:
            return f".{attribute}()"
    return _computing_layer(source, attribute) if of_self else None


def _is_method(source: Source, unit: ast.AST | None) -> bool:
    """Whether a function's `self` is no tensor: a method of a class that is called as self.name(...) only."""
    if not any(unit in owner.body for owner in source.nodes[ast.ClassDef]):
        return False
    bound = [node for node in walk(unit) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)]
    if any(node.id == "self" for node in bound):
        return False
    for node in source.nodes[ast.Attribute]:
        of_self = isinstance(node.value, ast.Name) and node.value.id == "self"
        if node.attr == unit.name and not of_self:
            return False
    return all(node.id != unit.name for node in source.nodes[ast.Name])


def _computing_layer(source: Source, attribute: str) -> str | None:
    """`self.attribute(...)` where every assignment to it is a torch.nn layer that computes."""
    values = source.units.get(attribute, [])
    paths = [source.path(value.func) if isinstance(value, ast.Call) else None for value in values]
    if paths and all(_is_computing_layer(path) for path in paths):
        return f"self.{attribute}, a {paths[0]},"
    return None


def _is_computing_layer(path: str | None) -> bool:
    if not path or not path.startswith("torch.nn."):
        return False
    return path.rsplit(".", 1)[1] in names.COMPUTING_LAYERS
