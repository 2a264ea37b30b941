"""The recorder: what candidates do comes out as a plan, what a plan cannot hold is refused with the line that did it."""

import pytest
import torch

from nanotriton.executor.replay.replayer import Replay
from nanotriton.plan.facts import reads_of, writes_of
from nanotriton.plan.plan import Aten, Choice, Launch
from tests.recording import ADD, HEAD, Refused, record, record_script

X = torch.randn(6, 20)


def module(forward: str, init: str = "pass", top: str = "", args: str = "x") -> str:
    indent = lambda text: "\n".join("        " + line for line in text.strip("\n").split("\n"))
    return (
        HEAD
        + ADD
        + top
        + "\nclass ModelNew(nn.Module):\n    def __init__(self, *a):\n        super().__init__()\n"
        f"{indent(init)}\n    def forward(self, {args}):\n{indent(forward)}\n"
    )


def line_with(source: str, text: str) -> int:
    return next(i for i, line in enumerate(source.splitlines(), 1) if text in line)


def ops(plan) -> list[str]:
    return [s.op for s in plan.flat_steps() if isinstance(s, Aten)]


def test_a_launch_is_ttir_grid_and_typed_arguments():
    plan = record(module("return add(x, x)"), [X])
    (launch,) = plan.steps
    assert launch.grid == (2, 1, 1)
    assert [ty for ty, _ in launch.args] == ["*fp32", "*fp32", "*fp32", "i32"]
    assert launch.args[3][1] == 120
    assert plan.storages[plan.tensors[launch.args[2][1]].storage].kind == "temp"
    assert launch.args[0][1] == launch.args[1][1] == plan.output_tensors()[0] - 1 == 0
    kernel = plan.kernels[launch.kernel]
    assert kernel.name == "add_kernel" and "tt.store" in kernel.ttir and "ttg" not in kernel.ttir
    assert kernel.signature == [("!tt.ptr<f32>", 16)] * 3 + [("i32", 1)]  # 120 is no multiple of 16
    assert launch.line == line_with(module("return add(x, x)"), "add_kernel[")


@pytest.mark.parametrize(
    "forward",
    [
        "y = torch.empty(x.shape, device='cuda')",
        "y = torch.empty(x.shape, device=x.device, dtype=x.dtype)",
        "y = torch.empty(x.shape, device=torch.device('cuda:0'))",
        "y = torch.empty(x.shape, device=0)",
        "y = torch.empty_like(x)",
        "y = x.new_empty(x.shape)",
        "y = torch.empty(*x.shape).cuda()",
        "y = torch.empty(*x.shape).to('cuda', non_blocking=True)",
        "y = torch.empty(*x.shape).to(x.device)",
        "y = torch.empty(*x.shape, pin_memory=True).to(x)",
        "y = torch.empty(*x.shape).cuda(0).cuda()",
        "torch.set_default_device('cuda'); y = torch.empty(*x.shape)",
        "with torch.device('cuda'): y = torch.empty(*x.shape)",
        "d = torch.device(0); assert d == x.device and d.type == 'cuda'; y = torch.empty(x.shape, device=d)",
        "y = torch._C._dynamo.guards._empty_strided_cuda((6, 20), (20, 1), torch.float32)",
    ],
)
def test_every_way_to_memory_on_the_gpu(forward):
    plan = record(
        module(
            f"{forward}\nassert y.is_cuda and y.device.type == 'cuda' and y.get_device() == 0\nreturn add(x, y)"
        ),
        [X],
    )
    assert len(plan.launches()) == 1 and not ops(plan)


def test_cuda_is_there_when_asked():
    forward = """
assert torch.cuda.is_available() and torch.cuda.device_count() == 1 and torch.cuda.current_device() == 0
stream = torch.cuda.Stream()
with torch.cuda.device(x.device), torch.cuda.stream(stream):
    out = add(x, x)
torch.cuda.current_stream().wait_stream(stream)
torch.cuda.synchronize(); torch.cuda.empty_cache()
start = torch.cuda.Event(enable_timing=True); start.record()
assert str(x.device) == "cuda:0" and not x.is_cpu and "cuda:0" in repr(x) and x.half().type() == "torch.cuda.HalfTensor"
return out"""
    assert len(record(module(forward), [X]).launches()) == 1


def test_a_device_keeps_its_name():
    init = "self.device = torch.device('cuda'); self.to(self.device); self.where = torch.device('cuda', 0); assert self.device.type == 'cuda'"
    plan = record(
        module(
            "assert x.device == self.where and torch.device('cpu').type == 'cpu'\nreturn add(x.to(self.device), x)",
            init,
        ),
        [X],
        [3],
    )
    assert len(plan.launches()) == 1 and not ops(plan)


def test_numbers_in_weights_are_known_until_something_may_write_there():
    init = "self.a = nn.Parameter(torch.tensor(2.5)); self.register_buffer('b', torch.arange(3.0)); self.c = torch.tensor([7]).cuda()"
    read = "return {'n': [self.a.item(), float(self.b[2]), int(self.c), bool(torch.tensor(1, device=x.device))], 'y': add(x, x)}"
    plan = record(module(read, init), [X], [3])
    assert plan.outputs["dict"][0] == ["n", [2.5, 2.0, 7, True]]
    for write in (
        "self.b.mul_(2)",
        "add_kernel[(1,)](x, self.b, self.b, 3, BLOCK=64)",
        "torch.add(self.b, 1, out=self.b)",
    ):
        with pytest.raises(Refused, match="value is read on the host") as refused:
            record(module(f"{write}\nn = self.b[0].item()\nreturn add(x, x)", init), [X], [3])
        assert refused.value.recordable is False


def test_parameters_kept_elsewhere_move_with_the_module():
    """As `.cuda()` moves them: the objects stay what they are. What was made of them before stays where it was."""
    init = (
        "self.l = nn.Linear(20, 20); self.own = [self.l.weight, self.l.bias]; self.old = self.l.weight.data"
    )
    forward = "w, b = self.own\nassert w.is_cuda and b.device == x.device and not self.old.is_cuda\nreturn add(x, w), add(self.l.weight, w), w[:3].t()"
    plan = record(module(forward, init), [X], [3])
    assert (
        {name: w.tensor for w in plan.weights for name in w.names}["l.weight"]
        == plan.launches()[1].args[0][1]
        == plan.launches()[1].args[1][1]
    )
    with pytest.raises(Refused, match="cpu tensor"):
        record(module("return add(x, self.old)", init), [X], [3])


def test_a_recurrent_layer_lists_its_weights_on_the_gpu():
    plan = record(
        module(
            "return add(x, self.l._flat_weights[1]), self.l.all_weights[1][3]", "self.l = nn.GRU(20, 20, 2)"
        ),
        [X],
        [3],
    )
    assert {name for w in plan.weights for name in w.names} >= {"l.weight_hh_l0", "l.bias_hh_l1"}


def test_views_are_tensors_not_steps():
    forward = """
a = x.t()[1:, ::2].unsqueeze(0)
b = x.view(-1)[3:].view(torch.int32)
out = torch.empty(20, 6, device="cuda").t()
add_kernel[(2,)](x, out.reshape(6, 20), out, 120, BLOCK=64)
return a, b, out.view(2, 3, 20), x.detach().expand(2, 6, 20)"""
    plan = record(module(forward), [X])
    assert not [s for s in plan.steps if isinstance(s, Aten) and s.op != "clone.default"]
    a, b, out, e = (plan.tensors[i] for i in plan.output_tensors())
    assert (a.shape, a.stride, a.offset) == ((1, 19, 3), (a.stride[0], 1, 40), 1)
    assert (b.dtype, b.shape, b.offset) == ("int32", (117,), 3)
    assert out.shape == (2, 3, 20) and e.stride[0] == 0 and e.storage == a.storage == b.storage


def test_in_place_and_casts_are_steps_on_the_same_storage():
    plan = record(module("y = x.half()\ny += 1\ny[2:, ::2].zero_()\ny[0] = x[1]\nreturn y"), [X])
    assert ops(plan) == ["_to_copy.default", "add_.Tensor", "zero_.default", "copy_.default"]
    assert len({plan.tensors[s.args[0]["t"]].storage for s in plan.steps[1:]}) == 1
    cast = plan.steps[0]
    assert [plan.nbytes(t) for t in reads_of(cast) + writes_of(cast)] == [120 * 4, 120 * 2]


def test_containers_and_numbers_come_back():
    plan = record(module("return {'a': (x, 3, None), 'b': [x.shape[0], 1.5, 'name', float('inf')]}"), [X])
    assert plan.outputs == {
        "dict": [["a", {"tuple": [{"t": 0}, 3, None]}], ["b", [6, 1.5, "name", {"float": "inf"}]]]
    }


def test_weights_by_name_tied_and_packed():
    init = """
self.a = nn.Linear(20, 20)
self.b = nn.Linear(20, 20)
self.b.weight = self.a.weight
self.register_buffer("scale", torch.full((20,), 2.0))
self.packed = torch.cat([self.a.weight, self.a.bias[None]]).detach().cuda()
self.inner = nn.ModuleList([nn.LayerNorm(20)])"""
    plan = record(
        module("return add(self.packed[:20], self.b.weight), self.inner[0].bias", init), [X], [3], seed=7
    )
    names = {name: w for w in plan.weights for name in w.names}
    assert set(names) == {
        "a.weight",
        "a.bias",
        "b.weight",
        "b.bias",
        "scale",
        "inner.0.weight",
        "inner.0.bias",
    }
    assert names["a.weight"] is names["b.weight"]
    torch.manual_seed(7)
    weight = torch.nn.Linear(20, 20).weight.detach()
    blob = lambda w: plan.blobs[plan.storages[plan.tensors[w.tensor].storage].blob]
    assert torch.equal(
        torch.frombuffer(bytearray(blob(names["a.weight"])), dtype=torch.float32).view(20, 20), weight
    )
    (packed,) = (w for w in plan.weights if not w.names)
    assert torch.equal(
        torch.frombuffer(bytearray(blob(packed)), dtype=torch.float32)[:400].view(20, 20), weight
    )


def test_known_weights_are_not_shipped():
    source = module("return self.w + x", "self.w = nn.Parameter(torch.randn(20))")
    plan = record(source, [X])
    (key,) = plan.blobs
    assert record(source, [X], known=frozenset([key])).blobs == {}


def test_host_values_are_uploaded_as_constants():
    forward = """
table = torch.tensor([3.0, 4.0], device="cuda")
host = torch.arange(20) % 7
assert host.sum().item() == 57 and host.tolist()[1] == 1
y = x[:, torch.tensor([0, 2])] * table + torch.tensor(2.0)
return add(x, host.to("cuda").float().expand(6, 20).contiguous()), y, x.new_tensor([1, 2])"""
    plan = record(module(forward), [X])
    constants = [s for s in plan.storages if s.kind == "const"]
    assert sorted(len(plan.blobs[s.blob]) for s in constants) == [4, 8, 8, 16, 160]


def test_host_tensors_do_not_mix_with_gpu_tensors():
    with pytest.raises(Refused, match="same device") as e:
        record(module("return x + torch.ones(20)"), [X])
    assert e.value.status == "runtime_error"
    with pytest.raises(Refused, match="cannot be accessed from Triton"):
        record(module("return add(x, torch.ones(6, 20))"), [X])
    with pytest.raises(Refused, match="on the CPU"):
        record(module("return torch.ones(20)"), [X])


@pytest.mark.parametrize(
    "read",
    [
        "x.sum().item()",
        "bool(x.max() > 0)",
        "float(x[0, 0])",
        "x.tolist()",
        "x.cpu()",
        "x.numpy()",
        "x.to('cpu')",
        "torch.tensor([x.data_ptr()], device='cuda')",
        "add_kernel[(1,)](x.data_ptr(), x, x, 1, BLOCK=64)",
        "[1, 2][x.argmax()]",
        "torch.nonzero(x)",
        "x[x > 0]",
        "torch.equal(x, x)",
        "torch.zeros(6, 20).copy_(x)",
        "torch.unique(x)",
        "torch.cuda.CUDAGraph()",
        "x.resize_(3)",
        "torch.rand(3, device='cuda')",
        "x.uniform_()",
        "torch.autocast('cuda').__enter__()",
        "torch.repeat_interleave(x[0], x[0].int())",
    ],
)
@pytest.mark.parametrize("caught", [False, True])
def test_reads_of_values_are_unrecordable_even_if_caught(read, caught):
    forward = (
        f"try:\n    y = {read}\nexcept BaseException: pass\nreturn add(x, x)"
        if caught
        else f"y = {read}\nreturn add(x, x)"
    )
    source = module(forward)
    with pytest.raises(Refused) as e:
        record(source, [X])
    assert (e.value.status, e.value.recordable) == ("unsupported", False)
    assert e.value.line == line_with(source, f"y = {read}")


def test_autotune_records_every_configuration_once():
    top = """
@triton.autotune([triton.Config({"BLOCK": b}, num_warps=w) for b, w in ((32, 1), (64, 2), (128, 4))], key=["n"], reset_to_zero=["o_ptr"])
@triton.heuristics({"EVEN": lambda a: a["n"] % a["BLOCK"] == 0})
@triton.jit
def tuned(x_ptr, o_ptr, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(o_ptr + at, tl.load(x_ptr + at) * 2)
    else:
        tl.store(o_ptr + at, tl.load(x_ptr + at, mask=at < n) * 2, mask=at < n)
"""
    forward = "y = torch.empty_like(x)\nfor _ in range(2):\n    tuned[lambda m: (triton.cdiv(120, m['BLOCK']),)](x, y, 120)\nreturn y"
    plan = record(module(forward, top=top), [X])
    first, second = plan.steps
    assert isinstance(first, Choice) and first.key == second.key
    assert [a[0].grid[0] for a in first.alternatives] == [4, 2, 1]
    assert [plan.kernels[a[0].kernel].options["num_warps"] for a in first.alternatives] == [1, 2, 4]
    assert len(record(module(forward, top=top), [X], max_configs=1).launches()) == 2


def test_launch_options_and_pruned_configurations():
    top = """
def prune(configs, args, **kwargs):
    return [c for c in configs if c.kwargs["BLOCK"] <= 64]
@triton.autotune([triton.Config({"BLOCK": b}, pre_hook=lambda a: a["o_ptr"].zero_()) for b in (64, 256)], key=["n"], prune_configs_by={"early_config_prune": prune})
@triton.jit
def tuned(x_ptr, o_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(o_ptr + at, tl.load(x_ptr + at, mask=at < n), mask=at < n)
"""
    forward = "y = torch.empty_like(x)\ntuned[(2,)](x, y, 120)\nadd_kernel[(2,)](x, y, y, 120, BLOCK=64, num_warps=8, num_stages=1, maxnreg=64, num_ctas=1)\nreturn y"
    plan = record(module(forward, top=top), [X])
    assert [type(s).__name__ for s in plan.steps] == ["Aten", "Launch", "Launch"]
    assert plan.kernels[1].options == {
        "num_warps": 8,
        "num_stages": 1,
        "num_ctas": 1,
        "maxnreg": 64,
        "launch_cooperative_grid": False,
        "enable_fp_fusion": True,
    }
    for option in (
        "ptx_options='-O0'",
        "ir_override='/tmp/x.ttgir'",
        "extern_libs={'a': '/tmp/a.bc'}",
    ):
        with pytest.raises(Refused, match=option.split("=")[0]) as e:
            record(
                module(
                    f"try:\n    add_kernel[(2,)](x, x, x, 120, BLOCK=64, {option})\nexcept Exception: pass\nreturn x"
                ),
                [X],
            )
        assert e.value.status == "rule_violation"


def test_kernels_call_functions_libdevice_and_take_tuples_and_floats():
    top = """
from triton.language.extra import libdevice
@triton.jit
def twice(v, factor):
    return libdevice.tanh(v) * factor
@triton.jit
def fancy(x_ptr, o_ptr, pair, factor, flag, maybe, n: tl.constexpr):
    at = tl.arange(0, n)
    v = twice(tl.load(x_ptr + at), factor) + pair[0]
    if flag:
        v += pair[1]
    tl.store(o_ptr + at, v)
"""
    plan = record(
        module(
            "y = torch.empty_like(x)\nfancy[(1,)](x, y, (5, 2.5), 0.5, True, None, n=64)\nreturn y", top=top
        ),
        [X],
    )
    assert [ty for ty, _ in plan.steps[0].args] == ["*fp32", "*fp32", "i32", "fp32", "fp32", "u1"]
    assert plan.steps[0].args[2:] == [("i32", 5), ("fp32", 2.5), ("fp32", 0.5), ("u1", True)]


def test_autograd_functions_inference_mode_and_modules_that_hold_weights():
    top = """
class Add(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a)
        return add(a, b)
"""
    forward = "with torch.inference_mode():\n    y = Add.apply(x, x).reshape(20, 6)\nreturn Add.apply(x, self.lin.weight), y"
    assert len(record(module(forward, "self.lin = nn.Linear(20, 6).cuda()", top), [X]).launches()) == 2


def test_warmup_and_occupancy_as_in_the_tutorial():
    forward = """
y = torch.empty_like(x)
kernel = add_kernel.warmup(x, x, y, 120, BLOCK=64, grid=(1,))
kernel._init_handles()
occupancy = 65536 // (kernel.n_regs * 32 * 4)
assert occupancy > 0 and kernel.metadata.shared >= 0
kernel[(2, 1, 1)](x, x, y, 120, 64)
return y"""
    plan = record(module(forward), [X])
    assert len(plan.steps) == 1 and [ty for ty, _ in plan.steps[0].args] == ["*fp32", "*fp32", "*fp32", "i32"]


@pytest.mark.parametrize(
    ("source", "status", "match", "at"),
    [
        ("def f(:\n", "syntax_error", "invalid syntax", 1),
        ("import torch\nimport no_such_module\n", "import_error", "no_such_module", 2),
        ("x = 1\n", "import_error", "does not define ModelNew", 0),
        (
            "class ModelNew:\n    def __init__(self):\n        raise KeyError('k')\n",
            "runtime_error",
            "KeyError",
            3,
        ),
        (
            "import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x @ x\n",
            "runtime_error",
            "reduction dim|mat1",
            4,
        ),
        (
            "import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return object()\n",
            "runtime_error",
            "object",
            0,
        ),
        ("import sys\nsys.exit(0)\n", "import_error", "SystemExit", 2),
    ],
)
def test_errors_name_status_and_line(source, status, match, at):
    with pytest.raises(Refused, match=match) as e:
        record(source, [X])
    assert (e.value.status, e.value.line, e.value.recordable) == (status, at, True)


def test_compile_errors_name_the_kernels_line():
    top = "\n@triton.jit\ndef bad(x_ptr, n, BLOCK: tl.constexpr):\n    a = tl.arange(0, BLOCK)\n    tl.store(x_ptr + a, torch.exp(a))\n"
    source = module("bad[(1,)](x, 120, BLOCK=64)\nreturn x", top=top)
    with pytest.raises(Refused) as e:
        record(source, [X])
    assert e.value.status == "compile_error" and e.value.line == line_with(source, "torch.exp(a)")
    source = module("bad[(1,)](x, 120, BLOCK=60)\nreturn x", top=top)
    with pytest.raises(Refused, match="power of 2") as e:
        record(source, [X])
    assert e.value.status == "compile_error" and e.value.line == line_with(source, "    a = tl.arange")
    kernel = "@triton.jit\ndef k(x):\n    o = tl.arange(0, 8)\n    a = tl.load(x + o)\n"
    # Triton's own function finds it
    source = module("k[(1,)](x)\nreturn x", top=kernel + "    tl.store(x + o, tl.topk(a, 3))")
    with pytest.raises(Refused) as e:
        record(source, [X])
    assert e.value.status == "compile_error" and e.value.line == line_with(source, "tl.topk")
    with pytest.raises(Refused, match=r"kernel k.*use tl.where") as e:
        record(module("k[(1,)](x)\nreturn x", top=kernel + "    tl.store(x + o, a * 2 if a > 0 else a)"), [X])
    assert e.value.status == "compile_error"


def test_a_kernel_cannot_run_before_forward():
    with pytest.raises(Refused, match="built") as e:
        record(module("return x", "add(torch.ones(64).cuda(), torch.ones(64).cuda())"), [X])
    assert not e.value.recordable


def test_inputs_keep_strides_and_numbers():
    plan = record(module("return add(x, x), n", args="x, n"), [torch.randn(20, 6).t(), 4])
    assert plan.inputs == [{"t": 0}, 4] and plan.tensors[0].stride == (1, 6)
    assert isinstance(plan.steps[0], Launch)


def test_whole_scripts_draw_their_random_tensors_while_they_record():
    script = (
        HEAD
        + ADD
        + """
def test():
    x = torch.randn(6, 20, device="cuda")
    y = torch.empty(6, 20, device="cuda").normal_()
    return {"sum": add(x, y), "both": (x, y), "host": torch.ones(2)}
result_gold = test()
"""
    )
    plan = record_script(script)
    out = Replay(plan).run([])
    torch.manual_seed(0)
    x, y = torch.randn(6, 20), torch.empty(6, 20).normal_()
    assert (
        torch.equal(out["both"][0], x)
        and torch.equal(out["both"][1], y)
        and torch.equal(out["sum"], x + y)
        and out["host"].eq(1).all()
    )


DESCRIBED = """
@triton.jit
def doubled(x_ptr, y_ptr, M, N, B: tl.constexpr):
    x = tl.make_tensor_descriptor(x_ptr, [M, N], [N, 1], [B, B])
    y = tl.make_tensor_descriptor(y_ptr, [M, N], [N, 1], [B, B])
    y.store([0, 0], x.load([0, 0]) * 2)
"""


def test_descriptors_that_a_kernel_makes_need_an_allocator():
    forward = "y = torch.empty_like(x)\ndoubled[(1,)](x, y, 16, 16, B=16)\nreturn y"
    inputs = [torch.empty(16, 16)]
    with pytest.raises(Refused, match=r"triton\.set_allocator") as e:
        record(module(forward, top=DESCRIBED), inputs)
    assert e.value.status == "runtime_error"
    allocates = "triton.set_allocator(lambda size, alignment, stream: x.new_empty(size))\n"
    assert len(record(module(allocates + forward, top=DESCRIBED), inputs).launches()) == 1
