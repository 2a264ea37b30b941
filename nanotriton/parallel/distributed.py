"""One process or many: sharded parameters, microbatches, the optimizer. world.py says which ranks there are.

    def main(cfg, world):
        model, config = load(folder, world)            # fp32 masters in shards, bf16 compute on a GPU
        optimizer = adamw(model, lr)
        for part in accumulate(model, balance(lengths, max_tokens, world)):
            loss(part).backward()                  # each rank's share of a loss with a *global* normaliser
        norm = clip_grad_norm(model, 1.0)
        optimizer.step(); optimizer.zero_grad()
    program.launch(main, cfg)

Gradients are summed over ranks, never averaged: the loss is divided once, by a count taken over every rank
and microbatch. So neither their number changes it, and one rank is the same code with nothing to wait for.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from nanotriton.config import ConfigError
from nanotriton.kernels.adam8 import AdamW8bit
from nanotriton.parallel.checkpoint import local
from nanotriton.parallel.world import World
from nanotriton.transformer import lora
from nanotriton.transformer.model import Transformer
from nanotriton.transformer.model_config import ModelConfig
from nanotriton.transformer.weights import fill, load_config

T = TypeVar("T")


# ---- parameters
def check_optimizer(optimizer: str, world: World, rank: int = 0) -> None:
    """ConfigError for an optimizer that this world, or adapters of this rank (--lora), can't have.

    Call it before anything else is done.
    """
    if optimizer == "adam8" and rank:
        raise ConfigError("--lora trains adapters, which have fp32 masters: use --optimizer adamw")
    if optimizer == "adam8" and world.world_size > 1:
        raise ConfigError(
            "--optimizer adam8 is for one process (bf16 parameters, not sharded); "
            f"with {world.world_size} use adamw"
        )


def load(
    folder: str,
    world: World,
    optimizer: str = "adamw",
    tokens: int = 0,
    copies: float = 0,
    rank: int = 0,
    seed: int = 0,
) -> tuple[Transformer, ModelConfig]:
    """A Hugging Face folder or hub id as a model to train, and its config.

    It is sharded before it is read: each rank reads its rows only.

    optimizer: "adamw" has fp32 masters, "adam8" bf16 parameters (see adamw()). memory_plan() decides how
    memory is saved, from the `tokens` of a microbatch and the bf16 `copies` of the model on each GPU beside
    this one (the sampler's: 1, the reference's: 1 / ranks). rank: of adapters (transformer/lora.py), which
    are then all that is trained, and begin from `seed`; 0: none.
    """
    config = load_config(folder)
    dtype = torch.bfloat16 if optimizer == "adam8" else torch.float32
    if rank and world.world_size == 1:
        dtype = world.dtype  # frozen weights need no masters; FSDP wants one dtype for all
    saving = memory_plan(config, world, optimizer, tokens, copies, rank=rank)
    model = empty(config, world, dtype, *saving, rank=rank)
    fill(model, folder)
    if rank:
        lora.init_adapters(model, seed)
    return model, config


def load_reference(folder: str, world: World) -> Transformer:
    """The model of a folder to compare with, which is never trained.

    It is in world.dtype, sharded, and gathered a layer at a time.
    """
    model = empty(load_config(folder), world, world.dtype, reshard=True)
    fill(model, folder)
    return model.requires_grad_(False)


def empty(
    config: ModelConfig,
    world: World,
    dtype: torch.dtype,
    reshard: bool = False,
    recompute: int = 0,
    defer: bool = False,
    keep_logits: bool = False,
    rank: int = 0,
) -> Transformer:
    """A sharded model on world.device whose values are whatever was in memory.

    It is made on the meta device, so that no rank ever holds it whole.
    """
    with torch.device("meta"):
        model = Transformer(config).to(dtype)
        if rank:
            lora.adapt(model, rank)
    model.checkpoint_layers = recompute
    model.keep_logits = keep_logits
    return shard(model, world, reshard, defer).to_empty(device=world.device)


class MemoryPlan(NamedTuple):
    """The ways in which a model saves memory in training, or spends it. Saving costs time."""

    reshard: bool = False  # gather a layer's parameters for every pass, and not once an optimizer step
    recompute: int = 0  # layers that compute their activations again in the backward, and keep their input
    defer: bool = False  # spends: keep the root's gradients whole, and reduce them once an optimizer step
    keep_logits: bool = False  # spends: keep the head's logits, whose backward would make them again


def memory_plan(
    config: ModelConfig,
    world: World,
    optimizer: str,
    tokens: int,
    copies: float,
    memory: float = 0.0,
    rank: int = 0,
) -> MemoryPlan:
    """The cheapest plan with which this model and a microbatch of `tokens` fit in `memory` bytes.

    memory: 0 takes the GPU's. The other arguments are those of load().

    Bytes a parameter: fp32 masters, two moments and gradients take 16 / ranks, and the gathered bf16 layers
    2, unless they are gathered for every pass; adam8 takes 6. Activations: everything that the backward of
    each layer needs. Of a layer that is recomputed, its input only, and the rest of one at a time: as many
    are as it takes for the others to fit. The head takes its fp32 gradient, that in bf16, and 1.25 GB of
    logits, or all of them where that makes nothing else dearer. In GB, of an 8B and 16,384 tokens:

                                  4 GPUs, adamw, sampler       1 GPU, adam8, sampler shares
        state                     32.8 + 16.4 (the sampler's)  16.4 parameters + 16.4 gradients + 16.6 moments
        gathered                  16.4, or 2.5 + two layers    -
        activations               80, all recomputed: 4.8 + 2.2  (of one layer 2.2, of its input 0.13)
        head                      5                            5

    With adapters (rank > 0) the state is the frozen weights, and the backward needs each layer's weights
    with its adapters merged.

    KV memory takes the rest while gradients and activations are not there: the sampler frees it before
    training. On a CPU nothing is saved.
    """
    if not memory and world.device.type != "cuda":
        return MemoryPlan()
    memory = memory or torch.cuda.get_device_properties(world.device).total_memory
    layer = layer_parameters(config)
    embedding = config.vocab_size * config.hidden_size
    layers = config.num_hidden_layers * layer
    parameters = layers + embedding * (1 if config.tie_word_embeddings else 2)
    sharded = world.world_size > 1

    state = parameters * (6 if optimizer == "adam8" else 16 / world.world_size)
    if rank:
        state = parameters * (4 / world.world_size if sharded else 2)
    state += 2 * parameters * copies
    state += 6 * embedding + 1.25e9  # the head
    state += 0.1 * memory  # fragments, NCCL, CUDA contexts, the executor
    gathered = 2 * parameters if sharded else 0  # bf16
    two_layers = 4 * layer  # gathered for every pass: one in use, one on its way
    kept = activation_bytes(config, tokens) + (2 * layer if rank else 0)  # of a layer
    whole_root = 4 * (parameters - layers)  # fp32 gradients of embedding and head
    # Twice, because the allocator gives parts of that block to others, and then needs another.
    logits = 2 * 4 * config.vocab_size * tokens

    def fits(choice: MemoryPlan) -> bool:
        again = choice.recompute
        whole = config.num_hidden_layers - again + (again > 0)  # one of the recomputed at a time
        need = whole * kept + again * 2 * config.hidden_size * tokens
        need += two_layers if choice.reshard else gathered
        need += whole_root if choice.defer else 0
        need += logits if choice.keep_logits else 0
        return state + need < memory

    choices = memory_plans(config.num_hidden_layers, sharded)
    return next(filter(fits, choices), choices[-1])


def memory_plans(layers: int, sharded: bool) -> list[MemoryPlan]:
    """All plans for a model of so many layers, the cheapest first."""
    found = []
    for counts in ([0], range(1, layers + 1)):  # recomputing costs more than gathering for every pass
        for reshard in (False, True):
            for defer in (True, False):
                if (reshard or defer) and not sharded:
                    continue  # one GPU has nothing to gather or to reduce
                if counts == [0]:  # a layer's activations are less, and cost more to make again
                    found.append(MemoryPlan(reshard, 0, defer, keep_logits=True))
                found += [MemoryPlan(reshard, again, defer) for again in counts]
    return found


def layer_parameters(config: ModelConfig) -> int:
    """Parameters of the matrices of one layer."""
    heads = config.num_attention_heads + config.num_key_value_heads
    attention = 2 * config.hidden_size * config.head_dim * heads
    return attention + 3 * config.hidden_size * config.intermediate_size


def activation_bytes(config: ModelConfig, tokens: int) -> int:
    """Bytes of bf16 activations that one layer saves for the backward of `tokens` tokens.

    What the functions in kernels/layers.py and kernels/heads.py save says which. The first is the layer's
    input.
    """
    heads = config.head_dim * (config.num_attention_heads + config.num_key_value_heads)
    return 2 * (5 * config.hidden_size + 3 * heads + 3 * config.intermediate_size) * tokens


def shard(model: nn.Module, world: World, reshard: bool = False, defer: bool = False) -> nn.Module:
    """Make `model` (whole, the same on every rank, fp32) train on this world, in place; returns it.

    Over several ranks FSDP2 shards every layer and then the rest: each rank keeps 1/world_size of the
    masters, gradients and moments. Layers are gathered in world.dtype one ahead of use, once an optimizer
    step (`reshard=True`: again for every backward and microbatch, which saves 2 bytes a parameter); gradients
    are reduced in fp32. Those of embedding and head come last, where nothing hides their reduction:
    `defer=True` adds them up in fp32 and reduces them once an optimizer step. cast_forward_inputs is off
    because RoPE's tables must stay fp32 in a bf16 model.
    """
    model.compute_dtype = world.dtype
    # here and not in the first forward, which may be the sampler's inference mode
    model.inv_freq = model.inv_freq.to(world.device)
    if world.world_size > 1:
        fsdp(model, world, reshard, defer)
    return model


def fsdp(model: nn.Module, world: World, reshard: bool, defer: bool = False) -> None:
    """The sharding of shard() over several ranks. (A process group of one rank will do too.)"""
    mesh = init_device_mesh(world.device.type, (world.world_size,))
    policy = MixedPrecisionPolicy(world.dtype, torch.float32, cast_forward_inputs=False)
    layers = list(model.model.layers)
    for layer in layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    for a, b in pairwise(layers):
        a.set_modules_to_forward_prefetch([b])
    for module in sharded(model):
        module.set_gradient_divide_factor(1.0)  # a sum over ranks, see the top
        module.set_force_sum_reduction_for_comms(world.device.type == "cpu")  # gloo has no pre-multiplied sum
    model.reshard_every_pass, model.defer_root = reshard, defer


def sharded(model: nn.Module) -> list[FSDPModule]:
    """The modules that FSDP shards: each layer, and the model itself; none over one rank."""
    return [m for m in model.modules() if isinstance(m, FSDPModule)]


def accumulate(model: nn.Module, parts: Iterable[T]) -> Iterator[T]:
    """Yield the microbatches of one optimizer step.

    Parameters stay gathered until the backward of the last.
    """
    parts = list(parts)
    for k, part in enumerate(parts):
        last = k == len(parts) - 1
        for module in sharded(model):
            module.set_is_last_backward(last)
            module.set_reshard_after_backward(last or model.reshard_every_pass, recurse=False)
            module.set_requires_gradient_sync(
                last or module is not model or not model.defer_root, recurse=False
            )
        yield part


def reshard(model: nn.Module) -> None:
    """Let go of gathered parameters, so that model.parameters() are the fp32 masters.

    A forward without a backward keeps them gathered.
    """
    for module in sharded(model):
        module.reshard()


@torch.no_grad()
def full_params(model: nn.Module, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
    """(name, whole tensor in dtype or its own) of every parameter, adapters merged, one at a time.

    It is a collective: all ranks iterate together.
    """
    reshard(model)
    yield from lora.whole_weights(model, dtype)


def check_same(tensors: Iterable[tuple[str, Tensor]], world: World) -> str:
    """A hash of what all ranks hold. RuntimeError names the first tensor in which two ranks differ.

    Of each tensor's bits it takes 64 interleaved sums, exact and on its own device, so that only a few bytes
    travel.
    """
    digests = {}
    for name, x in tensors:
        bits = x.detach().contiguous().view(torch.uint8).flatten()
        whole = len(bits) // 512 * 512
        sums = bits[:whole].view(torch.int64).view(-1, 64).sum(0).tolist() + bits[whole:].tolist()
        digests[name] = hashlib.sha256(repr((x.shape, x.dtype, sums)).encode()).hexdigest()
    for rank, other in enumerate(world.gather(digests)):
        wrong = [name for name in digests if other.get(name) != digests[name]]
        if wrong:
            raise RuntimeError(
                f"ranks {world.rank} and {rank} hold different parameters, "
                f"first {wrong[0]} ({len(wrong)} in all)"
            )
    return hashlib.sha256("".join(digests.values()).encode()).hexdigest()


# ---- one optimizer step
def balance(lengths: Sequence[int], max_tokens: int, world: World = World()) -> list[list[int]]:
    """Sequences of these lengths -> microbatches (lists of their indices), as many on every rank.

    A microbatch has at most max_tokens, unless a single sequence is longer. There are as few of them as that
    allows, and they are as equal as longest-first makes them. A rank with too few sequences gets empty ones,
    and still has to run a pass for each: FSDP's collectives wait for it. There is at least one even where no
    rank has a sequence.

    >>> balance([5, 3, 4, 1], max_tokens=8)
    [[0, 3], [1, 2]]
    """
    parts = max(1, -(-sum(min(n, max_tokens) for n in lengths) // max_tokens))
    while too_long(longest_first(lengths, parts), lengths, max_tokens):
        parts += 1
    most = world.all_max(torch.tensor(parts))
    return longest_first(lengths, int(most))


def longest_first(lengths: Sequence[int], parts: int) -> list[list[int]]:
    """Put each sequence, the longest first, into the part that has the fewest tokens."""
    bins: list[list[int]] = [[] for _ in range(parts)]
    loads = [0] * parts
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        least = loads.index(min(loads))
        bins[least].append(i)
        loads[least] += lengths[i]
    return [sorted(b) for b in bins]


def too_long(bins: list[list[int]], lengths: Sequence[int], max_tokens: int) -> bool:
    """Whether a part of several sequences has more than max_tokens tokens."""
    return any(len(b) > 1 and sum(lengths[i] for i in b) > max_tokens for b in bins)


def clip_grad_norm(model: nn.Module, max_norm: float) -> Tensor:
    """Scale the gradients, over all ranks, to at most max_norm in the 2-norm -> the norm before.

    The norm is a scalar, the same on every rank.
    """
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    if any(g.dtype == torch.bfloat16 for g in grads):  # whose norms would be bf16 too
        norm = torch.stack([torch.linalg.vector_norm(g, dtype=torch.float32) for g in grads]).norm()
        for g in grads:
            g.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))
        return norm
    norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def adamw(
    model: nn.Module, lr: float, weight_decay: float = 0.0, betas: tuple[float, float] = (0.9, 0.95)
) -> torch.optim.Optimizer:
    """Fused AdamW on the fp32 masters (call it after shard()); decay on matrices only.

    Parameters that were loaded in bf16 have no masters: they get 8-bit moments and stochastic rounding, with
    which an 8B model fits on one GPU (kernels/adam8.py).
    """
    params = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in params if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in params if p.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [g for g in groups if g["params"]]
    if any(p.dtype == torch.bfloat16 for p in params):
        return AdamW8bit(groups, lr=lr, betas=betas)
    return torch.optim.AdamW(groups, lr=lr, betas=betas, fused=True)


def moments_to_come(optimizer: torch.optim.Optimizer) -> int:
    """Bytes that the first step will allocate on this rank and keep: moments that parameters lack so far."""
    each = 2 if isinstance(optimizer, AdamW8bit) else 8
    params = chain(*(group["params"] for group in optimizer.param_groups))
    return each * sum(local(p).numel() for p in params if not optimizer.state.get(p))


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Let all parameters have this learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = lr
