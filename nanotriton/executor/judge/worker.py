"""A worker: judges candidates, several at a time, one Python step after another.

It is trusted, and never runs a candidate's Python.

Its loop waits for two things: jobs from the executor, and children that ended. A job is a generator
(candidate/candidate.py) that is resumed when its child is done. Between two children it computes: it draws
inputs, replays and compares, each stage under a limit of its own. An alarm raises in the worker when a limit
has passed. Behind it stands the executor's supervisor. It sees in shared memory when a stage is due (the
beacon), and kills a worker that missed its alarm.
"""

import contextlib
import json
import mmap
import os
import shutil
import signal
import socket
from collections import OrderedDict
from collections.abc import Generator
from dataclasses import dataclass
from select import POLLIN, poll

from nanotriton.executor.common.card import Card
from nanotriton.executor.common.limits import REFERENCES, REPLAYERS, SHORTAGES
from nanotriton.executor.judge.candidate import script
from nanotriton.executor.judge.candidate.candidate import examine, replay_mode
from nanotriton.executor.judge.candidate.fits import Fits
from nanotriton.executor.judge.candidate.job import Job, Spawn
from nanotriton.executor.judge.candidate.process import process_mode
from nanotriton.executor.judge.reference.reference import Reference
from nanotriton.executor.judge.task import settings
from nanotriton.executor.judge.task.module import ContextLost, Interruption
from nanotriton.executor.sandbox.clock import own_time
from nanotriton.executor.sandbox.protocol import BEACON, Ended, receive, send
from nanotriton.executor.sandbox.servers import CompileServers
from nanotriton.executor.sandbox.zygote import Zygote
from nanotriton.tasks.task import Task
from nanotriton.verdict import Fault, TaskFault, Unrecordable

PATIENCE = 60.0  # seconds of a task's reference for one trial: one that is slower is not for this machine
DAY = 86400.0  # seconds
MOMENT = 1e-3  # seconds that an alarm may be early
ENDS_CONTEXT = (
    "the reference itself ends the GPU's context, on its own inputs"
    " (an assertion on the device, or an access out of bounds)"
)
# characters of a verdict's message: a longer one would not fit into what a socket carries at once
MESSAGE = 2000
KEPT = 4  # tasks, the last asked for, that keep their modules and draws
# and those that keep what candidates share (reference/kept.py): a worker has the groups of several tasks in
# turns
KEPT_DRAWS = 16
# A status that tells the stage of its verdict. Any other has the stage that was computed last.
STAGES = {"syntax_error": "rules", "import_error": "import", "compile_error": "compile"}
MODES = {
    "task": examine,
    "replay": replay_mode,
    "record": replay_mode,
    "process": process_mode,
    "script": script.script_mode,
}


class Overtime(Interruption):
    """A stage's limit has passed."""


@dataclass(eq=False)
class Running:
    """A job on its way to its verdict."""

    job: Job
    mode: Generator[Spawn, Ended, None]  # one of MODES, resumed when its child has ended
    folder: str  # of its children


@dataclass
class Stage:
    """A part of a job that is computed under a limit of its own."""

    name: str
    left: float  # seconds of its limit, without those in which other processes had the cores


class Worker:
    """The process that judges. See the top.

    sock: to the executor. beacon: what it sees of this worker. zygote: forks its children. options: what
    processes.ask_for_worker says of this worker.
    """

    def __init__(self, sock: socket.socket, beacon: mmap.mmap, zygote: Zygote, options: dict):
        self.sock, self.beacon, self.zygote = sock, beacon, zygote
        self.secret = b""  # comes with each job: the zygote, which candidates can read, was forked before
        self.folder: str = options["folder"]
        self.device: str = options["device"]
        self.gpu = None
        if options["flavour"] == "gpu":
            from nanotriton.executor.gpu.gpu import Gpu

            self.gpu = Gpu(options["cubins"], options["locks"], Card(**options["card"]))
        self.compilers = CompileServers(
            zygote, self.folder, max(2, len(os.sched_getaffinity(0)) // REPLAYERS + 1)
        )
        self.fits = Fits()
        self.patience = PATIENCE
        self.references: OrderedDict[tuple[str, str | None], Reference | Fault] = OrderedDict()
        # which tasks have ended a context, for all workers of this executor
        self.losses = os.path.join(os.path.dirname(self.folder), "losses")
        self.lost = False  # whether a task has ended this worker's
        self.waiting: dict[int, Running] = {}  # by the id of the child that it waits for
        self.job: Job | None = None  # the one that is computing
        self.costs: dict[int, dict[str, float]] = {}
        self.stages: list[Stage] = []  # of the computing job, the innermost last
        self.since = 0.0  # when the stage last changed, by own_time
        self.last = ""  # the stage that was computed last

    # ---- stages ----

    @contextlib.contextmanager
    def stage(self, name: str, limit: float):
        """Compute under a limit in seconds, without those in which other processes had the cores.

        What an inner stage takes counts for itself, not for the outer one.
        """
        self._charge()
        self.stages.append(Stage(name, limit))
        self._arm()
        try:
            yield
        except Overtime:
            if name in ("task", "judge"):
                message = f"the reference itself takes more than {limit:g} s here"
                raise TaskFault("unsupported", message) from None
            raise Fault("timeout", f"{name}: not done after {limit:g} s") from None
        finally:
            self._charge()
            self.stages.pop()
            self._arm()

    def _charge(self) -> None:
        """Count the time since the last change of stage for the innermost one."""
        now = own_time()
        if self.stages:
            stage = self.stages[-1]
            stage.left -= now - self.since
            self.add_cost(stage.name, now - self.since)
        self.since = now

    def _arm(self) -> None:
        """Set the alarm for the innermost stage, and let the executor see when it is due.

        Due is a time of this process's own_time clock, and 0 where no stage runs.
        """
        name, left, due = "", 0.0, 0.0
        if self.stages:
            name, left = self.stages[-1].name, max(self.stages[-1].left, MOMENT)
            due = self.since + left
        BEACON.pack_into(self.beacon, 0, self.job.id, due, name.encode())
        signal.setitimer(signal.ITIMER_REAL, left)

    def add_cost(self, name: str, seconds: float) -> None:
        cost, self.last = self.costs[self.job.id], name
        cost[name] = cost.get(name, 0.0) + seconds

    def add_child(self, name: str, ended: Ended) -> None:
        """What a child took: time under its stage's name, and its CPU time with all the others'."""
        self.add_cost("children_cpu", ended.cpu)
        self.add_cost(name, ended.seconds)

    # ---- tasks ----

    def reference(self, task: Task) -> Reference:
        """The task, loaded and examined, from the cache if it was seen before.

        Raises Fault if it is no fair question.
        """
        lost = self.lost_on(task)
        key = task.key, lost
        found = self.references.get(key)
        if found is None:
            found = self.load(task, lost)
            if isinstance(found, Fault) and found.status == "memory_limit" and self.gpu is not None:
                with self.gpu.alone():
                    found = self.load(task, lost)
            self.references[key] = found
            if len(self.references) > REFERENCES:
                self.references.popitem(last=False)
        self.references.move_to_end(key)
        self.forget_old()
        if isinstance(found, Fault):
            # also when it was found out before: a verdict of this stage says nothing of the candidate
            self.last = "task"
            raise Fault(found.status, found.message)
        return found

    def forget_old(self) -> None:
        """Give back what the tasks that were not asked for lately keep in memory."""
        latest = reversed(self.references.values())
        for number, known in enumerate(latest):
            if number >= KEPT and isinstance(known, Reference):
                known.forget()
                if number >= KEPT_DRAWS:
                    known.kept.forget()

    def load(self, task: Task, lost: str | None) -> Reference | Fault:
        """The task, examined now, or why it is no fair question. lost: see `lost_on`."""
        if lost == "plain":
            return Fault("unsupported", ENDS_CONTEXT)
        try:
            with self.stage("task", self.patience):
                vault = None if self.gpu is None else self.gpu.vault
                return Reference(task, self.device, self.pause, lost is None, vault)
        except Fault as fault:
            # not the one with the traceback, which holds the task's tensors
            return Fault(fault.status, fault.message)

    def lost_on(self, task: Task) -> str | None:
        """On which inputs a task has ended a worker's context: "plain", "other", or None if it has not.

        On other inputs than its own it is not asked again.
        """
        for kind in ("plain", "other"):
            if os.path.exists(os.path.join(self.losses, f"{task.key}.{kind}")):
                return kind
        return None

    def note_loss(self, task: Task, kind: str) -> None:
        """The task's own code has ended the context.

        Other workers will read this when they run again what was in flight.
        """
        os.makedirs(self.losses, exist_ok=True)
        note = f"{task.key}.{'plain' if kind == 'plain' else 'other'}"
        with open(os.path.join(self.losses, note), "w"):
            pass
        if self.gpu is not None:
            self.gpu.lost = True  # it has no memory to look after

    @property
    def context_is_lost(self) -> bool:
        """Whether a task or a candidate has ended the context. Then this process must end too."""
        return self.lost or (self.gpu is not None and self.gpu.lost)

    def room(self, reference: Reference):
        """Where the task's tensors are computed with: on a GPU that they would crowd, alone."""
        if self.gpu is not None and self.gpu.crowded(self.job, reference):
            return self.gpu.alone()
        return contextlib.nullcontext()

    def pause(self) -> None:
        """Let other workers time what they have, if they wait for it.

        The wait counts for no other stage, and has no limit of its own: their timing has one.
        """
        if self.gpu is not None:
            self.settle()  # nothing of this worker's runs while another one times
            with self.stage("wait", DAY):
                self.gpu.turns.pause()

    # ---- the loop ----

    def serve(self) -> None:
        """Work until the executor hangs up, or until this worker is no use any more.

        That is when its zygote dies or its context is lost. The executor then starts another worker, and
        what was in flight again.
        """
        signal.signal(signal.SIGALRM, self._alarm)
        self.neutral = settings.snapshot()
        settings.reset(self.neutral)
        while True:
            compilers = self.compilers.sockets()
            waits = poll()
            for fd in (self.sock.fileno(), self.zygote.sock.fileno(), *compilers):
                waits.register(fd, POLLIN)
            patience = self.compilers.patience()
            ready = [fd for fd, _ in waits.poll(None if patience is None else 1000 * patience + 1)]
            # before what follows, which may take its time while they answer
            self.compilers.kill_overdue(set(ready))
            for fd in ready:
                if fd == self.sock.fileno():
                    message, fds = receive(self.sock)
                    if message is None:
                        return
                    with open(fds[0], "rb") as file:  # a memory file: jobs can be larger than a message
                        self.start(json.load(file))
                elif fd == self.zygote.sock.fileno():
                    if ended := self.zygote.event():
                        self.child_ended(ended)
                elif answer := self.compilers.answered(compilers[fd]):
                    self.advance(*answer)
                if self.context_is_lost:
                    return

    def _alarm(self, *_):
        """The alarm goes by wall time. Where other processes had the cores meanwhile, it is set once more."""
        left = self.stages[-1].left - (own_time() - self.since) if self.stages else 0.0
        if left <= MOMENT:
            raise Overtime
        signal.setitimer(signal.ITIMER_REAL, left)

    def start(self, message: dict) -> None:
        """Begin a job. message: its fields, and the secret of the executor's draws."""
        self.secret = bytes.fromhex(message.pop("secret"))
        message["task"] = Task(**message["task"])
        job = Job(**message)
        self.costs[job.id] = {}
        folder = os.path.join(self.folder, str(job.id))
        self.advance(Running(job, MODES[job.phase](job, self), folder), None)

    def child_ended(self, ended: Ended) -> None:
        """Go on with the job that has waited for this child."""
        if ended.id in self.waiting:
            self.advance(self.waiting.pop(ended.id), ended)
        elif answer := self.compilers.ended(ended):
            self.advance(*answer)

    def advance(self, running: Running, ended: Ended | None) -> None:
        """Let a job compute until it wants a child or has its verdict. ended: the child it has waited for."""
        with self.gpu.busy() if self.gpu is not None else contextlib.nullcontext():
            self.step(running, ended)

    def step(self, running: Running, ended: Ended | None) -> None:
        """`advance`, while the GPU is told that this worker is busy."""
        job, folder = running.job, running.folder
        self.job = job
        self.stages = []
        self.since = own_time()
        try:
            spawn = self.resume(running.mode, ended)
        except ContextLost as lost:
            self.note_loss(job.task, lost.kind)
        except StopIteration:
            self.finish(job, folder, "correct")
        except Fault as fault:
            if isinstance(fault, TaskFault):
                self.last = "task"
            self.finish(job, folder, fault.status, fault.message, isinstance(fault, Unrecordable))
        except Overtime:  # the alarm went off just as the stage was over
            self.finish(job, folder, "timeout", f"not done after {job.timeout:g} s")
        except Exception as error:
            # An error of ours: die, and leave word in the beacon of whose job it was, so that only this one
            # is suspected.
            if getattr(error, "errno", None) not in SHORTAGES:
                BEACON.pack_into(self.beacon, 0, job.id, own_time() + PATIENCE, self.last.encode())
            raise
        else:
            self.spawn(running, spawn)

    def spawn(self, running: Running, spawn: Spawn) -> None:
        """Start the child that a job wants. A kernel to compile goes to a server instead."""
        if spawn.target == "compile":
            self.compilers.submit(running, spawn.args, spawn.limits)
            return
        folder = running.folder
        if not os.path.isdir(folder):
            os.mkdir(folder, 0o700)
            with open(os.path.join(folder, "candidate.py"), "w", encoding="utf-8") as file:
                file.write(running.job.source)
        child = self.zygote.spawn(
            spawn.target, folder, spawn.args, spawn.limits, spawn.extra, **spawn.options
        )
        self.waiting[child] = running

    def resume(self, mode: Generator[Spawn, Ended, None], ended: Ended | None) -> Spawn:
        """Compute until a child is wanted, and undo what the task's code has set meanwhile."""
        try:
            try:
                return mode.send(ended)
            finally:
                self.settle()
        except ContextLost:
            self.lost = True
            raise
        finally:
            if not self.context_is_lost:  # with which there is nothing left to set
                settings.reset(self.neutral)

    def settle(self) -> None:
        """Raise ContextLost if a task's own code has ended the context."""
        for reference in self.references.values():
            if isinstance(reference, Reference):
                reference.code.settle()

    def finish(self, job: Job, folder: str, status: str, message: str = "", fallback: bool = False) -> None:
        """Report a verdict. fallback: this mode could not run the candidate; another one may."""
        if self.gpu is not None and self.gpu.owner is not None and self.gpu.owner.job is job:
            self.gpu.own(None)
        shutil.rmtree(folder, ignore_errors=True)
        # One line of what may be as long as a name in the candidate, or hold an assertion's own line breaks
        # and escapes.
        text = " ".join(message.split())[:MESSAGE]
        verdict = {
            "status": status,
            "message": "".join(c if c.isprintable() else "?" for c in text),
            "stage": STAGES.get(status, self.last),
        }
        cost = {name: round(seconds, 6) for name, seconds in self.costs.pop(job.id).items()}
        send(
            self.sock,
            {"job": job.id, "verdict": verdict, "facts": job.facts, "cost": cost, "fallback": fallback},
        )
