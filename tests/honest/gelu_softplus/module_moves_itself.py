# the module moves itself to torch.device('cuda') while it is built
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.autotune(
    configs=[triton.Config({"B": b}, num_warps=w) for b in (256, 512, 1024) for w in (2, 4)],
    key=["n"],
    warmup=5,
    rep=10,
    use_cuda_graph=False,
)
@triton.jit
def k(x_ptr, y_ptr, n, s, B: tl.constexpr):
    o = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    x = tl.load(x_ptr + o, mask=o < n, other=0.0)
    z = 0.7978845608028654 * (x + 0.044715 * x * x * x)
    y = x * tl.sigmoid(2.0 * z) * s + tl.where(x > 20.0, x, tl.log(1 + tl.exp(x)))
    tl.store(y_ptr + o, y, mask=o < n)
    tl.debug_barrier()


class ModelNew(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s = nn.Parameter(torch.tensor(s), requires_grad=False)
        self.val = s
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.to(self.device)

    def forward(self, x):
        x = x.to(self.device)
        y = torch.zeros(x.shape, device=self.device, dtype=torch.float)
        k[lambda meta: (triton.cdiv(x.numel(), meta["B"]),)](x, y, x.numel(), self.val)
        return y
