"""LoRA: the weights stay as they are, and each linear layer learns a correction of low rank.

    y = x (W + s B A)^T,   A [rank, in],   B [out, rank],   s = SCALE                       (arXiv 2106.09685)

The sum W + s B A is made in fp32, rounded to the dtype of the computation, and only then multiplied. The
sampler gets that same sum as its weight (distributed.full_params), so sampler and trainer compute with equal
weights, which two products and an addition of their results would not give.

A run with --lora leaves adapter/ in PEFT's format beside model/, where the adapters are merged. merge.py
rebuilds the second from the first.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from nanotriton.transformer.model import Linear, Transformer
from nanotriton.transformer.tensor_files import shard_rows, write_tensors

SCALE = 2.0  # s; PEFT calls rank * s "lora_alpha"
PREFIX = "base_model.model."  # of PEFT's tensor names
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class LoRALinear(Linear):
    """A Linear whose weight is frozen, with an adapter of fp32 masters beside it."""

    def __init__(self, base: Linear, rank: int):
        nn.Module.__init__(self)
        self.in_features, self.out_features = base.in_features, base.out_features
        self.weight, self.bias = base.weight, base.bias
        device = base.weight.device
        self.lora_A = nn.Parameter(torch.empty(rank, base.in_features, dtype=torch.float32, device=device))
        self.lora_B = nn.Parameter(torch.empty(base.out_features, rank, dtype=torch.float32, device=device))

    def forward(self, x: Tensor) -> Tensor:
        weight = merged(self.weight, self.lora_A, self.lora_B, x.dtype)
        return F.linear(x, weight, None if self.bias is None else self.bias.to(x.dtype))


def merged(weight: Tensor, a: Tensor, b: Tensor, dtype: torch.dtype, scale: float = SCALE) -> Tensor:
    """W + s B A [out, in] in dtype. The factors are rounded to it first, as FSDP gathers them in it."""
    return (weight.to(dtype).float() + scale * (b.to(dtype).float() @ a.to(dtype).float())).to(dtype)


def adapt(model: Transformer, rank: int) -> None:
    """Freeze the model; each linear layer of its blocks gets an adapter whose values are yet to be set."""
    model.requires_grad_(False)
    for layer in model.model.layers:
        for block in (layer.self_attn, layer.mlp):
            for name in TARGETS:
                if hasattr(block, name):
                    setattr(block, name, LoRALinear(getattr(block, name), rank))


def adapted(model: nn.Module) -> dict[str, LoRALinear]:
    """The layers that have an adapter, by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, LoRALinear)}


@torch.no_grad()
def init_adapters(model: nn.Module, seed: int) -> None:
    """A as PEFT does it, uniform within 1 / sqrt(in), the same on any number of ranks; B is 0."""
    generator = torch.Generator().manual_seed(seed)
    for module in adapted(model).values():
        bound = 1 / math.sqrt(module.in_features)
        whole = torch.empty(module.lora_A.shape).uniform_(-bound, bound, generator=generator)
        if isinstance(module.lora_A, DTensor):
            mesh = module.lora_A.device_mesh
            start, stop = shard_rows(len(whole), mesh.get_local_rank(), mesh.size())
            module.lora_A.to_local().copy_(whole[start:stop])
            module.lora_B.to_local().zero_()
        else:
            module.lora_A.copy_(whole)
            module.lora_B.zero_()


def base_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that a Hugging Face folder has: all but the adapters'."""
    return {name: p for name, p in model.named_parameters() if ".lora_" not in name}


@torch.no_grad()
def whole_weights(model: nn.Module, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
    """(name, whole tensor in dtype or its own) of every base parameter, adapters merged, one at a time.

    A collective: all ranks iterate together. Shards are cast before they travel, so bf16 is half the traffic.
    """
    layers = adapted(model)
    for name, p in base_parameters(model).items():
        layer = layers.get(name.removesuffix(".weight"))
        to = dtype or p.dtype
        value = whole(p, to)
        if layer is not None:
            value = merged(value, whole(layer.lora_A, to), whole(layer.lora_B, to), to)
        yield name, value


def whole(x: Tensor, dtype: torch.dtype) -> Tensor:
    """All rows of a tensor that may be sharded, in dtype."""
    x = x.detach().to(dtype)
    return x.full_tensor() if isinstance(x, DTensor) else x


# ---- PEFT's format
def save_adapter(model: nn.Module, folder: Path, base: str, writer: bool = True) -> None:
    """Write the adapters as PEFT reads them. A collective; `writer`: the rank that has the disk."""
    layers = adapted(model)
    tensors = {}
    for name, layer in layers.items():
        for part in ("lora_A", "lora_B"):
            value = whole(getattr(layer, part), torch.float32)
            if writer:
                tensors[f"{PREFIX}{name}.{part}.weight"] = value.cpu().contiguous()
    if not writer:
        return
    rank = next(iter(layers.values())).lora_A.shape[0]
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": rank * SCALE,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(TARGETS),
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder / "adapter_model.safetensors", tensors)
    (folder / "adapter_config.json").write_text(json.dumps(settings, indent=2) + "\n")
