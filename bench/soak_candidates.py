"""The candidates of soak.py: synthetic tasks' solutions, right, wrong, and turned into attacks. Each is distinct by its kernel's name."""

import random
import re
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
    accepted: frozenset[str]  # statuses


def in_forward(source: str, code: str) -> str:
    """`code` (lines without indentation) as the first thing that forward does."""
    lines = "".join(f"        {line}\n" for line in code.splitlines())
    return re.sub(r"(    def forward\(self.*\):\n)", lambda m: m[0] + lines, source, count=1)


def at_import(source: str, code: str) -> str:
    return f"{source}\n\n{code}\n"


def in_kernel(source: str, code: str) -> str:
    """`code` just before the kernel stores its answer."""
    lines = "".join(f"    {line}\n" for line in code.splitlines())
    return re.sub(r"^    tl\.store\(out_ptr", lambda m: lines + m[0], source, count=1, flags=re.M)


def wrong(source: str, i: int) -> str:
    return re.sub(
        r"^(    tl\.store\(out_ptr.*), x([,)])",
        rf"\1, x * 1.05 + 0.0{i % 9 + 1}\2",
        source,
        count=1,
        flags=re.M,
    )


def answer_in(source: str, storage: str) -> str:
    """The answer becomes a piece of a larger tensor."""
    return re.sub(
        r"^        out = (torch\.empty\w*\(.*\))$",
        rf"        shape = \1.shape\n        out = {storage}[:shape.numel()].view(shape)",
        source,
        count=1,
        flags=re.M,
    )


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
    "import multiprocessing\nwhile True: multiprocessing.get_context('fork').Process(target=print).start()",
)
EXITS = ("import os\nos._exit(0)", "import ctypes\nctypes.CDLL(None)._exit(0)")
TENSORS = ("torch.empty(1 << 38, device=x.device)", "torch.zeros(1 << 42, device=x.device)")
UNROLLED = "for i in tl.static_range(10000000):\n    x = x * 1.0001 + i"
# 4096 values a thread and thousands of steps on each: quickly lowered, but more than ptxas can do in time.
HUGE = (
    "wide = tl.arange(0, 524288) * 1.0\nfor i in tl.static_range(60):\n    wide = tl.sin(wide * 1.01 + i) * tl.exp(wide)\n"
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
    """Variants of an attack in turns."""
    return lambda source, i: place(source, codes[i % len(codes)])


def anywhere(codes: tuple[str, ...]) -> Make:
    """In forward, or when the candidate is imported."""
    return lambda source, i: (in_forward, at_import)[i % 2](source, codes[i // 2 % len(codes)])


ATTACKS: dict[str, tuple[Make, str]] = {  # kind -> (how it is made, which statuses it may have)
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
SHARE, ENDLESS_SHARE = 0.05, 0.01  # of each attack; of kernels that never end


def attacks(device: str) -> dict[str, tuple[Make, str]]:
    """On a CPU nothing is illegal that is not out of bounds; on a GPU there is a second compiler to bomb."""
    if device == "cpu":
        return ATTACKS | {"illegal_access": (ATTACKS["illegal_access"][0], "out_of_bounds")}
    bombs = (
        either(in_kernel, (UNROLLED, HUGE)),
        "timeout memory_limit out_of_resources compile_error crashed",
    )
    return ATTACKS | {"compiler_bomb": bombs}


def mix(n: int, seed: int, device: str, policy: str) -> list[Candidate]:
    """n candidates in random order."""
    rng = random.Random(seed)
    tasks = generate("sft", max(1, n // VARIANTS), seed, size="cpu" if device == "cpu" else "gpu")
    kinds = [kind for kind in attacks(device) for _ in range(max(1, round(SHARE * n)))] + [
        "endless_kernel"
    ] * max(1, round(ENDLESS_SHARE * n))
    honest = n - len(kinds)
    kinds += ["honest_right"] * (honest - honest // 2) + ["honest_wrong"] * (honest // 2)
    rng.shuffle(kinds)
    made, count = [], dict.fromkeys(kinds, 0)
    table = attacks(device) | {
        "endless_kernel": (either(in_kernel, (ENDLESS,)), "timeout"),
        "honest_right": (lambda source, i: source, "correct"),
        "honest_wrong": (wrong, "wrong_value"),
    }
    for number, kind in enumerate(kinds):
        make, accepted = table[kind]
        task = tasks[number % len(tasks)]
        source = make(task.solution, count[kind])
        if kind != "honest_right" and source == task.solution:
            raise ValueError(f"{task.name}: its solution has no place for {kind}")
        count[kind] += 1
        statuses = set(accepted.split()) | (
            {"rule_violation"} if policy == "strict" and not kind.startswith("honest") else set()
        )
        made.append(
            Candidate(
                f"{kind}-{count[kind]}",
                kind,
                task,
                re.sub(r"\bkernel\b", f"kernel_{number}", source),
                frozenset(statuses),
            )
        )
    return made
