"""The sampler against the plain forward: the same greedy tokens, the same logprobs, exact probabilities, exact seeds."""

import random

import pytest
import torch

from nanotriton.attention import packed
from nanotriton.kernels.logprob import token_logprobs
from nanotriton.model import ModelConfig, Transformer
from nanotriton.sampler import Request, Sampler

FAMILIES = {
    "llama": dict(model_type="llama", num_key_value_heads=2),
    "qwen2": dict(model_type="qwen2", num_key_value_heads=1, attention_bias=True),
    "qwen3": dict(model_type="qwen3", num_key_value_heads=2, head_dim=32, qk_norm=True, tie_word_embeddings=True),
}


def make_model(family: str = "llama", seed: int = 0, **changes) -> Transformer:
    shape = dict(vocab_size=67, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=256)
    model = Transformer(ModelConfig(**{**shape, **FAMILIES[family], **changes})).init_weights(seed)
    for name, parameter in model.named_parameters():  # away from uniform, and no bias or norm at its neutral value
        noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(hash_name(name)))
        parameter.data += 0.3 * noise if name.endswith("bias") else 0.1 * noise
    return model.requires_grad_(False)


def hash_name(name: str) -> int:
    return sum((i + 1) * ord(c) for i, c in enumerate(name))


def forward_logits(model: Transformer, ids: list[int]) -> torch.Tensor:
    """[len(ids), vocab] fp32 with no cache and nothing beside it."""
    attend = packed(torch.tensor([0, len(ids)], dtype=torch.int32), len(ids))
    return model(torch.tensor(ids), torch.arange(len(ids)), attend).float() @ model.head_weight.float().T


def greedy(model: Transformer, prompt: list[int], max_tokens: int, stop: frozenset[int] = frozenset()) -> list[int]:
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
    out = sampler.generate([Request(p, n=1 + i % 3, max_tokens=m, temperature=0) for i, (p, m) in enumerate(zip(groups, lengths))])
    for i, (prompt, length) in enumerate(zip(groups, lengths)):
        expected = greedy(model, prompt, length)
        assert [s.ids for s in out[i]] == [expected] * (1 + i % 3)
        assert {s.finish_reason for s in out[i]} == {"length"}
        assert [(s.request, s.index) for s in out[i]] == [(i, j) for j in range(1 + i % 3)]
