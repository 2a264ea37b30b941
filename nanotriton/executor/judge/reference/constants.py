"""Find what never differs between a task's draws, and a way to move each of it that its reference survives.

That is what is the same in all draws, and what has the same structure in all (inputs/structure.py).
"""

import inspect
from collections.abc import Callable, Iterable
from functools import partial

import torch

from nanotriton.executor.judge.comparison.compare import Answer
from nanotriton.executor.judge.inputs.kinds import MOVED, TRIALS, Trial
from nanotriton.executor.judge.inputs.marks import MARK, marks
from nanotriton.executor.judge.inputs.moves import (
    AND,
    FAR,
    NUMBER,
    NUMBERS,
    OTHER_WAY,
    UNFOLD,
    Moves,
    unfolding,
    ways,
)
from nanotriton.executor.judge.inputs.structure import promises, ways_of_constant, ways_of_drawn
from nanotriton.executor.judge.task.asserts import PYTHONS, Wraps
from nanotriton.plan.trees import identical, leaves, tensors

LOWEST = -8  # a smaller integer names no dimension
# A verdict names so many of the arguments that no trial varies, in so many characters each: its message has a
# limit, and a task may be given a list of thousands of words.
NAMED, LETTERS = 50, 100


def same_tensors(one: list, other: list) -> list[int]:
    """The numbers of the leaves that are tensors and the same in both."""
    found = []
    for i, ((_, x), (_, y)) in enumerate(zip(leaves(one), leaves(other), strict=True)):
        if isinstance(x, torch.Tensor) and identical([x], [y]):
            found.append(i)
    return found


class Search:
    """The search for a task's moves. `found` holds the best so far, `unvaried` names what is left at the end.

    reference: is asked for draws and answers, with the `moves` of its findings set to those that are tried.
    fixed: the arguments that are the same in all draws, by their number among the leaves. drawn: two draws of
    each other tensor. places: where each leaf is.
    """

    def __init__(
        self,
        reference,
        fixed: dict[int, object],
        drawn: dict[int, list[torch.Tensor]],
        places: list[str],
    ):
        self.reference, self.fixed, self.places = reference, fixed, places
        self.findings, self.inputs, self.seed = reference.findings, reference.inputs, reference.seed
        init = [leaf for _, leaf in leaves(reference.modules.init_arguments(self.seed))]
        self.floats = frozenset(i for i, leaf in enumerate(init) if type(leaf) is float)
        # others are shapes more often than not
        self.integers = frozenset(i for i, leaf in enumerate(init) if type(leaf) is int and leaf < LOWEST)
        self.choices = frozenset(i for i, leaf in enumerate(init) if type(leaf) in (bool, str))
        promised = promises(reference.task.source)
        sizes = sizes_of([*fixed.values(), *(draws[0] for draws in drawn.values())])
        self.options = {}
        for i, leaf in fixed.items():
            if found := options(leaf, self.findings.called, promised, sizes):
                self.options[i] = found
        for i, draws in drawn.items():
            found = ways_of_drawn(draws, self.findings.called, promised, sizes)
            if repeats_another(i, drawn):
                found = (*found, "apart")
            if found := (*unfolding(draws[0]), *found):
                self.options[i] = found
        self.found = Moves()
        self.drawn_integers = {
            i: draws for i, draws in drawn.items() if draws[0].dtype in (torch.int32, torch.int64)
        }
        if self.options or self.floats or self.integers or self.drawn_integers:
            self.wanted = layout(reference.answer("plain", self.seed, self.seed))
            self.search()
        self.unvaried = self.left()

    def search(self) -> None:
        """Try all at once, each in the way that fits best.

        If the reference does not survive that, they are tried one by one. Then comes what is tried by itself
        anyway.
        """
        best = Moves({i: found[0] for i, found in self.options.items()}, dict.fromkeys(self.floats, FAR))
        if not best or not self.survives(best):
            for i, found in self.options.items():
                self.first_that_survives(Moves(self.found.ways | {i: way}, self.found.init) for way in found)
            for i in sorted(self.floats):
                self.move_init(i, FAR, NUMBER)
        for i in sorted(self.integers):
            self.move_init(i, FAR)
        for i, draws in self.drawn_integers.items():
            self.add_marks(i, draws)

    def first_that_survives(self, tried: Iterable[Moves]) -> None:
        """Try these moves in turn, until the reference survives some."""
        for moves in tried:
            if self.survives(moves):
                return

    def move_init(self, i: int, *found: str) -> None:
        """Try these ways of an argument of the constructor."""
        self.first_that_survives(Moves(self.found.ways, self.found.init | {i: way}) for way in found)

    def add_marks(self, i: int, draws: list[torch.Tensor]) -> None:
        """Put integers that stand for none among those of an argument, after what else is done to them."""
        reference = self.reference
        self.findings.moves = self.found
        given = leaves(reference.modules.init_arguments(self.findings.moved_weights(self.seed)))
        integers = [leaf for _, leaf in given if type(leaf) is int]
        for mark in marks(draws, integers, reference.task.source, self.findings.called):
            way = self.found.ways.get(i, "")
            if UNFOLD not in way:
                self.survives(Moves(self.found.ways | {i: f"{way}{AND}{MARK}{mark}"}, self.found.init))

    def survives(self, moves: Moves) -> bool:
        """Whether each argument changes, and the reference's answer keeps its shapes.

        If so these moves are the best so far.
        """
        reference = self.reference
        self.findings.moves = moves
        try:
            if not self.all_change(moves):
                return False
            kind = MOVED + self.findings.chosen(TRIALS[1])
            answer = reference.finite_answer(kind, self.seed, self.findings.moved_weights(self.seed))
            if answer is None or layout(answer) != self.wanted or not self.survives_others(kind):
                return False
            if self.wraps(kind) and not self.wraps("plain"):
                return False
            self.found = moves
            return True
        except Exception:  # get_inputs or the constructor, of what it did not expect
            return False
        finally:
            self.findings.moves = self.found
            reference.modules.forget()  # those of other moves go by the same seed

    def survives_others(self, kind: str) -> bool:
        """Whether the reference takes two other draws too.

        Lengths and offsets that are moved apart may fit each other by chance.
        """
        reference, weights = self.reference, self.findings.moved_weights(self.seed)
        return all(reference.takes(Trial(kind, self.seed + number, weights)) for number in (1, 2))

    def wraps(self, kind: str) -> bool:
        """Whether the reference counts an index below 0 from the end, on a draw of this kind."""
        reference = self.reference
        if not PYTHONS & self.findings.called:
            return False
        seen, weights = Wraps(), self.seed if kind == "plain" else self.findings.moved_weights(self.seed)
        reference.run(self.inputs.draw(kind, self.seed), weights, kind=kind, watched=seen)
        return seen.met

    def all_change(self, moves: Moves) -> bool:
        """Whether each argument that is moved is another one afterwards."""
        given = self.inputs.given("plain", self.seed)
        drawn, moved = leaves(given), leaves(moves.of_inputs(given, self.seed))
        for i, way in moves.ways.items():
            before, after = drawn[i][1], moved[i][1]
            same = before == after if way in NUMBERS else identical([before], [after])
            if same:
                return False
        return True

    def left(self) -> list[str]:
        """The arguments that are neither drawn nor moved, as one would write them."""
        rest = {i: leaf for i, leaf in self.fixed.items() if i not in self.found.ways and leaf is not None}
        kind = self.findings.chosen(TRIALS[2])
        if rest and kind:  # which may have moved zeros and ones
            stressed = leaves(self.inputs.draw(kind, self.seed))
            rest = {i: leaf for i, leaf in rest.items() if still(leaf, stressed[i][1])}
        names = [f"inputs{self.places[i]}" for i in sorted(rest)]
        names += [f"init_inputs[{i}]" for i in sorted(self.choices | self.floats - self.found.init.keys())]
        model, given = self.reference.code.names["Model"], len(self.inputs.given("plain", self.seed))
        names += never_given(partial(model.forward, None), given, "forward")
        names += never_given(model, len(self.reference.modules.init_arguments(self.seed)), "__init__")
        return [name[:LETTERS] for name in names[:NAMED]]


def repeats_another(number: int, drawn: dict[int, list[torch.Tensor]]) -> bool:
    """Whether an argument is equal to an earlier one in every draw. Integers have other ways."""
    mine = drawn[number]
    form = mine[0].shape, mine[0].dtype
    others = [draws for i, draws in drawn.items() if i < number and (draws[0].shape, draws[0].dtype) == form]
    known = mine[0].is_floating_point() or mine[0].dtype == torch.bool
    return known and any(identical(mine, draws) for draws in others)


def never_given(function: Callable, given: int, name: str) -> list[str]:
    """The arguments that have a default and that a task never gives, as one would write them.

    given: the number of arguments that it gives.
    """
    found = []
    for parameter in list(inspect.signature(function).parameters.values())[given:]:
        named = parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        if named and parameter.default is not parameter.empty:
            found.append(f"{name}({parameter.name})")
    return found


def sizes_of(values: Iterable[object]) -> frozenset[int]:
    """The sizes of all dimensions of the tensors among them."""
    return frozenset(n for t in values if isinstance(t, torch.Tensor) for n in t.shape)


def options(
    leaf: object, called: set[str], promised: frozenset[str], sizes: frozenset[int]
) -> tuple[str, ...]:
    """The ways to move an argument that is the same in all draws, the best first."""
    if isinstance(leaf, torch.Tensor):
        usual = ways(leaf)
        further = ways_of_constant(leaf, called, promised, sizes)
        if usual == ("shuffle_gaps",):
            further = tuple(f"shuffle_gaps{AND}{way}" for way in further)
        return (*unfolding(leaf), *further, *usual)
    if type(leaf) is int:
        return NUMBER, OTHER_WAY
    if type(leaf) is float:
        return FAR, NUMBER
    return (NUMBER,) if type(leaf) is bool else ()


def still(leaf: object, other: object) -> bool:
    """Whether an argument is the same in another draw, and there is something in it."""
    if isinstance(leaf, torch.Tensor):
        return leaf.numel() > 0 and identical([leaf], [other])
    return leaf == other


def layout(answer: Answer) -> list:
    """Shapes and dtypes of an answer."""
    return [(t.shape, t.dtype) for t in tensors(answer.own)]
