"""What a decode step reads, and its CUDA graphs: one captured step for each bucket of batch shapes, replayed for any content."""

from dataclasses import dataclass

import numpy as np
import torch


@dataclass
class Inputs:
    """One step's inputs by row [B], and its tiles [T] (see kernels/decode.py). top_k is None where nobody restricts."""

    slot: torch.Tensor
    temperature: torch.Tensor
    u: torch.Tensor
    top_k: torch.Tensor | None = None
    top_p: torch.Tensor | None = None
    position: torch.Tensor | None = None
    tail_len: torch.Tensor | None = None
    page: torch.Tensor | None = None
    tile_group: torch.Tensor | None = None
    tile_len: torch.Tensor | None = None
    tile_rows: torch.Tensor | None = None

    @classmethod
    def of(cls, arrays: dict[str, np.ndarray], device: torch.device) -> "Inputs":
        return cls(**{name: torch.from_numpy(array).to(device) for name, array in arrays.items()})


class Graphs:
    pass
