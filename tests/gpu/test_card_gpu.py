"""The GPU that is there is the one that candidates are judged for, and told of."""

from dataclasses import asdict, replace

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

import triton

from nanotriton.executor import Executor
from nanotriton.executor.child.fake_triton import device_properties
from nanotriton.executor.common.card import DEFAULT
from nanotriton.executor.common.probe import CANDIDATE, TASK
from nanotriton.executor.gpu.ask import describe
from nanotriton.executor.gpu.gpu import Gpu
from nanotriton.executor.processes import read_card, visible_devices
from nanotriton.tasks.task import Task

CARD = describe()


def test_what_the_driver_says_is_what_torch_and_triton_say():
    """Also where another process asks, with the environment that the executor's processes have."""
    theirs = torch.cuda.get_device_properties(0)
    known = {name: value for name, value in asdict(CARD).items() if hasattr(theirs, name)}
    assert known == {name: getattr(theirs, name) for name in known} and len(known) >= 12
    assert device_properties(CARD) == triton.runtime.driver.active.utils.get_device_properties(0)
    assert CARD.target == triton.runtime.driver.active.get_current_target()
    assert CARD == read_card(visible_devices(None)) == read_card(visible_devices(0), timed=True)


@pytest.mark.parametrize("mode", ["replay", "process"])
def test_a_candidate_sees_the_card(mode):
    here = torch.cuda.get_device_properties(0)
    theirs = triton.runtime.driver.active.utils.get_device_properties(0)
    sees = f"""
        there = torch.cuda.get_device_properties(x.device)
        assert torch.cuda.get_device_name() == {here.name!r} and there.total_memory == {here.total_memory}
        assert torch.cuda.get_device_capability() == {(here.major, here.minor)}
        assert there.multi_processor_count == {here.multi_processor_count}
        assert there.L2_cache_size == {here.L2_cache_size}
        assert there.shared_memory_per_block_optin == {here.shared_memory_per_block_optin}
        assert triton.runtime.driver.active.utils.get_device_properties(0) == {theirs}
        assert triton.runtime.driver.active.get_current_target().arch == {10 * here.major + here.minor}
"""
    begin = "        y = torch.empty_like(x)\n"
    with Executor(device="cuda", mode=mode, policy="none", workers=1, timeout=20.0) as executor:
        right = executor.submit(Task(**TASK), CANDIDATE.replace(begin, sees + begin)).result()
        wrong = executor.submit(
            Task(**TASK), CANDIDATE.replace(begin, f"{sees}        assert False, there.name\n{begin}")
        ).result()
    assert right.correct, right
    assert wrong.status == "runtime_error" and here.name in wrong.message


def test_a_worker_that_finds_another_card_than_it_was_told_of_does_not_begin(tmp_path):
    with pytest.raises(RuntimeError, match="not the Another"):
        Gpu(str(tmp_path / "cubins"), str(tmp_path), replace(DEFAULT, name="Another"))
