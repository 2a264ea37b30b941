"""The executor, end to end on a CPU: each verdict, both modes, and nothing that happens twice."""

import dataclasses
import re

import pytest

from nanotriton.executor import Executor, Verdict
from nanotriton.executor.common import probe
from nanotriton.tasks.task import Task

TASK = Task(**probe.TASK)
RIGHT = probe.CANDIDATE
BODY = "        y = torch.empty_like(x)\n"
IMPORT = "import torch\n"


def edit(old: str, new: str, source: str = RIGHT) -> str:
    assert old in source
    return source.replace(old, new, 1)


def before_launch(*lines: str, imports: str = "") -> str:
    """The right candidate, with these lines first in its forward."""
    return edit(
        BODY, "".join(f"        {line}\n" for line in lines) + BODY, edit(IMPORT, f"{IMPORT}{imports}\n")
    )


CANDIDATES = {
    "correct": RIGHT,
    "no_code": "   \n",
    "syntax_error": edit("def forward(self, x):", "def forward(self, x:"),
    "import_error": edit(IMPORT, f"{IMPORT}from torch.nn import NoSuchThing\n"),
    "runtime_error": before_launch("x.shape[7]"),
    "compile_error": edit("x * 2 + 1", "tl.no_such_thing(x)"),
    "out_of_bounds": edit("x * 2 + 1, mask=i < n)", "x * 2 + 1)"),
    "wrong_shape": edit("return y", "return y.view(-1)"),
    "wrong_dtype": edit("empty_like(x)", "empty_like(x, dtype=torch.float64)"),
    "wrong_value": edit("x * 2 + 1", "x * 2 + 1.001"),
    "not_finite": edit("(triton.cdiv(x.numel(), 64),)", "(2,)"),  # the rest stays poison
    "input_modified": edit("return y", "kernel[(1,)](y, x, 5, BLOCK=8)\n        return y"),
    "rule_violation": edit("return y", "return torch.add(y, 0)"),
    "memory_limit": before_launch("hoard = bytearray(1 << 40)"),
    "output_limit": before_launch("for _ in range(3000): print('x' * 1000)"),
    "nondeterministic": edit("y_ptr + i, x * 2 + 1, mask=i < n", "y_ptr + i % 7, x * 2 + 1, mask=i < n"),
}
# Under policy none: what the rules would refuse unrun.
FREE = {
    "crashed": before_launch("ctypes.string_at(0)", imports="import ctypes"),
    "runtime_error": before_launch("os.fork()", imports="import os"),
    "timeout": before_launch("while True: pass"),
    "exit": before_launch("os._exit(0)", imports="import os"),
    "torch": edit("return y", "return x * 2 + 1"),
    "self_kill": before_launch("os.kill(os.getpid(), 9)", imports="import os"),
    "reads": before_launch("if x.max() > 1e9: return x"),
    "forged": before_launch(
        "for fd in range(3, 16):",
        "    try: os.pwrite(fd, (2).to_bytes(8, 'little') + b'{}' + b'garbage', 16)",
        "    except OSError: pass",
        "os._exit(0)",
        imports="import os",
    ),
    "excuse": before_launch("raise MemoryError('infra_error')"),
}


@pytest.fixture
def strict(executors):
    return executors()


@pytest.fixture
def free(executors):
    return executors(policy="none", timeout=6.0)


def judge(executor: Executor, candidates: dict[str, str]) -> dict[str, Verdict]:
    futures = {name: executor.submit(TASK, source) for name, source in candidates.items()}
    return {name: future.result() for name, future in futures.items()}


def test_each_status_is_reached(strict):
    for name, verdict in judge(strict, CANDIDATES).items():
        assert verdict.status == name, verdict
        assert verdict.mode == "replay" and verdict.device == "cpu" and verdict.speedup is None
        assert (verdict.message == "") == verdict.correct and "\n" not in verdict.message


def test_messages_name_the_line(strict):
    verdicts = judge(strict, CANDIDATES)
    for name in (
        "syntax_error",
        "runtime_error",
        "compile_error",
        "out_of_bounds",
        "rule_violation",
        "memory_limit",
        "nondeterministic",
    ):
        assert "line " in verdicts[name].message, verdicts[name]
    assert "no_such_thing" in verdicts["compile_error"].message
    assert "(132,)" in verdicts["wrong_shape"].message


def test_a_right_verdict_says_what_was_measured(strict):
    verdict = strict.submit(TASK, RIGHT).result()
    assert (
        verdict.recordable and verdict.launches == verdict.effective_launches == 1 and verdict.torch_ops == {}
    )
    assert 0 <= verdict.max_error < 1e-6 and verdict.kernelbench_allclose
    assert {"rules", "record", "validate", "run", "judge"} <= verdict.cost.keys()
    assert Verdict.from_json(verdict.to_json()) == verdict


def test_decoys_are_refused(strict):
    twice = edit(
        "y, x.numel(), BLOCK=64)",
        "y, x.numel(), BLOCK=64)\n        kernel[(1,)](x, torch.empty_like(x), 9, BLOCK=16)",
    )
    never = edit("kernel[(triton.cdiv(x.numel(), 64),)]", "kernel[(0,)]")
    again = edit(
        "        return y",
        "        kernel[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), BLOCK=64)\n        return y",
    )
    verdicts = judge(strict, {"twice": twice, "never": never, "reads": FREE["reads"], "again": again})
    assert verdicts["again"].correct and (
        verdicts["again"].launches,
        verdicts["again"].effective_launches,
    ) == (2, 1)
    assert verdicts["twice"].correct and (
        verdicts["twice"].launches,
        verdicts["twice"].effective_launches,
    ) == (2, 1)
    assert not verdicts["never"].correct
    assert (
        verdicts["reads"].status == "rule_violation"
        and verdicts["reads"].recordable is False
        and "line 17" in verdicts["reads"].message
    )


def test_hostile_candidates_get_their_own_verdict(free):
    verdicts = judge(free, FREE)
    found = {name: verdict.status for name, verdict in verdicts.items()}
    assert found == {
        "crashed": "crashed",
        "runtime_error": "runtime_error",
        "timeout": "timeout",
        "exit": "crashed",
        "torch": "correct",
        "self_kill": "crashed",
        "reads": "unsupported",
        "forged": "crashed",
        "excuse": "memory_limit",
    }
    assert verdicts["reads"].recordable is False and not verdicts["reads"].judged
    assert re.search(r"^line 17: .*needs a GPU$", verdicts["reads"].message), verdicts["reads"]
    assert (
        "segmentation fault" in verdicts["crashed"].message
        and "PermissionError" in verdicts["runtime_error"].message
    )


WEIGHTS = Task(
    "weights",
    edit(
        "def forward(self, x):\n        return x * 2 + 1",
        """def __init__(self, n):
        super().__init__()
        self.scale = nn.Linear(n, 1, bias=False)
        self.norm = nn.LayerNorm(n)

    def forward(self, x):
        return x * self.scale.weight + self.norm.weight""",
        probe.TASK["source"],
    ).replace("return []", "return [33]"),
)
HOLDS = edit(
    "class ModelNew(nn.Module):\n",
    """class ModelNew(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.scale = nn.Linear(n, 1, bias=False)
        self.norm = nn.LayerNorm(n)
        self.both = None  # here one may prepare weights

""",
    edit("x * 2 + 1", "x * tl.load(a_ptr + i % 33, mask=i < n) + tl.load(b_ptr + i % 33, mask=i < n)", RIGHT)
    .replace("kernel(x_ptr, y_ptr, n,", "kernel(x_ptr, y_ptr, a_ptr, b_ptr, n,")
    .replace("(x, y, x.numel()", "(x, y, self.scale.weight, self.norm.weight, x.numel()"),
)
PACKED = edit(
    "self.both = None",
    "self.register_buffer('both', torch.cat([self.scale.weight.detach()[0], self.norm.weight.detach()]))",
    HOLDS,
)
PACKED = edit(
    "self.scale.weight, self.norm.weight, x.numel()", "self.both[:33], self.both[33:], x.numel()", PACKED
)
OTHER_ORDER = edit("        self.scale = nn", "        torch.rand(3)\n        self.scale = nn", HOLDS)
OTHER_NAMES = HOLDS.replace("self.scale", "self.factor").replace("self.norm", "self.layer")
PARAMETERS = OTHER_NAMES.replace(
    "nn.LayerNorm(n)", "nn.Module(); self.layer.weight = nn.Parameter(torch.ones(n))"
)
SKIPS = edit("tl.load(b_ptr + i % 33, mask=i < n)", "1.0", HOLDS)
REMEMBERS = edit(
    "        self.register",
    "        torch.manual_seed(3)\n        nn.init.uniform_(self.scale.weight)\n        self.register",
    PACKED,
)


def test_weights(strict):
    """By name, by order of drawing: all fine. Skipped, replaced or copied, so that they grow stale: not."""
    good = {
        "holds": HOLDS,
        "order": OTHER_ORDER,
        "names": OTHER_NAMES,
        "parameters": PARAMETERS,
    }
    bad = {"skips": SKIPS, "packed": PACKED, "remembers": REMEMBERS}
    futures = {name: strict.submit(WEIGHTS, source) for name, source in (good | bad).items()}
    assert {name: f.result().status for name, f in futures.items()} == dict.fromkeys(
        good, "correct"
    ) | dict.fromkeys(bad, "wrong_value")


def test_weights_without_rules(free):
    futures = [free.submit(WEIGHTS, source) for source in (HOLDS, OTHER_ORDER, OTHER_NAMES, PACKED, SKIPS)]
    assert [f.result().status for f in futures] == ["correct"] * 3 + ["wrong_value"] * 2


def test_tf32_is_refused_with_advice(strict):
    """fp32 tasks must be computed in fp32: tl.dot's default is TF32."""
    source = edit(
        "def forward(self, x):\n        return x * 2 + 1",
        "def forward(self, x, y):\n        return x @ y",
        TASK.source,
    )
    source = source.replace("[torch.randn(4, 33)]", "[torch.randn(32, 64), torch.randn(64, 32)]")
    kernel = """
import torch, triton
import torch.nn as nn
import triton.language as tl

@triton.jit
def kernel(a_ptr, b_ptr, c_ptr, K: tl.constexpr):
    i, k = tl.arange(0, 32), tl.arange(0, K)
    a, b = tl.load(a_ptr + i[:, None] * K + k[None, :]), tl.load(b_ptr + k[:, None] * 32 + i[None, :])
    tl.store(c_ptr + i[:, None] * 32 + i[None, :], tl.dot(a, b))

class ModelNew(nn.Module):
    def forward(self, x, y):
        out = torch.empty(32, 32, device=x.device)
        kernel[(1,)](x, y, out, K=64)
        return out
"""
    default, ieee = (
        strict.submit(Task("mm", source), k).result()
        for k in (kernel, kernel.replace("(a, b))", '(a, b, input_precision="ieee"))'))
    )
    assert ieee.correct
    assert default.status == "wrong_value" and 'input_precision="ieee"' in default.message


def test_tasks_that_cannot_be_judged(strict):
    weak = Task("weak", TASK.source.replace("x * 2 + 1", "x * 0"))
    random = Task("random", TASK.source.replace("x * 2 + 1", "torch.nn.functional.dropout(x)"))
    huge = Task("huge", TASK.source.replace("torch.randn(4, 33)", "torch.empty(1 << 42)"))
    statuses = [strict.submit(task, RIGHT).result() for task in (weak, random, huge)]
    assert [v.status for v in statuses] == ["weak_task", "unsupported", "memory_limit"]
    assert [v.stage for v in statuses] == ["task"] * 3 and not any(v.scored for v in statuses)
    assert "memory" in statuses[2].message


def test_identical_candidates_are_judged_once(strict):
    source = f"{RIGHT}\n# of this test alone\n"
    first, second = strict.submit(TASK, source), strict.submit(Task("another name", TASK.source), source)
    assert first is second
    first.result()
    assert strict.submit(TASK, source) is first
    assert strict.submit(TASK, source + "#") is not first


@pytest.mark.slow
def test_the_same_seed_gives_the_same_verdicts(strict):
    with Executor(workers=2, seed=0) as other:
        again = judge(other, CANDIDATES)
    for name, verdict in judge(strict, CANDIDATES).items():
        assert dataclasses.replace(again[name], cost={}) == dataclasses.replace(verdict, cost={})


def test_bad_arguments_are_one_clear_line():
    for wrong in (
        {"device": "tpu"},
        {"mode": "fast"},
        {"policy": "lax"},
        {"timeout": 0},
        {"workers": 0},
        {"memory_gib": -1},
    ):
        with pytest.raises(ValueError) as error:
            Executor(**wrong)
        assert "\n" not in str(error.value)


def test_a_closed_executor_takes_nothing_and_leaves_nothing_open():
    executor = Executor(workers=1)
    future = executor.submit(TASK, before_launch("while True: pass"))
    executor.close()
    assert future.result(timeout=1).status == "infra_error"
    with pytest.raises(RuntimeError, match="closed"):
        executor.submit(TASK, RIGHT)
    executor.close()  # twice is fine


LARGE = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(300_000))

    def forward(self, x):
        return x * self.w

def get_inputs():
    return [torch.randn(300_000)]

def get_init_inputs():
    return []
"""


@pytest.mark.parametrize(
    ("name", "draw", "status"),
    [("w", "randn", "correct"), ("other", "randn", "correct"), ("other", "rand", "wrong_value")],
)
def test_large_weights_stay_at_home(strict, name, draw, status):
    """A plan may hold 256 MiB of weights; those that the reference has too are not in it, whatever the candidate calls them."""
    source = RIGHT.replace(
        "class ModelNew(nn.Module):",
        f"""class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.{name} = nn.Parameter(torch.{draw}(300_000))
""",
    )
    source = source.replace("x * 2 + 1", "x * tl.load(w_ptr + i, mask=i < n)").replace(
        "x_ptr, y_ptr, n,", "x_ptr, w_ptr, y_ptr, n,"
    )
    source = source.replace(
        "(x, y, x.numel(), BLOCK=64)", f"(x, self.{name}, y, x.numel(), BLOCK=64)"
    ).replace("64", "1024")
    verdict = strict.submit(Task("large", LARGE), source).result()
    assert verdict.status == status, verdict.message


@pytest.mark.parametrize("mode", [None, "replay"])
def test_an_expected_task_is_examined_before_its_candidates_come(executors, mode):
    task = Task("expected", TASK.source + f"\n# {mode}\n")  # that nobody has seen
    executor = executors(policy="none", mode=mode, timeout=6.0)
    executor.expect([task])
    executor.submit(TASK, RIGHT + f"\n# after {mode}\n").result()  # one worker takes them in turn
    verdict, examined = executor.submit(task, RIGHT).result(), executor._known[task.key, ""].result()
    assert verdict.status == "correct" and verdict.cost["task"] < examined.cost["task"] / 2


def test_nothing_is_imported_from_the_working_directory(tmp_path, monkeypatch):
    """A user's numbers.py there is not Python's, and a task means the same wherever it is judged."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "numbers.py").write_text("raise SystemExit('not this one')\n")
    (tmp_path / "helper.py").write_text("")
    with Executor(workers=1) as executor:
        helped = Task("helped", f"import helper\n{TASK.source}")
        verdicts = [executor.submit(task, RIGHT) for task in (TASK, helped)]
        right, missing = (future.result() for future in verdicts)
    assert right.correct
    assert missing.stage == "task" and "No module named 'helper'" in missing.message
