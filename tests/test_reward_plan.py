"""The rules on a plan, on plans written by hand: what computes, what moves, what is data at all."""

import pytest
import torch

from nanotriton.plan.facts import COPY, CREATE, FILL, MOVE, REARRANGE, Facts, facts, keeps_value
from nanotriton.plan.plan import Aten, Choice, Launch, Plan, Storage, Tensor
from nanotriton.rules.rules import check_effective, check_plan

X, W, OUT, TABLE, INTS, HALF, COUNT, PART, TWICE = range(9)  # tensors of every plan below
T = lambda i: {"t": i}
KERNEL = Launch(0, (1, 1, 1), [("*fp32", X), ("*fp32", OUT), ("i32", 16)], line=9)


def plan(*steps, outputs=T(OUT)):
    """x (8, 4), w (4, 8) and fresh memory for each further tensor, then the steps."""
    kinds = ["input", "weight", "temp", "const", "input", "temp", "weight"]
    dtypes = ["float32"] * 4 + ["int64", "float16", "int64"]
    shapes = [(8, 4), (4, 8), (8, 8), (8, 8), (8, 4), (8, 4), (1, 1)]
    return Plan(
        storages=[
            Storage(k, torch.Size(s).numel() * getattr(torch, d).itemsize, d)
            for k, d, s in zip(kinds, dtypes, shapes)
        ],
        tensors=[
            *[Tensor(i, d, s, (s[1], 1), 0) for i, (d, s) in enumerate(zip(dtypes, shapes))],
            Tensor(OUT, "float32", (2, 8), (8, 1), 8),
            Tensor(OUT, "float32", (2, 32), (1, 1), 0),
        ],
        steps=list(steps),
        outputs=outputs,
    )


def aten(op, *args, out=OUT, line=7, **kwargs):
    return Aten(op, list(args), kwargs, [out], line)


COUNTED = Aten("add_.Tensor", [T(COUNT), 1], {}, [None], 7)
ALLOWED = {
    "a kernel alone": [KERNEL],
    "memory": [aten("zeros.default", [8, 8]), aten("empty_like.default", T(X), out=HALF), KERNEL],
    "zeroed in place": [Aten("zero_.default", [T(OUT)], {}, [None]), KERNEL],
    "a copy": [aten("clone.default", T(X)), KERNEL],
    "joined and padded": [
        aten("cat.default", [T(X), T(X)]),
        aten("constant_pad_nd.default", T(X), [0, 4], 0.0),
        KERNEL,
    ],
    "a cast between floats": [aten("_to_copy.default", T(X), out=HALF, dtype={"dtype": "float16"}), KERNEL],
    "integers to floats": [aten("_to_copy.default", T(INTS), out=HALF), KERNEL],
    "arithmetic on constants": [
        aten("arange.default", 8, out=TABLE),
        aten("mul.Tensor", T(TABLE), 2.0, out=TABLE),
        KERNEL,
    ],
    "arithmetic on a zeroed block": [
        Aten("zero_.default", [T(OUT)], {}, [None]),
        Aten("add_.Scalar", [T(OUT), 1], {}, [None]),
        KERNEL,
    ],
    "arithmetic on a constant after a launch": [
        KERNEL,
        aten("arange.default", 8, out=TABLE),
        aten("mul.Tensor", T(TABLE), 2.0, out=TABLE),
    ],
    "a counter of calls": [KERNEL, COUNTED, COUNTED],
    "a number stored": [Aten("fill_.Scalar", [T(OUT), 1.5], {}, [None]), KERNEL],
}


@pytest.mark.parametrize("name", ALLOWED)
def test_strict_allows(name):
    assert check_plan(plan(*ALLOWED[name]), "strict") is None


REFUSED = {
    "matrix product": [aten("mm.default", T(X), T(W)), KERNEL],
    "addition": [KERNEL, aten("add.Tensor", T(OUT), T(OUT))],
    "in place": [KERNEL, Aten("relu_.default", [T(OUT)], {}, [None], 7)],
    "on a weight alone": [aten("mul.Tensor", T(W), 2.0, out=TABLE), KERNEL],
    "a counter that a kernel reaches": [COUNTED, Launch(0, (1, 1, 1), [("*i64", COUNT)])],
    "a counter that one configuration reaches": [
        COUNTED,
        Choice(0, [[KERNEL], [Launch(0, (1, 1, 1), [("*i64", COUNT)])]]),
    ],
    "a counter that is used": [COUNTED, aten("clone.default", T(COUNT), out=INTS), KERNEL],
    "a tensor added to a counter": [Aten("add_.Tensor", [T(COUNT), T(INTS)], {}, [None], 7), KERNEL],
    "one added to a weight": [Aten("add_.Tensor", [T(W), 1], {}, [None], 7), KERNEL],
    "a gather": [aten("index.Tensor", T(X), [T(INTS)]), KERNEL],
    "a triangle": [aten("tril.default", T(X)), KERNEL],
    "on what a kernel made": [KERNEL, aten("sum.default", T(OUT), out=HALF)],
    "on a constant that a kernel overwrote": [
        Launch(0, (1, 1, 1), [("*fp32", TABLE)]),
        aten("mul.Tensor", T(TABLE), 2.0),
    ],
    "on what a kernel may have reached": [
        aten("arange.default", 8, out=TABLE),
        KERNEL,
        aten("mul.Tensor", T(TABLE), 2.0, out=HALF),
    ],
    "on memory that nothing wrote": [aten("mul.Tensor", T(HALF), 2.0), KERNEL],
    "on memory that was zeroed in part": [
        Aten("zero_.default", [T(PART)], {}, [None]),
        aten("mul.Tensor", T(OUT), 2.0),
        KERNEL,
    ],
    "on a constant that data was copied to": [
        Aten("copy_.default", [T(TABLE), T(X)], {}, [None]),
        aten("exp.default", T(TABLE)),
        KERNEL,
    ],
    "with out=": [Aten("add.out", [T(X), T(X)], {"out": T(OUT)}, [None], 7), KERNEL],
    "a cast that truncates": [aten("_to_copy.default", T(X), out=INTS), KERNEL],
    "a copy that truncates": [Aten("copy_.default", [T(INTS), T(X)], {}, [None], 7), KERNEL],
    "on memory that was zeroed twice in part": [
        Aten("zero_.default", [T(TWICE)], {}, [None]),
        aten("mul.Tensor", T(OUT), 2.0),
        KERNEL,
    ],
    "on memory that a result fills in part": [
        aten("zeros.default", [2, 8], out=PART),
        aten("mul.Tensor", T(OUT), 2.0, out=HALF),
        KERNEL,
    ],
    "on memory that one configuration alone zeroed": [
        Choice(0, [[KERNEL], [Aten("zero_.default", [T(OUT)], {}, [None])]]),
        aten("mul.Tensor", T(OUT), 2.0, out=HALF),
    ],
    "between numbers that tensors hold": [aten("linspace.Tensor_Scalar", T(X), 0.0, 1), KERNEL],
    "a fill that truncates": [Aten("fill_.Tensor", [T(INTS), T(X)], {}, [None], 7), KERNEL],
    "in one configuration of an autotuner": [Choice(0, [[KERNEL], [aten("exp.default", T(X)), KERNEL]])],
}


@pytest.mark.parametrize("name", REFUSED)
def test_strict_refuses(name):
    violation = check_plan(plan(*REFUSED[name]), "strict")
    assert (
        violation is not None and "computes in torch" in violation.message and "\n" not in violation.message
    )
    assert check_plan(plan(*REFUSED[name]), "kernelbench") is None


def test_the_line_is_the_candidates():
    assert check_plan(plan(*REFUSED["addition"]), "strict").line == 7


@pytest.mark.parametrize("policy", ["strict", "kernelbench"])
def test_no_launch_is_no_triton(policy):
    assert "launches no Triton kernel" in check_plan(plan(aten("clone.default", T(X))), policy).message
    assert check_plan(plan(aten("clone.default", T(X))), "none") is None


def test_in_a_layout_task_torch_may_not_move_the_data():
    reference = facts(plan(aten("clone.default", T(X)), aten("flip.default", T(X), [0])))
    assert reference.computing == {} and reference.moved_bytes == 2 * (128 + 256)
    candidate = plan(aten("clone.default", T(X)), KERNEL)
    assert (
        "moves data in a task that is about moving it" in check_plan(candidate, "strict", reference).message
    )
    assert check_plan(candidate, "strict", facts(plan(aten("exp.default", T(X))))) is None
    assert check_plan(plan(KERNEL), "strict", reference) is None
    assert check_plan(candidate, "kernelbench", reference) is None


def test_a_task_that_moves_data_under_another_name():
    reference, index = (
        Facts(computing={"upsample_nearest2d": 1}),
        aten("_to_copy.default", T(INTS), out=COUNT),
    )
    assert "moves data" in check_plan(plan(aten("clone.default", T(X)), KERNEL), "strict", reference).message
    assert check_plan(plan(index, KERNEL), "strict", reference) is None  # it says what to move
    assert check_plan(plan(index, KERNEL, outputs=T(COUNT)), "strict", reference) is not None
    assert (
        check_plan(
            plan(aten("clone.default", T(X)), KERNEL),
            "strict",
            Facts(computing={"upsample_nearest2d": 1, "mul": 1}),
        )
        is None
    )


def test_facts():
    found = facts(
        plan(
            aten("arange.default", 8, out=TABLE),
            aten("clone.default", T(X), out=HALF),
            aten("mm.default", T(X), T(W)),
            KERNEL,
        )
    )
    assert found.launches == 1 and found.torch_ops == {"clone": 1, "mm": 1} and found.computing == {"mm": 1}
    assert found.moved_bytes == 128 + 64 and found.flops == 2 * 8 * 8 * 4 and found.answer == "own"
    assert facts(plan(KERNEL, outputs=[T(OUT), T(X)])).answer == "input"
    assert facts(plan(aten("convolution.default", T(X), T(W)))).flops == 2 * 64 * 8
    assert facts(plan(aten("exp.default", T(X)))).flops == 64


def test_an_autotuned_launch_counts_once():
    assert facts(plan(Choice(0, [[KERNEL], [KERNEL]]))).launches == 1


def test_at_least_one_launch_must_matter():
    for policy in ("strict", "kernelbench"):
        assert check_effective(1, policy) is None
        assert "no launch changes the answer" in check_effective(0, policy).message
        assert check_effective(None, policy) is not None  # not measured is not proven
    assert check_effective(0, "none") is None


def test_casts_that_keep_values():
    keeps = [
        ("bool", "int8"),
        ("int32", "int64"),
        ("int64", "int32"),
        ("int32", "float16"),
        ("float64", "bfloat16"),
        ("float16", "float32"),
    ]
    loses = [
        ("float32", "int32"),
        ("float32", "bool"),
        ("int32", "bool"),
        ("int32", "int8"),
        ("int64", "uint8"),
        ("uint8", "int8"),
        ("complex64", "float32"),
    ]
    assert all(keeps_value(getattr(torch, a), getattr(torch, b)) for a, b in keeps)
    assert not any(keeps_value(getattr(torch, a), getattr(torch, b)) for a, b in loses)


@pytest.mark.parametrize("table", [CREATE, MOVE, REARRANGE, COPY, FILL])
def test_a_table_of_operators_names_operators_alone(table):
    assert [name for name in table if not hasattr(torch.ops.aten, name)] == []
