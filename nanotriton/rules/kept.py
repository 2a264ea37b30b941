"""What a candidate keeps from one call to the next, and moves on: a count, a list that grows, a flag.

With it a candidate tells its first calls, which the judge makes, from later ones. So an attribute counts that
anything but a constructor writes to, and a list, a set or an iterator that a method takes from or adds to.
A tensor that is written to in place does not: to ask for its values in Python is refused anyhow.
"""

import ast

from nanotriton.plan.aten import words
from nanotriton.rules.scopes import MODULE, Scopes, bindings, default_values, parameters
from nanotriton.rules.source import Source, arguments, last_name, walk
from nanotriton.rules.tensors import REGISTERING, Tensors

# methods that change what they are called on, and that no tensor has
CHANGING = words("""
    append appendleft extend extendleft insert pop popleft popitem setdefault update remove discard rotate
    reverse send __next__ move_to_end subtract clear difference_update intersection_update
    symmetric_difference_update acquire release __setitem__ cache_info setLevel
""")
AMBIGUOUS = words("add sort")  # tensors have these too
# functions that change their first argument
CHANGE_FIRST = words("""
    heapq.heappush heapq.heappop heapq.heapify heapq.heapreplace heapq.heappushpop bisect.insort
    bisect.insort_left bisect.insort_right
""")
CONTAINERS = words("list dict set")
ITERATORS = words("iter map filter zip enumerate reversed")
# methods that tell which modules, parameters and buffers there are
STRUCTURE = words("""
    children named_children modules named_modules parameters named_parameters buffers named_buffers state_dict
    _modules _buffers _parameters
""")
STRUCTURING = REGISTERING | words("add_module register_module")
# A copy of an attribute that takes its place, once in another place or order: nothing moves on.
PLAIN_COPIES = words("contiguous cuda detach")
LITERALS = ast.List | ast.ListComp | ast.Set | ast.SetComp | ast.Dict | ast.Tuple


class Kept:
    """attributes: names of attributes that calls move on. names: of other names, by function (Scopes).
    generators: names of generator functions of which a generator is kept."""

    def __init__(self, source: Source, scopes: Scopes, tensors: Tensors):
        self.source, self.scopes, self.tensors = source, scopes, tensors
        self.attributes: set[str] = set()
        self.names = scopes.empty()
        self.generators: set[str] = set()
        self.constructors = _constructors(source)
        self.building = {id(node) for function in self.constructors for node in walk(function)}
        self.building -= _in_hooks(source)
        self.aliases = self._aliases()
        self._stores()
        self._calls()
        self._iterators()
        for node in scopes.shared():
            self.names[MODULE] |= set(node.names)
        if self.attributes:
            self.attributes |= STRUCTURE

    def _stores(self) -> None:
        """`self.calls += 1`, `self.flags[0] = True`, `del self.left[0]`, outside of a constructor."""
        copies = self._plain_copies()
        nodes = self.source.nodes
        grown = {id(node.target) for node in nodes[ast.AugAssign]}
        for node in nodes[ast.Attribute] + nodes[ast.Subscript]:
            if isinstance(node.ctx, ast.Load) or id(node) in self.building | copies:
                continue
            in_place = isinstance(node, ast.Subscript) or id(node) in grown
            if not (in_place and self.tensors.may_be(_owner(node))):
                self._add(_owner(node))
        for node in nodes[ast.AugAssign]:  # seen = self.seen; seen += [1]
            if isinstance(node.target, ast.Name) and isinstance(node.value, LITERALS):
                self._add(node.target)

    def _plain_copies(self) -> set[int]:
        """The targets, by id, of `self.w = self.w.contiguous()` and `self.w = self.w.to(x.device)`."""
        found = set()
        for node in self.source.nodes[ast.Assign]:
            target, value = node.targets[0], node.value
            if not isinstance(target, ast.Attribute) or not isinstance(value, ast.Call):
                continue
            method = value.func
            if not isinstance(method, ast.Attribute) or ast.dump(method.value) != _loaded(target):
                continue
            given = arguments(value)
            to_device = method.attr == "to" and all(getattr(v, "attr", "") == "device" for v in given)
            if to_device or (method.attr in PLAIN_COPIES and not given):
                found.add(id(target))
        return found

    def _calls(self) -> None:
        """`self.seen.append(1)`, `heapq.heappop(self.heap)`, `self.register_buffer("z", ...)`."""
        for call in self.source.nodes[ast.Call]:
            if id(call) in self.building:
                continue
            if isinstance(call.func, ast.Attribute):
                self._method(call, call.func)
            path = self.source.path(call.func)
            if path in CHANGE_FIRST and call.args:
                self._add(call.args[0])
            name = getattr(call.func, "id", "")
            if name in ("setattr", "delattr") and len(call.args) > 1:
                self._named(call.args[1])

    def _method(self, call: ast.Call, method: ast.Attribute) -> None:
        """A call of a method that changes what it is called on, or which parts a module has."""
        if method.attr in STRUCTURING | {"__setattr__"}:
            self.attributes |= STRUCTURE
            for value in arguments(call)[:2]:
                self._named(value)
        owner = method.value
        if isinstance(owner, ast.Name) and owner.id in CONTAINERS and call.args:
            owner = call.args[0]  # list.append(self.seen, 1)
        if method.attr in CHANGING or (method.attr in AMBIGUOUS and not self.tensors.may_be(owner)):
            self._add(owner)

    def _named(self, value: ast.AST) -> None:
        """An attribute that is written to by a text: setattr(self, "calls", n)."""
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            self.attributes.add(value.value)

    def _iterators(self) -> None:
        """What is kept outside of a function and gives other values each time that it is gone through."""
        generators = {f.name for f in self.source.nodes[ast.FunctionDef] if _is_generator(f)}
        for target, value in bindings(self.source):
            called = getattr(value, "func", None)
            path = (self.source.path(called) if called else None) or ""
            named = last_name(called)
            iterates = isinstance(value, ast.GeneratorExp) or path.startswith("itertools.")
            if iterates or named in ITERATORS - self.source.units.keys() or named in generators:
                if isinstance(target, ast.Attribute):
                    self.attributes.add(target.attr)
                elif isinstance(target, ast.Name) and not self.scopes.home(target):
                    self.names[MODULE].add(target.id)
                else:
                    continue
                self.generators |= {named} & generators

    # ---- whose it is

    def _aliases(self) -> dict[tuple[int, str], list[ast.AST]]:
        """(function, its name for something) -> the attributes and other names that it may stand for."""
        found: dict[tuple[int, str], list[ast.AST]] = {}
        for target, value in bindings(self.source):
            owner = _owner(value)
            if isinstance(target, ast.Name) and isinstance(owner, ast.Attribute | ast.Name):
                found.setdefault((self.scopes.home(target), target.id), []).append(owner)
        for call in self.source.nodes[ast.Call]:
            for function in self.scopes.run_by(call):
                for name, value in self.scopes.given(function, call):
                    if isinstance(_owner(value), ast.Attribute | ast.Name):
                        found.setdefault((self.scopes.home(function), name), []).append(_owner(value))
        return found

    def _add(self, owner: ast.AST) -> None:
        """What an expression leads to, if it is kept from call to call: an attribute, or a name of the
        module's or of a default. A list that a function makes itself is not."""
        todo, seen = [owner], set()
        while todo:
            node = _owner(todo.pop())
            if isinstance(node, ast.Attribute) and self._lasts(node):
                self.attributes.add(node.attr)
            if not isinstance(node, ast.Name) or node.id in self.source.imports:
                continue
            home = self.scopes.home(node)
            if (home, node.id) in seen:
                continue
            seen.add((home, node.id))
            todo += self.aliases.get((home, node.id), [])
            if not home or node.id in self.scopes.stored[home] or node.id in ("self", "cls"):
                continue
            if node.id not in self.scopes.bound[home]:
                self.names[MODULE].add(node.id)
            elif _has_container(self.scopes.functions[home], node.id):
                self.names[home].add(node.id)

    def _lasts(self, node: ast.AST) -> bool:
        """Whether what has an attribute is more than an object of one call's: `ctx`, or one that is made
        anew."""
        while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
            node = node.func if isinstance(node, ast.Call) else node.value
        if not isinstance(node, ast.Name) or node.id in ("self", "cls"):
            return True
        home = self.scopes.home(node)
        return node.id not in self.scopes.bound[home] or (home, node.id) in self.aliases


def _is_generator(function: ast.FunctionDef) -> bool:
    return any(isinstance(node, ast.Yield | ast.YieldFrom) for node in walk(*function.body))


def _owner(node: ast.AST) -> ast.AST:
    """What `owner[i][j]` is an item of."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return node


def _loaded(target: ast.Attribute) -> str:
    """The target of an assignment as it is dumped where it is read."""
    return ast.dump(ast.Attribute(target.value, target.attr, ast.Load()))


def _has_container(function: ast.FunctionDef, name: str) -> bool:
    """Whether a parameter has a default that all calls share: `def run(x, seen=[])`."""
    defaults = default_values(function)
    nested = name not in {arg.arg for arg in parameters(function)}  # of a function inside of this one
    return nested or (name in defaults and not isinstance(defaults[name], ast.Constant))


def _in_hooks(source: Source) -> set[int]:
    """The nodes, by id, of functions that are registered as hooks: calls run them, wherever they are made."""
    given = []
    for call in source.nodes[ast.Call]:
        name = last_name(call.func)
        if name.startswith("register_") and name.endswith("hook"):
            given += arguments(call)
    named = {last_name(value) for value in given}
    given += [function for function in source.nodes[ast.FunctionDef] if function.name in named]
    return {id(node) for node in walk(*given)}


def _constructors(source: Source) -> list[ast.FunctionDef]:
    """`__init__`, and the functions that nothing but constructors call."""
    found = [f for f in source.nodes[ast.FunctionDef] if f.name in ("__init__", "__post_init__")]
    inside = {id(node) for function in found for node in walk(function)}
    mentioned: dict[str, list[int]] = {}
    for node in source.nodes[ast.Attribute] + source.nodes[ast.Name]:
        mentioned.setdefault(last_name(node), []).append(id(node))
    called = {id(call.func) for call in source.nodes[ast.Call]}
    for call in source.nodes[ast.Call]:  # self.apply(self._initialise)
        if getattr(call.func, "attr", "") == "apply":
            called |= {id(argument) for argument in call.args}
    grows = True
    while grows:
        grows = False
        for function in source.nodes[ast.FunctionDef]:
            uses = mentioned.get(function.name, [])
            if function in found or function.name in ("forward", "__call__") or not uses:
                continue
            if all(use in inside and use in called for use in uses):
                found.append(function)
                inside |= {id(node) for node in walk(function)}
                grows = True
    return found
