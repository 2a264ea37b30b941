"""Replay a plan on real data. Trusted code: it runs operators from a list, and kernels made from TTIR.

    replay = Replay(plan, "cpu")              # parses or compiles each kernel once
    outputs = replay.run(inputs, weights)     # fresh memory every time, poisoned
    replay.run(inputs, weights, skip_launch=0)  # the same without one launch: does the answer change?

Every buffer that the candidate allocated holds NaN patterns (absurd integers) before it is written. On a
CPU kernels run in the TTIR evaluator (ttir/), where any access outside a buffer is an error. On a GPU they
run in one arena with guard zones (gpu/arena.py).
"""

from collections.abc import Callable
from typing import Any

import torch

from nanotriton.executor import ttir
from nanotriton.executor.replay.backend import STATUS, Backend, CpuBackend, ReplayError
from nanotriton.executor.replay.memory import PlanMemory
from nanotriton.executor.replay.operators import SOURCE, as_torch_runs, copies, operator, writes_into
from nanotriton.plan.aten import decode, tensor_ids
from nanotriton.plan.plan import Aten, Call, Choice, Launch, Plan
from nanotriton.verdict import out_of_memory

__all__ = ["Replay", "ReplayError"]

TUNING_RUNS = 2  # runs of an autotuned kernel before its first result; a real tuner makes about a hundred
# bytes of an element -> the integer dtype of its bits
WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class Replay:
    """One validated plan, ready to run on a device again and again.

    known: the reference's large weights by the hash of their bytes, which the plan then needn't hold.
    chosen: key of a choice -> the alternative that runs (`tune` sets them; without it the first one runs).
    modified_inputs: after `run`, the inputs that the candidate wrote to, counted over the inputs' tensors.
    """

    def __init__(
        self,
        plan: Plan,
        device: str | torch.device = "cpu",
        backend: Backend | None = None,
        known: dict[str, torch.Tensor] | None = None,
    ):
        if backend is None and torch.device(device).type != "cpu":
            raise ValueError("a CUDA replay needs an arena.CudaBackend, which owns the arena")
        self.plan = plan
        self.backend = backend or CpuBackend()
        self.chosen: dict[int, int] = {}
        self.modified_inputs: list[int] = []
        self.memory = PlanMemory(plan, self.backend, known or {})
        self._given: list[tuple[int, torch.Tensor]] = []  # (tensor of the plan, the input that fills it)

    def run(
        self,
        inputs: list,
        weights: dict[str, torch.Tensor] | None = None,
        skip_launch: int | range | None = None,
        carried: dict[int, torch.Tensor] | None = None,
    ) -> Any:
        """The outputs as forward returned them: the same containers, tensors of their own.

        inputs: the arguments of forward: shapes, dtypes and other values as recorded. They are copied,
        never written.
        weights: by name, instead of the plan's own. skip_launch: leave out that launch (counted from 0), or
        those. carried: for the plan of a later call, what `left` gave after the one before.
        Raises ReplayError for the candidate's failures, ValueError if inputs or weights do not fit the
        plan.
        """
        self.load(inputs, weights, carried)
        self.execute(skip_launch)
        return self.outputs()

    def left(self, following: Plan) -> dict[int, torch.Tensor]:
        """After a run: the bytes that the plan of the next call takes over, by storage of this plan."""
        return {source: self.memory.bytes(source).clone() for _, source in following.carried}

    def changed_carried(self, carried: dict[int, torch.Tensor]) -> bool:
        """After a run: whether it has changed something of what it took over (`left` of the call before)."""
        pairs = [(self.memory.bytes(here), carried[source]) for here, source in self.plan.carried]
        return any_differ(pairs)

    def load(
        self,
        inputs: list,
        weights: dict[str, torch.Tensor] | None = None,
        carried: dict[int, torch.Tensor] | None = None,
    ) -> None:
        """First third of `run`: poisoned memory, then inputs, weights and constants in their places."""
        self.memory.reset()
        self._given = []
        _match(self.plan.inputs, list(inputs), self._given)
        for index, given in self._given:
            self.memory.fill(index, given, "input")
        self.memory.fill_weights(weights or {})
        for here, source in self.plan.carried:
            self.memory.bytes(here).copy_(carried[source])

    def execute_tuning(self) -> None:
        """As `execute`, in a first call on a card: an autotuner runs the kernel some times before."""
        self.memory.drop_adopted()
        for step in self.plan.steps:
            if not isinstance(step, Choice):
                self._call(step)
                continue
            calls = step.alternatives[self.chosen.get(step.key, 0)]
            if (tuning := step.tuning) is not None:
                for _ in range(TUNING_RUNS):
                    self._run_all([*tuning.before, *calls, *tuning.after])
                self._run_all(tuning.end)
            self._run_all(calls)

    def execute(self, skip_launch: int | range | None = None) -> None:
        """Second third: every step. Only this is timed."""
        self.memory.drop_adopted()
        skipped = skip_launch if isinstance(skip_launch, range) else (skip_launch,)
        launches = 0
        for call in self.plan.flat_steps(self.chosen):
            if isinstance(call, Aten):
                self._aten(call)
                continue
            if launches not in skipped:
                self._launch(call)
            launches += 1

    def outputs(self) -> Any:
        """Last third: copy the answer out, and check."""
        device = self.backend.device

        def read() -> tuple[Any, list[torch.Tensor]]:
            outputs = decode(self.plan.outputs, lambda i: _copy(self.memory.tensor(i)), device)
            changed = [_differ(self.memory.tensor(i), given.to(device)) for i, given in self._given]
            return outputs, changed

        outputs, changed = self.backend.finish(read)
        self.modified_inputs = [i for i, flag in enumerate(changed) if flag]
        return outputs

    def close(self) -> None:
        """Give all memory back, and the kernels. The next `load` takes them again."""
        self._given = []
        self.memory.close()

    def forget(self) -> None:
        """Give the last run's memory back, save the tensors that the caller still holds.

        On a GPU the memory is the arena's, and stays.
        """
        self._given = []
        self.memory.forget()

    # -- tuning

    def tune(
        self,
        inputs: list,
        weights: dict[str, torch.Tensor] | None,
        time: Callable[[Callable[[], None]], float],
    ) -> None:
        """Choose the fastest alternative of every choice.

        Each is tried on the memory as it is at that point, which is then put back. An alternative that
        cannot be launched is passed over. time(work): how long one call of work() takes.
        """
        self.load(inputs, weights)
        for step in self.plan.steps:
            if not isinstance(step, Choice):
                self._call(step)
                continue
            if step.key not in self.chosen:
                self._try_alternatives(step, time)
            self._run_all(step.alternatives[self.chosen[step.key]])
        self.backend.finish(lambda: (None, []))

    def _try_alternatives(self, step: Choice, time: Callable[[Callable[[], None]], float]) -> None:
        saved = {index: self.memory.bytes(index).clone() for index in self._touched(step)}
        times: dict[int, float] = {}
        refusal = None
        for number, calls in enumerate(step.alternatives):
            try:
                times[number] = time(lambda calls=calls: self._run_all(calls))
            except ReplayError as error:
                if error.fatal:
                    raise
                refusal = error
            for index, data in saved.items():
                self.memory.bytes(index).copy_(data)
        if not times:
            raise refusal
        self.chosen[step.key] = min(times, key=times.get)

    def _touched(self, step: Choice) -> set[int]:
        """The storages that some alternative reads or writes, all of them allocated."""
        tensors: set[int] = set()
        for calls in step.alternatives:
            for call in calls:
                tensors.update(_tensors_of(call))
        storages = {self.plan.tensors[i].storage for i in tensors}
        for index in storages:
            self.memory.allocate(index)
        return storages

    # -- steps

    def _run_all(self, calls: list[Call]) -> None:
        for call in calls:
            self._call(call)

    def _call(self, call: Call) -> None:
        if isinstance(call, Aten):
            self._aten(call)
        else:
            self._launch(call)

    def _aten(self, call: Aten) -> None:
        device = self.backend.device
        args = decode(call.args, self.memory.tensor, device)
        kwargs = {name: decode(value, self.memory.tensor, device) for name, value in call.kwargs.items()}
        source = SOURCE.get(call.name)
        # Of truth values any byte but 0 would become 1: torch would compare for the candidate.
        as_numbers = source is not None and args[source].dtype == torch.bool
        if as_numbers:
            args = [_numbers(arg) for arg in args]
        try:
            self._run_operator(call, args, kwargs, as_numbers)
        except (RuntimeError, TypeError, ValueError, AttributeError, IndexError) as error:
            if out_of_memory(error):
                raise
            fatal = "CUDA error" in str(error)
            status = "illegal_memory" if fatal else "runtime_error"
            text = f"aten.{call.op}: {' '.join(str(error).split())[:300]}"
            raise ReplayError(status, text, call.line, fatal) from None

    def _run_operator(self, call: Aten, args: list, kwargs: dict, as_numbers: bool) -> None:
        """Run an operator with its results in the plan's memory, or adopt them, or copy them there."""
        made = [index for index in call.outs if index is not None]
        adopts = bool(made) and not as_numbers and copies(call.op) and all(map(self.memory.may_adopt, made))
        if made and not adopts:
            outs = [self.memory.tensor(index) for index in made]
            if as_numbers:
                outs = [_numbers(out) for out in outs]
            if self._write_into(call.op, args, kwargs, outs):
                return
        result = as_torch_runs(call.op, args, None) if adopts and self._on_gpu() else None
        if result is None:
            result = operator(call.op)(*args, **kwargs)
        results = result if isinstance(result, tuple | list) else [result]
        for index, value in zip(call.outs, results):
            # a batch norm in eval mode saves no statistics: they are empty
            if index is None or not value.numel():
                continue
            if not (adopts and self.memory.adopt(index, value)):
                self.memory.fill(index, value, f"aten.{call.op}")

    def _write_into(self, op: str, args: list, kwargs: dict, outs: list[torch.Tensor]) -> bool:
        """Run an operator that writes its results into `outs`. Returns False if torch has no such kernel."""
        if self._on_gpu() and as_torch_runs(op, args, outs):
            return True
        into = writes_into(op)
        if into is None:
            return False
        into(args, kwargs, outs)
        return True

    def _on_gpu(self) -> bool:
        return self.backend.device.type == "cuda"

    def _launch(self, call: Launch) -> None:
        kernel = self.plan.kernels[call.kernel]
        if 0 in call.grid:
            return  # as Triton's launcher does
        args = [(ty, self._argument(ty, value)) for ty, value in call.args]
        try:
            self.backend.launch(kernel, call, args)
        except ttir.TTIRError as error:
            status = next(status for kind, status in STATUS.items() if isinstance(error, kind))
            raise ReplayError(status, f"kernel {kernel.name}: {error}", call.line) from error

    def _argument(self, ty: str, value: Any) -> Any:
        if ty.startswith("tensordesc"):
            return [self.memory.address(value[0]), *value[1:]]
        if ty.startswith("*"):
            return self.memory.address(value)
        return float(value) if isinstance(value, str) else value


def _tensors_of(call: Call) -> list[int]:
    if isinstance(call, Launch):
        return call.tensors
    return tensor_ids([call.args, call.kwargs]) + [i for i in call.outs if i is not None]


def _match(encoded: Any, given: Any, pairs: list[tuple[int, torch.Tensor]]) -> None:
    """Walk the recorded arguments and the given ones side by side, and collect (tensor id, tensor)."""
    tag = next(iter(encoded)) if isinstance(encoded, dict) else None
    if tag == "t":
        if not isinstance(given, torch.Tensor):
            raise ValueError(f"a tensor was recorded, {type(given).__name__} is given")
        pairs.append((encoded["t"], given.detach()))  # a task may draw what requires gradients
    elif isinstance(encoded, list) or tag in ("tuple", "dict"):
        items = encoded if isinstance(encoded, list) else encoded[tag]
        if tag == "dict":
            items = [value for _, value in items]
        values = list(given.values()) if isinstance(given, dict) else given
        if not isinstance(values, list | tuple) or len(values) != len(items):
            raise ValueError("the inputs' containers are not those recorded")
        for item, value in zip(items, values, strict=True):
            _match(item, value, pairs)
    elif isinstance(given, torch.Tensor) or decode(encoded, lambda i: None, torch.device("cpu")) != given:
        raise ValueError("an input that is no tensor differs from the one recorded")


def _numbers(t: Any) -> Any:
    """Truth values as the bytes that they are."""
    return t.view(torch.uint8) if isinstance(t, torch.Tensor) and t.dtype == torch.bool else t


def _copy(t: torch.Tensor) -> torch.Tensor:
    """A copy, bit by bit.

    Of truth values torch would make 1 of any byte but 0. The judge could not tell that from memory that
    nobody wrote.
    """
    if t.dtype == torch.bool:
        return t.view(torch.uint8).clone().view(torch.bool)
    return t.clone()


def _differ(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Whether any bit differs, so that NaN equals itself: a bool tensor, on its device."""
    return (_bits(a) != _bits(b)).any()


def any_differ(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> bool:
    """Whether any bit differs in any of these pairs of tensors. On a GPU there is one wait."""
    return bool(pairs) and bool(torch.stack([_differ(a, b) for a, b in pairs]).any())


def _bits(t: torch.Tensor) -> torch.Tensor:
    if not t.numel():
        return t.new_empty(0, dtype=torch.uint8)
    return t.contiguous().reshape(-1).view(WORDS.get(t.element_size(), torch.uint8))
