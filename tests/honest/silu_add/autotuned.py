# autotune over block sizes and warps
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.autotune(
    configs=[triton.Config({"B": 128}, num_warps=2), triton.Config({"B": 512}, num_warps=4), triton.Config({"B": 1024}, num_warps=8, num_stages=1)],
    key=["n"],
)
@triton.jit
def silu_add(x, y, out, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    m = o < n
    v = tl.load(x + o, mask=m)
    tl.store(out + o, v * tl.sigmoid(v) + tl.load(y + o, mask=m), mask=m)


class ModelNew(nn.Module):
    def forward(self, x, y):
        out = torch.empty_like(x)
        n = x.numel()
        silu_add[lambda meta: (triton.cdiv(n, meta["B"]),)](x, y, out, n)
        return out
