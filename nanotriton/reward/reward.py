"""A verdict becomes a number, here and nowhere else. Change this function, or name a file of your own on the
command line.

Default: 1 if the candidate is Triton and right, else 0. The executor applies the rules
(nanotriton/rules/rules.py) before and after it runs a
candidate, so `correct` under policy strict means both.
"""

import functools
import importlib.util
import inspect
import math
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanotriton.config import ConfigError
from nanotriton.options import RewardOptions
from nanotriton.reward import execution
from nanotriton.verdict import Verdict


@dataclass(frozen=True)
class RewardConfig:
    """reward = correct * (1 + speed * f(speedup)) + (1 - correct) * partial * progress."""

    # credit of a candidate that fails in its values only; less for one that fails earlier. Below 1
    partial: float = 0.0
    speed: float = 0.0  # what `speed_cap` times faster than the reference adds to a correct candidate
    speed_cap: float = 4.0  # speed-ups beyond this are worth no more
    speed_noise: float = 0.05  # a gain below this fraction is noise, and worth nothing

    @property
    def noise(self) -> float:
        """What timing noise alone may change a reward by: below it a group's standard deviation means nothing
        (docs/rules.md, 12)."""
        return self.speed * math.log(1 + self.speed_noise) / math.log(self.speed_cap)

    def __post_init__(self):
        if not 0 <= self.partial < 1:
            raise ValueError(
                f"partial = {self.partial}: must be in [0, 1), a wrong answer is never worth a right one"
            )
        if self.speed < 0 or self.speed_cap <= 1 or self.speed_noise < 0:
            raise ValueError("speed and speed_noise must be >= 0 and speed_cap > 1")


def reward(verdict: Verdict, config: RewardConfig = RewardConfig()) -> float | None:
    """The reward of one sample, or None for a sample that leaves the batch.

    A sample leaves it where the verdict says nothing of the candidate: our own failure, a feature that the
    executor lacks, or a weak task. The length of a completion is no matter here: train_grpo.py has
    --truncated
    for it.
    """
    if not verdict.scored:
        return None
    if verdict.correct:
        return 1.0 + config.speed * execution.speed(verdict, config.speed_cap, config.speed_noise)
    return config.partial * execution.progress(verdict)


def reward_config(options: RewardOptions) -> RewardConfig:
    """The options of reward(). The length penalty is not one of them: train_grpo.py has --truncated soft."""
    return RewardConfig(partial=options.partial, speed=options.speed)


def reward_function(options: RewardOptions) -> Callable[[Verdict, str, Any], float | None]:
    """(verdict, completion, task) -> the reward, or None for a sample that leaves the batch."""
    if not options.reward:
        config = reward_config(options)
        return lambda verdict, completion, task: reward(verdict, config)
    try:
        return load_reward(options.reward)
    except ValueError as error:
        raise ConfigError(f"--reward {error}") from None


def load_reward(path: str | Path) -> Callable:
    """A user's own reward: a Python file that defines `reward(verdict, completion, task) -> float | None`.

    It is the user's code and runs in the training process. Raises ValueError (one line) when it can't be
    used.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path}: no such reward file")
    spec = importlib.util.spec_from_file_location("user_reward", path)
    if spec is None:
        raise ValueError(f"{path}: a reward file is a Python file (.py)")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ValueError(f"{path}: {type(error).__name__}: {error}") from error
    function = getattr(module, "reward", None)
    if not callable(function):
        raise ValueError(f"{path}: must define reward(verdict, completion, task)")
    try:
        inspect.signature(function).bind(None, None, None)
    except TypeError as error:
        raise ValueError(f"{path}: reward(verdict, completion, task): {error}") from None
    return functools.partial(checked, function, path)


def checked(function: Callable, path: Path, verdict: Verdict, completion: str, task: Any) -> float | None:
    """What a user's reward returns. ConfigError unless it is None or a finite number: a NaN would spread over
    its whole group."""
    try:
        value = function(verdict, completion, task)
    except Exception as error:
        lines = [
            f.lineno
            for f in traceback.extract_tb(error.__traceback__)
            if Path(f.filename).resolve() == path.resolve()
        ]
        raise ConfigError(
            f"--reward {path}{f', line {lines[-1]}' if lines else ''}: {type(error).__name__}: {error}"
        ) from error
    try:
        number = None if value is None or isinstance(value, str) else float(value)
    except (TypeError, ValueError):
        number = None
    if value is not None and (number is None or not math.isfinite(number)):
        raise ConfigError(
            f"--reward {path}: reward() must return a finite number or None; it returned {value!r}"
        )
    return number
