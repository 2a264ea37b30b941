"""Which elements of inputs and weights did a run on the CPU never look at?

Kernels load bytes, which the evaluator notes. What torch copies is looked at where its copy is. Whatever
else torch reads, and what is returned, counts as looked at.
"""

import math

import torch

from nanotriton.executor.replay.backend import CpuBackend
from nanotriton.plan.facts import COPY, overlaps_itself, reads_of, writes_of
from nanotriton.plan.plan import DTYPES, Aten, Plan

READ = 255


class Unread:
    """After a run of a plan in a backend that notes: `of(tensor)`."""

    def __init__(self, plan: Plan, chosen: dict[int, int], backend: CpuBackend):
        self.plan = plan
        self.flags = backend.loaded()  # of storages, a byte for a byte
        self.whole: set[int] = set()  # storages of which every byte was looked at: they need no flags
        for tensor in plan.output_tensors():
            self._look_at(tensor)
        for call in reversed(list(plan.flat_steps(chosen))):
            if isinstance(call, Aten):
                self._look_back(call)

    def of(self, tensor: int) -> torch.Tensor:
        """For each element of a tensor of the plan whether nobody looked at it: bools of its shape."""
        return (self._bytes(tensor) == 0).all(-1)

    def partly_read(self, tensor: int) -> bool:
        return bool(self._bytes(tensor).any())

    def _look_back(self, call: Aten) -> None:
        """What was read of a copy was read of its source."""
        written = writes_of(call)
        sources = [t for t in reads_of(call) if t not in written]
        if call.name in COPY and len(written) == len(sources) == 1 and self._alike(written[0], sources[0]):
            read = (self._bytes(written[0]) != 0).any(-1)
            self._look_at(sources[0], read)
            return
        for tensor in reads_of(call):
            self._look_at(tensor)

    def _look_at(self, tensor: int, where: torch.Tensor | None = None) -> None:
        """Of a tensor all elements were looked at, or those where `where` says so."""
        t = self.plan.tensors[tensor]
        if t.storage in self.whole:
            return
        if overlaps_itself(tuple(t.shape), t.stride):  # torch writes to no such tensor: byte by byte
            flags = self._flags(t.storage)
            places = self._place(torch.arange(len(flags)), tensor)
            flags[(places if where is None else places[where]).reshape(-1)] = READ
        elif where is not None:
            self._bytes(tensor).masked_fill_(where[..., None], READ)
        elif math.prod(t.shape) * DTYPES[t.dtype].itemsize == self._size(t.storage):
            self.whole.add(t.storage)
            self.flags.pop(t.storage, None)
        else:
            self._bytes(tensor).fill_(READ)

    def _alike(self, one: int, other: int) -> bool:
        return self.plan.tensors[one].shape == self.plan.tensors[other].shape

    def _size(self, storage: int) -> int:
        return self.plan.storages[storage].nbytes

    def _bytes(self, tensor: int) -> torch.Tensor:
        """The flags of a tensor's bytes: its shape, and a last dimension for the bytes of an element."""
        t = self.plan.tensors[tensor]
        if t.storage in self.whole:
            return torch.tensor(READ, dtype=torch.uint8).expand(*t.shape, 1)
        return self._place(self._flags(t.storage), tensor)

    def _flags(self, storage: int) -> torch.Tensor:
        if storage not in self.flags:
            self.flags[storage] = torch.zeros(self._size(storage), dtype=torch.uint8)
        return self.flags[storage]

    def _place(self, flat: torch.Tensor, tensor: int) -> torch.Tensor:
        """Of numbers for a storage's bytes those of a tensor's."""
        t = self.plan.tensors[tensor]
        size = DTYPES[t.dtype].itemsize
        strides = [size * stride for stride in t.stride]
        return flat.as_strided((*t.shape, size), (*strides, 1), t.offset * size)
