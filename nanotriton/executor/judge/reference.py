"""A task's own `Model`: trusted code, loaded into the judge's process, drawn for, and run in the task's dtype and in float64.

Inputs are drawn as the task draws them, or under stress (draws.py); weights as its constructor makes them, or with others. What is known of a task
(which stresses its reference survives, whether a constant would pass) is found once and cached by content. Answers never are.
"""

import contextlib
import copy
import logging
import traceback
from collections.abc import Callable

import torch

from nanotriton.executor.common import construct
from nanotriton.executor.common.construct import seed_from
from nanotriton.executor.judge import draws, moves
from nanotriton.executor.judge.compare import Answer, all_finite, passes
from nanotriton.executor.judge.fakes import Fakes
from nanotriton.executor.judge.kinds import (
    MOVED,
    OTHER_NUMBERS,
    SECOND,
    TRIALS,
    Called,
    Computing,
    Trial,
    divides_integers,
    fits,
    has_other_numbers,
    late_leaves,
)
from nanotriton.plan import wire
from nanotriton.plan.plan import digest
from nanotriton.plan.trees import describe, identical, leaves, tensors, widen
from nanotriton.tasks.task import Task
from nanotriton.verdict import Fault, TaskFault, out_of_memory

LARGE = 1 << 20  # bytes of a weight that is sent only if it differs from the reference's
BUILT = 3  # modules of a task that are kept: a candidate has two, and timing may want another
log = logging.getLogger(__name__)


@contextlib.contextmanager
def excused(doing: str):
    """What goes wrong inside is the task's fault: the sample leaves the batch, unless it is a limit that has a status."""
    try:
        yield
    except Fault:
        raise
    except Exception as error:
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
    """A task's module, loaded: trusted code, it runs in the judge's process. Raises Fault if the task is no fair question.

    pause: called between two computations of the reference.
    """

    def __init__(self, task: Task, device: str = "cpu", pause: Callable[[], None] = lambda: None):
        self.pause = pause
        self.task, self.device, self.seed = task, torch.device(device), seed_from("calibrate", task.key)
        self.names: dict = {"__name__": "task"}
        self.built: dict[int, torch.nn.Module] = {}  # the last few modules, by seed, on the CPU
        self.digests: dict[int, dict[str, torch.Tensor]] = {}  # and their large weights, by hash
        # buffers that construct.moved_constants moved; a candidate's of the same name are moved too
        self.moved_buffers: set[str] = set()
        self.kinds: frozenset[str] = frozenset(["plain"])
        # of the arguments, counted as leaves of what get_inputs returns:
        self.drawn: list[int] = []  # floats that differ between two draws
        self.late: dict[str, tuple[int, ...]] = {}  # kind -> those that it distorts once they are returned
        self.moves: dict[int, str] = {}  # the way (moves.WAYS) in which one that never differs is moved
        self.moved_init: frozenset[int] = frozenset()  # numbers that the constructor gets, moved
        self.unvaried: list[str] = []  # what no trial varies
        self.second_kind = "plain"  # of the inputs of a second call
        with excused("loading it"):
            exec(compile(task.source, f"<task {task.name}>", "exec"), self.names)
            self.has_weights = bool(self.weights(self.seed))
            self.described_inputs = wire.describe(self.inputs("plain", 0))[0]
        self.calibrate()

    # ---- what a trial is made of ----

    def default_device(self):
        """Tensors are made on the device by default (on the CPU they are anyway, and the mode costs time)."""
        return self.device if self.device.type != "cpu" else contextlib.nullcontext()

    def build(self, seed: int) -> torch.nn.Module:
        """The reference, constructed as a candidate is: on the CPU, same seed, same moved constants. A copy goes to its device."""
        host = self.on_host(seed)
        return copy.deepcopy(host, {} if self.device.type == "cpu" else replicas(host, self.device))

    def weights(self, seed: int) -> dict[str, torch.Tensor]:
        """The module's state, on the CPU: a kernel that writes where it should not can't reach it there."""
        return dict(self.on_host(seed).state_dict())

    def large_weights(self, seed: int) -> dict[str, torch.Tensor]:
        """Weights of a megabyte or more by plan.digest of their bytes: a candidate that has the same need not send them."""
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
            # no graph: it can't be copied
            with torch.no_grad(), construct.moved_constants(abs(seed), found=self.moved_buffers) as settled:
                arguments = self.init_arguments(seed)
                construct.seed_everything(abs(seed))
                self.built[seed] = settled(self.names["Model"](*arguments))
            if seed < 0:
                construct.train_(self.built[seed], seed)
            while len(self.built) > BUILT:
                del self.built[next(iter(self.built))]
        return self.built[seed]

    def forget_weights(self) -> None:
        self.built.clear()
        self.digests.clear()

    def init_arguments(self, weights: int) -> list:
        construct.seed_everything(abs(weights))
        given = self.arguments("get_init_inputs")
        if not has_other_numbers(weights):
            return given
        values = dict(enumerate(leaf for _, leaf in leaves(given)))
        return moves.with_leaves(given, {i: moves.moved_number(values[i]) for i in self.moved_init})

    def inputs(self, kind: str, seed: int) -> list:
        base = kind.removeprefix(MOVED)
        given = self.draw(base, seed)
        late, moved = self.late.get(base, ()), self.moves if kind.startswith(MOVED) else {}
        if not late and not moved:
            return given
        given = copy.deepcopy(given)  # the task may keep what it returned
        values, numbers = [leaf for _, leaf in leaves(given)], {}
        generator = torch.Generator().manual_seed(seed_from("late", seed))
        for i in late:
            draws.distort_late(values[i], base, generator)
        for i, way in moved.items():
            if isinstance(values[i], torch.Tensor):
                moves.move(values[i], way, seed_from(seed, i))
            else:
                numbers[i] = moves.moved_number(values[i])
        return moves.with_leaves(given, numbers) if numbers else given

    def draw(self, kind: str, seed: int) -> list:
        with self.default_device(), draws.stressed(kind, seed):
            construct.seed_everything(seed)
            return self.arguments("get_inputs")

    def described(self, weights: int) -> tuple[list, list]:
        """What a recording with these weights has to know of the arguments of forward, and of the constructor."""
        inputs = self.described_inputs
        if has_other_numbers(weights):
            inputs = wire.describe(self.inputs(MOVED + "plain", 0))[0]
        return inputs, wire.describe(self.init_arguments(weights))[0]

    def arguments(self, name: str) -> list:
        """What get_inputs or get_init_inputs returns; a dict or a bare tensor would be unpacked into something else."""
        given = self.names[name]()
        if not isinstance(given, list | tuple):
            raise TaskFault(
                "unsupported", f"{name}() must return a list of arguments; it returned {describe(given)}"
            )
        return list(given)

    def run(
        self, inputs: list, weights: int, noise: int | None = None, watched=contextlib.nullcontext()
    ) -> object:
        """The reference's answer in its own dtype. It may write to the inputs. noise: the seed if forward draws, instead of that of the weights."""
        model = self.build(weights)
        with torch.no_grad(), self.default_device(), watched:
            construct.seed_everything(weights if noise is None else noise)
            return model(*inputs)

    def answer(self, kind: str, seed: int, weights: int, keep_inputs: bool = False) -> Answer:
        """The reference's answer to a draw, in its own dtype and in float64.

        Inputs are drawn for each anew: nobody else has had a chance to write to them, and no copy is held. `keep_inputs`: as they are afterwards.
        """
        self.pause()
        inputs = self.inputs(kind, seed)
        own = self.run(inputs, weights)
        kept = inputs if keep_inputs else None
        del inputs
        with torch.no_grad(), self.default_device():
            exact, exact_inputs = in_float64(self.build(weights), self.inputs(kind, seed), weights)
        return Answer(own, exact, exact_inputs if keep_inputs else None, kept)

    # ---- what is found out once ----

    def calibrate(self) -> None:
        """Which stresses does the reference survive? Is it deterministic? Would an answer that computes nothing pass?

        One draw after another, so that a task of many gigabytes never has two of them in memory.
        """
        seed, fakes = self.seed, Fakes(self.inputs, self.run)
        with excused("on its own inputs"):
            for s in (seed, seed + 1):
                inputs = self.inputs("plain", s)
                if wire.describe(inputs)[0] != self.described_inputs:
                    raise Fault(
                        "unsupported",
                        "get_inputs draws shapes or numbers anew each time: one recording can't stand for all draws",
                    )
                if not identical(self.inputs("plain", s), inputs):
                    raise Fault("unsupported", "get_inputs draws from something that can't be seeded")
                self.bytes = sum(t.nbytes for t in tensors(inputs))
                self.tensors = len(tensors(inputs))
                del inputs
                answer = self.answer("plain", s, s)
                if not tensors(answer.own):
                    raise Fault(
                        "unsupported",
                        f"forward must return tensors, in tuples, lists or dicts; it returned {describe(answer.own)}",
                    )
                if s == seed + 1:
                    seen = Computing()
                    with Called(seen.called):
                        again = self.run(self.inputs("plain", s), s, s + 1, seen)
                    self.facts, self.called = seen.facts, seen.called
                    self.bytes += sum(t.nbytes for t in tensors(again))
                    self.facts.contiguous = all(t.is_contiguous() for t in tensors(again))
                    if not passes(again, answer):
                        raise Fault(
                            "unsupported",
                            "the reference is not deterministic: it draws random numbers in forward",
                        )
                    del again
                fakes.look("plain", s, answer, s)
                del answer
        same = self.constants([])
        self.drawn = [
            i
            for i, (_, t) in enumerate(leaves(self.draw("plain", seed)))
            if isinstance(t, torch.Tensor) and t.is_floating_point() and i not in same
        ]
        for kinds in TRIALS[1:]:
            self.choose(kinds, seed, fakes)
        kind = self.chosen(TRIALS[1])
        self.trains = trainable(self.on_host(seed)) and self.survives(kind, seed, fakes, -seed)
        self.find_moves(seed)
        self.second_kind = self.choose(SECOND, seed, fakes)
        if fakes.passing:
            raise Fault(
                "weak_task", f"the task can't tell right from wrong: {next(iter(fakes.passing))} would pass"
            )

    def choose(self, kinds: tuple[str, ...], seed: int, fakes: Fakes) -> str | None:
        """The first of these kinds that the task survives."""
        for kind in kinds:
            if fits(kind, self.called) and (kind in self.kinds or self.survives(kind, seed, fakes)):
                return kind
        return None

    def chosen(self, kinds: tuple[str, ...]) -> str | None:
        return next((kind for kind in kinds if kind in self.kinds), None)

    def survives(self, kind: str, seed: int, fakes: Fakes, weights: int | None = None) -> bool:
        """Whether stress (or other weights) neither breaks the reference nor changes nothing. If so, the fakes see this draw too.

        What the kind misses is distorted late, unless it is that which breaks the reference.
        """
        if weights is not None:
            return self.stands(kind, seed, fakes, weights)
        try:
            untouched = self.same(self.draw(kind, seed), self.draw("plain", seed))
        except Exception as error:
            log.debug("%s: %s inputs: %s", self.task.name, kind, error)
            return False
        nothing = len(untouched) == self.tensors
        if late := late_leaves(kind, self.drawn, untouched, nothing):
            self.late[kind] = late
            if self.stands(kind, seed, fakes, seed):
                return True
            del self.late[kind]
        return not nothing and self.stands(kind, seed, fakes, seed)

    def stands(self, kind: str, seed: int, fakes: Fakes, weights: int) -> bool:
        """Whether the reference answers this draw, and all is finite."""
        answer = self.finite_answer(kind, seed, weights)
        if answer is None:
            return False
        self.kinds |= {kind}
        fakes.look(kind, seed, answer, weights)
        return True

    def finite_answer(self, kind: str, seed: int, weights: int) -> Answer | None:
        try:
            answer = self.answer(kind, seed, weights)
        except Exception as error:
            log.debug("%s: %s inputs: %s", self.task.name, kind, error)
            return None
        return answer if all_finite(answer.own) else None

    def same(self, one: list, other: list) -> list[int]:
        """The numbers of the leaves that are tensors and the same in both."""
        pairs = zip(leaves(one), leaves(other), strict=True)
        return [
            i
            for i, ((_, x), (_, y)) in enumerate(pairs)
            if isinstance(x, torch.Tensor) and identical([x], [y])
        ]

    # ---- what no draw varies ----

    def find_moves(self, seed: int) -> None:
        """Find a way to move each argument that is the same in all draws, and the numbers that the constructor gets.

        First all at once, each in the way that fits best; if the reference does not survive that, one after another.
        What is left is named in `unvaried`.
        """
        given = leaves(self.draw("plain", seed))
        values = [leaf for _, leaf in given]
        constants = self.constants(values)
        options = {i: self.ways(values[i], i in constants) for i in range(len(values))}
        options = {i: found for i, found in options.items() if found}
        init = [leaf for _, leaf in leaves(self.init_arguments(seed))]
        floats = frozenset(i for i, leaf in enumerate(init) if type(leaf) is float)
        if not options and not floats:
            self.unvaried = self.left(given, constants, seed)
            return
        wanted = self.tensor_layout(self.answer("plain", seed, seed))
        if not self.try_moves({i: found[0] for i, found in options.items()}, floats, seed, wanted):
            for i, found in options.items():
                any(self.try_moves(self.moves | {i: way}, self.moved_init, seed, wanted) for way in found)
            for i in floats:
                self.try_moves(self.moves, self.moved_init | {i}, seed, wanted)
        self.unvaried = self.left(given, constants, seed)
        self.unvaried += [f"init[{i}]" for i in sorted(floats - self.moved_init)]

    def constants(self, values: list) -> set[int]:
        """Numbers of the arguments that are the same in all draws; those that are no tensors always are."""
        other = self.draw("plain", self.seed + 1)
        same = set(self.same(other, self.draw("plain", self.seed)))
        return same | {i for i, leaf in enumerate(values) if not isinstance(leaf, torch.Tensor)}

    def ways(self, leaf: object, constant: bool) -> tuple[str, ...]:
        if not isinstance(leaf, torch.Tensor):
            return ("number",) if type(leaf) in (int, float) else ()
        if constant:
            return moves.ways(leaf)
        whole = not leaf.is_floating_point() and leaf.dtype not in (torch.bool, torch.uint8)
        return ("negate",) if whole and divides_integers(self.called) else ()

    def try_moves(self, ways: dict[int, str], init: frozenset[int], seed: int, wanted: list) -> bool:
        """Whether the reference survives these moves, with answers of the same shapes. If so, they are kept."""
        before = self.moves, self.moved_init
        self.moves, self.moved_init = ways, init
        self.built.pop(seed | OTHER_NUMBERS, None)
        answer = None
        with contextlib.suppress(Exception):
            if self.all_moved(ways, seed):
                kind, weights = MOVED + self.chosen(TRIALS[1]), self.moved_weights(seed)
                answer = self.finite_answer(kind, seed, weights)
        if answer is not None and self.tensor_layout(answer) == wanted:
            return True
        self.moves, self.moved_init = before
        self.built.pop(seed | OTHER_NUMBERS, None)
        return False

    def all_moved(self, ways: dict[int, str], seed: int) -> bool:
        """Whether each way changes its argument, in this draw."""
        moved, plain = leaves(self.inputs(MOVED + "plain", seed)), leaves(self.draw("plain", seed))
        return all(
            not identical([moved[i][1]], [plain[i][1]])
            if isinstance(plain[i][1], torch.Tensor)
            else moved[i][1] != plain[i][1]
            for i in ways
        )

    @property
    def moves_numbers(self) -> bool:
        return bool(self.moved_init) or "number" in self.moves.values()

    def moved_weights(self, seed: int) -> int:
        """The seed of weights of a trial whose arguments are moved."""
        if not self.moves_numbers:
            return seed
        return seed | OTHER_NUMBERS if seed > 0 else -(-seed | OTHER_NUMBERS)

    def left(self, given: list[tuple[str, object]], constants: set[int], seed: int) -> list[str]:
        """The arguments that are neither drawn nor moved, as one would write them."""
        rest = sorted(constants - self.moves.keys())
        kind = self.chosen(TRIALS[2])
        if rest and kind:
            rest = [i for i in rest if i in self.same(self.inputs(kind, seed), self.draw("plain", seed))] + [
                i for i in rest if not isinstance(given[i][1], torch.Tensor) and given[i][1] is not None
            ]
        return [f"input{given[i][0]}" for i in sorted(set(rest))]

    @staticmethod
    def tensor_layout(answer: Answer) -> list:
        return [(t.shape, t.dtype) for t in tensors(answer.own)]

    # ---- trials ----

    def trials(self, secret: bytes, source: str) -> list[Trial]:
        """The trials of one candidate: the same for the same secret, task and source."""
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
        if self.moves or self.moved_init:
            scaled = found[1]
            found[1] = Trial(MOVED + scaled.kind, scaled.inputs, self.moved_weights(scaled.weights))
        return found


def trainable(model: torch.nn.Module) -> bool:
    """Whether a finished module's parameters may be changed: no attribute is a tensor that was made of them, unless each call makes it anew."""
    stale = any(
        isinstance(t, torch.Tensor)
        for m in model.modules()
        if not m._forward_pre_hooks
        for t in vars(m).values()
    )
    return not stale and any(p.is_floating_point() and p.numel() > 1 for p in model.parameters())


def replicas(model: torch.nn.Module, device: torch.device) -> dict[int, torch.Tensor]:
    """What copy.deepcopy shall put in place of a module's tensors, by id: them on the device, also those that are plain attributes."""
    found: dict[int, torch.Tensor] = {}
    for module in model.modules():
        for t in (*module._parameters.values(), *module._buffers.values(), *vars(module).values()):
            if isinstance(t, torch.Tensor) and id(t) not in found:
                there = t.detach().to(device)
                found[id(t)] = (
                    torch.nn.Parameter(there, t.requires_grad) if isinstance(t, torch.nn.Parameter) else there
                )
    return found


def in_float64(model: torch.nn.Module, inputs: list, seed: int) -> tuple[object, list | None]:
    """(answer, inputs afterwards) in float64, or (None, None) where the task insists on its dtype."""
    default, inputs = torch.get_default_dtype(), widen(inputs)
    torch.set_default_dtype(torch.float64)
    try:
        construct.seed_everything(seed)
        return model.double()(*inputs), inputs
    except (RuntimeError, TypeError, ValueError) as error:
        if out_of_memory(error):
            raise
        return None, None
    finally:
        torch.set_default_dtype(default)
