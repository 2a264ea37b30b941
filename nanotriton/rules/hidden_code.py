"""The rule on code that hides the code it runs: exec, computed attribute names, ways into the interpreter."""

import ast
import re
import symtable
from collections.abc import Iterator
from string import Formatter

from nanotriton.rules import names
from nanotriton.rules.extract import parse
from nanotriton.rules.policy import Violation
from nanotriton.rules.source import Source, walk
from nanotriton.rules.standard import STANDARD
from nanotriton.rules.texts import Texts


def hidden_code(source: Source) -> Violation | None:
    """No exec, no eval, no computed attribute name, no way into frames, globals or other objects' insides."""
    named = _banned_name(source) or _banned_attribute(source) or _computed_name(source)
    return named or _evaluated_text(source) or _passed_module(source) or _made_class(source)


def _banned_name(source: Source) -> Violation | None:
    """A builtin such as `eval`, or a name such as `__builtins__`."""
    used = {node.id for node in source.nodes[ast.Name]} & names.BANNED_NAMES
    banned = used - source.imports.keys()
    builtin = _builtins(source.tree, banned) if banned else set()  # `vars` may be a variable
    for node in source.nodes[ast.Name]:
        if node.id in builtin:
            return Violation(node.lineno, f"{node.id} is not allowed: write out what the code runs")
        if _is_dunder(node.id) and node.id not in names.DUNDER_NAMES:
            return Violation(node.lineno, f"{node.id} is not allowed: leave out Python's inner names")
    return None


def _builtins(tree: ast.Module, wanted: set[str]) -> set[str]:
    """The wanted names that somewhere mean Python's own: no function around the use binds them."""
    found = set()
    todo = [symtable.symtable(ast.unparse(tree), "candidate", "exec")]
    while todo:
        table = todo.pop()
        todo += table.get_children()
        for symbol in table.get_symbols():
            if symbol.get_name() not in wanted or not symbol.is_referenced():
                continue
            if table.get_type() != "function" or symbol.is_global():
                found.add(symbol.get_name())
    return found


def _banned_attribute(source: Source) -> Violation | None:
    """An attribute that leads into the interpreter, or a template whose fields could."""
    attributes = [(node, node.attr) for node in source.nodes[ast.Attribute]]
    for node in source.nodes[ast.MatchClass]:  # case Frame(f_back=x)
        attributes += [(node, name) for name in node.kwd_attrs]
    for node, name in attributes:
        dunder = _is_dunder(name) and name not in names.DUNDER_ATTRIBUTES
        if dunder or name in names.BANNED_ATTRIBUTES:
            return Violation(
                node.lineno, f".{name} is not allowed: it reaches into the interpreter; leave it out"
            )
        if name in ("format", "format_map") and not _plain_template(source, node):
            message = f".{name} of this text is not allowed: its fields can reach attributes; use an f-string"
            return Violation(node.lineno, message)
    return None


def _plain_template(source: Source, node: ast.AST) -> bool:
    """Whether `node` is `text.format` of a harmless text that the source tells."""
    texts = Texts(source).of(node.value) if isinstance(node, ast.Attribute) else None
    return texts is not None and all(_harmless(text) for text in texts)


def _harmless(template: str, nested: bool = False) -> bool:
    """Whether the fields of a template lead to no private and no banned attribute."""
    try:
        fields = list(Formatter().parse(template))
    except ValueError:  # it is no template at all
        return False
    for _, field, spec, _ in fields:
        for name in re.findall(r"\.([^.\[]*)", field or ""):
            if name.startswith("_") or name in names.BANNED_ATTRIBUTES:
                return False
        if spec and (nested or not _harmless(spec, nested=True)):
            return "{" not in spec
    return True


def _computed_name(source: Source) -> Violation | None:
    """A use of getattr, setattr or delattr that hides the attribute's name."""
    spelled = {id(call.func) for call in source.nodes[ast.Call] if _spells_name(source, call)}
    for node in source.nodes[ast.Name]:
        if node.id in names.REFLECTION and id(node) not in spelled:
            message = f"{node.id} with a computed name is not allowed: write the attribute out"
            return Violation(node.lineno, message)
    return None


def _spells_name(source: Source, call: ast.Call) -> bool:
    """Whether a call such as getattr(x, "name") is as good as x.name, for each name that it may be given.

    Layers are numbered, so a name may be computed if it can be none that is banned. Of a module it may not.
    """
    reflects = isinstance(call.func, ast.Name) and call.func.id in names.REFLECTION
    if not reflects or len(call.args) < 2:
        return False
    owner, key = call.args[:2]
    path = source.path(owner)
    texts = None if isinstance(key, ast.BinOp) else Texts(source).of(key)  # nobody adds a name up to be read
    if texts is not None:
        return not any(_is_banned(path, name) for name in texts)
    literal = isinstance(key, ast.Constant)
    return not literal and path is None and not _may_be_banned(_start(key))


def _is_banned(path: str | None, name: str) -> bool:
    """Whether an attribute may not be used: of any object, or of the module with this path."""
    if name in names.BANNED_ATTRIBUTES or _is_dunder(name):
        return True
    return path is not None and names.refused(f"{path}.{name}", importing=False) is not None


def _start(key: ast.AST) -> str:
    """The text that a computed name certainly begins with.

    It is "weight_ih_l" for f"weight_ih_l{i}", "weight_ih_l" + str(i) and "weight_ih_l%d" % i.
    """
    while True:
        if isinstance(key, ast.JoinedStr) and key.values:
            key = key.values[0]
        elif isinstance(key, ast.BinOp) and isinstance(key.op, ast.Add):
            key = key.left
        else:
            break
    if isinstance(key, ast.BinOp) and isinstance(key.op, ast.Mod):
        return _text(key.left).split("%")[0]
    return _text(key)


def _text(node: ast.AST) -> str:
    """A literal's text, or "" for anything else."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _may_be_banned(start: str) -> bool:
    """Whether a name that begins like this may be a banned one."""
    return not start[:1].isalpha() or any(name.startswith(start) for name in names.BANNED_ATTRIBUTES)


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


# ---- texts that others evaluate, and modules and classes that the text does not show

# What no type has, and code may have.
_RUNS = (
    *(ast.Call, ast.Lambda, ast.NamedExpr, ast.Await, ast.Yield, ast.JoinedStr),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
)


def _evaluated_text(source: Source) -> Violation | None:
    """A text in an annotation that is more than a type: torch.library and others evaluate it."""
    for annotation in _annotations(source):
        for node in walk(annotation):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and not _is_type(node.value):
                message = "the text of this annotation is code: an annotation names a type"
                return Violation(node.lineno, message)
    for call in source.nodes[ast.Call]:
        if any(keyword.arg == "eval_str" for keyword in call.keywords):
            return Violation(call.lineno, "eval_str= is not allowed: it evaluates texts; leave it out")
    return None


def _annotations(source: Source) -> Iterator[ast.AST]:
    for node in source.nodes[ast.arg] + source.nodes[ast.AnnAssign]:
        if node.annotation is not None:
            yield node.annotation
    for node in source.nodes[ast.FunctionDef]:
        if node.returns is not None:
            yield node.returns


def _is_type(text: str) -> bool:
    """Whether a text is a type, such as "torch.Tensor | None", or no expression at all."""
    try:
        nodes = walk(parse(text.strip()))
    except SyntaxError:
        return True
    reached = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    reached |= {node.id for node in nodes if isinstance(node, ast.Name)}
    banned = names.BANNED_ATTRIBUTES | names.BANNED_NAMES
    return not reached & banned and not any(map(_is_dunder, reached)) and not _holds_code(nodes)


def _holds_code(nodes: list[ast.AST]) -> bool:
    return any(isinstance(node, _RUNS) for node in nodes)


def _passed_module(source: Source) -> Violation | None:
    """One of Python's modules as a value, under another name of which all of it could be reached.

    hasattr and getattr take one, with a name that the text tells, and it may be compared with None.
    """
    inner = {id(node.value) for node in source.nodes[ast.Attribute]}
    for call in source.nodes[ast.Call]:
        if isinstance(call.func, ast.Name) and call.func.id in names.REFLECTION | {"hasattr"}:
            inner |= {id(argument) for argument in call.args[:1]}
    for node in source.nodes[ast.Compare]:
        inner |= {id(node.left)}
    for node in source.nodes[ast.Name]:
        passed = isinstance(node.ctx, ast.Load) and id(node) not in inner
        if passed and source.imports.get(node.id) in STANDARD and not _bound_elsewhere(source, node.id):
            return Violation(node.lineno, f"{node.id} (all of it) is not allowed: name what you use of it")
    return None


def _bound_elsewhere(source: Source, name: str) -> bool:
    """Whether a name is also an argument or a variable: `time` may be a number."""
    bound = {node.arg for node in source.nodes[ast.arg]}
    bound |= {node.id for node in source.nodes[ast.Name] if not isinstance(node.ctx, ast.Load)}
    return name in bound


def _made_class(source: Source) -> Violation | None:
    """type(name, bases, namespace): the namespace may be anything, and is in no statement."""
    for call in source.nodes[ast.Call]:
        named = isinstance(call.func, ast.Name) and call.func.id == "type" and "type" not in source.imports
        if named and (len(call.args) != 1 or call.keywords or isinstance(call.args[0], ast.Starred)):
            return Violation(call.lineno, "type with three arguments is not allowed: write the class out")
    return None
