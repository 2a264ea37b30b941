"""On one GPU: bf16 under FSDP with NCCL (a group of one rank) beside the plain model, and exact resume."""

import pytest
import torch
import torch.distributed as dist

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

from nanotriton.kernels.logprob import token_logprobs
from nanotriton.parallel import distributed
from nanotriton.parallel.checkpoint import Checkpointer, local
from nanotriton.parallel.world import World
from nanotriton.transformer.attention import packed
from nanotriton.transformer.model import Transformer
from nanotriton.transformer.model_config import ModelConfig

WORLD = World(device=torch.device("cuda", 0))


@pytest.fixture
def group():
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=WORLD.device)
    yield
    dist.destroy_process_group()


def make(checkpoint_layers=0):
    config = ModelConfig("qwen3", 512, 256, 512, 4, 4, 2, head_dim=64, qk_norm=True)
    model = Transformer(config).init_weights(seed=1).to("cuda")
    model.checkpoint_layers = checkpoint_layers
    distributed.shard(model, WORLD)
    if dist.is_initialized():
        distributed.fsdp(model, WORLD, reshard=False)
    return model, distributed.adamw(model, 1e-3)


def step(model, optimizer, microbatches=3):
    g = torch.Generator("cuda").manual_seed(0)
    total = 0.0
    for _ in distributed.accumulate(model, range(microbatches)):
        ids = torch.randint(0, 512, (257,), device="cuda", generator=g)
        attend = packed(torch.tensor([0, 100, 256], dtype=torch.int32, device="cuda"), 156)
        positions = torch.cat([torch.arange(100), torch.arange(156)]).cuda()
        logp, _ = model(ids[:-1], positions, attend, head=lambda h, w, t=ids[1:]: token_logprobs(h, w, t))
        loss = -logp.sum() / (256 * microbatches)
        loss.backward()
        total += loss.item()
    grads = {
        n: p.grad.full_tensor() if isinstance(p.grad, distributed.DTensor) else p.grad
        for n, p in model.named_parameters()
    }
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return total, {n: g.clone() for n, g in grads.items()}


@pytest.mark.parametrize("checkpoint_layers", [0, 1, 3])
def test_fsdp_in_bf16_is_the_plain_model_within_bf16(checkpoint_layers):
    loss, plain = step(*make())
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=WORLD.device)
    try:
        model, optimizer = make(checkpoint_layers)
        assert all(
            isinstance(p, distributed.DTensor) and p.dtype == torch.float32 for p in model.parameters()
        )
        sharded_loss, grads = step(model, optimizer)
        assert abs(loss - sharded_loss) < 2e-3 * loss
        for name, g in plain.items():
            assert g.dtype == grads[name].dtype == torch.float32
            assert (g - grads[name]).norm() < 2e-2 * g.norm(), name
        distributed.clip_grad_norm(model, 1.0)
        assert all(x.dtype == torch.bfloat16 for _, x in distributed.full_params(model, torch.bfloat16))
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("grouped", [False, True])
def test_a_checkpoint_restores_every_bit(tmp_path, grouped, request):
    if grouped:
        request.getfixturevalue("group")
    model, optimizer = make()
    step(model, optimizer)
    saver = Checkpointer(tmp_path, WORLD)
    saver.save(1, model, optimizer, {"cursor": 5})
    drawn = torch.rand(4, device="cuda")
    other, fresh = make()
    step(other, fresh)
    step(other, fresh)
    assert saver.load_latest(other, fresh) == (1, {"cursor": 5})
    assert torch.equal(torch.rand(4, device="cuda"), drawn)
    for (name, a), (_, b) in zip(distributed.full_params(model), distributed.full_params(other)):
        assert torch.equal(a, b), name
    for a, b in zip(model.parameters(), other.parameters()):
        for key, value in optimizer.state[a].items():
            assert torch.equal(local(value), local(fresh.state[b][key])), key
    step(other, fresh)  # and the fused optimizer takes what was restored
