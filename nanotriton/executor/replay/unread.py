"""Which elements of inputs and weights did a run on the CPU never look at?

Kernels load bytes, which the evaluator notes. What torch copies is looked at where its copy is. Whatever
else torch reads, and what is returned, counts as looked at.
"""

import torch

from nanotriton.executor.replay.backend import CpuBackend
from nanotriton.plan.facts import COPY, reads_of, writes_of
from nanotriton.plan.plan import DTYPES, Aten, Plan

READ = 255


class Unread:
    """After a run of a plan in a backend that notes: `of(tensor)`."""

    def __init__(self, plan: Plan, chosen: dict[int, int], backend: CpuBackend):
        self.plan = plan
        self.flags = backend.loaded()  # of storages, a byte for a byte
        for tensor in plan.output_tensors():
            self._bytes(tensor).fill_(READ)
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
            read = (self._bytes(written[0]) != 0).any(-1, keepdim=True)
            into = self._bytes(sources[0])
            into.copy_(torch.where(read, READ, into))
            return
        for tensor in sources + [t for t in reads_of(call) if t in written]:
            self._bytes(tensor).fill_(READ)

    def _alike(self, one: int, other: int) -> bool:
        return self.plan.tensors[one].shape == self.plan.tensors[other].shape

    def _bytes(self, tensor: int) -> torch.Tensor:
        """The flags of a tensor's bytes: its shape, and a last dimension for the bytes of an element."""
        t = self.plan.tensors[tensor]
        if t.storage not in self.flags:
            self.flags[t.storage] = torch.zeros(self.plan.storages[t.storage].nbytes, dtype=torch.uint8)
        size = DTYPES[t.dtype].itemsize
        strides = [size * stride for stride in t.stride]
        return self.flags[t.storage].as_strided((*t.shape, size), (*strides, 1), t.offset * size)
