"""On a GPU: the fused logprob head against float64, with chunks, odd sizes and every dtype."""

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

from nanotriton.kernels import logprob
from nanotriton.kernels.logprob import token_logprobs


@pytest.fixture(autouse=True)
def no_tf32():
    torch.backends.cuda.matmul.allow_tf32 = False


def reference(hidden, weight, targets, temperature, valid):
    z = hidden.double() @ weight.double().T / temperature
    log_p = z[:, :valid].log_softmax(1)
    return log_p.gather(1, targets[:, None])[:, 0], -(log_p.exp() * log_p).sum(1)


@pytest.mark.parametrize("chunk,keep", [(10_000, False), (64, False), (64, True)])
@pytest.mark.parametrize("vocab,valid", [(512, None), (5000, 4987), (50257, None)])
@pytest.mark.parametrize(
    "dtype,master",
    [
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.bfloat16),
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float16),
    ],
)
def test_values_and_gradients(monkeypatch, chunk, keep, vocab, valid, dtype, master):
    monkeypatch.setattr(logprob, "CUDA_BYTES", chunk * 4 * vocab)
    g = torch.Generator("cuda").manual_seed(0)
    tokens, width, temperature = 300, 256, 0.8
    hidden = torch.randn(tokens, width, device="cuda", generator=g).to(dtype).requires_grad_()
    weight = (
        (torch.randn(vocab, width, device="cuda", generator=g) * 0.2).to(dtype).to(master).requires_grad_()
    )
    targets = torch.randint(0, valid or vocab, (tokens,), device="cuda", generator=g)
    up = torch.randn(2, tokens, device="cuda", generator=g)

    ours = token_logprobs(hidden, weight, targets, temperature, valid, keep_logits=keep)
    truth = reference(hidden, weight, targets, temperature, valid)
    for a, b in zip(ours, truth):
        assert a.dtype == torch.float32 and (a - b).abs().max() < 1e-4
    ours_grad = torch.autograd.grad(ours, (hidden, weight), tuple(up))
    true_grad = torch.autograd.grad(truth, (hidden, weight), tuple(up.double()))
    for a, b, kind in zip(ours_grad, true_grad, (dtype, master)):
        assert a.dtype == kind
        assert (a - b).abs().max() < {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}[
            dtype
        ] * b.abs().max()
    if valid:
        assert (ours_grad[1][valid:] == 0).all()


def test_the_gradient_of_the_weight_is_summed_in_fp32(monkeypatch):
    """256 chunks that each add a little: a bf16 sum would stop growing."""
    monkeypatch.setattr(logprob, "CUDA_BYTES", 16 * 4 * 512)
    hidden = torch.ones(4096, 64, device="cuda", dtype=torch.bfloat16)
    weight = torch.zeros(512, 64, device="cuda", requires_grad=True)
    targets = torch.full((4096,), 7, device="cuda")
    (grad,) = torch.autograd.grad(token_logprobs(hidden, weight, targets)[0].sum(), weight)
    truth = torch.tensor(4096 * (1 - 1 / 512), device="cuda")
    assert (grad[7] - truth).abs().max() < 2e-3 * truth  # bf16's rounding of 1 - 1/512, and not of 4096 sums
    assert (grad[8] + 4096 / 512).abs().max() < 1e-3


def test_targets_out_of_range_and_no_tokens():
    hidden = torch.randn(4, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(300, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    logp, entropy = token_logprobs(
        hidden, weight, torch.tensor([-100, 0, 290, 1 << 40], device="cuda"), valid_vocab=280
    )
    assert logp.isneginf().tolist() == [True, False, True, True] and entropy.isfinite().all()
    logp, entropy = token_logprobs(hidden[:0], weight, torch.empty(0, dtype=torch.long, device="cuda"))
    (grad,) = torch.autograd.grad((logp + entropy).sum(), weight)
    assert (grad == 0).all()


def test_memory_is_bounded():
    """8,192 x 50,304 logits are 1.6 GB in fp32; with 100 MB of them at a time the peak stays near that."""
    hidden = torch.randn(8192, 256, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(50304, 256, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    targets = torch.zeros(8192, dtype=torch.long, device="cuda")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logprob, "CUDA_BYTES", 100_000_000)
        # cuBLAS's own workspace is allocated here
        token_logprobs(hidden, weight, targets)[0].sum().backward()
        hidden.grad = weight.grad = None
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        token_logprobs(hidden, weight, targets)[0].sum().backward()
        grown = torch.cuda.max_memory_allocated() - before
    # the gradients; hidden's is fp32 until its end
    assert grown < 120e6 + weight.numel() * 2 + hidden.numel() * 6
