"""What a decode step reads, and its CUDA graphs: one for each batch shape, replayed for any content.

A CUDA graph reads the same addresses with the same shapes whenever it is replayed. So a step is padded to
one of a few shapes (`bucket`), and all that it reads is copied to one buffer before (`Layout`).
Sampler._prefill and Sampler._decode (sampler.py) make `Inputs`; on a GPU the latter calls `Graphs.run`.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from nanotriton.sampler.scheduler import Scheduler

Reader = Callable[[], tuple[list[int], list[float]]]  # waits for a step, and gives its tokens and logprobs


@dataclass
class Inputs:
    """What one step reads: by row [B], and by tile [T] (the words are kernels/decode.py's).

    A prefill gives the first five alone. top_k and top_p are None where no row has either.
    """

    slot: torch.Tensor  # int64
    temperature: torch.Tensor  # fp32
    u: torch.Tensor  # fp64, the random number that draws the token (kernels/sample.py)
    top_k: torch.Tensor | None = None
    top_p: torch.Tensor | None = None
    position: torch.Tensor | None = None  # of the token being fed, from 0 at the prompt's first
    tail_len: torch.Tensor | None = None
    # where the token being fed goes: to `offset` in `page`, which is entry `page_index` of its tail's line
    page_index: torch.Tensor | None = None
    page: torch.Tensor | None = None
    offset: torch.Tensor | None = None
    # see kernels/decode_twin.py:DecodeBatch
    tile_group: torch.Tensor | None = None
    tile_len: torch.Tensor | None = None
    tile_rows: torch.Tensor | None = None

    @classmethod
    def of(cls, arrays: dict[str, np.ndarray], device: torch.device) -> "Inputs":
        """These fields, on the device."""
        return cls(**{name: upload(array, device) for name, array in arrays.items()})


def upload(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """To the device, without waiting for it (torch keeps the pinned copy until it has been read)."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def reader(tokens: torch.Tensor, logprobs: torch.Tensor) -> Reader:
    """Start the copy of tokens [B] and logprobs [B] to the host now, and return a function that has them.

    It waits for the copy, and not for what was launched since.
    """
    if not tokens.is_cuda:
        return lambda: (tokens.tolist(), logprobs.tolist())
    host = [
        torch.empty(x.shape, dtype=x.dtype, pin_memory=True).copy_(x, non_blocking=True)
        for x in (tokens, logprobs)
    ]
    done = torch.cuda.Event()
    done.record()

    def read() -> tuple[list[int], list[float]]:
        done.synchronize()
        return host[0].tolist(), host[1].tolist()

    return read


def bucket(rows: int, largest: int) -> int:
    """The batch size that a step of so many rows is padded to.

    It is 1, 2, 4 or 8, then a multiple of 16, above 128 one of 32, and never more than the largest.
    """
    if rows <= 8:
        return min(1 << (rows - 1).bit_length(), largest)
    step = 16 if rows <= 128 else 32
    return min(-(-rows // step) * step, largest)


class Layout:
    """Where each input of a padded step is in one buffer of bytes.

    Padding rows write to the scratch page and read nothing. Their slot is `spare_slot`, which no sample has.
    """

    def __init__(
        self, rows: int, tiles: int, per_tile: int, restricted: bool, spare_slot: int, scratch_page: int
    ):
        fields = {  # name: (dtype, shape, padding)
            "slot": (np.int64, (rows,), spare_slot),
            "position": (np.int64, (rows,), 0),
            "u": (np.float64, (rows,), 0.0),
            "temperature": (np.float32, (rows,), 0.0),
            "tail_len": (np.int32, (rows,), 0),
            "page_index": (np.int64, (rows,), 0),
            "page": (np.int32, (rows,), scratch_page),
            "offset": (np.int32, (rows,), 0),
            "tile_group": (np.int32, (tiles,), 0),
            "tile_len": (np.int32, (tiles,), 0),
            "tile_rows": (np.int32, (tiles, per_tile), -1),
        }
        if restricted:
            fields |= {"top_k": (np.int32, (rows,), 0), "top_p": (np.float32, (rows,), 1.0)}
        self.fields, self.size = {}, 0
        for name, (dtype, shape, padding) in fields.items():
            self.fields[name] = (self.size, np.dtype(dtype), shape, padding)
            self.size += -(-np.dtype(dtype).itemsize * int(np.prod(shape)) // 16) * 16

    def views(self, buffer: torch.Tensor) -> Inputs:
        """The inputs, as parts of the buffer [size] uint8."""
        out = {}
        for name, (start, dtype, shape, _) in self.fields.items():
            kind = torch.from_numpy(np.empty(0, dtype)).dtype
            out[name] = buffer[start : start + dtype.itemsize * int(np.prod(shape))].view(kind).view(shape)
        return Inputs(**out)

    def fill(self, buffer: torch.Tensor, arrays: dict[str, np.ndarray]) -> None:
        """Copy these inputs to the buffer without waiting, padded where they are shorter or missing."""
        host = torch.empty(self.size, dtype=torch.uint8, pin_memory=buffer.is_cuda)
        memory = host.numpy()
        for name, (start, dtype, shape, padding) in self.fields.items():
            field = np.ndarray(shape, dtype, memory, start)
            field[...] = padding
            if name in arrays:
                field[tuple(map(slice, arrays[name].shape))] = arrays[name]
        buffer.copy_(host, non_blocking=True)


@functools.cache
def side_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream of all captures.

    It is one for the process, because cuBLAS keeps a workspace for each stream that it has worked on, however
    often samplers come and go.
    """
    return torch.cuda.Stream(device)


@dataclass(eq=False)
class Captured:
    """One captured step: what to fill, what to replay, and where its answers are after that."""

    layout: Layout
    buffer: torch.Tensor  # [layout.size] uint8
    graph: torch.cuda.CUDAGraph
    tokens: torch.Tensor  # [rows] int64
    logprobs: torch.Tensor  # [rows] fp32


class Graphs:
    """Captured decode steps, of `step(inputs, tail_table, prefix_table) -> (tokens, logprobs)`.

    The page tables, [max_batch + 1, width] int32, live on the device. Their lines are written when a
    sequence is admitted. Afterwards each step writes the page that it uses, which is the only entry that can
    be new. per_tile: rows of a tile, where not every row has a tile of its own.
    """

    def __init__(self, step: Callable, max_batch: int, width: int, per_tile: int, device: torch.device):
        self.step, self.max_batch, self.per_tile, self.device = step, max_batch, per_tile, device
        self.tail_table, self.prefix_table = torch.zeros(
            2, max_batch + 1, width, dtype=torch.int32, device=device
        )
        self.side = side_stream(device)
        self.clear()

    def clear(self) -> None:
        """Forget the captured graphs: what they point to has moved."""
        self.captured: dict[tuple, Captured] = {}  # by rows, tiles, rows of a tile, and whether top_k is used
        self.pool = torch.cuda.graph_pool_handle()

    def close(self) -> None:
        """Let go of all graphs, of the memory in their pool, of the page tables and of the step."""
        self.captured = {}
        self.step = self.tail_table = self.prefix_table = None

    def write_tables(self, scheduler: Scheduler, slots: np.ndarray) -> None:
        """Bring the lines of newly admitted slots and of their groups to the device."""
        for table, host, lines in (
            (self.prefix_table, scheduler.prefix_table, np.unique(scheduler.line[slots])),
            (self.tail_table, scheduler.tail_table, slots),
        ):
            table[upload(lines, self.device)] = upload(host[lines], self.device)

    def run(self, arrays: dict[str, np.ndarray], scratch_page: int) -> Reader:
        """Replay the step for these inputs -> a reader of its rows. A shape that is new is captured first."""
        rows, (tiles, per_tile) = len(arrays["slot"]), arrays["tile_rows"].shape
        padded = bucket(rows, self.max_batch)
        if per_tile == 1:
            key = padded, padded, 1, "top_k" in arrays
        else:
            key = padded, min(1 << (tiles - 1).bit_length(), padded), self.per_tile, "top_k" in arrays
        if key not in self.captured:
            self.captured[key] = self._capture(Layout(*key, self.max_batch, scratch_page))
        captured = self.captured[key]
        captured.layout.fill(captured.buffer, arrays)
        captured.graph.replay()
        return reader(captured.tokens[:rows], captured.logprobs[:rows])

    def _capture(self, layout: Layout) -> Captured:
        """Run the step of this layout on padding alone, and capture it."""
        buffer = torch.empty(layout.size, dtype=torch.uint8, device=self.device)
        layout.fill(buffer, {})
        x = layout.views(buffer)

        def run() -> tuple[torch.Tensor, torch.Tensor]:
            self.tail_table[x.slot, x.page_index] = x.page
            return self.step(x, self.tail_table, self.prefix_table)

        graph = torch.cuda.CUDAGraph()
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            run()  # compiles kernels and makes cuBLAS's handles, which a capture must not do
            graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
            tokens, logprobs = run()
            graph.capture_end()
        torch.cuda.current_stream().wait_stream(self.side)
        return Captured(layout, buffer, graph, tokens, logprobs)
