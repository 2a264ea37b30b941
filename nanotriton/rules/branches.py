"""The way through a function: what runs on every call, what in some, and what stands behind a tell.

What the judge records is what runs on a card too, unless a tell chose it (faces.py). So of a branch on a tell
both sides count, and what follows if one side leaves. One kind of tell is known while a candidate is
recorded: its modules are in training, and torch makes no gradients. A side that runs for certain in these
modes is recorded, and the rules on the plan see it.
"""

import ast
from collections.abc import Iterable
from enum import IntEnum

from nanotriton.plan.aten import words
from nanotriton.rules.faces import BRANCHES, MODES, Tells
from nanotriton.rules.source import children, last_name, walk

# torch's modes while a candidate is recorded, by the last name of what asks for them
RECORDED = {
    "training": True,
    "is_grad_enabled": False,
    "is_inference_mode_enabled": False,
    "is_inference": False,
}
# What changes a mode. Where one of these is named, no mode is known.
CHANGING_MODES = words("train eval enable_grad set_grad_enabled inference_mode requires_grad_")
LEAVING = ast.Return | ast.Raise | ast.Break | ast.Continue
FUNCTIONS = ast.FunctionDef | ast.ClassDef | ast.Lambda
COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp
STATEMENTS = ast.For | ast.Try | ast.Match  # whose parts run at different times
SUPPRESSING = "suppress"


class Runs(IntEnum):
    """When a node runs."""

    ALWAYS = 0  # on every call
    MAYBE = 1  # in an ordinary branch, in a handler, or in a function that is made here
    BEHIND = 2  # a tell decides


Found = list[tuple[ast.AST, Runs]]


class Branches:
    """The nodes of functions, each with when it runs."""

    def __init__(self, tells: Tells):
        self.tells = tells
        source = tells.source
        named = {node.attr for node in source.nodes[ast.Attribute]}
        named |= {path.split(".")[-1] for path in source.imports.values()}
        stored = any(
            isinstance(node.ctx, ast.Store) and last_name(node) in MODES
            for node in source.nodes[ast.Attribute] + source.nodes[ast.Name]
        )
        self.modes_known = not named & CHANGING_MODES and not stored

    def block(self, body: Iterable[ast.stmt], runs: Runs) -> Found:
        """The nodes of statements that follow one another, of which the first runs so."""
        found = []
        for statement in body:
            found += self.node(statement, runs)
            if runs < Runs.BEHIND and self.forks(statement):
                runs = Runs.BEHIND
        return found

    def node(self, node: ast.AST, runs: Runs) -> Found:
        """A node that runs so, and all below it."""
        if isinstance(node, ast.FunctionDef) and self.tells.source.is_kernel(node):
            return []
        found = [(node, runs)]
        for parts, inner in self._parts(node):
            inner = max(runs, inner)
            if all(isinstance(part, ast.stmt) for part in parts):
                found += self.block(parts, inner)
            else:
                for part in parts:
                    found += self.node(part, inner)
        return found

    def forks(self, node: ast.AST) -> bool:
        """Whether a tell decides if what follows a statement is reached."""
        if not self.tells.any or isinstance(node, FUNCTIONS):
            return False
        if isinstance(node, ast.If) and self.tells.depends(node.test):
            ways = ((node.body, False), (node.orelse, True))
            if any(_leaves(part) and self._side(node.test, other) == Runs.BEHIND for part, other in ways):
                return True
        for parts, runs in self._parts(node):
            if runs == Runs.BEHIND and _leaves(parts) and not isinstance(node, ast.If):
                return True
            if any(self.forks(part) for part in parts if isinstance(part, ast.stmt | ast.ExceptHandler)):
                return True
        if isinstance(node, ast.Try):
            return _leaves(node.body) and self.tells.raises(node.body)
        return isinstance(node, ast.With) and self._may_go_on(node) and self.tells.raises(node.body)

    def _may_go_on(self, node: ast.With) -> bool:
        """Whether what follows a `with` may be reached by an exception inside."""
        for item in node.items:
            called = getattr(item.context_expr, "func", item.context_expr)
            path = self.tells.source.path(called)
            if path is None or path.endswith(SUPPRESSING):
                return True
        return False

    # ---- the parts of a node

    def _parts(self, node: ast.AST) -> list[tuple[list, Runs]]:
        """(some of a node's parts, in order; when they run if the node runs always)."""
        if isinstance(node, BRANCHES):
            return self._of_a_branch(node)
        if isinstance(node, ast.BoolOp):
            return self._of_a_choice(node)
        if isinstance(node, ast.Subscript):  # {True: ours, False: torch.relu}[tell]
            return [([node.slice], Runs.ALWAYS), ([node.value], self._behind(Runs.ALWAYS, node.slice))]
        if isinstance(node, COMPREHENSIONS):
            return self._of_a_comprehension(node)
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            return [(node.body if isinstance(node, ast.FunctionDef) else [node.body], Runs.MAYBE)]
        if isinstance(node, ast.ClassDef | ast.Assert):
            return []
        if isinstance(node, STATEMENTS):
            return self._of_a_statement(node)
        body = getattr(node, "body", [])  # of a `with`, a handler or a case
        rest = [part for part in children(node) if part not in body]
        return [(rest, Runs.ALWAYS), (body, Runs.ALWAYS)]

    def _of_a_statement(self, node: ast.For | ast.Try | ast.Match) -> list[tuple[list, Runs]]:
        if isinstance(node, ast.For):
            inner = self._behind(Runs.ALWAYS, node.iter)
            return [([node.iter, node.target], Runs.ALWAYS), (node.body, inner), (node.orelse, inner)]
        if isinstance(node, ast.Match):
            found: list[tuple[list, Runs]] = [([node.subject], Runs.ALWAYS)]
            for case in node.cases:
                asked = [node.subject, case.guard] if case.guard else [node.subject]
                found.append(([case], self._behind(Runs.MAYBE, *asked)))
            return found
        other = self._side_of_a_handler(node)
        return [
            (node.body, Runs.ALWAYS),
            (node.handlers, other),
            (node.orelse, other),
            (node.finalbody, Runs.ALWAYS),
        ]

    def _side_of_a_handler(self, node: ast.Try) -> Runs:
        return Runs.BEHIND if self.tells.raises(node.body) else Runs.MAYBE

    def _behind(self, otherwise: Runs, *conditions: ast.AST) -> Runs:
        return Runs.BEHIND if self.tells.depends(*conditions) else otherwise

    def _of_a_comprehension(self, node: ast.AST) -> list[tuple[list, Runs]]:
        conditions = [g.iter for g in node.generators] + [test for g in node.generators for test in g.ifs]
        made = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        return [(node.generators, Runs.ALWAYS), (made, self._behind(Runs.ALWAYS, *conditions))]

    def _of_a_branch(self, node: ast.If | ast.IfExp | ast.While) -> list[tuple[list, Runs]]:
        body = [node.body] if isinstance(node, ast.IfExp) else node.body
        orelse = [node.orelse] if isinstance(node, ast.IfExp) else node.orelse
        test = node.test
        return [
            ([test], Runs.ALWAYS),
            (body, self._side(test, True)),
            (orelse, self._side(test, False)),
        ]

    def _of_a_choice(self, node: ast.BoolOp) -> list[tuple[list, Runs]]:
        """`a and b and c`: each runs if those before it were true; of `or`, false."""
        wanted = isinstance(node.op, ast.And)
        found = []
        runs = Runs.ALWAYS
        for value in node.values:
            found.append(([value], runs))
            runs = max(runs, self._side(value, wanted))
        return found

    def _side(self, test: ast.AST, answer: bool) -> Runs:
        """When the side of a branch runs that this answer of its test leads to."""
        if not self.tells.depends(test):
            return Runs.MAYBE
        if self.recorded(test) is answer:
            return Runs.ALWAYS
        return Runs.MAYBE if self._as_recorded(test, answer) else Runs.BEHIND

    # ---- modes

    def recorded(self, test: ast.AST) -> bool | None:
        """What a test is while a candidate is recorded, None where that is not known."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = self.recorded(test.operand)
            return None if inner is None else not inner
        if isinstance(test, ast.BoolOp):
            decides = isinstance(test.op, ast.Or)
            values = [self.recorded(value) for value in test.values]
            if decides in values:
                return decides
            return None if None in values else not decides
        return self._mode(test)

    def _mode(self, test: ast.AST) -> bool | None:
        """The answer of a test that is a mode alone: `self.training`, `torch.is_grad_enabled()`."""
        if not self.modes_known:
            return None
        asked = test.func if isinstance(test, ast.Call) and not test.args else test
        if isinstance(asked, ast.Name):
            path = self.tells.source.path(asked) or ""
            return RECORDED.get(path.split(".")[-1]) if path.startswith("torch.") else None
        if not isinstance(asked, ast.Attribute) or isinstance(test, ast.Call) == (asked.attr == "training"):
            return None
        return RECORDED.get(asked.attr)

    def _as_recorded(self, test: ast.AST, answer: bool) -> bool:
        """Whether a test that gives this answer says that each mode in it is as it is while recording."""
        if not self.tells.depends(test):
            return True
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return self._as_recorded(test.operand, not answer)
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) == answer:
            return all(self._as_recorded(value, answer) for value in test.values)
        return self._mode(test) is answer


def _leaves(parts: list[ast.AST]) -> bool:
    """Whether a function, or a loop, may be left in these."""
    return any(isinstance(node, LEAVING) for node in walk(*parts))
