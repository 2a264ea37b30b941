"""A candidate on its way through a worker (`Job`), the child process that it waits for (`Spawn`), and how
that child ended."""

from dataclasses import dataclass, field

from nanotriton.executor.judge.trials.trial import Judged
from nanotriton.executor.sandbox.protocol import LOG_BYTES, Ended
from nanotriton.executor.sandbox.sandbox import Limits
from nanotriton.tasks.task import Task
from nanotriton.verdict import Fault, Unrecordable

# What a child may say of itself. Everything else that it says (that we failed, that the task is weak, that it
# is right) is no excuse.
CHILD_STATUSES = frozenset(
    [
        "syntax_error",
        "rule_violation",
        "import_error",
        "runtime_error",
        "compile_error",
        "out_of_resources",
        "memory_limit",
        "out_of_bounds",
        "nondeterministic",
    ]
)
CPU_TIME, FILE_SIZE = 24, 25  # the kernel's signals for these limits: SIGXCPU and SIGXFSZ
SIGNALS = {
    4: "illegal instruction",
    6: "abort",
    7: "bus error",
    8: "arithmetic error",
    9: "killed",
    11: "segmentation fault",
    31: "forbidden system call",
}


@dataclass
class Job:
    """One candidate to judge, as the executor sends it."""

    id: int
    task: Task
    source: str
    policy: str
    timeout: float
    memory: int  # bytes for each of its processes
    phase: str = "replay"  # replay; record: the same, before process mode; process; task: no candidate yet
    time: bool = False  # measure how fast it is, if it is right
    facts: dict = field(default_factory=dict)  # what an earlier phase found
    draw: str | None = None  # the draw that it shares with other candidates; None: its own
    large: bool = False  # its plan takes more than a worker's share of the GPU

    def note(self, number: int, judged: Judged | None) -> None:
        """Keep what trial `number` found."""
        if judged:
            self.facts["max_error"] = max(judged.max_error, self.facts.get("max_error", 0.0))
        if number == 0:
            self.facts["kernelbench_allclose"] = judged.kernelbench_allclose


@dataclass
class Spawn:
    """A child that a candidate wants."""

    target: str
    args: dict
    limits: Limits
    extra: tuple[int, ...] = ()  # memory files to hand over
    options: dict = field(default_factory=dict)  # of sandbox.enter


def not_its_own(ended: Ended) -> bool:
    """Whether a child ended of something else than its candidate: before that began, or by somebody else's
    kill -9 (the kernel's, for want of memory)."""
    return ended.header is None and (not ended.begun or (ended.signal == 9 and not ended.killed))


def check_ended(ended: Ended, limits: Limits, also: frozenset[str] = frozenset()) -> dict:
    """A child's own answer. Raises Fault if it left none, or says that the candidate failed.

    also: statuses that it may say so with, beside CHILD_STATUSES.
    """
    if not ended.begun and ended.header is None:
        how = ended.killed or f"signal {ended.signal}, code {ended.code}"
        raise Fault("infra_error", f"the process ended before the candidate began: {how}")
    check_limits(ended, limits)
    stage = ended.stage or "start"
    if ended.signal:
        name = SIGNALS.get(ended.signal, "unknown")
        raise Fault("crashed", f"{stage}: the process died of signal {ended.signal} ({name})")
    if ended.header is None:
        raise Fault("crashed", f"{stage}: the process ended with code {ended.code} and no answer")
    status = ended.header.get("status")
    if status is None:
        return ended.header
    message, line = str(ended.header.get("message"))[:1000], ended.header.get("line")
    message = " ".join(message.split())
    if type(line) is int and line > 0 and f"line {line}" not in message:
        message = f"line {line}: {message}"
    if ended.header.get("recordable") is False:
        raise Unrecordable("unsupported", message)
    raise Fault(status if status in CHILD_STATUSES | also else "runtime_error", message)


def check_limits(ended: Ended, limits: Limits) -> None:
    """Raise Fault if a child was ended because it passed one of its limits."""
    if ended.killed == "timeout":
        raise Fault("timeout", f"{ended.stage or 'start'}: not done after {limits.seconds:g} s")
    if ended.killed == "output_limit" or ended.signal == FILE_SIZE:
        raise Fault(
            "output_limit",
            f"it printed more than {LOG_BYTES >> 20} MiB, or returned more than {limits.output >> 20} MiB",
        )
    if ended.killed == "threads":
        raise Fault("crashed", f"it was ended for its threads: it may have {limits.threads} at a time")
    if ended.killed:
        raise Fault("memory_limit", f"it used more than {(limits.memory or limits.resident) >> 20} MiB")
    if ended.signal == CPU_TIME:
        raise Fault("timeout", f"{ended.stage}: more than {limits.seconds:g} s of CPU time")
