"""Run by test_interpreter.py in a process of its own with TRITON_INTERPRET=1: prints {case: "" or what went wrong} as JSON.

A case is a function here whose name begins with `case_`; it raises AssertionError if the interpreter is wrong.
"""

import json
import sys
import traceback

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

from nanotriton.executor.child import interpreter
from nanotriton.executor.ttir import OutOfBounds, Race, Unsupported

interpreter.install()
N = 200  # no power of two
BF16 = torch.bfloat16


@triton.jit
def arithmetic(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    x = tl.load(x_ptr + i, mask=mask, other=0.0)
    y = tl.load(y_ptr + i, mask=mask, other=1.0)
    z = (x + y) * 0.25 - (x / y).to(x.dtype)
    z = tl.where(x > y, -z, tl.maximum(z, tl.minimum(x, y)).to(x.dtype))  # max and min of bf16 are fp32 in Triton
    z = tl.fma(x, y, z) + tl.abs(x) + (x < y).to(x.dtype) + i.to(x.dtype)
    tl.store(out_ptr + i, z, mask=mask)


def run_arithmetic(dtype):
    torch.manual_seed(0)
    x, y, out = torch.randn(N, dtype=dtype), torch.randn(N, dtype=dtype), torch.empty(N, dtype=dtype)
    arithmetic[(triton.cdiv(N, 64),)](x, y, out, N, BLOCK=64)
    z = (x + y) * 0.25 - x / y
    z = torch.where(x > y, -z, torch.maximum(z, torch.minimum(x, y)))
    z = (x.double() * y.double() + z.double()).to(dtype) + x.abs() + (x < y).to(dtype) + torch.arange(N).to(dtype)
    return out, z


def case_bf16_arithmetic_rounds_each_operation_as_torch_does():
    assert torch.equal(*run_arithmetic(BF16))


def case_fp32_and_fp16_arithmetic_stay_right():
    torch.testing.assert_close(*run_arithmetic(torch.float32))
    torch.testing.assert_close(*run_arithmetic(torch.float16))


@triton.jit
def cast(x_ptr, out_ptr, n, BLOCK: tl.constexpr, BACK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    if BACK:
        x = x.to(BACK)
    tl.store(out_ptr + i, x, mask=i < n)


def run_cast(x, through):
    """x -> the type of the tensor it is stored to -> torch's bits."""
    out = torch.empty(x.shape, dtype=through)
    cast[(1,)](x, out, len(x), BLOCK=triton.next_power_of_2(len(x)), BACK=None)
    return out


def same(a, b):
    return torch.equal(torch.nan_to_num(a.float(), nan=123.0), torch.nan_to_num(b.float(), nan=123.0))


def case_casts_to_bf16_round_to_nearest_even():
    x = torch.cat([torch.randn(500) * 10.0 ** torch.arange(-30, 20).repeat(10), torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan")])])
    ties = torch.tensor([0x3F808000, 0x3F818000, 0x7F7FFFFF], dtype=torch.int32).view(torch.float32)
    x = torch.cat([x, ties])
    assert same(run_cast(x, BF16), x.to(BF16))
    assert same(run_cast(x.to(BF16), torch.float32), x.to(BF16).float())
    assert same(run_cast(x.double(), BF16), x.to(BF16))
    assert same(run_cast(torch.arange(-100, 100), BF16), torch.arange(-100, 100).to(BF16))
    assert torch.equal(run_cast(torch.tensor([2.5, -7.5, 1e20, float("nan")], dtype=BF16), torch.int32), torch.tensor([2, -7, 2**31 - 1, 0], dtype=torch.int32))


def case_casts_to_fp8_round_to_nearest_even_and_saturate():
    x = torch.cat([torch.randn(300), torch.linspace(-600, 600, 101), torch.tensor([1.9375, 15.5, 1e-3, 0.0])])
    for dtype, largest in ((torch.float8_e4m3fn, 448.0), (torch.float8_e5m2, 57344.0)):
        wanted = x.clamp(-largest, largest).to(dtype)
        assert same(run_cast(x, dtype), wanted)
        assert same(run_cast(wanted, torch.float32), wanted)


@triton.jit
def row_softmax(x_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * cols + i, mask=i < cols, other=-float("inf"))
    x = tl.exp((x - tl.max(x, axis=0)).to(tl.float32))
    tl.store(out_ptr + row * cols + i, (x / tl.sum(x, axis=0)).to(out_ptr.dtype.element_ty), mask=i < cols)


def case_bf16_reductions():
    x = torch.randn(3, 50).to(BF16)
    out = torch.empty_like(x)
    row_softmax[(3,)](x, out, 50, BLOCK=64)
    torch.testing.assert_close(out, torch.softmax(x.float(), -1).to(BF16), atol=0, rtol=2**-7)


@triton.jit
def product(a_ptr, b_ptr, out_ptr, K, BLOCK: tl.constexpr, PRECISION: tl.constexpr):
    i, j = tl.arange(0, 16)[:, None], tl.arange(0, 16)[None, :]
    acc = tl.zeros((16, 16), dtype=tl.float32)
    for start in range(0, K, BLOCK):
        k = start + tl.arange(0, BLOCK)
        a = tl.load(a_ptr + i * K + k[None, :], mask=k[None, :] < K, other=0.0)
        b = tl.load(b_ptr + k[:, None] * 16 + j, mask=k[:, None] < K, other=0.0)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    tl.store(out_ptr + i * 16 + j, acc)


def run_product(dtype, precision="ieee"):
    torch.manual_seed(0)
    a, b, out = torch.randn(16, 70).to(dtype), torch.randn(70, 16).to(dtype), torch.empty(16, 16)
    product[(1,)](a, b, out, 70, BLOCK=32, PRECISION=precision)
    return (out.double() - a.double() @ b.double()).abs().max().item()


def case_dot_on_bf16_fp16_and_fp32_with_a_loop_bound_known_at_run_time():
    for dtype in (BF16, torch.float16, torch.float32):
        assert run_product(dtype) < 1e-5, dtype


def case_dot_is_tf32_unless_asked_for_ieee():
    assert 1e-4 < run_product(torch.float32, "tf32") < 0.1


@triton.jit
def through_libdevice(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    x = libdevice.tanh(x) + libdevice.log1p(libdevice.pow(tl.abs(x), 1.5)) + libdevice.rsqrt(1 + x * x) + tl.erf(x)
    tl.store(out_ptr + i, x, mask=i < n)


def case_libdevice():
    x, out = torch.randn(N), torch.empty(N)
    through_libdevice[(1,)](x, out, N, BLOCK=256)
    torch.testing.assert_close(out, x.tanh() + x.abs().pow(1.5).log1p() + (1 + x * x).rsqrt() + x.erf())


@triton.jit
def no_such_function(x_ptr):
    tl.store(x_ptr, libdevice.jn(2, tl.load(x_ptr)))


@triton.jit
def assembly(x_ptr):
    y = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [tl.load(x_ptr)], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(x_ptr, y)


def raises(kind, launch):
    try:
        launch()
    except Exception as error:
        assert isinstance(interpreter.cause(error), kind), repr(error)
        return str(interpreter.cause(error))
    raise AssertionError(f"no {kind.__name__}")


def case_what_is_missing_says_so():
    raises(Unsupported, lambda: no_such_function[(1,)](torch.ones(1)))
    raises(Unsupported, lambda: assembly[(1,)](torch.ones(1, dtype=torch.int32)))


@triton.autotune([triton.Config({"BLOCK": 32}), triton.Config({"BLOCK": 64})], key=["n"])
@triton.heuristics({"TWICE": lambda args: args["n"] > 100})
@triton.jit
def increment(x_ptr, n, BLOCK: tl.constexpr, TWICE: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i, tl.load(x_ptr + i, mask=i < n) + (2 if TWICE else 1), mask=i < n)


def case_autotune_runs_one_configuration_once():
    x = torch.zeros(N)
    increment[lambda meta: (triton.cdiv(N, meta["BLOCK"]),)](x, N)
    assert torch.equal(x, torch.full((N,), 2.0)) and increment.best_config.kwargs == {"BLOCK": 32}


@triton.jit
def add_all(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0.0)
    tl.atomic_add(out_ptr + i % 4, x, mask=i < n)


def case_atomics_may_meet():
    for dtype, tolerance in ((torch.float32, 1e-5), (BF16, 0.3)):
        x, out = torch.randn(N).to(dtype), torch.zeros(4, dtype=dtype)
        add_all[(triton.cdiv(N, 32),)](x, out, N, BLOCK=32)
        assert (out.float() - x.float().view(-1, 4).sum(0)).abs().max() < tolerance, dtype


@triton.jit
def copy(x_ptr, out_ptr, n, shift, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i + shift, mask=i < n), mask=i < n)


def case_bounds_are_exact():
    x, out = torch.randn(N), torch.empty(N)
    copy[(4,)](x, out, N, 0, BLOCK=64)
    assert torch.equal(x, out)
    message = raises(OutOfBounds, lambda: copy[(4,)](x, out, N, 1, BLOCK=64))
    assert message == "load of 1 elements outside every tensor, by program 3"
    message = raises(OutOfBounds, lambda: copy[(4,)](x, out[: N - 1].clone(), N, 0, BLOCK=64))
    assert message == "store of 1 elements outside every tensor, by program 3"
    raises(OutOfBounds, lambda: copy[(4,)](x, out, N, -1, BLOCK=64))
    copy[(3,)](x[1:], out, N - 10, -1, BLOCK=64)  # inside the storage of a view


@triton.jit
def through_table(table_ptr, out_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x_ptr = tl.load(table_ptr).to(tl.pointer_type(tl.float32))
    tl.store(out_ptr + i, tl.load(x_ptr + i))


def case_only_the_tensors_of_the_launch_are_reachable_or_those_named():
    x, out = torch.randn(16), torch.empty(16)
    table = torch.tensor([x.data_ptr()])
    raises(OutOfBounds, lambda: through_table[(1,)](table, out, BLOCK=16))
    interpreter.guard([x])
    through_table[(1,)](table, out, BLOCK=16)
    assert torch.equal(x, out)
    interpreter.guard([])


@triton.jit
def shift_in_place(x_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i + 1, mask=i + 1 < n)
    tl.store(x_ptr + i, x, mask=i + 1 < n)


@triton.jit
def store_number(x_ptr, SAME: tl.constexpr):
    tl.store(x_ptr, 1.0 if SAME else tl.program_id(0).to(tl.float32))


@triton.jit
def load_neighbour(x_ptr, out_ptr):
    p = tl.program_id(0)
    tl.store(x_ptr + p, 1.0)
    tl.store(out_ptr + p, tl.load(x_ptr + 1 - p))


def case_races_between_programs_are_found():
    raises(Race, lambda: shift_in_place[(4,)](torch.randn(N), N, BLOCK=64))
    raises(Race, lambda: store_number[(2,)](torch.zeros(1), SAME=False))
    raises(Race, lambda: load_neighbour[(2,)](torch.zeros(2), torch.zeros(2)))


def case_programs_that_do_not_depend_on_their_order_pass():
    shift_in_place[(1,)](torch.randn(N), N, BLOCK=256)  # one program
    store_number[(3,)](torch.zeros(1), SAME=True)
    for _ in range(2):
        load_neighbour[(1,)](torch.ones(2), torch.zeros(2))


@triton.jit
def descriptor_copy(x, out_ptr, rows, cols, BLOCK: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [rows, cols], [cols, 1], [BLOCK, BLOCK])
    sink = tl.make_tensor_descriptor(out_ptr, [rows, cols], [cols, 1], [BLOCK, BLOCK])
    at = tl.program_id(0) * BLOCK
    sink.store([at, 0], source.load([at, 0]))


def case_tensor_descriptors_are_guarded_too():
    x, out = torch.randn(20, 16), torch.empty(20, 16)
    descriptor_copy[(2,)](x, out, 20, 16, BLOCK=16)
    assert torch.equal(x, out)
    raises(OutOfBounds, lambda: descriptor_copy[(2,)](x, out, 24, 16, BLOCK=16))


@triton.jit
def inner(x):
    return tl.sum(x, axis=0)


@triton.jit
def nan_rules(x_ptr, out_ptr, BLOCK: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, BLOCK))
    tl.store(out_ptr, inner(tl.maximum(x, 1.0)))
    tl.store(out_ptr + 1, inner(tl.clamp(x, -2.0, 2.0)))


def case_maximum_and_clamp_drop_nan_as_the_compiler_does():
    x, out = torch.full((16,), float("nan")), torch.zeros(2)
    nan_rules[(1,)](x, out, BLOCK=16)
    assert out.tolist() == [16.0, -32.0]


def main():
    results = {}
    for name, case in globals().copy().items():
        if name.startswith("case_"):
            try:
                case()
                results[name] = ""
            except Exception:
                results[name] = traceback.format_exc()
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
