"""A recording: the plan under construction, and which tensors are "on the GPU" in it.

In the candidate's process no GPU exists. A tensor that it believes to be on the GPU is one of two things:

    a meta tensor       It has a shape, strides, a dtype and a storage, but no data. Every result of forward
                        is one.
    a real CPU tensor   It was made while the module was built, when values are known and may be used. Its
                        storage is in `Tape.cuda_storages`. It becomes a weight of the plan as soon as forward
                        touches it.

Every other CPU tensor is a host tensor. Torch computes with it for real, and it is no part of the plan
unless it is moved to the GPU.
"""

import sys
import traceback
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

import torch

from nanotriton.executor.child.addresses import Addresses
from nanotriton.executor.child.quiet import quiet
from nanotriton.executor.child.streams import Streams
from nanotriton.plan.aten import tensor_ids
from nanotriton.plan.plan import Aten, Choice, Kernel, Launch, Plan, Storage, Tensor, Tuning, Weight, digest

META = torch.device("meta")
CUDA = torch.device("cuda", 0)  # the candidate sees its tensors there


class RecordError(Exception):
    """The recording ended. `status` is a verdict's, `line` a line of the candidate's file (0: unknown).

    `recordable` is False when nothing is wrong with the candidate except that a plan cannot express it.
    """

    def __init__(self, status: str, message: str, line: int = 0, recordable: bool = True):
        super().__init__(message)
        self.status, self.message, self.line, self.recordable = status, message, line, recordable


@dataclass(frozen=True)
class RecordedCall:
    """A call that was recorded. storages: address of a StorageImpl -> storage of its plan."""

    plan: Plan
    storages: dict[int, int]

    def carried(self) -> dict[int, int]:
        """The same for those storages that it has taken over."""
        kinds = self.plan.storages
        return {address: index for address, index in self.storages.items() if kinds[index].kind == "carried"}


class Tape:
    active: "Tape | None" = None  # one recording at a time in a process

    def __init__(
        self,
        path: str,
        known: frozenset[str] = frozenset(),
        max_configs: int = 64,
        max_bytes: int = 256 << 20,
        drawn: int | None = None,
    ):
        self.path = path  # of the candidate's file: lines in messages are its lines
        self.known = known  # hashes of weights that the trusted side has already: their bytes are not shipped
        self.max_configs, self.max_bytes = max_configs, max_bytes
        self.drawn = drawn  # seed of the order of an autotuner's configurations after the first
        self.plan = Plan()
        self.steps = self.plan.steps  # where the next step goes: an autotuned launch points it elsewhere
        self.building = True  # importing and constructing, not yet forward
        self.draws = False  # random tensors are drawn while recording, and are constants of the plan
        self.names_attributes = False  # tensors that are plain attributes belong to the state
        self.default_cuda = False  # torch.set_default_device("cuda")
        self.cuda_storages: dict[int, torch.UntypedStorage] = {}
        # by id: `model.cuda()` keeps the objects, so a parameter that is also in a list is on the GPU too
        self.moved: dict[int, torch.nn.Parameter] = {}
        self.trouble: RecordError | None = None
        self.calling = nullcontext  # a context of each call of forward
        self.asks_processors = False  # whether anybody has asked for the card's number of multiprocessors
        self.addresses = Addresses()
        self.streams = Streams.active = Streams()
        self._arguments: dict[int, int] = {}  # address of an input's StorageImpl -> its number
        self._storages: dict[int, int] = {}  # address of a StorageImpl -> storage of the plan
        self._earlier: list[RecordedCall] = []  # the calls that were recorded before this one
        # of their storages: the known values that nothing wrote to, and what may have been written to
        self._unchanged: dict[int, torch.UntypedStorage] = {}
        self._changed: set[int] = set()
        self._tensors: dict[Tensor, int] = {}
        self._kernels: dict[tuple[str, str], int] = {}
        self._lowered: dict[int, torch.Tensor] = {}  # address of a host storage -> its meta bytes
        # storage of the plan -> the values that a weight or a constant has at first
        self._hosts: dict[int, torch.UntypedStorage] = {}
        self._written: set[int] = set()  # storages that a step has, or may have, written to
        self._weights: dict[int, Weight] = {}
        self._choices: dict[object, int] = {}
        self.pinned: dict[int, object] = {}  # an autotuner's id -> the one configuration that it has
        self._chosen: dict[int, list[tuple[list, Choice]]] = {}  # by that id, and where each choice stands
        self.ships = True  # weights' bytes are part of the plan; else `ship_weights` adds them
        # those whose bytes are not: the storage in the plan, that on the host, and a tensor
        self._unshipped: list[tuple[Storage, torch.UntypedStorage, torch.Tensor]] = []
        self._keep: list = []  # whatever has its address in a dictionary above stays alive

    # ---- trouble ----

    def line(self) -> int:
        """The candidate's line that is running."""
        frame = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename != self.path:
            frame = frame.f_back
        return frame.f_lineno if frame else 0

    def fail(self, status: str, message: str, recordable: bool = True) -> RecordError:
        """Raise a RecordError, and remember it: a candidate that catches it has still ended its recording."""
        error = RecordError(status, message, self.line(), recordable)
        self.trouble = self.trouble or error
        raise error

    def unrecordable(self, message: str) -> RecordError:
        return self.fail("unsupported", message, recordable=False)

    # ---- tensors ----

    def on_cuda(self, t: torch.Tensor) -> bool:
        """Whether the candidate sees this tensor on the GPU. Call it inside quiet() or a mode's handler."""
        if t.is_meta or id(t) in self.moved:
            return True
        return (
            bool(self.cuda_storages)
            and t.layout == torch.strided
            and t.untyped_storage()._cdata in self.cuda_storages
        )

    def put_on_cuda(self, t: torch.Tensor) -> None:
        storage = t.untyped_storage()
        self.cuda_storages[storage._cdata] = storage

    def lower(self, t: torch.Tensor) -> torch.Tensor:
        """The meta tensor of a tensor that is "on the GPU". A real one becomes a weight without a name."""
        return t if t.is_meta else self.weight(t, None)

    def address(self, storage: torch.UntypedStorage, offset: int = 0) -> int:
        """Where byte `offset` of the storage of a meta tensor seems to lie."""
        self._keep.append(storage)
        return self.addresses.of_storage(storage, self._arguments.get(storage._cdata)) + offset

    def new_storage(self, t: torch.Tensor, kind: str, blob: str | None = None) -> int:
        """Enter the storage of a meta tensor into the plan."""
        storage = t.untyped_storage()
        self._keep.append(storage)
        self._storages[storage._cdata] = len(self.plan.storages)
        self.plan.storages.append(Storage(kind, storage.nbytes(), _name(t.dtype), blob))
        return len(self.plan.storages) - 1

    def knows(self, t: torch.Tensor) -> bool:
        address = t.untyped_storage()._cdata
        return address in self._storages or self._is_earlier(address)

    def _is_earlier(self, address: int) -> bool:
        """Whether a storage is one of an earlier call's."""
        return any(address in call.storages for call in self._earlier)

    def sizes(self) -> list[int]:
        """Bytes of every storage that the candidate has on the GPU so far, those of earlier calls first."""
        if self.building:
            return [storage.nbytes() for storage in self.cuda_storages.values()]
        plans = [*(call.plan for call in self._earlier), self.plan]
        return [s.nbytes for plan in plans for s in plan.storages if s.kind != "carried"]

    def may_have_changed(self, t: torch.Tensor) -> bool:
        """Whether a step of this call or of an earlier one has written to a tensor's storage, or may have."""
        address = self.lower(t).untyped_storage()._cdata
        return address in self._changed or self._storages.get(address) in self._written

    def begin_next_call(self) -> None:
        """The plan so far is one call's. What follows goes to a plan of its own.

        Whatever the next call finds of earlier ones (weights, buffers, tensors that were kept) is carried
        over when a step or the answer names it.
        """
        for address, index in self._storages.items():
            if index in self._written:
                self._changed.add(address)
                self._unchanged.pop(address, None)
            elif index in self._hosts:
                self._unchanged[address] = self._hosts[index]
        self._earlier.append(RecordedCall(self.plan, self._storages))
        self.plan = Plan()
        self.steps = self.plan.steps
        self._storages, self._tensors, self._kernels, self._weights = {}, {}, {}, {}
        self._hosts, self._written = {}, set()

    def _carry(self, t: torch.Tensor) -> int:
        """Enter a storage of an earlier call into the plan."""
        address = t.untyped_storage()._cdata
        source = self._left_by(len(self._earlier) - 1, address)
        index = self.new_storage(t, "carried")
        self.plan.carried.append((index, source))
        self.plan.storages[index].dtype = self._earlier[-1].plan.storages[source].dtype
        if address in self._unchanged:
            self._hosts[index] = self._unchanged[address]
        return index

    def _left_by(self, number: int, address: int) -> int:
        """A storage's index in the plan of call `number`. One that it has not named, it carries now."""
        call = self._earlier[number]
        if address not in call.storages:
            source = self._left_by(number - 1, address)
            known = self._earlier[number - 1].plan.storages[source]
            call.storages[address] = len(call.plan.storages)
            call.plan.storages.append(Storage("carried", known.nbytes, known.dtype, None))
            call.plan.carried.append((call.storages[address], source))
        return call.storages[address]

    def repeats(self, number: int) -> bool:
        """Whether this call does what call `number` did, with the same memory, to the letter."""
        before, now = self._earlier[number], RecordedCall(self.plan, self._storages)
        # its memory counts and not where that is numbered in the plan before
        if replace(self.plan, carried=[]) != replace(before.plan, carried=[]):
            return False
        return before.carried() == now.carried()

    def repeats_first_elsewhere(self) -> bool:
        """Whether this call of another module does what the first call did, in memory of its own. The values
        of their weights are not compared."""
        return not self.plan.carried and _without_values(self.plan) == _without_values(self._earlier[0].plan)

    def ship_weights(self, plan: Plan) -> None:
        """Add to a plan the bytes of the weights that were entered while `ships` was False."""
        with quiet():
            for storage, host, t in self._unshipped:
                storage.blob = self._blob(host, t, plan, ship_known=False)
        self._unshipped = []

    def tensor_id(self, t: torch.Tensor) -> int:
        with quiet():
            t = self.lower(t)
            if t.is_conj() or t.is_neg():
                self.unrecordable("a tensor with a pending conjugation or negation; let a kernel do it")
            address = t.untyped_storage()._cdata
            storage = self._storages.get(address)
            if storage is None and self._is_earlier(address):
                storage = self._carry(t)
            if storage is None:
                self.unrecordable(
                    "a tensor that was made where the recorder could not see it; make it in forward"
                )
            key = Tensor(storage, _name(t.dtype), tuple(t.shape), tuple(t.stride()), t.storage_offset())
            if key not in self._tensors:
                self._tensors[key] = len(self.plan.tensors)
                self.plan.tensors.append(key)
            return self._tensors[key]

    def input(self, like: torch.Tensor) -> torch.Tensor:
        """A meta tensor for an argument of forward, with the layout of `like` and a storage of its own."""
        with quiet():
            t = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=META)
            number = sum(storage.kind == "input" for storage in self.plan.storages)
            self._arguments[t.untyped_storage()._cdata] = number
            self.new_storage(t, "input")
            return t

    def constant(self, t: torch.Tensor) -> torch.Tensor:
        """Upload a host tensor's values: the meta tensor that stands for them."""
        with quiet():
            data = t.detach().contiguous()
            meta = torch.empty(data.shape, dtype=data.dtype, device=META)
            blob = self._blob(data.untyped_storage(), data, self.plan, ship_known=True)
            self._hosts[self.new_storage(meta, "const", blob)] = data.untyped_storage()
            return meta

    def weight(self, t: torch.Tensor, name: str | None) -> torch.Tensor:
        """The meta tensor of a parameter or buffer. Views of one host storage stay views of one storage."""
        with quiet():
            t = t.detach()
            storage = t.untyped_storage()
            if storage._cdata not in self._lowered:
                base = torch.empty(storage.nbytes(), dtype=torch.uint8, device=META)
                self._keep.append(storage)
                sid = self.new_storage(base, "weight")
                self.plan.storages[sid].dtype = _name(t.dtype)
                self._unshipped.append((self.plan.storages[sid], storage, t))
                if self.ships:
                    self.ship_weights(self.plan)
                self._lowered[storage._cdata], self._hosts[sid] = base, storage
            base = self._lowered[storage._cdata]
            size = t.element_size()
            whole = base[: base.numel() // size * size].view(t.dtype)
            meta = whole.as_strided(t.shape, t.stride(), t.storage_offset())
            tid = self.tensor_id(meta)
            if self.plan.storages[self.plan.tensors[tid].storage].kind == "carried":
                return meta
            if tid not in self._weights:
                self._weights[tid] = Weight([], tid)
                self.plan.weights.append(self._weights[tid])
            if name is not None:
                self._weights[tid].names.append(name)
            return meta

    def _blob(self, storage: torch.UntypedStorage, t: torch.Tensor, plan: Plan, ship_known: bool) -> str:
        data = (
            bytes(memoryview(torch.empty(0, dtype=torch.uint8).set_(storage).numpy()))
            if storage.nbytes()
            else b""
        )
        key = digest(data)
        if key not in plan.blobs and (ship_known or key not in self.known):
            if sum(map(len, plan.blobs.values())) + len(data) > self.max_bytes:
                self.fail("memory_limit", f"weights and constants take more than {self.max_bytes >> 20} MiB")
            plan.blobs[key] = data
        return key

    def known_value(self, t: torch.Tensor):
        """The number in a tensor with one element, or None if it is unknown.

        It is known in a weight, in a constant and in a view of one, unless a step may have written there.
        A number that is read belongs to this recording's seed: with other weights the candidate is recorded
        anew (candidate.judge_trials).
        """
        with quiet():
            address = self.lower(t).untyped_storage()._cdata
            if address not in self._storages and self._is_earlier(address):
                self._carry(self.lower(t))
            sid = self._storages.get(address)
            if sid not in self._hosts or sid in self._written:
                return None
            return (
                torch.empty(0, dtype=t.dtype)
                .set_(self._hosts[sid], t.storage_offset(), t.shape, t.stride())
                .item()
            )

    # ---- steps ----

    def aten(self, op: str, args: list, kwargs: dict, outs: list[int | None]) -> None:
        if None in outs:  # in place
            self._written |= {self.plan.tensors[i].storage for i in tensor_ids([args[:1], kwargs.get("out")])}
        self.steps.append(Aten(op, args, kwargs, outs, self.line()))
        self.streams.note_work()

    def launch(self, kernel: Kernel, grid: tuple[int, int, int], args: list) -> None:
        key = (kernel.ttir, repr(kernel.options))
        if key not in self._kernels:
            self._kernels[key] = len(self.plan.kernels)
            self.plan.kernels.append(kernel)
        call = Launch(self._kernels[key], grid, args, self.line())
        self._written |= {self.plan.tensors[i].storage for i in call.tensors}
        self.steps.append(call)
        self.streams.note_work()

    @contextmanager
    def alternative(self):
        """Steps recorded inside go to the list it gives, and not to the plan."""
        outside, self.steps = self.steps, []
        try:
            yield self.steps
        finally:
            self.steps = outside

    def is_tuned(self, key: tuple) -> bool:
        """Whether an autotuned kernel was launched before with this key, in any call."""
        return key in self._choices

    def choose(self, key: tuple, alternatives: list[list], tuning: Tuning | None) -> None:
        """key: of the tuning; it begins with the autotuner's id."""
        number = self._choices.setdefault(key, len(self._choices))
        if len(alternatives) == 1 and tuning is None:
            self.steps.extend(alternatives[0])
        else:
            choice = Choice(number, alternatives, self.line(), tuning)
            self.steps.append(choice)
            self._chosen.setdefault(key[0], []).append((self.steps, choice))

    def pin(self, tuner: int, config: object) -> None:
        """Settle an autotuner's choices, past and coming, on the configuration that was recorded first."""
        self.pinned[tuner] = config
        for steps, choice in self._chosen.pop(tuner, ()):
            del choice.alternatives[1:]
            if choice.tuning is None:
                at = next(i for i, step in enumerate(steps) if step is choice)
                steps[at : at + 1] = choice.alternatives[0]


def _without_values(plan: Plan) -> Plan:
    storages = [replace(s, blob=None) if s.kind == "weight" else s for s in plan.storages]
    return replace(plan, storages=storages, blobs={})


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def line_of(error: BaseException, path: str) -> int:
    """The last line of `path` that an exception passed through, 0 if none."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return lines[-1] if lines else 0
