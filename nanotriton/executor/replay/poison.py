"""What memory holds before anybody has written to it.

In trials it is a NaN in every float, and an absurd integer, which no answer survives. That is always the
same, so a kernel could look for it. In further calls it is a number: one as data has it, or one near the
largest. On a card it is what an earlier kernel left.
"""

import random
from dataclasses import dataclass

import torch

from nanotriton.plan.plan import DTYPES

PATTERN = 0x7FF9  # 16 bits: repeated it is a NaN in every float type but float8
FLOAT8 = 0xFF
BYTE, OTHER_BYTE = 0x81, 0x5A
SIGNED = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # bytes of an element -> integers of that width


@dataclass(frozen=True)
class Number:
    """The same number in every element.

    share: of the largest number of the type, if it is not 0. usual: else the number, of which integers have
    four times the size.
    """

    usual: float
    share: float = 0.0

    def of(self, dtype: torch.dtype) -> float | int:
        if dtype == torch.bool:
            return bool(round(self.usual * 4) % 2)
        if dtype.is_floating_point:
            return torch.finfo(dtype).max * self.share or self.usual
        return int(torch.iinfo(dtype).max * self.share) or round(abs(self.usual) * 4)


def drawn(seed: int) -> list[Number]:
    """A usual number and a large one, in any order."""
    luck = random.Random(seed)
    sign = luck.choice((-1, 1))
    found = [Number(sign * 2 ** luck.uniform(-4, 2)), Number(1.0, sign * luck.uniform(0.25, 0.9))]
    luck.shuffle(found)
    return found


def poison(data: torch.Tensor, dtype: str, other: bool = False, number: Number | None = None) -> None:
    """Fill bytes (uint8, any length) with a number, or with NaN for every float type and an absurd integer of
    that width.

    No byte is absurd. For types of one byte every second run has the `other` value, so that neither of the
    two can stand for an answer.
    """
    if number is not None:
        _fill(data, DTYPES[dtype], number)
    elif DTYPES[dtype].itemsize > 1:
        even = data[: data.numel() // 2 * 2]
        even.view(torch.int16).fill_(PATTERN)
        data[even.numel() :].fill_(0xFF)
    elif dtype.startswith("float8"):
        data.fill_(FLOAT8)
    else:
        data.fill_(OTHER_BYTE if other else BYTE)


def unwritten(t: torch.Tensor) -> int:
    """How many elements of a float tensor still hold the NaN of fresh memory. Of float8 nobody can tell."""
    if t.itemsize < 2 or not t.is_floating_point():
        return 0
    pieces = t.reshape(-1).contiguous().view(torch.int16).view(-1, t.itemsize // 2)
    return int((pieces == PATTERN).all(1).sum())


def _fill(data: torch.Tensor, dtype: torch.dtype, number: Number) -> None:
    dtype = dtype.to_real()  # both parts of a complex number
    if dtype.itemsize == 1:
        data.fill_(int(torch.tensor(number.of(dtype)).to(dtype).view(torch.uint8)))
        return
    whole = data[: data.numel() // dtype.itemsize * dtype.itemsize]
    if dtype.is_floating_point:
        whole.view(dtype).fill_(number.of(dtype))
    else:  # a large number of an unsigned type has no sign bit either
        whole.view(SIGNED[dtype.itemsize]).fill_(number.of(SIGNED[dtype.itemsize]))
    data[whole.numel() :].fill_(1)
