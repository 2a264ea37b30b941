"""What training makes of a module's weights, in the judge and in the candidate's child alike.

A constructor may make things of its weights: a copy, a norm, a table. Once these have changed, what was
made of them is no longer that of them. So a candidate is judged on trained weights too.
"""

from collections.abc import Collection
from dataclasses import astuple, dataclass, replace

import torch
from torch import nn

GROWN = 16
FADED = 8  # rows of a weight of which one is as small as an eps
# Root mean squares of such rows, and sizes of such elements of a variance: an eps within a root or beside a
# norm counts there.
FAINT = (1e-3, 3e-5)
Parameters = list[list]  # [shape, dtype] of each, in the order of their registration: fit for JSON


def parameters_of(model: object) -> Parameters | None:
    """What must be the same of two modules if `train_` is to change them alike. None if it is no module."""
    if not isinstance(model, nn.Module):
        return None
    return [[list(p.shape), str(p.dtype)] for p in model.parameters()]


@dataclass(frozen=True)
class Table:
    """What training leaves of an embedding's table: the row of its padding index, and a norm that some rows
    are above. number: of its parameter."""

    number: int
    padding_idx: int | None
    max_norm: float | None
    norm_type: float


@dataclass(frozen=True)
class Trained:
    """What training changes: numbers of parameters, counted in the order of their registration, and names of
    buffers.

    tables: which of the parameters are embeddings, in the task. A candidate's need be no layers of torch's.
    flips: a parameter of one element changes its sign. grows: some elements become large, so that a limit
    that the module sets to its weights (a clamp, a saturation) is reached. fades: else some rows become
    faint, so that an eps beside them counts.
    """

    parameters: tuple[int, ...]
    buffers: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    flips: bool = True
    grows: bool = False
    fades: bool = True

    def __bool__(self) -> bool:
        return bool(self.parameters or self.buffers)

    def without_buffers(self) -> "Trained":
        return replace(self, buffers=())


def describe(model: nn.Module, trained: Trained) -> dict:
    """What training changes of the reference's module, in JSON: `described` reads it."""
    buffers = [(name, model.get_buffer(name)) for name in trained.buffers]
    return {
        "parameters": list(trained.parameters),
        "tables": [astuple(table) for table in trained.tables],
        "buffers": [[name, list(t.shape), str(t.dtype)] for name, t in buffers],
        "flips": trained.flips,
        "grows": trained.grows,
        "fades": trained.fades,
    }


def described(description: dict) -> Trained:
    return Trained(
        tuple(description["parameters"]),
        tuple(name for name, _, _ in description["buffers"]),
        tuple(Table(*table) for table in description["tables"]),
        description["flips"],
        description["grows"],
        description["fades"],
    )


def may_change(t: torch.Tensor) -> bool:
    return (t.is_floating_point() or t.is_complex()) and t.numel() > 0


def may_shuffle(t: torch.Tensor) -> bool:
    """Whether a buffer of integers or truth values may be in another order: one of offsets stays."""
    if t.is_floating_point() or t.is_complex() or not t.dim():
        return False
    return bool((t.long().diff(dim=-1) < 0).any())


def every_parameter(model: nn.Module) -> Trained:
    numbers = tuple(i for i, p in enumerate(model.parameters()) if may_change(p))
    return Trained(numbers, tables=tables_of(model))


def tables_of(model: nn.Module) -> tuple[Table, ...]:
    numbers = {id(p): i for i, p in enumerate(model.parameters())}
    found = []
    for module in model.modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and id(module.weight) in numbers:
            number = numbers[id(module.weight)]
            found.append(Table(number, module.padding_idx, module.max_norm, module.norm_type))
    return tuple(found)


def train_(model: nn.Module, seed: int, trained: Trained) -> None:
    """Change weights as training may.

    Each element gets a factor of its own, from 3/4 to 1, so that no recurrence explodes. No parameter of
    several elements has one sign alone; a buffer keeps its signs, because it may be a variance. Single zeros
    of a parameter, which an initialisation may have left, become numbers; the row of a padding index stays
    zero, because no gradient moves it. Half of the rows of an embedding with a `max_norm` are above it.
    A buffer of integers or truth values gets its last dimension in another order.
    """
    generator = torch.Generator().manual_seed(seed)
    parameters, buffers = list(model.parameters()), dict(model.named_buffers())
    with torch.no_grad():
        for number in trained.parameters:
            _train_parameter(parameters[number].detach(), generator, trained)
        for name in trained.buffers:
            _train_buffer(buffers[name], generator, trained)
        for table in trained.tables:
            if table.number in trained.parameters:
                _train_rows(parameters[table.number].detach(), table)


def fits(model: nn.Module, buffers: Collection[tuple[str, list[int], str]]) -> bool:
    """Whether a module has buffers of these names, shapes and dtypes."""
    own = dict(model.named_buffers())
    return all(
        name in own and [list(own[name].shape), str(own[name].dtype)] == [shape, dtype]
        for name, shape, dtype in buffers
    )


def _factors(t: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return torch.empty(t.shape, dtype=torch.float32, device="cpu").uniform_(0.75, 1, generator=generator)


def _train_buffer(buffer: torch.Tensor, generator: torch.Generator, trained: Trained) -> None:
    if may_change(buffer):
        buffer.mul_(_factors(buffer, generator).to(buffer.dtype))
        variances = buffer.dim() == 1 and buffer.is_floating_point() and bool((buffer > 0).all())
        if trained.fades and not trained.grows and variances:
            _fade(buffer, generator)
    else:
        buffer.copy_(buffer[..., torch.randperm(buffer.shape[-1], generator=generator)])


def _train_parameter(param: torch.Tensor, generator: torch.Generator, trained: Trained) -> None:
    if param.is_complex():
        param = torch.view_as_real(param)
    factor = _factors(param, generator)
    zero = param == 0
    if param.numel() == 1:
        if trained.flips and not trained.grows:
            factor.neg_()
    elif bool((param > 0).all()) or bool((param < 0).all()):
        factor *= torch.empty_like(factor).uniform_(-1, 1, generator=generator).sign()
    param.mul_(factor.to(param.dtype))
    if bool(zero.any()):
        size = float(param.float().square().mean().sqrt())
        noise = torch.empty_like(factor).uniform_(-size, size, generator=generator)
        param.copy_(torch.where(zero, noise.to(param.dtype), param))
    if trained.grows:
        _grow(param, generator)
    elif trained.fades and param.dim() > 1:
        _fade(param, generator)


def _grow(param: torch.Tensor, generator: torch.Generator) -> None:
    """Make one element in GROWN large: 2 to 16 times the others, or times 1 if they are smaller.

    One lies in each run of GROWN elements, and of two such runs one becomes positive and the other negative:
    each gate of a recurrence has one that stays open, however its elements fall. A parameter of one element
    keeps its sign, and becomes 4 to 8 times as large: its exponential may be what counts.
    """
    size = max(1.0, float(param.float().square().mean().sqrt()))

    def uniform(count: int, low: float, high: float) -> torch.Tensor:
        return torch.empty(count, dtype=torch.float32, device="cpu").uniform_(low, high, generator=generator)

    if param.numel() == 1:
        grown = uniform(1, 4, 8).view(param.shape) * size * torch.where(param < 0, -1, 1)
        param.copy_(grown.to(param.dtype))
        return
    pairs = max(1, param.numel() // GROWN // 2)
    starts = torch.arange(2 * pairs + 1, device="cpu") * param.numel() // (2 * pairs)
    places = starts[:-1] + (uniform(2 * pairs, 0, 1) * starts.diff()).long().clamp_(max=starts.diff() - 1)
    sign = uniform(pairs, -1, 1).sign()
    large = uniform(2 * pairs, 1, 4).exp2() * size * torch.stack([sign, -sign], 1).view(-1)
    flat = param.flatten().clone()
    flat[places] = large.to(param.dtype)
    param.copy_(flat.view(param.shape))


def _fade(t: torch.Tensor, generator: torch.Generator) -> None:
    """Make one row in FADED, one of four at least, as small as an eps is.

    Its elements keep their proportions.
    """
    rows = len(t)
    count = max(1, rows // FADED) if rows >= 4 else 0
    for row in torch.randperm(rows, generator=generator)[:count].tolist():
        size = FAINT[int(torch.randint(len(FAINT), (), generator=generator))]
        rms = t[row].float().square().mean().sqrt().clamp(min=size)
        t[row] = (t[row].float() * (size / rms)).to(t.dtype)


def _train_rows(rows: torch.Tensor, table: Table) -> None:
    if table.max_norm is not None:
        norms = torch.linalg.vector_norm(rows.float(), table.norm_type, dim=1, keepdim=True)
        wanted = torch.full_like(norms, table.max_norm / 2)
        wanted[::2] *= 4
        rows.mul_((wanted / norms.clamp(min=1e-6)).to(rows.dtype))
    if table.padding_idx is not None:
        rows[table.padding_idx] = 0
