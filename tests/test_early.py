"""Kernels that are launched while the one before them runs touch no memory before they have waited for it."""

import re

import pytest
import torch

from nanotriton.kernels import decode, launch, layers, place
from tests import test_place
from tests.launched import Launched
from tests.test_decode import make_case


def run_norm():
    x, extra, weight = torch.randn(3, 4, 1024).bfloat16()
    layers.rms_norm_forward(x, weight[0], 1e-6, extra, torch.empty(2**20))


def run_swiglu():
    layers.swiglu_forward(*torch.randn(2, 4, 1024).bfloat16(), torch.empty(2**20))


def run_place():
    place.place_cuda(*test_place.make(8, 2, 64, dtype=torch.bfloat16))


def run_decode():
    shape = dict(heads=4, kv_heads=4, dim=64, page=64, per_tile=64, dtype=torch.bfloat16)
    decode._decode_cuda(*make_case([2], [5], [4, 18], **shape))


@pytest.mark.parametrize(
    "module, names, run",
    [
        (layers, ["_rms_norm_forward_kernel"], run_norm),
        (layers, ["_swiglu_forward_kernel"], run_swiglu),
        (place, ["_place_kernel"], run_place),
        (decode, ["_prefix_kernel", "_tail_kernel", "_merge_kernel"], run_decode),
    ],
)
def test_a_kernel_waits_before_it_reads(module, names, run, monkeypatch):
    monkeypatch.setattr(launch, "is_hopper", lambda device: True)
    kernels = [Launched(getattr(module, name)) for name in names]
    for name, kernel in zip(names, kernels, strict=True):
        monkeypatch.setattr(module, name, kernel)
    run()
    for kernel in kernels:
        assert kernel.options["launch_pdl"]
        code = kernel.compile(90).asm["ptx"]
        touched = re.search(r"\b(ld|st|cp\.async)\.(global|cg|ca)", code).start()
        assert code.index("griddepcontrol.wait") < code.index("griddepcontrol.launch_dependents") < touched


def test_other_cards_launch_as_ever():
    assert launch.early(torch.zeros(1)) == {"EARLY": False}
