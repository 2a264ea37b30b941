"""The sampler against the plain forward: the same greedy tokens, the same logprobs, exact probabilities, exact seeds."""

import gc
import json
import random
import weakref
from types import SimpleNamespace

import pytest
import tokenizers
import torch

from nanotriton.complete import main
from nanotriton.config import ConfigError
from nanotriton.kernels.logprob import token_logprobs
from nanotriton.sampler import graphs
from nanotriton.sampler.graphs import Captured, Graphs
from nanotriton.sampler.kv_cache import PagePool
from nanotriton.sampler.sampler import Request, Sampler
from nanotriton.sampler.scheduler import Scheduler
from nanotriton.transformer.attention import packed
from nanotriton.transformer.model import Transformer
from nanotriton.transformer.model_config import ModelConfig
from nanotriton.transformer.weights import save_model

FAMILIES = {
    "llama": dict(model_type="llama", num_key_value_heads=2),
    "qwen2": dict(model_type="qwen2", num_key_value_heads=1, attention_bias=True),
    "qwen3": dict(
        model_type="qwen3", num_key_value_heads=2, head_dim=32, qk_norm=True, tie_word_embeddings=True
    ),
}


def make_model(family: str = "llama", seed: int = 0, **changes) -> Transformer:
    shape = dict(
        vocab_size=67,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=256,
    )
    model = Transformer(ModelConfig(**{**shape, **FAMILIES[family], **changes})).init_weights(seed)
    # away from uniform, and no bias or norm at its neutral value
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(hash_name(name)))
        parameter.data += 0.3 * noise if name.endswith("bias") else 0.1 * noise
    return model.requires_grad_(False)


def hash_name(name: str) -> int:
    return sum((i + 1) * ord(c) for i, c in enumerate(name))


def forward_logits(model: Transformer, ids: list[int]) -> torch.Tensor:
    """[len(ids), vocab] fp32 with no cache and nothing beside it."""
    attend = packed(torch.tensor([0, len(ids)], dtype=torch.int32), len(ids))
    return model(torch.tensor(ids), torch.arange(len(ids)), attend).float() @ model.head_weight.float().T


def greedy(
    model: Transformer, prompt: list[int], max_tokens: int, stop: frozenset[int] = frozenset()
) -> list[int]:
    ids: list[int] = []
    while len(ids) < max_tokens and not (ids and ids[-1] in stop):
        ids.append(int(forward_logits(model, prompt + ids)[-1].argmax()))
    return ids


def prompts(lengths: list[int], vocab: int = 67, seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(vocab) for _ in range(n)] for n in lengths]


RAGGED = [1, 2, 7, 8, 9, 16, 17, 31, 32, 33, 64]  # page sizes 8 and 32 are met exactly and missed by one


@pytest.mark.parametrize("page_size", [8, 32])
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_equals_the_forward_without_a_cache(family, page_size):
    model = make_model(family)
    sampler = Sampler(model, kv_gib=0.05, page_size=page_size)
    groups = prompts(RAGGED)
    lengths = [1 + (5 * i) % 23 for i in range(len(groups))]
    out = sampler.generate(
        [
            Request(p, n=1 + i % 3, max_tokens=m, temperature=0)
            for i, (p, m) in enumerate(zip(groups, lengths))
        ]
    )
    for i, (prompt, length) in enumerate(zip(groups, lengths)):
        expected = greedy(model, prompt, length)
        assert [s.ids for s in out[i]] == [expected] * (1 + i % 3)
        assert {s.finish_reason for s in out[i]} == {"length"}
        assert [(s.request, s.index) for s in out[i]] == [(i, j) for j in range(1 + i % 3)]


def test_from_one_to_64_requests():
    model = make_model()
    ids = prompts([1 + (7 * i) % 40 for i in range(64)])
    alone = [greedy(model, p, 6) for p in ids]
    for count in (1, 2, 63, 64):
        out = Sampler(model, kv_gib=0.05, max_batch=24).generate(
            [Request(p, max_tokens=6, temperature=0) for p in ids[:count]]
        )
        assert [s[0].ids for s in out] == alone[:count]


def test_preemption_changes_nothing():
    model = make_model()
    ids = prompts([5, 8, 17, 3, 30, 12])
    requests = [
        Request(p, n=4, max_tokens=40, temperature=t, seeds=[i * 10 + j for j in range(4)])
        for i, p in enumerate(ids)
        for t in (0, 1)
    ]
    roomy = Sampler(model, kv_gib=0.05, page_size=8)
    # 19 pages; 12 groups of 4 need over 200
    tight = Sampler(model, kv_gib=20 * roomy.kv.page_bytes / 2**30, page_size=8)
    expected, got = roomy.generate(requests), tight.generate(requests)
    assert roomy.stats["preemptions"] == 0 and tight.stats["preemptions"] > 20
    for a, b in zip(expected, got):
        assert [s.ids for s in a] == [s.ids for s in b]
        for x, y in zip(a, b):
            assert x.logprobs == pytest.approx(y.logprobs, abs=1e-5)


def test_stop_ids_end_a_sample_and_are_kept():
    model = make_model()
    ids = prompts([4, 9, 20])
    stop = frozenset(range(0, 67, 5))
    out = Sampler(model, kv_gib=0.05).generate(
        [Request(p, n=2, max_tokens=30, temperature=0, stop_ids=stop) for p in ids]
    )
    for prompt, group in zip(ids, out):
        expected = greedy(model, prompt, 30, stop)
        for sample in group:
            assert sample.ids == expected
            assert sample.finish_reason == ("stop" if expected[-1] in stop else "length")
    assert any(s.finish_reason == "stop" for group in out for s in group)
    last = Sampler(model, kv_gib=0.05).generate(
        [Request(ids[0], max_tokens=1, temperature=0, stop_ids=frozenset(range(67)))]
    )
    # at the limit, an end token is still a stop
    assert (len(last[0][0].ids), last[0][0].finish_reason) == (1, "stop")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_equal_the_trainers(family, temperature):
    model = make_model(family)
    requests = [Request(p, n=3, max_tokens=30, temperature=temperature) for p in prompts(RAGGED)]
    for request, group in zip(
        requests, Sampler(model, kv_gib=0.05, valid_vocab=60, page_size=8).generate(requests)
    ):
        for sample in group:
            assert max(sample.ids) < 60
            ids = request.prompt_ids + sample.ids
            attend = packed(torch.tensor([0, len(ids)], dtype=torch.int32), len(ids))
            hidden = model(torch.tensor(ids), torch.arange(len(ids)), attend)
            hidden = hidden[len(request.prompt_ids) - 1 : -1]  # the state that predicts each sampled token
            logp, _ = token_logprobs(
                hidden, model.head_weight, torch.tensor(sample.ids), temperature=temperature, valid_vocab=60
            )
            assert sample.logprobs == pytest.approx(logp.tolist(), abs=1e-5)


class Eager(Graphs):
    """Graphs whose replay is the step itself: padding, tables and late reading without a GPU."""

    def __init__(self, sampler: Sampler):
        self.step, self.max_batch, self.device = sampler.step, sampler.max_batch, sampler.device
        self.per_tile, self.captured = sampler.per_tile, {}
        self.tail_table, self.prefix_table = torch.full(
            (2, self.max_batch + 1, sampler.width), -1, dtype=torch.int32
        )

    def _capture(self, layout):
        buffer = torch.empty(layout.size, dtype=torch.uint8)
        x, rows = layout.views(buffer), layout.fields["slot"][2][0]
        tokens, logprobs = torch.empty(rows, dtype=torch.int64), torch.empty(rows)

        def replay():
            self.tail_table[x.slot, x.page_index] = x.page
            for kept, new in zip(
                (tokens, logprobs), self.step(x, self.tail_table.clamp(min=0), self.prefix_table.clamp(min=0))
            ):
                kept.copy_(new)

        return Captured(layout, buffer, SimpleNamespace(replay=replay), tokens, logprobs)


@pytest.mark.parametrize("pages", [20, 60, 1000])
def test_graph_steps_are_the_same_steps(pages, monkeypatch):
    """What a GPU does around the kernels: buckets, padding rows, device tables, and a host that reads two steps late."""
    monkeypatch.setattr(
        graphs, "reader", lambda tokens, logprobs: lambda a=tokens.tolist(), b=logprobs.tolist(): (a, b)
    )
    model = make_model()
    rng = random.Random(pages)
    requests = [
        Request(
            p,
            n=rng.randint(1, 5),
            max_tokens=rng.randint(1, 40),
            temperature=rng.choice([0, 1]),
            stop_ids=frozenset([rng.randrange(67)]),
            top_k=rng.choice([0, 0, 9]),
        )
        for p in prompts([rng.randint(1, 30) for _ in range(12)])
    ]
    for request in requests:
        request.seeds = [rng.randrange(2**63) for _ in range(request.n)]
    expected = Sampler(model, kv_gib=0.05).generate(requests)
    page = Sampler(model, kv_gib=0.05, page_size=8).kv.page_bytes
    sampler = Sampler(model, kv_gib=pages * page / 2**30, page_size=8, max_batch=18)
    sampler.graphs = Eager(sampler)
    for _ in range(2):  # again with the graphs there already
        got = sampler.generate(requests)
        for a, b in zip(expected, got):
            assert [(s.ids, s.finish_reason) for s in a] == [(s.ids, s.finish_reason) for s in b]
    assert (sampler.stats["preemptions"] > 0) == (pages == 20)
    assert {key[0] for key in sampler.graphs.captured} <= {1, 2, 4, 8, 16, 18}


def chi_square_z(counts: torch.Tensor, expected: torch.Tensor) -> float:
    """How many standard deviations a chi-square statistic is above its mean (Wilson-Hilferty); cells under 5 are pooled."""
    small = expected < 5
    counts, expected = (
        torch.cat([x[~small], x[small].sum()[None]]) for x in (counts.double(), expected.double())
    )
    counts, expected = counts[expected > 0], expected[expected > 0]
    freedom = len(expected) - 1
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / (2 / (9 * freedom)) ** 0.5


@pytest.mark.parametrize(
    "temperature, top_k, top_p", [(1.0, 0, 1.0), (0.7, 0, 1.0), (1.0, 5, 1.0), (1.0, 0, 0.8), (1.3, 20, 0.6)]
)
def test_samples_follow_the_exact_distribution(temperature, top_k, top_p):
    model, prompt, n = make_model(), prompts([9])[0], 4000
    request = Request(prompt, n=n, max_tokens=1, temperature=temperature, top_k=top_k, top_p=top_p)
    out = Sampler(model, kv_gib=0.05, valid_vocab=61).generate([request])[0]
    logits = forward_logits(model, prompt)[-1].double() / temperature
    logits[61:] = -torch.inf
    order = logits.argsort(descending=True)
    p = logits[order].softmax(-1)
    if top_k:
        p[top_k:] = 0
        p /= p.sum()
    keep = p.cumsum(-1) - p < top_p  # the mass above a kept token is under top_p
    p = torch.zeros(67, dtype=torch.double).scatter_(0, order, torch.where(keep, p, 0.0))
    p /= p.sum()
    counts = torch.bincount(torch.tensor([s.ids[0] for s in out]), minlength=67)
    assert not counts[p == 0].any()
    assert abs(chi_square_z(counts, n * p)) < 4
    for sample in out[:50]:
        assert sample.logprobs[0] == pytest.approx(float(p[sample.ids[0]].log()), abs=1e-5)


def test_a_groups_samples_are_independent_from_the_first_token_on():
    model, n = make_model(vocab_size=11), 3000
    out = Sampler(model, kv_gib=0.05, seed=3).generate(
        [Request([1, 2, 3], n=2, max_tokens=3) for _ in range(n)]
    )
    for position in range(3):
        pairs = torch.zeros(11, 11)
        for first, second in out:
            pairs[first.ids[position], second.ids[position]] += 1
        expected = pairs.sum(1, keepdim=True) * pairs.sum(0) / n
        assert abs(chi_square_z(pairs.flatten(), expected.flatten())) < 4


def test_seeds_decide_however_requests_are_batched_or_spread():
    model = make_model()
    ids = prompts([3, 14, 8, 40, 21, 33, 8, 5])
    seeds = [[1000 * i + j for j in range(4)] for i in range(len(ids))]
    requests = [Request(p, n=4, max_tokens=20, temperature=0.9, seeds=s) for p, s in zip(ids, seeds)]
    together = [[s.ids for s in group] for group in Sampler(model, kv_gib=0.05).generate(requests)]
    assert len({tuple(s) for group in together for s in group}) == 32
    small = Sampler(model, kv_gib=0.05, max_batch=3, page_size=16, prefill_tokens=20)
    assert [[s.ids for s in group] for group in small.generate(requests)] == together
    for rank in range(2):  # every second request, in another order
        mine = list(range(rank, len(ids), 2))[::-1]
        out = Sampler(model, kv_gib=0.05).generate([requests[i] for i in mine])
        assert [[s.ids for s in group] for group in out] == [together[i] for i in mine]
    # a sample of a group, drawn alone
    one = Request(ids[1], n=1, max_tokens=20, temperature=0.9, seeds=[seeds[1][2]])
    assert small.generate([one])[0][0].ids == together[1][2]


def test_pages_come_from_the_ends_of_a_pool_of_any_size():
    pool = PagePool(200_000)
    assert pool.take(3).tolist() == [0, 1, 2] and pool.take(2, top=True).tolist() == [199_999, 199_998]
    assert len(pool.take(0)) == 0
    low, high = pool.take(150_000), pool.take(40_000, top=True)
    assert (low[0], low[-1], high[0], high[-1]) == (3, 150_002, 199_997, 159_998)
    pool.give(low[70_000:70_002])
    assert pool.take(3).tolist() == [70_003, 70_004, 150_003]
    assert pool.take(pool.available, top=True).tolist() == list(range(159_997, 150_003, -1))
    assert not pool.free.any()


def test_a_step_takes_long_contexts_first_and_a_tile_of_one_row_is_that_row():
    scheduler = Scheduler(pages=64, page_size=8, max_batch=8, width=8, prefill_tokens=1000)
    for i, length in enumerate([3, 30, 7, 30]):
        scheduler.add(i, Request([1] * length, max_tokens=9), [0])
    scheduler.admit()
    slots = scheduler.order_of_step()
    assert scheduler.prompt_len[slots].tolist() == [30, 30, 7, 3]
    lines, rows = scheduler.tiles(slots, cap=4)
    assert rows.tolist() == [[0], [1], [2], [3]] and lines.tolist() == scheduler.line[slots].tolist()
    scheduler.drawn(slots)  # who is ahead stays ahead: the tiles hold for the next step too
    assert scheduler.order_of_step().tolist() == slots.tolist()


def test_tiles_of_groups_hold_each_row_once_long_prompts_first():
    scheduler = Scheduler(pages=64, page_size=8, max_batch=8, width=8, prefill_tokens=1000)
    for i, (length, n) in enumerate([(3, 3), (30, 2)]):
        scheduler.add(i, Request([1] * length, n=n, max_tokens=9), [0] * n)
    scheduler.admit()
    slots = scheduler.order_of_step()
    lines, rows = scheduler.tiles(slots, cap=2)
    assert sorted(rows[rows >= 0].tolist()) == [0, 1, 2, 3, 4]
    assert scheduler.prompt_len[slots[rows[:, 0]]].tolist() == [30, 3, 3]
    for line, tile in zip(lines, rows):
        assert (scheduler.line[slots[tile[tile >= 0]]] == line).all()


def test_without_seeds_every_call_draws_anew():
    sampler = Sampler(make_model(), kv_gib=0.05)
    request = Request([1, 2], n=4, max_tokens=12)
    first, second = (sampler.generate([request])[0] for _ in range(2))
    assert len({tuple(s.ids) for s in first + second}) == 8
    again = Sampler(make_model(), kv_gib=0.05)
    assert [s.ids for s in again.generate([request])[0]] == [s.ids for s in first]
    other = Sampler(make_model(), kv_gib=0.05, seed=1)
    assert [s.ids for s in other.generate([request])[0]] != [s.ids for s in first]


def test_samples_are_handed_out_as_they_finish():
    seen = []
    requests = [Request([1, 2, 3], n=2, max_tokens=m, temperature=0) for m in (30, 2, 10)]
    out = Sampler(make_model(), kv_gib=0.05).generate(requests, on_finish=lambda s: seen.append(s))
    assert [s.request for s in seen] == [1, 1, 2, 2, 0, 0]
    assert {id(s) for s in seen} == {id(s) for group in out for s in group}


def test_an_error_in_the_callback_leaves_a_usable_sampler():
    sampler = Sampler(make_model(), kv_gib=0.05)

    def fail(sample):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sampler.generate([Request([1, 2, 3], n=3, max_tokens=4)], on_finish=fail)
    with pytest.raises(RuntimeError, match="while generate is running"):
        sampler.generate(
            [Request([1], max_tokens=1)], on_finish=lambda s: sampler.update_weights(sampler.model)
        )
    assert sampler.generate([Request([1, 2, 3], max_tokens=4, temperature=0)])[0][0].ids == greedy(
        sampler.model, [1, 2, 3], 4
    )


def test_update_weights_is_the_new_model_at_the_old_addresses():
    old, new = make_model(seed=0), make_model(seed=1)
    sampler = Sampler(old, kv_gib=0.05)
    prompt = prompts([20])[0]
    addresses = [p.data_ptr() for p in old.parameters()]
    before = sampler.generate([Request(prompt, max_tokens=10, temperature=0)])[0][0].ids
    sampler.update_weights((name, tensor.double()) for name, tensor in new.named_parameters())
    sampler.free()
    after = sampler.generate([Request(prompt, max_tokens=10, temperature=0)])[0][0].ids
    assert after == greedy(new, prompt, 10) != before
    assert [p.data_ptr() for p in old.parameters()] == addresses
    named = dict(new.named_parameters())
    for wrong, message in (
        ({k: v for k, v in named.items() if k != "model.norm.weight"}, "model.norm.weight"),
        (named | {"model.extra": torch.zeros(1)}, "model.extra is not a parameter"),
        (named | {"model.norm.weight": torch.zeros(2)}, r"is \(2,\), the model's is \(64,\)"),
    ):
        with pytest.raises(ValueError, match=message):
            sampler.update_weights(wrong.items())


@pytest.mark.parametrize(
    "request_, message",
    [
        (Request([]), "the prompt is empty"),
        (Request([1, 67]), "not in 0 to 66"),
        (Request([-1]), "not in 0 to 66"),
        (Request([1], n=0), "at least 1"),
        (Request([1], max_tokens=0), "at least 1"),
        (Request([1], temperature=-1.0), "temperature"),
        (Request([1], temperature=float("nan")), "temperature"),
        (Request([1], top_k=-1), "top_k"),
        (Request([1], top_p=0.0), "top_p"),
        (Request([1], n=2, seeds=[1]), "as many seeds as samples"),
        (Request([1] * 200, max_tokens=57), "more than the model's 256"),
        (Request([1] * 100, max_tokens=100), "need 26 pages of 8 tokens, the cache has 19"),
    ],
)
def test_requests_that_cant_be_served_are_refused_in_one_line(request_, message):
    model = make_model()
    page = Sampler(model, kv_gib=0.05, page_size=8).kv.page_bytes
    sampler = Sampler(model, kv_gib=20 * page / 2**30, page_size=8)
    with pytest.raises(ValueError, match=message) as error:
        sampler.generate([Request([1], max_tokens=1), request_])
    assert "request 1: " in str(error.value) and "\n" not in str(error.value)


def test_the_budget_is_kept_to():
    model = make_model()
    for gib in (0.001, 0.05, 0.3):
        sampler = Sampler(model, kv_gib=gib)
        assert sampler.kv.data.nbytes <= gib * 2**30 < sampler.kv.data.nbytes + sampler.kv.page_bytes
    with pytest.raises(ConfigError, match=r"holds no page; at least .* \(--kv-gib\)$"):
        Sampler(model, kv_gib=1e-6)
    with pytest.raises(ValueError, match="not both"):
        Sampler(model, kv_gib=1, kv_fraction=0.5)


def test_nothing_grows_over_rounds_of_generate_and_update():
    sampler, new = Sampler(make_model(), kv_gib=0.05), make_model(seed=1)
    tensors = []
    for turn in range(50):
        sampler.generate([Request([1, 2, 3], n=2, max_tokens=2)])
        sampler.update_weights(new)
        sampler.generate([Request([4, 5], max_tokens=2)])
        if turn in (1, 49):
            tensors.append(sum(type(x) is torch.Tensor for x in gc.get_objects()))
    assert tensors[0] == tensors[1]


@pytest.mark.parametrize("with_graphs", [False, True])
def test_close_gives_everything_back_without_the_cycle_collector(with_graphs, monkeypatch):
    monkeypatch.setattr(graphs, "reader", lambda *drawn: lambda a=[x.tolist() for x in drawn]: a)
    request, model = Request([1, 2, 3], n=3, max_tokens=4), make_model()
    gc.disable()  # what only it would free stays
    try:
        sampler = Sampler(model, kv_gib=0.05)
        if with_graphs:
            model.merge_projections()
            sampler.graphs = Eager(sampler)
        sampler.generate([request])
        held = [sampler.kv.data, sampler.last, *model.parameters(), *model.buffers()]
        if with_graphs:
            held += [sampler.graphs.tail_table, *(kept.buffer for kept in sampler.graphs.captured.values())]
        gone = [weakref.ref(x) for x in held]
        del held
        sampler.itself = sampler  # as a forgotten cycle, or whoever still holds the sampler
        sampler.close()
        del model
        assert [ref() for ref in gone] == [None] * len(gone)
    finally:
        gc.enable()


def test_a_closed_sampler_says_so_and_the_next_one_works():
    model, request = make_model(), Request([1, 2, 3], max_tokens=5, temperature=0)
    with Sampler(model, kv_gib=0.05) as first:
        with pytest.raises(RuntimeError, match="close was called while generate is running"):
            first.generate([request], on_finish=lambda sample: first.close())
        expected = first.generate([request])[0][0].ids
    first.close()  # twice is once
    for name, arguments in {
        "generate": [[request]],
        "resume": [],
        "free": [],
        "update_weights": [model],
    }.items():
        with pytest.raises(RuntimeError, match=f"^{name} was called on a closed sampler$"):
            getattr(first, name)(*arguments)
    with pytest.raises(ValueError, match="the prompt is empty"), Sampler(model, kv_gib=0.05) as second:
        assert second.generate([request])[0][0].ids == expected
        second.generate([Request([])])
    assert second.closed


def test_a_thousand_requests_that_need_ten_times_the_cache():
    model = make_model(num_hidden_layers=1, hidden_size=32)
    rng = random.Random(0)
    requests = [
        Request([rng.randrange(67) for _ in range(rng.randint(1, 30))], max_tokens=rng.randint(1, 20))
        for _ in range(1000)
    ]
    tokens = sum(len(r.prompt_ids) + r.max_tokens for r in requests)
    page = Sampler(model, kv_gib=0.05, page_size=8).kv.page_bytes
    sampler = Sampler(model, kv_gib=(tokens // 80 + 1) * page / 2**30, page_size=8)
    out = sampler.generate(requests)
    assert [len(g[0].ids) for g in out] == [r.max_tokens for r in requests]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model of 67 ids in a folder, with a tokenizer of 60: letters, then an end token."""
    path = tmp_path_factory.mktemp("model")
    save_model(make_model(), path)
    letters = {c: i for i, c in enumerate("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456")}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=letters, merges=[]))
    backend.decoder = tokenizers.decoders.Fuse()
    backend.add_special_tokens(["<end>"])
    backend.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))
    return path


def test_the_command_continues_text_and_ids(folder, capsys):
    main([str(folder), "--raw", "hello", "--max-tokens", "12", "--json"])
    out = json.loads(capsys.readouterr().out)
    ids = [7, 4, 11, 11, 14]
    expected = Sampler(make_model(), valid_vocab=60).generate(
        [Request(ids, max_tokens=12, temperature=0, stop_ids=frozenset([59]))]
    )[0][0]
    assert out["ids"] == expected.ids and out["finish_reason"] == expected.finish_reason
    assert out["logprobs"] == pytest.approx(expected.logprobs, abs=1e-5)
    assert len(out["text"]) == len([i for i in expected.ids if i != 59])
    # ids are continued as transformers does: by those of the embedding's padding too, which have no text
    main([str(folder), "--prompt-ids", "7,4,11,11,14", "--max-tokens", "12", "--json"])
    raw = json.loads(capsys.readouterr().out)
    request = Request(ids, max_tokens=12, temperature=0, stop_ids=frozenset([59]))
    assert raw["ids"] == Sampler(make_model()).generate([request])[0][0].ids
    assert len(raw["text"]) == len([i for i in raw["ids"] if i < 59]) < len(raw["ids"])
    seeds = []
    for seed in ("1", "1", "2"):
        main(
            [
                str(folder),
                "--prompt",
                "hello",
                "--max-tokens",
                "12",
                "--temperature",
                "1",
                "--seed",
                seed,
                "--dtype",
                "bf16",
                "--json",
            ]
        )
        seeds.append(json.loads(capsys.readouterr().out)["ids"])
    assert seeds[0] == seeds[1] != seeds[2]


def test_a_prompt_goes_into_the_chat_template_and_raw_text_does_not(folder, tmp_path, monkeypatch):
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    template = "{{ who }}{% for m in messages %}{{ m['content'] }}<end>{% endfor %}"
    config = {"eos_token": "<end>", "chat_template": template}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    asked = []
    generate = Sampler.generate
    spy = lambda self, requests: asked.append(requests[0].prompt_ids) or generate(self, requests)
    monkeypatch.setattr(Sampler, "generate", spy)
    short = ["--max-tokens", "2"]
    main([str(tmp_path), "--prompt", "abc", "--template", '{"who": "z"}', *short])
    main([str(tmp_path), "--raw", "abc", *short])
    main([str(folder), "--prompt", "abc", *short])  # without a template it is the text as it stands
    assert asked == [[25, 0, 1, 2, 59], [0, 1, 2], [0, 1, 2]]


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "--prompt"),
        (["--prompt", "a", "--prompt-ids", "1"], "not allowed with"),
        (["--prompt", "a", "--raw", "a"], "not allowed with"),
        (["--prompt", "a", "--template", "no"], "not JSON"),
        (["--prompt-ids", "1,x"], "ids separated by commas"),
        (["--prompt-ids", "1,67"], "not in 0 to 66"),
        (["--prompt", ""], "the prompt is empty"),
        (["--prompt", "a", "--max-tokens", "0"], "max_tokens must be at least 1"),
        (["--prompt", "a", "--max-tokens", "some"], "invalid int value"),
        (["--prompt", "a", "--max-tokens", "256"], "more than the model's 256"),
        (["--prompt", "a", "--temperature", "-1"], "temperature must be"),
        (["--prompt", "a", "--dtype", "int8"], "invalid choice"),
        (["--prompt", "a", "--tempo", "1"], "unrecognized arguments"),
    ],
)
def test_bad_usage_is_one_line_and_exit_2(arguments, message, folder, capsys):
    with pytest.raises(SystemExit) as error:
        main([str(folder), *arguments])
    captured = capsys.readouterr()
    assert error.value.code == 2 and captured.out == ""
    assert message in captured.err and captured.err.startswith("error: ") and captured.err.count("\n") == 1


def test_a_missing_folder_is_one_line_and_exit_2(capsys):
    with pytest.raises(SystemExit) as error:
        main(["no-such-folder", "--prompt", "a"])
    assert (
        error.value.code == 2
        and capsys.readouterr().err
        == "error: no-such-folder: no such folder; a Hugging Face folder or a hub id, owner/name, is expected\n"
    )
