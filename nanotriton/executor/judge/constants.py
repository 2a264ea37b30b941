"""What is the same in all draws of a task: find a way to move each of it that its reference survives."""

import torch

from nanotriton.executor.judge.compare import Answer
from nanotriton.executor.judge.kinds import MOVED, TRIALS
from nanotriton.executor.judge.moves import NUMBER, Moves, ways
from nanotriton.plan.trees import identical, leaves, tensors


def same_tensors(one: list, other: list) -> list[int]:
    """The numbers of the leaves that are tensors and the same in both."""
    found = []
    for i, ((_, x), (_, y)) in enumerate(zip(leaves(one), leaves(other), strict=True)):
        if isinstance(x, torch.Tensor) and identical([x], [y]):
            found.append(i)
    return found


class Search:
    """The search for a task's moves. `found` holds the best so far, `unvaried` names what is left at the end.

    reference: is asked for draws and answers, with its `moves` set to those that are tried.
    fixed: the arguments that are the same in all draws, by their number among the leaves. places: where each
    leaf is.
    """

    def __init__(self, reference, fixed: dict[int, object], places: list[str]):
        self.reference, self.fixed, self.places = reference, fixed, places
        self.seed = reference.seed
        init = [leaf for _, leaf in leaves(reference.init_arguments(self.seed))]
        self.init = frozenset(i for i, leaf in enumerate(init) if type(leaf) is float)
        self.options = {i: found for i, leaf in fixed.items() if (found := options(leaf))}
        self.found = Moves()
        if self.options or self.init:
            self.wanted = layout(reference.answer("plain", self.seed, self.seed))
            self.search()
        self.unvaried = self.left()

    def search(self) -> None:
        """First all at once, each in the way that fits best. If the reference does not survive
        that, one by one."""
        if self.survives(Moves({i: found[0] for i, found in self.options.items()}, self.init)):
            return
        for i, found in self.options.items():
            for way in found:
                if self.survives(Moves(self.found.ways | {i: way}, self.found.init)):
                    break
        for i in sorted(self.init):
            self.survives(Moves(self.found.ways, self.found.init | {i}))

    def survives(self, moves: Moves) -> bool:
        """Whether each argument changes, and the reference answers as before in shape. Then these
        are the best so far."""
        reference = self.reference
        reference.moves = moves
        try:
            if not self.all_change(moves):
                return False
            kind = MOVED + reference.chosen(TRIALS[1])
            answer = reference.finite_answer(kind, self.seed, reference.moved_weights(self.seed))
            if answer is None or layout(answer) != self.wanted:
                return False
            self.found = moves
            return True
        except Exception:  # get_inputs or the constructor, of what it did not expect
            return False
        finally:
            reference.moves = self.found
            reference.forget_weights()  # those of other moves go by the same seed

    def all_change(self, moves: Moves) -> bool:
        moved = leaves(moves.of_inputs(self.reference.draw("plain", self.seed), self.seed))
        for i, way in moves.ways.items():
            before, after = self.fixed[i], moved[i][1]
            if before == after if way == NUMBER else identical([before], [after]):
                return False
        return True

    def left(self) -> list[str]:
        """The arguments that are neither drawn nor moved, as one would write them."""
        rest = {i: leaf for i, leaf in self.fixed.items() if i not in self.found.ways and leaf is not None}
        kind = self.reference.chosen(TRIALS[2])
        if rest and kind:  # which may have moved zeros and ones
            stressed = leaves(self.reference.inputs(kind, self.seed))
            rest = {i: leaf for i, leaf in rest.items() if still(leaf, stressed[i][1])}
        names = [f"inputs{self.places[i]}" for i in sorted(rest)]
        return names + [f"init_inputs[{i}]" for i in sorted(self.init - self.found.init)]


def options(leaf: object) -> tuple[str, ...]:
    if isinstance(leaf, torch.Tensor):
        return ways(leaf)
    return (NUMBER,) if type(leaf) in (int, float) else ()


def still(leaf: object, other: object) -> bool:
    """Whether an argument is the same in another draw, and there is something in it."""
    if isinstance(leaf, torch.Tensor):
        return leaf.numel() > 0 and identical([leaf], [other])
    return leaf == other


def layout(answer: Answer) -> list:
    return [(t.shape, t.dtype) for t in tensors(answer.own)]
