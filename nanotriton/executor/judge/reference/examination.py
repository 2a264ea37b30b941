"""What is found out about a task once, before its candidates come. All of it is written to its Findings.

Is it deterministic? Which stresses does it survive, and which training? Would an answer that computes nothing
pass?
"""

import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from nanotriton.executor.common import construct
from nanotriton.executor.judge.comparison.compare import Answer, repeats
from nanotriton.executor.judge.comparison.ties import indifferent
from nanotriton.executor.judge.inputs.kinds import (
    BEFORE,
    MOVED,
    TRIALS,
    fits,
    grown,
    late_leaves,
    ties_choices,
    with_same_buffers,
)
from nanotriton.executor.judge.reference.attributes import only_left
from nanotriton.executor.judge.reference.constants import Search, same_tensors
from nanotriton.executor.judge.reference.fakes import Fakes
from nanotriton.executor.judge.reference.modes import find_modes
from nanotriton.executor.judge.reference.origins import what_to_train
from nanotriton.executor.judge.task.asserts import Asserts
from nanotriton.executor.judge.task.computing import Computing, in_tf32
from nanotriton.executor.judge.task.module import RANDOM, excused
from nanotriton.executor.judge.task.watching import Watching
from nanotriton.plan import wire
from nanotriton.plan.aten import words
from nanotriton.plan.trees import describe, identical, leaves, mapped, tensors
from nanotriton.verdict import Fault

# names of torch's functions and operators that round, and of casts that do (computing.told_by_arguments)
ROUNDS = words("""
    round floor ceil trunc fix frac fmod remainder floor_divide rounding_mode truncating_cast
    fake_quantize_per_tensor_affine fake_quantize_per_channel_affine quantize_per_tensor quantize_per_channel
""")

log = logging.getLogger(__name__)


class Examination:
    """Of one task. reference: its Reference, which is loaded here."""

    def __init__(self, reference):
        self.reference, self.seed = reference, reference.seed
        self.findings, self.inputs = reference.findings, reference.inputs
        self.fakes = Fakes(reference.inputs.draw, reference.run if reference.stress else None)

    def run(self) -> None:
        """Raises Fault if the task is no fair question.

        One draw after another, so that a task of many gigabytes never has two of them in memory.
        """
        reference = self.reference
        self.load_and_repeat()
        if not self.findings.picky:
            reference.code.asserts = None
        if reference.stress:
            search = partial(Search, reference, *self.find_fixed())
            self.find_stress()
        self.findings.trains = self.find_training()
        if reference.stress:
            self.findings.leaves = self.find_left()
            self.findings.evaluates, self.findings.modal = find_modes(reference)
            self.find_moves(search())
        if self.fakes.passing:
            name = next(iter(self.fakes.passing))
            raise Fault("weak_task", f"the task can't tell right from wrong: {name} would pass")

    def load_and_repeat(self) -> None:
        reference, seed = self.reference, self.seed
        with reference.code.settings.learned():
            with excused("loading it"):
                self.load()
            with excused("on its own inputs"):
                answer = self.plain_answer(seed)
        self.inputs.last.forget()  # what the task sets was not known yet
        with excused("on its own inputs"):
            self.repeat(answer)
            self.fakes.look("plain", seed, answer, seed)
            del answer
            self.fakes.look("plain", seed + 1, self.plain_answer(seed + 1), seed + 1)

    def load(self) -> None:
        """Run the task's file, and find out what a recording needs to know of it. Raises TaskFault."""
        self.reference.code.load()
        self.findings.has_weights = bool(self.reference.modules.weights(self.seed))
        inputs = self.inputs.draw("plain", 0)
        self.findings.described = wire.describe(inputs)[0]
        dtypes = {t.dtype for t in tensors(inputs) if t.is_floating_point()}
        self.findings.dtype = next(iter(dtypes)) if len(dtypes) == 1 else None

    def plain_answer(self, seed: int) -> Answer:
        """The answer to a draw of the task's own. The draw must come out the same when it is drawn again."""
        reference = self.reference
        inputs = self.inputs.draw("plain", seed)
        if wire.describe(inputs)[0] != self.findings.described:
            raise Fault(
                "unsupported",
                "get_inputs draws shapes or numbers anew each time: one recording can't stand for all draws",
            )
        if not identical(self.inputs.given_anew("plain", seed), inputs):
            raise Fault("unsupported", "get_inputs draws from something that can't be seeded")
        self.findings.bytes = sum(t.nbytes for t in tensors(inputs))
        del inputs
        answer = reference.answer("plain", seed, seed)
        if not tensors(answer.own):
            raise Fault(
                "unsupported",
                f"forward must return tensors, in tuples, lists or dicts; it returned {describe(answer.own)}",
            )
        self.findings.bytes += sum(t.nbytes for t in tensors(answer.own))
        return answer

    def repeat(self, answer: Answer) -> None:
        """Run the reference again, built anew and with other seeds. Raises Fault if it gives another answer.

        This comes before any tolerance, which would be as wide as what the reference draws. What it computes
        is noted on the way.
        """
        reference, seed = self.reference, self.seed
        seen, noted = Computing(), Asserts(looks=False)
        reference.modules.forget()
        with noted:
            again = reference.run(self.inputs.draw("plain", seed), seed, seed + 1, "plain", seen)
        self.findings.picky = noted.met
        if seen.draws:  # from a generator of its own: in float64 that gives other numbers
            raise Fault("unsupported", RANDOM)
        self.note(seen, again)
        exact, _ = reference.exactly("plain", seed, seed, seed + 1)
        if not repeats(answer, again, exact):
            raise Fault(
                "unsupported",
                "the reference is not deterministic: run twice on the same inputs, it gives two answers",
            )

    def note(self, seen: Computing, answer: object) -> None:
        """Write down what the reference was seen to compute for an answer."""
        facts = self.findings.facts = seen.facts
        facts.rounds = bool(ROUNDS & seen.called)
        facts.contiguous = all(t.is_contiguous() for t in tensors(answer))
        facts.fresh = [seen.fresh(t) for t in tensors(answer)]
        self.findings.called = seen.called
        with self.reference.code.active_on("plain"):
            self.findings.in_tf32 = in_tf32(seen.called, self.reference.device)

    # ---- training, and what forward leaves ----

    def find_training(self) -> bool:
        """Find which weights may change, and return whether the reference survives it."""
        reference, seed = self.reference, self.seed
        anew = partial(reference.modules.construct, seed)
        trained = what_to_train(reference.modules.on_host(seed), reference.modules.on_host(seed + 1), anew)
        kind = self.findings.chosen(TRIALS[1])
        plainer = replace(trained, fades=False)
        ways = (trained, plainer, replace(plainer, flips=False))
        for way in (*ways, *(way.without_buffers() for way in ways)):
            weights = -seed if way.buffers else with_same_buffers(-seed)
            self.findings.trained = way
            if way and self.stands(kind, weights):
                self.findings.grows = self.stands("plain", grown(weights))
                return True
            reference.modules.forget()  # those of another training go by the same seed
        return False

    def find_left(self) -> frozenset[str]:
        """What forward leaves on the module for others to read."""
        reference, seed = self.reference, self.seed
        model = reference.modules.build(seed)

        def call() -> None:
            with reference.running("plain"):
                construct.seed_everything(seed)
                model(*self.inputs.draw("plain", seed))

        with contextlib.suppress(Exception):  # a second call is not what the task asks for
            return only_left(model, call)
        return frozenset()

    # ---- stress ----

    def find_stress(self) -> None:
        """Find which kinds of inputs the reference survives."""
        for kinds in TRIALS[1:]:
            self.choose(kinds)
        self.findings.before = self.choose(BEFORE)

    def find_moves(self, search: Search) -> None:
        """Move what never differs between two draws, in the ways that were found."""
        self.findings.moves, self.findings.unvaried = search.found, search.unvaried
        if self.findings.moves:
            kind = MOVED + self.findings.chosen(TRIALS[1])
            self.stands(kind, self.findings.moved_weights(self.seed))

    def find_fixed(self) -> tuple[dict[int, object], dict[int, list[torch.Tensor]], list[str]]:
        """The arguments that are the same in two draws, by number, both draws of each other tensor, and where
        each argument is. Notes which floats are `drawn`."""
        given, other = (self.inputs.given("plain", self.seed + i) for i in range(2))
        same = same_tensors(given, other)
        fixed = {}
        drawn = {}
        others = [leaf for _, leaf in leaves(other)]
        for i, (_, leaf) in enumerate(leaves(given)):
            if i in same or not isinstance(leaf, torch.Tensor):
                fixed[i] = leaf
                continue
            drawn[i] = [leaf, others[i]]
            if leaf.is_floating_point():
                self.findings.drawn.append(i)
        return fixed, drawn, [where for where, _ in leaves(given)]

    def choose(self, kinds: tuple[str, ...]) -> str | None:
        """The first of these kinds that the reference survives."""
        for kind in kinds:
            if not fits(kind, self.findings.called, len(self.findings.drawn)):
                continue
            if kind in self.findings.kinds or (self.may_tie(kind) and self.survives(kind)):
                return kind
        return None

    def may_tie(self, kind: str) -> bool:
        """Whether the answer does not depend on which of elements that tie the reference chooses, if any do.

        It is asked where nearly all tie: of -1, 0 and 1, and of zeros.
        """
        reference, seed = self.reference, self.seed
        if not ties_choices(kind, self.findings.called):
            return True

        def run(flatten: Callable[[torch.Tensor], torch.Tensor], seen: Watching) -> object:
            given = self.inputs.draw(kind, seed)
            inputs = mapped(given, lambda t: flatten(t) if t.is_floating_point() else t)
            return reference.run(inputs, seed, kind=kind, watched=seen)

        try:
            return all(indifferent(partial(run, flatten)) for flatten in (torch.sign, torch.zeros_like))
        except Exception as error:
            log.debug("%s: %s inputs: %s", reference.task.name, kind, error)
            return False

    def survives(self, kind: str) -> bool:
        """Whether a kind neither breaks the reference nor changes nothing.

        What it misses is distorted late, unless that breaks the reference.
        """
        reference, seed = self.reference, self.seed
        try:
            plain = self.inputs.given("plain", seed)
            untouched = same_tensors(self.inputs.given(kind, seed), plain)
        except Exception as error:
            log.debug("%s: %s inputs: %s", reference.task.name, kind, error)
            return False
        nothing = len(untouched) == len(tensors(plain))
        if late := late_leaves(kind, self.findings.drawn, untouched, nothing):
            self.findings.late[kind] = late
            if self.stands(kind, seed):
                return True
            del self.findings.late[kind]
        return not nothing and self.stands(kind, seed)

    def stands(self, kind: str, weights: int) -> bool:
        """Whether the reference answers a draw of this kind with finite numbers.

        If so, the fakes see the draw too.
        """
        reference, seed = self.reference, self.seed
        answer = reference.finite_answer(kind, seed, weights)
        if answer is None:
            return False
        self.findings.kinds |= {kind}
        self.fakes.look(kind, seed, answer, weights)
        return True
