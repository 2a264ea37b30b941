"""What a task draws with a structure that it does not promise is drawn without it, as far as its reference survives that."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from nanotriton.executor.judge.inputs import moves, structure
from nanotriton.executor.judge.inputs.kinds import MOVED
from nanotriton.executor.judge.reference.reference import Reference
from tests.test_draws import accepted_by_many, refused, task


def by_bounds(m, x, y):
    """Sums of segments, of ids that are sorted."""
    sums = torch.cat([x.new_zeros(1, x.shape[1]), x.cumsum(0)])
    ends = torch.searchsorted(y, torch.arange(7))
    return sums[ends[1:]] - sums[ends[:-1]]


def put(m, x, y):
    out = x.new_zeros(40, x.shape[1])
    out[y] = x
    return out


def stored(m, x, y):
    """Of several numbers for one place the last one stays."""
    return x.new_zeros(40, x.shape[1]).index_put((y,), x)


ADDED = "torch.randn(20, 6), torch.randperm(40)[:20]"
OFFSETS = (
    "torch.randn(30), torch.cat([torch.zeros(1, dtype=torch.int64), torch.randint(1, 8, (4,)).cumsum(0)])"
)
SUMS = "return torch.stack([x[a:b].sum() / max(1, len(x[a:b])) for a, b in zip(y, y[1:])])"
LENGTHS = "torch.arange(24) < y[:, None]"
STRUCTURES = {
    "distinct": ("torch.randn(20, 6), torch.randperm(40)[:20]", "return x.new_zeros(40, 6).index_add(0, y, x)", put),
    "distinct places that are added to": (ADDED, "return x.new_zeros(40, 6).index_put((y,), x, accumulate=True)", stored),
    "the same in place": (ADDED, "out = x.new_zeros(40, 6); out.index_put_((y,), x, True); return out", stored),
    "sorted": ("torch.randn(30, 5), torch.randint(0, 6, (30,)).sort()[0]", "return x.new_zeros(6, 5).index_add(0, y, x)", by_bounds),
    "all there": ("torch.randn(3), torch.randint(0, 8, (200,))", "return torch.bincount(y, minlength=8) * x.sum()", lambda m, x, y: torch.bincount(y, minlength=8).clamp(min=1) * x.sum()),
    "few of each": ("torch.randn(3), torch.randint(0, 8, (160,))", "return torch.bincount(y, minlength=8) * x.sum()", lambda m, x, y: torch.bincount(y, minlength=8).clamp(max=60) * x.sum()),
    "consecutive": ("torch.randn(50, 6), torch.arange(12) + torch.randint(0, 30, ())", "return x[y].tanh()", lambda m, x, y: x[int(y[0]) : int(y[0]) + 12].tanh() if int(y[0]) < 39 else x[:12]),
    "rows with something": ("torch.randn(20, 16), torch.randint(0, 2, (20, 16))", "return (x * y).sum(1) / y.sum(1).clamp(min=1)", lambda m, x, y: (x * y).sum(1) / y.sum(1)),
    "long": ("torch.randn(6, 24), torch.randint(12, 25, (6,))", f"return x * ({LENGTHS})", lambda m, x, y: x * (torch.arange(24) < y.clamp(min=12)[:, None])),
    "never of no length": ("torch.randn(6, 24), torch.randint(12, 25, (6,))", f"return x * ({LENGTHS})", lambda m, x, y: x * (torch.arange(24) < y.clamp(min=1)[:, None])),
    "parts with something": (OFFSETS, SUMS, lambda m, x, y: torch.stack([x[a:b].mean() for a, b in itertools.pairwise(y)])),
    "hard labels": ("torch.randn(9, 14), (torch.rand(9, 14) < 0.4).float()", "return F.binary_cross_entropy_with_logits(x, y, reduction='none')", lambda m, x, y: F.softplus(torch.where(y > 0.5, -x, x))),
    "no first id": ("torch.randn(5000, 4), torch.randint(0, 5000, (40,))", "return x[y].tanh()", lambda m, x, y: (x[y] * (y > 0)[:, None]).tanh()),
    "symmetric": ("torch.randn(7, 12), (lambda t: t + t.T)(torch.randn(12, 12))", "return x @ y", lambda m, x, y: x @ y.T),
}  # fmt: skip


def check_moved(inputs, forward, wrong) -> Reference:
    """Of x and y the second alone is moved. The wrong answer is then refused, and the task's own is not."""
    reference = Reference(task(forward, inputs, "x, y"))
    assert list(reference.findings.moves.ways) == [1]
    assert refused(reference, wrong)
    assert not refused(reference, reference.code.names["Model"].forward)
    return reference


@pytest.mark.parametrize("inputs, forward, wrong", STRUCTURES.values(), ids=STRUCTURES)
def test_an_answer_that_relies_on_a_structure_is_wrong(inputs, forward, wrong):
    check_moved(inputs, forward, wrong)


NUMBERS = {
    "a truth value": ("torch.randn(4, 20), False", "return x.flip(1) if y else x.abs()", lambda m, x, y: x.abs()),
    "a zero": ("torch.randn(4, 20), 0", "return x + y", lambda m, x, y: x.clone()),
    "a one": ("torch.randn(4, 20), 1", "return x * y", lambda m, x, y: x.clone()),
    "a one that is a dimension": ("torch.randn(4, 20), 1", "return x.cumsum(y)", lambda m, x, y: x.cumsum(1)),
    "zeros": ("torch.randn(4, 20), torch.zeros(20, dtype=torch.int64)", "return x - y", lambda m, x, y: x.clone()),
    "an index of zeros": ("torch.randn(2, 20), torch.zeros(30, dtype=torch.int32)", "return x[y]", lambda m, x, y: x[:1].repeat(30, 1)),
    "ones": ("torch.randn(4, 20), torch.ones(20, dtype=torch.int64)", "return x * y", lambda m, x, y: x.clone()),
}  # fmt: skip


@pytest.mark.parametrize("inputs, forward, wrong", NUMBERS.values(), ids=NUMBERS)
def test_small_constants_are_moved(inputs, forward, wrong):
    assert check_moved(inputs, forward, wrong).findings.unvaried == []


RING = """(lambda s: torch.stack([torch.cat([s, s]), torch.cat([(s + 1) % 12, (s - 1) % 12])]))(torch.arange(12))"""
MEAN = """out = torch.zeros_like(x).index_add(0, y[1], x[y[0]])
        return out / torch.bincount(y[1], minlength=12).clamp(min=1)[:, None]"""
ENDS = "torch.randn(44, 6), torch.tensor([0, 9, 25, 29, 44])"
PARTS = """part = torch.bucketize(torch.arange(44), y[1:], right=True)
        return torch.zeros(4, 6).index_add(0, part, x)"""


def at_most_16(m, x, y):
    """Sums of parts, of the first 16 rows of each."""
    return torch.stack([x[a : min(a + 16, b)].sum(0) for a, b in itertools.pairwise(y.tolist())])


# What is the same in every draw and has a structure that the task does not promise.
CONSTANTS = {
    "a ring": (f"torch.randn(12, 6), {RING}", MEAN, lambda m, x, y: (x.roll(1, 0) + x.roll(-1, 0)) / 2),
    "edges in both directions": (f"torch.randn(12, 6), {RING}", MEAN, lambda m, x, y: m.forward(x, y.flip(0))),
    "as many neighbours": (f"torch.randn(12, 6), {RING}", MEAN, lambda m, x, y: torch.zeros_like(x).index_add(0, y[1], x[y[0]]) / 2),
    "no long part by its end": ("torch.randn(44, 6), torch.tensor([9, 25, 29, 44])", "part = torch.bucketize(torch.arange(44), y, right=True); return torch.zeros(4, 6).index_add(0, part, x)", lambda m, x, y: at_most_16(m, x, F.pad(y, (1, 0)))),
    "no long part": (ENDS, PARTS, at_most_16),
    "parts with something": (ENDS, "n = y.diff(); return x[y[:-1].clamp(max=43)] * (n > 0)[:, None]", lambda m, x, y: x[y[:-1].clamp(max=43)]),
    "the same positions": ("torch.randn(3, 14), torch.arange(14).repeat(3, 1)", "return x * torch.cos(y.float())", lambda m, x, y: x * torch.cos(y[:1].float())),
    "the same mask": ("torch.randn(3, 14), torch.zeros(3, 14).masked_fill(torch.arange(14) % 3 == 0, -9.0)", "return torch.exp(x + y)", lambda m, x, y: torch.exp(x + y[:1])),
}  # fmt: skip


@pytest.mark.parametrize("inputs, forward, wrong", CONSTANTS.values(), ids=CONSTANTS)
def test_a_structure_that_no_draw_varies_is_broken(inputs, forward, wrong):
    check_moved(inputs, forward, wrong)


def test_halves_of_a_table_stay_the_same():
    """Kernels for rotary embeddings read one half of each row, for all sequences of a batch."""
    table = "torch.arange(12)[:, None] * torch.arange(1, 9).repeat(2)"
    inputs = f"torch.randn(2, 12, 16), ({table}).cos().repeat(2, 1, 1)"
    reference = Reference(task("return x * y", inputs, "x, y"))
    assert refused(reference, lambda m, x, y: x * y[:1])
    assert not refused(reference, lambda m, x, y: x * y[..., :8].repeat(1, 1, 2))


STAYING = {
    "ends of one length": torch.tensor([8, 16, 24, 32]),
    "numbers that end nowhere": torch.tensor([3, 9, 12, 31]),
    "parts of one length": torch.tensor([0, 8, 16, 24]),
    "sizes": torch.tensor([[8, 8], [4, 4]]),
    "distinct ids": torch.randperm(30),
    "sorted ids": torch.arange(8).repeat_interleave(3),
    "what has one value": torch.full((20,), 7),
}


@pytest.mark.parametrize("constant", STAYING.values(), ids=STAYING)
def test_constants_that_a_kernel_may_rely_on_are_not_drawn_anew(constant):
    assert structure.ways_of_constant(constant, set(), frozenset(), frozenset([24, 32])) == ()


KEPT = {
    "a promise": ("torch.randn(7, 12), (lambda t: t + t.T)(torch.randn(12, 12))", "return x @ y", "# y is symmetric."),
    "a promise of order": ("torch.randn(30, 5), torch.randperm(30)[:9].sort()[0]", "return x[y]", "# rows by sorted, unique indices"),
    "writes to places": ("torch.randn(9, 5), torch.randperm(9)", "return torch.zeros(9, 5).index_copy(0, y, x)", ""),
    "puts into places": ("torch.randn(9, 5), torch.randperm(9)", "return torch.zeros(9, 5).index_put((y,), x)", ""),
    "offsets of parts that are never empty": (OFFSETS, "return torch.stack([x[a:b].max() for a, b in zip(y, y[1:])])", ""),
    "a promise of offsets": (OFFSETS, SUMS, "# y: ascending"),
    "a triangle that is read": ("torch.randn(6), (lambda t: t @ t.T + torch.eye(6))(torch.randn(6, 6))", "return torch.linalg.cholesky(y) @ x", ""),
    "what breaks": ("torch.randn(30), torch.randperm(30)[:9].sort(descending=True)[0]", "assert (y.diff() < 0).all(); return x[y]", ""),
}  # fmt: skip


@pytest.mark.parametrize("inputs, forward, head", KEPT.values(), ids=KEPT)
def test_what_is_promised_or_needed_stays(inputs, forward, head):
    assert Reference(task(forward, inputs, "x, y", head=head)).findings.moves.ways == {}


def test_where_it_may_break_order_alone_is_kept():
    inputs = "torch.randn(30), torch.randperm(30)[:9].sort(descending=True)[0]"
    reference = Reference(task("assert (y.diff() <= 0).all(); return x[y]", inputs, "x, y"))
    assert reference.findings.moves.ways == {1: "crowd_in_order"}
    y = reference.inputs.draw(MOVED + "scaled", 5)[1]
    assert len(y.unique()) < 9 and bool((y.diff() <= 0).all())


@pytest.mark.parametrize("shape", [(4,), (3, 1), (6, 7), (2, 3, 5)])
@pytest.mark.parametrize("way", ["crowd", "crowd_from_zero", "crowd_lower", "crowd_to_zero"])
def test_ids_stay_in_their_range(way, shape):
    ids = torch.randint(5, 40, shape)
    for seed in range(5):
        after = moves.moved(ids, way, seed)
        low = {"crowd": int(ids.min()), "crowd_lower": 1}.get(way, 0)
        assert after.shape == ids.shape and low <= int(after.min()) and int(after.max()) <= int(ids.max())


@pytest.mark.parametrize("n", [3, 4, 9, 20])
def test_offsets_whose_gaps_close_keep_their_ends_and_their_order(n):
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), torch.randint(1, 9, (n - 1,)).cumsum(0)])
    for seed in range(5):
        after = moves.moved(offsets, "close_gaps", seed)
        assert (
            after[0] == 0
            and after[-1] == offsets[-1]
            and (after.diff() >= 0).all()
            and (after.diff() == 0).any()
        )


def test_words_of_a_promise_stand_in_prose_alone():
    assert structure.promises("x = sorted([2, 1])  # no order\nunique = 'symmetric'") == frozenset()
    assert structure.promises("def f():\n    '''Of Symmetric, (sorted) ones.'''") == {"symmetric", "sorted"}


def test_what_is_never_given_is_named():
    source = task(
        "return x.tanh() if mask is None else x * mask",
        "torch.randn(4, 20)",
        "x, mask=None, *, scale=1.0",
        init_inputs="True, 'max', 3",
    )
    source = type(source)("t", source.source.replace("self, c", "self, c, mode, n, bias=False"))
    assert Reference(source).findings.unvaried == [
        "init_inputs[0]",
        "init_inputs[1]",
        "forward(mask)",
        "__init__(bias)",
    ]


LAST = "return x[torch.arange(len(x)), y - 1] * 2"


def test_no_length_is_drawn_that_would_count_from_the_end():
    """The last step of a sequence without steps: torch takes that of the whole tensor, and a kernel anything."""

    def own(m, x, y):
        return x[torch.arange(len(x)), (y - 1).clamp(min=0)] * 2

    def one_early(m, x, y):
        return x[torch.arange(len(x)), (y - 2).clamp(min=0)] * 2

    reference = Reference(task(LAST, "torch.randn(7, 20), torch.randint(9, 21, (7,))", "x, y"))
    assert list(reference.findings.moves.ways) == [1]
    accepted_by_many(reference, own)
    assert refused(reference, one_early)


def test_indices_below_zero_that_a_task_draws_count_from_the_end():
    reference = Reference(
        task("return x[y].tanh()", "torch.randn(30, 5), torch.randint(-30, 30, (40,))", "x, y")
    )
    assert refused(reference, lambda m, x, y: x[y.clamp(min=0)].tanh())
    accepted_by_many(reference, lambda m, x, y: x[y % 30].tanh())
