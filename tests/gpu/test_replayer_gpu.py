"""Replay on a GPU: cubins made from recorded TTIR give what torch gives; guards, poison, tuning and the clock work."""

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

import torch.nn.functional as F

from nanotriton.executor.gpu import driver
from nanotriton.executor.gpu.arena import CudaBackend
from nanotriton.executor.gpu.ask import describe
from nanotriton.executor.gpu.compiler import compile_kernel
from nanotriton.executor.gpu.timing import Stopwatch, Work, floor_us
from nanotriton.executor.replay.replayer import Replay, ReplayError
from tests.recording import record
from tests.test_recorder import module
from tests.test_replayer import MATMUL, SOFTMAX

CARD = describe()
hopper = pytest.mark.skipif(CARD.major < 9, reason="needs a GPU with descriptors")


@pytest.fixture
def replay():
    """(source, inputs, options) -> Replay on the GPU; closed afterwards."""
    made = []

    def make(source: str, inputs: list, **options) -> Replay:
        plan = record(source, inputs, card=CARD, **options)
        made.append(CudaBackend({k.key: compile_kernel(k, CARD) for k in plan.kernels}))
        return Replay(plan, backend=made[-1])

    yield make
    for backend in made:
        backend.close()


def gpu(*shape, **kw) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", **kw)


def test_softmax_and_views(replay):
    x = gpu(300, 1000)
    forward = "y = torch.empty_like(x)\nsoftmax_kernel[(300,)](x, y, x.stride(0), 1000, BLOCK=1024)\nreturn y, (x.shape[0], y[:, ::2])"
    r = replay(module(forward, top=SOFTMAX), [x])
    for _ in range(2):
        y, (n, view) = r.run([x])
        torch.testing.assert_close(y, x.softmax(1))
        assert n == 300 and torch.equal(view, y[:, ::2]) and r.modified_inputs == []
    assert r.run([x], skip_launch=0)[0].isnan().all()


def test_autotuned_matmul_weights_and_tuning(replay):
    x, w = gpu(200, 500), gpu(500, 300)
    forward = "y = torch.empty(200, 300, device=x.device)\nmatmul_kernel[lambda m: (triton.cdiv(200, m['B']), triton.cdiv(300, m['B']))](x, self.w, y, 200, 300, 500)\nreturn y.half()"
    r = replay(module(forward, "self.w = nn.Parameter(torch.zeros(500, 300))", MATMUL), [x])
    want = (x.double() @ w.double()).half()
    for choice in (0, 1):
        r.chosen = {0: choice}
        torch.testing.assert_close(r.run([x], {"w": w}), want, rtol=2e-3, atol=2e-2)
    r.chosen = {}
    r.tune([x], {"w": w}, Stopwatch().quick)
    assert r.chosen[0] in (0, 1)
    torch.testing.assert_close(r.run([x], {"w": w}), want, rtol=2e-3, atol=2e-2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.int8])
def test_dtypes_and_scalars(replay, dtype):
    top = "\n@triton.jit\ndef scale(x, o, a, b, n, B: tl.constexpr):\n    at = tl.program_id(0) * B + tl.arange(0, B)\n    v = tl.load(x + at, mask=at < n)\n    tl.store(o + at, (v * a + b).to(o.dtype.element_ty), mask=at < n)\n"
    x = (gpu(1000) * 5).to(dtype)
    a, b = (2.0, -1.5) if dtype.is_floating_point else (2, -1)
    out = replay(
        module(f"y = torch.empty_like(x)\nscale[(8,)](x, y, {a}, {b}, 1000, B=128)\nreturn y", top=top), [x]
    ).run([x])
    want = (x.double() * a + b).to(dtype)
    torch.testing.assert_close(out, want, rtol=1e-2, atol=1e-2)


def test_operators_between_launches(replay):
    forward = """
y = F.gelu(F.layer_norm(x, (64,), self.norm.weight, self.norm.bias))
y[1:3].mul_(2)
z = torch.cat([y, add(y, y)]) @ self.lin.weight.t() + torch.arange(64, device="cuda")
return z, z.to(torch.bfloat16), z.amax(1), torch.zeros(3, device="cuda")"""
    x, init = gpu(32, 64), "self.norm = nn.LayerNorm(64)\nself.lin = nn.Linear(64, 64)"
    lin = torch.nn.Linear(64, 64).cuda().requires_grad_(False)
    z, half, top, zeros = replay(module(forward, init), [x]).run([x], {"lin.weight": lin.weight})
    y = F.gelu(F.layer_norm(x, (64,)))
    y[1:3] *= 2
    want = torch.cat([y, y + y]) @ lin.weight.t() + torch.arange(64, device="cuda")
    torch.testing.assert_close(z, want, rtol=1e-3, atol=1e-3)
    assert torch.equal(half, z.bfloat16()) and torch.equal(top, z.amax(1)) and not zeros.any()


def test_writes_outside_are_seen_and_reads_outside_are_nan(replay):
    top = "\n@triton.jit\ndef over(x, o, B: tl.constexpr, W: tl.constexpr):\n    at = tl.arange(0, B)\n    tl.store(o + tl.arange(0, W), tl.sum(tl.load(x + at)) + tl.arange(0, W))\n"
    r = replay(
        module("y = torch.empty(100, device='cuda')\nover[(1,)](x, y, B=128, W=128)\nreturn y", top=top),
        [gpu(128)],
    )
    with pytest.raises(ReplayError, match="behind buffer") as e:
        r.run([gpu(128)])
    assert e.value.status == "out_of_bounds" and not e.value.fatal
    x = gpu(100)
    assert (
        replay(
            module("y = torch.empty(64, device='cuda')\nover[(1,)](x, y, B=128, W=64)\nreturn y", top=top),
            [x],
        )
        .run([x])
        .isnan()
        .all()
    )


def test_inputs_stay_and_changes_are_reported(replay):
    x, y = gpu(6, 20), gpu(6, 20)
    keep = y.clone()
    r = replay(module("y.zero_()\nreturn add(x, y)", args="x, y"), [x, y])
    assert torch.equal(r.run([x, y]), x) and torch.equal(y, keep) and r.modified_inputs == [1]


def test_descriptors_through_tma_and_as_numbers(replay):
    top = """
from triton.tools.tensor_descriptor import TensorDescriptor
@triton.jit
def tile(src, dst, B: tl.constexpr):
    i = tl.program_id(0) * B
    dst.store([i, 0], src.load([i, 0]) * 2)
"""
    forward = "y = torch.empty_like(x)\ntile[(3,)](TensorDescriptor.from_tensor(x, [16, 32]), TensorDescriptor(y, y.shape, y.stride(), [16, 32]), B=16)\nreturn y"
    for x in (gpu(48, 32), gpu(40, 32, dtype=torch.float16)):
        torch.testing.assert_close(replay(module(forward, top=top), [x]).run([x]), x * 2)


def test_cooperative_grids_clusters_and_many_warps(replay):
    for options in (
        "launch_cooperative_grid=True",
        *["num_ctas=2"] * (CARD.major >= 9),
        "num_warps=16, num_stages=1",
        "maxnreg=64",
    ):
        x = gpu(6, 20)
        forward = f"y = torch.empty_like(x)\nadd_kernel[(2,)](x, x, y, 120, BLOCK=64, {options})\nreturn y"
        assert torch.equal(replay(module(forward), [x]).run([x]), x + x), options


@hopper
def test_device_made_descriptors_use_global_scratch(replay):
    top = """
@triton.jit
def tile(x, o, M, N: tl.constexpr, B: tl.constexpr):
    d = tl.make_tensor_descriptor(x, [M, N], [N, 1], [B, N])
    e = tl.make_tensor_descriptor(o, [M, N], [N, 1], [B, N])
    i = tl.program_id(0) * B
    e.store([i, 0], d.load([i, 0]) * 2)


def allocate(size, alignment, stream):
    return torch.empty(size, dtype=torch.int8, device="cuda")


triton.set_allocator(allocate)
"""
    x = gpu(48, 32)
    r = replay(module("y = torch.empty_like(x)\ntile[(3,)](x, y, 48, N=32, B=16)\nreturn y", top=top), [x])
    torch.testing.assert_close(r.run([x]), x * 2)
    assert any(b.scratch for b in r.backend.binaries.values())


def test_sizes_of_arguments_are_the_cubins_own(replay):
    r = replay(module("return add(x, x)"), [gpu(6, 20)])
    function = r.backend.function(r.plan.kernels[0])
    assert function.sizes == [8, 8, 8, 4, 8, 8]
    with pytest.raises(driver.DriverError, match="takes parameters"):
        driver.pack(function, [("!tt.ptr<f32>", 0)], 0, 0)


def test_the_clock_repeats_and_agrees_with_bandwidth(replay):
    watch, n = Stopwatch(), 32 << 20
    x = gpu(n)
    source = module(
        f"y = torch.empty_like(x)\nadd_kernel[({n // 1024},)](x, x, y, {n}, BLOCK=1024)\nreturn y"
    )
    r = replay(source, [x])
    work = Work(r.execute, lambda i: r.load([x]))
    times = [watch.time([work])[0] for _ in range(3)]
    floor = floor_us(CARD, x.nbytes, x.nbytes)
    assert all(t.clock == "graph" for t in times)
    assert floor < min(t.us for t in times) < 3 * floor
    assert max(t.us for t in times) / min(t.us for t in times) < 1.05
    r.execute()
    assert torch.equal(r.outputs(), x + x)
    empty = replay(
        module("y = torch.empty_like(x)\nadd_kernel[(1,)](x, x, y, 0, BLOCK=64)\nreturn y"), [x[:100]]
    )
    assert watch.time([Work(empty.execute, lambda i: empty.load([x[:100]]))])[0].us < 20


CONVOLUTIONS = {
    "1d": ("nn.Conv1d(8, 16, 3, stride=2, padding=1)", (4, 8, 50)),
    "2d": ("nn.Conv2d(8, 16, 3, padding=1, bias=False)", (4, 8, 20, 21)),
    "grouped": ("nn.Conv2d(8, 16, 3, dilation=2, groups=4)", (4, 8, 20, 21)),
    "depthwise": ("nn.Conv2d(8, 8, 3, groups=8)", (4, 8, 20, 21)),
    "3d": ("nn.Conv3d(8, 16, 3, padding=1)", (2, 8, 9, 10, 11)),
    "transposed": ("nn.ConvTranspose2d(8, 16, 3, stride=2, output_padding=1)", (4, 8, 20, 21)),
    "batch norm": ("nn.BatchNorm2d(8)", (4, 8, 20, 21)),
    "batch norm, evaluated": ("nn.BatchNorm2d(8).eval()", (4, 8, 20, 21)),
}


@pytest.mark.parametrize("kernel", [False, True])
@pytest.mark.parametrize("layer", CONVOLUTIONS)
def test_convolutions_and_batch_norms_are_torchs_own_calls(replay, layer, kernel):
    """Bit by bit what the module gives, whether its result stays where torch put it or goes to a kernel."""
    build, shape = CONVOLUTIONS[layer]
    top = "\n@triton.jit\ndef twice(p, n, B: tl.constexpr):\n    at = tl.program_id(0) * B + tl.arange(0, B)\n    tl.store(p + at, 2 * tl.load(p + at, mask=at < n), mask=at < n)\n"
    then = "twice[(triton.cdiv(y.numel(), 1024),)](y, y.numel(), B=1024)\n" if kernel else ""
    x, own = gpu(*shape), eval(build, {"nn": torch.nn}).cuda()
    own.load_state_dict(
        {n: torch.rand_like(t) if t.is_floating_point() else t for n, t in own.state_dict().items()}
    )
    weights = {f"layer.{n}": t.clone() for n, t in own.state_dict().items()}
    want = own(x).detach() * (2 if kernel else 1)
    r = replay(module(f"y = self.layer(x)\n{then}return y", f"self.layer = {build}", top), [x])
    for _ in range(2):
        got = r.run([x], weights)
        if kernel and "norm" in layer:  # torch's own kernel, which can write into memory that it is given
            torch.testing.assert_close(got, want)
        else:
            assert torch.equal(got, want)
