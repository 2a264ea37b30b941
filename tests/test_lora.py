"""Adapters: the same weights for trainer and sampler, gradients of the adapters only, checkpoints, PEFT's format."""

import json

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from test_distributed import backward, one_thread  # noqa: F401
from transformers import LlamaConfig, LlamaForCausalLM

from nanotriton import merge
from nanotriton.config import ConfigError
from nanotriton.parallel import distributed
from nanotriton.parallel.checkpoint import Checkpointer
from nanotriton.parallel.world import World
from nanotriton.transformer import lora
from nanotriton.transformer.attention import packed
from nanotriton.transformer.lora import merged
from nanotriton.transformer.model import Transformer
from nanotriton.transformer.model_config import ModelError
from nanotriton.transformer.weights import load_config, load_model, save_model

IDS = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A Llama of two layers as transformers saves it, in bf16."""
    torch.manual_seed(0)
    shape = dict(vocab_size=48, hidden_size=32, intermediate_size=48, num_hidden_layers=2)
    heads = dict(num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64)
    path = tmp_path_factory.mktemp("llama")
    LlamaForCausalLM(LlamaConfig(**shape, **heads)).bfloat16().save_pretrained(path)
    return path


def make(folder, rank=4, moved=True):
    """A model to train, and with `moved` adapters that say something."""
    model, _ = distributed.load(str(folder), World(), rank=rank, seed=5)
    if moved:
        with torch.no_grad():
            for i, layer in enumerate(lora.adapted(model).values()):
                g = torch.Generator().manual_seed(i)
                layer.lora_B.copy_(0.05 * torch.randn(layer.lora_B.shape, generator=g))
    return model, distributed.adamw(model, 1e-3)


def logits(model: Transformer):
    cu = torch.tensor([0, len(IDS)], dtype=torch.int32)
    hidden = model(IDS, torch.arange(len(IDS)), packed(cu, len(IDS)))
    return F.linear(hidden, model.head_weight.to(hidden.dtype))


def test_new_adapters_change_nothing_and_are_the_same_for_the_same_seed(folder):
    plain, _ = load_model(folder)
    model, _ = make(folder, moved=False)
    assert torch.equal(logits(model), logits(plain))
    again, _ = make(folder, moved=False)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters()))
    layers = lora.adapted(model)
    assert len(layers) == 2 * 7 and all(layer.lora_A.abs().max() > 0 for layer in layers.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_sampler_gets_the_weights_that_the_trainer_computes_with(folder, dtype):
    model, _ = make(folder)
    model.to(dtype)
    for layer in lora.adapted(model).values():
        layer.lora_A.data, layer.lora_B.data = layer.lora_A.data.float(), layer.lora_B.data.float()
    model.compute_dtype = dtype
    sampler = Transformer(load_config(folder), dtype).to(dtype)
    given = dict(distributed.full_params(model, dtype))
    assert given.keys() == dict(sampler.named_parameters()).keys()
    with torch.no_grad():
        for name, p in sampler.named_parameters():
            p.copy_(given[name])
    assert torch.equal(logits(model), logits(sampler))
    plain, _ = load_model(folder, dtype)
    assert not torch.equal(logits(sampler), logits(plain))


def test_only_adapters_learn_and_their_gradient_is_that_of_the_sum(folder):
    model, optimizer = make(folder)
    plain, _ = load_model(folder)
    with torch.no_grad():
        for name, p in plain.named_parameters():
            p.copy_(dict(distributed.full_params(model))[name])
    for m in (model, plain):
        backward(m, World(), 10_000)
    weights = dict(plain.named_parameters())
    for name, layer in lora.adapted(model).items():
        whole = weights[f"{name}.weight"].grad
        assert torch.allclose(layer.lora_A.grad, 2 * layer.lora_B.T @ whole, atol=1e-6), name
        assert torch.allclose(layer.lora_B.grad, 2 * whole @ layer.lora_A.T, atol=1e-6), name
    assert all(p.grad is None for p in lora.base_parameters(model).values())
    held = {p for group in optimizer.param_groups for p in group["params"]}
    assert held == {p for p in model.parameters() if p.requires_grad} and len(held) == 2 * 2 * 7


def test_a_checkpoint_holds_the_adapters_alone_and_continues_to_the_bit(folder, tmp_path):
    def steps(model, optimizer, count):
        for _ in range(count):
            backward(model, World(), 10_000)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    model, optimizer = make(folder, moved=False)
    steps(model, optimizer, 2)
    saver = Checkpointer(tmp_path, World())
    saver.save(2, model, optimizer, {})
    names = {name for file in tmp_path.rglob("*.safetensors") for name in load_file(file)}
    assert len(names) == 4 * 2 * 2 * 7 and all(".lora_" in name for name in names)  # masters, moments, steps
    steps(model, optimizer, 2)
    other, fresh = make(folder)
    assert saver.load_latest(other, fresh)[0] == 2
    steps(other, fresh, 2)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters()))


def test_base_and_adapter_merge_to_the_model_that_was_exported(folder, tmp_path, capsys):
    model, _ = make(folder)
    save_model(model, tmp_path / "model")
    lora.save_adapter(model, tmp_path / "adapter", str(folder))
    settings = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    assert (settings["r"], settings["lora_alpha"], settings["peft_type"]) == (4, 8.0, "LORA")
    merge.main([str(folder), str(tmp_path / "adapter"), "--out", str(tmp_path / "merged")])
    assert "1 adapter(s) merged" in capsys.readouterr().out
    one, two = (load_model(tmp_path / name)[0] for name in ("model", "merged"))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters()))
    theirs = LlamaForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    assert torch.allclose(theirs(IDS[None]).logits[0], logits(two), atol=1e-5)


def test_what_does_not_fit_is_one_line(folder, tmp_path):
    model, _ = load_model(folder)
    with pytest.raises(ModelError, match="not an adapter in PEFT's format"):
        merge.merge_adapter(model, tmp_path)
    other, _ = make(folder)
    layer = next(iter(lora.adapted(other).values()))
    layer.lora_A = torch.nn.Parameter(torch.zeros(4, 31))
    lora.save_adapter(other, tmp_path, "x")
    with pytest.raises(ModelError, match=r"is for a weight of \[32, 31\], the model's is \[32, 32\]"):
        merge.merge_adapter(model, tmp_path)
    with pytest.raises(ConfigError, match="--lora"):
        distributed.check_optimizer("adam8", World(), rank=8)


def test_a_folder_that_cannot_be_written_is_one_line(folder, tmp_path, capsys):
    model, _ = make(folder)
    lora.save_adapter(model, tmp_path / "adapter", str(folder))
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as end:
        merge.main([str(folder), str(tmp_path / "adapter"), "--out", str(tmp_path / "file" / "model")])
    assert end.value.code == 2
    assert (
        capsys.readouterr().err
        == f"error: --out {tmp_path}/file/model: cannot write there: Not a directory\n"
    )


def test_the_factors_are_rounded_before_they_are_multiplied():
    w, a, b = torch.randn(6, 5), torch.randn(2, 5), torch.randn(6, 2)
    exact = w.bfloat16().double() + 2 * b.bfloat16().double() @ a.bfloat16().double()
    assert torch.equal(merged(w, a, b, torch.bfloat16), exact.to(torch.float32).bfloat16())
