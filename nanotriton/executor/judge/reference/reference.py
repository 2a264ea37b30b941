"""A task's own `Model`, which is trusted code: it is loaded into the judge's process and run there.

It runs in the task's dtype and in float64. `Code` runs the task's own code, `Inputs` draws for it, `Modules`
builds it with a trial's weights, and `Findings` says what is known of it: which stresses it survives, whether
a constant would pass. These are found once and cached by content. Answers never are.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator
from functools import partial

import torch

from nanotriton.executor.common import construct
from nanotriton.executor.common.construct import seed_from
from nanotriton.executor.judge.comparison.compare import Answer, fill_scales, is_fair
from nanotriton.executor.judge.comparison.nudging import Nudge
from nanotriton.executor.judge.inputs.kinds import MOVED, TRIALS, Trial, has_other_numbers
from nanotriton.executor.judge.inputs.literals import COMPARING, LIMITING, OwnNumbers
from nanotriton.executor.judge.reference.examination import Examination
from nanotriton.executor.judge.reference.findings import Findings
from nanotriton.executor.judge.reference.inputs import Inputs
from nanotriton.executor.judge.reference.kept import Kept, Vault
from nanotriton.executor.judge.reference.modules import Modules
from nanotriton.executor.judge.reference.twin import in_float64
from nanotriton.executor.judge.task.code import Code
from nanotriton.executor.judge.task.module import RANDOM, excused
from nanotriton.executor.sandbox.clock import own_time
from nanotriton.plan import wire
from nanotriton.tasks.task import Task
from nanotriton.verdict import Fault, TaskFault

log = logging.getLogger(__name__)


class Reference:
    """A task's module, loaded and examined. Raises Fault if the task is no fair question.

    pause: called between two computations of the reference.
    stress: whether it is also asked what the task does not draw itself.
    vault: where what candidates share is kept, on a GPU.
    """

    def __init__(
        self,
        task: Task,
        device: str = "cpu",
        pause: Callable[[], None] = lambda: None,
        stress: bool = True,
        vault: Vault | None = None,
    ):
        self.task, self.device = task, torch.device(device)
        self.pause = pause
        self.stress = stress
        self.seed = seed_from("calibrate", task.key)  # of the draws and weights that it is examined with
        self.kept = Kept(vault)
        self.findings = Findings()
        self.code = Code(task, self.device)
        self.inputs = Inputs(self.code, self.findings, self.kept)
        self.modules = Modules(self.code, self.findings, self.inputs)
        Examination(self).run()
        self.inputs.last.forget()  # no candidate will ask for these
        self.code.examined = True

    def forget(self) -> None:
        """Give back the memory that is not needed to judge a candidate, but to do so quickly."""
        self.modules.forget()
        self.inputs.last.forget()

    def described(self, weights: int) -> tuple[list, list]:
        """What a recording with these weights has to know of forward's and the constructor's arguments."""
        inputs = self.findings.described
        if has_other_numbers(weights):
            inputs = wire.describe(self.inputs.draw(MOVED + "plain", 0))[0]
        return inputs, wire.describe(self.modules.init_arguments(weights))[0]

    # ---- its answers ----

    @contextlib.contextmanager
    def running(self, kind: str) -> Iterator[None]:
        """The task's own code runs inside, on inputs of this kind, for calls of forward in float64."""
        code = self.code
        with code.active_on(kind), torch.no_grad(), code.default_device(), self.own_numbers():
            yield

    def own_numbers(self):
        """What gives the reference in float64 the numbers that its own dtype has."""
        dtype = self.findings.dtype
        needed = dtype is not None and self.findings.called & (COMPARING | {LIMITING})
        return OwnNumbers(dtype) if needed else contextlib.nullcontext()

    def run(
        self,
        inputs: list,
        weights: int,
        noise: int | None = None,
        kind: str = "other",
        watched=contextlib.nullcontext(),
    ) -> object:
        """The reference's answer in its own dtype. It may write to the inputs, which are of this kind.

        noise: the seed if forward draws, instead of that of the weights. While the task is examined, a draw
        is a Fault.
        """
        model, noise = self.modules.build(weights), weights if noise is None else noise
        if not self.code.examined:
            construct.seed_everything(noise)
            before = construct.whereabouts()
        with self.code.active_on(kind), torch.no_grad(), self.code.default_device(), watched:
            construct.seed_everything(noise)
            answer = model(*inputs)
        if not self.code.examined and construct.whereabouts() != before:
            raise Fault("unsupported", RANDOM)
        return answer

    def exactly(
        self,
        kind: str,
        seed: int,
        weights: int,
        noise: int | None = None,
        nudge: Nudge | None = None,
        change: Callable[[torch.nn.Module, list], None] | None = None,
    ) -> tuple[object, list | None]:
        """(the answer to a draw in float64, the inputs afterwards), or (None, None) where there is none.

        nudge: of inputs, in float64. change: writes to the module and to its inputs first, in the task's
        dtype.
        """
        made: dict = {}

        def build() -> torch.nn.Module:
            made["model"] = self.modules.build(weights)
            return made["model"]

        def draw() -> list:
            inputs = self.inputs.draw(kind, seed)
            if change is not None:
                change(made["model"], inputs)
            return inputs

        running = partial(self.running, "nudged" if nudge or change else kind)
        twin = in_float64(build, [draw], weights if noise is None else noise, running, nudge)
        return (None, None) if twin is None else (twin.answers[-1], twin.inputs[-1])

    def answer(self, kind: str, seed: int, weights: int, keep_inputs: bool = False) -> Answer:
        """The reference's answer to a draw, in its own dtype and in float64.

        Inputs are drawn for it anew: nobody else has had a chance to write to them.
        `keep_inputs`: as they are afterwards.
        """
        key = "answer", kind, seed, weights, keep_inputs
        return self.kept.once(key, partial(self.answer_anew, kind, seed, weights, keep_inputs))

    def answer_anew(self, kind: str, seed: int, weights: int, keep_inputs: bool) -> Answer:
        self.pause()
        begun = own_time()
        with self.inputs.for_an_answer():
            inputs = self.inputs.draw(kind, seed)
            own = self.run(inputs, weights, kind=kind)
            kept = inputs if keep_inputs else None
            del inputs
            exact, exact_inputs = self.exactly(kind, seed, weights)
            self.code.settle()  # the GPU is done: launches alone take no time
        left, precision = exact_inputs if keep_inputs else None, self.findings.precision
        seconds = own_time() - begun
        answer = Answer(own, exact, left, kept, precision, seconds, usual_inputs=kind == "plain")
        if self.kept.active:
            fill_scales(answer)
        return answer

    def finite_answer(self, kind: str, seed: int, weights: int) -> Answer | None:
        """The answer to a draw, if the reference survives it and its dtype does not break down."""
        try:
            answer = self.answer(kind, seed, weights)
        except Exception as error:
            log.debug("%s: %s inputs: %s", self.task.name, kind, error)
            return None
        return answer if is_fair(answer, infinite=kind.startswith(MOVED)) else None

    def trials(self, secret: bytes, drawer: str) -> list[Trial]:
        """The trials of a candidate: the same for the same secret, task and drawer.

        drawer: the candidate's source, or the draw that it shares with others.

        A draw that the reference refuses is no trial: else the candidate would be blamed for it.
        """
        own, others = (seed_from(secret, self.task.key, drawer, "weights", i) for i in range(2))
        weights = [own, -others if self.findings.trains else others]  # below 0: trained
        found = []
        for options in TRIALS:
            if kind := self.findings.chosen(options):
                number = len(found)
                inputs = seed_from(secret, self.task.key, drawer, "inputs", number)
                again = kind == "plain" and number > 0  # where no stress is survived, or fits
                in_turns = weights[1 if again else number % 2] if self.findings.has_weights else own
                found.append(Trial(kind, inputs, in_turns))
        if self.findings.moves:
            scaled = found[1]
            found[1] = Trial(MOVED + scaled.kind, scaled.inputs, self.findings.moved_weights(scaled.weights))
        return [trial for trial in found if not self.findings.may_refuse(trial.kind) or self.takes(trial)]

    def takes(self, trial: Trial) -> bool:
        """Whether the reference takes this draw: it has taken another one of this kind."""
        return self.kept.once(("takes", trial), partial(self.takes_anew, trial))

    def takes_anew(self, trial: Trial) -> bool:
        try:
            with excused("under stress"):
                self.run(self.inputs.draw(trial.kind, trial.inputs), trial.weights, kind=trial.kind)
        except TaskFault as fault:
            if fault.status != "unsupported":
                raise
            return False
        return True
