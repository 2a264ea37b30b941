"""RMSNorm and SwiGLU: what a transformer does between its matrix products, forward and backward.

transformer/model.py calls the public functions at the end of the file, `rms_norm` and `swiglu`. Read those
first, then the one of the two parts that you want. The public functions differentiate. They choose by where
the tensor is: on CUDA a Triton kernel runs, elsewhere its torch twin, `<name>_torch`, which has the same
arguments and the same answer. The tests compare the two. What becomes of the heads of q and k is in heads.py.

Both are bound by memory: each kernel reads its inputs and writes its outputs once, computes in fp32 and
rounds once. The forward of swiglu takes inputs that are parts of each row of something wider as they
are: a product that made several projections at once leaves them so (Transformer.merge_projections).

The norm's and SwiGLU's forwards may be told the weight that the next product reads, `upcoming`. Its beginning
is then read ahead (launch.py). Answers are the same.
"""

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from nanotriton.kernels.launch import device_limits, early, programs_ahead, read_ahead, wait_for_previous

TILE = 4096  # elements a program of the norm's forward holds; short rows, such as heads, share a program
BACKWARD_TILE = 8192  # and of its backward, for rows that are short
FLAT = 2048  # elements of an elementwise program


# -----------------------------------------------------------------------------------------------------------
# RMSNorm
@triton.jit(do_not_specialize=["rows"])
def _rms_norm_forward_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    y_ptr,
    total_ptr,
    upcoming_ptr,
    rows,
    eps,
    N: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    PROGRAMS_AHEAD: tl.constexpr,
    THREADS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Each program ROWS rows of N elements. The last PROGRAMS_AHEAD have none, and only read ahead."""
    read_ahead(upcoming_ptr, PROGRAMS_AHEAD, THREADS)
    wait_for_previous(EARLY)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    col = tl.arange(0, BLOCK)
    at = row.to(tl.int64)[:, None] * N + col[None, :]
    mask = (row < rows)[:, None] & (col < N)[None, :]
    x = tl.load(x_ptr + at, mask, 0.0).to(tl.float32)
    if RESIDUAL:
        x = (x + tl.load(residual_ptr + at, mask, 0.0).to(tl.float32)).to(total_ptr.dtype.element_ty)
        tl.store(total_ptr + at, x, mask)
        x = x.to(tl.float32)  # what the backward will see: the rounded sum
    w = tl.load(weight_ptr + col, col < N, 0.0).to(tl.float32)
    rstd = tl.rsqrt(tl.sum(x * x, 1) / N + eps)
    tl.store(y_ptr + at, (x * rstd[:, None] * w[None, :]).to(y_ptr.dtype.element_ty), mask)


@triton.jit(do_not_specialize=["rows"])
def _rms_norm_backward_kernel(
    x_ptr,
    weight_ptr,
    dy_ptr,
    dtotal_ptr,
    dx_ptr,
    dw_ptr,
    rows,
    eps,
    N: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Each program goes over rows, ROWS at a time: dx of each, and their part of dw, [programs, N]."""
    col = tl.arange(0, BLOCK)
    w = tl.load(weight_ptr + col, col < N, 0.0).to(tl.float32)[None, :]
    dw = tl.zeros((ROWS, BLOCK), tl.float32)  # stays in registers until the last row
    for start in tl.range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS, num_stages=STAGES):
        row = start + tl.arange(0, ROWS)
        at = row.to(tl.int64)[:, None] * N + col[None, :]
        mask = (row < rows)[:, None] & (col < N)[None, :]
        x = tl.load(x_ptr + at, mask, 0.0).to(tl.float32)
        dy = tl.load(dy_ptr + at, mask, 0.0).to(tl.float32)
        g = dy * w
        square, slope = tl.sum(x * x, 1)[:, None], tl.sum(g * x, 1)[:, None]  # neither waits for the other
        rstd = tl.rsqrt(square / N + eps)
        dw += dy * (x * rstd)
        dx = (g - x * (slope * rstd * rstd / N)) * rstd
        if RESIDUAL:
            dx += tl.load(dtotal_ptr + at, mask, 0.0).to(tl.float32)
        tl.store(dx_ptr + at, dx.to(dx_ptr.dtype.element_ty), mask)
    tl.store(dw_ptr + tl.program_id(0) * N + col, tl.sum(dw, 0), col < N)


@triton.jit
def _sum_rows_kernel(parts_ptr, out_ptr, rows, N: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    """parts [rows, N] -> out [N], their sum; each program COLS columns."""
    row, col = tl.arange(0, ROWS)[:, None], tl.program_id(0) * COLS + tl.arange(0, COLS)[None, :]
    parts = tl.load(parts_ptr + row * N + col, (row < rows) & (col < N), 0.0)
    col = tl.program_id(0) * COLS + tl.arange(0, COLS)
    tl.store(out_ptr + col, tl.sum(parts, 0).to(out_ptr.dtype.element_ty), col < N)


def rms_norm_forward(
    x: Tensor, weight: Tensor, eps: float, residual: Tensor | None, upcoming: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """x [..., N], weight [N] -> (y, total), both [..., N] in x's dtype.

    total is x + residual, rounded, or x itself without a residual. y is total / rms(total) * weight.
    """
    x = x.contiguous()
    n, y = x.shape[-1], torch.empty_like(x)
    total = x if residual is None else torch.empty_like(x)
    residual = x if residual is None else residual.contiguous()
    rows, block = x.numel() // n, triton.next_power_of_2(n)
    per_program = max(1, TILE // block)
    num_warps = min(16, max(4, block // 512))
    ahead = programs_ahead(upcoming, 32 * num_warps)
    if rows:
        _rms_norm_forward_kernel[(triton.cdiv(rows, per_program) + ahead,)](
            x,
            residual,
            weight,
            y,
            total,
            upcoming if ahead else weight,
            rows,
            eps,
            N=n,
            BLOCK=block,
            ROWS=per_program,
            RESIDUAL=total is not x,
            PROGRAMS_AHEAD=ahead,
            THREADS=32 * num_warps,
            num_warps=num_warps,
            **early(x),
        )
    return y, total


def tokens_are_whole(x: Tensor) -> bool:
    """Whether the elements of each x[i] lie together and in order, as in a part of each row of a product."""
    return not x.numel() or x[0].is_contiguous()


def rms_norm_forward_torch(
    x: Tensor, weight: Tensor, eps: float, residual: Tensor | None, upcoming: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    total = x if residual is None else x + residual
    t = total.float()
    rstd = t.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
    return (t * rstd).mul_(weight.float()).to(x.dtype), total


def rms_norm_backward(
    x: Tensor, weight: Tensor, eps: float, dy: Tensor, dtotal: Tensor | None
) -> tuple[Tensor, Tensor]:
    """(dx [..., N], dw [N]) for x, the total that was normalised.

    dy [..., N] is the gradient of the norm, dtotal that of the total from elsewhere. dw is summed in fp32 and
    comes in the weight's dtype.
    """
    dx, dw, n = torch.empty_like(x), torch.zeros_like(weight), x.shape[-1]
    x, dy, dtotal = x.contiguous(), dy.contiguous(), dtotal if dtotal is None else dtotal.contiguous()
    rows, block = x.numel() // n, triton.next_power_of_2(n)
    per_program = BACKWARD_TILE // block if block <= 1024 else 1
    if not rows:
        return dx, dw.zero_()
    tile = block * per_program
    processors, shared = device_limits(x)
    programs = min(triton.cdiv(rows, per_program), processors)
    parts = torch.empty(programs, n, dtype=torch.float32, device=x.device)
    _rms_norm_backward_kernel[(programs,)](
        x,
        weight,
        dy,
        dy if dtotal is None else dtotal,
        dx,
        parts,
        rows,
        eps,
        N=n,
        BLOCK=block,
        ROWS=per_program,
        RESIDUAL=dtotal is not None,
        num_warps=min(16, max(4, tile // 512)),
        STAGES=min(3, max(1, shared // (3 * tile * x.element_size()))),  # three inputs wait in shared memory
    )
    _sum_rows_kernel[(triton.cdiv(n, 64),)](
        parts, dw, programs, N=n, ROWS=triton.next_power_of_2(programs), COLS=64
    )
    return dx, dw


def rms_norm_backward_torch(
    x: Tensor, weight: Tensor, eps: float, dy: Tensor, dtotal: Tensor | None
) -> tuple[Tensor, Tensor]:
    t, g, w = x.float().view(-1, x.shape[-1]), dy.float().reshape(-1, x.shape[-1]), weight.float()
    rstd = t.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
    normed = t * rstd
    per_row = normed * g
    slope = (per_row @ w)[:, None] / t.shape[-1]
    dx = (g * w).addcmul_(normed, slope, value=-1).mul_(rstd).view_as(x)
    if dtotal is not None:
        dx += dtotal
    return dx.to(x.dtype), per_row.sum(0).to(weight.dtype)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, eps: float, residual: Tensor | None, upcoming: Tensor | None):
        run = rms_norm_forward if x.is_cuda else rms_norm_forward_torch
        y, total = run(x, weight, eps, residual, upcoming)
        ctx.save_for_backward(total, weight)
        ctx.eps = eps
        return y if residual is None else (y, total)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy: Tensor, dtotal: Tensor | None = None):
        x, weight = ctx.saved_tensors
        run = rms_norm_backward if x.is_cuda else rms_norm_backward_torch
        dx, dw = run(x, weight, ctx.eps, dy, dtotal)
        return dx, dw, None, dx if dtotal is not None else None, None


# ------------------------------------------------------------------------------------------------------------
# SwiGLU
@triton.jit
def _swiglu_forward_kernel(
    gate_ptr,
    up_ptr,
    out_ptr,
    upcoming_ptr,
    size,
    gate_stride,
    up_stride,
    N: tl.constexpr,
    BLOCK: tl.constexpr,
    PROGRAMS_AHEAD: tl.constexpr,
    THREADS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Each program BLOCK elements. Where gate and up are parts of something wider, N is the length of their
    rows, else 0. The last PROGRAMS_AHEAD programs have no elements, and only read ahead."""
    read_ahead(upcoming_ptr, PROGRAMS_AHEAD, THREADS)
    wait_for_previous(EARLY)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < size
    if N:
        g = tl.load(gate_ptr + at // N * gate_stride + at % N, mask, 0.0).to(tl.float32)
        u = tl.load(up_ptr + at // N * up_stride + at % N, mask, 0.0).to(tl.float32)
    else:
        g = tl.load(gate_ptr + at, mask, 0.0).to(tl.float32)
        u = tl.load(up_ptr + at, mask, 0.0).to(tl.float32)
    tl.store(out_ptr + at, (g * tl.sigmoid(g) * u).to(out_ptr.dtype.element_ty), mask)


@triton.jit
def _swiglu_backward_kernel(gate_ptr, up_ptr, dout_ptr, dgate_ptr, dup_ptr, size, BLOCK: tl.constexpr):
    """Each program BLOCK elements."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < size
    g = tl.load(gate_ptr + at, mask, 0.0).to(tl.float32)
    u = tl.load(up_ptr + at, mask, 0.0).to(tl.float32)
    d = tl.load(dout_ptr + at, mask, 0.0).to(tl.float32)
    s = tl.sigmoid(g)
    tl.store(dgate_ptr + at, (d * u * s * (1 + g * (1 - s))).to(dgate_ptr.dtype.element_ty), mask)
    tl.store(dup_ptr + at, (d * g * s).to(dup_ptr.dtype.element_ty), mask)


def swiglu_forward(gate: Tensor, up: Tensor, upcoming: Tensor | None = None) -> Tensor:
    """silu(gate) * up, both of any one shape."""
    parts = gate.ndim == 2 and not gate.is_contiguous() and tokens_are_whole(gate) and tokens_are_whole(up)
    if not parts:
        gate, up = gate.contiguous(), up.contiguous()
    out, size = torch.empty_like(gate, memory_format=torch.contiguous_format), gate.numel()
    ahead = programs_ahead(upcoming, 256)
    if size:
        _swiglu_forward_kernel[(triton.cdiv(size, FLAT) + ahead,)](
            gate,
            up,
            out,
            upcoming if ahead else out,
            size,
            gate.stride(0),
            up.stride(0),
            N=gate.shape[1] if parts else 0,
            BLOCK=FLAT,
            PROGRAMS_AHEAD=ahead,
            THREADS=256,
            num_warps=8,
            **early(gate),
        )
    return out


def swiglu_forward_torch(gate: Tensor, up: Tensor, upcoming: Tensor | None = None) -> Tensor:
    return F.silu(gate.float()).mul_(up).to(gate.dtype)


def swiglu_backward(gate: Tensor, up: Tensor, dout: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of gate and of up, from that of swiglu's result."""
    gate, up, dout = gate.contiguous(), up.contiguous(), dout.contiguous()
    dgate, dup, size = torch.empty_like(gate), torch.empty_like(up), gate.numel()
    if size:
        _swiglu_backward_kernel[(triton.cdiv(size, FLAT),)](
            gate, up, dout, dgate, dup, size, BLOCK=FLAT, num_warps=8
        )
    return dgate, dup


def swiglu_backward_torch(gate: Tensor, up: Tensor, dout: Tensor) -> tuple[Tensor, Tensor]:
    g, d = gate.float(), dout.float()
    dgate = torch.ops.aten.silu_backward(d * up, g)
    return dgate.to(gate.dtype), F.silu(g).mul_(d).to(up.dtype)


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gate: Tensor, up: Tensor, upcoming: Tensor | None):
        ctx.save_for_backward(gate, up)
        return (swiglu_forward if gate.is_cuda else swiglu_forward_torch)(gate, up, upcoming)

    @staticmethod
    @once_differentiable
    def backward(ctx, dout: Tensor):
        run = swiglu_backward if dout.is_cuda else swiglu_backward_torch
        return *run(*ctx.saved_tensors, dout), None


# ------------------------------------------------------------------------------------------------------------
# The public functions
def rms_norm(
    x: Tensor,
    weight: Tensor,
    eps: float,
    residual: Tensor | None = None,
    upcoming: Tensor | None = None,
):
    """x / sqrt(mean(x^2) + eps) * weight over the last axis (arXiv 1910.07467), x and the result [..., N].

    With a residual [..., N]: s = x + residual is normalised, and (y, s) is returned. The weight's gradient is
    summed in fp32. upcoming: the weight that the next product reads, to be read ahead.
    """
    return _RMSNorm.apply(x, weight, eps, residual, upcoming)


def swiglu(gate: Tensor, up: Tensor, upcoming: Tensor | None = None) -> Tensor:
    """silu(gate) * up, elementwise, all of one shape (arXiv 2002.05202).

    upcoming: the weight that the next product reads, to be read ahead.
    """
    return _SwiGLU.apply(gate, up, upcoming)
