"""Inline assembly: straight PTX is evaluated, with the error of approximate instructions; the rest is unsupported."""

import pytest
import torch
import triton
import triton.language as tl
from ttir_lowering import data, evaluate, lower

from nanotriton.executor.ttir import Evaluator, Unsupported


@triton.jit
def one(X, Y, ASM: tl.constexpr, CONSTRAINTS: tl.constexpr, N: tl.constexpr):
    o = tl.program_id(0) * N + tl.arange(0, N)
    args = [tl.load(X + o)]
    tl.store(
        Y + o, tl.inline_asm_elementwise(ASM, CONSTRAINTS, args, Y.dtype.element_ty, is_pure=True, pack=1)
    )


def run(asm: str, x: torch.Tensor, dtype=torch.float32) -> torch.Tensor:
    y = torch.empty(x.shape, dtype=dtype)
    kinds = {torch.float32: "f", torch.int32: "r"}
    evaluate(one, (2,), x, y, ASM=asm, CONSTRAINTS=f"={kinds[dtype]},{kinds[x.dtype]}", N=x.numel() // 2)
    return y


@pytest.mark.parametrize(
    "asm,reference,error",
    [
        ("tanh.approx.f32 $0, $1;", torch.tanh, 2**-10.9),
        ("ex2.approx.ftz.f32 $0, $1;", torch.exp2, 2**-21),
        ("rcp.approx.ftz.f32 $0, $1;", torch.reciprocal, 2**-22),
        ("fma.rn.f32 $0, $1, 0f40000000, $1;", lambda x: 3 * x, 2**-22),
        ("{ .reg .f32 t; // the square\n mul.f32 t, $1, $1;\n add.f32 $0, t, 0f3F800000; }", lambda x: x * x + 1, 2**-22),
    ],
)  # fmt: skip
def test_floats(asm, reference, error):
    x = data(64)
    found, want = run(asm, x).double(), reference(x.double())
    assert ((found - want).abs() <= error * want.abs().clamp_min(2**-20)).all()


def test_tanh_has_the_error_of_a_gpu():
    x = torch.linspace(-2, 2, 128)
    assert (run("tanh.approx.f32 $0, $1;", x) - torch.tanh(x)).abs().max() > 2**-14


def test_integers_and_bits():
    x = torch.tensor([0, 1, -1, 12, 2**30, -(2**31), 255, 7], dtype=torch.int32)
    assert torch.equal(run("shl.b32 $0, $1, 3;", x, torch.int32), x << 3)
    assert run("shr.u32 $0, $1, 31;", x, torch.int32).tolist() == [0, 0, 1, 0, 0, 1, 0, 0]
    assert torch.equal(
        run("{ .reg .b32 t; and.b32 t, $1, 0xff; xor.b32 $0, t, -1; }", x, torch.int32), ~(x & 255)
    )
    floats = data(8)
    assert torch.equal(run("mov.b32 $0, $1;", floats, torch.int32), floats.view(torch.int32))
    assert torch.equal(run("cvt.rzi.s32.f32 $0, $1;", floats * 9, torch.int32), (floats * 9).int())


@pytest.mark.parametrize(
    "asm",
    [
        "mov.u32 $0, %smid;",
        "ld.global.b32 $0, [$1];",
        "@p mov.b32 $0, $1;",
        "lop3.b32 $0, $1, $1, $1, 0x96;",
        "bra done; done: mov.b32 $0, $1;",
        "add.s32 $0, t, $1;",
    ],
)
def test_the_rest_is_unsupported(asm):
    x = torch.zeros(8, dtype=torch.int32)
    with pytest.raises(Unsupported, match="inline assembly"):
        run(asm, x, torch.int32)


def test_several_elements_in_a_register_are_unsupported():
    @triton.jit
    def halves(X, N: tl.constexpr):
        o = tl.arange(0, N)
        x = tl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=r,r", [tl.load(X + o)], tl.float16, is_pure=True, pack=2
        )
        tl.store(X + o, x)

    with pytest.raises(Unsupported, match="one at a time"):
        Evaluator(lower(halves, [torch.zeros(64, dtype=torch.float16)], N=64))
