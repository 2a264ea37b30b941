"""Episodes as tensors: equal ones become one row, and the rows of one pass are laid end to end."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from nanotriton import grpo
from nanotriton.data import Batch, pack, to_device
from nanotriton.parallel.world import World
from nanotriton.rollout import Episode
from nanotriton.tasks.task import Task


@dataclass
class Row:
    """Episodes that are equal to the token and have one advantage: scored once, and counted as many."""

    episode: Episode
    equals: list[Episode]  # all of them, the first included

    @property
    def tokens(self) -> int:
        """Of prompt and completion."""
        return len(self.episode.prompt_ids) + len(self.episode.ids)


# A rank with no row left still takes part in a pass, since FSDP's collectives need every rank: with this one.
EMPTY = Row(Episode(Task("", ""), prompt_ids=[0], ids=[0], logprobs=[0.0], finish_reason="stop"), equals=[])


def merge(episodes: Sequence[Episode]) -> list[Row]:
    """Equal episodes become one row."""
    rows: dict[tuple, Row] = {}
    for episode in episodes:
        key = (*episode.prompt_ids, -1, *episode.ids, episode.advantage, episode.taught)
        rows.setdefault(key, Row(episode, [])).equals.append(episode)
    return list(rows.values())


@dataclass
class MicroBatch:
    """B rows with N completion tokens in all."""

    rows: list[Row]
    packed: Batch
    seq_ids: Tensor  # [N] int64, the row of each token
    copies: Tensor  # [N] fp32, the episodes that are equal to the token's row
    mask: Tensor  # [N] bool, false in the empty row only
    taught: Tensor  # [N] bool, whether the token has a policy term, as Episode.taught says
    advantage: Tensor  # [N] fp32
    sampled: Tensor  # [N] fp32, the logprobs that the sampler recorded
    old: Tensor  # [N] fp32, the trainer's before any update; the sampler's where those weren't asked for


def microbatch(rows: list[Row], device: torch.device) -> MicroBatch:
    """These rows, or the empty one, as tensors."""
    rows = rows or [EMPTY]
    episodes = [row.episode for row in rows]
    packed = pack([(e.prompt_ids, e.ids) for e in episodes])
    copies = torch.tensor([float(len(row.equals)) for row in rows])[packed.rows]
    tensors = dict(
        seq_ids=packed.rows,
        copies=copies,
        mask=copies > 0,
        taught=torch.tensor([e.taught for e in episodes])[packed.rows],
        advantage=torch.tensor([e.advantage for e in episodes])[packed.rows],
        sampled=torch.tensor(list(chain(*(e.logprobs for e in episodes)))),
        old=torch.tensor(list(chain(*(e.old or e.logprobs for e in episodes)))),
    )
    moved = {name: to_device(x, device) for name, x in tensors.items()}
    return MicroBatch(rows, packed.to(device), **moved)


@dataclass
class Totals:
    """The denominators of one optimizer step, over all ranks."""

    policy: Tensor  # for the policy term; grpo.LOSSES says whether untaught samples count
    samples: Tensor  # for the KL term, which all samples have
    taught: Tensor  # the number of tokens that have a policy term
    tokens: Tensor  # the number of all tokens


def denominators(episodes: list[Episode], loss: str, max_tokens: int, world: World) -> Totals:
    """Count this rank's episodes, and sum over the ranks."""
    lengths = torch.tensor([len(e.ids) for e in episodes], dtype=torch.long)  # [B]
    sequence = torch.arange(len(episodes)).repeat_interleave(lengths)  # [N], the episode of each token
    taught = torch.tensor([e.taught for e in episodes], dtype=torch.bool)[sequence]  # [N]
    every = torch.ones_like(taught)  # [N]
    counts = [
        grpo.count(every if grpo.LOSSES[loss].counts_untaught else taught, sequence, loss, max_tokens),
        grpo.count(every, sequence, loss, max_tokens),
        taught.sum().double(),
        every.sum().double(),
    ]
    return Totals(*world.all_sum(torch.stack(counts).to(world.device)))


def sample_stats(micro: MicroBatch, logp: Tensor, entropy: Tensor, first: bool) -> dict[str, Tensor]:
    """Statistics of all samples, whether or not their group has spread, for grpo.summarize().

    logp, entropy [N]: under the policy. first: it is still the one that drew the samples.
    """
    stats = {"entropy": grpo.statistic(entropy, micro.mask, micro.copies)}
    if first:
        stats |= grpo.ratio_stats(logp, micro.sampled, micro.mask, micro.copies, "mismatch_")
    return stats
