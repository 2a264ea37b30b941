# the tutorial's warmup, occupancy and persistent grid
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def k(x_ptr, y_ptr, stride, rows, cols, s, B: tl.constexpr, num_stages: tl.constexpr):
    start = tl.program_id(0)
    step = tl.num_programs(0)
    for r in tl.range(start, rows, step, num_stages=num_stages):
        o = tl.arange(0, B)
        x = tl.load(x_ptr + r * stride + o, mask=o < cols, other=0.0)
        t = tl.exp(-2 * 0.7978845608 * tl.abs(x + 0.044715 * x * x * x))
        th = (1 - t) / (1 + t)
        th = tl.where(x < 0, -th, th)
        y = 0.5 * x * (1 + th) * s
        tl.store(y_ptr + r * stride + o, y + tl.maximum(x, 0) + tl.log(1 + tl.exp(-tl.abs(x))), mask=o < cols)


kernels = {}


class ModelNew(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s = s

    def forward(self, x):
        from triton.runtime import driver

        device = torch.cuda.current_device()
        properties = driver.active.utils.get_device_properties(device)
        NUM_SM = properties["multiprocessor_count"]
        NUM_REGS = properties["max_num_regs"]
        SIZE_SMEM = properties["max_shared_mem"]
        WARP_SIZE = properties["warpSize"]
        n_rows, n_cols = x.shape
        B = triton.next_power_of_2(n_cols)
        num_warps = 8
        num_stages = 4 if SIZE_SMEM > 200000 else 2
        y = torch.empty_like(x)
        kernel, num_programs = kernels.get(B, (None, 0))
        if kernel is None:
            kernel = k.warmup(
                x, y, x.stride(0), n_rows, n_cols, self.s, B=B, num_stages=num_stages, num_warps=num_warps, grid=(1,)
            )
            kernel._init_handles()
            n_regs = kernel.n_regs
            size_smem = kernel.metadata.shared
            occupancy = NUM_REGS // (n_regs * WARP_SIZE * num_warps)
            occupancy = min(occupancy, SIZE_SMEM // size_smem)
            num_programs = NUM_SM * occupancy
            kernels[B] = (kernel, num_programs)
        num_programs = min(num_programs, n_rows)
        kernel[(num_programs, 1, 1)](x, y, x.stride(0), n_rows, n_cols, self.s, B, num_stages)
        return y
