# indexed loads of rows, 32-bit indices
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def lookup(ids, table, out, width, B: tl.constexpr):
    i = tl.program_id(0)
    row = tl.load(ids + i)
    o = tl.arange(0, B)
    tl.store(out + i * width + o, tl.load(table + row * width + o, mask=o < width), mask=o < width)


class ModelNew(nn.Module):
    def __init__(self, rows, width):
        super().__init__()
        self.table = nn.Embedding(rows, width)

    def forward(self, ids):
        flat = ids.reshape(-1).to(torch.int32)
        width = self.table.embedding_dim
        out = torch.empty((flat.numel(), width), device=ids.device, dtype=self.table.weight.dtype)
        lookup[(flat.numel(),)](flat, self.table.weight, out, width, B=32)
        return out.view(*ids.shape, width)
