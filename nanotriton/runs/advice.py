"""A step that taught nothing says so, and where to look: docs/zero-reward.md has a line for each case."""

import socket
from collections import Counter

import torch

from nanotriton.parallel.world import World
from nanotriton.rollout import Episode

PAGE = "docs/zero-reward.md"
LENGTH = 120  # characters of a verdict's message on the console
CUT = 0.5  # share of completions at their longest that is worth a word
AGAIN = 10  # steps until the same advice is given again


class Advice:
    """What was said last, and when, so that it isn't said at every step."""

    def __init__(self) -> None:
        self.said, self.step = "", -AGAIN

    def of(self, step: int, episodes: list[Episode], numbers: dict, world: World) -> str:
        """A line about a step from which nothing could be learned; "" for any other, and for one too many.

        episodes: this rank's. numbers: the step's, over all ranks, as metrics.jsonl has them. All ranks call
        it together.
        """
        problem = problem_of(numbers, episodes, world)
        if not problem:
            return self.failing_rank(step, episodes, numbers, world)
        status, share = commonest(numbers["statuses"])
        key = f"{problem.partition(' (')[0]} {status}"  # without its numbers, which are others at every step
        if key == self.said and step < self.step + AGAIN:
            return ""
        self.said, self.step = key, step
        line = f"{problem}: {share:.0%} are {status}"
        line += common_message(status, episodes, world)
        if numbers["truncated"] >= CUT:
            line += f"; {numbers['truncated']:.0%} were cut at --max-tokens"
        return f"  {line}; {PAGE} says what to look at"

    def failing_rank(self, step: int, episodes: list[Episode], numbers: dict, world: World) -> str:
        """A line about a rank none of whose samples has a reward while others' have: its executor fails."""
        if numbers["scored"] == 1 or world.world_size == 1:
            return ""
        statuses = Counter(e.verdict.status for e in episodes)
        mine = None
        if episodes and not any(e.verdict.scored for e in episodes):
            status, share = commonest(statuses)
            message = quoted(Counter(e.verdict.message for e in episodes if e.verdict.status == status))
            mine = socket.gethostname(), f"{share:.0%} are {status}{message}"
        failing = [(rank, told) for rank, told in enumerate(world.gather(mine)) if told]
        if not failing:
            return ""
        rank, (host, why) = failing[0]
        key = f"rank {rank}"
        if key == self.said and step < self.step + AGAIN:
            return ""
        self.said, self.step = key, step
        more = f" ({len(failing)} ranks in all)" if len(failing) > 1 else ""
        return (
            f"  no sample of rank {rank} ({host}) has a reward: {why}{more}; the others train on; "
            f"{PAGE} says what to look at"
        )


def problem_of(numbers: dict, episodes: list[Episode], world: World) -> str:
    """What is wrong with a step, or "". All ranks call it together, with the same numbers."""
    if numbers["scored"] == 0:
        return unrewarded(episodes, world)
    # --advantage rejection learns from equal rewards too: then there are tokens with a policy term
    if numbers["no_spread"] == 1 and not numbers["tokens"]:
        line = f"no group has rewards that differ, so nothing is learned (mean {numbers['reward']:.3g}"
        if numbers["scored"] < 1:
            line += f"; {1 - numbers['scored']:.0%} of the samples have no reward at all"
        return f"{line})"
    return ""


def unrewarded(episodes: list[Episode], world: World) -> str:
    """Why no sample of any rank has a reward: the judge scored none, or what it scored was not paid."""
    scored = [e for e in episodes if e.verdict.scored]
    whole = sum(e.finish_reason != "length" for e in scored)
    scored, whole = world.all_sum(torch.tensor([len(scored), whole], dtype=torch.float64)).tolist()
    if not scored:
        return "no sample has a reward"
    if not whole:
        return "no sample has a reward, as all were cut at --max-tokens (--truncated mask leaves them out)"
    return "your reward() returned None for all samples"


def commonest(statuses: dict[str, int]) -> tuple[str, float]:
    """The most frequent verdict, and its share; of two that are as frequent, the first by name."""
    name = min(statuses, key=lambda status: (-statuses[status], status))
    return name, statuses[name] / sum(statuses.values())


def common_message(status: str, episodes: list[Episode], world: World) -> str:
    """The most frequent message of this status on all ranks, as quoted() gives it."""
    mine = Counter(e.verdict.message for e in episodes if e.verdict.status == status)
    total: Counter[str] = Counter()
    for found in world.gather(dict(mine.most_common(20))):
        total.update(found)
    return quoted(total)


def quoted(messages: Counter[str]) -> str:
    """The most frequent of these messages in brackets, short and on one line; "" if there is none."""
    if not messages:
        return ""
    message = " ".join(max(sorted(messages), key=messages.__getitem__).split())
    if len(message) > LENGTH:
        message = message[: LENGTH - 3] + "..."
    return message and f' ("{message}")'
