# what wrappers in the wild do: asserts, a device guard, contiguous(), a fallback that is not taken
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def silu_add(x, y, out, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    m = o < n
    v = tl.load(x + o, mask=m)
    tl.store(out + o, v * tl.sigmoid(v) + tl.load(y + o, mask=m), mask=m)


def silu_add_triton(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if not x.is_cuda or not torch.cuda.is_available():
        return x * torch.sigmoid(x) + y
    assert x.shape == y.shape and x.dtype == y.dtype, "mismatch"
    assert x.device.type == "cuda" and x.device == y.device
    x, y = x.contiguous(), y.contiguous()
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    n_elements = out.numel()
    grid = lambda meta: (triton.cdiv(n_elements, meta["B"]), 1, 1)
    with torch.cuda.device(x.device):
        silu_add[grid](x, y, out, n_elements, B=1024)
    torch.cuda.synchronize()
    return out.view_as(x)


class ModelNew(nn.Module):
    def __init__(self, *args, **kwargs) -> None:
        super(ModelNew, self).__init__()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return silu_add_triton(x.cuda(), y.to("cuda"))


if __name__ == "__main__":
    a = torch.randn(8, 8, device="cuda")
    print(torch.allclose(ModelNew()(a, a), a * torch.sigmoid(a) + a))
