"""The CUDA driver's API by ctypes: load a cubin, launch it. What Triton's own launcher does, without compiling C for it.

Arguments are packed as Triton's ABI wants them: every parameter of the TTIR in order (a host-side descriptor is a 128-byte tensor
map, or plain numbers where the kernel does not use TMA, then shape and strides), then two scratch pointers. `load` compares
the sizes with what the cubin itself says it takes: a launch with too few arguments would make the driver read wild memory.
"""

import ctypes
import functools
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # who only asks what GPU there is (card.py) need not wait for torch's import
    from nanotriton.executor.gpu.compiler import Binary

# errors after which the context is lost: the process has to end
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
MAX_DYNAMIC_SHARED, NON_PORTABLE_CLUSTER = 8, 14  # CU_FUNC_ATTRIBUTE_*
COOPERATIVE, CLUSTER_DIMENSION, CLUSTER_SCHEDULING = 2, 4, 5  # CU_LAUNCH_ATTRIBUTE_*
TMA_TYPE = {8: 10, 9: 8, 10: 9}  # Triton numbers three element types otherwise than the driver
FORMATS = {"i1": "b", "i8": "b", "i16": "h", "i32": "i", "i64": "q", "f16": "e", "f32": "f", "f64": "d"}


class DriverError(RuntimeError):
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
    if code := getattr(library(), name)(*args):
        raise DriverError(code, name)


def context_is_lost() -> bool:
    """Wait for all that was launched: whether something has ended this process's context."""
    return library().cuCtxSynchronize() in FATAL


def sleep_while_waiting() -> None:
    """Let this process sleep when it waits for the GPU, instead of spinning. Before the context is made."""
    call("cuInit", 0)
    try:
        call("cuDevicePrimaryCtxSetFlags", 0, 4)  # CU_CTX_SCHED_BLOCKING_SYNC
    except DriverError as error:
        if error.code != 708:  # CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE: torch has made it already, spinning
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


@dataclass
class Function:
    """A loaded kernel. `unload` it before forgetting it."""

    binary: "Binary"
    module: ctypes.c_void_p
    handle: ctypes.c_void_p
    sizes: list[int]  # bytes of each parameter, as the cubin says

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
    sizes, offset, size = [], ctypes.c_size_t(), ctypes.c_size_t()
    while not library().cuFuncGetParamInfo(
        handle, ctypes.c_size_t(len(sizes)), ctypes.byref(offset), ctypes.byref(size)
    ):
        sizes.append(size.value)
    return Function(binary, module, handle, sizes)


def pack(function: Function, args: list[tuple[str, Any]], scratch: int, profile: int) -> list[bytes]:
    """Bytes of every parameter. args: (TTIR type, value); of a descriptor [address, shape, strides, padding]."""
    packed, descriptors = [], iter(function.binary.descriptors)
    for ty, value in args:
        if ty.startswith("!tt.tensordesc"):
            packed += _descriptor(value, next(descriptors, None), function.sizes[len(packed) :])
        elif ty.startswith("!tt.ptr"):
            packed.append(struct.pack("<Q", value))
        elif ty == "bf16":
            packed.append(struct.pack("<f", value)[2:])
        elif ty[0] == "i":
            size = struct.calcsize(FORMATS[ty])
            packed.append((int(value) & ((1 << 8 * size) - 1)).to_bytes(size, "little"))
        else:
            packed.append(_float(FORMATS[ty], value))
    packed += [struct.pack("<Q", scratch), struct.pack("<Q", profile)]
    if [len(p) for p in packed] != function.sizes:
        raise DriverError(
            1,
            f"{function.binary.name} takes parameters of {function.sizes} bytes, not {[len(p) for p in packed]}",
        )
    return packed


def _float(form: str, value: float) -> bytes:
    try:
        return struct.pack("<" + form, value)
    except OverflowError:
        return struct.pack("<" + form, float("inf") if value > 0 else float("-inf"))


def _descriptor(value: list, layout: dict | None, sizes: list[int]) -> list[bytes]:
    """sizes: of the cubin's parameters from here on."""
    address, shape, strides, padding = value
    numbers = [struct.pack("<i", n) for n in shape] + [struct.pack("<q", s) for s in strides]
    if layout is not None:
        return [tensor_map(address, shape, strides, padding == "nan", layout), *numbers]
    wide = [struct.pack("<Q", address), *(struct.pack("<q", n) for n in (*shape, *strides))]
    flags = [struct.pack("<b", padding == "nan")]
    if sizes[len(wide) + 1 : len(wide) + 2] == [1]:  # triton 3.8 adds round_f32_to_tf32
        flags.append(struct.pack("<b", 0))
    return [*wide, *flags, *numbers]


def tensor_map(address: int, shape: list[int], strides: list[int], nan: bool, layout: dict) -> bytes:
    """A CUtensorMap, tiled, as Triton's launcher fills it: sizes innermost first, strides in bytes."""
    rank, size = len(layout["block_size"]), layout["elem_size"]
    sizes = [*shape[:-1], shape[-1] * 2] if layout.get("fp4_padded") else shape
    u64, u32 = ctypes.c_uint64, ctypes.c_uint32
    dims, pitches = (u64 * rank)(*sizes[::-1]), (u64 * max(1, rank))(*[s * size for s in strides[-2::-1]], 0)
    box, ones = (u32 * rank)(*layout["block_size"][::-1]), (u32 * rank)(*[1] * rank)
    room = ctypes.create_string_buffer(128 + 64)
    start = -ctypes.addressof(room) % 64  # the driver wants 64-byte alignment
    kind = TMA_TYPE.get(layout["elem_type"], layout["elem_type"])
    call(
        "cuTensorMapEncodeTiled",
        ctypes.c_void_p(ctypes.addressof(room) + start),
        kind,
        u32(rank),
        ctypes.c_void_p(address),
        dims,
        pitches,
        box,
        ones,
        0,
        layout["swizzle"],
        2,
        1 if nan else 0,
    )
    return room.raw[start : start + 128]


class Prepared:
    """A launch with its arguments in place: `go` costs one driver call. keep: what has to live as long (scratch memory)."""

    def __init__(self, function: Function, grid: tuple[int, int, int], packed: list[bytes], keep: Any = None):
        b = function.binary
        self.function, self.keep = function, keep
        self.buffers = [_aligned(p) for p in packed]
        self.params = (ctypes.c_void_p * len(packed))(*[address for _, address in self.buffers])
        attributes = []
        if b.cooperative:
            attributes.append((COOPERATIVE, [1]))
        if b.num_ctas > 1:
            attributes += [(CLUSTER_DIMENSION, [b.num_ctas, 1, 1]), (CLUSTER_SCHEDULING, [1])]
        self.attributes = (LaunchAttribute * max(1, len(attributes)))()
        for slot, (number, values) in zip(self.attributes, attributes):
            slot.id, slot.value[: len(values)] = number, values
        x, y, z = grid
        self.config = LaunchConfig(
            (x * b.num_ctas, y, z), (32 * b.num_warps, 1, 1), b.shared, None, self.attributes, len(attributes)
        )

    def go(self, stream: int) -> None:
        self.config.stream = stream
        call("cuLaunchKernelEx", ctypes.byref(self.config), self.function.handle, self.params, None)


def _aligned(data: bytes) -> tuple[Any, int]:
    """(what keeps it alive, address) of a copy at a multiple of 64."""
    room = ctypes.create_string_buffer(len(data) + 64)
    address = ctypes.addressof(room) + (-ctypes.addressof(room) % 64)
    ctypes.memmove(address, data, len(data))
    return room, address
