"""TritonBench's performance scripts as tasks, so that a clock no candidate can touch times them.

A script, performance_metrics/perf_<channel>/golden_metrics/<name>_perf.py of a clone, draws inputs of growing
size and calls the operator on each. Here each of a few of those inputs is a task. Its reference is the gold
implementation behind the script's `call_op`: the Triton kernel in channel G, the torch code in channel T. The
candidate is the candidate's file behind the same call. The executor records it, replays it on fresh inputs,
compares, and times both in turns. So a candidate that can't be recorded has no time, and the result says why;
and no figure comes from a process in which a candidate has been.

An operator that works in place returns nothing; its answer is the inputs that the gold implementation
changes. The executor also asks the reference for an answer in float64, in which a gold kernel can't compute.
The reference then answers for inputs rounded to TF32: gold kernels multiply in TF32 themselves, so candidates
may err by as much.
"""

import ast
import contextlib
import linecache
import sys
import types
from collections.abc import Sequence
from pathlib import Path

import torch

from bench.channels.helper import serve
from nanotriton.plan.trees import mapped, tensors
from nanotriton.tasks.task import Task
from nanotriton.verdict import Verdict

LIMIT = 512 << 20  # bytes of one input: larger ones are not timed
OWN = ("performance_utils", "TritonBench_v1", "TorchBench_v1")  # the benchmark's own modules

# In place of the benchmark's performance_utils. An input is picked as the script draws it, and the script
# ends there, so that larger inputs are never made.
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
        if name == "input_tensors" and isinstance(value, list) and not value:
            value = Picked()
        object.__setattr__(self, name, value)

'''
# The candidate's and the gold's files both end with this function. kind: how call_op takes its inputs; "bare"
# is one tensor, tuple or list a container of that type. changed: which tensors the gold changes, by number.
CALL = '''

def call_of_this_task(perf, inputs, kind, changed):
    """The operator's answer: what it returns, or the inputs that it changes if it returns no tensor."""
    tensors = [t for x in inputs for t in (x if isinstance(x, (list, tuple)) else [x]) if hasattr(t, "dtype")]
    out = perf.call_op(inputs[0] if kind == "bare" else kind(inputs))
    parts = out if isinstance(out, (list, tuple)) else out.values() if isinstance(out, dict) else [out]
    return out if any(hasattr(t, "dtype") for t in parts) else tuple(tensors[i] for i in changed)
'''
TASK = """
from bench.channels.perf import GoldOperator
import torch

gold = GoldOperator({text!r}, {number}, {kind}, {changed})


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
    """The folder of a channel's scripts; None if the clone lacks it. data: a clone, or its data folder."""
    for root in (Path(data), Path(data).absolute().parent):
        if (folder := root / "performance_metrics" / f"perf_{channel}" / "golden_metrics").is_dir():
            return folder
    return None


def body(script: str) -> str:
    """A script's own definitions, without what it imports of the benchmark and without what it would run.

    Raises SyntaxError for a script that is no Python.
    """
    kept = []
    for node in ast.parse(script).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in OWN:
            kept += [f"{a.asname} = {a.name}" for a in node.names if a.asname and a.asname != a.name]
        elif not isinstance(node, ast.Expr | ast.If):
            kept.append(ast.unparse(node))
    return "\n".join(kept)


def whole(implementation: str, script: str) -> str:
    """One file: an implementation, as it is, with the script behind it."""
    return implementation.rstrip() + UTILS + body(script) + CALL


def task(name: str, implementation: str, script: str, number: int, facts: dict) -> Task:
    """The task of input `number` of a script. facts: what `look` found."""
    text = whole(implementation, script)
    source = TASK.format(text=text, number=number, kind=facts["kind"], changed=facts["changed"])
    return Task(f"{name}, input {number}", source)


def candidate(source: str, script: str, facts: dict) -> str:
    """The candidate's file as a ModelNew for the tasks of a script. facts: what `look` found."""
    return whole(source, script) + CANDIDATE.format(kind=facts["kind"], changed=facts["changed"])


def speedup(verdicts: Sequence[Verdict], channel: str) -> float | None:
    """The speed-up of one candidate over all its inputs, added up as the benchmark does.

    G: total gold time over total time. T: the mean of the ratios. None if an input was not correct or not
    timed.
    """
    if not verdicts or any(not v.correct or not v.time_us for v in verdicts):
        return None
    if channel == "G":
        return sum(v.reference_us for v in verdicts) / sum(v.time_us for v in verdicts)
    return sum(v.reference_us / v.time_us for v in verdicts) / len(verdicts)


# ---- the reference: trusted code, in the judge's process and in that of `look` ----


class GoldOperator:
    """A gold implementation behind its script, as a function of one input's tensors.

    number: which input `draw` makes. kind, changed: as in CALL.
    """

    def __init__(self, text: str, number: int = -1, kind="bare", changed: Sequence[int] = ()):
        name = f"gold_{abs(hash(text))}"
        file = f"<{name}>"
        # Triton reads kernels back from it
        linecache.cache[file] = (
            len(text),
            None,
            text.splitlines(True),
            file,
        )
        self.module = sys.modules[name] = types.ModuleType(name)
        exec(compile(text, file, "exec"), vars(self.module))
        self.number, self.kind, self.changed = number, kind, changed
        self.dtypes: list[torch.dtype] = []  # of the last call's tensors, which the float64 twin has lost
        self.perf = self.module.performance_metrics()

    def pick(self, number: int):
        """Input `number` as the script makes it, on the GPU if there is one; None if the script has fewer."""
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
        """The arguments of one call, freshly drawn."""
        item = self.pick(self.number)
        return [item] if self.kind == "bare" else list(item)

    def __call__(self, inputs: list):
        if torch.get_default_dtype() == torch.float64:
            return self.rounded(inputs)
        self.dtypes = [t.dtype for t in tensors(inputs)]
        return self.module.call_of_this_task(self.perf, inputs, self.kind, self.changed)

    def rounded(self, wide: list):
        """The answer to inputs rounded to TF32, in float64.

        wide: the inputs in float64. They are left as the operator leaves its inputs.
        """
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
    """An fp32 tensor rounded to ten bits of mantissa; a tensor of another dtype as it is."""
    return ((t.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32) if t.dtype == torch.float32 else t


# ---- in a process of its own: what is to be known of a script ----


def look(implementation: str, script: str, wanted: int) -> dict:
    """{"numbers": which inputs to time, "kind", "changed"}, found by running the gold on the first of them.

    wanted: how many inputs. "kind" is Python text for CALL's `kind`. Raises whatever is wrong with the
    script.
    """
    gold = GoldOperator(whole(implementation, script))
    with torch.no_grad():
        count = small_inputs(gold)
        if not count:
            raise ValueError(f"its script makes no input of at most {LIMIT >> 20} MiB")
        numbers = spread(count, wanted)
        item = gold.pick(numbers[0])
        gold.kind = type(item) if type(item) in (tuple, list) else "bare"
        inputs = [item] if gold.kind == "bare" else list(item)
        before = mapped(inputs, torch.clone)
        out = gold(inputs)
        pairs = zip(tensors(before), tensors(inputs), strict=True)
        changed = [i for i, (a, b) in enumerate(pairs) if not torch.equal(a, b)]
    if not tensors([out]) and not changed:
        raise ValueError("its script's call answers nothing")
    kind = repr(gold.kind) if gold.kind == "bare" else gold.kind.__name__
    return {"numbers": numbers, "kind": kind, "changed": changed}


def small_inputs(gold: GoldOperator) -> int:
    """How many inputs the script makes before the first that is larger than LIMIT."""
    count = 0
    while (item := gold.pick(count)) is not None and sum(t.nbytes for t in tensors([item])) <= LIMIT:
        count += 1
    return count


def spread(count: int, wanted: int) -> list[int]:
    """At most `wanted` of the numbers below `count`, evenly spread. spread(7, 3) == [2, 4, 6]."""
    if wanted == 1:
        return [count - 1]
    return sorted({round((count - 1) * (i + 1) / wanted) for i in range(wanted)})


def answer(request: dict) -> dict:
    """What `look` finds. request: {"code": the gold file, "script", "wanted", "device": the GPU's number}."""
    if torch.cuda.is_available():
        torch.cuda.set_device(request["device"])
        torch.set_default_device("cuda")
    return look(request["code"], request["script"], request["wanted"])


if __name__ == "__main__":
    serve(answer)
