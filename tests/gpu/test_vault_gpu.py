"""A vault on a GPU: it keeps what is in it, and nothing is at its address while it is closed."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

from nanotriton.executor import Executor
from nanotriton.executor.common import probe
from nanotriton.executor.gpu.vault import Vault
from nanotriton.plan.trees import identical
from nanotriton.tasks.task import Task
from nanotriton.vmm import LockedMemory
from tests.candidates import read

ROOT = Path(__file__).resolve().parents[2]
RIGHT = probe.CANDIDATE
WRONG = RIGHT.replace("x * 2 + 1", "x * 2.02 + 1")


def make(size: int) -> LockedMemory:
    return LockedMemory(size, torch.device("cuda", torch.cuda.current_device()))


def test_a_vault_keeps_what_is_in_it():
    vault = Vault(8 << 20, torch.device("cuda", torch.cuda.current_device()), make, 8 << 20)
    given = [
        torch.randn(1000, device="cuda"),
        torch.arange(7, device="cuda"),
        torch.tensor(True, device="cuda"),
    ]
    again = vault.keep(given)
    for _ in range(3):
        assert identical(again(), given)
        vault.close()
    free, _ = torch.cuda.mem_get_info()
    vault.give_back()
    assert again() is None and torch.cuda.mem_get_info()[0] > free


def test_a_closed_vault_cannot_be_read():
    """The read ends the context, so it is another process's."""
    code = """
import torch
from nanotriton.vmm import LockedMemory
from tests.candidates import read
memory = LockedMemory(2 << 20, torch.device("cuda", 0))
memory.unlock()
data = memory.tensor()
assert int(data.fill_(3).sum(dtype=torch.int64)) == 3 * (2 << 20)
memory.lock()
try:
    print("read", int(data.sum(dtype=torch.int64)))
except RuntimeError as error:
    print("refused", "illegal memory access" in str(error))
"""
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert ended.stdout.splitlines()[0] == "refused True", ended


@pytest.mark.parametrize("order", [(RIGHT, WRONG, RIGHT + "#"), (WRONG, RIGHT, WRONG + "#")])
def test_candidates_of_a_draw_get_verdicts_of_their_own(order):
    with Executor("cuda", workers=2, timeout=60.0, seed=0) as executor:
        futures = [executor.submit(Task(**probe.TASK), source, "step 1") for source in order]
        found = [future.result(300).status for future in futures]
    assert found == ["correct" if source.startswith(RIGHT) else "wrong_value" for source in order]


def test_honest_kernels_are_right_on_draws_that_they_share():
    """Tasks of every kind, with tensors that stay on the CPU too; what is kept for the first serves the others."""
    with Executor("cuda", timeout=60.0, seed=0) as executor:
        futures = {
            f"{case.name} {number}": executor.submit(case.task, case.source + f"\n# {number}\n", "step 1")
            for case in read("honest")
            for number in range(3)
        }
        found = {name: future.result(300) for name, future in futures.items()}
    refused = {name: f"{v.status}: {v.message}" for name, v in found.items() if not v.correct}
    assert not refused
