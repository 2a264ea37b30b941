"""Triton's interpreter, mended and guarded, for process mode on a CPU: `install()` once, in a process with TRITON_INTERPRET=1.

As it comes, the interpreter computes bfloat16 and fp8 as integers (fp32 -> bf16 cuts instead of rounding), fails on libdevice, on
@autotune ("0 active drivers") and on range() with a bound known at run time (triton 3.6, numpy >= 2.4), and multiplies in full
precision where a GPU takes TF32. It lets an access outside a tensor pass, or crash the process later, and hides races between
programs, which it runs one after another. All this is set right here, with the number formats and the rules of the TTIR evaluator
(executor/ttir), so that both judge alike. Checked with triton 3.6 and 3.8.

What stays wrong: a jit function may call anything, torch included; only the recorder proves that a kernel is Triton. Code that
wants to can undo this module, as it runs in the same process. Inline assembly is `Unsupported`.
"""

from functools import cache

import numpy as np
import torch
import triton
import triton.language as tl
import triton.runtime.interpreter as interpreter
from triton.language.extra import libdevice
from triton.language.extra.cuda import libdevice as cuda_libdevice
from triton.runtime.autotuner import Autotuner
from triton.runtime.errors import InterpreterError
from triton.runtime.interpreter import GridExecutor, InterpretedFunction, InterpreterBuilder, TensorHandle
from triton.runtime.jit import TensorWrapper
from triton.tools.tensor_descriptor import TensorDescriptor

from nanotriton.executor.ttir import OutOfBounds, Race, Unsupported
from nanotriton.executor.ttir.libdevice import find
from nanotriton.executor.ttir.numbers import clamp, decoder, encoder, erf, float_to_int, fma, tf32

NARROW = {tl.bfloat16: "bf16", tl.float8e4nv: "f8E4M3FN", tl.float8e5: "f8E5M2"}  # held as raw bits by the interpreter
_ir, _memory = interpreter._ir, interpreter._interpreter


# ---- mends ----


def widen(handle: TensorHandle) -> TensorHandle:
    """A float32 handle of the same values, if this one holds the bits of a narrow float."""
    elem = NARROW.get(handle.dtype.scalar)
    if elem is None or handle.data.dtype == bool:  # comparisons keep the type of what they compared
        return handle
    return TensorHandle(decoder(elem)(np.ascontiguousarray(handle.data)), tl.float32)


def narrow(data: np.ndarray, dtype: tl.dtype) -> TensorHandle:
    """A handle of `dtype` that holds these float values, rounded to nearest even if it is a narrow one."""
    if data.dtype == bool:
        return TensorHandle(data, tl.int1)
    if elem := NARROW.get(dtype):
        data = encoder(elem)(np.ascontiguousarray(data, dtype=np.float32))
    return TensorHandle(data, dtype)


def _mended(original, dtype_of: int):
    """`original(self, *handles, op)` in float32 where a handle holds narrow floats; the result has the type of handle `dtype_of`."""

    def method(self, *args):
        handles = [widen(h) if isinstance(h, TensorHandle) else h for h in args]
        return narrow(original(self, *handles).data, args[dtype_of].dtype.scalar)

    return method


class Mends:
    """Methods that replace InterpreterBuilder's."""

    def get_bf16(self, value):
        return narrow(np.array([value], np.float32), tl.bfloat16)

    def cast_impl(self, src, dst_type):
        data, dst = widen(src).data, dst_type.scalar
        if dst in NARROW:
            return narrow(data.astype(np.float32), dst)
        target = interpreter._get_np_dtype(dst)
        if data.dtype.kind == "f" and target.kind in "iu":
            signed = target.kind == "i"
            return TensorHandle(float_to_int(np.dtype(f"i{target.itemsize}"), signed)(data).view(target), dst)
        return TensorHandle(data.astype(target), dst)

    def create_dot(self, a, b, d, input_precision, max_num_imprecise_acc):
        x, y = widen(a).data, widen(b).data
        if x.dtype == np.float32 and a.dtype.scalar == tl.float32 and input_precision == _ir.INPUT_PRECISION.TF32:
            x, y = tf32(np.ascontiguousarray(x)), tf32(np.ascontiguousarray(y))
        wide = np.float32 if d.data.dtype == np.float16 else d.data.dtype
        return TensorHandle((np.matmul(x.astype(wide), y.astype(wide)) + d.data).astype(d.data.dtype), d.dtype.scalar)

    def create_fma(self, x, y, z):
        return narrow(fma(widen(x).data, widen(y).data, widen(z).data), z.dtype.scalar)

    def create_erf(self, arg):
        return TensorHandle(erf(arg.data), arg.dtype.scalar)

    def create_minnumf(self, lhs, rhs):
        return self.binary_op(lhs, rhs, np.fmin)

    def create_maxnumf(self, lhs, rhs):
        return self.binary_op(lhs, rhs, np.fmax)

    def create_clampf(self, arg, low, high, propagate_nans):
        return self.ternary_op(arg, low, high, lambda *x: clamp(*x, propagate_nans != _ir.PROPAGATE_NAN.NONE))

    def create_extern_elementwise(self, lib_name, lib_path, symbol, args, ret_type, is_pure):
        function = find(symbol)
        if function is None:
            raise Unsupported(f"the interpreter has no {symbol}")
        return TensorHandle(np.asarray(function(*(a.data for a in args))), ret_type.scalar)

    def create_inline_asm(self, *args):
        raise Unsupported("the interpreter has no inline assembly")


def _mend_builder() -> None:
    builder = InterpreterBuilder
    convert, rmw = builder.create_fp_to_fp, builder.create_atomic_rmw

    def create_fp_to_fp(self, src, dst_type, rounding_mode):
        if rounding_mode == _ir.ROUNDING_MODE.RTZ:
            return convert(self, src, dst_type, rounding_mode)
        return self.cast_impl(src, dst_type)

    def create_atomic_rmw(self, op, ptr, val, mask, sem, scope):
        if val.dtype.scalar not in NARROW or op == _ir.ATOMIC_OP.XCHG:
            return rmw(self, op, ptr, val, mask, sem, scope)
        if op != _ir.ATOMIC_OP.FADD:
            raise Unsupported(f"the interpreter has no atomic {op} on {val.dtype.scalar}")
        old = np.zeros_like(val.data)
        for i in np.flatnonzero(mask.data):  # one by one: addresses may repeat
            at = TensorHandle(ptr.data.reshape(-1)[i : i + 1], ptr.dtype)
            here, one = np.ones(1, bool), TensorHandle(val.data.reshape(-1)[i : i + 1], val.dtype)
            was = TensorHandle(_memory.load(at.data, here, np.zeros_like(one.data), one.data.dtype), val.dtype)
            _memory.store(at.data, self.binary_op(was, one, np.add).data, here)
            old.reshape(-1)[i] = was.data[0]
        return TensorHandle(old, val.dtype.scalar)

    builder.binary_op = _mended(builder.binary_op, 0)
    builder.unary_op = _mended(builder.unary_op, 0)
    builder.ternary_op = _mended(builder.ternary_op, 2)
    builder.create_fp_to_fp, builder.create_atomic_rmw = create_fp_to_fp, create_atomic_rmw
    for name, method in vars(Mends).items():
        if callable(method):
            setattr(builder, name, method)


def _mend_libdevice() -> None:
    """The stubs of `triton.language.extra.libdevice`, and CUDA's functions, which are called without a compiler here."""

    def bound(function):
        def call(*args, **kwargs):
            return function(*args, **(kwargs | {"_semantic": interpreter.interpreter_semantic}))

        return call

    for name, function in list(vars(cuda_libdevice).items()):
        if tl.core.is_builtin(function):
            setattr(libdevice, name, bound(function))
            setattr(cuda_libdevice, name, bound(function))


def _mend_range() -> None:
    patch = interpreter._patch_lang_tensor

    def patched(tensor, *scope):
        patch(tensor, *scope)
        tensor.__index__ = lambda self: int(self.handle.data.reshape(()))  # a scalar is an array of one element

    interpreter._patch_lang_tensor = patched


# ---- the guard ----


def _bits(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x).view(f"u{x.itemsize}")


class Guard:
    """The storages that one launch may touch, and which program (1, 2, ..; -1: several) last stored and loaded each byte."""

    def __init__(self, tensors: list[torch.Tensor]):
        spans = {s.data_ptr(): s.nbytes() for s in (t.untyped_storage() for t in tensors)}
        self.start = np.array(sorted(spans), np.int64)
        self.end = self.start + np.array([spans[s] for s in sorted(spans)], np.int64)
        self.first = np.concatenate([[0], np.cumsum(self.end - self.start)])  # of each storage, in writer and reader
        self.writer, self.reader = np.zeros((2, self.first[-1]), np.int32)  # untouched pages cost no memory
        self.synchronised = False  # a launch that has used atomics may have ordered its programs with them

    def bytes_of(self, what: str, ptrs, mask, program: int) -> tuple[np.ndarray, int]:
        """Places of the accessed bytes in `writer`, element by element, and the element size. Raises OutOfBounds."""
        size = max(ptrs.get_element_ty().primitive_bitwidth // 8, 1)
        address = ptrs.data[np.broadcast_to(np.asarray(mask), ptrs.data.shape)].astype(np.int64)
        if not len(address):
            return address, size
        owner = np.searchsorted(self.start, address, side="right") - 1
        inside = owner >= 0
        inside[inside] = address[inside] + size <= self.end[owner[inside]]
        if not inside.all():
            raise OutOfBounds(f"{what} of {int((~inside).sum())} elements outside every tensor, by program {program - 1}")
        if (address % size).any():
            raise OutOfBounds(f"misaligned {what} by program {program - 1}")
        place = self.first[owner] + address - self.start[owner]
        return (place[:, None] + np.arange(size)).ravel(), size

    def load(self, ptrs, mask, program: int) -> None:
        place, _ = self.bytes_of("load", ptrs, mask, program)
        if self.synchronised:
            return
        writer = self.writer[place]
        if ((writer != 0) & (writer != program)).any():
            raise Race(f"program {program - 1} loads what another program of the same launch stores")
        reader = self.reader[place]
        self.reader[place] = np.where((reader == 0) | (reader == program), program, -1)

    def store(self, ptrs, mask, value: np.ndarray, program: int) -> None:
        place, size = self.bytes_of("store", ptrs, mask, program)
        if self.synchronised or not len(place):
            return
        on = np.broadcast_to(np.asarray(mask), ptrs.data.shape)
        was = _memory.load(ptrs.data, on, np.zeros_like(value), value.dtype)
        changed = np.repeat((_bits(was) != _bits(value))[on].ravel(), size)
        for touched, did in ((self.writer[place], "stores"), (self.reader[place], "loads")):
            if ((touched != 0) & (touched != program) & changed).any():
                raise Race(f"program {program - 1} stores another value where another program of the same launch {did}")
        self.writer[place] = program

    def atomic(self, ptrs, mask, program: int) -> None:
        self.bytes_of("atomic", ptrs, mask, program)
        self.synchronised = True


_reachable: list[torch.Tensor] = []
_guards: list[Guard] = []  # of the launches in progress, innermost last


def guard(tensors: list[torch.Tensor]) -> None:
    """Let kernels also touch these tensors. Without, a launch may touch the storages of the tensors that it is given."""
    _reachable[:] = tensors


def _tensors(arguments) -> list[torch.Tensor]:
    found = []
    for argument in arguments:
        if isinstance(argument, tuple | list):
            found += _tensors(argument)
        elif isinstance(argument, TensorDescriptor | TensorWrapper):
            found += _tensors([argument.base])
        elif isinstance(argument, torch.Tensor):
            found.append(argument)
    return found


def _install_guard() -> None:
    launch, builder = GridExecutor.__call__, InterpreterBuilder
    load, store, rmw, cas = (getattr(builder, f"create_{n}") for n in ("masked_load", "masked_store", "atomic_rmw", "atomic_cas"))

    def program(self) -> int:
        (x, y, z), (nx, ny, _) = self.grid_idx, self.grid_dim
        return 1 + x + nx * (y + ny * z)

    def guarded_launch(self, *args, **kwargs):
        _guards.append(Guard(_tensors([*args, *kwargs.values()]) + _reachable))
        try:
            return launch(self, *args, **kwargs)
        finally:
            _guards.pop()

    def create_masked_load(self, ptrs, mask, *rest, **options):
        _guards[-1].load(ptrs, mask.data, program(self))
        return load(self, ptrs, mask, *rest, **options)

    def create_masked_store(self, ptrs, value, mask, *rest):
        _guards[-1].store(ptrs, mask.data, np.broadcast_to(value.data, ptrs.data.shape), program(self))
        return store(self, ptrs, value, mask, *rest)

    def create_atomic_rmw(self, op, ptr, val, mask, *rest):
        _guards[-1].atomic(ptr, mask.data, program(self))
        return rmw(self, op, ptr, val, mask, *rest)

    def create_atomic_cas(self, ptr, *rest):
        _guards[-1].atomic(ptr, np.ones(ptr.data.shape, bool), program(self))
        return cas(self, ptr, *rest)

    GridExecutor.__call__ = guarded_launch
    builder.create_masked_load, builder.create_masked_store = create_masked_load, create_masked_store
    builder.create_atomic_rmw, builder.create_atomic_cas = create_atomic_rmw, create_atomic_cas


# ---- for the caller ----


@cache
def install() -> None:
    """Mend and guard the interpreter of this process, for good. Raises RuntimeError without TRITON_INTERPRET=1."""
    if not triton.knobs.runtime.interpret:
        raise RuntimeError("Triton's interpreter is off: set TRITON_INTERPRET=1 before triton is imported")
    np.seterr(all="ignore")  # inf and NaN are values like others on a GPU
    # There is nothing to time: the first configuration that is left after pruning is the best.
    Autotuner.do_bench = property(lambda self: lambda kernel_call, quantiles: [1.0] * 3)
    InterpretedFunction.warmup = _warmup
    _mend_builder()
    _mend_libdevice()
    _mend_range()
    _install_guard()


def _warmup(self, *args, **kwargs):
    raise Unsupported("the interpreter compiles nothing: warmup() has no kernel to give")


def cause(error: BaseException) -> BaseException:
    """What a failed launch is about: OutOfBounds, Race, Unsupported or the kernel's own exception, inside Triton's wrappers."""
    while isinstance(error, InterpreterError) and error.__cause__ is not None:
        error = error.__cause__
    return error
