# heuristics that compute a meta-parameter from the arguments
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.heuristics({"B": lambda args: min(1024, triton.next_power_of_2(args["n"])), "EVEN": lambda args: args["n"] % 1024 == 0})
@triton.jit
def silu_add(x, y, out, n, B: tl.constexpr, EVEN: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    if EVEN:
        v = tl.load(x + o)
        tl.store(out + o, v * tl.sigmoid(v) + tl.load(y + o))
    else:
        m = o < n
        v = tl.load(x + o, mask=m)
        tl.store(out + o, v * tl.sigmoid(v) + tl.load(y + o, mask=m), mask=m)


class ModelNew(nn.Module):
    def forward(self, x, y):
        out = torch.empty_like(x)
        n = x.numel()
        silu_add[lambda meta: (triton.cdiv(n, meta["B"]),)](x, y, out, n)
        return out
