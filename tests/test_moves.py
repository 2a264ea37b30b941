"""Moves that do a kernel's work are refused under strict; those that honest kernels need are not."""

import pytest
import torch

from nanotriton.executor.judge.task.computing import Computing
from nanotriton.plan.facts import Facts
from nanotriton.plan.plan import Aten, Launch, Plan, Storage, Tensor
from nanotriton.rules.moves import PIECES, is_coarser
from nanotriton.rules.rules import check_plan

ROWS, COLUMNS = 96, 40
SHAPE = (ROWS, COLUMNS)


class Writer:
    """Writes a plan step by step: an input, memory that kernels wrote, moves, and an answer."""

    def __init__(self):
        self.plan = Plan()
        self.input = self.tensor("input", "float32", SHAPE)
        self.answer = self.tensor("temp", "float32", SHAPE)
        self.plan.outputs = {"t": self.answer}

    def tensor(self, kind: str, dtype: str, shape: tuple[int, ...]) -> int:
        size = torch.Size(shape).numel() * getattr(torch, dtype).itemsize
        self.plan.storages.append(Storage(kind, size, dtype))
        return self.view(len(self.plan.storages) - 1, dtype, shape)

    def view(self, storage: int, dtype: str, shape, stride=None, offset: int = 0) -> int:
        stride = torch.empty(shape, device="meta").stride() if stride is None else stride
        self.plan.tensors.append(Tensor(storage, dtype, tuple(shape), tuple(stride), offset))
        return len(self.plan.tensors) - 1

    def view_of(self, tensor: int, shape, stride=None, offset: int = 0, dtype: str | None = None) -> int:
        t = self.plan.tensors[tensor]
        return self.view(t.storage, dtype or t.dtype, shape, stride, offset)

    def kernel(self, *tensors: int) -> None:
        args = [(f"*{self.plan.tensors[t].dtype}", t) for t in tensors]
        self.plan.steps.append(Launch(0, (1, 1, 1), args, line=9))

    def written(self, dtype: str = "float32") -> int:
        """Memory that a kernel wrote."""
        t = self.tensor("temp", dtype, SHAPE)
        self.kernel(self.input, t)
        return t

    def cast(self, source: int, dtype: str, into: int | None = None) -> int:
        out = self.tensor("temp", dtype, self.plan.tensors[source].shape) if into is None else into
        self.plan.steps.append(
            Aten("_to_copy.default", [{"t": source}], {"dtype": {"dtype": dtype}}, [out], 7)
        )
        return out

    def copy(self, source: int) -> int:
        t = self.plan.tensors[source]
        out = self.tensor("temp", t.dtype, t.shape)
        self.plan.steps.append(Aten("clone.default", [{"t": source}], {}, [out], 7))
        return out

    def copy_into(self, target: int, source: int) -> None:
        self.plan.steps.append(Aten("copy_.default", [{"t": target}, {"t": source}], {}, [None], 7))

    def join(self, sources: list[int], shape: tuple[int, ...]) -> int:
        out = self.tensor("temp", self.plan.tensors[sources[0]].dtype, shape)
        self.plan.steps.append(Aten("cat.default", [[{"t": s} for s in sources]], {}, [out], 7))
        return out

    def check(self, **facts):
        """The verdict of the rules where the reference moves and computes much."""
        known = {"computing": {"mul": 1}, "traffic": 1 << 30} | facts
        return check_plan(self.plan, "strict", Facts(**known))


def finished(w: Writer, *tensors: int) -> Writer:
    w.kernel(*tensors, w.answer)
    return w


@pytest.mark.parametrize(
    "coarse, fine",
    [("bfloat16", "float32"), ("float16", "float32"), ("float8_e5m2", "float16"), ("float32", "float64")],
)
def test_a_cast_there_and_back_rounds(coarse, fine):
    w = Writer()
    found = finished(w, w.cast(w.cast(w.written(fine), coarse), fine)).check()
    assert found and "round in torch" in found.message and found.line == 7
    w = Writer()  # on a way with another move between
    found = finished(w, w.cast(w.copy(w.cast(w.written(fine), coarse)), fine)).check()
    assert found and "round in torch" in found.message
    w = Writer()  # what a kernel has written in the coarse dtype is only widened
    assert finished(w, w.cast(w.written(coarse), fine)).check() is None
    w = Writer()  # and what a kernel reads in it is its own matter
    assert finished(w, w.cast(w.written(fine), coarse)).check() is None


def test_where_the_task_rounds_torch_casts_its_answer_alone():
    w = Writer()
    found = finished(w, w.cast(w.written(), "bfloat16")).check(rounds=True)
    assert found and "where the task rounds" in found.message
    w = Writer()
    w.answer = w.tensor("temp", "bfloat16", SHAPE)
    w.plan.outputs = {"t": w.answer}
    w.cast(w.written(), "bfloat16", into=w.answer)
    assert w.check(rounds=True) is None
    w = Writer()
    assert finished(w, w.cast(w.written("bfloat16"), "float32")).check(rounds=True) is None


@pytest.mark.parametrize(
    "bits, dtype, to",
    [
        ("int32", "float32", "bfloat16"),
        ("int16", "bfloat16", "float32"),
        ("uint8", "float8_e5m2", "float32"),
        ("float16", "bfloat16", "float32"),
    ],
)
def test_a_cast_after_a_view_of_bits_computes(bits, dtype, to):
    w = Writer()
    raw = w.written(bits)
    found = finished(w, w.cast(w.view_of(raw, SHAPE, dtype=dtype), to)).check()
    assert found and "cast" in found.message and "computes in torch" in found.message


def test_parts_of_complex_numbers_are_floats():
    w = Writer()
    pairs = w.tensor("temp", "complex64", SHAPE)
    w.kernel(w.input, pairs)
    parts = w.view_of(pairs, (ROWS, COLUMNS, 2), dtype="float32")
    assert finished(w, w.cast(parts, "float16")).check() is None


@pytest.mark.parametrize("window", [2, 5])
def test_a_copy_of_a_sliding_window_is_refused(window):
    w = Writer()
    columns = w.view_of(w.input, (ROWS, COLUMNS - window + 1, window), (COLUMNS, 1, 1))
    found = finished(w, w.copy(columns)).check()
    assert found and "sliding window" in found.message
    w = Writer()  # an expanded view, or windows side by side, are none
    w.copy(w.view_of(w.input, (3, ROWS, COLUMNS), (0, COLUMNS, 1)))
    w.copy(w.view_of(w.input, (ROWS, COLUMNS // 2, 2), (COLUMNS, 2, 1)))
    assert finished(w, w.input).check() is None


def shifted(w: Writer, times: int) -> list[int]:
    return [w.view_of(w.input, (ROWS - times, COLUMNS), offset=i * COLUMNS) for i in range(times)]


def test_many_shifted_slices_are_refused():
    w = Writer()
    found = finished(w, w.join(shifted(w, 3), (3 * (ROWS - 3), COLUMNS))).check()
    assert found and "over and over" in found.message
    w = Writer()  # one after another
    for source in shifted(w, 4):
        w.kernel(w.copy(source))
    assert "over and over" in finished(w).check().message
    w = Writer()
    for _ in range(5):  # the same view again is waste, and no work
        w.kernel(w.cast(w.input, "float16"))
    halves = [w.view_of(w.input, (ROWS // 2, COLUMNS), offset=i * ROWS // 2 * COLUMNS) for i in range(2)]
    w.join(halves, SHAPE)
    assert finished(w).check() is None


@pytest.mark.parametrize("way", ["joined", "copied", "copied and joined"])
def test_a_buffer_of_many_pieces_is_a_gather(way):
    def put_together(count: int) -> Writer:
        w = Writer()
        rows = [w.view_of(w.input, (1, COLUMNS), offset=(7 * i % ROWS) * COLUMNS) for i in range(count)]
        if way == "copied and joined":
            rows = [w.copy(row) for row in rows]
        if way != "copied":
            w.join(rows, (count, COLUMNS))
        else:
            into = w.tensor("temp", "float32", SHAPE)
            for i, row in enumerate(rows):
                w.copy_into(w.view_of(into, (1, COLUMNS), offset=i * COLUMNS), row)
        return finished(w)

    assert "pieces of another" in put_together(PIECES + 1).check().message
    assert put_together(PIECES).check() is None


def test_steps_of_a_recurrence_are_no_pieces():
    """A slice of the input for each step, and an answer of each step, in memory of their own."""
    w = Writer()
    steps = []
    for i in range(2 * PIECES):
        row = w.copy(w.view_of(w.input, (1, COLUMNS), offset=i * COLUMNS))
        steps.append(w.tensor("temp", "float32", (1, COLUMNS)))
        w.kernel(row, steps[-1])
    w.join(steps, (2 * PIECES, COLUMNS))
    assert finished(w).check() is None


def test_torch_moves_no_more_than_the_reference():
    def casts(count: int, traffic: int):
        w = Writer()
        for _ in range(count):
            w.kernel(w.cast(w.written(), "float16"))
        return finished(w).check(traffic=traffic)

    once = ROWS * COLUMNS * 6  # 4 bytes are read, 2 are written
    assert casts(3, 2 * ROWS * COLUMNS * 4) is None
    found = casts(20, once)
    assert found and "times what the reference reads and writes" in found.message
    assert casts(20, 0) is None  # it is not known


def test_the_references_bytes_are_counted():
    x, w = torch.randn(6, 8), torch.randn(8, 5)
    with Computing() as seen:
        torch.relu(x @ w)
    assert seen.facts.traffic == 4 * (6 * 8 + 8 * 5 + 6 * 5) + 4 * 2 * 6 * 5
    with Computing() as seen:
        x.expand(3, 6, 8).contiguous()
    assert seen.facts.traffic == 4 * (6 * 8 + 3 * 6 * 8)


def test_coarser():
    floats = [torch.float64, torch.float32, torch.bfloat16, torch.float8_e5m2]
    for i, fine in enumerate(floats):
        assert [is_coarser(fine, other) for other in floats] == [j > i for j in range(len(floats))]
    assert is_coarser(torch.bfloat16, torch.float16)  # the range
    assert is_coarser(torch.float16, torch.bfloat16)  # the digits
    assert not is_coarser(torch.int32, torch.bfloat16)
