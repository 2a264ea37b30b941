"""A reward of four parts: right, nearly right, short, fast. docs/rewards.md says why each is as it is.

python train_grpo.py --reward docs/examples/parts_reward.py
python train_grpo.py --reward docs/examples/parts_reward.py --model FOLDER --tasks DIR --time    # on a GPU
"""

import math

from nanotriton.reward.execution import progress, speed
from nanotriton.tasks.task import Task
from nanotriton.verdict import Verdict

PARTIAL = 0.2  # of a candidate that is wrong in its values only; one that fails earlier gets less of it
BREVITY = 0.1  # of a right answer without a single character; LONG characters get nothing
LONG = 6000
SPEED = 0.5  # of a right answer that is FASTEST times as fast as PyTorch; at SLOWEST it gets nothing
SLOWEST, FASTEST = 1 / 16, 4.0
CLOCK = 0.05  # the share by which the clock may be off

# What the clock alone may change a reward by. No group's spread counts as less than this.
NOISE = SPEED * math.log(1 + CLOCK) / math.log(FASTEST / SLOWEST)


def reward(verdict: Verdict, completion: str, task: Task) -> dict[str, float] | None:
    if not verdict.scored:
        return None
    if not verdict.correct:
        return {"partial": PARTIAL * progress(verdict)}
    return {
        "correct": 1.0,
        "brevity": BREVITY * max(0.0, 1 - len(completion) / LONG),
        "speed": SPEED * speed(verdict, SLOWEST, FASTEST),  # 0 where nothing was timed
    }
