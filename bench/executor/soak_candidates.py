"""The candidates of soak.py: synthetic tasks' solutions, right, wrong, and turned into attacks.

Each is distinct by the name of its kernel.
"""

import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from nanotriton.tasks.synthetic import generate
from nanotriton.tasks.task import Task

VARIANTS = 8  # candidates a task, on average: as in a group of GRPO's


@dataclass(frozen=True)
class Candidate:
    name: str
    kind: str
    task: Task
    source: str
    accepted: frozenset[str]  # the statuses that it may end with


def in_forward(source: str, code: str) -> str:
    """The source with `code` (lines without indentation) as the first thing that forward does."""
    lines = "".join(f"        {line}\n" for line in code.splitlines())
    return re.sub(r"(    def forward\(self.*\):\n)", lambda m: m[0] + lines, source, count=1)


def at_import(source: str, code: str) -> str:
    """The source with `code` run when it is imported."""
    return f"{source}\n\n{code}\n"


def in_kernel(source: str, code: str) -> str:
    """The source with `code` just before the kernel stores its answer."""
    lines = "".join(f"    {line}\n" for line in code.splitlines())
    return re.sub(r"^    tl\.store\(out_ptr", lambda m: lines + m[0], source, count=1, flags=re.M)


def wrong(source: str, i: int) -> str:
    """The source with another value stored, of nine in turns."""
    value = f"x * 1.05 + 0.0{i % 9 + 1}"
    return re.sub(r"^(    tl\.store\(out_ptr.*), x([,)])", rf"\1, {value}\2", source, count=1, flags=re.M)


def answer_in(source: str, storage: str) -> str:
    """The source with its answer in a piece of a larger tensor, `storage`."""
    piece = rf"        shape = \1.shape\n        out = {storage}[:shape.numel()].view(shape)"
    return re.sub(r"^        out = (torch\.empty\w*\(.*\))$", piece, source, count=1, flags=re.M)


LOOPS = (
    "while True: pass",
    "n = 0\nwhile True:\n    n = n * 3 % 1000003",
    "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
)
HOARDS = (
    "hoard = []\nwhile True: hoard.append(bytearray(16 << 20))",
    "hoard = bytearray(1 << 40)",
    "import numpy\nhoard = numpy.ones(1 << 40)",
)
PRINTS = (
    "for _ in range(200): print('x' * (1 << 20))",
    "import os\nfor _ in range(3200): os.write(1, b'x' * (1 << 16))",
    "import sys\nsys.stderr.write('x' * 200_000_000)",
)
SEGFAULTS = (
    "import ctypes\nctypes.string_at(0)",
    "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)",
    "import ctypes\nctypes.memset(8, 1, 8)",
)
FORKS = (
    "import os\nwhile True: os.fork()",
    "import subprocess, sys\nwhile True: subprocess.Popen([sys.executable, '-c', ''])",
    "import multiprocessing as m\nwhile True: m.get_context('fork').Process(target=print).start()",
)
EXITS = ("import os\nos._exit(0)", "import ctypes\nctypes.CDLL(None)._exit(0)")
TENSORS = ("torch.empty(1 << 38, device=x.device)", "torch.zeros(1 << 42, device=x.device)")
UNROLLED = "for i in tl.static_range(10000000):\n    x = x * 1.0001 + i"
# 4096 values a thread and thousands of steps on each: Triton lowers it quickly, ptxas can't do it in time.
HUGE = (
    "wide = tl.arange(0, 524288) * 1.0\n"
    "for i in tl.static_range(60):\n"
    "    wide = tl.sin(wide * 1.01 + i) * tl.exp(wide)\n"
    "tl.store(out_ptr + tl.arange(0, 524288), wide, mask=wide == 12345.0)"
)
FAR = (
    "tl.store(out_ptr + (tl.program_id(0).to(tl.int64) + (1 << 40)), 0.0)",
    "tl.store(out_ptr - (tl.program_id(0).to(tl.int64) + (1 << 40)), 0.0)",
)
NEAR = ("tl.store(out_ptr - 1, 0.0)", "tl.store(out_ptr - 1 - tl.arange(0, 16), 1.0)")
ENDLESS = "while tl.load(x_ptr) == tl.load(x_ptr):\n    tl.store(out_ptr, 0.0)"

Make = Callable[[str, int], str]


def either(place: Callable[[str, str], str], codes: tuple[str, ...]) -> Make:
    """The variants of an attack, in turns."""
    return lambda source, i: place(source, codes[i % len(codes)])


def anywhere(codes: tuple[str, ...]) -> Make:
    """The variants of an attack, each in forward and at import, in turns."""

    def make(source: str, i: int) -> str:
        place = in_forward if i % 2 == 0 else at_import
        return place(source, codes[i // 2 % len(codes)])

    return make


# kind: (how it is made, the statuses that it may have)
ATTACKS: dict[str, tuple[Make, str]] = {
    "python_loop": (anywhere(LOOPS), "timeout"),
    "compiler_bomb": (either(in_kernel, (UNROLLED,)), "timeout memory_limit"),
    "illegal_access": (either(in_kernel, FAR), "illegal_memory"),
    "out_of_bounds": (either(in_kernel, NEAR), "out_of_bounds"),
    "host_memory_bomb": (anywhere(HOARDS), "memory_limit"),
    "tensor_memory_bomb": (either(answer_in, TENSORS), "memory_limit"),
    "fork_bomb": (anywhere(FORKS), "runtime_error import_error"),
    "output_200mb": (anywhere(PRINTS), "output_limit"),
    "segfault": (anywhere(SEGFAULTS), "crashed"),
    "exit_0": (anywhere(EXITS), "crashed"),
}
SHARE = 0.05  # of the candidates, for each attack
ENDLESS_SHARE = 0.01  # of the candidates, for kernels that never end


def attacks(device: str) -> dict[str, tuple[Make, str]]:
    """The attacks on a device.

    On a CPU every illegal access is out of bounds. On a GPU there is a second compiler to bomb, ptxas.
    """
    if device == "cpu":
        return ATTACKS | {"illegal_access": (ATTACKS["illegal_access"][0], "out_of_bounds")}
    bombs = (
        either(in_kernel, (UNROLLED, HUGE)),
        "timeout memory_limit out_of_resources compile_error crashed",
    )
    return ATTACKS | {"compiler_bomb": bombs}


def kinds(n: int, device: str, rng: random.Random) -> list[str]:
    """The kinds of n candidates in random order: the attacks' shares, and honest ones, half of them wrong."""
    found = [kind for kind in attacks(device) for _ in range(max(1, round(SHARE * n)))]
    found += ["endless_kernel"] * max(1, round(ENDLESS_SHARE * n))
    honest = n - len(found)
    found += ["honest_right"] * (honest - honest // 2) + ["honest_wrong"] * (honest // 2)
    rng.shuffle(found)
    return found


def mix(n: int, seed: int, device: str, policy: str) -> list[Candidate]:
    """n candidates in random order."""
    tasks = generate("sft", max(1, n // VARIANTS), seed, size="cpu" if device == "cpu" else "gpu")
    table = attacks(device) | {
        "endless_kernel": (either(in_kernel, (ENDLESS,)), "timeout"),
        "honest_right": (lambda source, i: source, "correct"),
        "honest_wrong": (wrong, "wrong_value"),
    }
    made, count = [], Counter()
    for number, kind in enumerate(kinds(n, device, random.Random(seed))):
        make, accepted = table[kind]
        task = tasks[number % len(tasks)]
        source = make(task.solution, count[kind])
        if kind != "honest_right" and source == task.solution:
            raise ValueError(f"{task.name}: its solution has no place for {kind}")
        count[kind] += 1
        statuses = set(accepted.split())
        if policy == "strict" and not kind.startswith("honest"):
            statuses.add("rule_violation")
        source = re.sub(r"\bkernel\b", f"kernel_{number}", source)
        made.append(Candidate(f"{kind}-{count[kind]}", kind, task, source, frozenset(statuses)))
    return made
