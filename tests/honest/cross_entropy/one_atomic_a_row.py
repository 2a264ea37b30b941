# a scalar accumulated by atomics
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def loss(logits, target, out, rows, n, B: tl.constexpr):
    row = tl.program_id(0)
    o = tl.arange(0, B)
    v = tl.load(logits + row * n + o, mask=o < n, other=-float("inf"))
    t = tl.load(target + row)
    top = tl.max(v, 0)
    picked = tl.sum(tl.where(o == t, v, 0.0), 0)
    tl.atomic_add(out, (top + tl.log(tl.sum(tl.exp(v - top), 0)) - picked) / rows)


class ModelNew(nn.Module):
    def forward(self, logits, target):
        out = torch.zeros((), device=logits.device)
        loss[(logits.shape[0],)](logits, target, out, logits.shape[0], logits.shape[1], B=128)
        return out
