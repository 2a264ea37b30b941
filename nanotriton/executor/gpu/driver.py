"""The CUDA driver's API by ctypes: load a cubin and launch it. Triton's own launcher needs a C compiler.

Arguments are packed in Triton's order: every parameter of the TTIR, then two pointers to scratch memory.
A host-side descriptor is a 128-byte tensor map, or plain numbers where the kernel does not use TMA, followed
by its shape and strides. `pack` compares the sizes with those that the cubin itself names, because a launch
with too few arguments would make the driver read wild memory.
"""

import ctypes
import functools
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # ask.py runs without torch, which takes seconds to import
    from nanotriton.executor.gpu.compiler import Binary

# Errors after which the context is lost, so that the process has to end
FATAL = {
    700: "illegal memory access",
    702: "launch timed out",
    714: "illegal address space",
    715: "illegal instruction",
    716: "misaligned address",
    717: "invalid address space",
    718: "invalid program counter",
    719: "launch failed",
    710: "device-side assertion",
}
BLOCKING_SYNC = 4  # CU_CTX_SCHED_BLOCKING_SYNC
CONTEXT_ACTIVE = 708  # CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE
MAX_DYNAMIC_SHARED, NON_PORTABLE_CLUSTER = 8, 14  # CU_FUNC_ATTRIBUTE_*
COOPERATIVE, CLUSTER_DIMENSION, CLUSTER_SCHEDULING = 2, 4, 5  # CU_LAUNCH_ATTRIBUTE_*
NO_INTERLEAVE, PROMOTE_128B = 0, 2  # CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_128B
TMA_TYPE = {8: 10, 9: 8, 10: 9}  # CUtensorMapDataType, where Triton's number is another one
FORMATS = {"i1": "b", "i8": "b", "i16": "h", "i32": "i", "i64": "q", "f16": "e", "f32": "f", "f64": "d"}
TENSOR_MAP = 128  # bytes


class DriverError(RuntimeError):
    """A call of the driver failed. fatal: this process has lost its CUDA context."""

    def __init__(self, code: int, what: str):
        super().__init__(f"{what}: {FATAL.get(code, f'CUDA driver error {code}')}")
        self.code, self.fatal = code, code in FATAL


class LaunchAttribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint * 16)]


class LaunchConfig(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("count", ctypes.c_uint),
    ]


@functools.cache
def library() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def call(name: str, *args) -> None:
    """Call one of the driver's functions. Raises DriverError."""
    if code := getattr(library(), name)(*args):
        raise DriverError(code, name)


def context_is_lost() -> bool:
    """Whether this process has lost its CUDA context. It first waits for everything that was launched."""
    return library().cuCtxSynchronize() in FATAL


def sleep_while_waiting() -> None:
    """Let this process sleep when it waits for the GPU, instead of spinning.

    It must be called before the context is made.
    """
    call("cuInit", 0)
    try:
        call("cuDevicePrimaryCtxSetFlags", 0, BLOCKING_SYNC)
    except DriverError as error:
        if error.code != CONTEXT_ACTIVE:  # torch has made it already: it spins
            raise


def fill(address: int, size: int, stream: int) -> None:
    """Set bytes of the GPU's memory to 0xFF, NaN in every float type."""
    call(
        "cuMemsetD8Async",
        ctypes.c_uint64(address),
        ctypes.c_ubyte(0xFF),
        ctypes.c_size_t(size),
        ctypes.c_void_p(stream),
    )


# ---- loading ----


@dataclass
class Function:
    """A loaded kernel. `unload` it before forgetting it."""

    binary: "Binary"
    module: ctypes.c_void_p
    handle: ctypes.c_void_p
    sizes: list[int]  # bytes of each parameter, as the cubin names them

    def unload(self) -> None:
        call("cuModuleUnload", self.module)


def load(binary: "Binary") -> Function:
    module, handle = ctypes.c_void_p(), ctypes.c_void_p()
    call("cuModuleLoadData", ctypes.byref(module), binary.cubin)
    call("cuModuleGetFunction", ctypes.byref(handle), module, binary.name.encode())
    if binary.shared > 48 << 10:
        call("cuFuncSetAttribute", handle, MAX_DYNAMIC_SHARED, binary.shared)
    if binary.num_ctas == 16:
        call("cuFuncSetAttribute", handle, NON_PORTABLE_CLUSTER, 1)
    return Function(binary, module, handle, _parameter_sizes(handle))


def _parameter_sizes(handle: ctypes.c_void_p) -> list[int]:
    """Bytes of each parameter. The driver names them one by one, until there is none with that number."""
    sizes: list[int] = []
    offset, size = ctypes.c_size_t(), ctypes.c_size_t()
    while True:
        number = ctypes.c_size_t(len(sizes))
        if library().cuFuncGetParamInfo(handle, number, ctypes.byref(offset), ctypes.byref(size)):
            return sizes
        sizes.append(size.value)


# ---- arguments ----


def parameters(value: Any) -> int:
    """How many parameters of the TTIR an argument fills. A descriptor's shape and strides have their own.

    value: a number, an address or a tensor's id, or a descriptor [address or id, shape, strides, padding].
    """
    if not isinstance(value, list):
        return 1
    _, shape, strides, _ = value
    return 1 + len(shape) + len(strides)


def pack(function: Function, args: list[tuple[str, Any]], scratch: int, profile: int) -> list[bytes]:
    """Bytes of every parameter. Raises DriverError if the cubin wants other sizes.

    args: (TTIR type, value). The value of a pointer is an address, and that of a descriptor is
    [address, shape, strides, padding].
    scratch, profile: addresses of scratch memory.
    """
    packed: list[bytes] = []
    descriptors = iter(function.binary.descriptors)
    for ty, value in args:
        if ty.startswith("!tt.tensordesc"):
            packed += _descriptor(value, next(descriptors, None), function.sizes[len(packed) :])
        else:
            packed.append(_scalar(ty, value))
    packed += [struct.pack("<Q", scratch), struct.pack("<Q", profile)]
    sizes = [len(data) for data in packed]
    if sizes != function.sizes:
        name = function.binary.name
        raise DriverError(1, f"{name} takes parameters of {function.sizes} bytes, not {sizes}")
    return packed


def _scalar(ty: str, value: Any) -> bytes:
    """A pointer or a number. Integers wrap around, and floats that are too large become infinite."""
    if ty.startswith("!tt.ptr"):
        return struct.pack("<Q", value)
    if ty == "bf16":
        return _float("f", value)[2:]
    if ty[0] == "i":
        size = struct.calcsize(FORMATS[ty])
        mask = (1 << 8 * size) - 1
        return (int(value) & mask).to_bytes(size, "little")
    return _float(FORMATS[ty], value)


def _float(form: str, value: float) -> bytes:
    try:
        return struct.pack("<" + form, value)
    except OverflowError:
        return struct.pack("<" + form, float("inf") if value > 0 else float("-inf"))


def _descriptor(value: list, layout: dict | None, sizes: list[int]) -> list[bytes]:
    """A descriptor's parameters.

    layout: of its tensor map, or None without TMA. sizes: of the cubin's parameters from here on.
    """
    address, shape, strides, padding = value
    nan = padding == "nan"
    numbers = [struct.pack("<i", n) for n in shape]
    numbers += [struct.pack("<q", s) for s in strides]
    if layout is not None:
        return [tensor_map(address, shape, strides, nan, layout), *numbers]
    wide = [struct.pack("<Q", address)]
    wide += [struct.pack("<q", n) for n in (*shape, *strides)]
    flags = [struct.pack("<b", nan)]
    after = len(wide) + len(flags)
    if sizes[after : after + 1] == [1]:  # triton 3.8 adds round_f32_to_tf32
        flags.append(struct.pack("<b", 0))
    return [*wide, *flags, *numbers]


def tensor_map(address: int, shape: list[int], strides: list[int], nan: bool, layout: dict) -> bytes:
    """A tiled CUtensorMap as Triton's launcher fills it.

    nan: elements outside of the tensor are read as NaN, else as 0.
    The driver wants the innermost dimension first, and strides in bytes. The innermost stride is left out: it
    is one element.
    """
    rank = len(layout["block_size"])
    if layout.get("fp4_padded"):
        shape = [*shape[:-1], 2 * shape[-1]]
    outer = [s * layout["elem_size"] for s in strides[:-1]]
    u64, u32 = ctypes.c_uint64, ctypes.c_uint32
    sizes = (u64 * rank)(*reversed(shape))
    pitches = (u64 * max(1, rank))(*reversed(outer), 0)
    box = (u32 * rank)(*reversed(layout["block_size"]))
    element_strides = (u32 * rank)(*[1] * rank)
    room, start = _aligned(bytes(TENSOR_MAP))
    call(
        "cuTensorMapEncodeTiled",
        ctypes.c_void_p(start),
        TMA_TYPE.get(layout["elem_type"], layout["elem_type"]),
        u32(rank),
        ctypes.c_void_p(address),
        sizes,
        pitches,
        box,
        element_strides,
        NO_INTERLEAVE,
        layout["swizzle"],
        PROMOTE_128B,
        1 if nan else 0,
    )
    first = start - ctypes.addressof(room)
    return room.raw[first : first + TENSOR_MAP]


# ---- launches ----


class Prepared:
    """A launch with its arguments in place, so that `go` costs one call of the driver."""

    def __init__(self, function: Function, grid: tuple[int, int, int], packed: list[bytes], keep: Any = None):
        """packed: of `pack`. keep: objects that must live as long as the launch, such as scratch memory."""
        binary = function.binary
        self.function, self.keep = function, keep
        self.buffers = [_aligned(data) for data in packed]
        self.params = (ctypes.c_void_p * len(packed))(*[address for _, address in self.buffers])
        self.attributes, count = _attributes(binary)
        x, y, z = grid
        self.config = LaunchConfig(
            grid=(x * binary.num_ctas, y, z),
            block=(32 * binary.num_warps, 1, 1),
            shared=binary.shared,
            stream=None,
            attributes=self.attributes,
            count=count,
        )

    def go(self, stream: int) -> None:
        self.config.stream = stream
        call("cuLaunchKernelEx", ctypes.byref(self.config), self.function.handle, self.params, None)


def _attributes(binary: "Binary") -> tuple[Any, int]:
    """(an array of LaunchAttribute, how many of them are used)."""
    wanted = []
    if binary.cooperative:
        wanted.append((COOPERATIVE, [1]))
    if binary.num_ctas > 1:
        wanted.append((CLUSTER_DIMENSION, [binary.num_ctas, 1, 1]))
        wanted.append((CLUSTER_SCHEDULING, [1]))
    attributes = (LaunchAttribute * max(1, len(wanted)))()
    for attribute, (number, values) in zip(attributes, wanted):
        attribute.id = number
        attribute.value[: len(values)] = values
    return attributes, len(wanted)


def _aligned(data: bytes) -> tuple[Any, int]:
    """(buffer, address) of a copy at a multiple of 64 bytes. The buffer keeps the copy alive."""
    room = ctypes.create_string_buffer(len(data) + 64)
    address = ctypes.addressof(room) + (-ctypes.addressof(room) % 64)
    ctypes.memmove(address, data, len(data))
    return room, address
