"""The memory of a plan that is replayed: its storages, and its tensors, which are views of them.

A result of torch's may stay where torch put it. It is adopted: its storage is then that of the plan.
"""

import torch

from nanotriton.executor.replay.backend import Backend, ReplayError
from nanotriton.plan.plan import DTYPES, Launch, Plan, Storage, Tensor

Place = tuple[torch.UntypedStorage, int]  # a storage of torch's, and the byte in it at which memory starts


class PlanMemory:
    """Memory of one plan on a backend's device. A storage is allocated at its first use.

    known: the reference's large weights by the hash of their bytes, which the plan then needn't hold.
    """

    def __init__(self, plan: Plan, backend: Backend, known: dict[str, torch.Tensor]):
        self.plan, self.backend, self.known = plan, backend, known
        self.pointed_at = pointed_at(plan)
        self.storages: dict[int, Place] = {}
        self.tensors: dict[int, torch.Tensor] = {}
        self.adopted: dict[int, Place] = {}  # storages that are torch's own results
        # initial bytes by hash, on the device: a load then waits for nothing
        self.uploaded: dict[str, torch.Tensor] = {}

    def reset(self) -> None:
        """Fresh memory, poisoned."""
        self.backend.reset(self.plan.storages)
        self.storages = dict(self.adopted)  # a captured graph goes on writing there
        self.tensors = {}

    def close(self) -> None:
        """Give all of it back, and the backend's kernels."""
        self.storages, self.tensors, self.adopted = {}, {}, {}
        self.backend.close()

    def forget(self) -> None:
        """Give the last run's memory back. On a GPU it is the arena's, and stays."""
        self.drop_adopted()
        if self.backend.device.type == "cpu":
            self.backend.reset([])
            self.storages, self.tensors = {}, {}

    def tensor(self, index: int) -> torch.Tensor:
        """A tensor of the plan as a view of its storage."""
        if index not in self.tensors:
            t = self.plan.tensors[index]
            self.tensors[index] = self.view(t.storage, t)
        return self.tensors[index]

    def view(self, index: int, like: Tensor) -> torch.Tensor:
        """A storage of the plan, seen as a tensor of another plan is."""
        storage, start = self.allocate(index)
        empty = torch.empty(0, dtype=DTYPES[like.dtype], device=self.backend.device)
        return empty.set_(storage, start // empty.element_size() + like.offset, like.shape, like.stride)

    def allocate(self, index: int) -> Place:
        if index not in self.storages:
            self.storages[index] = self.backend.allocate(index, self.plan.storages[index])
        return self.storages[index]

    def bytes(self, index: int) -> torch.Tensor:
        """A storage as a flat uint8 tensor."""
        storage, start = self.allocate(index)
        empty = torch.empty(0, dtype=torch.uint8, device=self.backend.device)
        return empty.set_(storage, start, (self.plan.storages[index].nbytes,), (1,))

    def address(self, index: int) -> int:
        t = self.plan.tensors[index]
        self.tensor(index)  # allocates it
        return self.backend.address(t.storage) + t.offset * DTYPES[t.dtype].itemsize

    # ---- what is in it before the first step ----

    def fill(self, index: int, given: torch.Tensor, what: str) -> None:
        t = self.tensor(index)
        if t.shape != given.shape or t.dtype != given.dtype:
            raise ValueError(
                f"{what}: {tuple(given.shape)} {given.dtype} given, {tuple(t.shape)} {t.dtype} recorded"
            )
        if 0 in t.stride():  # an expanded dimension is one row of memory
            rows = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in t.stride())
            t, given = t[rows], given[rows]
        t.copy_(given)

    def fill_weights(self, weights: dict[str, torch.Tensor]) -> None:
        """Fill the storages that have initial bytes, then the weights that are given by name."""
        named: list[tuple[int, str]] = []  # (tensor of the plan, name)
        for weight in self.plan.weights:
            if name := next((n for n in weight.names if n in weights), None):
                named.append((weight.tensor, name))
        filled = {self.plan.tensors[tensor].storage for tensor, _ in named}
        for index, storage in enumerate(self.plan.storages):
            if storage.blob is not None:
                self.fill_storage(index, storage, index in filled)
        for tensor, name in named:
            self.fill(tensor, weights[name].detach(), name)

    def fill_storage(self, index: int, storage: Storage, filled: bool) -> None:
        """Fill one storage with the plan's bytes or with the known weight of that hash.

        filled: a weight that is given by name fills it anyway, so that the bytes may be missing.
        """
        if storage.blob in self.plan.blobs:
            if storage.nbytes:
                self.bytes(index).copy_(self.upload(storage.blob))
            return
        if filled:
            return
        known = self.known.get(storage.blob)
        if known is None or known.nbytes != storage.nbytes:
            raise ReplayError("crashed", "plan: a weight's bytes are neither in it nor the reference's")
        self.bytes(index).copy_(known.detach().reshape(-1).view(torch.uint8))

    def upload(self, blob: str) -> torch.Tensor:
        if blob not in self.uploaded:
            host = torch.frombuffer(bytearray(self.plan.blobs[blob]), dtype=torch.uint8)
            self.uploaded[blob] = host.to(self.backend.device)
        return self.uploaded[blob]

    # ---- results that stay where torch put them ----

    def may_adopt(self, index: int) -> bool:
        """Whether a result can stay where torch put it.

        It can if nothing else has its storage yet, no kernel ever gets it, and there is nothing else in it.
        """
        t = self.plan.tensors[index]
        if t.storage in self.storages or t.storage in self.pointed_at:
            return False
        return t.offset == 0 and self.plan.nbytes(index) == self.plan.storages[t.storage].nbytes

    def adopt(self, index: int, value: torch.Tensor) -> bool:
        """Let a result stay where torch put it. Returns False if its layout or memory forbids it."""
        t = self.plan.tensors[index]
        if value.dtype != DTYPES[t.dtype]:
            return False
        if value.shape != torch.Size(t.shape) or value.stride() != tuple(t.stride):
            return False
        storage = value.untyped_storage()
        taken = {other.data_ptr() for other, _ in self.storages.values()}
        if storage.data_ptr() in taken:  # it is another tensor's memory
            return False
        place = storage, value.storage_offset() * value.element_size()
        self.storages[t.storage] = self.adopted[t.storage] = place
        return True

    def drop_adopted(self) -> None:
        if not self.adopted:
            return
        for index in self.adopted:
            del self.storages[index]
        for index in list(self.tensors):
            if self.plan.tensors[index].storage in self.adopted:
                del self.tensors[index]
        self.adopted = {}


def pointed_at(plan: Plan) -> set[int]:
    """The storages that some launch gets a pointer to."""
    storages = set()
    for call in plan.every_call() + plan.tuning_calls():
        if isinstance(call, Launch):
            storages |= {plan.tensors[i].storage for i in call.tensors}
    return storages
