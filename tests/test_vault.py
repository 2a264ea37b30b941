"""A vault: what lies in it is there again when it is opened, and not while it is closed."""

import ctypes
from types import SimpleNamespace

import pytest
import torch

from nanotriton import vmm
from nanotriton.executor.gpu.vault import Vault
from nanotriton.plan.trees import identical
from tests.vaults import vault


def test_a_vault_gives_what_was_put_into_it():
    place = vault()
    given = [torch.randn(3, 5), torch.tensor(True), torch.randn(4, 2).T, torch.zeros(0, 3), torch.arange(7)]
    given.append(torch.randn(3, dtype=torch.complex64))
    again = place.keep(given)
    for _ in range(2):
        assert identical(again(), given)
        place.close()
        assert not any(chunk.is_open for chunk in place.chunks)
        assert set(place.chunks[0].bytes.tolist()) == {0x7F}
    place.give_back()
    assert again() is None


def test_a_vault_that_is_full_begins_again_once_nobody_reads():
    place, numbers = vault(64 << 10, 16 << 10), torch.arange(2048.0)
    kept = [place.keep([numbers + i]) for i in range(8)]
    assert all(again is not None for again in kept) and len(place.chunks) == 4
    assert place.keep([numbers]) is None
    assert all(identical(again(), [numbers + i]) for i, again in enumerate(kept))
    place.close()
    assert all(again() is None for again in kept)
    assert identical(place.keep([numbers])(), [numbers])


def test_a_constant_takes_no_memory():
    place = vault()
    assert place.keep([])() == [] and not place.chunks


def test_what_is_larger_than_a_chunk_is_not_kept_and_nothing_is_forgotten_for_it():
    place = vault(64 << 10, 16 << 10)
    small = place.keep([torch.ones(8)])
    assert place.keep([torch.ones(8 << 10)]) is None
    place.close()
    assert small() is not None


def test_where_there_is_no_memory_now_there_may_be_some_later():
    free = []

    def make(size: int):
        if not free:
            raise MemoryError("the GPU has not 0.3 GiB free")
        return vault().make(size)

    place = Vault(1 << 20, torch.device("cpu"), make, 1 << 18)
    assert place.keep([torch.ones(8)]) is None
    free.append(True)
    assert place.keep([torch.ones(8)]) is not None


def test_what_cannot_be_opened_again_is_gone(caplog):
    place = vault()
    again = place.keep([torch.ones(8)])
    place.close()
    memory = place.chunks[0].memory
    memory.unlock = lambda: (_ for _ in ()).throw(RuntimeError("cuMemMap failed with CUDA error 999"))
    assert again() is None and place.keep([torch.ones(8)]) is None
    assert len(caplog.records) == 1
    place.give_back()


# ---- the calls of CUDA's driver ----


class Driver:
    """libcuda: it notes what is called, and fails where `fails` says so."""

    def __init__(self):
        self.called, self.fails = [], {}

    def __getattr__(self, name: str):
        def function(*arguments):
            self.called.append(name)
            return self.fails.get(name, 0)

        return function


@pytest.fixture
def driver(monkeypatch) -> Driver:
    made = Driver()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: made)
    monkeypatch.setattr(torch, "cuda", SimpleNamespace(synchronize=lambda device: None))
    return made


def test_locked_memory_is_unmapped_and_mapped_again(driver):
    memory = vmm.LockedMemory(3 << 20, torch.device("cuda", 0))
    assert memory.size == 4 << 20 and not memory.held
    assert driver.called == ["cuMemAddressReserve", "cuMemCreate"]
    for _ in range(2):
        driver.called.clear()
        memory.unlock()
        assert memory.held and driver.called == ["cuMemMap", "cuMemSetAccess"]
        memory.lock()
        assert not memory.held and driver.called[2:] == ["cuMemUnmap"]
    memory.handle.value = memory.address.value = 1 << 32
    driver.called.clear()
    del memory
    assert driver.called == ["cuCtxSynchronize", "cuMemAddressFree", "cuMemRelease"]


def test_locked_memory_says_that_there_is_none(driver):
    driver.fails["cuMemCreate"] = vmm.OUT_OF_MEMORY
    with pytest.raises(MemoryError, match="has not"):
        vmm.LockedMemory(2 << 20, torch.device("cuda", 0))
