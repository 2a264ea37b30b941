"""Addresses of "GPU" tensors: numbers that a candidate may ask for and compare, and that lead nowhere.

Honest code asks for an address to check its alignment, or whether two tensors share memory. Both have an
answer without a GPU. An address that is handed to a kernel, or put into a tensor, has none: no plan can
say where its memory will lie.
"""

import torch

ALIGNMENT = 512  # bytes, as torch's allocator aligns its blocks
FIRST = 0x7F00_0000_0000  # the address of the first storage
TABLE = "an address (data_ptr()) is put into a tensor: pass the tensors themselves to the kernel"
ARGUMENT = "an address (data_ptr()) is passed to a kernel: pass the tensor itself"


class Address(int):
    """The result of data_ptr(). It stays an Address when an offset is added or taken away."""

    def __add__(self, other):
        return _moved(int.__add__(self, other))

    __radd__ = __add__

    def __sub__(self, other):
        if isinstance(other, Address):
            return int.__sub__(self, other)  # a distance
        return _moved(int.__sub__(self, other))


def _moved(sum_):
    return sum_ if sum_ is NotImplemented else Address(sum_)


class Addresses:
    """Where each storage of a recording seems to lie: aligned, and apart from every other one.

    A second call's inputs lie where the first call's did. So does memory that was freed and taken again, and
    a candidate that keeps an answer by its input's address is wrong there as here.
    """

    def __init__(self):
        self.given = False  # whether anybody has asked
        self._bases: dict[int, int] = {}  # address of a StorageImpl -> where it seems to lie
        self._inputs: dict[int, int] = {}  # number of an argument of forward -> the same
        self._next = FIRST

    def of_storage(self, storage: torch.UntypedStorage, number: int | None = None) -> int:
        """number: of the argument of forward that the storage belongs to."""
        self.given = True
        if not storage.nbytes():
            return Address(0)
        if storage._cdata not in self._bases:
            base = None if number is None else self._inputs.get(number)
            if base is None:
                base = self._next
                self._next += -(-storage.nbytes() // ALIGNMENT) * ALIGNMENT
                if number is not None:
                    self._inputs[number] = base
            self._bases[storage._cdata] = base
        return Address(self._bases[storage._cdata])

    def among(self, *values) -> bool:
        """Whether one of the values, or an item of one, is an Address."""
        return self.given and _holds_address(values)


def _holds_address(value: object) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_holds_address, value))
    if isinstance(value, dict):
        return any(map(_holds_address, value.values()))
    return isinstance(value, Address)
