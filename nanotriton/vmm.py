"""GPU memory that can be given back and taken again at the same address.

So CUDA graphs that point into it stay valid.

CUDA's virtual memory calls (driver API, section "Virtual Memory Management"): an address range is
reserved once; physical memory is created, mapped into it, and unmapped. torch's allocator knows nothing
of it.
"""

import ctypes

import torch

# CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE
PINNED, DEVICE, READ_WRITE = 1, 1, 3
GRANULE = 2 * 2**20  # bytes: physical memory comes in multiples of it
OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY


class _Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class _Properties(ctypes.Structure):  # CUmemAllocationProp
    _fields_ = [
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("win32", ctypes.c_void_p),
        ("compression", ctypes.c_ubyte),
        ("rdma", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    ]


class _Access(ctypes.Structure):  # CUmemAccessDesc
    _fields_ = [("location", _Location), ("flags", ctypes.c_int)]


class Memory:
    """`size` bytes of a CUDA device at one address.

    Holds nothing until `take`; MemoryError if the device hasn't so much.
    """

    def __init__(self, size: int, device: torch.device):
        torch.cuda.synchronize(device)  # the context exists
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.size = -(-size // GRANULE) * GRANULE
        self.device = device
        self.held = False
        self.location = _Location(
            DEVICE, torch.cuda.current_device() if device.index is None else device.index
        )
        self.address, none = ctypes.c_uint64(), ctypes.c_uint64(0)
        self._call(
            "cuMemAddressReserve",
            ctypes.byref(self.address),
            ctypes.c_size_t(self.size),
            ctypes.c_size_t(0),
            none,
            none,
        )

    def _call(self, name: str, *arguments) -> None:
        error = getattr(self.cuda, name)(*arguments)
        if error == OUT_OF_MEMORY:
            raise MemoryError(f"the GPU has not {self.size / 2**30:.1f} GiB free")
        if error:
            raise RuntimeError(f"{name} failed with CUDA error {error}")

    def take(self) -> None:
        torch.cuda.empty_cache()  # what torch keeps in reserve would be missing here
        handle = self._create()
        self._map(handle)
        self._call("cuMemRelease", handle)  # the mapping keeps it

    def give(self) -> None:
        torch.cuda.synchronize(self.device)
        self._call("cuMemUnmap", self.address, ctypes.c_size_t(self.size))
        self.held = False

    def _create(self) -> ctypes.c_uint64:
        """Physical memory."""
        handle, size = ctypes.c_uint64(), ctypes.c_size_t(self.size)
        properties = _Properties(type=PINNED, location=self.location)
        self._call("cuMemCreate", ctypes.byref(handle), size, ctypes.byref(properties), ctypes.c_uint64(0))
        return handle

    def _map(self, handle: ctypes.c_uint64) -> None:
        size = ctypes.c_size_t(self.size)
        access = _Access(self.location, READ_WRITE)
        self._call("cuMemMap", self.address, size, ctypes.c_size_t(0), handle, ctypes.c_uint64(0))
        self.held = True
        self._call("cuMemSetAccess", self.address, size, ctypes.byref(access), ctypes.c_size_t(1))

    def tensor(self) -> torch.Tensor:
        """The bytes [size] uint8; not to be used while nothing is held."""
        self.__cuda_array_interface__ = {
            "shape": (self.size,),
            "typestr": "|u1",
            "data": (self.address.value, False),
            "version": 3,
        }
        return torch.as_tensor(self, device=self.device)

    def __del__(self):
        if self.address.value:  # error codes are of no use here: at exit the context is already gone
            self.cuda.cuCtxSynchronize()
            if self.held:
                self.cuda.cuMemUnmap(self.address, ctypes.c_size_t(self.size))
            self.cuda.cuMemAddressFree(self.address, ctypes.c_size_t(self.size))


class LockedMemory(Memory):
    """Memory that keeps what is in it while it is locked.

    No kernel can reach it then: there is nothing at its address.
    """

    def __init__(self, size: int, device: torch.device):
        super().__init__(size, device)
        self.handle = self._create()

    def unlock(self) -> None:
        self._map(self.handle)

    def lock(self) -> None:
        self.give()

    def __del__(self):
        super().__del__()
        if handle := getattr(self, "handle", None):
            self.cuda.cuMemRelease(handle)
