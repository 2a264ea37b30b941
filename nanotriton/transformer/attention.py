"""Causal attention over packed sequences: the one place where sequences could meet, and here they don't.

    attend = packed(cu_seqlens, max_seqlen)          # one object a batch, called by every layer
    out = attend(layer, q, k, v)                     # q [T, H, D], k and v [T, Hkv, D] -> [T, H, D]

data.py trains with it, and a sampler's prefill (sampler/sampler.py) attends with it.

`select` chooses the backend. In order of preference they are `flash4` (flash-attn-4) where it is at its best,
on Hopper and later cards, `flash2` (flash-attn), `flash4` elsewhere, `varlen` (torch.nn.attention.varlen),
`sdpa` (scaled_dot_product_attention). All but the last are CUDA in half precision, for head sizes that are
multiples of 8 up to WIDEST; `sdpa` is everything else.
"""

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterable
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

BACKENDS = ("flash2", "flash4", "varlen", "sdpa")
WIDEST = {"flash2": 256, "flash4": 128, "varlen": 256}  # flash4 takes more on some cards and in some versions
HOPPER = (9, 0)  # compute capability
MAX_PADDING = 0.25  # sdpa pads a sequence to at most 1 / (1 - this) of its length


def packed(
    cu_seqlens: Tensor, max_seqlen: int, backend: str | None = None
) -> Callable[[int, Tensor, Tensor, Tensor], Tensor]:
    """Causal attention for sequences packed end to end, scale 1 / sqrt(D), grouped heads where Hkv divides H.

    cu_seqlens [B + 1] int32: sequence i is rows cu_seqlens[i] to cu_seqlens[i + 1]. max_seqlen: tokens of the
    longest. `backend` forces one of BACKENDS; RuntimeError if it can't run here. Results are the same within
    the dtype.
    """
    # cu_seqlens is read on the host, which waits for the GPU. So this is made only if it is used.
    sdpa = functools.cache(lambda: _PaddedGroups(cu_seqlens.tolist(), cu_seqlens.device))

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        kernel = select(q.device.type, q.dtype, backend, q.shape[2])
        if kernel is None:
            return sdpa()(q, k, v)
        return kernel(q, k, v, cu_seqlens, max_seqlen)

    return attend


@functools.cache
def select(
    device: str, dtype: torch.dtype, backend: str | None = None, head_dim: int = 128
) -> Callable | None:
    """The kernel for packed sequences, or None for sdpa. Says once, on stderr, what a GPU run uses."""
    if backend not in (None, *BACKENDS):
        raise RuntimeError(f"unknown attention backend {backend!r}; one of {', '.join(BACKENDS)}")
    if backend == "sdpa":
        return None
    half = device == "cuda" and dtype in (torch.bfloat16, torch.float16)
    if backend is None:
        return _first(head_dim) if half else None
    if not half:
        raise RuntimeError(
            f"attention backend {backend} needs CUDA and bf16 or fp16, not {device} and {dtype}"
        )
    if not _takes(backend, head_dim):
        raise RuntimeError(
            f"attention backend {backend} takes head sizes that are multiples of 8 "
            f"up to {WIDEST[backend]}, not {head_dim}"
        )
    kernel, reason = _load(backend)
    if kernel is None:
        raise RuntimeError(f"attention backend {backend} does not import: {reason}")
    _say(backend)
    return kernel


def _first(head_dim: int) -> Callable | None:
    """The kernel of the first backend that takes such heads and can be loaded."""
    reasons = []
    for name in _preferred():
        if not _takes(name, head_dim):
            reasons.append(f"{name}: not for heads of {head_dim}")
            continue
        kernel, reason = _load(name)
        if kernel is not None:
            _say(name, reasons)
            return kernel
        reasons.append(reason)
    _say("sdpa", reasons)
    return None


def _preferred() -> list[str]:
    """The backends but sdpa, the fastest on this card first."""
    found = list(BACKENDS[:-1])
    if torch.cuda.is_available() and torch.cuda.get_device_capability() >= HOPPER:
        found.sort(key=lambda name: name != "flash4")
    return found


def _takes(backend: str, head_dim: int) -> bool:
    """Whether the backend takes heads of this size."""
    return head_dim % 8 == 0 and head_dim <= WIDEST[backend]


def _load(backend: str) -> tuple[Callable | None, str]:
    """(the kernel, or None; why)."""
    try:
        kernel = LOADERS[backend]()
    except (ImportError, OSError, AttributeError) as error:  # not installed, or built for another torch
        return None, f"{backend}: {error}"
    return kernel, ""


def _say(backend: str, reasons: Iterable[str] = ()) -> None:
    """Tell what is used, and why nothing better is: to stderr, once however many ranks there are."""
    if os.environ.get("RANK", "0") == "0":
        why = f" ({'; '.join(reasons)})" if reasons else ""
        print(f"attention: {backend}{why}", file=sys.stderr)


def _load_flash2() -> Callable:
    from flash_attn import flash_attn_varlen_func  # FA4 also makes a flash_attn folder, without this name

    return functools.partial(_flash, flash_attn_varlen_func)


def _load_flash4() -> Callable:
    from flash_attn.cute import flash_attn_varlen_func

    return functools.partial(_flash, flash_attn_varlen_func)


def _flash(kernel: Callable, q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, longest: int) -> Tensor:
    out = kernel(
        q,
        k,
        v,
        cu_seqlens_q=cu_seqlens,
        cu_seqlens_k=cu_seqlens,
        max_seqlen_q=longest,
        max_seqlen_k=longest,
        causal=True,
    )
    return out[0] if isinstance(out, tuple) else out  # FA4 returns its log-sum-exp too


def _load_varlen() -> Callable:
    from torch.nn.attention.varlen import varlen_attn

    parameters = inspect.signature(varlen_attn).parameters
    if "window_size" not in parameters:
        raise ImportError("torch.nn.attention.varlen has no window_size; torch 2.11 or later has")
    # 2.11 takes grouped heads without asking
    gqa = {"enable_gqa": True} if "enable_gqa" in parameters else {}

    def varlen(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, longest: int) -> Tensor:
        return varlen_attn(q, k, v, cu_seqlens, cu_seqlens, longest, longest, window_size=(-1, 0), **gqa)

    return varlen


LOADERS = {"flash2": _load_flash2, "flash4": _load_flash4, "varlen": _load_varlen}


class _PaddedGroups:
    """SDPA over packed rows: sequences of similar length are a group, padded to one [b, longest] batch.

    One call a group: 256 short sequences, one by one, would take as many calls, most of it overhead. Padding
    goes at the end, where causality already hides it. So it holds copies of real rows, needs no mask, and its
    outputs are dropped.
    """

    def __init__(self, bounds: list[int], device: torch.device):
        spans = sorted(((b - a, a) for a, b in pairwise(bounds) if b > a), key=lambda s: (-s[0], s[1]))
        self.groups: list[tuple[int, int]] = []  # (sequences, longest)
        for length, _ in spans:
            if self.groups and length >= (1 - MAX_PADDING) * self.groups[-1][1]:
                self.groups[-1] = (self.groups[-1][0] + 1, self.groups[-1][1])
            else:
                self.groups.append((1, length))
        self.sizes = [count * longest for count, longest in self.groups]
        longest = [m for count, m in self.groups for _ in range(count)]
        self.rectangle = len(self.groups) == 1 and all(length == longest[0] for length, _ in spans)
        if self.rectangle:  # nothing to move
            return
        take = []
        back = torch.empty(bounds[-1] - bounds[0], dtype=torch.int64)
        at = 0
        for (length, start), m in zip(spans, longest, strict=True):
            take.append(start + torch.arange(m).clamp_(max=length - 1))
            back[start : start + length] = at + torch.arange(length)
            at += m
        # packed row of each padded one, and back
        self.take, self.back = torch.cat(take).to(device), back.to(device)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.rectangle:
            return self._sdpa(q, k, v, *self.groups[0])
        parts = [_Pad.apply(x, self.take, self.back).split(self.sizes) for x in (q, k, v)]
        outs = [self._sdpa(*part, *group) for *part, group in zip(*parts, self.groups, strict=True)]
        return _Unpad.apply(torch.cat(outs) if len(outs) > 1 else outs[0], self.back)

    @staticmethod
    def _sdpa(q: Tensor, k: Tensor, v: Tensor, count: int, longest: int) -> Tensor:
        # [b, heads, longest, D]
        q, k, v = (x.view(count, longest, *x.shape[1:]).transpose(1, 2) for x in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
        return out.transpose(1, 2).reshape(count * longest, *q.shape[1::2])


class _Pad(torch.autograd.Function):
    """x[take]. Padded rows feed nothing, so the gradient is a gather too, not a scatter with additions."""

    @staticmethod
    def forward(ctx, x: Tensor, take: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        return x.index_select(0, take)

    @staticmethod
    def backward(ctx, grad: Tensor):
        return grad.index_select(0, ctx.saved_tensors[0]), None, None


class _Unpad(torch.autograd.Function):
    """x[back], where no row is taken twice."""

    @staticmethod
    def forward(ctx, x: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        ctx.rows = x.shape[0]
        return x.index_select(0, back)

    @staticmethod
    def backward(ctx, grad: Tensor):
        return grad.new_zeros(ctx.rows, *grad.shape[1:]).index_copy_(0, ctx.saved_tensors[0], grad), None
