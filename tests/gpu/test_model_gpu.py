"""On a GPU: compiled kernels against their twins, attention backends, bf16 error against transformers', a real-size folder."""

import sys
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)
transformers = pytest.importorskip("transformers")

sys.path.append(str(Path(__file__).parents[1]))
from test_attention import cumulative, plain  # noqa: E402
from test_model import CASES, copy_of, logits, make_hf, relative  # noqa: E402

from nanotriton.kernels import heads, layers  # noqa: E402
from nanotriton.transformer import attention  # noqa: E402
from nanotriton.transformer.model import Transformer  # noqa: E402
from nanotriton.transformer.model_config import ModelConfig  # noqa: E402
from nanotriton.transformer.weights import load_model, save_model  # noqa: E402

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
UNIT = {torch.float32: 2e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}  # about two units in the last place


@pytest.fixture(autouse=True)
def no_tf32():
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(0)


def randn(*shape, dtype=torch.float32):
    return torch.randn(*shape, device="cuda", dtype=dtype)


def close(got, want, dtype):
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(
            a.float(),
            b.float(),
            rtol=UNIT[dtype],
            atol=UNIT[dtype] * max(1.0, b.float().abs().max().item() / 16),
        )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("rows", "n"), [(1, 64), (333, 576), (1000, 4096), (5000, 128), (64, 5120), (3, 8192)]
)
@pytest.mark.parametrize("residual", [False, True])
def test_rms_norm(dtype, rows, n, residual):
    x, weight, dy = randn(rows, n, dtype=dtype), randn(n), randn(rows, n, dtype=dtype)
    extra, dtotal = (randn(rows, n, dtype=dtype), randn(rows, n, dtype=dtype)) if residual else (None, None)
    got = layers.rms_norm_forward(x, weight, 1e-6, extra)
    close(got, layers.rms_norm_forward_torch(x, weight, 1e-6, extra), dtype)
    dx, dw = layers.rms_norm_backward(got[1], weight, 1e-6, dy, dtotal)
    dx2, dw2 = layers.rms_norm_backward_torch(got[1], weight, 1e-6, dy, dtotal)
    close([dx], [dx2], dtype)
    assert dw.dtype == torch.float32 and relative(dw, dw2) < 1e-5  # fp32 sums, whatever the activations are
    half = layers.rms_norm_backward(got[1], weight.bfloat16(), 1e-6, dy, dtotal)[1]
    assert half.dtype == torch.bfloat16 and relative(half.float(), dw2) < 4e-3  # rounded once, at the end


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("count", "kv_count", "dim"), [(32, 8, 128), (9, 3, 64), (1, 1, 48), (40, 8, 96)])
@pytest.mark.parametrize(("norm", "rotate"), [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("tokens", [257, 3000])
def test_heads(dtype, count, kv_count, dim, norm, rotate, tokens):
    q, dq = randn(2, tokens, count, dim, dtype=dtype)
    k, dk = randn(2, tokens, kv_count, dim, dtype=dtype)
    angles = randn(tokens, dim // 2) * 9
    tables = (angles.cos(), angles.sin()) if rotate else (None, None)
    given = (q, k, *(randn(2, dim) if norm else (None, None)), 1e-6, *tables)
    low = (dq, dk, q, k)
    exact = [x.float() for x in low]
    got = (*heads.heads_forward(*given), *heads.heads_backward(dq, dk, *given))
    twin = (*heads.heads_forward_torch(*given), *heads.heads_backward_torch(dq, dk, *given))
    true = (
        *heads.heads_forward_torch(*exact[2:], *given[2:]),
        *heads.heads_backward_torch(*exact, *given[2:]),
    )
    for mine, rounded, right in zip(got[:4], twin[:4], true[:4], strict=True):
        assert mine.dtype == dtype
        # the twin's backward rounds between rotation and norm, too
        assert relative(mine.float(), right) <= 1.1 * relative(rounded.float(), right) + 1e-6
    if norm:
        for mine, right in zip(got[4:], true[4:], strict=True):
            assert mine.dtype == torch.float32 and relative(mine, right) < 1e-4


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1,), (77, 1536), (1000, 12288)])
def test_swiglu(dtype, shape):
    gate, up, dout = (randn(*shape, dtype=dtype) * 3 for _ in range(3))
    close([layers.swiglu_forward(gate, up)], [layers.swiglu_forward_torch(gate, up)], dtype)
    close(layers.swiglu_backward(gate, up, dout), layers.swiglu_backward_torch(gate, up, dout), dtype)


@pytest.mark.parametrize("rows", [1, 200])
def test_reading_ahead_changes_nothing(rows):
    x, extra, weight = randn(rows, 1024), randn(rows, 1024), randn(1024)
    upcoming = randn(3000, 1024)
    kept = upcoming.clone()
    got = layers.rms_norm_forward(x, weight, 1e-6, extra, upcoming)
    assert all(map(torch.equal, got, layers.rms_norm_forward(x, weight, 1e-6, extra)))
    assert torch.equal(layers.swiglu_forward(x, extra, upcoming), layers.swiglu_forward(x, extra))
    assert torch.equal(upcoming, kept)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_parts_of_a_wider_product(dtype):
    q, k, _ = (
        part.view(257, -1, 128) for part in randn(257, 48 * 128, dtype=dtype).split([4096, 1024, 1024], -1)
    )
    weight, angles = randn(128), randn(257, 64) * 9
    for x in (q, k):
        close(
            layers.rms_norm_forward(x, weight, 1e-6, None)[:1],
            layers.rms_norm_forward_torch(x, weight, 1e-6, None)[:1],
            dtype,
        )
    given = (weight, weight, 1e-6, angles.cos(), angles.sin())
    for mine, whole in zip(
        heads.heads_forward(q, k, *given),
        heads.heads_forward(q.contiguous(), k.contiguous(), *given),
        strict=True,
    ):
        assert torch.equal(mine, whole)
    gate, up = randn(77, 2 * 1536, dtype=dtype).chunk(2, -1)
    close([layers.swiglu_forward(gate, up)], [layers.swiglu_forward_torch(gate, up)], dtype)


def test_more_than_2_to_the_31_elements():
    """Offsets are 64-bit: the last rows of a tensor of over 2^31 elements are right."""
    rows, n = 2**31 // 8192 + 8, 8192
    x = torch.zeros(rows, n, device="cuda", dtype=torch.bfloat16)
    x[-3:] = randn(3, n, dtype=torch.bfloat16)
    weight = torch.ones(n, device="cuda")
    y, _ = layers.rms_norm_forward(x, weight, 1e-6, None)
    close([y[-3:]], [layers.rms_norm_forward_torch(x[-3:], weight, 1e-6, None)[0]], torch.bfloat16)
    del y
    out = layers.swiglu_forward(x, x)
    close([out[-3:]], [layers.swiglu_forward_torch(x[-3:], x[-3:])], torch.bfloat16)


@pytest.mark.parametrize("heads", [(8, 8), (8, 2)])
@pytest.mark.parametrize("lengths", [[128], [300, 5, 77, 1, 512], [64] * 20], ids=["one", "mixed", "equal"])
@pytest.mark.parametrize("backend", [None, "varlen", "sdpa", "flash2", "flash4"])
def test_attention_backends(backend, lengths, heads):
    if backend in ("flash2", "flash4"):
        try:
            attention.LOADERS[backend]()
        except (ImportError, OSError, AttributeError) as error:
            pytest.skip(f"{backend}: {error}")
    inputs = [
        randn(sum(lengths), h, 64, dtype=torch.bfloat16).requires_grad_()
        for h in (heads[0], heads[1], heads[1])
    ]
    exact = [x.detach().double().requires_grad_() for x in inputs]
    want = plain(*(x.cpu() for x in exact), lengths).cuda()
    out = attention.packed(cumulative(lengths).cuda(), max(lengths), backend)(0, *inputs)
    assert relative(out.double(), want) < 5e-3
    weight = torch.randn_like(want)
    got = torch.autograd.grad((out * weight).sum(), inputs)
    for mine, true in zip(got, torch.autograd.grad((want * weight).sum(), exact), strict=True):
        assert relative(mine.double(), true) < 1e-2


@pytest.mark.parametrize("dim", [16, 32, 80, 96, 100, 128, 160, 192, 256])
def test_attention_takes_any_head_size(dim):
    lengths = [130, 5, 77, 1]
    inputs = [randn(sum(lengths), h, dim, dtype=torch.bfloat16).requires_grad_() for h in (4, 2, 2)]
    exact = [x.detach().double().requires_grad_() for x in inputs]
    want = plain(*(x.cpu() for x in exact), lengths).cuda()
    out = attention.packed(cumulative(lengths).cuda(), max(lengths))(0, *inputs)
    assert relative(out.double(), want) < 5e-3
    weight = torch.randn_like(want)
    got = torch.autograd.grad((out * weight).sum(), inputs)
    for mine, true in zip(got, torch.autograd.grad((want * weight).sum(), exact), strict=True):
        assert relative(mine.double(), true) < 1e-2


@pytest.mark.parametrize("name", CASES)
def test_fp32_is_the_cpus(name):
    hf = make_hf(name)
    model, lengths = copy_of(hf), (30, 1, 57)
    ids, positions, cu = (
        torch.randint(0, 97, (88,)),
        torch.cat([torch.arange(n) for n in lengths]),
        cumulative(lengths),
    )
    want = logits(model, ids, positions, cu)
    got = logits(model.cuda(), ids.cuda(), positions.cuda(), cu.cuda())
    assert relative(got.cpu(), want) < 1e-5


@pytest.mark.parametrize("name", CASES)
def test_bf16_errs_no_more_than_transformers(name):
    """Relative error of logits and of all gradients together against fp32, at most 1.1 times transformers' own."""
    more = {} if name == "qwen2" else {"head_dim": 64}
    if name == "smollm3":
        more |= {"no_rope_layers": [1, 0] * 4}  # one number for each layer
    hf = make_hf(
        name,
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        **more,
    ).cuda()
    with torch.no_grad():
        for p in hf.parameters():
            if p.ndim > 1:
                p.mul_(0.2)  # 0.04: the scale of a trained model of this width
    # transformers leaves the padding token, 0 in SmolLM3's case, out of the embedding's gradient
    ids = torch.randint(1, 97, (512,), device="cuda")
    positions, cu = torch.arange(512, device="cuda"), cumulative([512]).cuda()
    loss = torch.nn.functional.cross_entropy

    def errors(run, module, dtype):
        out = run(module).float()
        module.zero_grad()
        loss(out, ids.roll(-1)).backward()
        grads = {k: p.grad.float().clone() for k, p in module.named_parameters()}
        return out.detach(), torch.cat([grads[k].flatten() for k in sorted(grads)])

    def theirs(m):
        return m(ids[None]).logits[0]

    exact, exact_grad = errors(theirs, hf, torch.float32)
    mine, my_grad = errors(
        lambda m: logits(m, ids, positions, cu), copy_of(hf, compute_dtype=torch.bfloat16).cuda(), None
    )
    half, half_grad = errors(theirs, hf.bfloat16(), torch.bfloat16)
    ours, reference = relative(mine, exact), relative(half, exact)
    ours_grad, reference_grad = relative(my_grad, exact_grad), relative(half_grad, exact_grad)
    print(
        f"\n{name}: logits {ours:.5f} (transformers {reference:.5f}), gradients {ours_grad:.5f} ({reference_grad:.5f})"
    )
    assert ours <= 1.1 * reference
    assert ours_grad <= 1.1 * reference_grad


def test_checkpointing_changes_rounding_alone():
    """A layer that is recomputed adds its last change by itself, so the backward rounds to bf16 once more."""
    model = copy_of(make_hf("qwen3"), compute_dtype=torch.bfloat16).cuda()
    ids, positions, cu = (
        torch.arange(90, device="cuda"),
        torch.arange(90, device="cuda"),
        cumulative([90]).cuda(),
    )
    grads = []
    for count in (0, 1, 2):
        model.checkpoint_layers = count
        model.zero_grad()
        logits(model, ids, positions, cu).square().mean().backward()
        grads.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert max(relative(grads[1], grads[0]), relative(grads[2], grads[0])) < 0.02  # bf16; 0.006 on an H200


def test_a_folder_of_real_size_goes_both_ways(tmp_path):
    """Qwen3-0.6B's shape: save, load in transformers, same logits; load here and save again, same bytes."""
    config = ModelConfig(
        "qwen3",
        vocab_size=151936,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        qk_norm=True,
        rope_theta=1e6,
        max_position_embeddings=40960,
        tie_word_embeddings=True,
        eos_token_ids=(151645, 151643),
    )
    with torch.device("meta"):
        model = Transformer(config)
    model.to(torch.bfloat16).to_empty(device="cuda")
    for p in model.parameters():
        p.data.normal_(0, 0.02) if p.ndim > 1 else p.data.normal_(1, 0.1)
    save_model(model, tmp_path / "a", shard_bytes=500_000_000)
    ids = torch.randint(0, config.vocab_size, (200,), device="cuda")
    ours, _ = load_model(tmp_path / "a", torch.float32, "cuda")
    hf = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "a", dtype=torch.float32).cuda()
    with torch.no_grad():
        got = logits(ours, ids, torch.arange(200, device="cuda"), cumulative([200]).cuda())
        assert relative(got, hf(ids[None]).logits[0]) < 1e-5
    save_model(load_model(tmp_path / "a", torch.bfloat16, "cuda")[0], tmp_path / "b", shard_bytes=500_000_000)
    files = sorted(p.name for p in (tmp_path / "a").iterdir())
    assert sum(f.endswith(".safetensors") for f in files) == 3
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes(), file
