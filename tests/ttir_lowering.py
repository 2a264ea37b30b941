"""Lowers real @triton.jit kernels to TTIR with Triton's own front end, no GPU needed, and evaluates them on CPU tensors."""

import torch
from triton._C.libtriton import ir
from triton.backends import backends
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler.compiler import Language

from nanotriton.executor.ttir import BUDGET, Evaluator, GlobalMemory
from nanotriton.executor.ttir.evaluator import RESIDENT

POINTER = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float64: "*fp64",
    torch.int8: "*i8",
    torch.int16: "*i16",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.bool: "*i1",
    torch.uint8: "*u8",
    torch.float8_e4m3fn: "*fp8e4nv",
    torch.float8_e5m2: "*fp8e5",
}


def lower(fn, args, capability=90, locations=True, **constexprs) -> str:
    """TTIR of `fn` for arguments of these types: tensors, ints (i32, or i64 if they need it), floats; or signature strings."""

    def kind(x):
        if isinstance(x, str):
            return x
        if isinstance(x, torch.Tensor):
            return POINTER[x.dtype]
        if isinstance(x, int):
            return "i32" if -(2**31) <= x < 2**31 else "i64"
        return "fp32"

    names = [n for n in fn.arg_names if n not in constexprs]
    signature = dict(zip(names, map(kind, args))) | dict.fromkeys(constexprs, "constexpr")
    source = ASTSource(fn, {n: signature[n] for n in fn.arg_names}, constexprs)
    target = GPUTarget("cuda", capability, 32)
    backend = backends["nvidia"].compiler(target)
    options, context, stages = backend.parse_options({}), ir.context(), {}
    ir.load_dialects(context)
    backend.load_dialects(context)
    functions = backend.get_codegen_implementation(options)
    module = source.make_ir(target, options, functions, backend.get_module_map(), context)
    backend.add_stages(stages, options, Language.TRITON)
    module = stages["ttir"](module, {})
    return str(module) if locations else module.str_nodebug()


def evaluate(fn, grid, *args, budget=BUDGET, seed=0, resident=RESIDENT, **constexprs):
    """Runs `fn` on CPU tensors through TTIR. Views of one storage share a buffer.

    seed: of the order of programs. resident: how many there is room for.
    """
    memory = GlobalMemory()
    values = [memory.add(x) if isinstance(x, torch.Tensor) else x for x in args]
    kernel = Evaluator(lower(fn, args, **constexprs))
    kernel.run(grid, values, memory, budget, seed, resident)
    return kernel


def data(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
