"""RMSNorm and SwiGLU: the twins against plain formulas and autograd, the Triton kernels against the twins.

The kernels run in Triton's interpreter, in the child of test_interpreted.py; tests/gpu runs the compiled ones.
"""

import pytest
import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from nanotriton.kernels import launch, layers
from tests.launched import Launched


def in_interpreter(test):
    """Run by test_interpreted.py, where the interpreter works."""
    broken = triton.__version__.startswith("3.6")
    return pytest.mark.interpreted(
        pytest.mark.skipif(broken, reason="its interpreter can't loop under numpy 2.4")(test)
    )


def plain_rms_norm(x, weight, eps, residual=None):
    total = x if residual is None else x + residual
    y = total / torch.sqrt((total * total).mean(-1, keepdim=True) + eps) * weight
    return y if residual is None else (y, total)


def plain_swiglu(gate, up):
    return gate / (1 + torch.exp(-gate)) * up


CASES = {
    "norm": (layers.rms_norm, plain_rms_norm, lambda: (torch.randn(7, 48), torch.randn(48), 1e-5)),
    "residual": (
        layers.rms_norm,
        plain_rms_norm,
        lambda: (torch.randn(7, 48), torch.randn(48), 1e-5, torch.randn(7, 48)),
    ),
    "heads": (layers.rms_norm, plain_rms_norm, lambda: (torch.randn(5, 3, 16), torch.randn(16), 1e-6)),
    "swiglu": (layers.swiglu, plain_swiglu, lambda: (torch.randn(5, 40), torch.randn(5, 40))),
}


@pytest.mark.parametrize("name", CASES)
def test_twin_matches_the_formula_and_its_gradient(name):
    torch.manual_seed(0)
    ours, plain, make = CASES[name]
    args = make()
    results = []
    for function, dtype in ((ours, torch.float32), (plain, torch.float64)):
        leaves = [a.detach().to(dtype, copy=True).requires_grad_() if torch.is_tensor(a) else a for a in args]
        outs = function(*leaves)
        outs = outs if isinstance(outs, tuple) else (outs,)
        torch.manual_seed(1)
        sum((o * torch.randn(o.shape).to(dtype)).sum() for o in outs).backward()
        results.append([*outs, *(a.grad for a in leaves if torch.is_tensor(a))])
    for mine, exact in zip(*results, strict=True):
        torch.testing.assert_close(mine.double(), exact, rtol=1e-5, atol=1e-6)


@in_interpreter
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("rows", "n"), [(5, 300), (1, 64), (70, 32)])
@pytest.mark.parametrize("residual", [False, True])
def test_rms_norm_kernels_match_twins(dtype, rows, n, residual):
    torch.manual_seed(0)
    x, dy = torch.randn(rows, n).to(dtype), torch.randn(rows, n).to(dtype)
    extra, dtotal = (
        (torch.randn(rows, n).to(dtype), torch.randn(rows, n).to(dtype)) if residual else (None, None)
    )
    weight = torch.randn(n)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-3
    got = layers.rms_norm_forward(x, weight, 1e-5, extra)
    want = layers.rms_norm_forward_torch(x, weight, 1e-5, extra)
    for a, b in zip(got, want, strict=True):
        assert a.dtype == dtype
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
    dx, dw = layers.rms_norm_backward(want[1], weight, 1e-5, dy, dtotal)
    dx2, dw2 = layers.rms_norm_backward_torch(want[1], weight, 1e-5, dy, dtotal)
    torch.testing.assert_close(dx, dx2, rtol=tolerance, atol=tolerance)
    assert dw.dtype == torch.float32  # summed in fp32 whatever the activations are
    torch.testing.assert_close(dw, dw2, rtol=1e-5, atol=1e-4)


@in_interpreter
@pytest.mark.parametrize("size", [1, 5000])
def test_swiglu_kernels_match_twins(size):
    torch.manual_seed(0)
    gate, up, dout = (torch.randn(size) * 4 for _ in range(3))
    torch.testing.assert_close(
        layers.swiglu_forward(gate, up), layers.swiglu_forward_torch(gate, up), rtol=1e-5, atol=1e-5
    )
    for a, b in zip(
        layers.swiglu_backward(gate, up, dout), layers.swiglu_backward_torch(gate, up, dout), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@in_interpreter
def test_kernels_with_inputs_that_are_not_contiguous():
    torch.manual_seed(0)
    x = torch.randn(64, 6).t()  # [6, 64] with the wrong strides
    y, _ = layers.rms_norm_forward(x, torch.ones(64), 1e-6, None)
    torch.testing.assert_close(y, layers.rms_norm_forward_torch(x, torch.ones(64), 1e-6, None)[0])


@in_interpreter
def test_kernels_take_parts_of_a_wider_product():
    torch.manual_seed(0)
    q, k, _ = (part.view(5, -1, 16) for part in torch.randn(5, 96 + 32 + 32).split([96, 32, 32], -1))
    assert not q.is_contiguous()
    for x in (q, k):
        y, _ = layers.rms_norm_forward(x, torch.ones(16), 1e-6, None)
        assert y.is_contiguous()
        torch.testing.assert_close(y, layers.rms_norm_forward_torch(x, torch.ones(16), 1e-6, None)[0])
    gate, up = torch.randn(5, 80).chunk(2, -1)
    torch.testing.assert_close(layers.swiglu_forward(gate, up), layers.swiglu_forward_torch(gate, up))


@triton.jit
def _read_nothing(upcoming_ptr, PROGRAMS: tl.constexpr, THREADS: tl.constexpr):
    pass


@in_interpreter
@pytest.mark.parametrize("rows", [1, 70])
def test_programs_that_read_ahead_write_nothing(rows, monkeypatch):
    monkeypatch.setattr(layers, "read_ahead", _read_nothing)  # the interpreter has no such instruction
    monkeypatch.setattr(layers, "programs_ahead", lambda upcoming, threads: 0 if upcoming is None else 3)
    x, extra, upcoming = torch.randn(rows, 48), torch.randn(rows, 48), torch.randn(8, 8)
    for residual in (None, extra):
        got = layers.rms_norm_forward(x, torch.ones(48), 1e-5, residual, upcoming)
        assert all(map(torch.equal, got, layers.rms_norm_forward(x, torch.ones(48), 1e-5, residual)))
    assert torch.equal(layers.swiglu_forward(x, extra, upcoming), layers.swiglu_forward(x, extra))


def test_kernels_that_read_ahead_compile(monkeypatch):
    monkeypatch.setattr(layers, "programs_ahead", lambda upcoming, threads: 5)
    for name in ("_rms_norm_forward_kernel", "_swiglu_forward_kernel"):
        monkeypatch.setattr(layers, name, Launched(getattr(layers, name)))
    x, weight = torch.randn(2, 4, 1024).bfloat16()
    layers.rms_norm_forward(x, weight[0], 1e-5, x, weight)
    layers.swiglu_forward(x, x, weight)
    for kernel in (layers._rms_norm_forward_kernel, layers._swiglu_forward_kernel):
        assert "cp.async.bulk.prefetch.L2.global [%rd" in kernel.compile(90).asm["ptx"]


def test_only_a_weight_that_comes_is_read_ahead_and_of_that_the_beginning(monkeypatch):
    monkeypatch.setattr(launch, "is_hopper", lambda device: True)
    program = 256 * launch.CHUNK.value
    assert launch.programs_ahead(None, 256) == 0
    for size, programs in ((program - 1, 0), (5 * program, 5), (2 * launch.AHEAD, launch.AHEAD // program)):
        assert launch.programs_ahead(torch.empty(size, dtype=torch.uint8), 256) == programs


@in_interpreter
def test_kernels_with_no_rows():
    y, total = layers.rms_norm_forward(torch.empty(0, 64), torch.ones(64), 1e-6, torch.empty(0, 64))
    assert y.shape == total.shape == (0, 64)
    dx, dw = layers.rms_norm_backward(total, torch.ones(64), 1e-6, y, None)
    assert dx.shape == (0, 64) and dw.tolist() == [0.0] * 64
    assert layers.swiglu_forward(torch.empty(0, 8), torch.empty(0, 8)).shape == (0, 8)


def test_bf16_rounds_once():
    """The norm of a bf16 row is within half a unit in the last place of the exact answer."""
    torch.manual_seed(0)
    x, weight = torch.randn(64, 256).bfloat16(), torch.randn(256)
    exact = plain_rms_norm(x.double(), weight.double(), 1e-6)
    assert torch.equal(layers.rms_norm(x, weight, 1e-6), exact.bfloat16()) or (
        (layers.rms_norm(x, weight, 1e-6) != exact.bfloat16()).float().mean() < 1e-3
    )
    gate, up = torch.randn(4096).bfloat16(), torch.randn(4096).bfloat16()
    exact = F.silu(gate.double()) * up.double()
    assert (layers.swiglu(gate, up) != exact.bfloat16()).float().mean() < 1e-3
