"""Packing: no padding, nothing lost, every completion token scored once, in its own sequence's context only."""

import pytest
import torch

from nanotriton.data import pack, score
from nanotriton.transformer.model import Transformer
from nanotriton.transformer.model_config import ModelConfig


def test_pack_by_hand():
    batch = pack([([5, 6], [7, 8]), ([9], [1])])
    assert batch.ids.tolist() == [5, 6, 7, 8, 9, 1]
    assert batch.positions.tolist() == [0, 1, 2, 3, 0, 1]
    assert batch.cu_seqlens.tolist() == [0, 4, 6] and batch.max_seqlen == 4
    assert (
        batch.where.tolist() == [1, 2, 4]
        and batch.targets.tolist() == [7, 8, 1]
        and batch.rows.tolist() == [0, 0, 1]
    )


def test_an_empty_prompt_is_refused():
    with pytest.raises(ValueError, match="sequence 1 has an empty prompt"):
        pack([([1], [2]), ([], [3])])


def test_score_is_log_softmax_of_the_logits_one_sequence_at_a_time():
    model = Transformer(
        ModelConfig(
            vocab_size=50, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2
        )
    ).init_weights(1)
    g = torch.Generator().manual_seed(0)
    pairs = [
        tuple(torch.randint(0, 40, (n,), generator=g).tolist() for n in sizes)
        for sizes in ((3, 5), (7, 1), (1, 9))
    ]
    logp, entropy = score(model, pack(pairs), temperature=0.7, valid_vocab=40)
    at = 0
    for prompt, completion in pairs:
        one = pack([(prompt, completion)])
        from nanotriton.transformer.attention import packed

        hidden = model(one.ids, one.positions, packed(one.cu_seqlens, one.max_seqlen))
        logits = (hidden @ model.head_weight.T)[len(prompt) - 1 : -1, :40].double() / 0.7
        want = logits.log_softmax(-1)
        n = len(completion)
        torch.testing.assert_close(
            logp[at : at + n].double(), want[torch.arange(n), torch.tensor(completion)], atol=1e-5, rtol=0
        )
        torch.testing.assert_close(
            entropy[at : at + n].double(), -(want.exp() * want).sum(-1), atol=1e-5, rtol=0
        )
        at += n
    assert at == len(logp)
