"""A task's own `Model`: trusted code, loaded into the judge's process, drawn for, and run in the task's dtype
and in float64.

Inputs are drawn as the task draws them, or under stress (draws.py); weights as its constructor makes them, or
with others. What is known of a task
(which stresses its reference survives, whether a constant would pass) is found once and cached by content.
Answers never are.
"""

import contextlib
import copy
import logging
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nanotriton.executor.common import construct
from nanotriton.executor.common.construct import seed_from
from nanotriton.executor.gpu import driver
from nanotriton.executor.judge import draws
from nanotriton.executor.judge.asserts import Asserts
from nanotriton.executor.judge.compare import Answer, all_finite, breaks_down, repeats
from nanotriton.executor.judge.fakes import Fakes
from nanotriton.executor.judge.settings import Settings, take_place
from nanotriton.executor.judge.twin import Nudge, in_float64
from nanotriton.plan import wire
from nanotriton.plan.aten import words
from nanotriton.plan.facts import CREATE, MATMULS, MOVE, Facts, overlaps_itself
from nanotriton.plan.plan import digest
from nanotriton.plan.trees import describe, identical, tensors
from nanotriton.tasks.task import Task
from nanotriton.verdict import Fault, TaskFault, out_of_memory

LARGE = 1 << 20  # bytes of a weight that is sent only if it differs from the reference's
BUILT = 3  # modules of a task that are kept: a candidate has two, and timing may want another
# Of each trial the first kind that the task survives; without one there is no such trial.
TRIALS = (
    ("plain",),
    ("scaled", "positive", "plain"),
    ("padded", "uneven", "heavy", "uneven positive", "positive", "edges", "plain"),
    ("holes", "infinite"),
)
# others let NaN through, or meet it as it comes
NAN_AWARE = {"nan_to_num", "isnan", "isinf", "isposinf", "isneginf", "nansum", "nanmedian"}
# operators that sum their first operand's elements, many for one value
SUMS = words("""
    binary_cross_entropy huber_loss l1_loss linalg_vector_norm mean mse_loss nansum smooth_l1_loss
    std std_mean sum var var_mean
""")
# which of equal elements comes first is anyone's choice
UNSTABLE = {"sort", "topk", "kthvalue", "median", "mode", "cummax", "cummin"}
RANDOM = "the reference is not deterministic: it draws random numbers in forward"
# Parts of names of operators that draw or don't, by their arguments. If they draw, a generator's state shows
# it.
MAY_DRAW = ("attention", "rnn", "rrelu")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Trial:
    kind: str  # one of draws.KINDS
    inputs: int  # seed
    # seed; if it is negative, the weights of its opposite go by name, after some training
    # (draws.train_)
    weights: int


class ContextLost(BaseException):
    """The task's own code has ended this process's CUDA context. No Exception: nothing here can go on.

    kind: of the inputs that it ran on.
    """

    def __init__(self, kind: str):
        super().__init__(f"the reference has ended the GPU's context, on {kind} inputs")
        self.kind = kind


@contextlib.contextmanager
def excused(doing: str):
    """What goes wrong inside is the task's fault: the sample leaves the batch, unless it is a limit that has
    a status."""
    try:
        yield
    except Fault:
        raise
    except (Exception, SystemExit) as error:
        if out_of_memory(error):
            raise TaskFault(
                "memory_limit", f"the task needs more memory than there is for it (memory_gib), {doing}"
            ) from error
        text = f"{type(error).__name__}: {error}".split("\n")[0][:300]
        lines = [
            f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith("<task ")
        ]
        text += f" (line {lines[-1]} of the task)" if lines else ""
        raise TaskFault("unsupported", f"the reference itself fails, {doing}: {text}") from error


class Reference:
    """A task's module, loaded: trusted code, it runs in the judge's process. Raises Fault if the task is no
    fair question.

    pause: called between two computations of the reference.
    stress: whether it is also asked what the task does not draw itself.
    """

    def __init__(
        self,
        task: Task,
        device: str = "cpu",
        pause: Callable[[], None] = lambda: None,
        stress: bool = True,
    ):
        self.pause = pause
        self.stress = stress
        self.task, self.device, self.seed = task, torch.device(device), seed_from("calibrate", task.key)
        self.settings = Settings()
        self.asserts: Asserts | None = None  # on a CPU operators look for themselves
        if self.device.type == "cuda":
            torch.cuda.init()
            self.asserts = Asserts()
        self.picky = False  # whether it calls operators that refuse some values
        self.examined = False
        self.keeps_nothing = False  # known to leave no state between two calls (second.py)
        self.names: dict = {"__name__": "task"}
        self.built: dict[int, torch.nn.Module] = {}  # the last few modules, by seed, on the CPU
        self.digests: dict[int, dict[str, torch.Tensor]] = {}  # and their large weights, by hash
        # buffers that construct.moved_constants moved; a candidate's of the same name are moved too
        self.moved_buffers: set[str] = set()
        self.kinds: frozenset[str] = frozenset(["plain"])
        self.facts = Facts()
        self.faint: list[str | int] | None = None  # faint.find_faint, once it was asked
        self.calibrate()
        self.examined = True

    def load(self) -> None:
        exec(compile(self.task.source, f"<task {self.task.name}>", "exec"), self.names)
        self.default_cuda = take_place()
        self.has_weights = bool(self.weights(self.seed))
        # what a recording needs to know
        self.described_inputs = wire.describe(self.inputs("plain", 0))[0]
        self.described_init = wire.describe(self.init_arguments(0))[0]

    # ---- how the task's own code is run ----

    @contextlib.contextmanager
    def own(self, kind: str) -> Iterator[None]:
        """Run the task's own code on inputs of this kind, with its own settings, until the GPU is done too.

        Raises ContextLost.
        """
        try:
            with self.settings.active(), self.asserts or contextlib.nullcontext():
                yield
        finally:
            if self.device.type == "cuda" and driver.context_is_lost():
                raise ContextLost(kind)

    @contextlib.contextmanager
    def running(self, kind: str) -> Iterator[None]:
        """`own`, for calls of forward."""
        with self.own(kind), torch.no_grad(), self.default_device():
            yield

    @property
    def defaults(self) -> dict[str, str | bool]:
        """torch's defaults that the task has set. In KernelBench a candidate is imported after the task, and
        finds them."""
        dtype = self.settings.own.get("default dtype", torch.float32)
        return {"dtype": str(dtype).removeprefix("torch."), "cuda": self.default_cuda}

    # ---- what a trial is made of ----

    def default_device(self):
        """Tensors are made on the device by default (on the CPU they are anyway, and the mode costs time)."""
        return self.device if self.device.type != "cpu" else contextlib.nullcontext()

    def build(self, seed: int) -> torch.nn.Module:
        """The reference, constructed as a candidate is: on the CPU, same seed, same moved constants. A copy
        goes to its device."""
        host = self.on_host(seed)
        return copy.deepcopy(host, {} if self.device.type == "cpu" else replicas(host, self.device))

    def weights(self, seed: int) -> dict[str, torch.Tensor]:
        """The module's state, on the CPU: a kernel that writes where it should not can't reach it there."""
        return dict(self.on_host(seed).state_dict())

    def large_weights(self, seed: int) -> dict[str, torch.Tensor]:
        """Weights of a megabyte or more by plan.digest of their bytes: a candidate that has the same need not
        send them."""
        if not self.has_weights:
            return {}
        if seed not in self.digests:
            large = [t for t in self.weights(seed).values() if t.nbytes >= LARGE and t.is_contiguous()]
            self.digests[seed] = {digest(wire.raw([t])): t for t in large}
            while len(self.digests) > BUILT:
                del self.digests[next(iter(self.digests))]
        return self.digests[seed]

    def on_host(self, seed: int) -> torch.nn.Module:
        if seed not in self.built:
            moved = construct.moved_constants(abs(seed), found=self.moved_buffers)
            # no graph: it can't be copied
            with self.settings.active(), torch.no_grad(), moved as settled:
                arguments = self.init_arguments(abs(seed))
                construct.seed_everything(abs(seed))
                self.built[seed] = settled(self.names["Model"](*arguments))
            if seed < 0:
                draws.train_(self.built[seed], seed)
            while len(self.built) > BUILT:
                del self.built[next(iter(self.built))]
        return self.built[seed]

    def forget_weights(self) -> None:
        self.built.clear()
        self.digests.clear()

    def init_arguments(self, seed: int) -> list:
        with self.settings.active():
            construct.seed_everything(seed)
            return self.arguments("get_init_inputs")

    def inputs(self, kind: str, seed: int) -> list:
        with self.own(kind), self.default_device(), draws.stressed(kind, seed):
            construct.seed_everything(seed)
            return self.arguments("get_inputs")

    def arguments(self, name: str) -> list:
        """What get_inputs or get_init_inputs returns; a dict or a bare tensor would be unpacked into
        something else."""
        given = self.names[name]()
        if not isinstance(given, list | tuple):
            raise TaskFault(
                "unsupported", f"{name}() must return a list of arguments; it returned {describe(given)}"
            )
        return list(given)

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
        model, noise = self.build(weights), weights if noise is None else noise
        if not self.examined:
            construct.seed_everything(noise)
            before = construct.whereabouts()
        with self.own(kind), torch.no_grad(), self.default_device(), watched:
            construct.seed_everything(noise)
            answer = model(*inputs)
        if not self.examined and construct.whereabouts() != before:
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
            made["model"] = self.build(weights)
            return made["model"]

        def draw() -> list:
            inputs = self.inputs(kind, seed)
            if change is not None:
                change(made["model"], inputs)
            return inputs

        running = partial(self.running, "nudged" if nudge or change else kind)
        twin = in_float64(build, [draw], weights if noise is None else noise, running, nudge)
        return (None, None) if twin is None else (twin.answer, twin.inputs)

    def answer(self, kind: str, seed: int, weights: int, keep_inputs: bool = False) -> Answer:
        """The reference's answer to a draw, in its own dtype and in float64.

        Inputs are drawn for each anew: nobody else has had a chance to write to them, and no copy is held.
        `keep_inputs`: as they are afterwards.
        """
        self.pause()
        inputs = self.inputs(kind, seed)
        own = self.run(inputs, weights, kind=kind)
        kept = inputs if keep_inputs else None
        del inputs
        exact, exact_inputs = self.exactly(kind, seed, weights)
        return Answer(own, exact, exact_inputs if keep_inputs else None, kept, self.facts.length)

    # ---- what is found out once ----

    def calibrate(self) -> None:
        """Load the task. Is it deterministic? Which stresses does it survive? Would an answer that computes
        nothing pass?

        One draw after another, so that a task of many gigabytes never has two of them in memory.
        """
        seed, fakes = self.seed, Fakes(self.inputs, self.run if self.stress else None)
        with self.settings.learned():
            with excused("loading it"):
                self.load()
            with excused("on its own inputs"):
                answer = self.plain_answer(seed)
        with excused("on its own inputs"):
            self.repeat(seed, answer)
            fakes.look("plain", seed, answer, seed)
            del answer
            fakes.look("plain", seed + 1, self.plain_answer(seed + 1), seed + 1)
        if not self.picky:
            self.asserts = None
        for kinds in TRIALS[1:] if self.stress else ():
            self.find_stress(kinds, fakes)
        kind = next(k for k in TRIALS[1] if k in self.kinds)
        self.trains = trainable(self.on_host(seed)) and self.survives(kind, seed, fakes, -seed)
        if fakes.passing:
            raise Fault(
                "weak_task", f"the task can't tell right from wrong: {next(iter(fakes.passing))} would pass"
            )

    def plain_answer(self, seed: int) -> Answer:
        """The answer to a draw of the task's own. The draw must come out the same when it is drawn again."""
        inputs = self.inputs("plain", seed)
        if wire.describe(inputs)[0] != self.described_inputs:
            raise Fault(
                "unsupported",
                "get_inputs draws shapes or numbers anew each time: one recording can't stand for all draws",
            )
        if not identical(self.inputs("plain", seed), inputs):
            raise Fault("unsupported", "get_inputs draws from something that can't be seeded")
        self.bytes = sum(t.nbytes for t in tensors(inputs))
        del inputs
        answer = self.answer("plain", seed, seed)
        if not tensors(answer.own):
            raise Fault(
                "unsupported",
                f"forward must return tensors, in tuples, lists or dicts; it returned {describe(answer.own)}",
            )
        self.bytes += sum(t.nbytes for t in tensors(answer.own))
        return answer

    def repeat(self, seed: int, answer: Answer) -> None:
        """Run the reference again, built anew and with other seeds. Raises Fault if it gives another answer.

        This comes before any tolerance, which would be as wide as what the reference draws.
        """
        seen, noted = Computing(), Asserts(looks=False)
        self.forget_weights()
        with noted:
            again = self.run(self.inputs("plain", seed), seed, seed + 1, "plain", seen)
        self.picky = noted.met
        if seen.draws:  # from a generator of its own: in float64 that gives other numbers
            raise Fault("unsupported", RANDOM)
        self.facts = seen.facts
        self.facts.contiguous = all(t.is_contiguous() for t in tensors(again))
        self.facts.fresh = [seen.fresh(t) for t in tensors(again)]
        exact, _ = self.exactly("plain", seed, seed, seed + 1)
        if not repeats(answer, again, exact):
            raise Fault(
                "unsupported",
                "the reference is not deterministic: run twice on the same inputs, it gives two answers",
            )

    def find_stress(self, kinds: tuple[str, ...], fakes: Fakes) -> None:
        """Of these kinds, the first that the reference survives is one of its own."""
        for kind in kinds:
            if kind == "padded" and UNSTABLE & self.facts.computing.keys():
                continue
            if kind in draws.HOLES and not NAN_AWARE & self.facts.computing.keys():
                continue
            if kind in self.kinds or self.survives(kind, self.seed, fakes):
                return

    def survives(self, kind: str, seed: int, fakes: Fakes, weights: int | None = None) -> bool:
        """Whether stress (or other weights) neither breaks the reference nor changes nothing. If so, the
        fakes see this draw too."""
        try:
            if weights is None and identical(self.inputs(kind, seed), self.inputs("plain", seed)):
                return False
            weights = seed if weights is None else weights
            answer = self.answer(kind, seed, weights)
        except Exception as error:
            log.debug("%s: %s inputs: %s", self.task.name, kind, error)
            return False
        if not all_finite(answer.own) or breaks_down(answer):
            return False
        self.kinds |= {kind}
        fakes.look(kind, seed, answer, weights)
        return True

    def trials(self, secret: bytes, source: str) -> list[Trial]:
        """The trials of one candidate: the same for the same secret, task and source.

        A draw that the reference refuses is no trial, or the candidate would be blamed for what it makes of
        it.
        """
        weights = [
            seed_from(secret, self.task.key, source, "weights", i) * (-1 if i and self.trains else 1)
            for i in range(2)
        ]
        kinds = [kind for options in TRIALS if (kind := next((k for k in options if k in self.kinds), None))]
        inputs = [seed_from(secret, self.task.key, source, "inputs", i) for i in range(len(kinds))]
        found = [
            Trial(k, seed, weights[i % 2 if self.has_weights else 0])
            for i, (k, seed) in enumerate(zip(kinds, inputs, strict=True))
        ]
        return [t for t in found if t.kind == "plain" or not self.picky or self.takes(t)]

    def takes(self, trial: Trial) -> bool:
        """Whether the reference takes this draw: it has taken another one of this kind."""
        try:
            with excused("under stress"):
                self.run(self.inputs(trial.kind, trial.inputs), trial.weights, kind=trial.kind)
        except TaskFault as fault:
            if fault.status != "unsupported":
                raise
            return False
        return True


def trainable(model: torch.nn.Module) -> bool:
    """Whether a finished module's parameters may be changed: no attribute is a tensor that was made of them,
    unless each call makes it anew."""
    stale = any(
        isinstance(t, torch.Tensor)
        for m in model.modules()
        if not m._forward_pre_hooks
        for t in vars(m).values()
    )
    return not stale and any(p.is_floating_point() and p.numel() > 1 for p in model.parameters())


def replicas(model: torch.nn.Module, device: torch.device) -> dict[int, torch.Tensor]:
    """What copy.deepcopy shall put in place of a module's tensors, by id: them on the device, also those that
    are plain attributes."""
    found: dict[int, torch.Tensor] = {}
    for module in model.modules():
        for t in (*module._parameters.values(), *module._buffers.values(), *vars(module).values()):
            if isinstance(t, torch.Tensor) and id(t) not in found:
                there = t.detach().to(device)
                found[id(t)] = (
                    torch.nn.Parameter(there, t.requires_grad) if isinstance(t, torch.nn.Parameter) else there
                )
    return found


class Computing(TorchDispatchMode):
    """Facts of the reference as it runs: the ATen calls that compute (no views, no copies) and their FLOPs,
    counted as on plans.

    draws: whether one of them takes random numbers.
    """

    def __init__(self):
        super().__init__()
        self.facts = Facts()
        self.draws = False
        self.made: set[int] = set()  # addresses of storages that operators made

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # else the first call imports torch._dynamo, for seconds, to turn off what is never on here
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out, name = func(*args, **(kwargs or {})), func.overloadpacket.__name__
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.draws |= not any(part in name for part in MAY_DRAW)
        for t in tree_leaves(out):
            if isinstance(t, torch.Tensor) and all(r.alias_info is None for r in func._schema.returns):
                self.made.add(t.untyped_storage().data_ptr())
        view = any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
        if not view and name not in CREATE | MOVE:
            self.facts.computing[name] = self.facts.computing.get(name, 0) + 1
            reads = [t for t in tree_leaves([args, kwargs]) if isinstance(t, torch.Tensor)]
            writes = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
            self.count(name, reads, writes)
        return out

    def fresh(self, output: torch.Tensor) -> bool:
        """Whether it lies in memory that forward made, each element in a place of its own."""
        made = output.untyped_storage().data_ptr() in self.made
        return made and not overlaps_itself(tuple(output.shape), output.stride())

    def count(self, name: str, reads: list[torch.Tensor], writes: list[torch.Tensor]) -> None:
        """Add a computing call's FLOPs, and note how many numbers it sums for one value."""
        length = 0
        if name in MATMULS:
            length = reads[MATMULS[name]].shape[-1]
        elif name == "convolution":
            length = reads[1][0].numel()
        if length:
            self.facts.flops += 2.0 * writes[0].numel() * length
        else:
            self.facts.flops += max((t.numel() for t in reads + writes), default=0)
        if name in SUMS and writes[0].numel():
            length = reads[0].numel() // writes[0].numel()
        self.facts.length = max(self.facts.length, length)
