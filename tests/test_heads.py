"""The norm and rotation of q's and k's heads: the twins against plain formulas and autograd, the kernels against the twins.

The kernels run in Triton's interpreter, in the child of test_interpreted.py; tests/gpu runs the compiled ones.
"""

import pytest
import torch

from nanotriton.kernels import heads
from tests.launched import Launched
from tests.test_layers import in_interpreter, plain_rms_norm

WAYS = [(True, True), (True, False), (False, True)]  # (norm, rotate)


def plain_rope(q, k, cos, sin):
    def rotate(x):
        a, b = x.chunk(2, dim=-1)
        return (
            x * torch.cat((cos, cos), -1)[:, None]
            + torch.cat((-b, a), -1) * torch.cat((sin, sin), -1)[:, None]
        )

    return rotate(q), rotate(k)


def angles(tokens, half):
    a = torch.randn(tokens, half) * 3
    return a.cos(), a.sin()


def make(norm, rotate, count=6, kv_count=2, dim=16, tokens=5):
    """(dq, dk), and the arguments of heads_forward."""
    torch.manual_seed(0)
    q, dq = torch.randn(2, tokens, count, dim)
    k, dk = torch.randn(2, tokens, kv_count, dim)
    weights = torch.randn(2, dim) if norm else (None, None)
    tables = angles(tokens, dim // 2) if rotate else (None, None)
    return (dq, dk), (q, k, *weights, 1e-5, *tables)


@pytest.mark.parametrize("norm, rotate", WAYS)
def test_twin_matches_the_formula_and_its_gradient(norm, rotate):
    ups, (q, k, q_weight, k_weight, eps, cos, sin) = make(norm, rotate)
    leaves = [x for x in (q, k, q_weight, k_weight) if x is not None]
    ours = [x.clone().requires_grad_() for x in leaves]
    exact = [x.double().requires_grad_() for x in leaves]
    got = heads.norm_and_rotate(*ours[:2], (*ours[2:], eps) if norm else None, (cos, sin) if rotate else None)
    want = exact[:2]
    if norm:
        want = [plain_rms_norm(x, weight, eps) for x, weight in zip(exact[:2], exact[2:], strict=True)]
    if rotate:
        want = plain_rope(*want, cos.double(), sin.double())
    got_grads = torch.autograd.grad(got, ours, ups)
    want_grads = torch.autograd.grad(want, exact, [up.double() for up in ups])
    for a, b in zip((*got, *got_grads), (*want, *want_grads), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-5)


def test_a_model_without_norms_and_a_layer_without_rotation_change_nothing():
    q, k = torch.randn(2, 5, 4, 16)
    assert heads.norm_and_rotate(q, k, None, None) == (q, k)


@in_interpreter
@pytest.mark.parametrize("norm, rotate", WAYS)
@pytest.mark.parametrize("count, kv_count, dim", [(4, 2, 16), (9, 3, 24)])
@pytest.mark.parametrize("tokens", [6, 40])  # more than there are programs in the backward
def test_kernels_match_twins(norm, rotate, count, kv_count, dim, tokens):
    ups, given = make(norm, rotate, count, kv_count, dim, tokens)
    for got, want in (
        (heads.heads_forward(*given), heads.heads_forward_torch(*given)),
        (heads.heads_backward(*ups, *given), heads.heads_backward_torch(*ups, *given)),
    ):
        for a, b in zip(got, want, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-4)


@in_interpreter
@pytest.mark.parametrize("norm, rotate", WAYS)
def test_kernels_take_parts_of_a_wider_product_and_other_strides(norm, rotate):
    ups, (_, _, *given) = make(norm, rotate)
    wide = torch.randn(5, 16 * 10)
    parts = [part.view(5, -1, 16) for part in wide.split([96, 32, 32], -1)][:2]
    odd = [torch.randn(6, 5, 16).transpose(0, 1), torch.randn(5, 2, 32)[..., ::2]]
    for q, k in (parts, odd):
        assert not q.is_contiguous()
        got, want = heads.heads_forward(q, k, *given), heads.heads_forward_torch(q, k, *given)
        for a, b in zip(got, want, strict=True):
            assert a.is_contiguous()
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
        got = heads.heads_backward(*ups, q, k, *given)
        want = heads.heads_backward_torch(*ups, q.contiguous(), k.contiguous(), *given)
        for a, b in zip(got[:2], want[:2], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-4)


@in_interpreter
def test_no_tokens():
    ups, given = make(True, True, tokens=0)
    assert [len(x) for x in heads.heads_forward(*given)] == [0, 0]
    *_, q_weight_grad, k_weight_grad = heads.heads_backward(*ups, *given)
    assert q_weight_grad.tolist() == k_weight_grad.tolist() == [0.0] * 16


@pytest.mark.parametrize("norm, rotate", WAYS)
def test_kernels_compile_for_hopper(monkeypatch, norm, rotate):
    for name in ("_forward_kernel", "_backward_kernel"):
        monkeypatch.setattr(heads, name, Launched(getattr(heads, name)))
    ups, (q, k, q_weight, k_weight, eps, cos, sin) = make(norm, rotate, 32, 8, 128)
    low = [x if x is None else x.bfloat16() for x in (*ups, q, k)]
    given = (*low[2:], q_weight, k_weight, eps, cos, sin)
    heads.heads_forward(*given)
    heads.heads_backward(*low[:2], *given)
    for kernel in (heads._forward_kernel, heads._backward_kernel):
        compiled = kernel.compile(90)
        assert compiled.asm["ptx"] and not compiled.metadata.global_scratch_size


def test_bf16_gradients_of_the_weights_are_summed_in_fp32():
    """Many tokens that each add a little: a bf16 sum would stop growing."""
    q = torch.ones(4096, 1, 8).bfloat16()
    weight = torch.ones(8).bfloat16()
    *_, grad, _ = heads.heads_backward_torch(q, q, q, q, weight, weight, 0.0, None, None)
    assert grad.dtype == torch.bfloat16 and grad.tolist() == [4096.0] * 8
