# torch.device kept by the module and compared with
import torch
import torch.nn as nn
import triton
import triton.language as tl

DEVICE = torch.device("cuda")
DEV2 = triton.runtime.driver.active.get_active_torch_device()


@triton.jit
def k(x_ptr, y_ptr, n, a_ptr, b, lo, B: tl.constexpr):
    o = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    x = tl.load(x_ptr + o, mask=o < n, other=0.0)
    tl.store(y_ptr + o, tl.maximum(x * tl.load(a_ptr) + tl.load(b), lo), mask=o < n)


class ModelNew(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.device = torch.device("cuda", 0)
        assert self.device.type == "cuda" and DEVICE.type == "cuda" and DEV2 == self.device
        self.a = nn.Parameter(torch.tensor(2.0, device=self.device))
        self.b = nn.Parameter(torch.randn(1).to(self.device))
        self.to(DEVICE)

    def forward(self, x):
        assert x.device == self.device, (x.device, self.device)
        if x.device.type == DEVICE.type:
            with torch.device(self.device):
                y = torch.zeros(*x.shape)
        y = y.to(torch.device("cuda:0")).to(0).cuda(0)
        k[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), self.a, self.b.to(DEVICE), -0.5, B=256)
        return y
