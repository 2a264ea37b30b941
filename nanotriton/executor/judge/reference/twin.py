"""The reference in float64: the twin that errors are measured against.

Most modules can be widened, with `double()`, and with them the casts in forward. One that insists on a
dtype (a weight in bf16 beside a float32 input) can't. Such a module runs as it is, and beside each operator
the same operator runs in float64.
"""

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakIdKeyDictionary

from nanotriton.executor.common import construct
from nanotriton.executor.judge.comparison.nudging import Nudge, Nudging
from nanotriton.executor.judge.task.watching import Watching, may_draw
from nanotriton.plan.trees import mapped, tensors, widen
from nanotriton.verdict import out_of_memory

# the last argument of these asks for a cast from half to float on the way, which float64 has no use for
HALF_TO_FLOAT = {"_softmax", "_log_softmax"}

Draw = Callable[[], list]
State = dict[str, torch.Tensor]
Train = Callable[[State], None]
Mode = Callable[[torch.nn.Module, int], AbstractContextManager]  # for a module, and the number of a call


def as_it_is(model: torch.nn.Module, number: int) -> AbstractContextManager:
    return contextlib.nullcontext()


@dataclass(frozen=True)
class Twin:
    """What float64 gives: the answer of each call, its inputs as it left them, the state after the last, and
    tensors that are plain attributes then."""

    answers: list[object]
    inputs: list[list]
    state: State


def in_float64(
    build: Callable[[], torch.nn.Module],
    draws: list[Draw],
    seed: int,
    running: Callable[[], AbstractContextManager],
    nudge: Nudge | None = None,
    train: Train | None = None,
    mode: Mode = as_it_is,
) -> Twin | None:
    """Call a module once for each draw, in float64. None where neither way works.

    build, draws: give the module and its inputs anew whenever they are called. running: a context for the
    task's own code. nudge: moves a floating input by what rounding may do, where something is rounded.
    train: changes the module's state in place, between the first call and the second. mode: a context for
    each call.
    """
    for way in (widened, beside):
        try:
            return way(build(), draws, seed, running, nudge, train, mode)
        except (RuntimeError, TypeError, ValueError) as error:
            if out_of_memory(error):
                raise
    return None


def widened(
    model: torch.nn.Module,
    draws: list[Draw],
    seed: int,
    running: Callable,
    nudge: Nudge | None,
    train: Train | None = None,
    mode: Mode = as_it_is,
) -> Twin:
    """Widen the module and its inputs. Raises where the task insists on its dtype."""
    nudging = contextlib.nullcontext() if nudge is None else Nudging(nudge)
    inputs = [draw() for draw in draws]
    widening = Widening(dtypes_of(model, inputs))
    wide = [widen(given) for given in inputs]
    if nudge is not None:
        for t, own in zip(tensors(wide), tensors(inputs), strict=True):
            if own.is_floating_point():
                nudging.follow(t, own.dtype)
    del inputs
    with running():
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            construct.seed_everything(seed)
            model = model.double()
            with nudging, widening:
                answers = call_each(model, wide, train, mode)
        finally:
            torch.set_default_dtype(default)
    return Twin(answers, wide, state_of(model) | construct.plain_attributes(model))


def dtypes_of(model: torch.nn.Module, inputs: list[list]) -> frozenset[torch.dtype]:
    """The float dtypes of a module's state and of its inputs."""
    return frozenset(t.dtype for t in [*state_of(model).values(), *tensors(inputs)] if t.is_floating_point())


class Widening(Watching):
    """Gives float64 where forward names a dtype that rounds no more than the task's own: `x.float()` in a
    task of fp32 or bf16, or a table `torch.arange(n, dtype=torch.float32)`.

    Else what follows would be computed in that dtype here too, and the reference would seem to make no
    errors. A dtype that is coarser than the task's rounds for its answer, and stays.

    dtypes: of the task's floats.
    """

    def __init__(self, dtypes: frozenset[torch.dtype]):
        super().__init__()
        self.widened = {torch.float32} | (dtypes if len(dtypes) == 1 else set())
        if torch.float64 in dtypes:
            self.widened = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.ops.aten.view.dtype:
            if args[0].dtype == torch.float64 and self.widened:
                raise RuntimeError("a float64 has other bits")
            return func(*args, **kwargs)
        if kwargs.get("dtype") in self.widened:
            kwargs = {**kwargs, "dtype": torch.float64}
        return func(*args, **kwargs)


def beside(
    model: torch.nn.Module,
    draws: list[Draw],
    seed: int,
    running: Callable,
    nudge: Nudge | None,
    train: Train | None = None,
    mode: Mode = as_it_is,
) -> Twin:
    """Run the module as it is, and the float64 twin of each operator beside it."""
    operators = Beside()
    inputs = [draw() for draw in draws]
    for t in tensors(inputs):
        if nudge is not None and t.is_floating_point():
            operators.twins[t] = nudge(t)
    with running(), operators:
        construct.seed_everything(seed)
        answers = call_each(model, inputs, train, mode)
    named = construct.named_state(model) | construct.plain_attributes(model)
    state = {name: operators.twin(t) for name, t in named.items()}
    return Twin(mapped(answers, operators.twin), mapped(inputs, operators.twin), state)


def call_each(
    model: torch.nn.Module, inputs: list[list], train: Train | None, mode: Mode = as_it_is
) -> list[object]:
    """The answers of one module, which `train` changes after the first call."""
    answers = []
    for number, given in enumerate(inputs):
        if number == 1 and train is not None:
            train(state_of(model))
        with mode(model, number):
            answers.append(model(*given))
    return answers


def state_of(model: torch.nn.Module) -> State:
    """Parameters and buffers by name, a tied one under each of its names."""
    return {name: t.detach() for name, t in construct.named_state(model).items()}


Which = int | str  # an input tensor's number, or a weight's name


def tensor_of(model: torch.nn.Module, inputs: list, which: Which) -> torch.Tensor:
    """The input or the weight, for writing to it."""
    return (tensors(inputs)[which] if isinstance(which, int) else state_of(model)[which]).detach()


def named(which: Which) -> str:
    return f"input {which}" if isinstance(which, int) else f"the weight {which}"


class Beside(Watching):
    """Runs each operator as it is, and again with every floating tensor's float64 twin in its place.

    A view of a tensor has a view of its twin, and what is written in place is written to both. Integers and
    truth values have no twins: they are as the task's own dtype decided. So are random numbers, and
    whatever has no operator in float64.
    """

    def __init__(self):
        super().__init__()
        self.twins = WeakIdKeyDictionary()

    def twin(self, t):
        if not isinstance(t, torch.Tensor) or not t.is_floating_point():
            return t
        if t not in self.twins:
            self.twins[t] = t.detach().to(torch.float64, copy=True)
        return self.twins[t]

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        wide_args, wide_kwargs = tree_map(self._wide, (args, kwargs))
        if func.overloadpacket.__name__ in HALF_TO_FLOAT:
            wide_args = (*wide_args[:-1], False)
        own = func(*args, **kwargs)
        made = tree_leaves(own)
        if not any(isinstance(t, torch.Tensor) and t.is_floating_point() for t in made):
            return own
        twins = [None] * len(made)
        if not may_draw(func, args, kwargs):
            try:
                twins = tree_leaves(func(*wide_args, **wide_kwargs))
            except (RuntimeError, TypeError, ValueError) as error:
                if out_of_memory(error):
                    raise
        for t, twin in zip(made, twins, strict=True):
            if isinstance(t, torch.Tensor) and t.is_floating_point():
                self._remember(t, twin)
        return own

    def _wide(self, value):
        if isinstance(value, torch.dtype) and value.is_floating_point and value.itemsize > 1:
            return torch.float64  # to float8 a task casts to quantise, and so does its twin
        return self.twin(value)

    def _remember(self, t: torch.Tensor, twin) -> None:
        if isinstance(twin, torch.Tensor) and twin.is_floating_point() and twin.itemsize == 1:
            twin = twin.double()
        usable = isinstance(twin, torch.Tensor) and twin.dtype == torch.float64 and twin.shape == t.shape
        known = self.twins.get(t)
        if usable and twin is known:
            return  # written in place
        if known is not None:  # in place too, but the operator could not do it in float64
            known.copy_(twin if usable else t)
        else:
            self.twins[t] = twin if usable else t.detach().to(torch.float64, copy=True)
