"""Sequences go in and packed batches come out. score() is the one place where a model scores them."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch

from nanotriton.kernels.logprob import token_logprobs
from nanotriton.transformer.attention import packed
from nanotriton.transformer.model import Transformer


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
                moved[name] = to_device(value, device)
        return Batch(**moved)


def to_device(x: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    """A tensor on a device, without waiting for it.

    From memory that is not pinned, a copy waits until the GPU has done all that was asked of it before.
    """
    if torch.device(device).type == "cuda" and not x.is_cuda:
        x = x.pin_memory()
    return x.to(device, non_blocking=True)


def pack(sequences: Sequence[tuple[list[int], list[int]]]) -> Batch:
    """(prompt ids, completion ids) pairs -> one Batch. A prompt has at least one token.

    pack([([5, 6], [7, 8])]) has ids [5, 6, 7, 8], where [1, 2] and targets [7, 8]: place 1 predicts token 7.
    """
    for row, (prompt, _) in enumerate(sequences):
        if not prompt:
            raise ValueError(f"sequence {row} has an empty prompt: nothing predicts its first token")
    prompts = torch.tensor([len(prompt) for prompt, _ in sequences])  # [B] tokens
    completions = torch.tensor([len(completion) for _, completion in sequences])  # [B]
    lengths = prompts + completions
    ends = lengths.cumsum(0)  # [B]
    ids = torch.tensor(list(chain.from_iterable(chain(*pair) for pair in sequences)))  # [T]
    rows = torch.arange(len(sequences)).repeat_interleave(completions)  # [N]
    # The first token of a completion is predicted one place before it, each further one a place later.
    first = ends - completions - 1  # [B]
    before = completions.cumsum(0) - completions  # [B] completion tokens of the sequences before
    where = torch.arange(len(rows)) + (first - before)[rows]
    return Batch(
        ids=ids,
        positions=torch.arange(len(ids)) - (ends - lengths).repeat_interleave(lengths),
        cu_seqlens=torch.cat([ends.new_zeros(1), ends]).int(),
        max_seqlen=int(lengths.max()),
        where=where,
        targets=ids[where + 1],
        rows=rows,
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
