"""What process mode's children find done already, without a GPU: Triton's driver and its first compilation."""

import pytest
import torch
import triton

from nanotriton.executor.common.card import DEFAULT
from nanotriton.executor.gpu import first_launch


class Driver:
    """In place of Triton's, which is built for a GPU."""


def test_the_driver_is_made_and_a_kernel_compiled_without_cuda(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(triton.runtime.driver, "_active", None)
    monkeypatch.setattr(first_launch, "CudaDriver", Driver)
    first_launch.prepare(DEFAULT)
    assert isinstance(triton.runtime.driver.active, Driver)
    assert list(tmp_path.rglob("*.cubin"))
    assert not torch.cuda.is_initialized()


def test_a_driver_that_cannot_be_built_is_no_candidates_fault(monkeypatch):
    """The base ends then, and candidates get infra_error."""

    def unbuilt():
        raise RuntimeError("Failed to find C compiler")

    monkeypatch.setattr(triton.runtime.driver, "_active", None)
    monkeypatch.setattr(first_launch, "CudaDriver", unbuilt)
    with pytest.raises(RuntimeError, match="C compiler"):
        first_launch.prepare(DEFAULT)
    assert triton.runtime.driver._active is None
