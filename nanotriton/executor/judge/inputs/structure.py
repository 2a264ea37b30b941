"""The structure of drawn arguments that a task does not promise: ids that are distinct, sorted, consecutive
or all there, rows of a mask that are never empty, a matrix that is symmetric.

A task that draws `torch.randperm(n)` gives distinct indices in every draw, and a kernel that relies on it (a
plain store for an atomic sum) is wrong for the indices that another caller has. So such arguments are moved
too, like those that never differ (moves.py), in the first way that the reference survives.

A task promises a structure by naming it in a comment or in a docstring: "a symmetric matrix". Offsets from 0
on keep their order, because a reference that slices by them gives anything for others; but some of them
become equal, as those of empty parts are. Where a reference writes to the places that its indices name, which
of two writes to one place stays is anyone's choice, so no index comes twice. So it is where it sorts distinct
numbers.
"""

import ast
import contextlib
import io
import tokenize

import torch
from torch import Tensor

from nanotriton.executor.judge.inputs.kinds import UNSTABLE
from nanotriton.plan.aten import words

PROMISES = {
    "distinct": words("distinct unique uniquely permutation permuted permutations"),
    "sorted": words("sorted ascending descending monotonic monotonically nondecreasing ordered increasing"),
    "symmetric": words("symmetric hermitian undirected"),
    "all there": words("consecutive contiguous dense covers"),
}
# These write to places that indices name.
WRITING = words("""
    scatter index_copy index_put _unsafe_index_put put masked_scatter setitem index_fill slice_scatter
""")
# These take numbers that must be in order, such as offsets, and do not check that they are.
TRUSTING = words("""
    embedding_bag _embedding_bag segment_reduce searchsorted bucketize sparse_csr_tensor
    sparse_compressed_tensor pack_padded_sequence _pack_padded_sequence
""")
# These take labels, of which any number from 0 to 1 is one.
LABELLED = words("binary_cross_entropy binary_cross_entropy_with_logits")
# Parts of the names of what takes one triangle of a matrix.
FACTORING = ("cholesky", "eigh", "eigvalsh", "ldl", "lobpcg")
ROWS = 3  # of as many rows of ids, two are made uniform
WIDE = 3  # elements of a row that may be a mask's
IDS = 16  # constant integers that are fewer may be sizes
FEW = 8  # ids from so small a part of their range on, start at 0


def crowd(x: Tensor, generator: torch.Generator) -> None:
    """Half of the elements become one of the values, and a quarter of the values come no more.

    One row is all of the smallest value, another one but for a single element.
    """
    y, shares = x.clone(), torch.rand(x.shape, generator=generator).to(x.device)
    values = y.unique()
    order = values[torch.randperm(len(values), generator=generator).to(x.device)]
    lost = max(1, len(order) // 4) if len(order) > 2 else 0
    gone = order[1 : 1 + lost]
    y = torch.where((shares < 1 / 2) | torch.isin(y, gone), order[0], y)
    rows = y.reshape(-1, y.shape[-1])
    if len(rows) >= ROWS and rows.shape[1] > 1:
        first, second = torch.randperm(len(rows), generator=generator)[:2].tolist()
        rows[first], rows[second] = values[0], values[0]
        rows[second, int(torch.randint(rows.shape[1], (), generator=generator))] = values[-1]
    x.copy_(rows.reshape(x.shape))


def crowd_from_zero(x: Tensor, generator: torch.Generator) -> None:
    """As `crowd`, and one element in 16, one at least, is 0."""
    crowd(x, generator)
    x.masked_fill_(_some(x, 1 / 16, generator), 0)


def crowd_lower(x: Tensor, generator: torch.Generator) -> None:
    """As `crowd`, and lengths are shorter.

    Half of the elements, one at least, are any number from 1 up to the smallest there was.
    """
    smallest = x.min()
    crowd(x, generator)
    shares = torch.rand(x.shape, generator=generator).to(x.device)
    x.copy_(torch.where(_some(x, 1 / 2, generator), (shares * (smallest - 1)).to(x.dtype) + 1, x))


def _some(x: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Whether an element is one of a share of all elements, of one at least."""
    chance = torch.rand(x.shape, generator=generator)
    return (chance <= max(share, float(chance.min()))).to(x.device)


def crowd_to_zero(x: Tensor, generator: torch.Generator) -> None:
    """As `crowd_lower`, and one length in four, one at least, is 0."""
    crowd_lower(x, generator)
    x.masked_fill_(_some(x, 1 / 4, generator), 0)


def crowd_in_order(x: Tensor, generator: torch.Generator) -> None:
    """As `crowd`, in the order in which the values were: rising or falling."""
    falls = bool((x.diff(dim=-1) <= 0).all())
    crowd(x, generator)
    x.copy_(x.sort(dim=-1, descending=falls).values)


def close_gaps(x: Tensor, generator: torch.Generator) -> None:
    """Half of the offsets within become equal to the one before them.

    So some parts are empty, and the one after these is as long as it can be. Of several such places one is
    drawn.
    """
    most = max(1, (len(x) - 2) // 2)
    lengths = x[most + 1 :] - x[: -most - 1]
    longest = (lengths == lengths.max()).nonzero()
    before = int(longest[int(torch.randint(len(longest), (), generator=generator))])
    x[before + 1 : before + 1 + most] = x[before].clone()


def soften(x: Tensor, generator: torch.Generator) -> None:
    """Half of the labels 0 and 1 become numbers in between."""
    chance = torch.rand(x.shape, generator=generator).mul_(2).sub_(1).to(x.device, x.dtype)
    x.copy_(torch.where(chance > 0, chance, x))


def skew(x: Tensor, generator: torch.Generator) -> None:
    """Break a matrix's symmetry: each element above the diagonal gets a factor of its own, from -1 to 1."""
    factors = torch.rand(x.shape, generator=generator).mul_(2).sub_(1).to(x.device, x.dtype)
    x.copy_(torch.where(torch.ones_like(x, dtype=torch.bool).triu(1), x * factors, x))


def bare_rows(x: Tensor, generator: torch.Generator) -> None:
    """Of the rows of a mask one becomes all True, one all False, and one keeps its first True alone."""
    full, *others = _some_rows(x, 3, generator)
    full.fill_(1)
    for row in others[:1]:
        row.fill_(0)
    for row in others[1:]:
        row.copy_(torch.where(row.cumsum(0) == 1, row, torch.zeros_like(row)))


def full_rows(x: Tensor, generator: torch.Generator) -> None:
    """One row of a mask becomes all True: where a reference gives NaN for a row that is empty."""
    _some_rows(x, 1, generator)[0].fill_(1)


def crowd_and_bare_rows(x: Tensor, generator: torch.Generator) -> None:
    """As `crowd`, and then as `bare_rows`."""
    crowd(x, generator)
    bare_rows(x, generator)


def _some_rows(x: Tensor, most: int, generator: torch.Generator) -> list[Tensor]:
    """Views of so many rows, or of as many as there are. Rows lie along the last dimension that has some."""
    rows = x.squeeze()
    order = torch.randperm(rows[..., 0].numel(), generator=generator)[:most]
    return [rows[torch.unravel_index(i, rows.shape[:-1])] for i in order]


WAYS = (
    crowd,
    crowd_from_zero,
    crowd_lower,
    crowd_to_zero,
    crowd_in_order,
    crowd_and_bare_rows,
    close_gaps,
    soften,
    skew,
    bare_rows,
    full_rows,
)


def promises(source: str) -> frozenset[str]:
    """The structures that a task's comments and docstrings name."""
    named = words(" ".join(_prose(source)).lower())
    stems = {word.strip(".,;:()[]`'\"!?-") for word in named}
    return frozenset(kind for kind, known in PROMISES.items() if known & stems)


def _prose(source: str) -> list[str]:
    """The comments and docstrings of a task. A task that is no Python, which is refused elsewhere, has none
    beyond its first error.
    """
    found = []
    with contextlib.suppress(SyntaxError, tokenize.TokenError):
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                found.append(token.string.lstrip("#"))
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                found.append(ast.get_docstring(node) or "")
    return found


def ways_of_drawn(
    draws: list[Tensor], called: set[str], promised: frozenset[str], sizes: frozenset[int] = frozenset()
) -> tuple[str, ...]:
    """The ways in which to move an argument that was drawn so, the best first.

    draws: a few draws of it. called: names of the operators that the reference calls. promised: structures
    that the task names. sizes: of the dimensions of the task's tensors.
    """
    first = draws[0]
    symmetric = all(map(is_symmetric, draws))
    mask = not (symmetric and "symmetric" in promised) and all(map(is_mask, draws))
    bare = ("bare_rows", "full_rows") if mask else ()
    if first.is_floating_point():
        factored = any(part in name for name in called for part in FACTORING)
        skewed = symmetric and not factored and "symmetric" not in promised
        soft = ("soften",) if called & LABELLED and all(map(is_zeros_and_ones, draws)) else ()
        return ("skew",) if skewed else (*soft, *bare)
    if first.dtype == torch.bool:
        return bare
    if first.is_complex() or first.numel() < 2 or not first.dim():
        return ()
    in_order = all(map(is_sorted, draws))
    if all(are_offsets(draw, sizes) for draw in draws):
        return ("close_gaps",) if first.numel() > 2 and not promised & {"sorted", "distinct"} else ()
    if in_order and called & TRUSTING:
        return ()
    distinct = all(len(draw.unique()) == draw.numel() for draw in draws)
    if called & WRITING or (distinct and (called & UNSTABLE or "distinct" in promised)):
        return ("shuffle",) if in_order and "sorted" not in promised else ()
    found = ["crowd_in_order"] if in_order else []
    if "sorted" in promised and in_order:
        return tuple(found)
    return (*ways_of_range(draws, mask), "crowd", *found)


def ways_of_constant(
    t: Tensor, called: set[str], promised: frozenset[str], sizes: frozenset[int]
) -> tuple[str, ...]:
    """The ways in which to move integers that are the same in every draw, as if they were drawn.

    They are offsets at several distances, and ids that repeat, such as the ends of a graph's edges: a plain
    shuffle leaves a ring a ring. Offsets at one distance stay, because a kernel may rely on it.
    """
    if t.dtype not in (torch.int32, torch.int64) or t.numel() < 3 or not t.dim():
        return ()
    if are_offsets(t, sizes):
        return ways_of_drawn([t], called, promised, sizes) if len(t.diff().unique()) > 1 else ()
    repeats = t.numel() >= IDS and 1 < len(t.unique()) < t.numel()
    return ways_of_drawn([t], called, promised) if repeats and not is_sorted(t) else ()


def ways_of_range(draws: list[Tensor], mask: bool) -> tuple[str, ...]:
    """What else may come of integers of such a range. mask: whether they are the zeros and ones of a mask."""
    low, high = min(int(d.min()) for d in draws), max(int(d.max()) for d in draws)
    first = ("crowd_and_bare_rows",) if mask else ()
    if 0 <= low * FEW <= high:
        return (*first, "crowd_from_zero")
    return (*first, "crowd_to_zero", "crowd_lower") if low > 1 else first


def is_zeros_and_ones(x: Tensor) -> bool:
    return bool(((x == 0) | (x == 1)).all())


def is_symmetric(x: Tensor) -> bool:
    """Whether it is a matrix, or several, equal to its transpose and not diagonal."""
    square = x.dim() > 1 and x.shape[-1] == x.shape[-2] > 1
    return square and torch.equal(x, x.mT) and bool(x.triu(1).any())


def is_mask(x: Tensor) -> bool:
    """Whether it has rows of zeros and ones, not as many ones in each: rows with one 1 each are a choice."""
    if not has_rows(x) or not is_zeros_and_ones(x):
        return False
    counts = x.squeeze().count_nonzero(-1)
    return bool((counts != counts.reshape(-1)[0]).any())


def has_rows(x: Tensor) -> bool:
    """Whether it has several rows of at least WIDE elements."""
    rows = x.squeeze()
    return rows.dim() > 1 and rows.shape[-1] >= WIDE and rows.numel() > 0


def is_sorted(x: Tensor) -> bool:
    """Whether each row rises, or each one falls; equal neighbours do both."""
    steps = x.diff(dim=-1)
    return bool((steps >= 0).all() or (steps <= 0).all())


def are_offsets(x: Tensor, sizes: frozenset[int]) -> bool:
    """Whether numbers rise from 0 on, or up to a tensor's size: where things begin that lie one after the
    other, or where they end."""
    if x.dim() != 1 or not bool((x.diff() > 0).all()):
        return False
    return int(x[0]) == 0 or (int(x[0]) > 0 and int(x[-1]) in sizes)
