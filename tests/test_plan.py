"""Plans are bytes from a stranger: what is not well-formed is a PlanError of one line, and nothing else happens."""

import contextlib
import itertools
import json
import math
import random

import pytest

from nanotriton.plan import aten
from nanotriton.plan.plan import (
    MAGIC,
    OPTIONS,
    Aten,
    Choice,
    Kernel,
    Launch,
    Plan,
    PlanError,
    Storage,
    Tensor,
    Weight,
    digest,
)
from nanotriton.plan.signature import signature

TTIR = """module {
  tt.func public @kernel(%arg0: !tt.ptr<f32> {tt.divisibility = 16 : i32}, %arg1: !tt.ptr<f32>, %arg2: i32, %arg3: f32) attributes {noinline = false} {
    %0 = tt.load %arg0 : !tt.ptr<f32>
    tt.store %arg1, %0 : !tt.ptr<f32>
    tt.return
  }
}
"""


def make() -> Plan:
    weight = bytes(range(16))
    return Plan(
        storages=[
            Storage("input", 64, "float32"),
            Storage("weight", 16, "float32", digest(weight)),
            Storage("temp", 64, "float32"),
            Storage("const", 16, "int64", digest(weight)),
        ],
        tensors=[
            Tensor(0, "float32", (4, 4), (4, 1), 0),
            Tensor(1, "float32", (4,), (1,), 0),
            Tensor(2, "float32", (4, 4), (1, 4), 0),
            Tensor(2, "float32", (3,), (4,), 4),
            Tensor(3, "int64", (2,), (1,), 0),
        ],
        kernels=[Kernel("kernel", TTIR, dict(OPTIONS))],
        steps=[
            Aten("add.Tensor", [{"t": 0}, {"t": 1}], {"alpha": {"float": "nan"}}, [2], 3),
            Launch(0, (2, 1, 1), [("*fp32", 0), ("*fp32", 3), ("i32", -5), ("fp32", 0.5)], 4),
            Choice(
                0,
                [[Launch(0, (2, 1, 1), [("*fp32", 0), ("*fp32", 3), ("i32", 5), ("fp32", "inf")], 4)], []],
                5,
            ),
        ],
        weights=[Weight(["a.weight", "b.weight"], 1), Weight([], 1)],
        inputs=[{"t": 0}, 3, "text"],
        outputs={"tuple": [{"t": 2}, {"dict": [["k", {"t": 3}]]}, None]},
        blobs={digest(weight): weight},
    )


def test_bytes_and_back():
    plan = make()
    again = Plan.from_bytes(plan.to_bytes())
    assert again == plan and again.to_bytes() == plan.to_bytes()
    assert again.kernels[0].signature == [("!tt.ptr<f32>", 16), ("!tt.ptr<f32>", 1), ("i32", 1), ("f32", 1)]
    assert again.output_tensors() == [2, 3] and len(again.launches()) == 2
    assert [again.nbytes(t) for t in (0, 1, 2)] == [64, 16, 64]


def change(path: list, value):
    def apply(plan: Plan):
        target = plan
        for key in path[:-1]:
            target = getattr(target, key) if isinstance(key, str) and hasattr(target, key) else target[key]
        if isinstance(target, list | dict):
            target[path[-1]] = value
        else:
            object.__setattr__(target, path[-1], value)

    return apply


def launch(**kw):
    base = {"kernel": 0, "grid": (1, 1, 1), "args": [("*fp32", 0), ("*fp32", 3), ("i32", 1), ("fp32", 0.5)]}
    return change(["steps", 1], Launch(**{**base, **kw}))


def call(*args):
    return change(["steps", 0], Aten(*args))


BAD = {
    "a storage of an unknown kind": change(["storages", 0, "kind"], "gpu"),
    "a storage of negative size": change(["storages", 0, "nbytes"], -1),
    "a storage larger than memory": change(["storages", 2, "nbytes"], 1 << 46),
    "an unknown dtype": change(["tensors", 0], Tensor(0, "float31", (4, 4), (4, 1), 0)),
    "a view past its storage": change(["tensors", 0], Tensor(0, "float32", (4, 4), (4, 1), 1)),
    "a stride past its storage": change(["tensors", 0], Tensor(0, "float32", (4, 4), (5, 1), 0)),
    "a negative stride": change(["tensors", 0], Tensor(0, "float32", (4, 4), (-4, 1), 0)),
    "a negative offset": change(["tensors", 0], Tensor(0, "float32", (1,), (1,), -1)),
    "a boolean for a size": change(["tensors", 0], Tensor(0, "float32", (True,), (1,), 0)),
    "a huge shape": change(["tensors", 0], Tensor(0, "float32", (1 << 50,), (0,), 0)),
    "a huge shape of no elements": change(
        ["tensors", 0], Tensor(0, "float32", (1 << 47, 1 << 47, 0), (1, 1, 1), 0)
    ),
    "a huge expanded shape": change(["tensors", 0], Tensor(0, "float32", (1 << 40, 1 << 30), (0, 0), 0)),
    "a storage that is not there": change(["tensors", 0], Tensor(9, "float32", (4,), (1,), 0)),
    "a blob of other bytes": change(["blobs"], {digest(b"x"): b"y"}),
    "a blob of another size": change(["storages", 1, "nbytes"], 32),
    "a constant without bytes": change(["storages", 3, "blob"], digest(b"x")),
    "an input that is a temporary": change(["inputs"], [{"t": 2}]),
    "an input storage that nothing fills": change(["inputs"], [3]),
    "a weight that is an input": change(["weights"], [Weight(["a"], 0)]),
    "an output that is not there": change(["outputs"], {"t": 17}),
    "an unknown operator": call("from_file.default", [], {}, []),
    "an operator with a path": call("add.Tensor.__class__", [], {}, []),
    "an operator of another name space": call("os::system.default", [], {}, []),
    "an operator that draws": call("uniform_.default", [{"t": 0}], {}, []),
    "an operator that changes storages": call("set_.source_Tensor", [{"t": 0}, {"t": 2}], {}, []),
    "a result that goes into an input": call("add.Tensor", [{"t": 0}, 1], {}, [0]),
    "a result of another shape": call("sum.default", [{"t": 0}], {}, [2]),
    "a result of another dtype": call("eq.Tensor", [{"t": 0}, {"t": 0}], {}, [2]),
    "a result that no memory could hold": call("zeros.default", [[1 << 20, 1 << 20, 1 << 20]], {}, [2]),
    "an out= that would be resized": call("add.out", [{"t": 0}, {"t": 0}], {"out": {"t": 3}}, [None]),
    "shapes that do not fit": call("mm.default", [{"t": 0}, {"t": 1}], {}, [2]),
    "too few results": call("add.Tensor", [{"t": 0}, {"t": 1}], {}, []),
    "an overload that is not there": call("add.nothing", [{"t": 0}, {"t": 1}], {}, [2]),
    "an overload that is no operator": call("add.overloads", [{"t": 0}, {"t": 1}], {}, [2]),
    "arguments of another type": call("add.Tensor", ["text", {"t": 1}], {}, [2]),
    "a tensor that is not there": call("add.Tensor", [{"t": 99}, 1], {}, [2]),
    "an argument of an unknown kind": call("add.Tensor", [{"object": 1}], {}, [2]),
    "a dtype that is no dtype": call("zeros.default", [[2]], {"dtype": {"dtype": "nn"}}, [2]),
    "a huge integer": call("add.Tensor", [{"t": 0}, 1 << 70], {}, [2]),
    "a keyword that is no name": call("add.Tensor", [{"t": 0}], {"a b": 1}, [2]),
    "a kernel that is not there": launch(kernel=1),
    "too few arguments": launch(args=[("*fp32", 0)]),
    "too many arguments": launch(args=[("*fp32", 0), ("*fp32", 3), ("i32", 1), ("fp32", 0.5), ("i32", 1)]),
    "a pointer of another type": launch(args=[("*fp16", 0), ("*fp32", 3), ("i32", 1), ("fp32", 0.5)]),
    "an integer for a pointer": launch(args=[("i64", 0), ("*fp32", 3), ("i32", 1), ("fp32", 0.5)]),
    "an integer too large": launch(args=[("*fp32", 0), ("*fp32", 3), ("i32", 1 << 40), ("fp32", 0.5)]),
    "a pointer less aligned than the kernel assumes": lambda plan: (
        change(["tensors", 3], Tensor(2, "float32", (3,), (4,), 1))(plan),
        launch(args=[("*fp32", 3), ("*fp32", 3), ("i32", 1), ("fp32", 0.5)])(plan),
    ),
    "a grid beyond the limit": launch(grid=(1, 70_000, 1)),
    "a negative grid": launch(grid=(-1, 1, 1)),
    "a grid of two": launch(grid=(1, 1)),
    "an unknown option": change(["kernels", 0, "options"], {**OPTIONS, "ptx_options": "-O0"}),
    "a missing option": change(["kernels", 0, "options"], {"num_warps": 4}),
    "five warps": change(["kernels", 0, "options"], {**OPTIONS, "num_warps": 5}),
    "a kernel of another name": change(["kernels", 0, "name"], "other"),
    "a kernel named by a path": change(["kernels", 0, "name"], "../x"),
    "two public functions": change(["kernels", 0, "ttir"], TTIR + TTIR),
    "text that is no TTIR": change(["kernels", 0, "ttir"], "PTX .version 8.0"),
    "a choice in a choice": change(["steps", 0], Choice(0, [[Choice(0, [[]])]])),
    "a choice of nothing": change(["steps", 0], Choice(0, [])),
}


@pytest.mark.filterwarnings("ignore:An output with")
@pytest.mark.parametrize("what", BAD)
def test_refuses(what):
    plan = make()
    BAD[what](plan)
    with pytest.raises(PlanError) as e:
        Plan.from_bytes(plan.to_bytes())
    assert "\n" not in str(e.value) and len(str(e.value)) < 400


def test_limits_on_memory_and_bytes(monkeypatch):
    data = make().to_bytes()
    with pytest.raises(PlanError, match="bytes of tensors"):
        Plan.from_bytes(data, max_memory=100)
    monkeypatch.setattr("nanotriton.plan.plan.MAX_BYTES", 100)
    with pytest.raises(PlanError, match="the limit is 100"):
        Plan.from_bytes(data)


def test_mutated_bytes_are_plans_or_plan_errors():
    data, rng, good = make().to_bytes(), random.Random(0), 0
    for _ in range(3000):
        broken = bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 8))):
            at = rng.randrange(len(broken))
            kind = rng.randrange(3)
            if kind == 0:
                broken[at] = rng.randrange(256)
            elif kind == 1:
                del broken[at : at + rng.randrange(1, 20)]
            else:
                broken[at:at] = bytes(
                    rng.choice((b"9", b"[", b"]", b'"', b"null", b"-", b"1e999", b"{}", b"NaN"))
                )
        try:
            Plan.from_bytes(bytes(broken))
            good += 1
        except PlanError as error:
            assert "\n" not in str(error)
    assert good < 1500


def test_mutated_fields_are_plans_or_plan_errors():
    data, rng = make().to_bytes(), random.Random(1)
    size = int.from_bytes(data[len(MAGIC) : len(MAGIC) + 8], "little")
    start = len(MAGIC) + 8
    junk = [
        None,
        True,
        -1,
        10**30,
        1.5,
        "",
        "temp",
        "x" * 2000,
        [],
        [[]],
        {},
        {"t": 0},
        {"t": -1},
        [1, 2, 3],
        {"a": {"b": {}}},
    ]

    def spots(value, path=()):
        yield path
        for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
            yield from spots(value[key], (*path, key))

    header = json.loads(data[start : start + size])
    places = [p for p in spots(header) if p]
    for _ in range(2000):
        broken = json.loads(data[start : start + size])
        for path in rng.sample(places, rng.choice((1, 1, 3))):
            target = broken
            try:
                for key in path[:-1]:
                    target = target[key]
                target[path[-1]] = rng.choice(junk)
            except (TypeError, KeyError, IndexError):
                continue  # an earlier change removed the place
        text = json.dumps(broken).encode()
        try:
            Plan.from_bytes(MAGIC + len(text).to_bytes(8, "little") + text + data[start + size :])
        except PlanError as error:
            assert "\n" not in str(error)


def test_whatever_sizes_a_tensor_has_a_plan_answers():
    """Every shape that passes can be made, and asked about; every other one is a PlanError."""
    sizes = (0, 1, 3, 1 << 24, 1 << 31, 1 << 47, (1 << 48) - 1)
    accepted = 0
    for shape in itertools.product(sizes, repeat=3):
        for stride in ((0, 0, 0), (1, 1, 1), (1 << 47, 1 << 47, 1 << 47)):
            plan = make()
            plan.tensors.append(Tensor(0, "float32", shape, stride, 0))
            with contextlib.suppress(PlanError):
                plan.validate()
                last = len(plan.tensors) - 1
                accepted += plan.meta(last).numel() == math.prod(shape) and plan.nbytes(last) >= 0
    assert accepted > 20


def test_deep_nesting_is_refused():
    text = b"[" * 100_000
    with pytest.raises(PlanError):
        Plan.from_bytes(MAGIC + len(text).to_bytes(8, "little") + text)


def test_every_allowed_operator_exists_and_touches_no_file():
    import torch

    missing = [name for name in aten.ALLOWED if not hasattr(torch.ops.aten, name)]
    assert not missing
    assert (
        not {
            "from_file",
            "set_",
            "resize_",
            "record_stream",
            "item",
            "rand",
            "normal_",
            "_local_scalar_dense",
        }
        & aten.ALLOWED
    )


def test_signature_of_descriptors_and_locations():
    text = 'tt.func public @k(%a: !tt.tensordesc<tensor<16x64xf16>>, %b: i64 {tt.divisibility = 8 : i32} loc("x.py":3:1), %c: !tt.ptr<!tt.ptr<f32>>) {'
    assert signature(text, "k") == [
        ("!tt.tensordesc<16x64xf16>", 1),
        ("i64", 8),
        ("!tt.ptr<!tt.ptr<f32>>", 1),
    ]
    with pytest.raises(PlanError):
        signature("tt.func public @k(%a: i32", "k")


def test_the_bare_text_has_no_locations_and_nothing_else_is_missing():
    kernel = make().kernels[0]
    assert kernel.bare == kernel.ttir
    text = '#loc = loc("candidate.py":2:1)\nmodule {\n  %x = tt.load %p : !tt.ptr<f32> loc(#loc3)\n  ^bb0(%a: f32 loc(callsite(#loc9 at #loc2))):\n} loc(#loc)\n#loc1 = loc(unknown)\n'
    assert Kernel("k", text, {}).bare == "module {\n  %x = tt.load %p : !tt.ptr<f32>\n  ^bb0(%a: f32):\n}\n"


def test_the_bare_text_prints_nothing():
    line = '    tt.print " x: " {hex = false, isSigned = array<i32: 1>} : %o : tensor<256xi32> loc(#loc5)\n'
    assert Kernel("k", f"module {{\n{line}    tt.return\n}}\n", {}).bare == "module {\n    tt.return\n}\n"
