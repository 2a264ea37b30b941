"""How a replay runs an ATen operator: into which memory its results go, and by which of torch's kernels.

A replay should take as long as the candidate's own code. It makes no second buffer and no copy that torch
would not make, and on a GPU it makes the cuDNN call that torch chooses.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

COPIES = {"clone", "_to_copy"}
SOURCE = {"clone": 0, "_to_copy": 0, "copy_": 1}  # number of the argument that is copied
RESIZES = {"smooth_l1_loss"}  # reduced, its out variant first takes the result for an unreduced one
FILLS = {"zeros": 0, "zeros_like": 0, "new_zeros": 0, "ones": 1, "ones_like": 1, "new_ones": 1}
FACTORY = frozenset({"dtype", "layout", "device", "pin_memory"})  # a given result has them already
CONVOLUTION_ARGUMENTS = 9
BATCH_NORM_ARGUMENTS = 8

# (args, kwargs, tensors for the results): a call that writes there
WritesInto = Callable[[list, dict, list[torch.Tensor]], Any]


@functools.lru_cache(maxsize=1024)
def operator(name: str) -> torch._ops.OpOverload:
    """The operator of a name such as "add.Tensor"."""
    packet, overload = name.split(".")
    return getattr(getattr(torch.ops.aten, packet), overload)


def _overloads(packet: torch._ops.OpOverloadPacket) -> list[torch._ops.OpOverload]:
    return [getattr(packet, name) for name in packet.overloads()]


@functools.lru_cache(maxsize=1024)
def copies(name: str) -> bool:
    """Whether torch has no kernel that writes this operator's results into given tensors.

    Its out variant then computes first and copies afterwards. Of batch norms torch has such a kernel, but
    on a GPU it prefers cuDNN's, which can't write there.
    """
    packet = getattr(torch.ops.aten, name.split(".")[0])
    if packet is torch.ops.aten.native_batch_norm:
        return True
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    for overload in _overloads(packet):
        has_out = any(argument.is_out for argument in overload._schema.arguments)
        if has_out and not has_kernel(overload.name(), "CompositeExplicitAutograd"):
            return False
    return True


def as_torch_runs(op: str, args: list, outs: list[torch.Tensor] | None) -> list[torch.Tensor] | None:
    """Run an operator by the cuDNN call that torch makes for it on a GPU.

    A recording knows no GPU, so it names the operators above that choice.
    outs: tensors for the results. Returns None if torch makes no such call, or none that can write into
    `outs`.
    """
    if op == "native_batch_norm.default" and len(args) == BATCH_NORM_ARGUMENTS and outs is None:
        return list(torch._batch_norm_impl_index(*args, torch.backends.cudnn.enabled)[:3])
    if op != "convolution.default" or len(args) != CONVOLUTION_ARGUMENTS or outs is None:
        return None
    if torch._C._select_conv_backend(*args) != torch._C._ConvBackend.Cudnn:
        return None
    (out,) = outs
    _cudnn_convolution(args, out)
    bias = args[2]
    if bias is not None:
        out.add_(bias.view(-1, *[1] * (out.dim() - 2)))
    return [out]


def _cudnn_convolution(args: list, out: torch.Tensor) -> None:
    """cuDNN's convolution without bias. One of one dimension gets another of size 1, as in torch."""
    x, weight, _, stride, padding, dilation, _, _, groups = args
    stride, padding, dilation = list(stride), list(padding), list(dilation)
    if x.dim() == 3:
        x, weight, out = x.unsqueeze(2), weight.unsqueeze(2), out.unsqueeze(2)
        stride, padding, dilation = [1, *stride], [0, *padding], [1, *dilation]
    cudnn = torch.backends.cudnn
    torch.ops.aten.cudnn_convolution.out(
        x,
        weight,
        padding,
        stride,
        dilation,
        groups,
        cudnn.benchmark,
        cudnn.deterministic,
        cudnn.allow_tf32,
        out=out,
    )


@functools.lru_cache(maxsize=1024)
def writes_into(name: str) -> WritesInto | None:
    """The same operator with its results written into given tensors, or None if torch has none.

    So the timed part of a replay has no second buffer and no second copy.
    """
    packet = name.split(".")[0]
    if packet in COPIES:
        return lambda args, kwargs, outs: outs[0].copy_(args[0])
    if packet in FILLS:
        return lambda args, kwargs, outs: outs[0].fill_(FILLS[packet])
    if packet in RESIZES:
        return None
    plain = {a.name: str(a.type) for a in operator(name)._schema.arguments}
    implied = {key: ty for key, ty in plain.items() if key in FACTORY}
    for overload in _overloads(getattr(torch.ops.aten, packet)):
        arguments = overload._schema.arguments
        outs = [a.name for a in arguments if a.is_out]
        others = {a.name: str(a.type) for a in arguments if not a.is_out}
        if outs and others | implied == plain:
            return functools.partial(_call_with_outs, overload, outs, others.keys())
    return None


def _call_with_outs(overload, names: list[str], known, args: list, kwargs: dict, outs: list[torch.Tensor]):
    """Call an out variant. names: of its out arguments. known: the names of its other arguments."""
    kept = {name: value for name, value in kwargs.items() if name in known}
    return overload(*args, **kept, **dict(zip(names, outs, strict=True)))
