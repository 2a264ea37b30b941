"""Sequences go in and packed batches come out. score() is the one place where a model scores them."""

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

    There is no padding, so no mask can be wrong: lengths say which tokens count, never a pad id.
    """

    ids: torch.Tensor  # [T] int64
    positions: torch.Tensor  # [T] int64, from 0 in every sequence
    cu_seqlens: torch.Tensor  # [B+1] int32, where sequences start and end
    max_seqlen: int
    where: torch.Tensor  # [N] int64, the place in T whose hidden state predicts this token
    targets: torch.Tensor  # [N] int64, the token itself
    rows: torch.Tensor  # [N] int64, the sequence it belongs to

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on a device."""
        moved = dict(vars(self))
        for name, value in moved.items():
            if isinstance(value, torch.Tensor):
                moved[name] = value.to(device, non_blocking=True)
        return Batch(**moved)


def pack(sequences: Sequence[tuple[list[int], list[int]]]) -> Batch:
    """(prompt ids, completion ids) pairs -> one Batch. A prompt has at least one token.

    pack([([5, 6], [7, 8])]) has ids [5, 6, 7, 8], where [1, 2] and targets [7, 8]: place 1 predicts token 7.
    """
    ids, positions = [], []  # [T]
    where, targets, rows = [], [], []  # [N]
    ends = [0]  # [B+1]
    for row, (prompt, completion) in enumerate(sequences):
        if not prompt:
            raise ValueError(f"sequence {row} has an empty prompt: nothing predicts its first token")
        start = len(ids)
        ids += prompt + completion
        positions += range(len(prompt) + len(completion))
        where += range(start + len(prompt) - 1, len(ids) - 1)
        targets += completion
        rows += [row] * len(completion)
        ends.append(len(ids))
    longest = max(end - start for start, end in pairwise(ends))
    return Batch(
        ids=torch.tensor(ids),
        positions=torch.tensor(positions),
        cu_seqlens=torch.tensor(ends, dtype=torch.int32),
        max_seqlen=longest,
        where=torch.tensor(where),
        targets=torch.tensor(targets),
        rows=torch.tensor(rows),
    )


def score(
    model: Transformer, batch: Batch, temperature: float = 1.0, valid_vocab: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability and entropy of every completion token, [N] each, in nats and fp32.

    Both are of softmax(logits / temperature). Ids from `valid_vocab` on pad the embedding and have no
    probability.
    """

    def head(hidden: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return token_logprobs(
            hidden[batch.where],
            weight,
            batch.targets,
            temperature,
            valid_vocab,
            keep_logits=model.keep_logits,
        )

    return model(batch.ids, batch.positions, packed(batch.cu_seqlens, batch.max_seqlen), head)
