"""nanotriton/kernels/logprob.py on the CPU: the torch twin against plain autograd, the Triton rows against the twin."""

import pytest
import torch

from nanotriton.kernels import logprob
from nanotriton.kernels.logprob import token_logprobs


def case(tokens=23, vocab=40, width=8, dtype=torch.float64, seed=0):
    g = torch.Generator().manual_seed(seed)
    hidden = torch.randn(tokens, width, generator=g, dtype=torch.float64)
    weight = torch.randn(vocab, width, generator=g, dtype=torch.float64)
    targets = torch.randint(0, vocab - 6, (tokens,), generator=g)
    gradients = torch.randn(2, tokens, generator=g, dtype=torch.float64)
    return hidden.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_(), targets, gradients


def plain(hidden, weight, targets, temperature=1.0, valid=None):
    """The definition, by autograd, with all logits in memory, in float64."""
    z = (hidden.double() @ weight.double().T) / temperature
    log_p = z[:, :valid].log_softmax(1)
    return log_p.gather(1, targets[:, None])[:, 0], -(log_p.exp() * log_p).sum(1)


def gradients(outputs, inputs, upstream):
    return torch.autograd.grad(outputs, inputs, [u.to(o.dtype) for u, o in zip(upstream, outputs)])


@pytest.mark.parametrize("rows", [1000, 7, 1])  # one chunk that is kept; several that are made again
@pytest.mark.parametrize("temperature,valid", [(1.0, None), (0.7, None), (1.3, 36)])
def test_values_and_gradients_are_those_of_the_definition(monkeypatch, rows, temperature, valid):
    monkeypatch.setattr(logprob, "CPU_BYTES", rows * 4 * (valid or 40))
    hidden, weight, targets, up = case()
    ours = token_logprobs(hidden, weight, targets, temperature, valid)
    reference = plain(hidden, weight, targets, temperature, valid)
    for a, b in zip(ours, reference):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    for a, b in zip(gradients(ours, (hidden, weight), up), gradients(reference, (hidden, weight), up)):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)
        assert a.abs().max() > 0.1


def test_kept_logits_change_nothing_and_serve_one_backward(monkeypatch):
    """A second backward of the same graph makes them again, as the first may have written over them."""
    monkeypatch.setattr(logprob, "CPU_BYTES", 7 * 4 * 40)
    hidden, weight, targets, up = case()
    made = []
    monkeypatch.setattr(logprob, "_logits", lambda *a, made_of=logprob._logits: made.append(1) or made_of(*a))
    again = gradients(token_logprobs(hidden, weight, targets), (hidden, weight), up)
    assert len(made) == 4 + 4  # chunks of the forward and of the backward
    made.clear()
    kept = token_logprobs(hidden, weight, targets, keep_logits=True)
    for count in (1, 1 + 4):
        found = torch.autograd.grad(kept, (hidden, weight), list(up), retain_graph=True)
        for a, b in zip(found, again):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
        assert len(made) == count
    with torch.no_grad():  # nobody will ask for them
        made.clear()
        token_logprobs(hidden, weight, targets, keep_logits=True)
        assert len(made) == 4


def test_the_gradient_passes_gradcheck_and_each_output_can_be_used_alone():
    hidden, weight, targets, up = case(tokens=5)
    assert torch.autograd.gradcheck(lambda h, w: token_logprobs(h, w, targets, 0.8, 38), (hidden, weight))
    for i in (0, 1):
        ours = token_logprobs(hidden, weight, targets)[i]
        reference = plain(hidden, weight, targets)[i]
        for a, b in zip(
            gradients([ours], (hidden, weight), up[i : i + 1]),
            gradients([reference], (hidden, weight), up[i : i + 1]),
        ):
            torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


def test_without_entropy_there_is_none_and_the_rest_is_the_same():
    hidden, weight, targets, up = case()
    logp, entropy = token_logprobs(hidden, weight, targets, entropy=False)
    assert entropy is None
    assert torch.equal(logp, token_logprobs(hidden, weight, targets)[0])
    (grad,) = gradients([logp], [weight], up)
    torch.testing.assert_close(grad, gradients([plain(hidden, weight, targets)[0]], [weight], up)[0])


def test_only_what_needs_a_gradient_gets_one():
    hidden, weight, targets, up = case()
    (full,) = gradients(token_logprobs(hidden, weight, targets), [hidden], up)
    frozen = gradients(token_logprobs(hidden, weight.detach(), targets), [hidden], up)[0]
    torch.testing.assert_close(full, frozen)
    with torch.no_grad():
        assert not token_logprobs(hidden, weight, targets)[0].requires_grad


def test_bf16_hidden_with_an_fp32_master_weight():
    """Logits in fp32 (bf16 ones are off by 1e-2), and the weight's gradient arrives unrounded."""
    hidden, weight, targets, up = case(64, 200, 32)
    low = hidden.detach().bfloat16().requires_grad_()
    master = weight.detach().bfloat16().float().requires_grad_()
    ours = token_logprobs(low, master, targets)
    reference = plain(low, master, targets)
    assert all(x.dtype == torch.float32 for x in ours)
    for a, b in zip(ours, reference):
        assert (a - b).abs().max() < 1e-5
    a, b = gradients(ours, (low, master), up), gradients(reference, (low, master), up)
    assert a[0].dtype == torch.bfloat16 and a[1].dtype == torch.float32
    for x, y in zip(a, b):  # dz is rounded to bf16 once: 2^-9 relative to the largest
        assert (x - y).abs().max() < 4e-3 * y.abs().max()


def test_targets_out_of_range_and_no_tokens():
    hidden, weight, targets, up = case()
    targets[3], targets[4], targets[5] = 39, -100, 50
    logp, entropy = token_logprobs(hidden, weight, targets, valid_vocab=38)
    assert logp.isneginf().nonzero().flatten().tolist() == [3, 4, 5] and entropy.isfinite().all()
    (grad,) = gradients([torch.where(logp.isfinite(), logp, 0.0)], [hidden], up)
    assert grad.isfinite().all() and (grad[3:6] == 0).all()
    logp, entropy = token_logprobs(hidden[:0], weight, targets[:0], keep_logits=True)
    (grad,) = torch.autograd.grad((logp + entropy).sum(), weight)
    assert logp.shape == entropy.shape == (0,) and (grad == 0).all()


def test_huge_logits_keep_their_digits():
    hidden, weight, targets, _ = case(dtype=torch.float32)
    ours = token_logprobs(hidden * 200, weight, targets)
    for a, b in zip(ours, plain(hidden * 200, weight, targets)):
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-3)


@pytest.mark.interpreted
@pytest.mark.parametrize(
    ("vocab", "valid", "temperature", "dtype"),
    [(300, 300, 1.0, torch.float32), (5000, 4987, 0.7, torch.float32), (5000, 4987, 0.7, torch.bfloat16)],
)
def test_the_triton_rows_equal_the_torch_rows(vocab, valid, temperature, dtype):
    torch.manual_seed(0)
    n = 3
    z = torch.randn(n, vocab) * 5
    z[1] -= 80
    targets = torch.tensor([2, valid - 1, valid])
    grads = torch.randn(2, n)
    a, b = torch.full((3, n + 1), 9.0)[:, :n], torch.zeros(3, n)
    logprob.rows_forward(z.clone(), targets, a, temperature, valid)
    logprob.rows_forward_torch(z[:, :valid] / temperature, targets, b, True)
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    ours = logprob.rows_backward(z.clone(), targets, b, grads, temperature, valid, dtype)
    twin = logprob.rows_backward_torch(z[:, :valid] / temperature, targets, b, grads, temperature, True)
    assert ours.dtype == dtype and (ours[:, valid:] == 0).all() and twin.abs().max() > 0.1
    torch.testing.assert_close(
        ours[:, :valid], twin.to(dtype), rtol=1e-5 if dtype == torch.float32 else 8e-3, atol=1e-6
    )


@pytest.mark.parametrize("wrong", [{"temperature": 0.0}, {"valid_vocab": 41}, {"valid_vocab": 0}])
def test_bad_arguments_are_one_clear_line(wrong):
    hidden, weight, targets, _ = case()
    with pytest.raises(ValueError) as error:
        token_logprobs(hidden, weight, targets, **wrong)
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match=r"targets \[T\], not \[23, 8\]"):
        token_logprobs(hidden, weight, targets[1:])
