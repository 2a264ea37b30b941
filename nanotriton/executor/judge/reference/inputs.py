"""Draws of a task's inputs: as it draws them, under stress, and with what never differs moved."""

import contextlib
from collections.abc import Iterator
from functools import partial

import torch

from nanotriton.executor.common import construct
from nanotriton.executor.common.construct import seed_from
from nanotriton.executor.judge.inputs.draws import distorted_late, stressed
from nanotriton.executor.judge.inputs.kinds import MOVED
from nanotriton.executor.judge.inputs.literals import literals
from nanotriton.executor.judge.inputs.moves import with_leaves
from nanotriton.executor.judge.inputs.stress import kind_of
from nanotriton.executor.judge.reference.drawn import Drawn
from nanotriton.executor.judge.reference.findings import Findings
from nanotriton.executor.judge.reference.kept import Kept
from nanotriton.executor.judge.task.code import Code
from nanotriton.plan.trees import leaves, mapped


class Inputs:
    """Draws inputs of one task.

    code: of the task. findings: say what is distorted late, and what is moved. kept: of the draw that
    candidates share.
    """

    def __init__(self, code: Code, findings: Findings, kept: Kept):
        self.code, self.findings, self.kept = code, findings, kept
        self.literals = literals(code.task.source)
        self.last = Drawn()
        self.answering = False  # an answer is computed: nobody else writes to what is drawn

    def draw(self, kind: str, seed: int) -> list:
        """A draw of one of stress.KINDS; if MOVED comes before it, with what never differs moved."""
        if self.kept.vault is None:  # a CPU has the last draws, and copies them
            return self.draw_anew(kind, seed)
        return self.kept.copy_of_draw((kind, seed), partial(self.draw_anew, kind, seed))

    def draw_anew(self, kind: str, seed: int) -> list:
        base = kind.removeprefix(MOVED)
        given = self.given(base, seed)
        if late := self.findings.late.get(base):
            values, changed = [leaf for _, leaf in leaves(given)], {}
            generator = torch.Generator().manual_seed(seed_from("late", seed))
            faint: dict[int, set[int]] = {}
            for number, i in enumerate(late):
                how = kind_of(base, number)
                changed[i] = distorted_late(values[i], how, generator, self.literals, faint)
            given = with_leaves(given, changed)
        return self.findings.moves.of_inputs(given, seed) if kind.startswith(MOVED) else given

    def given(self, kind: str, seed: int) -> list:
        """What get_inputs gives under this kind of stress.

        On a GPU nothing is kept that a candidate's kernel could write to.
        """
        if self.code.device.type != "cpu" and not self.answering:
            return self.given_anew(kind, seed)
        given = self.last.copy_of((kind, seed))
        if given is None:
            given = self.given_anew(kind, seed)
            self.last.keep((kind, seed), given)
        return given

    def given_anew(self, kind: str, seed: int) -> list:
        code = self.code
        with code.active_on(kind), code.default_device(), stressed(kind, seed, self.literals):
            construct.seed_everything(seed)
            given = code.arguments("get_inputs")
            return given if code.device.type == "cpu" else mapped(given, lambda t: t.to(code.device))

    @contextlib.contextmanager
    def for_an_answer(self) -> Iterator[None]:
        """An answer is computed inside: what it draws twice may be a copy on a GPU too."""
        self.answering = True
        try:
            yield
        finally:
            self.answering = False
            if self.code.device.type != "cpu":
                self.last.forget()
