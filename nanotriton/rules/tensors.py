"""Which expressions of a candidate may be tensors, as far as its text tells.

A `+` in Python is torch's if one side is a tensor. Here a name is taken for a tensor if something that binds
it gives one: an argument of `forward`, an operator of torch, a method of a tensor, a parameter of the module.
A shape, a dtype or a number that was read off a tensor is none.
"""

import ast
import functools

from nanotriton.plan.aten import words
from nanotriton.rules.constants import GROWING, OF_A_SHAPE, PLAIN, SHAPE_METHODS
from nanotriton.rules.scopes import Scopes, bindings, default_values, parameters
from nanotriton.rules.source import Source, arguments, last_name, mentions, walk

# attributes of a tensor that are no tensors
QUERIES = OF_A_SHAPE | words("""
    nbytes layout requires_grad is_leaf grad_fn names is_sparse is_quantized is_meta is_cpu _version
""")
# methods of a tensor whose answers are none
ASKING = SHAPE_METHODS | words("""
    data_ptr item tolist numpy storage_offset get_device untyped_storage storage backward register_hook
    retain_grad record_stream has_names sym_size dense_dim sparse_dim
""")
# attributes that are tensors whatever they belong to
WEIGHTS = words("weight bias running_mean running_var num_batches_tracked in_proj_weight in_proj_bias")
# what a function of torch's gives that is no tensor
PLAIN_ANSWERS = words("""
    finfo iinfo device dtype Size Generator numel promote_types result_type can_cast broadcast_shapes no_grad
    enable_grad inference_mode autocast manual_seed seed initial_seed typename compile memory_format layout
    allclose equal
""")
# modules whose functions give tensors
OF_TENSORS = words("torch torch.nn.functional torch.Tensor torch.linalg torch.fft torch.special")
PARAMETERS = words("""
    torch.nn.Parameter torch.nn.Buffer torch.nn.parameter.Parameter torch.nn.parameter.Buffer
""")
# whose functions give a tensor if they are given one
PASSING_ON = ("numpy.", "operator.", "functools.", "copy.", "torch.utils.checkpoint")
PLAIN_BUILTINS = words("""
    int float bool str len isinstance issubclass hasattr callable type print range repr hash id format slice
    ord chr divmod round super
""")
REGISTERING = words("register_buffer register_parameter")


class Tensors:
    """The names that may hold tensors, alone or in a container, and by them `may_be(expression)`."""

    def __init__(self, source: Source, scopes: Scopes):
        self.source, self.scopes = source, scopes
        self.names = scopes.empty()
        self.attributes: set[str] = set()
        # own function -> whether its answer may be a tensor, or of a tuple each part
        self.functions: dict[str, list[bool] | bool] = {}
        self.called_alone = _called_alone(source)
        self.answers = {number: _answers(function) for number, function in scopes.functions.items()}
        # Answers of may_be by id of a node: of `a + b + c` each part is asked for. None while they change.
        self.known: dict[int, bool] | None = None
        self._first()
        while self._spread():
            pass
        self.known = {}

    def may_be(self, node: ast.AST) -> bool:
        """Whether an expression may be a tensor, or a container of some."""
        if self.known is None:
            return self._may_be(node)
        if id(node) not in self.known:
            self.known[id(node)] = self._may_be(node)
        return self.known[id(node)]

    def _may_be(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Name):
            return self.scopes.holds(self.names, node)
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.Compare):
            plain = all(isinstance(op, ast.Is | ast.IsNot | ast.In | ast.NotIn) for op in node.ops)
            return not plain and any(self.may_be(part) for part in (node.left, *node.comparators))
        if isinstance(node, ast.UnaryOp):
            return not isinstance(node.op, ast.Not) and self.may_be(node.operand)
        return self._of_parts(node)

    def _of_parts(self, node: ast.AST) -> bool:
        """The same of an expression that is what its parts are."""
        if isinstance(node, ast.Subscript) and (tuples := self._tuples(node)):
            return any(self.may_be(each.elts[node.slice.value]) for each in tuples)
        if isinstance(node, ast.Subscript | ast.Starred | ast.NamedExpr | ast.Await):
            return self.may_be(node.value)
        if isinstance(node, ast.IfExp):
            return self.may_be(node.body) or self.may_be(node.orelse)
        if isinstance(node, ast.BinOp):
            while isinstance(node, ast.BinOp) and not self.may_be(node.right):  # sums of many terms lean left
                node = node.left
            return isinstance(node, ast.BinOp) or self.may_be(node)
        if isinstance(node, ast.BoolOp | ast.Tuple | ast.List | ast.Set | ast.Dict):
            return any(self.may_be(part) for part in ast.iter_child_nodes(node))
        if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp):
            return self.may_be(node.elt)
        return isinstance(node, ast.DictComp) and self.may_be(node.value)

    def _attribute(self, node: ast.Attribute) -> bool:
        if node.attr in QUERIES or self.source.path(node) is not None:
            return False
        return node.attr in self.attributes or node.attr in WEIGHTS or self.may_be(node.value)

    def _call(self, node: ast.Call) -> bool:
        path = self.source.path(node.func)
        given = arguments(node)
        if path is not None:
            passes_on = path.startswith(PASSING_ON) and any(self.may_be(value) for value in given)
            return passes_on or self._torch_gives(path)
        if isinstance(node.func, ast.Attribute) and self.may_be(node.func.value):
            return node.func.attr not in ASKING and not node.func.attr.startswith("is_")
        if isinstance(node.func, ast.Name) and node.func.id in PLAIN_BUILTINS:
            return False
        if mentions(walk(node.func)) & self.source.kernels:  # a launch
            return False
        own = self._own(node.func)
        if own:
            found = [self.functions.get(function.name, False) for function in own]
            return any(answer if isinstance(answer, bool) else any(answer) for answer in found)
        return any(self.may_be(value) for value in given)

    def _torch_gives(self, path: str) -> bool:
        """Whether a function of torch's gives a tensor."""
        head, _, last = path.rpartition(".")
        if path in PARAMETERS or head.startswith("torch.ops."):
            return True
        plain = last in PLAIN_ANSWERS or last.startswith(("is_", "get_", "set_", "are_", "use_"))
        return head in OF_TENSORS and not plain

    def _own(self, callee: ast.AST) -> list[ast.FunctionDef]:
        """The candidate's own functions that a call may run, methods by their names alone."""
        units = self.source.units.get(last_name(callee), [])
        functions = [unit for unit in units if isinstance(unit, ast.FunctionDef)]
        return [function for function in functions if not self.source.is_kernel(function)]

    # ---- what is kept with its version: `self.kept = (weight._version, table)`

    def _tuples(self, node: ast.Subscript) -> list[ast.Tuple]:
        """Of `kept[0]` the tuples that stand for `kept`; none if it may be anything else."""
        number = node.slice.value if isinstance(node.slice, ast.Constant) else None
        if not isinstance(number, int) or number < 0:
            return []
        values = self._resolved(node.value, frozenset())
        tuples = [v for v in values if not (isinstance(v, ast.Constant) and v.value is None)]
        sure = all(isinstance(v, ast.Tuple) and len(v.elts) > number for v in tuples)
        return tuples if sure else []

    def _resolved(self, node: ast.AST, seen: frozenset) -> list[ast.AST]:
        """All that an expression may stand for, through attributes and names: `kept = self.kept`."""
        if not isinstance(node, ast.Name | ast.Attribute) or not self._given(node):
            return [node]
        key = self._key(node)
        given = [] if key in seen else self._given(node)
        return [value for one in given for value in self._resolved(one, seen | {key})]

    def _given(self, node: ast.Attribute | ast.Name) -> list[ast.AST]:
        """All that an attribute or a name is given, if each time it stands on the left alone."""
        return self.assigned.get(self._key(node), [])

    @functools.cached_property
    def assigned(self) -> dict[object, list[ast.AST]]:
        """Name of an attribute, or (function, name) -> its values, where assignments tell all of them."""
        found: dict[object, list[ast.AST]] = {}
        stores: dict[object, int] = {}  # how often each is bound, in whatever way
        for node in self.source.nodes[ast.Assign]:
            for target in node.targets:
                if isinstance(target, ast.Attribute | ast.Name):
                    found.setdefault(self._key(target), []).append(node.value)
        for node in self.source.nodes[ast.Attribute] + self.source.nodes[ast.Name]:
            if not isinstance(node.ctx, ast.Load):
                stores[self._key(node)] = stores.get(self._key(node), 0) + 1
        for number, function in self.scopes.functions.items():
            for arg in (inner for inner in walk(function) if isinstance(inner, ast.arg)):
                stores[number, arg.arg] = 0  # an argument: no assignment tells all of its values
        for call in self.source.nodes[ast.Call]:
            if last_name(call.func) in ("setattr", "__setattr__"):
                return {}
        return {key: values for key, values in found.items() if stores[key] == len(values)}

    def _key(self, node: ast.Attribute | ast.Name) -> object:
        """An attribute's name, or (function, name)."""
        return node.attr if isinstance(node, ast.Attribute) else (self.scopes.home(node), node.id)

    # ---- how tensors spread

    def _first(self) -> None:
        """The tensors that are known before any spreads: what functions are given, what is registered."""
        for function in self.source.nodes[ast.FunctionDef] + self.source.nodes[ast.Lambda]:
            home, body = self.scopes.home(function), _body(function)
            given = {arg.arg for arg in parameters(function)} - {self.scopes.receiver(function)}
            self.names[home] |= _asked(body) & given
            if self._called_by_others(function):
                untold = _untold(function) & given
                self.names[home] |= {name for name in untold if not _is_table(body, name)}
        for call in self.source.nodes[ast.Call]:
            name = getattr(call.func, "attr", "")
            if name in REGISTERING and call.args and isinstance(call.args[0], ast.Constant):
                self.attributes.add(call.args[0].value)

    def _called_by_others(self, function: ast.FunctionDef | ast.Lambda) -> bool:
        """Whether no call in the text shows what a function is given: a module's forward, a callback."""
        if isinstance(function, ast.Lambda):
            return True
        if self.source.is_kernel(function):
            return False
        if function.name in ("forward", "__call__"):
            return parameters(function)[:1] != [] and parameters(function)[0].arg == "self"
        return function.name not in ("__init__", "__post_init__") and function.name not in self.called_alone

    def _spread(self) -> bool:
        """One round over everything that binds a name. Returns whether another one became a tensor."""
        before = self._size()
        for target, value in bindings(self.source):
            self._bind(target, value)
        for call in self.source.nodes[ast.Call]:
            grows = isinstance(call.func, ast.Attribute) and call.func.attr in GROWING
            if grows and any(self.may_be(given) for given in call.args):
                self._add(call.func.value)
            if getattr(call.func, "id", "") == "setattr" and len(call.args) == 3:
                _, name, value = call.args
                if isinstance(name, ast.Constant) and self.may_be(value):
                    self.attributes.add(name.value)
            for function in self.scopes.run_by(call):
                for name, value in self.scopes.given(function, call):
                    if self.may_be(value):
                        self.names[self.scopes.home(function)].add(name)
        for number, function in self.scopes.functions.items():
            self._answer(function, self.answers[number])
        return self._size() > before

    def _size(self) -> int:
        """How much is known to be a tensor: it grows with every name, attribute and answer."""
        parts = sum(1 if answer is True else sum(answer or ()) for answer in self.functions.values())
        return len(self.attributes) + parts + sum(len(found) for found in self.names.values())

    def _bind(self, target: ast.AST, value: ast.AST) -> None:
        """Give a value to a target: each of its names for itself, if the value falls into as many parts."""
        parts = self._parts(value)
        if isinstance(target, ast.Tuple | ast.List) and parts and len(parts) == len(target.elts):
            for inner, is_tensor in zip(target.elts, parts, strict=True):
                if is_tensor:
                    self._add(inner)
        elif self.may_be(value):
            self._add(target)

    def _parts(self, value: ast.AST) -> list[bool] | None:
        """Of a value that falls into parts, which of them may be tensors."""
        if not isinstance(value, ast.Call):
            return None
        name = value.func.id if isinstance(value.func, ast.Name) else ""
        if name == "enumerate" and value.args:
            return [False, self.may_be(value.args[0])]
        if name == "zip":
            return [self.may_be(argument) for argument in value.args]
        found = [self.functions.get(function.name, False) for function in self._own(value.func)]
        return found[0] if len(found) == 1 and isinstance(found[0], list) else None

    def _add(self, target: ast.AST) -> None:
        """A target is a tensor: of self.x[i] the attribute x, of a, b both."""
        for node in walk(target):
            if isinstance(node, ast.Attribute):
                self.attributes.add(node.attr)
                return
            if isinstance(node, ast.Subscript):
                self._add(node.value)
                return
            if isinstance(node, ast.Name):
                self.names[self.scopes.home(node)].add(node.id)

    def _answer(self, function: ast.FunctionDef, answers: list[ast.AST]) -> None:
        """Note whether a function answers with a tensor. answers: what it returns and yields."""
        if not answers:
            return
        before = self.functions.get(function.name)
        tuples = all(isinstance(answer, ast.Tuple) for answer in answers)
        if tuples and len({len(answer.elts) for answer in answers}) == 1 and before is not True:
            columns = zip(*(answer.elts for answer in answers))  # the first parts, the second, ...
            found = [any(self.may_be(part) for part in column) for column in columns]
            if before is None or len(before) == len(found):
                old = before or [False] * len(found)
                self.functions[function.name] = [a or b for a, b in zip(old, found, strict=True)]
                return
        if any(self.may_be(answer) for answer in answers):
            self.functions[function.name] = True


def _answers(function: ast.FunctionDef) -> list[ast.AST]:
    """What a function returns and yields."""
    nodes = walk(*function.body)
    return [n.value for n in nodes if isinstance(n, ast.Return | ast.Yield | ast.YieldFrom) and n.value]


def _body(function: ast.FunctionDef | ast.Lambda) -> list[ast.AST]:
    """The nodes of a function without its parameters."""
    nodes = function.body if isinstance(function, ast.FunctionDef) else [function.body]
    return walk(*nodes)


def _called_alone(source: Source) -> set[str]:
    """The names that are called, and never stand for anything else."""
    callees = {id(call.func) for call in source.nodes[ast.Call]}
    called, other = set(), set()
    for node in source.nodes[ast.Name] + source.nodes[ast.Attribute]:
        (called if id(node) in callees else other).add(last_name(node))
    return called - other


def _untold(function: ast.FunctionDef | ast.Lambda) -> set[str]:
    """The parameters that neither an annotation nor a default tells to be numbers."""
    defaults, found = default_values(function), set()
    for arg in parameters(function):
        default = defaults.get(arg.arg)
        number = isinstance(default, ast.Constant) and default.value is not None
        plain = arg.annotation is not None and ast.unparse(arg.annotation) in PLAIN
        if not number and not plain:
            found.add(arg.arg)
    return found


def _asked(body: list[ast.AST]) -> set[str]:
    """The names that are asked what only a tensor answers: `x.shape`, `x.numel()`.

    `ctx.stride = 2` asks nothing.
    """
    asked = OF_A_SHAPE | SHAPE_METHODS | {"contiguous", "data_ptr"}
    found = set()
    for node in body:
        reads = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
        if reads and node.attr in asked and isinstance(node.value, ast.Name):
            found.add(node.value.id)
    return found


def _is_table(body: list[ast.AST], name: str) -> bool:
    """Whether a parameter is a grid's table of constants, of which only items are used: `meta["BLOCK"]`."""
    inner = {id(node.value) for node in body if isinstance(node, ast.Subscript)}
    return all(id(node) in inner for node in body if isinstance(node, ast.Name) and node.id == name)
