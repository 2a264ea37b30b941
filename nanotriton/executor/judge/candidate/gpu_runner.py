"""Replay of one plan on the GPU. Compile servers compile its kernels, and the arena holds its buffers."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import asdict

from nanotriton.executor.gpu.arena import CudaBackend
from nanotriton.executor.gpu.compiler import Binary
from nanotriton.executor.gpu.halves import half, may_meet
from nanotriton.executor.judge.candidate.job import Job, Spawn, check_ended
from nanotriton.executor.judge.candidate.runner import Begun, Runner
from nanotriton.executor.judge.inputs.kinds import Trial
from nanotriton.executor.judge.reference.reference import Reference
from nanotriton.executor.replay.asking import QUICK, ask, worth_asking
from nanotriton.executor.replay.backend import CpuBackend
from nanotriton.executor.replay.replayer import Replay, ReplayError
from nanotriton.executor.replay.unread import Unread
from nanotriton.executor.sandbox.protocol import Ended
from nanotriton.executor.sandbox.sandbox import Limits
from nanotriton.plan.aten import PlanError
from nanotriton.plan.plan import Choice, Kernel, Launch, Plan
from nanotriton.plan.trees import mapped, tensors
from nanotriton.verdict import Fault, out_of_memory

# Elements that the evaluator may compute in a launch to see what is never read: half a second, and only where
# an answer stands for many numbers
LOOKING = 10 * QUICK
# Launches of kernels whose programs may meet, in three runs: whole, then in halves, in either order
ORDERS = (None, (1, 0), (0, 1))


class GpuRunner(Runner):
    """As `Runner`, on the GPU. All plans are replayed in one arena, one after the other."""

    def __init__(
        self,
        worker,
        job: Job,
        reference: Reference,
        plans: list[Plan],
        recorded: int,
        names: dict[str, str],
        another: int | None,
        binaries: dict[str, Binary],
    ):
        self.backend = CudaBackend(binaries, worker.gpu.budget)
        self.runs = 0
        super().__init__(worker, job, reference, plans, recorded, names, another)

    def make_replay(self, plan: Plan) -> Replay:
        return Replay(plan, backend=self.backend, known=self.reference.modules.large_weights(self.recorded))

    def note_first(self, outputs: object) -> None:
        """A GPU does not say what it loads, and an answer that stayed there could be written to."""

    def may_keep(self, begun: Begun) -> bool:
        """A kernel could write to it."""
        return False

    def find_unread(self, trial: Trial, worth: bool) -> Unread | None:
        """The evaluator says it, where that is quick."""
        if not worth:
            return None
        inputs = self.reference.inputs.draw(trial.kind, trial.inputs)
        if sum(t.numel() for t in tensors(inputs)) > LOOKING:  # each is looked at once at least
            return None
        backend = CpuBackend(notes=True, budget=LOOKING)
        known = self.reference.modules.large_weights(self.recorded)
        replay = Replay(self.plan, backend=backend, known=known)
        replay.chosen = self.replay.chosen
        try:
            replay.load(mapped(inputs, lambda t: t.cpu()), self.by_name(trial.weights))
            replay.execute()
        except (ReplayError, ValueError, RuntimeError, MemoryError):
            return None  # the evaluator can't run it, or not quickly
        return Unread(self.plan, replay.chosen, backend)

    def ask_evaluator(self, trial: Trial) -> None:
        """Raise Fault for a race, or a false promise to the compiler, that the evaluator sees."""
        if not worth_asking(self.plan, self.replay.chosen):
            return
        inputs = self.reference.inputs.draw(trial.kind, trial.inputs)
        backend = CpuBackend(budget=QUICK, seed=self.seed_of_order())
        try:
            ask(self.replay, mapped(inputs, lambda t: t.cpu()), self.by_name(trial.weights), backend)
        except ReplayError as error:
            raise Fault(error.status, str(error)) from None

    @contextmanager
    def running(self) -> Iterator[None]:
        gpu = self.worker.gpu
        self.reference.code.settle()  # else it would be the candidate that has lost the context
        # An ablation can lose it: without the launch that was left out, a later one left its buffers.
        if gpu.lost:
            raise Fault("illegal_memory", "the GPU's context was lost in an earlier run")
        gpu.own(self)
        self.backend.order = ORDERS[self.runs % len(ORDERS)]
        self.runs += 1
        try:
            with super().running():
                yield
        finally:
            self.backend.order = None  # timed runs are whole
        if gpu.crowded(self.job, self.reference):
            gpu.own(None)  # the arena makes room for the reference


def make_runner(
    job: Job,
    worker,
    reference: Reference,
    plans: list[Plan],
    recorded: int,
    names: dict[str, str],
    another: int | None = None,
) -> Generator[Spawn, Ended, GpuRunner]:
    """Compile all plans' kernels, tune them, and drop configurations that don't compile.

    Raises Fault if a kernel without an alternative does not compile.
    """
    binaries: dict[str, Binary] = {}  # by a kernel's key, as all of these
    refused: dict[str, Fault] = {}
    for plan in plans:
        yield from compile_kernels(job, worker, plan, binaries, refused)
    runner = GpuRunner(worker, job, reference, plans, recorded, names, another, binaries)
    if job.time and any(isinstance(step, Choice) for step in plans[0].steps):
        tune(job, worker, reference, runner)
    yield from add_halves(job, worker, runner)
    return runner


def compile_kernels(
    job: Job, worker, plan: Plan, binaries: dict[str, Binary], refused: dict[str, Fault]
) -> Generator[Spawn, Ended, None]:
    """Compile the kernels that a plan needs, into `binaries` or `refused`, and drop configurations that are
    refused.

    All plans of a recording have the same configurations in the same order, and so lose the same ones.
    """
    while True:
        kernels = [plan.kernels[number] for number in sorted(needed_kernels(plan, job.time))]
        missing = [k for k in kernels if k.key not in binaries and k.key not in refused]
        for kernel in missing:
            try:
                binaries[kernel.key] = yield from binary_of(job, worker, kernel)
            except Fault as fault:
                refused[kernel.key] = fault
        drop_refused(plan, {n: refused[k.key] for n, k in enumerate(plan.kernels) if k.key in refused})
        # dropping a configuration makes another one the first, whose kernels are then needed
        if not missing:
            return


def needed_kernels(plan: Plan, every: bool) -> set[int]:
    """Numbers of the kernels to compile, with the first alternative of each choice, or with every one."""
    if every:
        return set(range(len(plan.kernels)))
    calls = [*plan.flat_steps(), *plan.tuning_calls()]
    return {call.kernel for call in calls if isinstance(call, Launch)}


def add_halves(job: Job, worker, runner: GpuRunner) -> Generator[Spawn, Ended, None]:
    """Compile both halves of each kernel whose programs may meet (gpu/halves.py)."""
    plan, backend = runner.plan, runner.replay.backend
    calls = plan.launches(runner.replay.chosen)
    for number in sorted({call.kernel for call in calls}):
        if may_meet(plan, number, calls):
            kernel = plan.kernels[number]
            halves = half(kernel, 0), half(kernel, 1)
            backend.halves[kernel.key] = halves
            for part in halves:
                backend.binaries[part.key] = yield from binary_of(job, worker, part)


def binary_of(job: Job, worker, kernel: Kernel) -> Generator[Spawn, Ended, Binary]:
    """The compiled kernel, from the cache or from a compile server, which may die of it. Raises Fault."""
    if known := worker.gpu.binaries.get(kernel):
        return known
    limits = Limits(job.timeout, job.memory, output=128 << 20, files=512)
    args = {
        "name": kernel.name,
        "ttir": kernel.ttir,
        "options": kernel.options,
        "card": asdict(worker.gpu.card),
    }
    ended = yield Spawn("compile", args, limits)
    worker.add_child("compile", ended)
    check_ended(ended, limits)
    try:
        binary = Binary.from_bytes(ended.payload, worker.gpu.card)
    except PlanError as error:
        raise Fault("compile_error", f"kernel {kernel.name}: {error}") from None
    worker.gpu.binaries.put(kernel, binary)
    return binary


def drop_refused(plan: Plan, refused: dict[int, Fault]) -> None:
    """Take alternatives whose kernels don't compile out of every choice. refused: by a kernel's number.

    Choices with one key are one choice: an alternative that fails in one of them goes from all.
    Raises Fault if such a kernel is launched without a choice, or if a choice has no alternative left.
    """
    bad: dict[int, set[int]] = {}  # choice's key -> numbers of alternatives
    for step in [*plan.steps, *plan.tuning_calls()]:
        if isinstance(step, Launch) and step.kernel in refused:
            raise refused[step.kernel]
        if isinstance(step, Choice):
            failing = bad.setdefault(step.key, set())
            for number, calls in enumerate(step.alternatives):
                if any(isinstance(call, Launch) and call.kernel in refused for call in calls):
                    failing.add(number)
    for step in plan.steps:
        if isinstance(step, Choice):
            failing = bad[step.key]
            kept = [calls for number, calls in enumerate(step.alternatives) if number not in failing]
            if not kept:
                raise next(iter(refused.values()))
            step.alternatives = kept


def tune(job: Job, worker, reference: Reference, runner: GpuRunner) -> None:
    """Choose the fastest alternative of every choice. The candidate is judged as it is timed, with these.

    Raises Fault.
    """
    inputs = reference.inputs.draw("plain", 1)
    reference.code.settle()
    worker.gpu.own(runner)
    with worker.stage("tune", job.timeout):
        try:
            runner.replay.tune(inputs, runner.by_name(runner.recorded), worker.gpu.watch.quick)
        except ReplayError as error:
            worker.gpu.lost |= error.fatal
            raise Fault(error.status, error.message) from None
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            raise Fault("memory_limit", "its configurations need more memory than the GPU has left") from None
