"""Inductor's Triton code for a module, on a machine without a GPU: PyTorch's CPU build and triton are enough.

The module is traced on fake CPU tensors with symbolic sizes, and its graph is said to be about "cuda"
tensors: slicing a fake cuda tensor in Python needs a CUDA build, a graph of ATen calls does not. A dozen
questions of torch.cuda are answered as on an H100, and GraphLowering.compile_to_module is replaced by a
function that takes the code and stops, so that nothing is compiled and nothing runs.
"""

import contextlib
import math
import os
import types
from collections.abc import Iterator
from unittest import mock

os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")

import torch
import torch.fx
import torch.fx.traceback
import torch.utils._pytree as pytree
import torch.utils._triton
from torch._dynamo import device_interface
from torch._dynamo.source import ConstantSource
from torch._functorch.aot_autograd import aot_export_module
from torch._inductor import config
from torch._inductor.choices import InductorChoices
from torch._inductor.codegen.triton import TritonKernel
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.graph import GraphLowering
from torch._inductor.runtime.hints import ReductionHint
from torch._inductor.runtime.runtime_utils import next_power_of_2
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.nn.attention import SDPBackend, sdpa_kernel

H100 = types.SimpleNamespace(
    name="NVIDIA H100 80GB HBM3",
    major=9,
    minor=0,
    multi_processor_count=132,
    total_memory=85_017_493_504,
    warp_size=32,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    regs_per_multiprocessor=65536,
    shared_memory_per_block=49152,
    shared_memory_per_block_optin=232448,
    shared_memory_per_multiprocessor=233472,
    L2_cache_size=52_428_800,
    gcnArchName="",
    clock_rate=1980000,
    memory_clock_rate=2619000,
    memory_bus_width=5120,
)
OPTIONS = {
    "triton.cudagraphs": False,
    "max_autotune": False,
    "force_disable_caches": True,
    "compile_threads": 1,
    "triton.unique_kernel_names": True,
    "triton.descriptive_names": "original_aten",
    "comment_origin": False,
    "size_asserts": False,
    "triton.autotune_at_compile_time": False,
    "assert_indirect_indexing": False,
    "triton.native_matmul": True,
    "conv_1x1_as_mm": True,
    "triton.multi_kernel": 0,
    "benchmark_kernel": False,
    "shape_padding": False,
    "online_softmax": False,
    "split_reductions": False,
    "inplace_buffers": False,
    "allow_buffer_reuse": False,
    "triton.max_tiles": 1,  # flat indices, as a person takes them
}
LONGEST_ROW = 4096  # elements of a row that one program holds at once


class Captured(BaseException):
    """The code, on its way past every `except Exception`."""


def capture(graph: GraphLowering):
    code, _ = graph.codegen()
    raise Captured(getattr(code, "value", code))


@contextlib.contextmanager
def pretend_h100() -> Iterator[None]:
    """torch.cuda and Inductor's device interface answer as on a machine with one H100."""
    answers = {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_properties": H100,
        "get_device_capability": (9, 0),
        "is_initialized": False,
        "is_bf16_supported": True,
        "get_device_name": H100.name,
        "get_rng_state": torch.zeros(16, dtype=torch.uint8),
        "set_rng_state": None,
        "synchronize": None,
        "_exchange_device": 0,
        "_maybe_exchange_device": 0,
    }
    asked = {"get_device_properties": H100, "current_device": 0, "device_count": 1, "is_bf16_supported": True}
    # these trace on a real device
    tracing = (
        ("fuse_attention", "_sfdp_init"),
        ("pad_mm", "_pad_mm_init"),
        ("misc_patterns", "_misc_patterns_init"),
    )
    constant = lambda value: lambda *args, **kwargs: value
    with contextlib.ExitStack() as stack:
        for name, value in answers.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, constant(value)))
        for name, value in asked.items():
            stack.enter_context(
                mock.patch.object(device_interface.CudaInterface, name, staticmethod(constant(value)))
            )
        stack.enter_context(
            mock.patch.dict(device_interface.caching_worker_device_properties, {"cuda": [H100]})
        )
        stack.enter_context(mock.patch.object(torch.utils._triton, "triton_hash_with_backend", constant("0")))
        for module, name in tracing:
            with contextlib.suppress(ImportError, AttributeError):  # another torch may not have it
                stack.enter_context(mock.patch(f"torch._inductor.fx_passes.{module}.{name}", constant(None)))
        forget_cards()
        stack.callback(forget_cards)
        yield


def forget_cards() -> None:
    """torch keeps what it found out about this machine's cards, of which none can run Triton."""
    for kept in vars(torch.utils._triton).values():
        if hasattr(kept, "cache_clear"):
            kept.cache_clear()


def to_fake(model: torch.nn.Module, mode: FakeTensorMode, dynamic: bool) -> None:
    """Parameters, buffers and plain tensor attributes become fake tensors, in place; what is shared stays
    shared. dynamic: sizes of parameters and buffers are symbols.
    """
    memo: dict[int, torch.Tensor] = {}
    for module in model.modules():
        for store in (module._parameters, module._buffers, module.__dict__):
            for key, value in list(store.items()):
                if isinstance(value, torch.Tensor):
                    if id(value) not in memo:
                        sizes = dynamic and store is not module.__dict__
                        memo[id(value)] = fake(mode, value, f"p{len(memo)}", sizes)
                    store[key] = memo[id(value)]


def fake(mode: FakeTensorMode, x: torch.Tensor, name: str, dynamic: bool) -> torch.Tensor:
    """A tensor without values, like x; with symbols for its sizes if dynamic."""
    plain = x.detach()
    if dynamic:
        context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * x.dim())
        found = mode.from_tensor(plain, source=ConstantSource(name), symbolic_context=context)
    else:
        with mode:
            found = torch.empty_strided(plain.shape, plain.stride(), dtype=plain.dtype)
    return torch.nn.Parameter(found, requires_grad=False) if isinstance(x, torch.nn.Parameter) else found


def holds_rows(features, cooperative_reduction: bool) -> bool:
    """Instead of Inductor's choice: a reduction along the last dimension holds its row in one block; every
    other one is a loop.
    """
    inner = features.get_reduction_hint() == ReductionHint.INNER
    return inner and size_of(features.reduction_numel) <= LONGEST_ROW


def block_of_row(rnumel) -> int:
    """The block that holds a row, for this example's sizes: the kernel is rewritten to take it as a
    parameter. ValueError, which Inductor expects, for a row that is too long.
    """
    if size_of(rnumel) > LONGEST_ROW:
        raise ValueError("a long row")
    return next_power_of_2(size_of(rnumel))


def size_of(numel) -> int:
    """A symbolic size's value in the example."""
    return int(V.graph.sizevars.optimization_hint(numel))


def retarget(graph: torch.fx.Graph) -> None:
    """Say of every value of a graph that it lies on "cuda". Nothing is run again: some operators' own
    shape functions would turn symbolic sizes into numbers.
    """
    move = lambda v: empty_like(v, "cuda:0") if isinstance(v, torch.Tensor) else v
    for node in graph.nodes:
        if isinstance(node.kwargs.get("device"), torch.device):
            node.kwargs = node.kwargs | {"device": torch.device("cuda:0")}
        if "val" in node.meta:
            node.meta["val"] = pytree.tree_map(move, node.meta["val"])
            node.meta.pop("tensor_meta", None)


def empty_like(x: torch.Tensor, device: str) -> torch.Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device)


class AsTuple(torch.nn.Module):
    """A module with its outputs as a tuple."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model = model

    def forward(self, *inputs):
        answer = self.model(*inputs)
        return tuple(answer) if isinstance(answer, tuple | list) else (answer,)


# ---- decompositions: what Inductor would call a library for, or merge by Welford's formula, as plain
# operators ----


def convolution(x, w, bias, stride, padding, dilation, transposed, output_padding, groups):
    """aten.convolution as a gather, a product and a sum, of which Inductor makes one reduction kernel."""
    dims = w.dim() - 2
    full = lambda v: list(v) * dims if len(v) == 1 else list(v)
    stride, padding, dilation, output_padding = (
        full(stride),
        full(padding),
        full(dilation),
        full(output_padding),
    )
    kernel = list(w.shape[2:])
    batch = x.shape[0]
    channels = x.shape[1]
    pads = [(p, p) for p in padding]
    if transposed:
        x = spread(x, stride)
        pads = [
            (d * (k - 1) - p, d * (k - 1) - p + o)
            for k, p, d, o in zip(kernel, padding, dilation, output_padding)
        ]
        w = w.flip(*range(2, w.dim()))
        w = (
            w.reshape(groups, channels // groups, w.shape[1], *kernel)
            .transpose(1, 2)
            .reshape(-1, channels // groups, *kernel)
        )
        stride = [1] * dims
    if any(a or b for a, b in pads):
        x = torch.ops.aten.constant_pad_nd(x, [v for pair in reversed(pads) for v in pair])
    for d in range(dims):  # windows: [batch, channels, out..., kernel...]
        x = x.unfold(2 + d, dilation[d] * (kernel[d] - 1) + 1, stride[d])
    x = x[(slice(None),) * (2 + dims) + tuple(slice(None, None, d) for d in dilation)]
    out = list(x.shape[2 : 2 + dims])
    x = x.reshape(batch, groups, 1, channels // groups, *out, *kernel)
    w = w.reshape(1, groups, w.shape[0] // groups, w.shape[1], *[1] * dims, *kernel)
    y = (x * w).sum([3, *range(4 + dims, 4 + 2 * dims)]).reshape(batch, -1, *out)
    return y if bias is None else y + bias.reshape(1, -1, *[1] * dims)


def spread(x: torch.Tensor, stride: list[int]) -> torch.Tensor:
    """Zeros between the elements: a transposed convolution of this stride is a plain one of that."""
    dims = x.dim() - 2
    for d, s in enumerate(stride):
        if s > 1:
            size = list(x.shape)
            x = torch.ops.aten.constant_pad_nd(x.unsqueeze(3 + d), [0] * 2 * (dims - 1 - d) + [0, s - 1])
            x = x.reshape(size[: 2 + d] + [size[2 + d] * s] + size[3 + d :])
            x = x[(slice(None),) * (2 + d) + (slice(0, (size[2 + d] - 1) * s + 1),)]
    return x


def var_mean(x, dim=None, *, correction=None, keepdim=False):
    """aten.var_mean in two passes instead of Welford's one: what a person writes."""
    dims = list(range(x.dim())) if not dim else list(dim)
    mean = x.mean(dims, keepdim=True)
    centred = x - mean
    square = centred * centred
    if correction == 0:
        variance = square.mean(dims, keepdim=keepdim)
    else:
        count = math.prod(x.shape[d] for d in dims)
        variance = square.sum(dims, keepdim=keepdim) / (count - (1 if correction is None else correction))
    return variance, mean if keepdim else mean.squeeze(dims)


def var(x, dim=None, *, correction=None, keepdim=False):
    return var_mean(x, dim, correction=correction, keepdim=keepdim)[0]


def thin(a: torch.Tensor, b: torch.Tensor):
    """A product of matrices with a dimension of 1 as a sum of products: Inductor makes no tl.dot of it."""
    sizes = (a.shape[-2], a.shape[-1], b.shape[-1])
    if not any(isinstance(n, int) and n == 1 for n in sizes):
        return NotImplemented
    return (a.unsqueeze(-1) * b.unsqueeze(-3)).sum(-2)


def thin_with_bias(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta=1, alpha=1):
    found = thin(a, b)
    return found if found is NotImplemented or (beta, alpha) != (1, 1) else bias + found


def decompositions() -> dict:
    aten = torch.ops.aten
    return dict(select_decomp_table()) | {
        aten.convolution.default: convolution,
        aten.var_mean.correction: var_mean,
        aten.var.correction: var,
        aten.mm.default: thin,
        aten.bmm.default: thin,
        aten.addmm.default: thin_with_bias,
    }


def known(name: str) -> bool:
    """Whether this torch's Inductor has the option."""
    try:
        with config.patch({name: OPTIONS[name]}):
            return True
    except (AttributeError, KeyError):  # by version of torch
        return False


def emit(model: torch.nn.Module, inputs: list, dynamic: str = "all"):
    """(code, signature of the exported graph). Raises whatever tracing or lowering raises.

    dynamic: which sizes are symbols: those of inputs and parameters ("all"), of "inputs", or none ("").
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    to_fake(model, mode, dynamic == "all")
    fixed = [
        fake(mode, x, f"x{i}", bool(dynamic)) if isinstance(x, torch.Tensor) else x
        for i, x in enumerate(inputs)
    ]
    settings = {name: value for name, value in OPTIONS.items() if known(name)}
    # torch.cuda.is_available() is False here: nothing touches a device
    with (
        mode,
        torch.no_grad(),
        config.patch(settings),
        sdpa_kernel(SDPBackend.MATH),
        # kernels are named after the operators that the module has, and not after their decompositions
        torch.fx.traceback.preserve_node_meta(),
    ):
        graph, signature = aot_export_module(
            AsTuple(model), tuple(fixed), trace_joint=False, decompositions=decompositions()
        )
        retarget(graph.graph)
        fakes = [n.meta["val"] for n in graph.graph.nodes if n.op == "placeholder"]
    graph.recompile()
    with (
        pretend_h100(),
        config.patch(settings),
        torch.no_grad(),
        mock.patch.object(GraphLowering, "compile_to_module", capture),
        mock.patch.object(InductorChoices, "should_use_persistent_reduction", staticmethod(holds_rows)),
        mock.patch.object(TritonKernel, "_get_persistent_RBLOCK", staticmethod(block_of_row)),
    ):
        try:
            compile_fx_inner(graph, fakes, cudagraphs=False, is_inference=True)
        except Captured as captured:
            code = captured.args[0]
            return (code[0] if isinstance(code, tuple) else code), signature
    raise RuntimeError("Inductor made no code")
