"""KernelBench (arXiv 2502.10517) as tasks: from a clone of its repository, from the hub, and the samples people already have.

A problem is `level<l>/<id>_<Name>.py`; the id is the number that its name opens with. Its format is the one of task.py. The hub's rows
(code, level, name, problem_id) come through the datasets server's JSON, so that no reader of Parquet is needed.
"""

import json
import re
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from nanotriton.python_text import read_anyhow
from nanotriton.tasks.prompt import DEFAULT, Prompt, read_prompt
from nanotriton.tasks.task import Task, check_source, load_task

LEVELS = (1, 2, 3, 4)
HUB = "hub"  # the value of --data that asks for it
SERVER = "https://datasets-server.huggingface.co"
DATASET = "ScalingIntelligence/KernelBench"

# Problems that can't tell right from wrong, at the sizes and with the tolerance of the benchmark: scores are
# given with and without them.
WEAK = {
    **dict.fromkeys([(2, 80), (2, 83)], "zeros are the answer"),
    (2, 23): "zeros are the answer, to rounding",
    **dict.fromkeys([(1, 23), (1, 37), (2, 38)], "zeros pass at 1e-4"),
    **dict.fromkeys([(1, i) for i in (94, 95, 96, 98, 99, 100)], "most of the input can be skipped"),
    (1, 90): "the answer underflows to zero",
    (2, 66): "the answer is random (dropout)",
    (3, 35): "the model draws its own random state",
}
SAMPLE = re.compile(r"level_(\d+)_problem_(\d+)_sample_(\d+)_kernel\.py")
PROBLEM = re.compile(r"(\d+)_.*\.py")
NAME = re.compile(r"[1-9]\d*/[1-9]\d*")  # of a problem: level/id

# The benchmark's own way of asking, one example included, with Triton for its CUDA.
EXAMPLE = """\
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()

    def forward(self, a, b):
        return a + b


def get_inputs():
    return [torch.randn(1, 128), torch.randn(1, 128)]


def get_init_inputs():
    return []
"""
EXAMPLE_ANSWER = """\
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def add_kernel(a_ptr, b_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    total = tl.load(a_ptr + offsets, mask=mask) + tl.load(b_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, total, mask=mask)


class ModelNew(nn.Module):
    def __init__(self) -> None:
        super().__init__()

    def forward(self, a, b):
        a, b = a.contiguous(), b.contiguous()
        out = torch.empty_like(a)
        n = out.numel()
        add_kernel[(triton.cdiv(n, 128),)](a, b, out, n, BLOCK=128)
        return out
"""
ASK = """\
You write custom Triton kernels to replace the pytorch operators in the given architecture to get speedups.

You have complete freedom to choose the set of operators you want to replace. You may make the decision to replace some operators with \
custom Triton kernels and leave others unchanged. You may replace multiple operators with custom implementations, consider operator fusion \
opportunities (combining multiple operators into a single kernel, for example, combining matmul+relu), or algorithmic changes (such as \
online softmax). You are only limited by your imagination.

Here's an example to show you the syntax of custom Triton kernels in torch. The example given architecture is:

```python
{example}```

The example new arch with custom Triton kernels looks like this:

```python
{answer}```

You are given the following architecture:

```python
{source}
```

Optimize the architecture named Model with custom Triton kernels! Name your optimized output architecture ModelNew. Output the new code in \
codeblocks. Please generate real code, NOT pseudocode, make sure the code compiles and is fully functional. Just output the new model \
code, no other text, and NO testing code!"""


@dataclass(frozen=True)
class Problem:
    level: int
    id: int
    task: Task

    @property
    def name(self) -> str:
        """Level and id: what candidates and results go by."""
        return f"{self.level}/{self.id}"

    @property
    def weak(self) -> str | None:
        """Why it is no fair question, if it is known not to be one."""
        return WEAK.get((self.level, self.id))


def prompt_of(style: str) -> Prompt:
    """How a problem is put to a model: style "autotriton" (prompt.py), "kernelbench", or the user's own file.

    Raises ConfigError for a file that is no prompt.
    """
    if style == "autotriton":
        return DEFAULT
    if style == "kernelbench":
        text = ASK.replace("{example}", EXAMPLE).replace("{answer}", EXAMPLE_ANSWER)
        return Prompt((("user", text),), f"{text}\n\n", DEFAULT.bare)
    return read_prompt(style)


def load_problems(data: str, levels: Sequence[int], server: str = SERVER) -> list[Problem]:
    """All problems of these levels in order of level and id. data: a folder, or "hub".

    Raises ValueError (one line) for a folder that is missing or holds no such level, and for a problem that is no task.
    """
    if unknown := [str(level) for level in levels if level not in LEVELS]:
        raise ValueError(f"level {', '.join(unknown)}: KernelBench has levels 1 to 4")
    if len(set(levels)) < len(levels):
        raise ValueError("a level is given twice")
    found = []
    for level in sorted(levels):
        one = sorted(
            _from_hub(level, server) if data == HUB else _from_folder(Path(data), level), key=lambda p: p.id
        )
        for a, b in pairwise(one):
            if a.id == b.id:
                raise ValueError(
                    f"level {level}: two problems have the id {a.id}: {a.task.name} and {b.task.name}"
                )
        found += one
    return found


def select(problems: list[Problem], ids: Sequence[int] = (), limit: int = 0) -> list[Problem]:
    """Those with one of these ids (in whichever level), and at most `limit` of each level; all where neither is given."""
    if absent := sorted(set(ids) - {p.id for p in problems}):
        raise ValueError(f"no problem has the id {', '.join(map(str, absent))} in the levels asked for")
    chosen, count = [], {}
    for p in problems:
        count[p.level] = count.get(p.level, 0) + (wanted := not ids or p.id in ids)
        chosen += [p] if wanted and (not limit or count[p.level] <= limit) else []
    return chosen


def level_folder(data: Path, level: int) -> Path:
    """`level<l>` below the folder given, which may be the repository, its KernelBench folder, or one above the levels."""
    if not data.is_dir():
        raise ValueError(f"{data}: no such folder; give a clone of KernelBench, or {HUB}")
    for folder in (data, data / "KernelBench", data / "KernelBench" / "KernelBench"):
        if (folder / f"level{level}").is_dir():
            return folder / f"level{level}"
    if data.name == f"level{level}":
        return data
    raise ValueError(
        f"{data}: no folder level{level} in it; give a clone of KernelBench (it holds KernelBench/level1 and so on)"
    )


def _from_folder(data: Path, level: int) -> list[Problem]:
    folder = level_folder(data, level)
    files = [(f, m) for f in folder.iterdir() if (m := PROBLEM.fullmatch(f.name))]
    if not files:
        raise ValueError(f"{folder}: no file named <id>_<Name>.py in it")
    return [Problem(level, int(m[1]), load_task(f)) for f, m in files]


def _from_hub(level: int, server: str) -> list[Problem]:
    rows: list[dict] = []
    while True:
        url = f"{server}/rows?dataset={DATASET}&config=default&split=level_{level}&offset={len(rows)}&length=100"
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                page = json.load(answer)
            rows += [row["row"] for row in page["rows"]]
            total = page["num_rows_total"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{DATASET}, level {level}, can't be read from the hub: {error}; clone its repository and give --data FOLDER"
            ) from None
        if len(rows) >= total or not page["rows"]:
            break
    name = lambda row: row["name"].removesuffix(".py")
    return [
        Problem(level, int(r["problem_id"]), Task(name(r), check_source(r["code"], f"{DATASET} {name(r)}")))
        for r in rows
    ]


def read_samples(path: str) -> dict[tuple[str, int], str]:
    """Candidates in files: {(problem's name, number of the sample): source}.

    A folder of KernelBench's `runs/` (level_<l>_problem_<id>_sample_<s>_kernel.py, at any depth), or one laid out as the problems are
    (level<l>/<id>_<Name>.py, one sample each). Raises ValueError (one line).
    """
    found: dict[tuple[str, int], tuple[Path, str]] = {}
    root = Path(path)
    if not root.exists():
        raise ValueError(f"--samples {root}: no such file or folder")
    for file in sorted(root.rglob("*.py")):
        if match := SAMPLE.fullmatch(file.name):
            key = (f"{int(match[1])}/{int(match[2])}", int(match[3]))
        elif (match := PROBLEM.fullmatch(file.name)) and (
            level := re.fullmatch(r"level(\d+)", file.parent.name)
        ):
            key = (f"{int(level[1])}/{int(match[1])}", 0)
        else:
            continue
        if key in found:
            raise ValueError(f"{file}: problem {key[0]} already has a sample {key[1]}, in {found[key][0]}")
        try:
            found[key] = file, read_anyhow(file)
        except OSError as error:
            raise ValueError(f"{file}: cannot read: {error.strerror}") from None
    if not found:
        raise ValueError(
            f"--samples {root}: no file in it is named level_<l>_problem_<id>_sample_<s>_kernel.py, or "
            "level<l>/<id>_<Name>.py as the problems are"
        )
    return {key: source for key, (_, source) in found.items()}
