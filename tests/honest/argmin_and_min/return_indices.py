# tl.min with indices, a dictionary of outputs
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def row_min(x, values, indices, n, B: tl.constexpr):
    row = tl.program_id(0)
    o = tl.arange(0, B)
    v = tl.load(x + row * n + o, mask=o < n, other=float("inf"))
    low, at = tl.min(v, axis=0, return_indices=True)
    tl.store(values + row, low)
    tl.store(indices + row, at)


class ModelNew(nn.Module):
    def forward(self, x):
        values = torch.empty(x.shape[0], device=x.device, dtype=x.dtype)
        indices = torch.empty(x.shape[0], device=x.device, dtype=torch.long)
        row_min[(x.shape[0],)](x, values, indices, x.shape[1], B=128)
        return {"values": values, "indices": indices}
