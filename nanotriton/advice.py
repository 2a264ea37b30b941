"""A step that taught nothing says so, and where to look: docs/zero-reward.md has a line for each case."""

from collections import Counter

from nanotriton.rollout import Episode
from nanotriton.world import World

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
        problem = problem_of(numbers)
        if not problem:
            return ""
        status, share = commonest(numbers["statuses"])
        key = f"{problem} {status}"
        if key == self.said and step < self.step + AGAIN:
            return ""
        self.said, self.step = key, step
        line = f"{problem}: {share:.0%} are {status}"
        if message := common_message(status, episodes, world):
            line += f' ("{message}")'
        if numbers["truncated"] >= CUT:
            line += f"; {numbers['truncated']:.0%} were cut at --max-tokens"
        return f"  {line}; {PAGE} says what to look at"


def problem_of(numbers: dict) -> str:
    """What is wrong with a step, or ""."""
    if numbers["scored"] == 0:
        return "no sample has a reward"
    if numbers["no_spread"] == 1:
        return f"no group has rewards that differ, so nothing is learned (mean {numbers['reward']:.3g})"
    return ""


def commonest(statuses: dict[str, int]) -> tuple[str, float]:
    """The most frequent verdict, and its share; of two that are as frequent, the first by name."""
    name = min(statuses, key=lambda status: (-statuses[status], status))
    return name, statuses[name] / sum(statuses.values())


def common_message(status: str, episodes: list[Episode], world: World) -> str:
    """The most frequent message of this status on all ranks, short and on one line; "" if it has none."""
    mine = Counter(e.verdict.message for e in episodes if e.verdict.status == status)
    total: Counter[str] = Counter()
    for found in world.gather(dict(mine.most_common(20))):
        total.update(found)
    if not total:
        return ""
    message = " ".join(max(sorted(total), key=total.__getitem__).split())
    return message if len(message) <= LENGTH else message[: LENGTH - 3] + "..."
