"""Sequences in, packed batches out; and the one place where a model scores them."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from nanotriton.attention import packed
from nanotriton.kernels.logprob import token_logprobs
from nanotriton.model import Transformer


@dataclass
class Batch:
    """B sequences laid end to end (T tokens), of which N tokens are completion tokens, the ones to be scored.

    No padding exists, so no mask can be wrong: what counts is known from lengths, never from a pad id.
    """

    ids: torch.Tensor  # [T] int64
    positions: torch.Tensor  # [T] int64, from 0 in every sequence
    cu_seqlens: torch.Tensor  # [B+1] int32, where sequences start and end
    max_seqlen: int
    where: torch.Tensor  # [N] int64, the place in T whose hidden state predicts this token
    targets: torch.Tensor  # [N] int64, the token itself
    rows: torch.Tensor  # [N] int64, the sequence it belongs to

    def to(self, device: torch.device | str) -> "Batch":
        moved = {
            k: v.to(device, non_blocking=True) if isinstance(v, torch.Tensor) else v
            for k, v in vars(self).items()
        }
        return Batch(**moved)


def pack(sequences: Sequence[tuple[list[int], list[int]]]) -> Batch:
    """(prompt ids, completion ids) pairs -> one Batch. A prompt has at least one token.

    pack([([5, 6], [7, 8])]) has ids [5, 6, 7, 8], where [1, 2], targets [7, 8]: token 7 is predicted at place 1.
    """
    ids, positions, where, targets, rows, cu = [], [], [], [], [], [0]
    for row, (prompt, completion) in enumerate(sequences):
        if not prompt:
            raise ValueError(
                f"sequence {row} has an empty prompt: its first token would have nothing to be predicted from"
            )
        start = len(ids)
        ids += prompt + completion
        positions += range(len(prompt) + len(completion))
        where += range(start + len(prompt) - 1, len(ids) - 1)
        targets += completion
        rows += [row] * len(completion)
        cu.append(len(ids))
    longest = max(b - a for a, b in pairwise(cu))
    return Batch(
        *map(torch.tensor, (ids, positions)),
        torch.tensor(cu, dtype=torch.int32),
        longest,
        *map(torch.tensor, (where, targets, rows)),
    )


def score(
    model: Transformer, batch: Batch, temperature: float = 1.0, valid_vocab: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability and entropy (nats, fp32, [N] each) of every completion token under softmax(logits / temperature)."""

    def head(hidden: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return token_logprobs(hidden[batch.where], weight, batch.targets, temperature, valid_vocab)

    return model(batch.ids, batch.positions, packed(batch.cu_seqlens, batch.max_seqlen), head)
