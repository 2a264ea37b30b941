"""On a GPU: the compiled 8-bit optimizer step follows its twin, and keeps the mean."""

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

from nanotriton.kernels.adam8 import AdamW8bit


def test_it_follows_the_twin_from_the_same_gradients():
    torch.manual_seed(0)
    start, target, ends = torch.randn(70_001), torch.randn(70_001), []
    for device in ("cpu", "cuda"):
        p = torch.nn.Parameter(start.clone().to(device))
        optimizer, g = AdamW8bit([p], lr=1e-2, weight_decay=0.1), torch.Generator().manual_seed(1)
        for _ in range(50):
            p.grad = p.detach() - target.to(device) + 0.5 * torch.randn(70_001, generator=g).to(device)
            optimizer.step()
        ends.append(p.detach().cpu())
    assert (ends[0] - ends[1]).norm() < 0.05 * (start - ends[0]).norm()


def test_bf16_parameters_move_by_the_rate_on_average_and_the_same_each_time():
    def run():
        p = torch.nn.Parameter(torch.ones(1_000_000, dtype=torch.bfloat16, device="cuda"))
        optimizer = AdamW8bit([p], lr=1e-6)
        for _ in range(20):
            p.grad = torch.ones_like(p)
            optimizer.step()
        return p.detach()

    p = run()
    assert abs((1 - p.double().mean().item()) / 20e-6 - 1) < 0.1
    assert torch.equal(p, run())
