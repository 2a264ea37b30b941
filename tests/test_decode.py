"""Decode attention: the torch twin against plain softmax attention in float64, and the Triton kernels in the interpreter."""

from types import SimpleNamespace

import pytest
import torch

from bench.speed import decode as benchmark
from nanotriton.kernels import decode, sample
from nanotriton.kernels.decode import DecodeBatch, decode_attention_torch
from tests.launched import Launched

# (samples of each group), prompt lengths, tail lengths by row; 0 is a padding row, in no group
CASES = {
    "one row": ([1], [1], [1]),
    "ungrouped": ([1, 1, 1, 1], [7, 16, 17, 33], [1, 16, 17, 40]),
    "a group": ([5], [16], [1, 15, 16, 17, 3]),
    "ragged groups": ([3, 1, 4], [40, 3, 16], [1, 2, 30, 16, 9, 9, 33, 1]),
    "padding": ([2, 1], [5, 20], [4, 18, 7, 0, 0]),
    "padding, ungrouped": ([1, 1, 1], [5, 20, 48], [4, 33, 16, 0]),
}


# that models have; and any other even number, 100 of OpenLLaMA 3B for one
HEAD_SIZES = (16, 32, 64, 80, 96, 128, 160, 192, 256)


def make_case(
    sizes,
    prompts,
    tails,
    *,
    heads,
    kv_heads,
    dim,
    page,
    per_tile,
    dtype=torch.float32,
    device="cpu",
    spread=False,
    seed=0,
):
    """q, k_cache, v_cache, batch: caches full of other people's values; pages dense, or `spread` over a larger cache."""
    generator = torch.Generator().manual_seed(seed)
    rows, count = len(tails), sum(-(-n // page) for n in prompts + tails) + 1
    total = 4 * count if spread else count
    ids = torch.randperm(total, generator=generator)[:count].tolist() if spread else list(range(count))
    width = max(-(-n // page) for n in prompts + tails) + 1
    tables = torch.zeros(2, max(rows, len(prompts)) + 1, width, dtype=torch.int32)
    slots = torch.randperm(rows, generator=generator).int()
    for table, lines, lengths in (
        (tables[0], slots.tolist(), tails),
        (tables[1], range(len(prompts)), prompts),
    ):
        for line, length in zip(lines, lengths):
            for j in range(-(-length // page)):
                table[line, j] = ids.pop()
    tiles, row = [], 0
    for group, size in enumerate(sizes):
        members = list(range(row, row + size))
        tiles += [(group, members[i : i + per_tile]) for i in range(0, size, per_tile)]
        row += size
    lengths = [prompts[group] for group, _ in tiles]
    if per_tile == 1:  # as a sampler pads: a tile a row, empty ones too
        spare = rows - len(tiles)
        tiles, lengths = tiles + [(len(prompts), [-1])] * spare, lengths + [0] * spare
    tile_rows = torch.tensor([m + [-1] * (per_tile - len(m)) for _, m in tiles], dtype=torch.int32)
    groups = torch.tensor([g for g, _ in tiles], dtype=torch.int32)
    lengths = torch.tensor(lengths, dtype=torch.int32)
    normal = lambda *shape: torch.randn(shape, generator=generator).to(dtype)
    q, k, v = normal(rows, heads, dim), normal(total, kv_heads, page, dim), normal(total, kv_heads, page, dim)
    batch = DecodeBatch(
        slots, torch.tensor(tails, dtype=torch.int32), tables[0], groups, lengths, tile_rows, tables[1]
    )
    if device != "cpu":
        q, k, v = q.to(device), k.to(device), v.to(device)
        batch = DecodeBatch(*(x.to(device) for x in list(vars(batch).values())[:7]))
    return q, k, v, batch


def reference(q, k_cache, v_cache, batch, group_of_row) -> torch.Tensor:
    """Each row by itself, in float64 on the CPU: its prompt's keys, then its tail's, one softmax."""
    heads, dim, (kv_heads, page) = *q.shape[1:], k_cache.shape[1:3]
    q, k_cache, v_cache = q.double().cpu(), k_cache.cpu(), v_cache.cpu()
    tail_table, prefix_table = batch.tail_table.cpu().long(), batch.prefix_table.cpu().long()
    prompt_len = dict(zip(batch.tile_group.tolist(), batch.tile_len.tolist()))
    out = torch.zeros_like(q)
    for row, (slot, tail) in enumerate(zip(batch.slot.tolist(), batch.tail_len.tolist())):
        if tail == 0:
            continue
        group = group_of_row[row]
        i, j = torch.arange(prompt_len[group]), torch.arange(tail)
        pages = torch.cat([prefix_table[group, i // page], tail_table[slot, j // page]])
        offsets = torch.cat([i % page, j % page])
        k, v = (
            x[pages, :, offsets].double().transpose(0, 1).repeat_interleave(heads // kv_heads, 0)
            for x in (k_cache, v_cache)
        )
        score = (k @ q[row, :, :, None])[..., 0] * dim**-0.5  # [heads, length]
        out[row] = (score.softmax(-1)[:, None] @ v)[:, 0]
    return out


def groups_of(sizes, rows):
    return [g for g, size in enumerate(sizes) for _ in range(size)] + [None] * (rows - sum(sizes))


def relative_error(out, expected) -> float:
    return float((out.double().cpu() - expected).norm() / expected.norm())


@pytest.mark.parametrize("spread", [False, True])
@pytest.mark.parametrize("heads, kv_heads, dim", [(4, 4, 32), (4, 2, 64), (6, 2, 64), (8, 1, 128)])
@pytest.mark.parametrize("case", CASES)
def test_the_twin_is_softmax_attention(case, heads, kv_heads, dim, spread):
    sizes, prompts, tails = CASES[case]
    made = make_case(
        sizes, prompts, tails, heads=heads, kv_heads=kv_heads, dim=dim, page=16, per_tile=4, spread=spread
    )
    out = decode_attention_torch(*made)
    expected = reference(*made, groups_of(sizes, len(tails)))
    assert relative_error(out, expected) < 1e-6
    assert not out[torch.tensor(tails) == 0].any()


@pytest.mark.parametrize("dim", [8, *HEAD_SIZES, 100])
def test_the_twin_takes_any_head_size(dim):
    sizes, prompts, tails = CASES["padding"]
    made = make_case(sizes, prompts, tails, heads=6, kv_heads=2, dim=dim, page=16, per_tile=4)
    assert (
        relative_error(decode_attention_torch(*made), reference(*made, groups_of(sizes, len(tails)))) < 1e-6
    )


def test_the_twin_reads_the_cache_in_place_when_it_is_dense():
    sizes, prompts, tails = CASES["ragged groups"]
    shape = dict(heads=4, kv_heads=2, dim=32, page=16, per_tile=4)
    for spread in (False, True):
        made = make_case(sizes, prompts, tails, **shape, spread=spread)
        decode_attention_torch(*made)
        assert isinstance(made[3].cache["twin"].tail.ids, slice) != spread


def test_a_far_score_underflows_to_nothing():
    q, k, v, batch = make_case([2], [20], [3, 18], heads=2, kv_heads=1, dim=32, page=16, per_tile=4)
    q *= 300  # one key takes all the weight, most others underflow
    out = decode_attention_torch(q, k, v, batch)
    assert relative_error(out, reference(q, k, v, batch, [0, 0])) < 1e-5


@pytest.mark.interpreted
@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("case", ["ragged groups", "padding"])
def test_interpreted_decode(case, splits, monkeypatch):
    sizes, prompts, tails = CASES[case]
    monkeypatch.setattr(decode, "_splits", lambda units, programs: splits)
    made = make_case(sizes, prompts, tails, heads=6, kv_heads=2, dim=64, page=16, per_tile=4)
    out = decode._decode_cuda(*made)
    assert relative_error(out, reference(*made, groups_of(sizes, len(tails)))) < 1e-5
    assert not out[torch.tensor(tails) == 0].any()


@pytest.mark.interpreted
@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("case", ["ungrouped", "padding, ungrouped"])
def test_interpreted_decode_where_every_row_is_alone(case, splits, monkeypatch):
    """One kernel reads prompt and tail: there is none for the prompts."""
    monkeypatch.setattr(decode, "_prefix_kernel", None)
    sizes, prompts, tails = CASES[case]
    monkeypatch.setattr(decode, "_splits", lambda units, programs: splits)
    made = make_case(sizes, prompts, tails, heads=6, kv_heads=2, dim=80, page=16, per_tile=1)
    out = decode._decode_cuda(*made)
    assert relative_error(out, reference(*made, groups_of(sizes, len(tails)))) < 1e-5
    assert not out[torch.tensor(tails) == 0].any()


@pytest.mark.interpreted
def test_interpreted_decode_after_the_twin_has_had_the_same_batch():
    """Each keeps what it makes of a batch apart from what the other made."""
    sizes, prompts, tails = CASES["padding"]
    made = make_case(sizes, prompts, tails, heads=2, kv_heads=1, dim=16, page=16, per_tile=4)
    expected = decode_attention_torch(*made)
    torch.testing.assert_close(decode._decode_cuda(*made), expected)


@pytest.mark.interpreted
@pytest.mark.parametrize("dim, splits", [(16, 2), (32, 2), (80, 1), (80, 2), (100, 2), (256, 2)])
def test_interpreted_decode_takes_any_head_size(dim, splits, monkeypatch):
    """Where the tile is wider than the head, what lies behind a head in memory, other heads and tokens, stays out."""
    sizes, prompts, tails = CASES["padding"]
    monkeypatch.setattr(decode, "_splits", lambda units, programs: splits)
    made = make_case(sizes, prompts, tails, heads=6, kv_heads=2, dim=dim, page=16, per_tile=4)
    guarded = [
        torch.full((x.numel() + 2 * dim,), torch.nan)[dim:-dim].view(x.shape).copy_(x) for x in made[:3]
    ]
    out = decode._decode_cuda(*guarded, made[3])
    assert relative_error(out, reference(*made, groups_of(sizes, len(tails)))) < 1e-5


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "dim, card, shared",
    [
        (32, 90, 227),
        (256, 86, 99),
        pytest.param(80, 90, 227, marks=SLOW),
        pytest.param(256, 90, 227, marks=SLOW),
    ],
)
def test_the_kernels_compile_and_fit_in_a_cards_shared_memory(dim, card, shared, monkeypatch):
    """shared: the KiB that a program may have on a card of that compute capability."""
    kernels = [
        Launched(getattr(decode, name)) for name in ("_prefix_kernel", "_tail_kernel", "_merge_kernel")
    ]
    for kernel in kernels:
        monkeypatch.setattr(decode, kernel.kernel.fn.__name__, kernel)
    monkeypatch.setattr(decode, "device_limits", lambda x: (132, shared * 1024))
    shape = dict(heads=4, kv_heads=4, dim=dim, page=64, dtype=torch.bfloat16)
    decode._decode_cuda(*make_case([2], [5], [4, 18], per_tile=64, **shape))
    compiled = [kernel.compile(card) for kernel in kernels]
    decode._decode_cuda(*make_case([1, 1], [5, 9], [4, 18], per_tile=1, **shape))
    compiled.append(kernels[1].compile(card))  # the tails', which reads the prompts as well
    for one in compiled:
        assert one.metadata.shared <= shared * 1024 and one.asm["cubin"]


@pytest.mark.interpreted
@pytest.mark.parametrize("valid", [5000, 4800, 70])
def test_interpreted_sampling_equals_the_twin(valid, monkeypatch):
    monkeypatch.setattr(sample, "BLOCK", 1024)
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(6, 5000, generator=generator)
    logits[1, :4000] = -torch.inf if valid > 4000 else 0.0  # whole blocks without mass
    temperature = torch.tensor([1.0, 1.0, 0.0, 0.3, 2.0, 1.0])
    u = torch.tensor([0.3, 0.9, 0.5, 0.0, 1 - 2**-53, 0.7], dtype=torch.float64)
    tokens, logprobs = sample._sample_cuda(logits.clone(), temperature, u, valid)
    expected_tokens, expected_logprobs = sample.sample_tokens(logits, temperature, u, valid)
    assert torch.equal(tokens, expected_tokens)
    assert torch.allclose(logprobs, expected_logprobs, atol=1e-5)


def test_a_grid_that_fills_the_card_is_not_split():
    assert decode._splits(128, decode.PREFIX_PROGRAMS) == 2
    assert decode._splits(256, decode.PREFIX_PROGRAMS) == decode._splits(2048, decode.PROGRAMS) == 1
    assert decode._splits(1, decode.PROGRAMS) == decode.MAX_SPLITS


def test_the_benchmarks_sweep_sets_what_the_kernels_read_and_puts_it_back(monkeypatch):
    tensor, seen = torch.zeros(1), []
    batch = SimpleNamespace(cache={})
    monkeypatch.setattr(benchmark, "make", lambda cfg, *shape: (tensor, tensor, tensor, batch))
    monkeypatch.setattr(
        benchmark, "microseconds", lambda call: seen.append((decode.PROGRAMS, decode._options)) or 1.0
    )
    kept = decode.PROGRAMS, decode._options
    benchmark.sweep(benchmark.Config(), copy=1e12)
    assert {programs for programs, _ in seen} == {264, 528, 1056, 2112}
    tried = [options(tensor, 128, 16) for _, options in seen if options is not kept[1]]
    assert len(tried) == 4 * 12 and tried[0] == dict(num_warps=2, num_stages=2)
    assert (decode.PROGRAMS, decode._options) == kept
