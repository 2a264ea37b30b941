"""A worker that owns a CUDA context: compiles plans in children, replays them in an arena, and times them.

The zygote was forked before the context was made, with no GPU visible: it records and compiles; only this process, which never runs a
candidate's Python, touches the GPU. While a candidate runs there is nothing on the GPU in this process but its own buffers and the inputs
and weights that it is given: answers of the reference are computed later and dropped before the next run. (Where the driver lets GPUs read
host memory by address, a kernel could reach this process's heap: the secret seed is there, answers are not.)
"""

import contextlib
import fcntl
import gc
import json
import os
from collections.abc import Generator
from contextlib import contextmanager

import torch

from nanotriton.executor import driver
from nanotriton.executor.candidate import Job, Runner, Spawn, check_ended
from nanotriton.executor.compare import Fault, compare, leaves, tensors
from nanotriton.executor.compiler import Binary, BinaryCache
from nanotriton.executor.cuda import CudaBackend
from nanotriton.executor.halves import half, may_meet
from nanotriton.executor.locks import hold_alone, hold_shared
from nanotriton.executor.plan import Aten, Choice, Kernel, Launch, Plan, PlanError
from nanotriton.executor.processes import REPLAYERS
from nanotriton.executor.reference import Reference, Trial, out_of_memory
from nanotriton.executor.replayer import Replay, ReplayError
from nanotriton.executor.sandbox import Limits
from nanotriton.executor.timing import Stopwatch, Timing, Work, floor_us
from nanotriton.executor.zygote import Ended

PROBES = 32  # elements of an input that are tried: does the answer need them?
WIPED = 2 << 30  # bytes of freed memory that are overwritten, and that a worker keeps between two turns; to give back more takes the driver milliseconds
ROTATION = 3  # draws of inputs that timed runs take in turns


class Gpu:
    """What a worker has on its GPU: at most one candidate's arena, compiled kernels, and a stopwatch."""

    def __init__(self, folder: str, locks: str):
        driver.sleep_while_waiting()  # the cores are for recordings and compilations
        torch.cuda.init()
        # Judged with TF32 off everywhere; timing turns torch's defaults back on.
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        self.binaries = BinaryCache(folder)
        # Of what there is for this executor (a trainer may share the GPU) a candidate's buffers get half; inputs and the reference the rest.
        self.budget = most(f"{folder}-free", torch.cuda.mem_get_info()[0]) // 2
        self.share = self.budget // REPLAYERS  # who needs more has the GPU alone
        self.owner: GpuRunner | None = None
        self.lost = False  # the context: this process must end
        self.times = f"{folder}-times"  # what is known of tasks, for all workers of this executor
        self._watch: Stopwatch | None = None
        folder = os.path.join(locks, f"nanotriton-locks-{os.getuid()}")  # every executor's on this machine
        os.makedirs(folder, mode=0o700, exist_ok=True)
        name = os.path.join(folder, str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid))
        self._open_locks(name)

    def _open_locks(self, name: str) -> None:
        """Two locks, each with another that says that somebody wants it alone, so that those are not passed over for ever.

        Several stopwatches that want quiet have it one after the other: the rest has to be waited for only once.

        room: held shared while the GPU may be used, alone by a stopwatch. memory: held shared while tensors may lie there, through all pauses,
        and alone by who needs the memory of all.
        """
        flags = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW
        self._room_wanted, self._room, self._memory_wanted, self._memory = (os.open(f"{name}.{lock}", flags, 0o600) for lock in ("room-wanted", "room", "memory-wanted", "memory"))
        self._is_quiet = False

    def own(self, runner: "GpuRunner | None") -> None:
        """The GPU is this candidate's from here on: whatever there is of another's, or of the reference's answers, goes."""
        if self.lost:
            self.owner = runner
            return
        if self.owner is not runner and self.owner is not None:
            self.owner.replay.close()
        self.owner = runner
        if memory_in_use("reserved") - memory_in_use("allocated") > WIPED:
            torch.cuda.empty_cache()
        wipe_free_memory()

    def known(self, task: str) -> tuple[float, int] | None:
        """(microseconds of the reference, bytes of the inputs that its answer needs) if a worker has found them out."""
        try:
            with open(os.path.join(self.times, task)) as file:
                return tuple(json.load(file))
        except OSError:
            return None

    def learn(self, task: str, reference_us: float, needed: int) -> None:
        os.makedirs(self.times, exist_ok=True)
        new = os.path.join(self.times, f".{task}.{os.getpid()}")
        with open(new, "w") as file:
            json.dump([reference_us, needed], file)
        os.rename(new, os.path.join(self.times, task))

    def crowded(self, job: Job, reference: Reference) -> bool:
        """Whether they need more than a worker's share: a task's inputs and answer are there about eight times over, some in float64."""
        return job.large or 4 * reference.bytes > self.share

    @property
    def watch(self) -> Stopwatch:
        self._watch = self._watch or Stopwatch()
        return self._watch

    @contextmanager
    def busy(self):
        """Work that may share the GPU with other workers', but not with a stopwatch, nor with what needs all memory."""
        hold_shared(self._memory_wanted, self._memory)
        hold_shared(self._room_wanted, self._room)
        try:
            yield
            if not self.lost and memory_in_use("reserved") > WIPED:
                self.clear()  # for the others, until this worker's next turn
        finally:
            fcntl.flock(self._room, fcntl.LOCK_UN)
            fcntl.flock(self._memory, fcntl.LOCK_UN)

    def pause(self) -> None:
        """Within `busy`: let those go first who wait for quiet. A stopwatch of 10 ms should not wait for a candidate's whole judgement."""
        if not self._is_quiet:
            fcntl.flock(self._room, fcntl.LOCK_UN)
            hold_shared(self._room_wanted, self._room)

    def clear(self) -> None:
        """Give the GPU's memory back. A candidate that is not done yet finds its buffers and kernels made anew."""
        self.own(None)
        if memory_in_use("allocated") > WIPED:
            gc.collect()  # what still holds so much is a cycle, of an exception and its frames
        torch.cuda.empty_cache()

    @contextmanager
    def alone(self):
        """Within `busy`: `quiet`, for work that needs the memory of all: when the others are done with what they have begun."""
        self.clear()
        fcntl.flock(self._room, fcntl.LOCK_UN)  # nobody holds it without the memory, so who has that alone needs no more
        try:
            with hold_alone(self._memory_wanted, self._memory), self._told():
                yield
        finally:
            hold_shared(self._room_wanted, self._room)  # after the memory, as in `busy`: who waited for that with the room in hand would never have it

    @contextmanager
    def quiet(self):
        """Within `busy`: no other worker uses this GPU meanwhile."""
        if self._is_quiet:  # as who is alone is
            yield
            return
        with hold_alone(self._room_wanted, self._room), self._told():
            yield

    @contextmanager
    def _told(self):
        """It is quiet: what asks for quiet, or would pause for others, need not."""
        self._is_quiet = True
        try:
            yield
        finally:
            self._is_quiet = False


def most(path: str, free: int) -> int:
    """The most that any worker of this executor found free when it began: one that begins later finds the others' tasks in memory."""
    with open(path, "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        free = max([free, *map(int, file.read().split())])
        file.write(f"{free}\n")
    return free


def memory_in_use(kind: str) -> int:
    """Bytes that torch's allocator has "reserved" or "allocated". torch.cuda.memory_reserved() and ..._allocated() sort all statistics first."""
    return torch.cuda.memory_stats_as_nested_dict().get(f"{kind}_bytes", {}).get("all", {}).get("current", 0)


def wipe_free_memory() -> None:
    """Overwrite what torch's allocator keeps of tensors that are gone: the reference's answers to the inputs of a moment ago."""
    stream = torch.cuda.current_stream().cuda_stream
    for segment in torch.cuda.memory_snapshot():
        for block in segment["blocks"]:
            if block["state"] == "inactive":
                driver.fill(block["address"], block["size"], stream)


class GpuRunner(Runner):
    """As `Runner`, on the GPU."""

    def __init__(self, worker, job: Job, reference: Reference, plan: Plan, recorded: int, binaries: dict[str, Binary]):
        super().__init__(worker, job, reference, plan, recorded)
        self.replay = Replay(plan, backend=CudaBackend(binaries, worker.gpu.budget), known=reference.large_weights(recorded))
        self.calls = 0

    def __call__(self, inputs: list, seed: int, skip: int | range | None = None) -> tuple[object, dict[int, torch.Tensor]]:
        if self.worker.gpu.lost:  # by a run before this one, without a launch that kept the next in bounds: that launch mattered
            raise Fault("illegal_memory", "the GPU's context was lost in an earlier run")
        self.worker.gpu.own(self)
        self.calls, backend = self.calls + 1, self.replay.backend
        backend.order = (None, (1, 0), (0, 1))[(self.calls - 1) % 3]
        try:
            outputs, changed = super().__call__(inputs, seed, skip)
        finally:
            backend.order = None  # not while it is timed
        if self.worker.gpu.crowded(self.job, self.reference):
            self.worker.gpu.own(None)  # the arena makes room for the reference
        return outputs, changed


def make_runner(job: Job, worker, reference: Reference, plan: Plan, recorded: int) -> Generator[Spawn, Ended, GpuRunner]:
    """Compile the plan's kernels, each in a child that may die of it, and drop configurations that don't compile.

    Of an autotuner's configurations only the first that compiles is needed, unless they are to be timed.
    """
    binaries: dict[str, Binary] = {}
    refused: dict[int, Fault] = {}
    tried: set[int] = set()
    while missing := (set(range(len(plan.kernels))) if job.time else {launch.kernel for launch in plan.launches()}) - tried:
        for number in sorted(missing):
            kernel = plan.kernels[number]
            try:
                binaries[kernel.key] = yield from compile_one(job, worker, kernel)
            except Fault as fault:
                refused[number] = fault
        tried |= missing
        drop_refused(plan, refused)
    runner = GpuRunner(worker, job, reference, plan, recorded, binaries)
    if job.time and any(isinstance(s, Choice) for s in plan.steps):
        tune(job, worker, reference, runner)
    yield from add_halves(job, worker, runner)
    return runner


def add_halves(job: Job, worker, runner: GpuRunner) -> Generator[Spawn, Ended, None]:
    """Compile kernels whose programs may meet in halves too, for runs in which one half ends before the other begins."""
    plan, backend = runner.plan, runner.replay.backend
    calls = plan.launches(runner.replay.chosen)
    for number in sorted({call.kernel for call in calls}):
        if may_meet(plan, number, calls):
            backend.halves[plan.kernels[number].key] = parts = half(plan.kernels[number], 0), half(plan.kernels[number], 1)
            for part in parts:
                backend.binaries[part.key] = yield from compile_one(job, worker, part)


def compile_one(job: Job, worker, kernel: Kernel) -> Generator[Spawn, Ended, Binary]:
    """From the cache, or in a child. Raises Fault."""
    if known := worker.gpu.binaries.get(kernel):
        return known
    limits = Limits(job.timeout, job.memory, output=128 << 20, files=512)
    args = {"name": kernel.name, "ttir": kernel.ttir, "options": kernel.options}
    ended = yield Spawn("compile", args, limits)
    worker.add_child("compile", ended)
    check_ended(ended, limits)
    try:
        binary = Binary.from_bytes(ended.payload)
    except PlanError as error:
        raise Fault("compile_error", f"kernel {kernel.name}: {error}") from None
    worker.gpu.binaries.put(kernel, binary)
    return binary


def drop_refused(plan: Plan, refused: dict[int, Fault]) -> None:
    """Take configurations whose kernels don't compile out of every choice. Raises Fault if nothing is left, or there was no choice."""
    bad: dict[int, set[int]] = {}  # choice's key -> alternatives
    for step in plan.steps:
        if isinstance(step, Launch) and step.kernel in refused:
            raise refused[step.kernel]
        if isinstance(step, Choice):
            failing = {i for i, calls in enumerate(step.alternatives) for c in calls if isinstance(c, Launch) and c.kernel in refused}
            bad[step.key] = bad.get(step.key, set()) | failing
    for step in plan.steps:
        if isinstance(step, Choice):
            kept = [calls for i, calls in enumerate(step.alternatives) if i not in bad[step.key]]
            if not kept:
                raise next(iter(refused.values()))
            step.alternatives = kept


def tune(job: Job, worker, reference: Reference, runner: GpuRunner) -> None:
    """The configuration that is timed is the one that is judged, so choose before judging."""
    inputs = reference.inputs("plain", 1)
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


def measure(job: Job, worker, reference: Reference, runner: GpuRunner, trial: Trial) -> None:
    """Time the candidate and the reference in turns, on draws of their own, and check the candidate's last answer.

    The draws differ because the reference's answers are on the GPU while the candidate runs: to other questions, then.
    Raises Fault: `too_fast` for a time that memory cannot reach, or what is wrong with the last answer.
    """
    gpu, crowded = worker.gpu, worker.gpu.crowded(job, reference)
    rotation = 1 if crowded else ROTATION  # the L2 keeps nothing of so much
    timings, outputs = clock(job, worker, reference, runner, trial, rotation)
    with worker.stage("judge", worker.patience):
        if crowded:
            gpu.own(None)  # room for the reference
        with torchs_precision() if convolves(runner.plan) else contextlib.nullcontext():
            answer = reference.answer("plain", trial.inputs + 1 + (timings[0].runs - 1) % rotation, trial.weights)
        compare(outputs, answer)
        if len(timings) > 1:
            other = reference.inputs("plain", trial.inputs + 2 * rotation)
            gpu.learn(job.task.key, timings[1].us, needed_bytes(reference, other, trial.weights))
    reference_us, needed = gpu.known(job.task.key)
    floor = floor_us(needed, sum(t.nbytes for t in tensors(outputs)))
    job.facts |= {"time_us": timings[0].us, "reference_us": reference_us}
    if timings[0].us < floor:
        raise Fault("too_fast", f"{timings[0].us:.1f} us; the bytes that it must move take {floor:.1f} us at the memory's peak bandwidth")
    job.facts["speedup"] = reference_us / timings[0].us


def clock(job: Job, worker, reference: Reference, runner: GpuRunner, trial: Trial, rotation: int) -> tuple[list[Timing], object]:
    """(timings of the candidate and, unless it is known, of the reference; the candidate's answer to the last draw that it was timed on)."""
    gpu, weights = worker.gpu, runner.by_name(trial.weights)
    draws = [reference.inputs("plain", trial.inputs + i) for i in range(1, 2 * rotation + 1)]
    gpu.own(runner)
    runner.replay.load(draws[0], weights)
    weights = {name: t.to(reference.device) for name, t in weights.items()}  # no run waits for the host

    def run() -> None:
        with torchs_precision():
            runner.replay.execute()

    works = [Work(run, lambda i: runner.replay.load(draws[i % rotation], weights), rotation)]
    if gpu.known(job.task.key) is None:
        works.append(reference_work(reference, trial.weights, draws[rotation:]))
    try:
        with worker.stage("time", job.timeout):
            ready = [gpu.watch.prepare(work) for work in works]
        with gpu.quiet(), worker.stage("time", job.timeout):
            timings = gpu.watch.time(ready)
        with worker.stage("time", job.timeout):
            return timings, runner.replay.outputs()
    except ReplayError as error:
        gpu.lost |= error.fatal
        raise Fault(error.status, f"while it was timed: {error.message}") from None


@contextmanager
def torchs_precision():
    """What torch does unless it is told otherwise: cuDNN's convolutions are TF32, in the reference and in those that a candidate leaves to torch."""
    torch.backends.cudnn.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = False


def convolves(plan: Plan) -> bool:
    return any(isinstance(step, Aten) and "conv" in step.op for step in plan.steps)


def reference_work(reference: Reference, seed: int, draws: list[list]) -> Work:
    """The task's own module, eager as captured, with torch's default precision."""
    model, place = reference.build(seed), reference.inputs("plain", 0)

    def run() -> None:
        with torchs_precision(), torch.no_grad(), reference.settings.active():
            model(*place)

    def before(i: int) -> None:
        for (_, into), (_, fresh) in zip(leaves(place), leaves(draws[i % len(draws)]), strict=True):
            if isinstance(into, torch.Tensor):
                into.copy_(fresh)

    return Work(run, before, len(draws))


def needed_bytes(reference: Reference, inputs: list, seed: int) -> int:
    """How many bytes of the inputs the answer really depends on, from below: a NaN is planted in single elements, and looked for.

    A tenth is taken off for luck, integers count as nothing: reading less than this is not possible, so it can be a floor.
    """
    total, generator = 0.0, torch.Generator().manual_seed(0)
    model = reference.build(seed)
    floats = lambda tree: [t for t in tensors(tree) if t.is_floating_point()]

    def meets_it() -> bool:
        try:
            with reference.own("NaN"):
                return any(bool(out.isnan().any()) for out in floats(model(*inputs)))
        except RuntimeError as error:
            if out_of_memory(error):
                raise
            return True  # what it refuses it has read

    with torch.no_grad():
        for t in floats(inputs):
            if t.nbytes < 1 << 20 or not t.is_contiguous():
                continue
            hits, flat = 0, t.view(-1)
            for at in torch.randint(t.numel(), (PROBES,), generator=generator).tolist():
                old = flat[at].clone()
                flat[at] = float("nan")
                hits += meets_it()
                flat[at] = old
            total += t.nbytes * max(0.0, hits / PROBES - 0.1)
    return int(total)
