"""Replay a plan on real data. Trusted code: it runs operators from a list and kernels made from TTIR, nothing else.

    replay = Replay(plan, "cpu")              # parses or compiles each kernel once
    outputs = replay.run(inputs, weights)     # fresh memory every time, poisoned
    replay.run(inputs, weights, skip_launch=0)  # the same without one launch: does the answer change?

Every buffer the candidate allocated holds NaN patterns (absurd integers) before it is written. On the CPU kernels run in the
TTIR evaluator (executor/ttir/), where any access outside a buffer is an error; on CUDA in one arena with guard zones (arena.py).
"""

import functools
from collections.abc import Callable
from typing import Any, Protocol

import torch

from nanotriton.executor import ttir
from nanotriton.executor.replay.operators import SOURCE, as_torch_runs, copies, operator, writes_into
from nanotriton.plan.aten import decode, tensor_ids
from nanotriton.plan.plan import DTYPES, Aten, Choice, Kernel, Launch, Plan, Storage
from nanotriton.verdict import out_of_memory


class ReplayError(Exception):
    """The candidate failed while it ran. `status` is a Verdict status, `line` the candidate's line (0: unknown).

    fatal: the process has lost its CUDA context and must end.
    """

    def __init__(self, status: str, message: str, line: int = 0, fatal: bool = False):
        super().__init__(message)
        self.status, self.message, self.line, self.fatal = status, message, line, fatal

    def __str__(self) -> str:
        return f"line {self.line}: {self.message}" if self.line else self.message


class Backend(Protocol):
    """Memory and kernels of one device."""

    device: torch.device

    def reset(self, storages: list[Storage]) -> None:
        """Forget what the last run left: all memory is poison."""

    def allocate(self, index: int, storage: Storage) -> tuple[torch.UntypedStorage, int]:
        """Memory for one storage, at that byte of a storage of torch's."""

    def address(self, index: int) -> int:
        """Where a kernel finds an allocated storage."""

    def launch(self, kernel: Kernel, call: Launch, args: list[tuple[str, Any]]) -> None:
        """args: (Triton's type, a number, an address, or for a descriptor [address, shape, strides, padding])."""

    def finish(self, read: Callable[[], tuple[Any, list[torch.Tensor]]]) -> tuple[Any, list[bool]]:
        """What read() finds when all work is done: anything, and flags. Raises ReplayError if memory outside a buffer was written."""


WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes: an element as an integer


def poison(data: torch.Tensor, dtype: str, other: bool = False) -> None:
    """Fill bytes (uint8, any length) with what is NaN in every float type and absurd as an integer of that width.

    No byte is absurd: there every second run has the `other` value, so that none can stand for an answer.
    """
    if DTYPES[dtype].itemsize == 1:
        data.fill_(0xFF if dtype.startswith("float8") else 0x5A if other else 0x81)
        return
    even = data[: data.numel() // 2 * 2]
    even.view(torch.int16).fill_(0x7FF9)
    data[even.numel() :].fill_(0xFF)


class CpuBackend:
    """Buffers of exactly the right size at made-up addresses, kernels in the TTIR evaluator."""

    device = torch.device("cpu")

    def __init__(self):
        self.runs = 0

    def reset(self, storages: list[Storage]) -> None:
        self.memory, self.runs = ttir.Memory(), self.runs + bool(storages)
        self.addresses: dict[int, int] = {}

    def allocate(self, index: int, storage: Storage) -> tuple[torch.UntypedStorage, int]:
        data = torch.empty(storage.nbytes, dtype=torch.uint8)
        poison(data, storage.dtype, other=self.runs % 2 == 0)
        self.addresses[index] = self.memory.add(data)
        return data.untyped_storage(), 0

    def address(self, index: int) -> int:
        return self.addresses[index]

    def launch(self, kernel: Kernel, call: Launch, args: list[tuple[str, Any]]) -> None:
        flat: list = []
        for ty, value in args:
            if ty.startswith("tensordesc"):
                address, shape, strides, padding = value
                if padding != "zero":
                    raise ttir.Unsupported("a host-side descriptor that pads with NaN")
                flat += [(address, shape, strides), *shape, *strides]
            else:
                flat.append(value)
        _evaluator(kernel.ttir, kernel.name).run(call.grid, flat, self.memory, backwards=self.runs % 2 == 0)

    def finish(self, read: Callable[[], tuple[Any, list[torch.Tensor]]]) -> tuple[Any, list[bool]]:
        found, flags = read()
        return found, [bool(flag) for flag in flags]


# What the evaluator's errors mean for a candidate. TTIR that it cannot read says nothing about the kernel.
STATUS = {
    ttir.OutOfBounds: "out_of_bounds",
    ttir.Race: "nondeterministic",
    ttir.Budget: "timeout",
    ttir.AssertionFailed: "runtime_error",
    ttir.TooLarge: "out_of_resources",
    ttir.TTIRError: "unsupported",
}


@functools.lru_cache(maxsize=256)
def _evaluator(text: str, name: str) -> ttir.Kernel:
    return ttir.Kernel(text, name)


class Replay:
    """One validated plan, ready to run on a device again and again.

    After `run`: `modified_inputs` lists the inputs (counted over their tensors) that the candidate wrote to.
    """

    def __init__(
        self,
        plan: Plan,
        device: str | torch.device = "cpu",
        backend: Backend | None = None,
        known: dict[str, torch.Tensor] | None = None,
    ):
        self.plan, self.known = plan, known or {}
        if backend is None and torch.device(device).type != "cpu":
            raise ValueError("a CUDA replay needs a arena.CudaBackend, which owns the arena")
        self.backend = backend or CpuBackend()
        self._pointed_at = {
            plan.tensors[i].storage for c in plan.every_call() if isinstance(c, Launch) for i in c.tensors
        }
        # storages that are torch's own results
        self._adopted: dict[int, tuple[torch.UntypedStorage, int]] = {}
        # initial bytes by hash, on the device: a load then waits for nothing
        self._uploaded: dict[str, torch.Tensor] = {}
        self.chosen: dict[int, int] = {}  # key of a choice -> alternative
        self.modified_inputs: list[int] = []

    def run(
        self,
        inputs: list,
        weights: dict[str, torch.Tensor] | None = None,
        skip_launch: int | range | None = None,
        carried: dict[int, torch.Tensor] | None = None,
    ) -> Any:
        """Outputs as forward returned them: same containers, tensors of their own.

        inputs: the arguments of forward: shapes, dtypes and non-tensor values as recorded. They are copied, never written.
        weights: by name, instead of the plan's own. skip_launch: leave out that launch (counted from 0), or those.
        carried: for the plan of a second call, what `left` gave after the first.
        Raises ReplayError for the candidate's failures, ValueError if inputs or weights do not fit the plan.
        """
        self.load(inputs, weights, carried)
        self.execute(skip_launch)
        return self.outputs()

    def left(self, second: Plan) -> dict[int, torch.Tensor]:
        """After a run: the bytes that the plan of a second call takes over, by storage of this plan."""
        return {source: self._bytes(source).clone() for _, source in second.carried}

    def load(
        self,
        inputs: list,
        weights: dict[str, torch.Tensor] | None = None,
        carried: dict[int, torch.Tensor] | None = None,
    ) -> None:
        """First third of `run`: poisoned memory, then inputs, weights and constants in their places."""
        self.backend.reset(self.plan.storages)
        self._storages = dict(self._adopted)  # a captured graph goes on writing there
        self._tensors: dict[int, torch.Tensor] = {}
        self._given: list[tuple[int, torch.Tensor]] = []
        _match(self.plan.inputs, list(inputs), self._given)
        for index, given in self._given:
            self._fill(index, given, "input")
        self._fill_weights(weights or {})
        for here, source in self.plan.carried:
            self._bytes(here).copy_(carried[source])

    def execute(self, skip_launch: int | range | None = None) -> None:
        """Second third: every step. This is what is timed."""
        self._drop_adopted()
        launches, skipped = 0, skip_launch if isinstance(skip_launch, range) else (skip_launch,)
        for call in self.plan.flat_steps(self.chosen):
            if isinstance(call, Aten):
                self._aten(call)
                continue
            if launches not in skipped:
                self._launch(call)
            launches += 1

    def outputs(self) -> Any:
        """Last third: copy the answer out, and check."""

        def read() -> tuple[Any, list[torch.Tensor]]:
            outputs = decode(self.plan.outputs, lambda i: _copy(self.tensor(i)), self.backend.device)
            return outputs, [
                _differ(self.tensor(i), given.to(self.backend.device)) for i, given in self._given
            ]

        outputs, changed = self.backend.finish(read)
        self.modified_inputs = [k for k, flag in enumerate(changed) if flag]
        return outputs

    def close(self) -> None:
        """Give all memory back, and the kernels. The next `load` takes them again."""
        self._storages, self._tensors, self._given, self._adopted = {}, {}, [], {}
        self.backend.close()

    def forget(self) -> None:
        """Give the last run's memory back, save what the caller still holds; on a GPU it is the arena's, and stays."""
        self._given = []
        self._drop_adopted()
        if self.backend.device.type == "cpu":
            self.backend.reset([])
            self._storages, self._tensors = {}, {}

    def tune(
        self,
        inputs: list,
        weights: dict[str, torch.Tensor] | None,
        time: Callable[[Callable[[], None]], float],
    ) -> None:
        """Choose the fastest alternative of every choice. Each is tried on the memory as it is at that point, which is then put back.

        time(work): how long one call of work() takes. An alternative that cannot be launched is passed over.
        """
        self.load(inputs, weights)
        for step in self.plan.steps:
            if isinstance(step, Choice) and step.key not in self.chosen:
                self._try_alternatives(step, time)
            for call in step.alternatives[self.chosen[step.key]] if isinstance(step, Choice) else [step]:
                self._aten(call) if isinstance(call, Aten) else self._launch(call)
        self.backend.finish(lambda: (None, []))

    def _try_alternatives(self, step: Choice, time: Callable[[Callable[[], None]], float]) -> None:
        touched = {
            self.plan.tensors[i].storage for calls in step.alternatives for c in calls for i in _tensors_of(c)
        }
        for index in touched:
            self._allocate(index)
        saved = {i: self._bytes(i).clone() for i in touched}
        times, refusal = {}, None
        for number, calls in enumerate(step.alternatives):
            work = lambda calls=calls: [
                self._aten(c) if isinstance(c, Aten) else self._launch(c) for c in calls
            ]
            try:
                times[number] = time(work)
            except ReplayError as error:
                if error.fatal:
                    raise
                refusal = error
            for i, data in saved.items():
                self._bytes(i).copy_(data)
        if not times:
            raise refusal
        self.chosen[step.key] = min(times, key=times.get)

    # -- memory
    # ---------------------------------------------------------------------------------------------------

    def tensor(self, index: int) -> torch.Tensor:
        """A tensor of the plan as a view of its storage, which is allocated at first use."""
        if index not in self._tensors:
            t = self.plan.tensors[index]
            storage, start = self._allocate(t.storage)
            empty = torch.empty(0, dtype=DTYPES[t.dtype], device=self.backend.device)
            self._tensors[index] = empty.set_(
                storage, start // empty.element_size() + t.offset, t.shape, t.stride
            )
        return self._tensors[index]

    def _allocate(self, index: int) -> tuple[torch.UntypedStorage, int]:
        if index not in self._storages:
            self._storages[index] = self.backend.allocate(index, self.plan.storages[index])
        return self._storages[index]

    def _bytes(self, index: int) -> torch.Tensor:
        """A storage as a flat uint8 tensor."""
        storage, start = self._allocate(index)
        empty = torch.empty(0, dtype=torch.uint8, device=self.backend.device)
        return empty.set_(storage, start, (self.plan.storages[index].nbytes,), (1,))

    def _fill(self, index: int, given: torch.Tensor, what: str) -> None:
        t = self.tensor(index)
        if t.shape != given.shape or t.dtype != given.dtype:
            raise ValueError(
                f"{what}: {tuple(given.shape)} {given.dtype} given, {tuple(t.shape)} {t.dtype} recorded"
            )
        if 0 in t.stride():  # an expanded dimension is one row of memory
            rows = tuple(slice(0, 1) if s == 0 else slice(None) for s in t.stride())
            t, given = t[rows], given[rows]
        t.copy_(given)

    def _fill_weights(self, weights: dict[str, torch.Tensor]) -> None:
        plan, filled = self.plan, set()
        for w in plan.weights:
            if name := next((n for n in w.names if n in weights), None):
                filled.add(plan.tensors[w.tensor].storage)
        for index, s in enumerate(plan.storages):
            if s.blob in plan.blobs:
                if s.nbytes:
                    if s.blob not in self._uploaded:
                        self._uploaded[s.blob] = torch.frombuffer(
                            bytearray(plan.blobs[s.blob]), dtype=torch.uint8
                        ).to(self.backend.device)
                    self._bytes(index).copy_(self._uploaded[s.blob])
            elif s.blob in self.known and self.known[s.blob].nbytes == s.nbytes:
                if index not in filled:
                    self._bytes(index).copy_(self.known[s.blob].detach().reshape(-1).view(torch.uint8))
            elif s.blob is not None and index not in filled:
                raise ReplayError("crashed", "plan: a weight's bytes are neither in it nor the reference's")
        for w in plan.weights:
            if name := next((n for n in w.names if n in weights), None):
                self._fill(w.tensor, weights[name].detach(), name)

    def _may_adopt(self, index: int) -> bool:
        """Whether a result can stay where torch put it: nobody has its storage yet, no kernel ever gets it, and there is nothing else in it."""
        t = self.plan.tensors[index]
        whole = t.offset == 0 and self.plan.nbytes(index) == self.plan.storages[t.storage].nbytes
        return whole and t.storage not in self._storages and t.storage not in self._pointed_at

    def _adopt(self, index: int, value: torch.Tensor) -> bool:
        t = self.plan.tensors[index]
        if (value.dtype, value.shape, value.stride()) != (
            DTYPES[t.dtype],
            torch.Size(t.shape),
            tuple(t.stride),
        ):
            return False
        place = value.untyped_storage(), value.storage_offset() * value.element_size()
        # another's memory
        if place[0].data_ptr() in {storage.data_ptr() for storage, _ in self._storages.values()}:
            return False
        self._storages[t.storage] = self._adopted[t.storage] = place
        return True

    def _drop_adopted(self) -> None:
        for index in self._adopted:
            del self._storages[index]
        if self._adopted:
            self._tensors = {
                i: t for i, t in self._tensors.items() if self.plan.tensors[i].storage not in self._adopted
            }
        self._adopted = {}

    # -- steps
    # ----------------------------------------------------------------------------------------------------

    def _aten(self, call: Aten) -> None:
        args = decode(call.args, self.tensor, self.backend.device)
        kwargs = {k: decode(v, self.tensor, self.backend.device) for k, v in call.kwargs.items()}
        source = SOURCE.get(call.name)
        # any byte but 0 would become 1: torch would compare for the candidate
        bools = source is not None and args[source].dtype == torch.bool
        if bools:
            args = list(map(_numbers, args))
        made, gpu = [i for i in call.outs if i is not None], self.backend.device.type == "cuda"
        adopts = bool(made) and not bools and copies(call.op) and all(map(self._may_adopt, made))
        try:
            if made and not adopts:
                outs = [_numbers(self.tensor(i)) if bools else self.tensor(i) for i in made]
                if gpu and as_torch_runs(call.op, args, outs):
                    return
                if into := writes_into(call.op):
                    into(args, kwargs, outs)
                    return
            result = (as_torch_runs(call.op, args, None) if gpu and adopts else None) or operator(call.op)(
                *args, **kwargs
            )
            results = result if isinstance(result, tuple | list) else [result]
            # empty: statistics that a batch norm which is evaluated has not saved
            for index, value in zip(call.outs, results):
                if index is not None and value.numel() and not (adopts and self._adopt(index, value)):
                    self._fill(index, value, f"aten.{call.op}")
        except (RuntimeError, TypeError, ValueError, AttributeError, IndexError) as error:
            if out_of_memory(error):
                raise
            fatal = "CUDA error" in str(error)
            text = f"aten.{call.op}: {' '.join(str(error).split())[:300]}"
            raise ReplayError(
                "illegal_memory" if fatal else "runtime_error", text, call.line, fatal
            ) from None

    def _launch(self, call: Launch) -> None:
        kernel = self.plan.kernels[call.kernel]
        if 0 in call.grid:
            return  # as Triton's launcher
        args = [(ty, self._argument(ty, value)) for ty, value in call.args]
        try:
            self.backend.launch(kernel, call, args)
        except ttir.TTIRError as error:
            status = next(s for cls, s in STATUS.items() if isinstance(error, cls))
            raise ReplayError(status, f"kernel {kernel.name}: {error}", call.line) from None

    def _argument(self, ty: str, value: Any) -> Any:
        if ty.startswith("tensordesc"):
            return [self._address(value[0]), *value[1:]]
        if ty.startswith("*"):
            return self._address(value)
        return float(value) if isinstance(value, str) else value

    def _address(self, index: int) -> int:
        t = self.plan.tensors[index]
        self.tensor(index)  # allocated
        return self.backend.address(t.storage) + t.offset * DTYPES[t.dtype].itemsize


def _tensors_of(call: Aten | Launch) -> list[int]:
    if isinstance(call, Aten):
        return tensor_ids([call.args, call.kwargs]) + [i for i in call.outs if i is not None]
    return call.tensors


def _match(encoded: Any, given: Any, pairs: list[tuple[int, torch.Tensor]]) -> None:
    """Walk the recorded arguments and the given ones side by side; collect (tensor id, tensor)."""
    tag = next(iter(encoded)) if isinstance(encoded, dict) else None
    if tag == "t":
        if not isinstance(given, torch.Tensor):
            raise ValueError(f"a tensor was recorded, {type(given).__name__} is given")
        pairs.append((encoded["t"], given))
    elif isinstance(encoded, list) or tag in ("tuple", "dict"):
        items = (
            encoded
            if isinstance(encoded, list)
            else [v[1] for v in encoded[tag]]
            if tag == "dict"
            else encoded[tag]
        )
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
    """Bit by bit: copying truth values, torch would make 1 of any byte but 0, and the judge could not tell it from what nobody wrote."""
    return t.view(torch.uint8).clone().view(torch.bool) if t.dtype == torch.bool else t.clone()


def _differ(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Whether any bit differs, so that NaN equals itself: a bool tensor, on its device."""
    raw = lambda t: (
        t.contiguous().reshape(-1).view(WORDS.get(t.element_size(), torch.uint8))
        if t.numel()
        else t.new_empty(0, dtype=torch.uint8)
    )
    return (raw(a) != raw(b)).any()
