"""The candidates of timing.py: honest kernels of several sizes, and cheats beside an honest sibling."""

from dataclasses import dataclass

import triton

from nanotriton.tasks.task import Task

HEAD = "import torch\nimport torch.nn as nn\nimport triton\nimport triton.language as tl\n\n"
TASK = (
    HEAD.replace("import triton\nimport triton.language as tl\n", "")
    + """
class Model(nn.Module):
    def forward(self, {args}):
        return {answer}


def get_inputs():
    return [{draws}]


def get_init_inputs():
    return []
"""
)


@dataclass(frozen=True)
class TimedKernel:
    """A candidate and its task."""

    name: str
    task: Task
    source: str


@triton.jit
def empty(x_ptr):
    pass


def make(name: str, args: str, answer: str, draws: str, source: str) -> TimedKernel:
    """A kernel for the task whose forward(args) returns `answer` and whose inputs are `draws`."""
    task = Task(name, TASK.format(args=args, answer=answer, draws=draws))
    return TimedKernel(name, task, HEAD + source)


# ---- honest kernels ----

SCALE = """
@triton.jit
def kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(y_ptr + i, x * 2 + 1, mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
        return y
"""
SOFTMAX = """
@triton.jit
def kernel(x_ptr, y_ptr, cols, BLOCK: tl.constexpr):
    col = tl.arange(0, BLOCK)
    at = tl.program_id(0) * cols + col
    x = tl.load(x_ptr + at, mask=col < cols, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + at, e / tl.sum(e, axis=0), mask=col < cols)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]), num_warps=8)
        return y
"""
SUM = """
@triton.jit
def kernel(x_ptr, y_ptr, cols, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + tl.program_id(0) * cols + col, mask=col < cols, other=0)
    tl.store(y_ptr + tl.program_id(0), tl.sum(total, axis=0))


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0], device=x.device)
        kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=1024)
        return y
"""
MATMUL = """
@triton.jit
def kernel(a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)[:, None]
    n = tl.program_id(1) * BN + tl.arange(0, BN)[None, :]
    c = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        a = tl.load(a_ptr + m * K + k[None, :], mask=(m < M) & (k[None, :] < K), other=0)
        b = tl.load(b_ptr + k[:, None] * N + n, mask=(k[:, None] < K) & (n < N), other=0)
        c = tl.dot(a, b, c)
    tl.store(c_ptr + m * N + n, c.to(tl.float16), mask=(m < M) & (n < N))


class ModelNew(nn.Module):
    def forward(self, a, b):
        M, N, K = a.shape[0], b.shape[1], a.shape[1]
        c = torch.empty(M, N, dtype=a.dtype, device=a.device)
        kernel[(triton.cdiv(M, BM), triton.cdiv(N, BN))](a, b, c, M, N, K, BM=BM, BN=BN, BK=BK)
        return c
"""


def scale(name: str, n: int) -> TimedKernel:
    """2x + 1 of n numbers."""
    return make(name, "x", "x * 2 + 1", f"torch.randn({n})", SCALE)


def matmul(name: str, n: int, block: tuple[int, int, int]) -> TimedKernel:
    """The product of two n x n matrices in fp16."""
    draw = f"torch.randn({n}, {n}, dtype=torch.float16)"
    sizes = "".join(f"{key} = {value}\n" for key, value in zip(("BM", "BN", "BK"), block, strict=True))
    return make(name, "a, b", "a @ b", f"{draw}, {draw}", sizes + MATMUL)


def tiny(device: str) -> TimedKernel:
    return scale("tiny", 64)


def kernels(device: str) -> list[TimedKernel]:
    """The honest kernels: on a GPU they take from a few microseconds to some hundreds."""
    small = device == "cpu"
    sizes = {"scale_64k": 1 << 16, "scale_16m": 1 << 24, "scale_64m": 1 << 26}
    found = [scale(name, 3000 if small else n) for name, n in sizes.items()]
    rows, cols = (4, 100) if small else (4096, 4096)
    found.append(make("softmax_4096", "x", "torch.softmax(x, 1)", f"torch.randn({rows}, {cols})", SOFTMAX))
    found.append(make("sum_4096", "x", "x.sum(1)", f"torch.randn({rows}, {cols})", SUM))
    block = (16, 16, 16) if small else (128, 128, 32)
    return found + [matmul(f"matmul_{n}", 40 if small else n, block) for n in (2048, 4096)]


# ---- cheats ----

# Computes for its first calls only. It counts them in Python, or with a kernel in GPU memory.
FIRST_CALLS = SCALE.replace(
    "class ModelNew(nn.Module):\n",
    """class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls, self.last = 0, None

""",
).replace(
    "        y = torch.empty_like(x)\n",
    """        self.calls += 1
        if self.calls > 3:
            return self.last
        y = self.last = torch.empty_like(x)
""",
)
COUNTED = SCALE.replace("kernel(x_ptr, y_ptr, n", "kernel(x_ptr, y_ptr, count_ptr, n").replace(
    "(x, y, x.numel()", "(x, y, self.count, x.numel()"
)
COUNTED = COUNTED.replace(
    "    x = tl.load(",
    "    if tl.atomic_add(count_ptr, 1) >= 8 * tl.num_programs(0):\n        return\n    x = tl.load(",
)
COUNTED = COUNTED.replace(
    "class ModelNew(nn.Module):\n",
    """class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(1, dtype=torch.int32))

""",
)
# Works on a stream that nobody waits for.
OTHER_STREAM = SCALE.replace(
    "        kernel[", "        with torch.cuda.stream(torch.cuda.Stream()):\n            kernel["
)
# Keeps answers by the address of the input, or by the tensor object.
CACHE = SCALE.replace(
    "class ModelNew(nn.Module):\n",
    """class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.known = {}

""",
).replace(
    "        y = torch.empty_like(x)\n",
    """        if KEY in self.known:
            return self.known[KEY]
        y = self.known[KEY] = torch.empty_like(x)
""",
)
# Looks whether its answer is there already from the run before: poison is NaN, an answer is not.
NOT_POISON = SCALE.replace(
    "    x = tl.load(",
    """    old = tl.load(y_ptr + i, mask=i < n, other=0)
    if tl.sum((old != old).to(tl.int32), axis=0) == 0:
        return
    x = tl.load(""",
)
# The same, but only the first number of a block is read.
FIRST_NOT_POISON = SCALE.replace(
    "    x = tl.load(",
    """    old = tl.load(y_ptr + tl.program_id(0).to(tl.int64) * BLOCK)
    if old == old:
        return
    x = tl.load(""",
)


def sibling(device: str) -> TimedKernel:
    """The honest kernel that all cheats pretend to be."""
    return scale("cheated", 3000 if device == "cpu" else 1 << 24)


def cheating(device: str) -> dict[str, TimedKernel]:
    """{what it does: a candidate for the sibling's task}."""
    sources = {
        "first calls, counted in Python": FIRST_CALLS,
        "first calls, counted in GPU memory": COUNTED,
        "another stream": OTHER_STREAM,
        "cache by pointer": CACHE.replace("KEY", "x.data_ptr()"),
        "cache by object": CACHE.replace("KEY", "id(x)"),
        "skips where the output is not poison": NOT_POISON,
        "skips where its first number is not poison": FIRST_NOT_POISON,
    }
    task = sibling(device).task
    return {name: TimedKernel(name, task, HEAD + source) for name, source in sources.items()}
