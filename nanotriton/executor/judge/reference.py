"""A task's own `Model`: trusted code, loaded into the judge's process, drawn for, and run in the task's dtype
and in float64.

Inputs are drawn as the task draws them, or under stress (draws.py); weights as its constructor makes them, or
with others. What is known of a task (which stresses its reference survives, whether a constant would pass) is
found once and cached by content. Answers never are.
"""

import contextlib
import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch

from nanotriton.executor.common import construct
from nanotriton.executor.common.construct import seed_from
from nanotriton.executor.common.training import Trained, train_
from nanotriton.executor.gpu import driver
from nanotriton.executor.judge import draws
from nanotriton.executor.judge.asserts import Asserts
from nanotriton.executor.judge.attributes import only_left
from nanotriton.executor.judge.compare import Answer, all_finite, is_fair, passes, repeats
from nanotriton.executor.judge.computing import Computing, in_tf32
from nanotriton.executor.judge.constants import Search, same_tensors
from nanotriton.executor.judge.drawn import Drawn
from nanotriton.executor.judge.fakes import Fakes
from nanotriton.executor.judge.kinds import (
    BEFORE,
    MOVED,
    OTHER_NUMBERS,
    TRIALS,
    Trial,
    fits,
    grown,
    grows,
    has_other_numbers,
    late_leaves,
    trains_buffers,
    untrained,
    with_same_buffers,
)
from nanotriton.executor.judge.literals import COMPARING, LIMITING, OwnNumbers, literals
from nanotriton.executor.judge.module import (
    Allowance,
    Exited,
    Interruption,
    arguments,
    check_arguments,
    contained,
    import_task,
    line_in_task,
)
from nanotriton.executor.judge.moves import Moves, with_leaves
from nanotriton.executor.judge.nudging import Nudge
from nanotriton.executor.judge.origins import what_to_train
from nanotriton.executor.judge.settings import Settings, take_place
from nanotriton.executor.judge.twin import in_float64
from nanotriton.executor.judge.values import Precision
from nanotriton.plan import wire
from nanotriton.plan.aten import words
from nanotriton.plan.facts import Facts
from nanotriton.plan.plan import digest
from nanotriton.plan.trees import describe, identical, leaves, mapped, tensors
from nanotriton.tasks.task import REQUIRED, Task
from nanotriton.verdict import Fault, TaskFault, out_of_memory

LOOKS_AT_MODE = re.compile(r"\.training\b")  # in a task's text
LARGE = 1 << 20  # bytes of a weight that is sent only if it differs from the reference's
BUILT = 3  # modules of a task that are kept: a candidate has two, and timing may want another
# names of torch's functions and operators that round, and of casts that do (computing.told_by_arguments)
ROUNDS = words("""
    round floor ceil trunc fix frac fmod remainder floor_divide rounding_mode truncating_cast
    fake_quantize_per_tensor_affine fake_quantize_per_channel_affine quantize_per_tensor quantize_per_channel
""")
RANDOM = "the reference is not deterministic: it draws random numbers in forward"

log = logging.getLogger(__name__)


class ContextLost(Interruption):
    """The task's own code has ended this process's CUDA context: nothing here can go on.

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
    except Exception as error:
        if out_of_memory(error):
            raise TaskFault(
                "memory_limit", f"the task needs more memory than there is for it (memory_gib), {doing}"
            ) from error
        cause = error.__cause__ if isinstance(error, Exited) else error
        said = cause.msg if isinstance(cause, SyntaxError) else cause
        text = f"{type(cause).__name__}: {said}".split("\n")[0][:300]
        if line := line_in_task(cause):
            text += f" (line {line} of the task)"
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
        self.literals = literals(task.source)
        self.called: set[str] = set()  # the names of what the reference calls
        self.dtype: torch.dtype | None = None  # of all floats that it is given, if they have one in common
        self.keeps_nothing = False  # known to leave no state between calls (calls.py)
        self.hides_state: bool | None = None  # whether it leaves some where no name shows it
        self.names: dict = {}  # of the task's module
        self.prints = Allowance(task.name)
        self.built: dict[int, torch.nn.Module] = {}  # the last few modules, by seed, on the CPU
        self.digests: dict[int, dict[str, torch.Tensor]] = {}  # and their large weights, by hash
        # buffers that construct.moved_constants moved; a candidate's of the same name are moved too
        self.moved_buffers: set[str] = set()
        self.drawn_inputs = Drawn()
        self.kinds: frozenset[str] = frozenset(["plain"])
        self.facts = Facts()
        self.reduced = False  # whether it multiplies in TF32 on its device
        self.faint: list[str | int] | None = None  # faint.find_faint, once it was asked
        self.drawn: list[int] = []  # numbers of the arguments that differ between two draws, floats
        self.late: dict[str, tuple[int, ...]] = {}  # kind -> those that it distorts once they are returned
        self.moves = Moves()  # what never differs, moved
        self.unvaried: list[str] = []  # what no trial varies
        self.before = "plain"  # the kind of the first of several calls
        self.trains = False  # whether candidates are judged on trained weights
        self.evaluates = False  # whether candidates are called in evaluation mode too
        self.modal = False  # whether its answers, or what they leave behind, are others there
        self.leaves: frozenset[str] = frozenset()  # attributes.only_left
        self.grows = False  # and on some that are large
        self.trained = Trained(())
        self.calibrate()
        self.examined = True

    def load(self) -> None:
        with self.its_code():
            self.module = import_task(self.task)
        self.names = vars(self.module)
        if missing := [name for name in REQUIRED if name not in self.names]:
            raise TaskFault("unsupported", f"the task defines no {', '.join(missing)}")
        self.default_cuda = take_place()
        self.has_weights = bool(self.weights(self.seed))
        # what a recording needs to know
        inputs = self.inputs("plain", 0)
        self.described_inputs = wire.describe(inputs)[0]
        dtypes = {t.dtype for t in tensors(inputs) if t.is_floating_point()}
        self.dtype = next(iter(dtypes)) if len(dtypes) == 1 else None

    # ---- how the task's own code is run ----

    @contextlib.contextmanager
    def its_code(self) -> Iterator[None]:
        """Run the task's own code, with its own settings. Raises Exited if it wants to end the process."""
        with self.settings.active(), contained(self.prints):
            yield

    @contextlib.contextmanager
    def own(self, kind: str) -> Iterator[None]:
        """`its_code` on inputs of this kind, until the GPU is done too. Raises ContextLost."""
        try:
            with self.its_code(), self.asserts or contextlib.nullcontext():
                yield
        finally:
            if self.device.type == "cuda" and driver.context_is_lost():
                raise ContextLost(kind)

    @contextlib.contextmanager
    def running(self, kind: str) -> Iterator[None]:
        """`own`, for calls of forward in float64."""
        with self.own(kind), torch.no_grad(), self.default_device(), self.own_numbers():
            yield

    def own_numbers(self):
        """What gives the reference in float64 the numbers that its own dtype has."""
        needed = self.dtype is not None and self.called & (COMPARING | {LIMITING})
        return OwnNumbers(self.dtype) if needed else contextlib.nullcontext()

    @property
    def precision(self) -> Precision:
        """What its arithmetic earns a candidate, as far as it is known."""
        return Precision(self.facts.length, self.reduced, "near_zero" in self.called)

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
        goes to its device, which pulls weights apart that share memory."""
        host = self.on_host(seed)
        stays = self.device.type == "cpu" and not construct.shares_memory(host)
        return construct.copied(host, None if stays else construct.replicas(host, self.device))

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
            if untrained(seed) in self.built:  # a copy is quicker than a constructor that draws
                model = construct.copied(self.built[untrained(seed)])
            else:
                model = self.construct(untrained(seed))
            if seed < 0:
                train_(model, untrained(seed), self.trained_with(seed))
            self.built[seed] = model
            while len(self.built) > BUILT:
                del self.built[next(iter(self.built))]
        return self.built[seed]

    def construct(self, seed: int) -> torch.nn.Module:
        """The module as its constructor leaves it, with moved constants."""
        moved = construct.moved_constants(seed, found=self.moved_buffers)
        # no graph: it can't be copied
        with self.its_code(), torch.no_grad(), moved as settled:
            arguments = self.init_arguments(seed)
            construct.seed_everything(seed)
            model = self.names["Model"](*arguments)
            if construct.is_unfinished(model):
                self.finish_lazy(model)
            return settled(model)

    def finish_lazy(self, model: torch.nn.Module) -> None:
        """Give lazy layers the weights that they would draw if they had been given their shapes at once."""
        states = construct.generator_states()
        inputs = mapped(self.draw("plain", 0), lambda t: t.cpu())
        construct.set_generators(states)
        construct.finish_lazy(model, lambda: model(*inputs))
        if construct.is_unfinished(model):
            raise TaskFault("unsupported", "forward does not call a lazy layer of the module")

    def trained_with(self, seed: int) -> Trained:
        """What training changes of the weights of a seed."""
        trained = self.trained if trains_buffers(seed) else self.trained.without_buffers()
        return replace(trained, grows=grows(seed))

    def forget_weights(self) -> None:
        self.built.clear()
        self.digests.clear()

    def forget_all(self) -> None:
        """Give back the memory that is not needed to judge a candidate, but to do so quickly."""
        self.forget_weights()
        self.drawn_inputs.forget()

    def init_arguments(self, weights: int) -> list:
        with self.its_code():
            construct.seed_everything(untrained(weights))
            given = self.arguments("get_init_inputs")
        return self.moves.of_init(given) if has_other_numbers(weights) else given

    def inputs(self, kind: str, seed: int) -> list:
        """A draw of one of draws.KINDS; if MOVED comes before it, with what never differs moved."""
        base = kind.removeprefix(MOVED)
        given = self.draw(base, seed)
        if late := self.late.get(base):
            values, changed = [leaf for _, leaf in leaves(given)], {}
            generator = torch.Generator().manual_seed(seed_from("late", seed))
            for i in late:
                how = base if i == late[0] else draws.FIRST_ALONE.get(base, base)
                changed[i] = draws.distorted_late(values[i], how, generator, self.literals)
            given = with_leaves(given, changed)
        return self.moves.of_inputs(given, seed) if kind.startswith(MOVED) else given

    def draw(self, kind: str, seed: int) -> list:
        """What get_inputs gives under this kind of stress."""
        if self.device.type != "cpu":
            return self.draw_anew(kind, seed)
        given = self.drawn_inputs.copy_of((kind, seed))
        if given is None:
            given = self.draw_anew(kind, seed)
            self.drawn_inputs.keep((kind, seed), given)
        return given

    def draw_anew(self, kind: str, seed: int) -> list:
        with self.own(kind), self.default_device(), draws.stressed(kind, seed, self.literals):
            construct.seed_everything(seed)
            given = self.arguments("get_inputs")
            return given if self.device.type == "cpu" else mapped(given, lambda t: t.to(self.device))

    def described(self, weights: int) -> tuple[list, list]:
        """What a recording with these weights has to know of the arguments of forward, and of the
        constructor."""
        inputs = self.described_inputs
        if has_other_numbers(weights):
            inputs = wire.describe(self.inputs(MOVED + "plain", 0))[0]
        return inputs, wire.describe(self.init_arguments(weights))[0]

    def arguments(self, name: str) -> list:
        """What get_inputs or get_init_inputs returns, as a list of arguments. Raises TaskFault."""
        model = self.names["Model"]
        function = model if name == "get_init_inputs" else partial(model.forward, None)
        given = arguments(self.names[name](), function, name)
        if not self.examined:
            check_arguments(given, name)
        return given

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
        return (None, None) if twin is None else (twin.answers[-1], twin.inputs[-1])

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
        return Answer(own, exact, exact_inputs if keep_inputs else None, kept, self.precision)

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
        self.drawn_inputs.forget()  # what the task sets was not known yet
        with excused("on its own inputs"):
            self.repeat(seed, answer)
            fakes.look("plain", seed, answer, seed)
            del answer
            fakes.look("plain", seed + 1, self.plain_answer(seed + 1), seed + 1)
        if not self.picky:
            self.asserts = None
        if self.stress:
            found = self.find_fixed()
            self.find_stress(fakes)
        self.trains = self.find_training(fakes)
        if self.stress:
            self.find_left()
            self.find_modes()
            self.find_moves(Search(self, *found), fakes)
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
        if not identical(self.draw_anew("plain", seed), inputs):
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
        self.facts, self.called = seen.facts, seen.called
        self.facts.rounds = bool(ROUNDS & seen.called)
        with self.own("plain"):
            self.reduced = in_tf32(self.called, self.device)
        self.facts.contiguous = all(t.is_contiguous() for t in tensors(again))
        self.facts.fresh = [seen.fresh(t) for t in tensors(again)]
        exact, _ = self.exactly("plain", seed, seed, seed + 1)
        if not repeats(answer, again, exact):
            raise Fault(
                "unsupported",
                "the reference is not deterministic: run twice on the same inputs, it gives two answers",
            )

    def find_training(self, fakes: Fakes) -> bool:
        """Find which weights may change, and return whether the reference survives it."""
        seed = self.seed
        anew = partial(self.construct, seed)
        self.trained = what_to_train(self.on_host(seed), self.on_host(seed + 1), anew)
        kind = self.chosen(TRIALS[1])
        ways = (self.trained, replace(self.trained, flips=False))
        for trained in (*ways, *(way.without_buffers() for way in ways)):
            weights = -seed if trained.buffers else with_same_buffers(-seed)
            self.trained = trained
            if trained and self.stands(kind, fakes, weights):
                self.grows = self.stands("plain", fakes, grown(weights))
                return True
            self.forget_weights()  # those of another training go by the same seed
        return False

    def find_left(self) -> None:
        """Find what forward leaves on the module for others to read."""
        model = self.build(self.seed)

        def call() -> None:
            with self.running("plain"):
                construct.seed_everything(self.seed)
                model(*self.inputs("plain", self.seed))

        with contextlib.suppress(Exception):  # a second call is not what the task asks for
            self.leaves = only_left(model, call)

    def find_modes(self) -> None:
        """Find whether the reference can be called in evaluation mode, and whether it then does other things.

        A task that chooses evaluation mode itself is not asked for the other one. Nor is one of which a batch
        norm does other things there: a kernel for the mode that its module comes in does what is asked. Where
        the task's own text looks at the mode, both are asked for.
        """
        if not self.on_host(self.seed).training:
            return
        try:
            own, other = self.called_in_mode(False), self.called_in_mode(True)
        except Exception as error:
            log.debug("%s: in evaluation mode: %s", self.task.name, error)
            return
        if own is not None and other is not None:
            differs = not passes(other, Answer(own, None, None, None))
            self.modal = differs and LOOKS_AT_MODE.search(self.task.source) is not None
            self.evaluates = self.modal or not differs

    def called_in_mode(self, evaluates: bool) -> list | None:
        """A plain draw's answer and the state that it leaves behind. None: it draws, or isn't finite."""
        model, inputs = self.build(self.seed), self.inputs("plain", self.seed)
        construct.seed_everything(self.seed)
        before = construct.whereabouts()
        with self.running("plain"):
            construct.seed_everything(self.seed)
            answer = model.eval()(*inputs) if evaluates else model(*inputs)
        if construct.whereabouts() != before or not all_finite(answer):
            return None
        return [answer, {name: t.detach() for name, t in construct.named_state(model).items()}]

    def find_stress(self, fakes: Fakes) -> None:
        """Find which kinds of inputs the reference survives."""
        for kinds in TRIALS[1:]:
            self.choose(kinds, fakes)
        self.before = self.choose(BEFORE, fakes)

    def find_moves(self, search: Search, fakes: Fakes) -> None:
        """Move what never differs between two draws, in the ways that were found."""
        self.moves, self.unvaried = search.found, search.unvaried
        if self.moves:
            kind = MOVED + self.chosen(TRIALS[1])
            self.stands(kind, fakes, self.moved_weights(self.seed))

    def find_fixed(self) -> tuple[dict[int, object], dict[int, list[torch.Tensor]], list[str]]:
        """The arguments that are the same in two draws, by number, both draws of each other tensor, and where
        each argument is. Sets `drawn`."""
        given, other = (self.draw("plain", self.seed + i) for i in range(2))
        same, fixed, drawn = same_tensors(given, other), {}, {}
        others = [leaf for _, leaf in leaves(other)]
        for i, (_, leaf) in enumerate(leaves(given)):
            if i in same or not isinstance(leaf, torch.Tensor):
                fixed[i] = leaf
                continue
            drawn[i] = [leaf, others[i]]
            if leaf.is_floating_point():
                self.drawn.append(i)
        return fixed, drawn, [where for where, _ in leaves(given)]

    def choose(self, kinds: tuple[str, ...], fakes: Fakes) -> str | None:
        """The first of these kinds that the reference survives."""
        for kind in kinds:
            if fits(kind, self.called) and (kind in self.kinds or self.survives(kind, fakes)):
                return kind
        return None

    def chosen(self, kinds: tuple[str, ...]) -> str | None:
        return next((kind for kind in kinds if kind in self.kinds), None)

    def survives(self, kind: str, fakes: Fakes) -> bool:
        """Whether a kind neither breaks the reference nor changes nothing.

        What it misses is distorted late, unless that breaks the reference.
        """
        try:
            plain = self.draw("plain", self.seed)
            untouched = same_tensors(self.draw(kind, self.seed), plain)
        except Exception as error:
            log.debug("%s: %s inputs: %s", self.task.name, kind, error)
            return False
        nothing = len(untouched) == len(tensors(plain))
        if late := late_leaves(kind, self.drawn, untouched, nothing):
            self.late[kind] = late
            if self.stands(kind, fakes, self.seed):
                return True
            del self.late[kind]
        return not nothing and self.stands(kind, fakes, self.seed)

    def stands(self, kind: str, fakes: Fakes, weights: int) -> bool:
        """Whether the reference answers a draw of this kind with finite numbers. If so, the fakes
        see the draw too."""
        answer = self.finite_answer(kind, self.seed, weights)
        if answer is None:
            return False
        self.kinds |= {kind}
        fakes.look(kind, self.seed, answer, weights)
        return True

    def finite_answer(self, kind: str, seed: int, weights: int) -> Answer | None:
        try:
            answer = self.answer(kind, seed, weights)
        except Exception as error:
            log.debug("%s: %s inputs: %s", self.task.name, kind, error)
            return None
        return answer if is_fair(answer, infinite=kind.startswith(MOVED)) else None

    def moved_weights(self, seed: int) -> int:
        """The seed of the weights of a trial whose arguments are moved."""
        if not self.moves.numbers:
            return seed
        return seed | OTHER_NUMBERS if seed > 0 else -(-seed | OTHER_NUMBERS)

    def trials(self, secret: bytes, source: str) -> list[Trial]:
        """The trials of one candidate: the same for the same secret, task and source.

        A draw that the reference refuses is no trial, or the candidate would be blamed for what it makes of
        it.
        """
        weights = [
            seed_from(secret, self.task.key, source, "weights", i) * (-1 if i and self.trains else 1)
            for i in range(2)
        ]
        found = []
        for options in TRIALS:
            if kind := self.chosen(options):
                number = len(found)
                inputs = seed_from(secret, self.task.key, source, "inputs", number)
                found.append(Trial(kind, inputs, weights[number % 2 if self.has_weights else 0]))
        if self.moves:
            scaled = found[1]
            found[1] = Trial(MOVED + scaled.kind, scaled.inputs, self.moved_weights(scaled.weights))
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
