# annotations as strings, a logger, a dataclass, __constants__, a cached helper
from __future__ import annotations
import logging
import os
import warnings
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import *
import torch
from torch import nn, Tensor
import triton
import triton.language as tl
from triton.runtime import driver

logger = logging.getLogger(__name__)
os.environ.setdefault("TRITON_PRINT_AUTOTUNING", "0")
torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.benchmark = True
torch.set_float32_matmul_precision("high")


@dataclass(frozen=True)
class LaunchConfig:
    block: int = 1024
    warps: int = 4
    extra: Dict[str, int] = field(default_factory=dict)


@lru_cache(maxsize=None)
def num_sms(index: int = 0) -> int:
    return driver.active.utils.get_device_properties(index)["multiprocessor_count"]


@triton.jit
def _tanh(x):
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def gelu_kernel(x_ptr, y_ptr, n_elements, s, BLOCK_SIZE: tl.constexpr):
    """Docstring: fused."""
    pid = tl.program_id(axis=0)
    block_start = pid * BLOCK_SIZE
    offsets = block_start + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask)
    inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
    y = 0.5 * x * (1.0 + _tanh(inner)) * s
    sp = tl.maximum(x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(x)))
    tl.store(y_ptr + offsets, y + sp, mask=mask)


class ModelNew(nn.Module):
    __constants__ = ["s"]
    s: float

    def __init__(self, s: float) -> None:
        super().__init__()
        self.s = s
        self.cfg = LaunchConfig()
        self._cache: Dict[Tuple[int, ...], Tensor] = {}

    def extra_repr(self) -> str:
        return f"s={self.s!r}, cls={self.__class__.__name__}"

    def forward(self, x: Tensor) -> Tensor:
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"expected a tensor, got {type(x).__name__}")
        if x.requires_grad and torch.is_grad_enabled():
            warnings.warn("no backward")
        y = torch.empty_like(x, memory_format=torch.contiguous_format)
        n = y.numel()
        if n == 0:
            return y
        logger.debug("launching %d on %s with %d SMs", n, x.device, num_sms(x.device.index or 0))
        grid = lambda meta: (triton.cdiv(n, meta["BLOCK_SIZE"]),)
        with torch.cuda.device_of(x):
            gelu_kernel[grid](x, y, n, self.s, BLOCK_SIZE=self.cfg.block, num_warps=self.cfg.warps)
        return y
