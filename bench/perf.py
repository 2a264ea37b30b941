"""TritonBench's performance scripts as tasks for the executor, so that a clock which no candidate can touch times them.

A script (performance_metrics/perf_<channel>/golden_metrics/<name>_perf.py of a clone) draws inputs of growing size and calls the operator on
them. Here each of a few of those inputs is a task: its reference is the gold implementation (G: the Triton kernel, T: the torch code) behind the
script's `call_op`, and the candidate is the candidate's file behind the same call. The executor records it, replays it on fresh inputs, compares,
and times both in turns. So what can't be recorded has no time, and says why; no figure comes from a process that a candidate has been in.

An operator that answers in place answers with the inputs that the gold changes. In float64, which kernels can't be asked for, the reference
answers for inputs rounded to TF32: candidates are allowed what that rounding costs, since gold kernels multiply in TF32 themselves.
"""

import ast
import contextlib
import linecache
import sys
import types
from collections.abc import Sequence
from pathlib import Path

import torch

from bench.helper import serve
from nanotriton.plan.trees import mapped, tensors
from nanotriton.tasks.task import Task
from nanotriton.verdict import Verdict

LIMIT = 512 << 20  # bytes of one input: larger ones are not timed
OWN = ("performance_utils", "TritonBench_v1", "TorchBench_v1")  # what scripts import of the benchmark's

# What scripts expect of performance_utils: inputs are picked as they are drawn, so that the larger ones are
# never made.
UTILS = '''

class do_bench_config:
    def __init__(self, *args, **kwargs):
        pass


class Enough(BaseException):
    pass


class Picked(list):
    """Keeps entry `number` of what is appended, and counts."""

    number, count = -1, 0

    def append(self, item):
        if self.count == self.number:
            super().append(item)
            raise Enough
        self.count += 1


class Performance_Metrics:
    def __init__(self, op_name="", dtype=None, is_backward=False, **kwargs):
        self.op_name, self.dtype, self.kwargs, self.input_tensors = op_name, dtype, kwargs, []

    def __setattr__(self, name, value):
        object.__setattr__(self, name, Picked() if name == "input_tensors" and isinstance(value, list) and not value else value)

'''
CALL = '''

def call_of_this_task(perf, inputs, kind, changed):
    """The operator's answer: what it returns or, if that is nothing, the inputs that it changes."""
    tensors = [t for x in inputs for t in (x if isinstance(x, (list, tuple)) else [x]) if hasattr(t, "dtype")]
    out = perf.call_op(inputs[0] if kind == "bare" else kind(inputs))
    parts = out if isinstance(out, (list, tuple)) else out.values() if isinstance(out, dict) else [out]
    return out if any(hasattr(t, "dtype") for t in parts) else tuple(tensors[i] for i in changed)
'''
TASK = """
from bench.perf import Gold
import torch

gold = Gold({text!r}, {number}, {kind}, {changed})


def get_init_inputs():
    return []


def get_inputs():
    return gold.draw()


class Model(torch.nn.Module):
    def forward(self, *inputs):
        return gold(list(inputs))
"""
CANDIDATE = """

class ModelNew(__import__("torch").nn.Module):
    def forward(self, *inputs):
        return call_of_this_task(performance_metrics(), list(inputs), {kind}, {changed})
"""


# ---- scripts and tasks ----


def find_scripts(data: str, channel: str) -> Path | None:
    """The folder of a channel's scripts in a clone (given as such or by its data folder); None if the clone lacks it."""
    for root in (Path(data), Path(data).absolute().parent):
        if (folder := root / "performance_metrics" / f"perf_{channel}" / "golden_metrics").is_dir():
            return folder
    return None


def body(script: str) -> str:
    """A script's own definitions, without what it imports of the benchmark and without what it would run. SyntaxError as Python says."""
    kept = []
    for node in ast.parse(script).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in OWN:
            kept += [f"{a.asname} = {a.name}" for a in node.names if a.asname and a.asname != a.name]
        elif not isinstance(node, ast.Expr | ast.If):
            kept.append(ast.unparse(node))
    return "\n".join(kept)


def whole(implementation: str, script: str) -> str:
    """One file: an implementation, as it is, and the script behind it."""
    return implementation.rstrip() + UTILS + body(script) + CALL


def task(name: str, implementation: str, script: str, number: int, facts: dict) -> Task:
    text = whole(implementation, script)
    return Task(
        f"{name}, input {number}",
        TASK.format(text=text, number=number, kind=facts["kind"], changed=facts["changed"]),
    )


def candidate(source: str, script: str, facts: dict) -> str:
    return whole(source, script) + CANDIDATE.format(kind=facts["kind"], changed=facts["changed"])


def speedup(verdicts: Sequence[Verdict], channel: str) -> float | None:
    """Of one candidate over all its inputs, as the benchmark adds up: G total gold time over total time, T the mean of ratios."""
    if not verdicts or any(not v.correct or not v.time_us for v in verdicts):
        return None
    if channel == "G":
        return sum(v.reference_us for v in verdicts) / sum(v.time_us for v in verdicts)
    return sum(v.reference_us / v.time_us for v in verdicts) / len(verdicts)


# ---- the reference: trusted code, in the judge's process and in the one below ----


class Gold:
    """A gold implementation behind its script. kind: "bare", tuple or list: what `call_op` takes. changed: of the input tensors, by number."""

    def __init__(self, text: str, number: int = -1, kind="bare", changed: Sequence[int] = ()):
        name = f"gold_{abs(hash(text))}"
        file = f"<{name}>"
        linecache.cache[file] = (len(text), None, text.splitlines(True), file)  # Triton reads kernels back
        self.module = sys.modules[name] = types.ModuleType(name)
        exec(compile(text, file, "exec"), vars(self.module))
        self.number, self.kind, self.changed, self.dtypes = number, kind, changed, []
        self.perf = self.module.performance_metrics()

    def pick(self, number: int):
        """Input `number` as the script makes it, on the GPU if there is one; None if it has fewer."""
        self.module.Picked.number = number
        self.perf.input_tensors = []
        with contextlib.suppress(self.module.Enough):
            self.perf.get_input_tensors()
        made = self.perf.input_tensors
        picked = list(made) if isinstance(made, self.module.Picked) else made[number : number + 1]
        if not picked:
            return None
        return self.perf.to_cuda(picked[0]) if torch.get_default_device().type == "cuda" else picked[0]

    def draw(self) -> list:
        item = self.pick(self.number)
        return [item] if self.kind == "bare" else list(item)

    def __call__(self, inputs: list):
        if torch.get_default_dtype() == torch.float64:
            return self.rounded(inputs)
        self.dtypes = [t.dtype for t in tensors(inputs)]
        return self.module.call_of_this_task(self.perf, inputs, self.kind, self.changed)

    def rounded(self, wide: list):
        """The answer to inputs rounded to TF32, in float64; `wide` is left as the operator leaves its inputs."""
        dtypes = iter(self.dtypes)
        torch.set_default_dtype(torch.float32)
        try:
            inputs = mapped(wide, lambda t: to_tf32(t.to(next(dtypes), copy=True)))
            out = self.module.call_of_this_task(self.perf, inputs, self.kind, self.changed)
            for into, t in zip(tensors(wide), tensors(inputs), strict=True):
                into.copy_(t)
            return mapped(out, lambda t: t.double() if t.is_floating_point() else t)
        finally:
            torch.set_default_dtype(torch.float64)


def to_tf32(t: torch.Tensor) -> torch.Tensor:
    """fp32 with ten bits of mantissa; other dtypes as they are."""
    return ((t.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32) if t.dtype == torch.float32 else t


# ---- in a process of its own: what is there to know of a script? ----


def look(implementation: str, script: str, wanted: int) -> dict:
    """{"numbers": which inputs to time, "kind", "changed"} by running the gold on the first of them. Raises whatever is wrong with the script."""
    gold = Gold(whole(implementation, script))
    sizes = []
    with torch.no_grad():
        while (item := gold.pick(len(sizes))) is not None and (
            size := sum(t.nbytes for t in tensors([item]))
        ) <= LIMIT:
            sizes.append(size)
        if not sizes:
            raise ValueError(f"its script makes no input of at most {LIMIT >> 20} MiB")
        last = len(sizes) - 1
        numbers = sorted({round(last * (i + 1) / wanted) for i in range(wanted)}) if wanted > 1 else [last]
        item = gold.pick(numbers[0])
        kind = type(item).__name__ if type(item) in (tuple, list) else "bare"
        gold.kind = {"tuple": tuple, "list": list, "bare": "bare"}[kind]
        inputs = [item] if kind == "bare" else list(item)
        before = mapped(inputs, torch.clone)
        out = gold(inputs)
        changed = [
            i
            for i, (a, b) in enumerate(zip(tensors(before), tensors(inputs), strict=True))
            if not torch.equal(a, b)
        ]
    if not tensors([out]) and not changed:
        raise ValueError("its script's call answers nothing")
    return {"numbers": numbers, "kind": kind if kind != "bare" else "'bare'", "changed": changed}


def answer(request: dict) -> dict:
    if torch.cuda.is_available():
        torch.cuda.set_device(request["device"])
        torch.set_default_device("cuda")
    return look(request["code"], request["script"], request["wanted"])


if __name__ == "__main__":
    serve(answer)
