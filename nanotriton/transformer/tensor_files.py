"""Tensors on a disk: a safetensors file is written whole, and which rows a rank has."""

import json
import os
import struct
from pathlib import Path

import torch
from torch import Tensor

DTYPES = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float64: "F64",
    torch.int64: "I64",
    torch.int8: "I8",
    torch.uint8: "U8",
}


def shard_rows(rows: int, rank: int, world: int) -> tuple[int, int]:
    """The rows, start and stop, that `rank` of `world` holds under FSDP2's Shard(0): torch.chunk's rule.

    >>> shard_rows(5, 1, 2)
    (3, 5)
    """
    size = -(-rows // world)
    return min(rank * size, rows), min((rank + 1) * size, rows)


def write_tensors(path: Path, named: dict[str, Tensor]) -> None:
    """Write a safetensors file a tensor at a time, so that memory holds no second copy of all of them.

    It is on the disk when this returns. OSError where it can't be written; safetensors' own writer raises
    another error there.
    """
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, x in named.items():
        size = x.numel() * x.element_size()
        header[name] = {"dtype": DTYPES[x.dtype], "shape": list(x.shape), "data_offsets": [at, at + size]}
        at += size
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    try:
        with open(path, "wb") as f:
            f.write(struct.pack("<Q", len(head)) + head)
            for x in named.values():
                f.write(x.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
            f.flush()
            os.fsync(f.fileno())
    except OSError as error:
        error.filename = str(path)  # which a failed write() does not tell
        raise


def write_bytes(path: Path, data: bytes) -> None:
    with open(path, "wb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())
