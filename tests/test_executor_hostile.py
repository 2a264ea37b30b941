"""What a candidate could do to the executor, or to the question who is to blame: each gets a verdict of its own, and no one else's changes."""

import pytest

from nanotriton.executor.common import probe
from nanotriton.executor.executor import Executor
from nanotriton.tasks.task import Task
from tests.test_executor import RIGHT, TASK, before_launch, edit

# Writes its own answer, past the recorder.
FORGE = """
import json, os
def answer(header, payload=b""):
    data = b"run".ljust(16) + len(header).to_bytes(8, "little") + header + payload
    while data:
        data = data[os.pwrite(3, data, at := globals().get("at", 0)):]
        globals()["at"] = os.fstat(3).st_size
    os._exit(0)
def plan(header):
    text = json.dumps(header).encode()
    answer(b"{}", b"nanotriton-plan-1\\n" + len(text).to_bytes(8, "little") + text)
"""
PLAN = {
    "storages": [["input", 528, "float32", None]],
    "tensors": [[0, "float32", [4, 33], [33, 1], 0]],
    "kernels": [],
    "steps": [],
    "weights": [],
    "inputs": [{"t": 0}],
    "outputs": {"t": 0},
    "blobs": [],
}


def test_messages_of_any_length_are_one_line_and_harm_nobody(executors):
    name = "k" * 90_000
    sources = {
        "long": edit("return y", f"return torch._{name}(y)"),
        "lines": edit(
            "    tl.store", '    tl.device_assert(x > 9, "no\\nother.py: correct\\x1b[2J")\n    tl.store'
        ),
        "right": RIGHT,
    }
    futures = {name: executors().submit(TASK, source) for name, source in sources.items()}
    found = {name: future.result() for name, future in futures.items()}
    assert found["long"].status == "rule_violation" and len(found["long"].message) <= 2000
    assert all(verdict.message.isprintable() for verdict in found.values())
    assert found["right"].correct


def test_forged_answers_are_the_candidates_own_crash(executors):
    """Many at once: none is taken for an accident of ours, and the executor's health check is not disturbed by the others."""
    sources = {
        "header": FORGE + "answer(b'[' + b'[],' * (3 << 20) + b'[]]')\n",
        "container": FORGE + f"plan({PLAN | {'inputs': [{'tuple': [{'t': 0}]}]}!r})\n",
        "dictionary": FORGE + f"plan({PLAN | {'inputs': [{'dict': [['a', {'t': 0}]]}]}!r})\n",
        "shape": FORGE + f"plan({PLAN | {'tensors': [[0, 'float32', [33], [1], 0]]}!r})\n",
    }
    free = executors(policy="none")
    futures = {name: free.submit(TASK, source) for name, source in (sources | {"right": RIGHT}).items()}
    found = {name: future.result() for name, future in futures.items()}
    assert found.pop("right").correct
    assert {verdict.status for verdict in found.values()} == {"crashed"}, found
    # the health check's facts are not theirs
    assert all(verdict.max_error is None for verdict in found.values())
    assert "no answer" in found.pop("header").message and all(
        verdict.message.startswith("plan: ") for verdict in found.values()
    )


@pytest.mark.slow
def test_a_candidate_that_hoards_memory_leaves_the_reference_its_own():
    """Or the reference would fail for want of memory, which is excused, and a wrong candidate would never be scored."""
    task = Task("large", probe.TASK["source"].replace("torch.randn(4, 33)", "torch.randn(1 << 21)"))
    wrong = edit(
        "x * 2 + 1", "x * 2 + 1.5", edit("def forward(self, x):", "def forward(self, x, B=1 << 17):")
    )
    wrong = wrong.replace("triton.cdiv(x.numel(), 64)", "triton.cdiv(x.numel(), B)").replace(
        "BLOCK=64", "BLOCK=B"
    )
    hoard = "torch.empty(250 << 20, dtype=torch.uint8, device=x.device).zero_()"
    sources = {
        "wrong_value": edit("        y = torch", f"        {hoard}\n        y = torch", wrong),
        "wrong_shape": edit("return y", "return y.expand(40, -1)", wrong),
    }
    with Executor(workers=1, timeout=60.0, seed=0, memory_gib=0.5) as executor:
        for status, source in sources.items():
            verdict = executor.submit(task, source).result()
            assert verdict.status == status and verdict.scored, verdict


@pytest.mark.slow
def test_a_module_of_many_weights():
    weights = "self.ws = nn.ParameterList([nn.Parameter(torch.randn(33)) for _ in range(700)])"
    init = f"    def __init__(self):\n        super().__init__()\n        {weights}\n\n    def forward(self, x):\n"
    task = Task(
        "many",
        probe.TASK["source"]
        .replace("    def forward(self, x):\n", init)
        .replace("x * 2 + 1", "x * self.ws[699]"),
    )
    source = before_launch("w = self.ws[699]").replace("    def forward(self, x):\n", init)
    source = (
        source.replace("x * 2 + 1", "x * tl.load(w_ptr + i % 33, mask=i < n)")
        .replace("x_ptr, y_ptr", "x_ptr, w_ptr, y_ptr")
        .replace("(x, y,", "(x, w, y,")
    )
    with Executor(policy="none", workers=1, timeout=60.0, seed=0) as executor:
        verdict = executor.submit(task, source).result()
    assert verdict.correct, verdict
