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
from nanotriton.executor.replay.operators import SOURCE, as_torch_runs, copies, operator, writes_into
from nanotriton.plan.aten import decode, tensor_ids
from nanotriton.plan.plan import DTYPES, Aten, Call, Choice, Launch, Plan, Storage, Tensor
from nanotriton.verdict import out_of_memory

__all__ = ["Replay", "ReplayError"]

Place = tuple[torch.UntypedStorage, int]  # a storage of torch's, and the byte in it at which memory starts
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
        self.known = known or {}
        self.backend = backend or CpuBackend()
        self.chosen: dict[int, int] = {}
        self.modified_inputs: list[int] = []
        self._pointed_at = _pointed_at(plan)
        self._storages: dict[int, Place] = {}
        self._tensors: dict[int, torch.Tensor] = {}
        self._given: list[tuple[int, torch.Tensor]] = []  # (tensor of the plan, the input that fills it)
        self._adopted: dict[int, Place] = {}  # storages that are torch's own results
        # initial bytes by hash, on the device: a load then waits for nothing
        self._uploaded: dict[str, torch.Tensor] = {}

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
        return {source: self._bytes(source).clone() for _, source in following.carried}

    def changed_carried(self, carried: dict[int, torch.Tensor]) -> bool:
        """After a run: whether it has changed something of what it took over (`left` of the call before)."""
        pairs = [(self._bytes(here), carried[source]) for here, source in self.plan.carried]
        return any_differ(pairs)

    def load(
        self,
        inputs: list,
        weights: dict[str, torch.Tensor] | None = None,
        carried: dict[int, torch.Tensor] | None = None,
    ) -> None:
        """First third of `run`: poisoned memory, then inputs, weights and constants in their places."""
        self.backend.reset(self.plan.storages)
        self._storages = dict(self._adopted)  # a captured graph goes on writing there
        self._tensors = {}
        self._given = []
        _match(self.plan.inputs, list(inputs), self._given)
        for index, given in self._given:
            self._fill(index, given, "input")
        self._fill_weights(weights or {})
        for here, source in self.plan.carried:
            self._bytes(here).copy_(carried[source])

    def execute_tuning(self) -> None:
        """As `execute`, in a first call on a card: an autotuner runs the kernel some times before."""
        self._drop_adopted()
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
        self._drop_adopted()
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
            outputs = decode(self.plan.outputs, lambda i: _copy(self.tensor(i)), device)
            changed = [_differ(self.tensor(i), given.to(device)) for i, given in self._given]
            return outputs, changed

        outputs, changed = self.backend.finish(read)
        self.modified_inputs = [i for i, flag in enumerate(changed) if flag]
        return outputs

    def close(self) -> None:
        """Give all memory back, and the kernels. The next `load` takes them again."""
        self._storages, self._tensors = {}, {}
        self._given, self._adopted = [], {}
        self.backend.close()

    def forget(self) -> None:
        """Give the last run's memory back, save the tensors that the caller still holds.

        On a GPU the memory is the arena's, and stays.
        """
        self._given = []
        self._drop_adopted()
        if self.backend.device.type == "cpu":
            self.backend.reset([])
            self._storages, self._tensors = {}, {}

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
        saved = {index: self._bytes(index).clone() for index in self._touched(step)}
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
                self._bytes(index).copy_(data)
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
            self._allocate(index)
        return storages

    # -- memory

    def tensor(self, index: int) -> torch.Tensor:
        """A tensor of the plan as a view of its storage, which is allocated at first use."""
        if index not in self._tensors:
            t = self.plan.tensors[index]
            self._tensors[index] = self.view(t.storage, t)
        return self._tensors[index]

    def view(self, index: int, like: Tensor) -> torch.Tensor:
        """A storage of the plan, seen as a tensor of another plan is."""
        storage, start = self._allocate(index)
        empty = torch.empty(0, dtype=DTYPES[like.dtype], device=self.backend.device)
        return empty.set_(storage, start // empty.element_size() + like.offset, like.shape, like.stride)

    def _allocate(self, index: int) -> Place:
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
            rows = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in t.stride())
            t, given = t[rows], given[rows]
        t.copy_(given)

    def _fill_weights(self, weights: dict[str, torch.Tensor]) -> None:
        """Fill the storages that have initial bytes, then the weights that are given by name."""
        named: list[tuple[int, str]] = []  # (tensor of the plan, name)
        for weight in self.plan.weights:
            if name := next((n for n in weight.names if n in weights), None):
                named.append((weight.tensor, name))
        filled = {self.plan.tensors[tensor].storage for tensor, _ in named}
        for index, storage in enumerate(self.plan.storages):
            if storage.blob is not None:
                self._fill_storage(index, storage, index in filled)
        for tensor, name in named:
            self._fill(tensor, weights[name].detach(), name)

    def _fill_storage(self, index: int, storage: Storage, filled: bool) -> None:
        """Fill one storage with the plan's bytes or with the known weight of that hash.

        filled: a weight that is given by name fills it anyway, so that the bytes may be missing.
        """
        if storage.blob in self.plan.blobs:
            if storage.nbytes:
                self._bytes(index).copy_(self._upload(storage.blob))
            return
        if filled:
            return
        known = self.known.get(storage.blob)
        if known is None or known.nbytes != storage.nbytes:
            raise ReplayError("crashed", "plan: a weight's bytes are neither in it nor the reference's")
        self._bytes(index).copy_(known.detach().reshape(-1).view(torch.uint8))

    def _upload(self, blob: str) -> torch.Tensor:
        if blob not in self._uploaded:
            host = torch.frombuffer(bytearray(self.plan.blobs[blob]), dtype=torch.uint8)
            self._uploaded[blob] = host.to(self.backend.device)
        return self._uploaded[blob]

    # -- results that stay where torch put them

    def _may_adopt(self, index: int) -> bool:
        """Whether a result can stay where torch put it.

        It can if nothing else has its storage yet, no kernel ever gets it, and there is nothing else in it.
        """
        t = self.plan.tensors[index]
        if t.storage in self._storages or t.storage in self._pointed_at:
            return False
        return t.offset == 0 and self.plan.nbytes(index) == self.plan.storages[t.storage].nbytes

    def _adopt(self, index: int, value: torch.Tensor) -> bool:
        """Let a result stay where torch put it. Returns False if its layout or memory forbids it."""
        t = self.plan.tensors[index]
        if value.dtype != DTYPES[t.dtype]:
            return False
        if value.shape != torch.Size(t.shape) or value.stride() != tuple(t.stride):
            return False
        storage = value.untyped_storage()
        taken = {other.data_ptr() for other, _ in self._storages.values()}
        if storage.data_ptr() in taken:  # it is another tensor's memory
            return False
        place = storage, value.storage_offset() * value.element_size()
        self._storages[t.storage] = self._adopted[t.storage] = place
        return True

    def _drop_adopted(self) -> None:
        if not self._adopted:
            return
        for index in self._adopted:
            del self._storages[index]
        for index in list(self._tensors):
            if self.plan.tensors[index].storage in self._adopted:
                del self._tensors[index]
        self._adopted = {}

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
        args = decode(call.args, self.tensor, device)
        kwargs = {name: decode(value, self.tensor, device) for name, value in call.kwargs.items()}
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
        adopts = bool(made) and not as_numbers and copies(call.op) and all(map(self._may_adopt, made))
        if made and not adopts:
            outs = [self.tensor(index) for index in made]
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
            if not (adopts and self._adopt(index, value)):
                self._fill(index, value, f"aten.{call.op}")

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
            return [self._address(value[0]), *value[1:]]
        if ty.startswith("*"):
            return self._address(value)
        return float(value) if isinstance(value, str) else value

    def _address(self, index: int) -> int:
        t = self.plan.tensors[index]
        self.tensor(index)  # allocates it
        return self.backend.address(t.storage) + t.offset * DTYPES[t.dtype].itemsize


def _pointed_at(plan: Plan) -> set[int]:
    """The storages that some launch gets a pointer to."""
    storages = set()
    for call in plan.every_call() + plan.tuning_calls():
        if isinstance(call, Launch):
            storages |= {plan.tensors[i].storage for i in call.tensors}
    return storages


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
