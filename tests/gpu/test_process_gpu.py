"""Process mode on a GPU: single-use children with a context of their own, for what can't be recorded."""

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

from nanotriton.executor import Executor
from nanotriton.executor.common import probe
from nanotriton.tasks.task import Task

TASK = Task(**probe.TASK)
RIGHT = probe.CANDIDATE
BODY = "        y = torch.empty_like(x)\n"
CANDIDATES = {
    "correct": RIGHT,
    "reads a value": RIGHT.replace(BODY, f"        if x.max().item() > 1e9: return x\n{BODY}"),
    "wrong_value": RIGHT.replace("x * 2 + 1", "x * 2 + 1.01"),
    "compile_error": RIGHT.replace("x * 2 + 1", "tl.no_such_thing(x)"),
    "illegal_memory": RIGHT.replace("tl.store(y_ptr + i,", "tl.store(y_ptr + i + (n.to(tl.int64) << 32),"),
    "timeout": RIGHT.replace(BODY, f"        while True: pass\n{BODY}"),
    "crashed": RIGHT.replace(BODY, f"        import ctypes; ctypes.string_at(0)\n{BODY}"),
}


def test_each_candidate_gets_its_verdict_and_leaves_nothing(card_alone):
    free, _ = torch.cuda.mem_get_info()
    with Executor(device="cuda", mode="process", policy="none", timeout=15.0) as executor:
        futures = {name: executor.submit(TASK, source) for name, source in CANDIDATES.items()}
        verdicts = {name: future.result() for name, future in futures.items()}
    expected = {name: "correct" if name == "reads a value" else name for name in CANDIDATES}
    assert {name: v.status for name, v in verdicts.items()} == expected, "\n".join(
        f"{name}: {v.status}: {v.message}" for name, v in verdicts.items()
    )
    assert all(v.mode == "process" and v.device == "cuda" and v.speedup is None for v in verdicts.values())
    if card_alone:
        assert torch.cuda.mem_get_info()[0] > free - (64 << 20)


@pytest.mark.parametrize(
    "body, why",
    {
        "no launch at all": (
            "        if x[0, 0].item() < 1e30: return x * 2 + 1\n",
            "no launch changes the answer",
        ),
        "a decoy": (
            "        w, k = torch.empty_like(x), x.max().item()\n"
            "        kernel[(1,)](x, w, x.numel(), BLOCK=64)\n        return x * 2 + 1\n",
            "no launch changes the answer",
        ),
    }.values(),
)
def test_without_a_launch_that_counts_it_is_not_correct(body, why):
    source = RIGHT.replace(BODY, body + BODY)
    with Executor(device="cuda", policy="kernelbench") as executor:
        verdict = executor.submit(TASK, source).result()
    assert verdict.status == "rule_violation" and why in verdict.message, verdict
    assert verdict.mode == "process" and verdict.effective_launches == 0


def test_what_cannot_be_recorded_goes_to_process_mode():
    with Executor(device="cuda", policy="kernelbench") as executor:
        verdict = executor.submit(TASK, CANDIDATES["reads a value"]).result()
    assert verdict.status == "correct" and verdict.mode == "process" and verdict.recordable is False, verdict
    assert verdict.effective_launches == 1
