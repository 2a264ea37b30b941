"""adam8 on a GPU: captured decode steps read the parameters that are trained, and a rank's random weights are those of any number."""

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

from bench.speed.training import randomize
from nanotriton.data import pack, score
from nanotriton.parallel import distributed
from nanotriton.parallel.world import World
from nanotriton.runs.run import make_sampler, sync_weights
from nanotriton.sampler.sampler import Request
from nanotriton.transformer.model_config import ModelConfig

WORLD = World(device=torch.device("cuda", 0))
CONFIG = ModelConfig("qwen3", 512, 256, 512, 4, 4, 2, head_dim=64, qk_norm=True)


class Tokens:
    vocab_size = 512


def test_the_sampler_follows_the_training_without_a_copy():
    model = randomize(distributed.empty(CONFIG, WORLD, torch.bfloat16, recompute=CONFIG.num_hidden_layers))
    optimizer = distributed.adamw(model, 2e-3)
    sampler = make_sampler(CONFIG, WORLD, Tokens(), model, distributed.moments_to_come(optimizer))
    request = Request(list(range(1, 70)), n=8, max_tokens=32, seeds=list(range(8)))
    addresses, drawn = [p.data_ptr() for p in model.parameters()], []
    for _ in range(3):
        (samples,) = sampler.generate([request])
        sampler.free()
        batch = pack([(request.prompt_ids, s.ids) for s in samples]).to("cuda")
        sampled = torch.tensor([x for s in samples for x in s.logprobs], device="cuda")
        with torch.no_grad():
            # bf16, two ways to batch
            assert (score(model, batch, valid_vocab=512)[0] - sampled).abs().mean() < 0.02
        drawn.append([s.ids for s in samples])
        for _ in range(4):
            (-score(model, batch, valid_vocab=512)[0].mean()).backward()
            assert distributed.clip_grad_norm(model, 1.0) > 0
            optimizer.step()
            optimizer.zero_grad()
        sync_weights(sampler, model, WORLD)
    assert addresses == [p.data_ptr() for p in model.parameters()]
    assert drawn[0] != drawn[1] != drawn[2]
    assert distributed.moments_to_come(optimizer) == 0
