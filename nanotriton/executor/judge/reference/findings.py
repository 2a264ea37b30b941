"""What is found out about a task once. Its examination writes it (examination.py), and all others read it."""

from dataclasses import dataclass, field, replace

import torch

from nanotriton.executor.common.training import Trained
from nanotriton.executor.judge.comparison.values import Precision
from nanotriton.executor.judge.inputs.kinds import MOVED, grows, trains_buffers, with_other_numbers
from nanotriton.executor.judge.inputs.moves import Moves
from nanotriton.plan.facts import Facts


@dataclass
class Findings:
    """Of one task."""

    # Of its inputs.
    described: list = field(default_factory=list)  # a draw's arguments, by wire.describe
    dtype: torch.dtype | None = None  # that all floats of a draw have, if they have one in common
    bytes: int = 0  # of one draw and the answer to it together
    drawn: list[int] = field(default_factory=list)  # numbers of its floats that differ between draws

    # Of stress.
    kinds: frozenset[str] = frozenset(["plain"])  # stress.KINDS that it survives
    # kind -> the arguments that it distorts once they are returned
    late: dict[str, tuple[int, ...]] = field(default_factory=dict)
    before: str = "plain"  # the kind of the first of several calls
    moves: Moves = field(default_factory=Moves)  # ways to move arguments that never differ
    unvaried: list[str] = field(default_factory=list)  # what no trial varies

    # Of what is computed.
    facts: Facts = field(default_factory=Facts)
    called: set[str] = field(default_factory=set)  # the names of what it calls
    picky: bool = False  # whether it calls operators that refuse some values
    in_tf32: frozenset[str] = frozenset()  # operators that multiply in TF32 on its device
    faint: list[str | int] | None = None  # weights and inputs of small effect; None: not asked yet

    # Of weights and state.
    has_weights: bool = False
    # buffers that construct.moved_constants moved; a candidate's of the same name are moved too
    moved_buffers: set[str] = field(default_factory=set)
    trained: Trained = field(default_factory=lambda: Trained(()))  # what training changes
    trains: bool = False  # whether candidates are judged on trained weights
    grows: bool = False  # whether on some large ones as well
    evaluates: bool = False  # whether candidates are called in evaluation mode too
    modal: bool = False  # whether its answers, or what they leave behind, are others there
    keeps_nothing: bool = False  # known to leave no state between calls (trials/reference_calls.py)
    hides_state: bool | None = None  # whether it leaves some where no name shows it; None: not asked yet
    leaves: frozenset[str] = frozenset()  # attributes that it leaves for others to read (attributes.py)

    @property
    def precision(self) -> Precision:
        """What its arithmetic earns a candidate, as far as it is known."""
        return Precision(self.facts.length, bool(self.in_tf32), "near_zero" in self.called)

    def chosen(self, kinds: tuple[str, ...]) -> str | None:
        """The first of these kinds that the reference has survived."""
        return next((kind for kind in kinds if kind in self.kinds), None)

    def may_refuse(self, kind: str) -> bool:
        """Whether the reference may refuse a draw of this kind although it has taken another one.

        It may if it asserts something, or if several arguments are moved that have to fit each other.
        """
        moved = kind.startswith(MOVED) and len(self.moves.ways) > 1
        return kind != "plain" and (self.picky or moved)

    def moved_weights(self, seed: int) -> int:
        """The seed of the weights of a trial whose arguments are moved."""
        if not self.moves.numbers:
            return seed
        return with_other_numbers(seed)

    def trained_with(self, seed: int) -> Trained:
        """What training changes of the weights of a seed."""
        trained = self.trained if trains_buffers(seed) else self.trained.without_buffers()
        return replace(trained, grows=grows(seed))
