"""The memory of the sampler: pages of keys and values, which are free, and how a forward fills them.

The scheduler takes pages from a PagePool and gives them back. A Sampler has one KVCache. Its forwards, a
prefill and a decode step, give the model a CachedAttention (see Attention.forward in transformer/model.py).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from nanotriton import vmm
from nanotriton.config import ConfigError
from nanotriton.kernels.place import place


class PagePool:
    """Which of `count` pages are free.

    Prompts take pages from the top, samples from the bottom. That keeps each kind dense, and the CPU's
    attention then reads a range of the cache in place instead of gathering pages.
    """

    def __init__(self, count: int):
        self.free = np.ones(count, dtype=bool)
        self.available = count

    def take(self, count: int, top: bool = False) -> np.ndarray:
        """`count` page ids [count] int64, no longer free. The caller has checked `available`."""
        free = self.free[::-1] if top else self.free
        look = 1024  # of a small model's million pages on a GPU only those at the ends are ever used
        while len(ids := np.flatnonzero(free[:look])[:count]) < count and look < len(free):
            look *= 4
        if top:
            ids = len(self.free) - 1 - ids
        assert self.available >= count and self.free[ids].all(), (
            "the scheduler took more pages than there are"
        )
        self.free[ids] = False
        self.available -= count
        return ids

    def give(self, ids: np.ndarray) -> None:
        """Take these pages back."""
        assert not self.free[ids].any(), "a page was given back twice"
        self.free[ids] = True
        self.available += len(ids)


class NoRoom(ConfigError, MemoryError):
    """The KV memory is too small for what shall be sampled. One line, fit for a user."""


class KVCache:
    """Keys and values of every layer: `data` [layers, 2, pages + 1, kv_heads, page_size, head_dim].

    data is None while the memory is released. On CUDA it comes back at the same address. It begins as zeros,
    since masked positions are multiplied by 0, and 0 x NaN is NaN. The page past the last is scratch: what
    must be computed and not kept is written there.
    """

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        head_dim: int,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ):
        self.layers, self.dtype, self.device = layers, dtype, device
        self.page_shape = (kv_heads, page_size, head_dim)
        self.page_bytes = layers * 2 * kv_heads * page_size * head_dim * dtype.itemsize
        self.data: torch.Tensor | None = None
        self.pages = 0  # without the scratch page
        self.memory: vmm.Memory | None = None

    def allocate(self, budget: int) -> None:
        """Take at most `budget` bytes, which settles how many pages there are.

        NoRoom if it holds less than two, the scratch page included; MemoryError if so much isn't free.
        """
        slack = vmm.GRANULE if self.device.type == "cuda" else 0
        self.pages = (budget - slack) // self.page_bytes - 1
        if self.pages < 1:
            least = 2 * self.page_bytes + slack
            raise NoRoom(
                f"a KV budget of {budget / 2**20:.1f} MiB holds no page; "
                f"at least {least / 2**20:.1f} MiB are needed (--kv-gib)"
            )
        self.memory = None
        self.resume()

    def resume(self) -> None:
        """Take the memory again, as much as before."""
        size = (self.pages + 1) * self.page_bytes
        if self.device.type == "cuda":
            self.memory = self.memory or vmm.Memory(size, self.device)
            self.memory.take()
            data = self.memory.tensor()[:size].zero_()
        else:  # NumPy's zeros are not touched until used: a generous budget costs nothing
            data = torch.from_numpy(np.zeros(size, dtype=np.uint8))
        self.data = data.view(self.dtype).view(self.layers, 2, self.pages + 1, *self.page_shape)

    def release(self) -> None:
        """Give the memory back; resume() takes as much again."""
        if self.data is not None:
            self.data = None
            if self.memory:
                self.memory.give()

    def close(self) -> None:
        """Give the memory back for good, its addresses too."""
        self.release()
        self.memory = None

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """k_cache, v_cache of a layer, each [pages + 1, kv_heads, page_size, head_dim]."""
        return self.data[index, 0], self.data[index, 1]


@dataclass
class CachedAttention:
    """What the model attends with in a sampler's forward. It also fills the cache, before it attends.

    page and offset [T]: in each layer's cache token t's key and value go to (page[t], offset[t]). attend: as
    in transformer/model.py. In a prefill it is packed attention, which reads the keys of the forward itself.
    In a decode step it reads the cache.
    """

    kv: KVCache
    page: torch.Tensor
    offset: torch.Tensor
    attend: Callable

    def place(self, layer: int, q, k, v, norms, rotation) -> tuple[torch.Tensor, torch.Tensor]:
        """q and k, normed and rotated; that k, and v, are in the cache now. See kernels/place.py."""
        return place(q, k, v, norms, rotation, *self.kv.layer(layer), self.page, self.offset)

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return self.attend(layer, q, k, v)
