"""Replay of one recording on the CPU, in the form in which the judge asks for it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from nanotriton.executor.common.construct import seed_from
from nanotriton.executor.judge.candidate.job import Job
from nanotriton.executor.judge.inputs.kinds import Trial
from nanotriton.executor.judge.reference.reference import Reference
from nanotriton.executor.judge.trials.between import Training
from nanotriton.executor.judge.trials.calls import Calls
from nanotriton.executor.judge.trials.reference_calls import ANOTHER
from nanotriton.executor.replay.backend import CpuBackend
from nanotriton.executor.replay.poison import drawn
from nanotriton.executor.replay.replayer import Replay, ReplayError, any_differ
from nanotriton.executor.replay.tuning import tuned_tensors
from nanotriton.executor.replay.unread import Unread
from nanotriton.plan.aten import tensor_ids
from nanotriton.plan.plan import DTYPES, Choice, Plan, Tensor, Weight
from nanotriton.plan.trees import tensors
from nanotriton.verdict import Fault, Unrecordable, out_of_memory

KEPT_BYTES = 16 << 20  # of a first answer, to compare with later


@dataclass(frozen=True)
class EarlierOutput:
    """An output of an earlier call, in memory that later calls have too and may overwrite.

    call, output: their numbers. value: a copy. tensor: its layout. storage: the number of that memory in the
    plan of the last call.
    """

    call: int
    output: int
    value: torch.Tensor
    tensor: Tensor
    storage: int


@dataclass
class Begun:
    """The first of several calls.

    calls: what it gave. earlier: its outputs. left: the memory that the second call takes over, by the number
    of its storage there.
    """

    calls: Calls
    earlier: list[EarlierOutput]
    left: dict[int, torch.Tensor]

    def again(self) -> "Begun":
        """A copy, for other calls to follow."""
        made = self.calls
        calls = Calls(list(made.answers), list(made.written), plans=list(made.plans))
        return Begun(calls, list(self.earlier), {i: t.clone() for i, t in self.left.items()})


class Runner:
    """Replays what one child recorded: the plan of a first call of forward, and those of further calls.

    recorded: the seed of the weights that the child had. names: of the candidate's parameters -> the
    reference's, where these are alike. another: the seed of the weights of the other module that it has
    called, if it has.
    """

    def __init__(
        self,
        worker,
        job: Job,
        reference: Reference,
        plans: list[Plan],
        recorded: int,
        names: dict[str, str],
        another: int | None = None,
    ):
        self.worker, self.job, self.reference, self.another = worker, job, reference, another
        self.plans = plans
        self.plan = plans[0]
        self.recorded = recorded
        self.names = names
        plan = self.plan
        self.launches = len(plan.launches())
        self.weights: dict[int, dict[str, torch.Tensor]] = {}
        self.asks_processors = False  # whether it has asked how many multiprocessors the card has
        self.unread: Unread | None = None  # what the first call on a CPU never looked at
        self.first_outputs: object | None = None  # of the first call, if they were kept
        self.begun: Begun | None = None  # the first of several calls, if it was kept
        self.replay = self.make_replay(plan)

    def make_replay(self, plan: Plan) -> Replay:
        backend = CpuBackend(notes=plan is self.plan, seed=self.seed_of_order() + (plan is self.plan))
        return Replay(plan, backend=backend, known=self.reference.modules.large_weights(self.recorded))

    def __call__(
        self, inputs: list, seed: int, skip: int | range | None = None
    ) -> tuple[object, dict[int, torch.Tensor]]:
        """One call, as `judge_trial` wants it: (outputs, {input tensor's number: what it was changed to}).

        seed: of the weights. skip: leave out that launch, or those. Raises Fault.
        """
        with self.running():
            outputs = self.replay.run(inputs, self.by_name(seed), skip_launch=skip)
            ids = tensor_ids(self.plan.inputs)
            changed = {i: self.replay.memory.tensor(ids[i]) for i in self.replay.modified_inputs}
            self.note_first(outputs)
        return outputs, changed

    def left(self, inputs: list, seed: int, tuning: bool) -> list:
        """What a first call leaves: its answer, and each input and weight that an autotuned kernel writes to.

        tuning: the autotuner runs the kernels some times before. Raises Fault.
        """
        with self.running():
            self.replay.load(inputs, self.by_name(seed))
            self.replay.execute_tuning() if tuning else self.replay.execute()
            outputs = self.replay.outputs()
            return [outputs, [self.replay.memory.tensor(i).clone() for i in tuned_tensors(self.plan)]]

    def note_first(self, outputs: object) -> None:
        """After the first call: keep what it looked at, and its answer if that is small, and stop noting."""
        backend = self.replay.backend
        if not backend.notes:
            return
        self.unread = Unread(self.plan, self.replay.chosen, backend)
        backend.notes = False
        if sum(t.nbytes for t in tensors(outputs)) <= KEPT_BYTES:
            self.first_outputs = outputs

    def whole(self, trial: Trial, inputs: list) -> object:
        """The answer to a trial, with all launches. trial: the first, with which it was called first."""
        if self.first_outputs is not None:
            return self.first_outputs
        return self(inputs, trial.weights)[0]

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

    def calls(self, draws: list[Callable[[], list]], training: Training | None, least: int = 2) -> Calls:
        """Call again and again, each call on what those before left (calls.Caller). Raises Fault.

        draws: the same each time, so that the first call is made only once where it may be kept.
        """
        begun = self.begun.again() if self.begun is not None else self.begin_calls(draws[0])
        found, earlier, left = begun.calls, begun.earlier, begun.left
        for number, draw in enumerate(draws[1:], start=1):
            replay, inputs = self.replay_of(number), draw()
            with self.in_chain(number, replay):
                if number == 1 and training is not None:
                    self.train(left, training)
                found.answers.append(replay.run(inputs, self.weights_of(number), carried=left))
                del inputs
                self.note_call(replay, found, earlier)
                if number + 1 == len(draws) or not self.goes_on(number, least, replay, left):
                    found.state = {
                        name: replay.memory.tensor(i).clone() for name, i in replay.plan.state.items()
                    }
                    break
                left = replay.left(self.plan_of(number + 1))
        return found

    def begin_calls(self, draw: Callable[[], list]) -> Begun:
        """Make the first of several calls."""
        begun = Begun(Calls(), [], {})
        replay = self.replay_of(0)
        inputs = draw()
        with self.in_chain(0, replay):
            begun.calls.answers.append(replay.run(inputs, self.weights_of(0)))
            del inputs
            self.note_call(replay, begun.calls, begun.earlier)
            begun.left = replay.left(self.plan_of(1))
        if self.may_keep(begun):
            self.begun = begun.again()
        return begun

    def settle_first_call(self) -> None:
        """The answer of the first of several calls is right: it need not be compared again."""
        if self.begun is not None:
            self.begun.calls.answers[0] = None

    def may_keep(self, begun: Begun) -> bool:
        """Whether a first call may stay, for others to follow it once more with other weights."""
        return sum(t.nbytes for t in (*begun.left.values(), *(k.value for k in begun.earlier))) <= KEPT_BYTES

    @contextmanager
    def in_chain(self, number: int, replay: Replay) -> Iterator[None]:
        """One of several calls is made inside, in memory of which each element holds a number."""
        poisons = drawn(self.seed_of_order())
        with self.running():
            try:
                replay.backend.number = poisons[number % len(poisons)]
                yield
            finally:
                replay.backend.number = None
                replay.forget()

    def plan_of(self, number: int) -> Plan:
        """The plan of a call. A later call than the last that was recorded repeats that one."""
        if number < len(self.plans):
            return self.plans[number]
        last = self.plans[-1]
        return replace(last, carried=[(here, here) for here, _ in last.carried])

    def replay_of(self, number: int) -> Replay:
        if number == 0:
            return self.replay
        plan = self.plan_of(number)
        replay = self.make_replay(plan)
        chosen = self.replay.chosen.items()
        replay.chosen = {key: n for key, n in chosen if n < fewest_alternatives(plan, key)}
        return replay

    def goes_on(self, number: int, least: int, replay: Replay, left: dict[int, torch.Tensor]) -> bool:
        """Whether another call may give what this one did not tell: it does other things, or is the third and
        starts from other memory. left: what this call has started from. least: calls that are made anyway."""
        if number + 1 < max(len(self.plans), least):
            return True
        return number == 1 and replay.changed_carried(left)

    def weights_of(self, number: int) -> dict[str, torch.Tensor]:
        """The weights that a call is given by name."""
        if self.another is None or number != ANOTHER:
            return self.by_name(self.recorded)
        return by_twins(self.plan_of(number), self.reference.modules.weights(self.another))

    def note_call(self, replay: Replay, found: Calls, earlier: list[EarlierOutput]) -> None:
        """Add a call, which was just made, to what was found. earlier: the outputs of those before it."""
        plan, number = replay.plan, len(found.answers) - 1
        ids = tensor_ids(plan.inputs)
        found.plans.append(plan)
        found.written.append({i: replay.memory.tensor(ids[i]).clone() for i in replay.modified_inputs})
        here = {source: index for index, source in plan.carried}
        earlier[:] = [replace(e, storage=here[e.storage]) for e in earlier if e.storage in here]
        for e in earlier:
            if any_differ([(replay.memory.view(e.storage, e.tensor), e.value)]):
                found.overwritten.add((e.call, e.output))
        for output, (index, value) in enumerate(
            zip(plan.output_tensors(), tensors(found.answers[-1]), strict=True)
        ):
            tensor = plan.tensors[index]
            earlier.append(EarlierOutput(number, output, value, tensor, tensor.storage))

    def train(self, left: dict[int, torch.Tensor], training: Training) -> None:
        """Train the weights in the memory that the second call takes over, save those that the first has
        changed."""
        known = self.by_name(self.recorded)
        for weight in self.plan.weights:
            names = [name if known else self.names.get(name) for name in weight.names]
            name = next((name for name in names if name in training.after), None)
            tensor = self.plan.tensors[weight.tensor]
            if name is None or tensor.storage not in left:
                continue
            memory, before = left[tensor.storage], training.before[name]
            if (before.shape, before.dtype) != (tensor.shape, DTYPES[tensor.dtype]):
                continue
            empty = torch.empty(0, dtype=before.dtype, device=memory.device)
            there = empty.set_(memory.untyped_storage(), tensor.offset, tensor.shape, tensor.stride)
            if not any_differ([(there, before.to(memory.device))]):
                there.copy_(training.after[name])

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
            state = self.reference.modules.weights(seed) if self.plan.weights else {}
            self.weights[seed] = by_twins(self.plan, state)
        return self.weights[seed]

    def has(self, name: str) -> bool:
        """Whether the candidate has a weight of the reference's name, shape and dtype."""
        state = {name: self.reference.modules.weights(self.recorded)[name]}
        return any(twin(self.plan, weight, state) is not None for weight in self.plan.weights)


def by_twins(plan: Plan, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The state, if every weight of the plan has a twin in it; else none of it."""
    twins = [twin(plan, weight, state) for weight in plan.weights]
    return state if None not in twins and not pulled_apart(twins) else {}


def twin(plan: Plan, weight: Weight, state: dict[str, torch.Tensor]) -> torch.Tensor | None:
    """The tensor of a state that has the name, shape and dtype of a plan's weight."""
    found = next((state[name] for name in weight.names if name in state), None)
    own = plan.tensors[weight.tensor]
    alike = found is not None and found.shape == own.shape and found.dtype == DTYPES[own.dtype]
    return found if alike else None


def pulled_apart(twins: list[torch.Tensor]) -> bool:
    """Whether two weights have the same tensor as their twin: the reference ties them, and they are two,
    which training would pull apart."""
    whole = {(t.data_ptr(), t.shape, t.stride()) for t in twins if t.numel()}
    return len(whole) < sum(t.numel() > 0 for t in twins)


def fewest_alternatives(plan: Plan, key: int) -> int:
    """The number of alternatives that every choice of this key has; 0 if there is no such choice."""
    return min((len(s.alternatives) for s in plan.steps if isinstance(s, Choice) and s.key == key), default=0)
