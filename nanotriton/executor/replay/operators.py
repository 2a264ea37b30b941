"""How a replay runs an ATen operator: where its results are written, and with which of torch's kernels.

A replay should take as long as the candidate's own code: no second buffer, no copy that torch would not make, on a GPU the cuDNN call that
torch chooses.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch


@functools.lru_cache(maxsize=1024)
def operator(name: str) -> torch._ops.OpOverload:
    packet, overload = name.split(".")
    return getattr(getattr(torch.ops.aten, packet), overload)


COPIES = {"clone", "_to_copy"}
SOURCE = {"clone": 0, "_to_copy": 0, "copy_": 1}  # which argument is copied
RESIZES = {"smooth_l1_loss"}  # reduced, its out variant first takes the result for an unreduced one
FILLS = {"zeros": 0, "zeros_like": 0, "new_zeros": 0, "ones": 1, "ones_like": 1, "new_ones": 1}


@functools.lru_cache(maxsize=1024)
def copies(name: str) -> bool:
    """Whether torch has no kernel that writes this operator's results into given tensors: its out variant computes, then copies.

    Of batch norms it has one, but on a GPU prefers cuDNN's, which can't.
    """
    packet = getattr(torch.ops.aten, name.split(".")[0])
    if packet is torch.ops.aten.native_batch_norm:
        return True
    outs = [
        f
        for f in (getattr(packet, o) for o in packet.overloads())
        if any(a.is_out for a in f._schema.arguments)
    ]
    return all(
        torch._C._dispatch_has_kernel_for_dispatch_key(f.name(), "CompositeExplicitAutograd") for f in outs
    )


def as_torch_runs(op: str, args: list, outs: list[torch.Tensor] | None) -> list[torch.Tensor] | None:
    """An operator by the cuDNN call that torch makes for it on a GPU; None: it makes none, or none that can write into `outs`.

    outs: tensors for the results. A recording knows no GPU, so it names the operators above the choice.
    """
    if op == "native_batch_norm.default" and len(args) == 8 and outs is None:
        return list(torch._batch_norm_impl_index(*args, torch.backends.cudnn.enabled)[:3])
    if (
        op != "convolution.default"
        or len(args) != 9
        or outs is None
        or torch._C._select_conv_backend(*args) != torch._C._ConvBackend.Cudnn
    ):
        return None
    x, weight, bias, stride, padding, dilation, _, _, groups = args
    (out,), cudnn = outs, torch.backends.cudnn
    # in one dimension, as torch, with another of size one
    two = [t.unsqueeze(2) if t.dim() == 3 else t for t in (x, weight, out)]
    stride, padding, dilation = (
        [n] * (two[0].dim() - x.dim()) + list(v) for n, v in ((1, stride), (0, padding), (1, dilation))
    )
    torch.ops.aten.cudnn_convolution.out(
        two[0],
        two[1],
        padding,
        stride,
        dilation,
        groups,
        cudnn.benchmark,
        cudnn.deterministic,
        cudnn.allow_tf32,
        out=two[2],
    )
    if bias is not None:
        out.add_(bias.view(-1, *[1] * (out.dim() - 2)))
    return [out]


@functools.lru_cache(maxsize=1024)
def writes_into(name: str) -> Callable[[list, dict, list[torch.Tensor]], Any] | None:
    """The same operator with its results written into given tensors: no second buffer, no second copy in what is timed."""
    packet = name.split(".")[0]
    if packet in COPIES:
        return lambda args, kwargs, outs: outs[0].copy_(args[0])
    if packet in FILLS:
        return lambda args, kwargs, outs: outs[0].fill_(FILLS[packet])
    if packet in RESIZES:
        return None
    plain = {a.name: str(a.type) for a in operator(name)._schema.arguments}
    factory = {"dtype", "layout", "device", "pin_memory"}  # the result has them already
    for overload in getattr(torch.ops.aten, packet).overloads():
        found = getattr(getattr(torch.ops.aten, packet), overload)
        arguments = found._schema.arguments
        outs = [a.name for a in arguments if a.is_out]
        others = {a.name: str(a.type) for a in arguments if not a.is_out}
        if outs and others | {k: v for k, v in plain.items() if k in factory} == plain:
            return lambda args, kwargs, given, f=found, names=outs, others=others: f(
                *args,
                **{k: v for k, v in kwargs.items() if k in others},
                **dict(zip(names, given, strict=True)),
            )
    return None
