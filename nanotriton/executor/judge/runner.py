"""Replay of one recording on the CPU, in the form in which the judge asks for it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from nanotriton.executor.common.construct import seed_from
from nanotriton.executor.judge.job import Job
from nanotriton.executor.judge.kinds import Trial
from nanotriton.executor.judge.reference import Reference
from nanotriton.executor.replay.backend import CpuBackend
from nanotriton.executor.replay.replayer import Replay, ReplayError
from nanotriton.executor.replay.unread import Unread
from nanotriton.plan.aten import tensor_ids
from nanotriton.plan.plan import DTYPES, Choice, Plan, Weight
from nanotriton.verdict import Fault, Unrecordable, out_of_memory


class Runner:
    """Replays what one child recorded: the plan of a first call of forward, and that of a second.

    recorded: the seed of the weights that the child had.
    """

    def __init__(self, worker, job: Job, reference: Reference, plan: Plan, second: Plan, recorded: int):
        self.worker, self.job, self.reference = worker, job, reference
        self.plan, self.second, self.recorded = plan, second, recorded
        self.launches = len(plan.launches())
        self.weights: dict[int, dict[str, torch.Tensor]] = {}
        self.unread: Unread | None = None  # what the first call on a CPU never looked at
        self.replay = self.make_replay(plan)

    def make_replay(self, plan: Plan) -> Replay:
        backend = CpuBackend(notes=plan is self.plan, seed=self.seed_of_order() + (plan is self.plan))
        return Replay(plan, backend=backend, known=self.reference.large_weights(self.recorded))

    def __call__(
        self, inputs: list, seed: int, skip: int | range | None = None
    ) -> tuple[object, dict[int, torch.Tensor]]:
        """One call, as `judge_trial` wants it: (outputs, {input tensor's number: what it was changed to}).

        seed: of the weights. skip: leave out that launch, or those. Raises Fault.
        """
        with self.running():
            outputs = self.replay.run(inputs, self.by_name(seed), skip_launch=skip)
            ids = tensor_ids(self.plan.inputs)
            changed = {i: self.replay.tensor(ids[i]) for i in self.replay.modified_inputs}
            self.note_unread()
        return outputs, changed

    def note_unread(self) -> None:
        """After the first call: keep what it looked at, and stop noting."""
        backend = self.replay.backend
        if backend.notes:
            self.unread = Unread(self.plan, self.replay.chosen, backend)
            backend.notes = False

    @contextmanager
    def chosen_for_all(self, choices: dict[int, int]) -> Iterator[None]:
        """Run with these alternatives, by the choices' keys."""
        before, self.replay.chosen = self.replay.chosen, choices
        try:
            yield
        finally:
            self.replay.chosen = before

    def seed_of_order(self) -> int:
        """Of the order in which the evaluator runs programs: no candidate can know it."""
        return seed_from(self.worker.secret, self.job.source, "order", self.recorded)

    def ask_evaluator(self, trial: Trial) -> None:
        """On a CPU it has seen every run."""

    def find_unread(self, trial: Trial, worth: bool) -> Unread | None:
        """What a call never looks at. None: that is not known. worth: it may cost another run."""
        return self.unread

    def twice(
        self, inputs: list, more: list, seed: int
    ) -> tuple[object, object, dict[str, torch.Tensor], dict[int, torch.Tensor]]:
        """Two calls, the second on what the first left.

        Returns (answer of the first, answer of the second, {name: parameter or buffer afterwards} of those
        that the candidate may have written to, {input tensor's number: what the second call changed it to}).
        more: the inputs of the second call. Raises Fault.
        """
        weights = self.by_name(seed)
        replay = self.make_replay(self.second)
        replay.chosen = {
            key: n for key, n in self.replay.chosen.items() if n < fewest_alternatives(self.second, key)
        }
        with self.running():
            before = self.replay.run(inputs, weights)
            left = self.replay.left(self.second)
            try:
                found = replay.run(more, weights, carried=left)
                state = {name: replay.tensor(i).clone() for name, i in self.second.state.items()}
                ids = tensor_ids(self.second.inputs)
                changed = {i: replay.tensor(ids[i]).clone() for i in replay.modified_inputs}
            finally:
                replay.forget()
        return before, found, state, changed

    @contextmanager
    def running(self) -> Iterator[None]:
        """A stage in which the candidate's kernels run. What goes wrong is a Fault."""
        with self.worker.stage("run", self.job.timeout):
            try:
                yield
            except ReplayError as error:
                if error.fatal:
                    self.worker.gpu.lost = True
                kind = Unrecordable if error.status == "unsupported" else Fault
                raise kind(error.status, str(error)) from None
            except ValueError as error:
                raise Fault("crashed", f"plan: {error}") from None
            except (MemoryError, RuntimeError) as error:
                if not out_of_memory(error):
                    raise
                raise Fault("memory_limit", f"it used more than {self.job.memory >> 20} MiB") from None
            finally:
                self.replay.forget()

    def by_name(self, seed: int) -> dict[str, torch.Tensor]:
        """The reference's weights for this seed, if every weight of the plan has a twin there.

        Else there are none, and the order in which the constructor drew them decides.
        """
        if seed not in self.weights:
            state = self.reference.weights(seed) if self.plan.weights else {}
            twins = [self.twin(weight, state) for weight in self.plan.weights]
            self.weights[seed] = state if None not in twins and not pulled_apart(twins) else {}
        return self.weights[seed]

    def twin(self, weight: Weight, state: dict[str, torch.Tensor]) -> torch.Tensor | None:
        twin = next((state[name] for name in weight.names if name in state), None)
        own = self.plan.tensors[weight.tensor]
        alike = twin is not None and twin.shape == own.shape and twin.dtype == DTYPES[own.dtype]
        return twin if alike else None


def pulled_apart(twins: list[torch.Tensor]) -> bool:
    """Whether two weights have the same tensor as their twin: the reference ties them, and they are two,
    which training would pull apart."""
    whole = {(t.data_ptr(), t.shape, t.stride()) for t in twins if t.numel()}
    return len(whole) < sum(t.numel() > 0 for t in twins)


def fewest_alternatives(plan: Plan, key: int) -> int:
    """The number of alternatives that every choice of this key has; 0 if there is no such choice."""
    return min((len(s.alternatives) for s in plan.steps if isinstance(s, Choice) and s.key == key), default=0)
