"""The evaluator against kernels that never end and text that Triton never printed."""

import random
import re
import time

import pytest
import torch
import triton
import triton.language as tl
from test_ttir import branches, collatz, early_return, matmul, softmax
from test_ttir_atomics import descriptors, locked
from test_ttir_memory import everyone
from ttir_lowering import data, evaluate, lower

from nanotriton.executor.ttir import (
    AssertionFailed,
    Budget,
    Evaluator,
    GlobalMemory,
    ParseError,
    TooLarge,
    TTIRError,
    Unsupported,
)

# --- budgets


@triton.jit
def endless(X):
    i = 0
    while i >= 0:
        i = (i + 1) % 7
    tl.store(X, i)


@triton.jit
def far(X, n):
    acc = 0.0
    for _ in range(n):
        acc += tl.load(X)
    tl.store(X, acc)


def test_endless_loops_end():
    start = time.process_time()
    with pytest.raises(Budget, match="endless loop"):
        evaluate(endless, (4,), torch.zeros(1, dtype=torch.int32), budget=20_000_000)
    with pytest.raises(Budget):
        evaluate(far, (1,), torch.zeros(1), 2**31 - 1, budget=20_000_000)
    with pytest.raises(Budget):
        evaluate(everyone, (2**31 - 1, 60_000, 60_000), torch.zeros(1), torch.zeros(1), budget=20_000_000)
    assert time.process_time() - start < 5


def test_a_loop_whose_step_is_zero():
    body = """
    %c = arith.constant 0 : i32
    %d = arith.constant 5 : i32
    scf.for %i = %c to %d step %c  : i32 {
    }"""
    with pytest.raises(Budget, match="never ends"):
        Evaluator(module(body)).run((1,), [0], GlobalMemory())


# --- hostile text


def module(body: str, arguments: str = "%p: !tt.ptr<f32>") -> str:
    return (
        "module {\n  tt.func public @k("
        + arguments
        + ") attributes {noinline = false} {"
        + body
        + "\n    tt.return\n  }\n}\n"
    )


@pytest.mark.parametrize(
    "code",
    [
        "",
        "tt.func",
        "module {",
        "\0",
        "tt.func public @k(%p: !tt.ptr<f32>) {",
        module("\n    %x = arith.addi %y, %y : i32"),
        module("\n    %x = arith.constant dense<1> : tensor<99999999999x8xi32>"),
        module("\n    %x = arith.constant dense<1> : tensor<0xi32>"),
        module("\n    %x:99999999 = tt.split %p : i32"),
        module("\n    %x = tt.load %p : !tt.ptr<f64>"),
        module("\n    %x = tt.make_range {end = 1000000000 : i32, start = 0 : i32} : tensor<4xi32>"),
        module("\n    cf.br ^bb7"),
        module("\n" + "    scf.if %p {\n" * 100),
        module('\n    tt.print "' + "\\" * 1000),
        module("\n    %x = arith.constant 99e99999 : i32"),
        module("\n    tt.call @k(%p) : (!tt.ptr<f32>) -> ()"),
        module("\n    tt.call @gone(%p) : (!tt.ptr<f32>) -> ()"),
        module("\n    %x = arith.constant " + "9" * 5000 + " : i32"),
        "(" * 100_000,
        "{" * 100_000,
        module("\n    %x = tt.splat %p : !tt.ptr<f32> -> tensor<4xf32>"),
    ],
)
def test_malformed_text(code):
    with pytest.raises(TTIRError) as error:
        Evaluator(code).run((1,), [0], GlobalMemory())
    assert len(str(error.value)) < 500 and "\n" not in str(error.value)


def test_mutations_raise_nothing_but_our_errors():
    """Lines dropped, swapped and repeated, tokens replaced by others: never another exception, never long."""
    rng = random.Random(0)
    tensors = [data(64), data(64, seed=1), torch.empty(64), torch.zeros(4, dtype=torch.int32)]
    a, b, c, i = tensors
    kernels = [
        (softmax, [a, c, 50], {"BLOCK": 64}),
        (matmul, [a, b, c, 8, 8, 8], {"BM": 16, "BN": 16, "BK": 16}),
        (branches, [a, c, 5], {}),
        (locked, [a, c, i], {}),
        (collatz, [i, i], {}),
        (early_return, [a, c, 4], {}),
        (descriptors, [a, c, 4, 4], {"BM": 16, "BN": 16, "PADDING": "zero"}),
    ]
    texts = [lower(kernel, args, locations=False, **constexprs) for kernel, args, constexprs in kernels]
    token = re.compile(r"%?[\w.]+|\S")
    outcomes = {}
    for _ in range(400):
        code = rng.choice(texts)
        lines = code.split("\n")
        for _ in range(rng.choice([1, 1, 2, 5])):
            i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
            kind = rng.randrange(4)
            if kind == 0:
                lines[i] = ""
            elif kind == 1:
                lines[i], lines[j] = lines[j], lines[i]
            elif kind == 2:
                lines.insert(i, lines[j])
            elif spots := list(token.finditer(lines[i])):
                spot, other = (
                    rng.choice(spots),
                    rng.choice(
                        token.findall(code) + ["0", "-1", "99999999999999999999", "f64", "tensor<3xi1>"]
                    ),
                )
                lines[i] = lines[i][: spot.start()] + other + lines[i][spot.end() :]
        memory = GlobalMemory()
        try:
            kernel = Evaluator("\n".join(lines))
            pointers = iter([memory.add(t) for t in tensors] * 9)
            kernel.run(
                (3,),
                [next(pointers) if t.elem == "ptr" else rng.choice([0, 5, 50]) for t in kernel.signature],
                memory,
                budget=3_000_000,
            )
            outcome = "ran"
        except TTIRError as error:
            outcome = type(error).__name__
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    assert outcomes["ParseError"] > 50 and outcomes["ran"] > 10, outcomes


def test_wrong_arguments():
    kernel = Evaluator(module(""))
    with pytest.raises(ParseError, match="takes 1 argument"):
        kernel.run((1,), [], GlobalMemory())
    with pytest.raises(ParseError, match="no kernel"):
        Evaluator(module(""), "other")
    assert [str(t.elem) for t in kernel.signature] == ["ptr"]


def test_work_of_one_program_is_bounded_in_memory():
    body = "".join(f"\n    %x{i} = arith.constant dense<{i}.0> : tensor<1048576xf32>" for i in range(200))
    with pytest.raises(TooLarge, match="elements a program"):
        Evaluator(module(body))


# --- assertions, prints, unknown things


@triton.jit
def asserting(X, N: tl.constexpr):
    x = tl.load(X + tl.arange(0, N))
    tl.device_print("x", x)
    tl.store(X + tl.arange(0, N), x + 1)


def test_prints_do_nothing():
    x = data(64)
    want = x + 1
    evaluate(asserting, (1,), x, N=64)
    assert torch.equal(x, want)


def test_a_failed_assertion():
    code = module(
        '\n    %c = arith.cmpi eq, %n, %n : i32\n    %z = arith.cmpi ne, %n, %n : i32\n    tt.assert %c, "fine" : i1\n    tt.assert %z, "n differs" : i1',
        "%n: i32",
    )
    with pytest.raises(AssertionFailed, match="n differs"):
        Evaluator(code).run((1,), [3], GlobalMemory())


@triton.jit
def inline_asm(X, N: tl.constexpr):
    o = tl.arange(0, N)
    x = tl.inline_asm_elementwise(
        "mov.u32 $0, %smid;", "=r,r", [tl.load(X + o)], dtype=tl.float32, is_pure=True, pack=1
    )
    tl.store(X + o, x)


def test_what_is_not_there_is_unsupported():
    with pytest.raises(Unsupported, match="inline assembly"):
        Evaluator(lower(inline_asm, [data(64)], N=64))
    body = """
    %x = arith.constant 1.0 : f64
    %y = tt.extern_elementwise %x {libname = "", libpath = "", pure = true, symbol = "__nv_rcp64h"} : (f64) -> f64"""
    with pytest.raises(Unsupported, match="__nv_rcp64h"):
        Evaluator(module(body))
    with pytest.raises(Unsupported, match="i128"):
        Evaluator(module("\n    %x = arith.constant 1 : i128"))
