"""The 8-bit optimizer for bf16 parameters: unbiased rounding, Adam's path on average, exact resume, the kernel and its twin."""

import pytest
import torch

from nanotriton.kernels import adam8
from nanotriton.kernels.adam8 import AdamW8bit, _round
from nanotriton.parallel import distributed
from nanotriton.parallel.checkpoint import Checkpointer
from nanotriton.parallel.world import World


def test_rounding_keeps_the_mean_and_only_neighbours_occur():
    x = torch.tensor([1.0, 1.001, -1.001, 3e-5, 1.0 + 2**-9])
    many = torch.stack([_round(x, torch.rand(5), torch.bfloat16).float() for _ in range(4000)])
    assert (many[:, 0] == 1).all() and set(many[:, 1].tolist()) == {1.0, 1.0078125}
    unit = 2.0**-7 * torch.tensor([1, 1, 1, 2**-15, 1.0])
    assert ((many.mean(0) - x).abs() < 4 * 0.5 * unit / 4000**0.5).all()


def test_at_a_small_rate_parameters_move_by_what_adam_would_move_them():
    """lr 1e-6 moves no bf16 parameter of 1.0 if rounding is to nearest; here the mean moves by steps * lr."""
    p = torch.nn.Parameter(torch.ones(200_000, dtype=torch.bfloat16))
    optimizer = AdamW8bit([p], lr=1e-5)
    for _ in range(20):
        p.grad = torch.ones_like(p)
        optimizer.step()
    assert abs((1 - p.float().mean().item()) / (20 * 1e-5) - 1) < 0.1
    nearest = torch.ones(4, dtype=torch.bfloat16)
    assert (nearest - 1e-5 == 1).all()


def test_it_follows_adam_on_noisy_gradients():
    torch.manual_seed(0)
    start, target = torch.randn(4096), torch.randn(4096)
    ends = []
    for make in (
        lambda p: torch.optim.AdamW([p], lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1),
        lambda p: AdamW8bit([p], lr=1e-2, weight_decay=0.1),
    ):
        p = torch.nn.Parameter(start.clone())  # fp32, so that only the moments differ
        optimizer, g = make(p), torch.Generator().manual_seed(1)
        for _ in range(200):
            p.grad = (p.detach() - target) + 0.5 * torch.randn(4096, generator=g)
            optimizer.step()
        ends.append(p.detach())
    assert (ends[0] - target).norm() < 0.3 * (start - target).norm()
    assert (ends[0] - ends[1]).norm() < 0.1 * (start - ends[0]).norm()
    assert abs((ends[0] - target).norm() / (ends[1] - target).norm() - 1) < 0.05


def test_memory_is_two_bytes_a_value_and_a_little():
    p = torch.nn.Parameter(torch.zeros(1000, 64, dtype=torch.bfloat16))
    state = AdamW8bit([p], lr=1.0).empty_state(p)
    assert sum(x.numel() * x.element_size() for x in state.values()) < 2.05 * p.numel()


def test_bf16_parameters_get_it_and_resume_exactly(tmp_path):
    def make():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(20, 33), torch.nn.Linear(33, 5)).bfloat16()
        return model, distributed.adamw(model, 1e-3, weight_decay=0.1)

    def run(model, optimizer, steps):
        for k in steps:
            g = torch.Generator().manual_seed(k)
            model(torch.randn(7, 20, generator=g).bfloat16()).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    model, optimizer = make()
    assert isinstance(optimizer, AdamW8bit)
    run(model, optimizer, range(3))
    saver = Checkpointer(tmp_path, World())
    saver.save(3, model, optimizer, {})
    run(model, optimizer, range(3, 6))
    other, fresh = make()
    run(other, fresh, range(10, 11))
    saver.load_latest(other, fresh)
    run(other, fresh, range(3, 6))
    for a, b in zip(model.parameters(), other.parameters()):
        assert torch.equal(a, b) and all(
            torch.equal(x, fresh.state[b][k]) for k, x in optimizer.state[a].items()
        )


@pytest.mark.interpreted
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernel_equals_its_twin_up_to_the_rounding(dtype):
    torch.manual_seed(0)
    p, q = (torch.linspace(-2, 2, 700).to(dtype) for _ in range(2))
    states = [adam8.AdamW8bit([x], lr=1.0).empty_state(x) for x in (p, q)]
    for n in range(1, 4):
        g = torch.randn(700).to(dtype) * torch.logspace(-4, 0, 700).to(dtype)
        numbers = (1e-2, 0.9, 0.95, 1e-8, 0.1, 1 / (1 - 0.9**n), 1 / (1 - 0.95**n))
        for key, x in states[0].items():
            states[1][key].copy_(x)  # from the same state, since both round at random
        q.copy_(p)
        adam8._step_cuda(p, g, states[0], numbers, n)
        adam8._step_torch(q, g, states[1], numbers, n)
        # a unit in the last place at 2
        assert (p - q).abs().max() <= (1e-6 if dtype == torch.float32 else 2**-6)
        for key in ("m", "v"):
            assert (states[0][key].int() - states[1][key].int()).abs().max() <= 1, key
            torch.testing.assert_close(states[0][key + "_scale"], states[1][key + "_scale"])
        assert states[0]["v"].min() >= 1 and len(states[0]["m"].unique()) > 50
