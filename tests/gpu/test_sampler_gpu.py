"""The sampler on a GPU: kernels against float64, CUDA graphs against the CPU, memory, and what bf16 does to logprobs."""

import gc
import random

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

from nanotriton import vmm
from nanotriton.kernels import decode, sample
from nanotriton.kernels.decode import decode_attention
from nanotriton.kernels.logprob import token_logprobs
from nanotriton.kernels.place import place
from nanotriton.sampler.sampler import Request, Sampler
from nanotriton.transformer.attention import packed
from tests.test_decode import CASES, HEAD_SIZES, groups_of, make_case, reference, relative_error
from tests.test_place import check as check_place
from tests.test_place import make as make_place
from tests.test_sampler import chi_square_z, make_model, prompts

LONG = {"long": ([16, 3], [700, 1200], [1 + 37 * i for i in range(19)]), "one long": ([1], [4000], [2000])}


@pytest.mark.parametrize("dtype, limit", [(torch.float32, 1e-5), (torch.bfloat16, 3e-3)])
@pytest.mark.parametrize("heads, kv_heads, dim", [(9, 3, 64), (28, 4, 128)])
@pytest.mark.parametrize("splits", [1, 4])
def test_decode_attention(heads, kv_heads, dim, dtype, limit, splits, monkeypatch):
    for sizes, lengths, tails in (CASES | LONG).values():
        per_tile = max(64 * kv_heads // heads, 1) if max(sizes) > 1 else 1
        monkeypatch.setattr(decode, "_splits", lambda units, programs: splits)
        made = make_case(
            sizes,
            lengths,
            tails,
            heads=heads,
            kv_heads=kv_heads,
            dim=dim,
            page=64,
            per_tile=per_tile,
            dtype=dtype,
            device="cuda",
            spread=True,
        )
        out = decode_attention(*made)
        assert relative_error(out, reference(*made, groups_of(sizes, len(tails)))) < limit
        assert not out[torch.tensor(tails, device="cuda") == 0].any()


@pytest.mark.parametrize("heads, kv_heads", [(4, 4), (14, 2)])
@pytest.mark.parametrize("dim", [*HEAD_SIZES, 100])
def test_decode_attention_takes_any_head_size(dim, heads, kv_heads, monkeypatch):
    shape = dict(heads=heads, kv_heads=kv_heads, dim=dim, page=64)
    shape |= dict(dtype=torch.bfloat16, device="cuda", spread=True)
    for sizes, lengths, tails in (CASES["padding"], CASES["padding, ungrouped"], LONG["long"]):
        for splits in (1, 4):
            monkeypatch.setattr(decode, "_splits", lambda units, programs, splits=splits: splits)
            per_tile = max(64 * kv_heads // heads, 1) if max(sizes) > 1 else 1
            made = make_case(sizes, lengths, tails, per_tile=per_tile, **shape)
            out = decode_attention(*made)
            assert relative_error(out, reference(*made, groups_of(sizes, len(tails)))) < 3e-3
            assert not out[torch.tensor(tails, device="cuda") == 0].any()


def test_decode_attention_takes_the_scratch_models_heads_in_fp32():
    sizes, lengths, tails = CASES["ragged groups"]
    made = make_case(sizes, lengths, tails, heads=4, kv_heads=4, dim=32, page=64, per_tile=64, device="cuda")
    assert relative_error(decode_attention(*made), reference(*made, groups_of(sizes, len(tails)))) < 1e-5


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 5e-2)])
@pytest.mark.parametrize("norm, rotate", [(True, True), (False, True), (False, False)])
@pytest.mark.parametrize("heads, kv_heads, dim", [(9, 3, 64), (32, 8, 128), (28, 4, 80), (4, 4, 256)])
def test_place(heads, kv_heads, dim, norm, rotate, dtype, tolerance):
    made = make_place(heads, kv_heads, dim, dtype=dtype, device="cuda", norm=norm, rotate=rotate)
    check_place(place, made, tolerance)


@pytest.mark.parametrize("vocab, valid", [(151_936, 151_669), (512, 512), (32_000, 32_000)])
def test_the_sampling_kernels_equal_the_twin(vocab, valid):
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(200, vocab, generator=generator)
    temperature = torch.tensor([0.0, 1.0, 0.5, 2.0]).repeat(50)
    u = torch.rand(200, generator=generator, dtype=torch.float64)
    tokens, logprobs = (
        x.cpu() for x in sample.sample_tokens(logits.cuda(), temperature.cuda(), u.cuda(), valid)
    )
    expected, expected_logprobs = sample.sample_tokens(logits, temperature, u, valid)
    same = tokens == expected
    # sums in another order: u may fall next door
    assert same[temperature == 0].all() and same.float().mean() > 0.99
    assert torch.allclose(logprobs[same], expected_logprobs[same], atol=2e-5)
    assert int(tokens.max()) < valid
    k, p = torch.full((200,), 50), torch.full((200,), 0.9)
    tokens, logprobs = (
        x.cpu()
        for x in sample.sample_tokens(logits.cuda(), temperature.cuda(), u.cuda(), valid, k.cuda(), p.cuda())
    )
    expected, expected_logprobs = sample.sample_tokens(logits, temperature, u, valid, k, p)
    same = tokens == expected
    assert same.float().mean() > 0.99
    assert torch.allclose(logprobs[same], expected_logprobs[same], atol=2e-5)


def test_the_sampling_kernels_follow_the_distribution():
    logits = torch.randn(1, 9000, generator=torch.Generator().manual_seed(1)) * 3
    u = torch.rand(200_000, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    counts = torch.zeros(9000)
    for part in u.split(20_000):
        n = len(part)
        tokens, _ = sample.sample_tokens(
            logits.cuda().expand(n, -1).contiguous(), torch.ones(n, device="cuda"), part.cuda()
        )
        counts += torch.bincount(tokens.cpu(), minlength=9000)
    assert abs(chi_square_z(counts, 200_000 * logits[0].double().softmax(-1))) < 4


def gpu_model(family: str, **changes) -> torch.nn.Module:
    shape = dict(hidden_size=256, num_attention_heads=4, head_dim=64, max_position_embeddings=1024)
    return make_model(family, **shape | changes)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_fp32_equals_the_cpu(family):
    """Greedy and sampled, through graphs, groups, stops and preemption: the tokens of the CPU, and its logprobs."""
    rng = random.Random(0)
    model = gpu_model(family)
    ids = prompts([1, 63, 64, 65, 130, 200, 7, 31])
    requests = [
        Request(
            p,
            n=1 + 3 * (i % 3),
            max_tokens=rng.randint(1, 150),
            temperature=t,
            stop_ids=frozenset([5] if t else []),
            seeds=list(range(1 + 3 * (i % 3))),
        )
        for i, p in enumerate(ids)
        for t in (0, 1)
    ]
    expected = Sampler(model, kv_gib=1).generate(requests)
    model = model.cuda()
    roomy = Sampler(model, kv_gib=0.5)
    tight = Sampler(model, kv_gib=(9 * roomy.kv.page_bytes + vmm.GRANULE) / 2**30, max_batch=20)
    for sampler in (roomy, tight):
        got = sampler.generate(requests)
        pairs = [(a, b) for x, y in zip(expected, got) for a, b in zip(x, y)]
        assert sum(a.ids == b.ids for a, b in pairs) >= len(pairs) - 1  # one may meet a near-tie
        for a, b in pairs:
            if a.ids == b.ids:
                assert a.finish_reason == b.finish_reason
                assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)
    assert tight.stats["preemptions"] > 0


def test_top_p_has_a_graph_of_its_own():
    model = gpu_model("llama").cuda()
    out = Sampler(model, kv_gib=0.5).generate(
        [Request([1, 2, 3], n=8, max_tokens=20, top_k=1), Request([1, 2, 3], max_tokens=20, temperature=0)]
    )
    assert all(s.ids == out[1][0].ids for s in out[0])
    assert all(abs(x) < 1e-6 for s in out[0] for x in s.logprobs)


@pytest.mark.parametrize("head_dim", [16, 32, 64, 80, 192, 256])
def test_bf16_logprobs_are_near_the_trainers(head_dim):
    model = gpu_model("qwen3", head_dim=head_dim).cuda().bfloat16()
    model.compute_dtype = torch.bfloat16
    requests = [Request(p, n=8, max_tokens=100) for p in prompts([100, 200, 300])]
    gaps = []
    for request, group in zip(requests, Sampler(model, kv_gib=0.5).generate(requests)):
        for s in group:
            ids = torch.tensor(request.prompt_ids + s.ids, device="cuda")
            attend = packed(torch.tensor([0, len(ids)], dtype=torch.int32, device="cuda"), len(ids))
            hidden = model(ids, torch.arange(len(ids), device="cuda"), attend)[
                len(request.prompt_ids) - 1 : -1
            ]
            logp, _ = token_logprobs(hidden, model.head_weight, ids[len(request.prompt_ids) :])
            gaps.append((logp.cpu() - torch.tensor(s.logprobs)).abs())
    gaps = torch.cat(gaps)
    assert gaps.mean() < 0.02 and gaps.max() < 0.3


def test_nothing_grows_and_free_gives_memory_back(card_alone):
    model = gpu_model("llama").cuda()
    gc.collect()
    torch.cuda.empty_cache()  # what the tests before this one have left
    empty = torch.cuda.mem_get_info()[0]
    sampler = Sampler(model, kv_fraction=0.2)
    assert 0.19 * empty < sampler.kv.data.nbytes <= 0.2 * empty
    requests = [Request([1, 2, 3], n=4, max_tokens=5), Request([4, 5], max_tokens=9)]
    used = []
    for turn in range(50):
        sampler.generate(requests)
        sampler.update_weights(model)
        if turn in (1, 49):
            torch.cuda.synchronize()
            used.append(
                (torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), len(sampler.graphs.captured))
            )
    assert used[0] == used[1]
    greedy = [Request([1, 2, 3], max_tokens=9, temperature=0)]
    first, address, held = (
        sampler.generate(greedy)[0][0].ids,
        sampler.kv.data.data_ptr(),
        torch.cuda.mem_get_info()[0],
    )
    graphs = dict(sampler.graphs.captured)
    sampler.free()
    assert torch.cuda.mem_get_info()[0] - held > 0.19 * empty
    assert sampler.generate(greedy)[0][0].ids == first  # through the graphs of before
    assert sampler.kv.data.data_ptr() == address and sampler.graphs.captured == graphs
    sampler.free()
    training = torch.empty(int(0.9 * empty), dtype=torch.uint8, device="cuda")
    assert sampler.generate(greedy)[0][0].ids == first  # in a smaller cache, with graphs of its own
    if card_alone:
        assert sampler.kv.data.nbytes < 0.1 * empty
    del training
    with pytest.raises(MemoryError, match="has not"):
        Sampler(model, kv_gib=1000)
    del sampler
    gc.collect()
    if card_alone:
        assert empty - torch.cuda.mem_get_info()[0] < 2**28


def test_one_sampler_after_another_takes_no_more_than_one(card_alone):
    """close() gives back the KV memory, the graphs' pool and the model, without a collection of cycles."""
    greedy = [Request([1, 2, 3], n=4, max_tokens=9, temperature=0), Request([4, 5], max_tokens=9, top_k=3)]

    def one_after_another() -> list[int]:
        model = gpu_model("llama").cuda()
        with Sampler(model, kv_gib=0.25) as sampler:
            ids = sampler.generate(greedy)[0][0].ids
            assert sampler.graphs.captured and sampler.kv.data.nbytes > 2**27
        return ids

    expected = one_after_another()  # leaves cuBLAS's workspaces and the kernels' code, once for the process
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.synchronize()
    allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    free = torch.cuda.mem_get_info()[0]
    gc.disable()
    try:
        for _ in range(3):
            assert one_after_another() == expected
            torch.cuda.synchronize()
            torch.cuda.empty_cache()  # the model went last, after close() had emptied torch's cache
            assert torch.cuda.memory_allocated() == allocated
            assert torch.cuda.memory_reserved() <= reserved
    finally:
        gc.enable()
    if card_alone:  # torch's allocator knows nothing of the KV memory
        assert free - torch.cuda.mem_get_info()[0] < 2**26
