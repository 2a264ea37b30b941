"""Replay on the CPU: recorded candidates give what torch gives, and what memory and operators do is seen."""

import os

import pytest
import torch
import torch.nn.functional as F

from nanotriton.executor.common.card import DEFAULT
from nanotriton.executor.gpu.compiler import Binary, BinaryCache, CompileError, compile_kernel
from nanotriton.executor.replay.operators import writes_into
from nanotriton.executor.replay.poison import drawn, poison
from nanotriton.executor.replay.replayer import Replay, ReplayError
from nanotriton.plan.aten import PlanError
from nanotriton.plan.plan import DTYPES, OPTIONS, Kernel
from tests.recording import record
from tests.test_recorder import X, line_with, module

SOFTMAX = """
@triton.jit
def softmax_kernel(x_ptr, o_ptr, stride, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride + at, mask=at < n, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(o_ptr + row * stride + at, e / tl.sum(e, axis=0), mask=at < n)
"""
MATMUL = """
@triton.autotune([triton.Config({"B": b}, num_warps=w) for b, w in ((16, 2), (32, 4))], key=["M", "N", "K"])
@triton.jit
def matmul_kernel(a_ptr, b_ptr, c_ptr, M, N, K, B: tl.constexpr):
    rows = tl.program_id(0) * B + tl.arange(0, B)
    cols = tl.program_id(1) * B + tl.arange(0, B)
    acc = tl.zeros((B, B), dtype=tl.float32)
    for k in range(0, K, B):
        ks = k + tl.arange(0, B)
        a = tl.load(a_ptr + rows[:, None] * K + ks[None, :], mask=(rows[:, None] < M) & (ks[None, :] < K), other=0.0)
        b = tl.load(b_ptr + ks[:, None] * N + cols[None, :], mask=(ks[:, None] < K) & (cols[None, :] < N), other=0.0)
        acc += tl.dot(a, b, input_precision="ieee")
    tl.store(c_ptr + rows[:, None] * N + cols[None, :], acc, mask=(rows[:, None] < M) & (cols[None, :] < N))
"""


def run(source: str, inputs: list, weights=None, init_args=None, **kw):
    return Replay(record(source, inputs, init_args)).run(inputs, weights, **kw)


def test_softmax_rows_and_a_tuple():
    x = torch.randn(7, 100)
    forward = "y = torch.empty_like(x)\nsoftmax_kernel[(7,)](x, y, x.stride(0), 100, BLOCK=128)\nreturn y, (x.shape[0], y[:, ::2])"
    y, (seven, view) = run(module(forward, top=SOFTMAX), [x])
    torch.testing.assert_close(y, x.softmax(1))
    assert seven == 7 and torch.equal(view, y[:, ::2])


def test_autotuned_matmul_with_weights_by_name():
    x, weights = torch.randn(20, 50), {"w": torch.randn(50, 30), "b": torch.randn(30)}
    forward = "y = torch.empty(20, 30, device=x.device)\nmatmul_kernel[lambda m: (triton.cdiv(20, m['B']), triton.cdiv(30, m['B']))](x, self.w, y, 20, 30, 50)\ny += self.b\nreturn y.half()"
    source = module(
        forward, "self.w = nn.Parameter(torch.zeros(50, 30))\nself.b = nn.Parameter(torch.zeros(30))", MATMUL
    )
    plan = record(source, [x])
    replay = Replay(plan)
    want = (x @ weights["w"] + weights["b"]).half()
    for choice in (0, 1):
        replay.chosen = {plan.steps[0].key: choice}
        torch.testing.assert_close(replay.run([x], weights), want)
    assert torch.equal(replay.run([x]), torch.zeros(20, 30).half())  # the plan's own weights
    assert replay.run([x], weights, skip_launch=0).isnan().all()  # poison where the launch did not write


def test_aten_steps_agree_with_torch():
    forward = """
y = F.gelu(F.layer_norm(x, (20,), self.norm.weight, self.norm.bias))
y[1:3].mul_(2)
z = torch.cat([y, F.softmax(x, -1)]).sum(0, keepdim=True) + torch.arange(20, device="cuda")
z = torch.where(z > 0, z, torch.zeros_like(z)).to(torch.bfloat16).float()
return z, x.amax(1), torch.full((2,), float("inf"), device="cuda"), y.t().contiguous()"""
    x = torch.randn(6, 20)
    z, top, inf, t = run(module(forward, "self.norm = nn.LayerNorm(20)"), [x])
    y = F.gelu(F.layer_norm(x, (20,)))
    y[1:3] *= 2
    want = (torch.cat([y, x.softmax(-1)]).sum(0, keepdim=True) + torch.arange(20)).relu().bfloat16().float()
    torch.testing.assert_close(z, want)
    assert torch.equal(top, x.amax(1)) and inf.isinf().all() and t.is_contiguous()
    torch.testing.assert_close(t, y.t())


def test_inputs_are_copied_and_changes_are_reported():
    x, y = torch.randn(6, 20), torch.randn(6, 20)
    source = module("y.zero_()\nreturn add(x, y), y", args="x, y")
    replay = Replay(record(source, [x, y]))
    keep = y.clone()
    out, same = replay.run([x, y])
    assert torch.equal(y, keep) and torch.equal(out, x) and not same.any()
    assert replay.modified_inputs == [1]
    out, _ = replay.run([x * 2, y])
    assert torch.equal(out, x * 2)


def test_strided_and_expanded_inputs():
    x, e = torch.randn(20, 6).t(), torch.randn(1, 20).expand(6, 20)
    out = run(module("return add(x.contiguous(), e.contiguous()), e.t()", args="x, e"), [x, e])
    torch.testing.assert_close(out[0], x + e)
    assert torch.equal(out[1], e.t())


def test_unwritten_memory_is_poison_not_zeros():
    out = run(
        module(
            "a = torch.empty(5, device='cuda')\nb = torch.empty(5, device='cuda', dtype=torch.int64)\nreturn a, b, a.half()"
        ),
        [X],
    )
    assert out[0].isnan().all() and out[2].isnan().all() and (out[1].abs() > 1 << 60).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_poison_is_nan_or_absurd(dtype):
    data = torch.zeros(48, dtype=torch.uint8)
    poison(data, dtype)
    values = data.view(DTYPES[dtype])
    if DTYPES[dtype].is_floating_point:
        assert values.float().isnan().all()
    elif DTYPES[dtype].is_complex:
        assert values.real.isnan().all() and values.imag.isnan().all()
    else:
        assert (values != 0).all() and (values != -1).all()
    odd = torch.zeros(7, dtype=torch.uint8)
    poison(odd, dtype)
    assert (odd != 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_in_unwritten_memory(dtype):
    """A usual one and a large one, in an order that the seed decides."""
    orders = set()
    for seed in range(8):
        found = drawn(seed)
        orders.add(found[0].share == 0)
        for number in found:
            data = torch.zeros(48, dtype=torch.uint8)
            poison(data, dtype, number=number)
            values = data.view(DTYPES[dtype])
            if dtype == "bool":
                continue
            same = values.view(torch.uint8).view(-1, values.element_size())
            assert (same == same[0]).all()
            if DTYPES[dtype].is_floating_point:
                assert values.double().isfinite().all() and (values.double() != 0).all()
                large = values.double().abs() > torch.finfo(DTYPES[dtype]).max / 8
                assert (large if number.share else values.double().abs() <= 4).all()
    assert orders == {True, False}
    odd = torch.zeros(7, dtype=torch.uint8)
    poison(odd, dtype, number=drawn(0)[0])
    assert dtype == "bool" or (odd != 0).any()


def test_out_of_bounds_names_the_kernel_and_both_lines():
    top = "\n@triton.jit\ndef over(x_ptr, o_ptr, BLOCK: tl.constexpr):\n    at = tl.arange(0, BLOCK)\n    v = tl.load(x_ptr + at)\n    tl.store(o_ptr + at, v)\n"
    source = module("y = torch.empty(100, device='cuda')\nover[(1,)](x, y, BLOCK=128)\nreturn y", top=top)
    with pytest.raises(ReplayError, match="over") as e:
        run(source, [torch.randn(128)])
    assert e.value.status == "out_of_bounds" and e.value.line == line_with(source, "over[(1,)]")
    assert f"line {line_with(source, 'tl.store(o_ptr + at, v)')}" in str(e.value)
    with pytest.raises(ReplayError) as e:
        run(source, [torch.randn(100)])
    assert e.value.status == "out_of_bounds"


def test_programs_that_race_are_seen():
    top = "\n@triton.jit\ndef race(x_ptr, o_ptr):\n    i = tl.program_id(0)\n    tl.store(o_ptr, tl.load(x_ptr + i))\n"
    with pytest.raises(ReplayError) as e:
        run(
            module("y = torch.empty(1, device='cuda')\nrace[(4,)](x, y)\nreturn y", top=top), [torch.randn(4)]
        )
    assert e.value.status == "nondeterministic"


def test_an_empty_grid_launches_nothing():
    assert (
        run(
            module(
                "y = torch.zeros(6, 20, device='cuda')\nadd_kernel[(0,)](x, x, y, 120, BLOCK=64)\nreturn y"
            ),
            [X],
        )
        .eq(0)
        .all()
    )


def test_inputs_and_weights_must_fit_the_plan():
    replay = Replay(
        record(module("return x + self.w, n", "self.w = nn.Parameter(torch.ones(20))", args="x, n"), [X, 3])
    )
    for bad in ([X], [X, 4], [3, X], [X.double(), 3], [X[:2], 3]):
        with pytest.raises(ValueError):
            replay.run(bad)
    with pytest.raises(ValueError):
        replay.run([X, 3], {"w": torch.ones(3)})


def test_weights_that_were_not_shipped_must_be_given():
    source = module("return x + self.w", "self.w = nn.Parameter(torch.ones(20))")
    (key,) = record(source, [X]).blobs
    replay = Replay(record(source, [X], known=frozenset([key])))
    with pytest.raises(ReplayError, match="weight"):
        replay.run([X])
    assert torch.equal(replay.run([X], {"w": torch.ones(20)}), X + 1)


def test_an_operator_that_fails_is_the_candidates_error():
    source = module("i = torch.tensor([1, 50], device='cuda')\nreturn x[i]")
    with pytest.raises(ReplayError, match=r"aten.index.Tensor: .*out of (range|bounds)") as e:
        run(source, [X])
    assert e.value.status == "runtime_error" and e.value.line == line_with(source, "return x[i]")


def test_host_side_descriptors():
    top = """
from triton.tools.tensor_descriptor import TensorDescriptor
@triton.jit
def tile(src, dst, B: tl.constexpr):
    i = tl.program_id(0) * B
    dst.store([i, 0], src.load([i, 0]) * 2)
"""
    forward = "y = torch.empty_like(x)\ntile[(3,)](TensorDescriptor.from_tensor(x, [16, 32]), TensorDescriptor(y, y.shape, y.stride(), [16, 32]), B=16)\nreturn y"
    x = torch.randn(48, 32)
    torch.testing.assert_close(run(module(forward, top=top), [x]), x * 2)


def test_cubins_come_out_without_a_gpu(tmp_path):
    forward = "y = torch.empty(20, 30, device=x.device)\nmatmul_kernel[lambda m: (2, 2)](x, x, y, 20, 30, 50)\nreturn y"
    plan = record(module(forward, top=MATMUL), [torch.randn(50, 50)], max_configs=1)
    binary = compile_kernel(plan.kernels[0], DEFAULT)
    assert (
        binary.cubin[:4] == b"\x7fELF"
        and binary.name == "matmul_kernel"
        and (binary.num_warps, binary.num_ctas) == (2, 1)
    )
    assert binary.shared > 0 and Binary.from_bytes(binary.to_bytes(), DEFAULT) == binary
    for data in (
        b"",
        binary.to_bytes()[:-1000].replace(b"\x7fELF", b"xxxx"),
        b'{"name": 3}\n\x7fELF',
        b"\xff" * 30,
    ):
        with pytest.raises(PlanError):
            Binary.from_bytes(data, DEFAULT)
    cache = BinaryCache(DEFAULT, tmp_path)
    assert cache.get(plan.kernels[0]) is None
    cache.put(plan.kernels[0], binary)
    assert (
        cache.get(plan.kernels[0]) == BinaryCache(DEFAULT, tmp_path).get(plan.kernels[0]) == binary
        and len(os.listdir(tmp_path)) == 1
    )


def test_text_that_is_no_kernel_does_not_compile():
    text = "module {\n  tt.func public @k(%arg0: i32) {\n    %0 = no.such_op %arg0 : i32\n    tt.return\n  }\n}\n"
    with pytest.raises(CompileError) as e:
        compile_kernel(Kernel("k", text, dict(OPTIONS)), DEFAULT)
    assert e.value.status == "compile_error"


def test_too_much_shared_memory_is_out_of_resources():
    top = MATMUL.replace("((16, 2), (32, 4))", "((128, 4),)").replace(
        "num_warps=w", "num_warps=w, num_stages=9"
    )
    top = top.replace("tl.dot(a, b", "tl.dot(a.to(tl.float16), b.to(tl.float16)")
    forward = (
        "y = torch.empty(20, 30, device=x.device)\nmatmul_kernel[(1, 1)](x, x, y, 128, 128, 512)\nreturn y"
    )
    plan = record(module(forward, top=top), [torch.randn(512, 512, dtype=torch.float16)])
    with pytest.raises(CompileError, match="shared memory") as e:
        compile_kernel(plan.kernels[0], DEFAULT)
    assert e.value.status == "out_of_resources"


def test_tuning_chooses_the_fastest_and_changes_nothing():
    top = MATMUL.replace(
        "tl.store(c_ptr",
        "acc += tl.load(c_ptr + rows[:, None] * N + cols[None, :], mask=(rows[:, None] < M) & (cols[None, :] < N))\n    tl.store(c_ptr",
    )
    forward = "y = torch.zeros(20, 30, device=x.device)\nfor _ in range(2):\n    matmul_kernel[lambda m: (triton.cdiv(20, m['B']), triton.cdiv(30, m['B']))](x, w, y, 20, 30, 50)\nreturn y"
    x, w = torch.randn(20, 50), torch.randn(50, 30)
    replay = Replay(record(module(forward, top=top, args="x, w"), [x, w]))
    seconds = iter((2.0, 1.0))

    def time(work):
        work(), work()
        return next(seconds)

    replay.tune([x, w], None, time)
    assert list(replay.chosen.values()) == [1]
    torch.testing.assert_close(replay.outputs(), 2 * (x @ w), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(replay.run([x, w]), 2 * (x @ w), rtol=1e-4, atol=1e-4)


def test_operators_write_into_their_buffers():
    for name in (
        "add.Tensor",
        "mm.default",
        "sum.dim_IntList",
        "cat.default",
        "_softmax.default",
        "zeros.default",
        "clone.default",
        "native_layer_norm.default",
    ):
        assert writes_into(name), name
    a, b, out = torch.randn(3, 4), torch.randn(4, 5), torch.empty(3, 5)
    writes_into("mm.default")([a, b], {}, [out])
    assert torch.equal(out, a @ b)
    out = torch.empty(4)
    writes_into("sum.dim_IntList")([a, [0]], {"dtype": None}, [out])
    assert torch.equal(out, a.sum(0))


def test_what_torch_computes_stays_where_it_put_it_unless_a_kernel_gets_it():
    x = torch.randn(2, 3, 8, 8)
    build = "self.conv = nn.Conv2d(3, 4, 3, padding=1)"
    top = "\n@triton.jit\ndef twice(p, n, B: tl.constexpr):\n    at = tl.arange(0, B)\n    tl.store(p + at, 2 * tl.load(p + at, mask=at < n), mask=at < n)\n"
    weights = {"conv.weight": torch.randn(4, 3, 3, 3), "conv.bias": torch.randn(4)}
    want = F.conv2d(x, *weights.values(), padding=1)
    replay = Replay(
        record(module("y = F.relu(self.conv(x))\ny[:, 1:].mul_(3)\nreturn y, y.flip(0)", build), [x])
    )
    expected = want.relu()
    expected[:, 1:] *= 3
    for _ in range(2):
        replay.load([x], weights)
        for _ in range(2):  # as a stopwatch does
            replay.execute()
            out, flipped = replay.outputs()
            torch.testing.assert_close(out, expected)
            torch.testing.assert_close(flipped, expected.flip(0))
            assert len(replay.memory.adopted) == 3
        # a captured graph writes to what the last execution left, whatever was loaded since
        replay.load([x], weights)
        torch.testing.assert_close(replay.outputs()[0], expected)
    replay = Replay(record(module("y = self.conv(x)\ntwice[(1,)](y, 512, B=512)\nreturn y", build, top), [x]))
    torch.testing.assert_close(replay.run([x], weights), 2 * want)
    assert not replay.memory.adopted


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_trained_and_evaluated(training):
    x = torch.randn(4, 3, 5, 5)
    source = module(
        "return self.norm(x), self.norm.running_mean", f"self.norm = nn.BatchNorm2d(3).train({training})"
    )
    replay = Replay(record(source, [x]))
    for _ in range(2):
        y, mean = replay.run([x])
        fresh = torch.nn.BatchNorm2d(3).train(training)
        torch.testing.assert_close(y, fresh(x))
        torch.testing.assert_close(mean, fresh.running_mean)


def test_copies_of_truth_values():
    x = torch.randn(3, 5)
    got = run(module("m = x > 0\nreturn m.clone(), m.t().contiguous(), m.flip(0), m.clone() & ~m"), [x])
    for have, want in zip(
        got, (x > 0, (x > 0).t(), (x > 0).flip(0), torch.zeros(3, 5, dtype=torch.bool)), strict=True
    ):
        assert torch.equal(have, want)
