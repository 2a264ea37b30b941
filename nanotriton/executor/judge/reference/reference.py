"""A task's own `Model`, which is trusted code: it is loaded into the judge's process and run there.

It runs in the task's dtype and in float64.

Inputs are drawn as the task draws them, or under stress (draws.py); weights as its constructor makes them, or
with others. What is known of a task (which stresses its reference survives, whether a constant would pass) is
found once and cached by content. Answers never are.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch

from nanotriton.executor.common import construct
from nanotriton.executor.common.construct import seed_from
from nanotriton.executor.common.training import Trained, train_
from nanotriton.executor.gpu import driver
from nanotriton.executor.judge.comparison.compare import Answer, fill_scales, is_fair
from nanotriton.executor.judge.comparison.nudging import Nudge
from nanotriton.executor.judge.comparison.values import Precision
from nanotriton.executor.judge.inputs import draws
from nanotriton.executor.judge.inputs.kinds import (
    MOVED,
    TRIALS,
    Trial,
    grows,
    has_other_numbers,
    trains_buffers,
    untrained,
    with_other_numbers,
)
from nanotriton.executor.judge.inputs.literals import COMPARING, LIMITING, OwnNumbers, literals
from nanotriton.executor.judge.inputs.moves import Moves, with_leaves
from nanotriton.executor.judge.reference.drawn import Drawn
from nanotriton.executor.judge.reference.examination import Examination
from nanotriton.executor.judge.reference.kept import Kept, Vault
from nanotriton.executor.judge.reference.twin import in_float64
from nanotriton.executor.judge.task.asserts import Asserts
from nanotriton.executor.judge.task.module import (
    RANDOM,
    Allowance,
    ContextLost,
    arguments,
    check_arguments,
    contained,
    excused,
    import_task,
)
from nanotriton.executor.judge.task.settings import Settings, take_place
from nanotriton.executor.sandbox.clock import own_time
from nanotriton.plan import wire
from nanotriton.plan.facts import Facts
from nanotriton.plan.plan import digest
from nanotriton.plan.trees import leaves, mapped, tensors
from nanotriton.tasks.task import REQUIRED, Task
from nanotriton.verdict import Fault, TaskFault

LARGE = 1 << 20  # bytes of a weight that is sent only if it differs from the reference's
BUILT = 3  # modules of a task that are kept: a candidate has two, and timing may want another
# Of a small task, with so many bytes of weights in all of them, more are kept: those of a candidate's further
# calls, which the next one with the same draw needs too.
MORE_BUILT, SMALL_WEIGHTS = 8, 16 << 20

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
        self.settings = Settings()
        self.asserts: Asserts | None = None  # on a CPU operators look for themselves
        if self.device.type == "cuda":
            torch.cuda.init()
            self.asserts = Asserts()
        self.prints = Allowance(task.name)
        self.names: dict = {}  # of the task's module
        self.literals = literals(task.source)

        # What is going on.
        self.examined = False
        self.answering = False  # an answer is computed: nobody else writes to what is drawn
        self.unsettled: str | None = None  # the kind of inputs that a GPU may still be computing with

        # What is kept.
        self.kept = Kept(vault)
        self.drawn_inputs = Drawn()
        self.built: dict[int, torch.nn.Module] = {}  # the last few modules, by seed, on the CPU
        self.digests: dict[int, dict[str, torch.Tensor]] = {}  # and their large weights, by hash

        # What the examination finds out about its inputs.
        self.kinds: frozenset[str] = frozenset(["plain"])  # draws.KINDS that it survives
        self.bytes = 0  # of one draw and the answer to it together
        self.dtype: torch.dtype | None = None  # that all floats of a draw have, if they have one in common
        self.drawn: list[int] = []  # numbers of the arguments that differ between two draws, floats
        self.late: dict[str, tuple[int, ...]] = {}  # kind -> those that it distorts once they are returned
        self.moves = Moves()  # ways to move arguments that never differ
        self.unvaried: list[str] = []  # what no trial varies
        self.before = "plain"  # the kind of the first of several calls
        # What it finds out about what is computed.
        self.facts = Facts()
        self.called: set[str] = set()  # the names of what it calls
        self.picky = False  # whether it calls operators that refuse some values
        self.in_tf32: frozenset[str] = frozenset()  # operators that multiply in TF32 on its device
        self.faint: list[str | int] | None = None  # faint.find_faint, once it was asked
        # What it finds out about weights and state.
        # buffers that construct.moved_constants moved; a candidate's of the same name are moved too
        self.moved_buffers: set[str] = set()
        self.trained = Trained(())
        self.trains = False  # whether candidates are judged on trained weights
        self.grows = False  # whether on some large ones as well
        self.evaluates = False  # whether candidates are called in evaluation mode too
        self.modal = False  # whether its answers, or what they leave behind, are others there
        self.keeps_nothing = False  # known to leave no state between calls (calls.py)
        self.hides_state: bool | None = None  # whether it leaves some where no name shows it
        self.leaves: frozenset[str] = frozenset()  # attributes.only_left
        Examination(self).run()
        self.drawn_inputs.forget()  # no candidate will ask for these
        self.examined = True

    def load(self) -> None:
        """Run the task's file, and find out what a recording needs to know of it. Raises TaskFault."""
        with self.its_code():
            self.module = import_task(self.task)
        self.names = vars(self.module)
        if missing := [name for name in REQUIRED if name not in self.names]:
            raise TaskFault("unsupported", f"the task defines no {', '.join(missing)}")
        self.default_cuda = take_place()
        self.has_weights = bool(self.weights(self.seed))
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
        """`its_code` on inputs of this kind. Raises ContextLost.

        While the task is examined this waits until the GPU is done too. Later nobody waits before `settle`,
        so that the GPU has something to do.
        """
        done = False
        try:
            with self.its_code(), self.asserts or contextlib.nullcontext():
                yield
            done = True
        finally:
            if self.device.type == "cuda":
                # a loss on inputs of the task's own weighs more, so it is not assumed
                if self.unsettled in (None, "plain"):
                    self.unsettled = kind
                if not (done and self.examined):
                    self.settle()

    def settle(self) -> None:
        """Wait until what the task's own code has begun is done. Raises ContextLost."""
        kind, self.unsettled = self.unsettled, None
        if kind is not None and driver.context_is_lost():
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
        return Precision(self.facts.length, bool(self.in_tf32), "near_zero" in self.called)

    @property
    def defaults(self) -> dict[str, str | bool]:
        """torch's defaults that the task has set, which a candidate finds when it is imported after it."""
        dtype = self.settings.own.get("default dtype", torch.float32)
        return {"dtype": str(dtype).removeprefix("torch."), "cuda": self.default_cuda}

    # ---- what a trial is made of ----

    def default_device(self):
        """Inside, tensors are made on the device by default. On a CPU they are anyway, at no cost."""
        return self.device if self.device.type != "cpu" else contextlib.nullcontext()

    def build(self, seed: int) -> torch.nn.Module:
        """The reference, constructed as a candidate is: on the CPU, same seed, same moved constants.

        A copy goes to its device, which pulls weights apart that share memory.
        """
        host = self.on_host(seed)
        stays = self.device.type == "cpu" and not construct.shares_memory(host)
        return construct.copied(host, None if stays else construct.replicas(host, self.device))

    def weights(self, seed: int) -> dict[str, torch.Tensor]:
        """The module's state, on the CPU: a kernel that writes where it should not can't reach it there."""
        return dict(self.on_host(seed).state_dict())

    def large_weights(self, seed: int) -> dict[str, torch.Tensor]:
        """Weights of a megabyte or more, by plan.digest of their bytes.

        A candidate that has the same need not send them.
        """
        if not self.has_weights:
            return {}
        if seed not in self.digests:
            large = [t for t in self.weights(seed).values() if t.nbytes >= LARGE and t.is_contiguous()]
            self.digests[seed] = {digest(wire.raw([t])): t for t in large}
            while len(self.digests) > BUILT:
                del self.digests[next(iter(self.digests))]
        return self.digests[seed]

    def on_host(self, seed: int) -> torch.nn.Module:
        """The module with the weights of this seed, kept on the CPU for the next who asks."""
        if seed not in self.built:
            if untrained(seed) in self.built:  # a copy is quicker than a constructor that draws
                model = construct.copied(self.built[untrained(seed)])
            else:
                model = self.construct(untrained(seed))
            if seed < 0:
                train_(model, untrained(seed), self.trained_with(seed))
            self.built[seed] = model
            size = MORE_BUILT * sum(t.nbytes for t in construct.named_state(model).values())
            while len(self.built) > (MORE_BUILT if size <= SMALL_WEIGHTS else BUILT):
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
        """The constructor's arguments for these weights, by their seed."""
        with self.its_code():
            construct.seed_everything(untrained(weights))
            given = self.arguments("get_init_inputs")
        return self.moves.of_init(given) if has_other_numbers(weights) else given

    def inputs(self, kind: str, seed: int) -> list:
        """A draw of one of draws.KINDS; if MOVED comes before it, with what never differs moved."""
        if self.kept.vault is None:  # a CPU has the last draws, and copies them
            return self.inputs_anew(kind, seed)
        return self.kept.copy_of_draw((kind, seed), partial(self.inputs_anew, kind, seed))

    def inputs_anew(self, kind: str, seed: int) -> list:
        base = kind.removeprefix(MOVED)
        given = self.draw(base, seed)
        if late := self.late.get(base):
            values, changed = [leaf for _, leaf in leaves(given)], {}
            generator = torch.Generator().manual_seed(seed_from("late", seed))
            faint: dict[int, set[int]] = {}
            for number, i in enumerate(late):
                how = draws.kind_of(base, number)
                changed[i] = draws.distorted_late(values[i], how, generator, self.literals, faint)
            given = with_leaves(given, changed)
        return self.moves.of_inputs(given, seed) if kind.startswith(MOVED) else given

    def draw(self, kind: str, seed: int) -> list:
        """What get_inputs gives under this kind of stress.

        On a GPU nothing is kept that a candidate's kernel could write to.
        """
        if self.device.type != "cpu" and not self.answering:
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
        """What a recording with these weights has to know of forward's and the constructor's arguments."""
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

        Inputs are drawn for it anew: nobody else has had a chance to write to them.
        `keep_inputs`: as they are afterwards.
        """
        key = "answer", kind, seed, weights, keep_inputs
        return self.kept.once(key, partial(self.answer_anew, kind, seed, weights, keep_inputs))

    def answer_anew(self, kind: str, seed: int, weights: int, keep_inputs: bool) -> Answer:
        self.pause()
        begun, self.answering = own_time(), True
        try:
            inputs = self.inputs(kind, seed)
            own = self.run(inputs, weights, kind=kind)
            kept = inputs if keep_inputs else None
            del inputs
            exact, exact_inputs = self.exactly(kind, seed, weights)
            self.settle()  # the GPU is done: launches alone take no time
        finally:
            self.answering = False
            if self.device.type != "cpu":
                self.drawn_inputs.forget()
        left = exact_inputs if keep_inputs else None
        seconds = own_time() - begun
        answer = Answer(own, exact, left, kept, self.precision, seconds, usual_inputs=kind == "plain")
        if self.kept.active:
            fill_scales(answer)
        return answer

    def chosen(self, kinds: tuple[str, ...]) -> str | None:
        """The first of these kinds that the reference has survived."""
        return next((kind for kind in kinds if kind in self.kinds), None)

    def finite_answer(self, kind: str, seed: int, weights: int) -> Answer | None:
        """The answer to a draw, if the reference survives it and its dtype does not break down."""
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
        return with_other_numbers(seed)

    def trials(self, secret: bytes, drawer: str) -> list[Trial]:
        """The trials of a candidate: the same for the same secret, task and drawer.

        drawer: the candidate's source, or the draw that it shares with others.

        A draw that the reference refuses is no trial: else the candidate would be blamed for it.
        """
        own, others = (seed_from(secret, self.task.key, drawer, "weights", i) for i in range(2))
        weights = [own, -others if self.trains else others]  # below 0: trained
        found = []
        for options in TRIALS:
            if kind := self.chosen(options):
                number = len(found)
                inputs = seed_from(secret, self.task.key, drawer, "inputs", number)
                again = kind == "plain" and number > 0  # where no stress is survived, or fits
                in_turns = weights[1 if again else number % 2] if self.has_weights else own
                found.append(Trial(kind, inputs, in_turns))
        if self.moves:
            scaled = found[1]
            found[1] = Trial(MOVED + scaled.kind, scaled.inputs, self.moved_weights(scaled.weights))
        return [trial for trial in found if not self.may_refuse(trial.kind) or self.takes(trial)]

    def may_refuse(self, kind: str) -> bool:
        """Whether the reference may refuse a draw of this kind although it has taken another one.

        It may if it asserts something, or if several arguments are moved that have to fit each other.
        """
        moved = kind.startswith(MOVED) and len(self.moves.ways) > 1
        return kind != "plain" and (self.picky or moved)

    def takes(self, trial: Trial) -> bool:
        """Whether the reference takes this draw: it has taken another one of this kind."""
        return self.kept.once(("takes", trial), partial(self.takes_anew, trial))

    def takes_anew(self, trial: Trial) -> bool:
        try:
            with excused("under stress"):
                self.run(self.inputs(trial.kind, trial.inputs), trial.weights, kind=trial.kind)
        except TaskFault as fault:
            if fault.status != "unsupported":
                raise
            return False
        return True
