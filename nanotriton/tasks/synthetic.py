"""Synthetic tasks: a grammar of small PyTorch modules in KernelBench's format, each with its Triton solution.

A task is a chain of 1 to 4 operations on a matrix x [rows, cols]: maps (element-wise, with a constant,
with a second input, a broadcast vector or a parameter), row operations that keep the shape (softmax,
normalisations) and reductions of a row to a number, after which only plain maps may follow. A chain may
instead start with a small matmul, and then goes on with maps. Every operation is one line of PyTorch
and one to four lines of Triton; the solution is their concatenation inside one of two kernels (a
program per row, a program per tile), so each task has one canonical solution. No operation occurs twice
in a chain.

Splits are disjoint by composition, whatever the seed. Number the operations in the order of OPS; the
ordered pair (a, b) of adjacent operations is held out for "dev" if (7a + b) % 15 == 0 and for "test" if
it is 1: 13% of all pairs, and for every operation as first and as second member. A dev task has at
least one dev pair and no test pair, a test task the other way round, and sft and rl tasks have neither.
A chain of two or more without a held-out pair belongs to "rl" if the CRC-32 of its names is a multiple
of 4, else to "sft". Constants and shapes play no part in this.

A task is kept if it is a fair question (see `is_fair`): a finite answer also under stressed inputs,
well conditioned in fp32, not nearly constant, not equal to an input, and every operation changes the
answer.
"""

import random
import zlib
from functools import cache
from itertools import pairwise
from types import SimpleNamespace

import torch
import torch.nn.functional as F

from nanotriton.tasks.grammar import OPERANDS, OPS, Op
from nanotriton.tasks.task import Task

SPLITS = ("sft", "rl", "dev", "test")
INDEX = {op.name: i for i, op in enumerate(OPS)}


# ---- texts ----

TASK = """\
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
{init}    def forward(self, {inputs}):
        {steps}
        return x


{sizes}


def get_inputs():
    return [{draws}]


def get_init_inputs():
    return [{init_inputs}]
"""

ROW_SOLUTION = """\
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def kernel({pointers}, out_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(axis=0)
    col = tl.arange(0, BLOCK)
    mask = col < cols
    x = tl.load(x_ptr + row * cols + col, mask=mask, other=0)
    {steps}
    {store}


class ModelNew(nn.Module):
{init}    def forward(self, {inputs}):
        rows, cols = x.shape
        out = {out}
        kernel[(rows,)]({tensors}, out, cols, BLOCK=triton.next_power_of_2(cols))
        return out
"""

TILE_SOLUTION = """\
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def kernel({pointers}, out_ptr, rows, inner, cols, BLOCK: tl.constexpr):
    row = tl.program_id(axis=0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    col = tl.program_id(axis=1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    mask = (row < rows) & (col < cols)
    x = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for start in range(0, inner, BLOCK):
        k = start + tl.arange(0, BLOCK)
        a = tl.load(x_ptr + row * inner + k[None, :], mask=(row < rows) & (k[None, :] < inner), other=0)
        b = tl.load(w_ptr + k[:, None] * cols + col, mask=(k[:, None] < inner) & (col < cols), other=0)
        x = tl.dot(a, b, x, input_precision="ieee")
    {steps}
    {store}


class ModelNew(nn.Module):
{init}    def forward(self, {inputs}):
        rows = x.shape[0]
        inner, cols = w.shape
        out = {out}
        grid = lambda meta: (triton.cdiv(rows, meta["BLOCK"]), triton.cdiv(cols, meta["BLOCK"]))
        kernel[grid]({tensors}, out, rows, inner, cols, BLOCK={block})
        return out
"""


def _init(parameters: list[str]) -> str:
    """The constructor that makes these parameters, the same in Model and ModelNew; "" if there are none."""
    if not parameters:
        return ""
    lines = [f"        self.{p} = nn.Parameter(torch.randn({OPERANDS[p].shape}))\n" for p in parameters]
    return "    def __init__(self, cols):\n        super().__init__()\n" + "".join(lines) + "\n"


def render(chain: list[tuple[Op, str]], sizes: dict[str, int], block: int) -> tuple[str, str]:
    """(task source, solution) of a chain of (operation, constant), at these sizes."""
    ops = [op for op, _ in chain]
    tiled = ops[0].kind == "matmul"
    reduced = any(op.kind == "reduce" for op in ops)
    asked = {op.operand for op in ops}
    used = [name for name in OPERANDS if name in asked]
    parameters = [name for name in used if OPERANDS[name].parameter]
    matrices = {"x": "rows, inner", "w": "inner, cols"} if tiled else {"x": "rows, cols"}
    inputs = [*matrices, *(name for name in used if name not in parameters)]
    draws = [f"torch.randn({matrices.get(name) or OPERANDS[name].shape})" for name in inputs]
    both = {"init": _init(parameters), "inputs": ", ".join(inputs)}

    source = TASK.format(
        **both,
        steps="\n        ".join(f"x = {op.torch.format(c=c)}" for op, c in chain),
        sizes="\n".join(f"{name} = {size}" for name, size in sizes.items()),
        draws=", ".join(draws),
        init_inputs="cols" if parameters else "",
    )
    loads = []
    for name in used:
        load = OPERANDS[name].tile_load if tiled else OPERANDS[name].row_load
        loads.append(f"{name} = {load}".format(name))
    lines = [line.format(c=c) for op, c in chain for line in op.triton]
    if reduced:
        out, store = "torch.empty(rows, device=x.device)", "tl.store(out_ptr + row, x)"
    else:
        out = "torch.empty(rows, cols, device=x.device)" if tiled else "torch.empty_like(x)"
        store = "tl.store(out_ptr + row * cols + col, x, mask=mask)"
    solution = (TILE_SOLUTION if tiled else ROW_SOLUTION).format(
        **both,
        pointers=", ".join(f"{name}_ptr" for name in inputs + parameters),
        tensors=", ".join(inputs + [f"self.{name}" for name in parameters]),
        steps="\n    ".join(loads + lines),
        store=store,
        out=out,
        block=block,
    )
    return source, solution


# ---- what is fair to ask ----

PROBES, ROWS, COLS, INNER = 5, 8, 41, 24  # sizes of the tensors that is_fair tries


@cache
def _probe(dtype: torch.dtype) -> dict:
    """Names that an operation's text may use, with five sets of tensors at once (the leading dimension).

    They are as drawn, ten times as large, with heavy tails, shifted up by 4 and shifted down by 4.
    """
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        x = torch.randn(PROBES, *shape, generator=generator, dtype=torch.float64)
        x[1] *= 10
        x[2] = x[2] ** 3
        x[3] += 4
        x[4] -= 4
        return x.to(torch.float32).to(dtype)  # the same numbers in both precisions

    names = {"x": draw(ROWS, COLS), "y": draw(ROWS, COLS), "v": draw(1, COLS), "c": draw(ROWS, 1)}
    names |= {"a": draw(ROWS, INNER), "w": draw(INNER, COLS)}
    return names | {"torch": torch, "F": F, "self": SimpleNamespace(scale=draw(1, COLS), bias=draw(1, COLS))}


_ONE = torch.ones((), dtype=torch.float64)


@cache
def _compiled(expression: str):
    return compile(expression, expression, "eval")


def _run(chain: list[tuple[Op, str]], dtype: torch.dtype) -> torch.Tensor:
    """The chain's answers to the probe: [PROBES, ROWS, COLS], or [PROBES, ROWS] after a reduction."""
    names = _probe(dtype)
    x = names["a"] if chain and chain[0][0].kind == "matmul" else names["x"]
    for op, constant in chain:
        x = eval(_compiled(op.torch.format(c=constant)), names, {"x": x})
    return x


def is_fair(chain: list[tuple[Op, str]]) -> bool:
    """Whether a judge can tell the right answer from a wrong one.

    On every probe the answer is finite and fp32 agrees with float64 to 2e-5 of the RMS. On the probe as
    drawn, its RMS is at least 1e-3, and it differs by at least 5% of its RMS from 1, its own mean, each
    input of its shape, and from what the chain gives without any one of its operations.
    """
    exact = _run(chain, torch.float64)
    error = (_run(chain, torch.float32).double() - exact).flatten(1)
    # [PROBES]; all are norms here, for one operation a distance
    size = torch.linalg.vector_norm(exact.flatten(1), dim=1)
    if not (torch.linalg.vector_norm(error, dim=1) <= 2e-5 * size).all():  # not finite: not true
        return False
    names = _probe(torch.float64)
    answer = exact[0]
    size = size[0].item()
    if size < 1e-3 * answer.numel() ** 0.5:
        return False
    others = [_ONE, answer.mean(), names["x"][0], names["y"][0]]
    droppable = [i for i, (op, _) in enumerate(chain) if op.kind in ("map", "row") and len(chain) > 1]
    others += [_run(chain[:i] + chain[i + 1 :], torch.float64)[0] for i in droppable]
    same = (o for o in others if o.dim() == 0 or o.shape == answer.shape)
    return all(torch.dist(answer, other).item() >= 0.05 * size for other in same)


# ---- splits and sampling ----


def split_of(names: list[str]) -> str | None:
    """The split that these operations in a chain belong to. None: they mix dev and test pairs."""
    pairs = {(7 * INDEX[a] + INDEX[b]) % 15 for a, b in pairwise(names)}
    if pairs >= {0, 1}:
        return None
    if 0 in pairs:
        return "dev"
    if 1 in pairs:
        return "test"
    return "rl" if len(names) > 1 and zlib.crc32(" ".join(names).encode()) % 4 == 0 else "sft"


KIND_SHARE = {"map": 0.5, "operand": 0.22, "row": 0.2, "reduce": 0.08}  # of the operations of a chain on rows
MATMUL_SHARE = 0.08  # of the chains
LENGTHS = (1, 2, 3, 4)
LENGTH_SHARE = {"sft": (1, 3, 3, 2), "rl": (0, 3, 3, 2), "dev": (0, 3, 3, 2), "test": (0, 3, 3, 2)}


GROUPS: dict[str, list[Op]] = {"map": [], "operand": [], "row": [], "reduce": [], "matmul": []}
for _op in OPS:
    GROUPS["operand" if _op.operand else _op.kind].append(_op)


def _draw_chain(rng: random.Random, length: int) -> list[Op]:
    """A chain that the two kernels can hold, with at most two operands beside x and no operation twice."""
    chain = [GROUPS["matmul"][0]] if rng.random() < MATMUL_SHARE else []
    while len(chain) < length:
        allowed = {"map", "operand", "row", "reduce"}
        if chain and chain[0].kind == "matmul":
            allowed = {"map", "operand"}
        if any(op.kind == "reduce" for op in chain):
            allowed = {"map"}
        groups = [group for group in KIND_SHARE if group in allowed]
        (group,) = rng.choices(groups, [KIND_SHARE[group] for group in groups])
        op = rng.choice(GROUPS[group])
        operands = {o.operand for o in (*chain, op) if o.operand}
        if op not in chain and len(operands) <= 2:
            chain.append(op)
    return chain


def _draw_fair(rng: random.Random, split: str) -> list[tuple[Op, str]]:
    """A chain with its constants that belongs to the split and is fair."""
    while True:
        length = rng.choices(LENGTHS, LENGTH_SHARE[split])[0]
        ops = _draw_chain(rng, length)
        # of the same length: rejection must not favour short chains
        while split_of([op.name for op in ops]) != split:
            ops = _draw_chain(rng, length)
        chain = [(op, rng.choice(op.constants) if op.constants else "") for op in ops]
        if is_fair(chain):
            return chain


def _draw_sizes(rng: random.Random, tiled: bool, size: str) -> dict[str, int]:
    """Sizes that are no multiple of a block: every solution must mask its tail."""

    def odd(low, high):
        return rng.randrange(low | 1, high, 2)

    small = size == "cpu"
    if tiled:
        low, high = (17, 48) if small else (500, 2000)
        return {name: odd(low, high) for name in ("rows", "inner", "cols")}
    if small:
        return {"rows": rng.randint(2, 8), "cols": odd(33, 100)}
    return {"rows": odd(1000, 8000), "cols": odd(200, 1000)}


def generate(split: str, n: int, seed: int, size: str = "cpu") -> list[Task]:
    """n distinct tasks of a split ("sft", "rl", "dev", "test"), with their solutions.

    They are the same for the same arguments. Size "cpu" keeps matrices under 100 a side and matmuls under 48;
    "gpu" is the same grammar on thousands a side. Task.meta holds the names and constants of the chain.
    Raises ValueError for an unknown split or size.
    """
    if split not in SPLITS or size not in ("cpu", "gpu"):
        raise ValueError(
            f"unknown split {split!r} or size {size!r}: splits are {', '.join(SPLITS)}; sizes are cpu, gpu"
        )
    # a string, so that neighbouring seeds have nothing in common
    rng = random.Random(f"{split} {size} {seed}")
    tasks: dict[str, Task] = {}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the probes are tiny: waking other threads takes ten times as long
    try:
        while len(tasks) < n:
            chain = _draw_fair(rng, split)
            tiled = chain[0][0].kind == "matmul"
            source, solution = render(chain, _draw_sizes(rng, tiled, size), 16 if size == "cpu" else 32)
            meta = {"split": split, "ops": [op.name for op, _ in chain], "constants": [c for _, c in chain]}
            tasks.setdefault(source, Task(f"{split}-{seed}-{len(tasks)}", source, solution, meta))
    finally:
        torch.set_num_threads(threads)
    return list(tasks.values())
