"""The kernel that norms, rotates and caches: its twin against plain formulas, the kernel against the twin."""

import pytest
import torch

from nanotriton.kernels import place as module
from nanotriton.kernels.place import place, place_cuda, place_torch
from tests.launched import Launched
from tests.test_heads import angles, plain_rope
from tests.test_layers import in_interpreter, plain_rms_norm

PAGE = 16


def make(heads=6, kv_heads=2, dim=16, tokens=5, dtype=torch.float32, device="cpu", norm=True, rotate=True):
    """(q, k, v, norms, rotation, k_cache, v_cache, page, offset): q, k and v are parts of one product's rows."""
    torch.manual_seed(0)
    sizes = [heads * dim, kv_heads * dim, kv_heads * dim]
    product = torch.randn(tokens, sum(sizes)).to(device, dtype)
    q, k, v = (part.view(tokens, -1, dim) for part in product.split(sizes, -1))
    q_weight, k_weight = torch.randn(2, dim).to(device, dtype)
    norms = (q_weight, k_weight, 1e-6) if norm else None
    rotation = tuple(x.to(device) for x in angles(tokens, dim // 2)) if rotate else None
    caches = torch.zeros(2, 4, kv_heads, PAGE, dim, dtype=dtype, device=device)
    page = torch.tensor([3, 0, 3, 1, 3])[:tokens].to(device)
    offset = torch.tensor([0, PAGE - 1, 1, 7, 2])[:tokens].to(device)
    return q, k, v, norms, rotation, *caches, page, offset


def copied(made):
    """The same once more, since q, k and the caches are written."""
    return [x.clone() if isinstance(x, torch.Tensor) else x for x in made]


def check(run, made, tolerance):
    """`run` against the twin: q, k and both caches."""
    expected = copied(made)
    want = place_torch(*expected)
    got = run(*made)
    for a, b in zip((*got, *made[5:7]), (*want, *expected[5:7]), strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("rotate", [True, False])
@pytest.mark.parametrize("norm", [True, False])
def test_the_twin_is_the_plain_formulas(norm, rotate):
    made = make(norm=norm, rotate=rotate)
    q, k, v, norms, rotation, k_cache, v_cache, page, offset = made
    if norm:
        q, k = plain_rms_norm(q, norms[0], norms[2]), plain_rms_norm(k, norms[1], norms[2])
    if rotate:
        q, k = plain_rope(q, k, *rotation)
    got = place(*made)
    torch.testing.assert_close(got, (q, k))
    for token, (p, o) in enumerate(zip(page.tolist(), offset.tolist())):
        torch.testing.assert_close(k_cache[p, :, o], k[token])
        assert torch.equal(v_cache[p, :, o], v[token])
    assert int((v_cache != 0).any(-1).sum()) == 5 * 2  # and nothing else was written


@in_interpreter
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("norm, rotate", [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("heads, kv_heads, dim", [(6, 2, 16), (3, 3, 24), (8, 1, 100)])
def test_the_kernel_equals_the_twin(heads, kv_heads, dim, norm, rotate, dtype):
    made = make(heads, kv_heads, dim, dtype=dtype, norm=norm, rotate=rotate)
    check(place_cuda, made, 1e-5 if dtype == torch.float32 else 2e-3)


@in_interpreter
def test_the_kernel_writes_q_and_k_where_they_were():
    made = make()
    got = place_cuda(*made)
    assert all(a.data_ptr() == b.data_ptr() for a, b in zip(got, made[:2]))


@pytest.mark.parametrize("norm, rotate", [(True, True), (False, False)])
def test_the_kernel_compiles(norm, rotate, monkeypatch):
    kernel = Launched(module._place_kernel)
    monkeypatch.setattr(module, "_place_kernel", kernel)
    place_cuda(*make(32, 8, 128, dtype=torch.bfloat16, norm=norm, rotate=rotate))
    assert kernel.compile(90).asm["cubin"]
