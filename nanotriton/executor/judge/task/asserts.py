"""What CUDA's kernels assert of their operands: probabilities between 0 and 1, indices within a tensor.

There a failed assertion ends the process's context, and with it all that is in flight. On a CPU it is an
exception. `Asserts` makes it one on a GPU too: it looks at the operands of such operators before they are
launched. It waits for the GPU each time, so only tasks that call such operators are run with it.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from nanotriton.executor.judge.task.watching import Watching

Range = tuple[Tensor, float, float]  # an operand, the least and the most that it may be


def _probabilities(p: Tensor, *_) -> Iterator[Range]:
    yield p, 0, 1


def _two_probabilities(p: Tensor, target: Tensor, *_) -> Iterator[Range]:
    yield p, 0, 1
    yield target, 0, 1


def _probabilities_of_fill(_: Tensor, p: float | Tensor = 0.5, *__) -> Iterator[Range]:
    if isinstance(p, Tensor):
        yield p, 0, 1


def _weights(p: Tensor, *_) -> Iterator[Range]:
    largest = torch.finfo(p.dtype).max
    yield p, 0, largest
    yield p.sum(-1), torch.finfo(p.dtype).tiny, largest


def _rates(rate: Tensor, *_) -> Iterator[Range]:
    yield rate, 0, torch.finfo(rate.dtype).max


def _classes(scores: Tensor, target: Tensor, *options) -> Iterator[Range]:
    ignored = options[2] if len(options) > 2 else -100  # after the classes' weights and the reduction
    yield target.masked_fill(target == ignored, 0), 0, scores.shape[min(1, scores.dim() - 1)] - 1


def _margin_classes(scores: Tensor, target: Tensor, *_) -> Iterator[Range]:
    yield target, 0, scores.shape[-1] - 1


def _rows(table: Tensor, indices: Tensor, *_) -> Iterator[Range]:
    yield indices, 0, len(table) - 1


def _along(t: Tensor, dim: int, index: Tensor, *_) -> Iterator[Range]:
    yield index, 0, (t.shape[dim] if t.dim() else 1) - 1


def _flat(t: Tensor, index: Tensor, *_) -> Iterator[Range]:
    yield index, -t.numel(), t.numel() - 1


def _unpooled(_: Tensor, indices: Tensor, size: list[int], *__) -> Iterator[Range]:
    yield indices, 0, math.prod(size) - 1


def _indexed(t: Tensor, indices: list[Tensor | None], *_) -> Iterator[Range]:
    """t[indices]: a mask takes as many dimensions as it has, numbers and None take one."""
    dim = 0
    for index in indices:
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            dim += index.dim()
            continue
        if index is not None:
            yield index, -t.shape[dim], t.shape[dim] - 1
        dim += 1


# Operators, by the name of their overload packet, and what is asserted of their operands.
CALLED = {
    _two_probabilities: ["binary_cross_entropy"],
    _probabilities: ["bernoulli"],
    _probabilities_of_fill: ["bernoulli_"],
    _weights: ["multinomial"],
    _rates: ["poisson"],
    _classes: ["nll_loss_forward", "nll_loss2d_forward"],
    _margin_classes: ["multi_margin_loss"],
    _rows: ["embedding", "embedding_renorm_", "_embedding_bag", "_embedding_bag_forward_only"],
    _along: ["gather", "index_select"],
    _flat: ["take", "put", "put_"],
    _unpooled: ["max_unpool2d", "max_unpool3d"],
    _indexed: ["index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_"],
}
for name in ("scatter", "scatter_add", "scatter_reduce"):
    CALLED[_along] += [name, f"{name}_"]
for name in ("index_add", "index_copy", "index_fill", "index_reduce"):
    CALLED[_along] += [name, f"{name}_"]
PYTHONS = frozenset(CALLED[_indexed])  # where an index below 0 counts from the end
RANGES = {name: ranges for ranges, names in CALLED.items() for name in names}


class Asserts(Watching):
    """Raises RuntimeError in place of a failing assertion.

    looks: whether it does. met: whether an operator that has one was called.
    """

    def __init__(self, looks: bool = True):
        super().__init__()
        self.looks, self.met = looks, False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in RANGES:
            self.met = True
            for t, least, most in RANGES[name](*args) if self.looks else ():
                if not bool(((t >= least) & (t <= most)).all()):  # NaN is not
                    raise RuntimeError(f"{name}: an operand is not between {least:g} and {most:g}")
        return func(*args, **(kwargs or {}))


class Wraps(Watching):
    """Notes in `met` whether an index below 0 was met where Python's rule counts it from the end.

    A task whose draws have none does not mean the last element by one: it is what is left of a length of 0.
    """

    def __init__(self):
        super().__init__()
        self.met = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in PYTHONS and not self.met:
            self.met = any(bool((t < 0).any()) for t, _, _ in _indexed(*args))
        return func(*args, **(kwargs or {}))
