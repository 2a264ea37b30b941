"""A verdict becomes a number, here and nowhere else. Change `reward`, or name a file of your own on the
command line (docs/rewards.md).

Default: 1 if the candidate is Triton and right, else 0. The executor applies the rules
(nanotriton/rules/rules.py) before and after it runs a candidate, so `correct` under policy strict means both.
"""

import importlib.util
import inspect
import math
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanotriton.config import ConfigError
from nanotriton.options import RewardOptions
from nanotriton.reward import execution
from nanotriton.verdict import Verdict

# What a reward function returns: a number, or named parts that add up to it, or None for a sample that leaves
# the batch.
Value = float | dict[str, float] | None
EXPECTED = "reward() must return a finite number, a dict of named ones, or None"


@dataclass(frozen=True)
class RewardConfig:
    """reward = correct * (1 + speed * f(speedup)) + (1 - correct) * partial * progress."""

    # credit of a candidate that fails in its values only; less for one that fails earlier. Below 1
    partial: float = 0.0
    speed: float = 0.0  # what being fast adds to a correct candidate, at most
    slowest: float = 1 / 16  # the speed-up from which on it adds something
    fastest: float = 4.0  # and that at which it adds all
    clock: float = 0.05  # the share by which the clock may be off

    @property
    def noise(self) -> float:
        """What timing noise alone may change a reward by: below it a group's standard deviation means nothing
        (docs/rules.md, 12)."""
        return self.speed * math.log(1 + self.clock) / math.log(self.fastest / self.slowest)

    def __post_init__(self):
        if not 0 <= self.partial < 1:
            raise ValueError(
                f"partial = {self.partial}: must be in [0, 1), a wrong answer is never worth a right one"
            )
        if self.speed < 0 or self.clock < 0 or not 0 < self.slowest < self.fastest:
            raise ValueError("speed and clock must be >= 0, slowest > 0, and fastest above it")


def reward(verdict: Verdict, config: RewardConfig = RewardConfig()) -> float | None:
    """The reward of one sample, or None for a sample that leaves the batch.

    A sample leaves it where the verdict says nothing of the candidate: the executor failed, or the task did
    (`Verdict.scored`). Code of its own that the executor cannot judge is worth 0. The length of a
    completion is no matter here: train_grpo.py has --truncated for it.
    """
    if not verdict.scored:
        return None
    if verdict.correct:
        return 1.0 + config.speed * execution.speed(verdict, config.slowest, config.fastest)
    return config.partial * execution.progress(verdict)


@dataclass(frozen=True)
class RewardFunction:
    """(verdict, completion, task) -> the reward.

    noise: what the noise of the clock alone may change a reward by (see RewardConfig.noise).
    path: the file that the function comes from, if it does.
    """

    function: Callable[[Verdict, str, Any], Value]
    noise: float = 0.0
    path: Path | None = None

    def __call__(self, verdict: Verdict, completion: str, task: Any) -> Value:
        """ConfigError (one line) where a user's function raises, or returns what is no reward."""
        if self.path is None:
            return self.function(verdict, completion, task)
        try:
            value = self.function(verdict, completion, task)
        except (Exception, SystemExit) as error:  # a run must not end well because a reward wants to
            told = told_by(error, self.path) + attributes_of(error, verdict, task)
            raise ConfigError(f"--reward {told}") from error
        try:
            return checked(value)
        except ValueError as error:
            raise ConfigError(f"--reward {self.path}: {error}") from None


def total(value: Value) -> float | None:
    """The number that a reward comes to: the sum of its parts, if it has parts.

    >>> total({"correct": 1.0, "speed": 0.5}), total(1.0), total(None)
    (1.5, 1.0, None)
    """
    return sum(value.values()) if isinstance(value, dict) else value


def checked(value: Any) -> Value:
    """A reward as floats. ValueError (one line) for anything but a finite number, named ones, or None: a NaN
    would spread over its whole group.
    """
    if value is None:
        return None
    if not isinstance(value, dict):
        return finite(value)
    if not value or not all(isinstance(name, str) and name for name in value):
        raise ValueError(f"{EXPECTED}; it returned {value!r}")
    for name, part in value.items():
        if part is None:
            raise ValueError(f"{EXPECTED}; the part {name!r} is None: leave a part out that does not apply")
    return {name: finite(part) for name, part in value.items()}


def finite(value: Any) -> float:
    """The value as a float. ValueError (one line) if it is no finite number."""
    try:
        number = math.nan if isinstance(value, str) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{EXPECTED}; it returned {value!r}")
    return number


def told_by(error: BaseException, path: Path) -> str:
    """What an error that a file raised says, on one line: "FILE, line N: its class: its message"."""
    message = " ".join(str(error).split())
    return f"{path}{line_in(error, path)}: {type(error).__name__}" + (f": {message}" if message else "")


def attributes_of(error: BaseException, verdict: Verdict, task: Any) -> str:
    """The attributes that are there, if an error says that the verdict or the task lacks one; else ""."""
    owner = error.obj if isinstance(error, AttributeError) else None
    for what, thing in (("verdict", verdict), ("task", task)):
        if thing is not None and owner is thing:
            names = [name for name in dir(thing) if not name.startswith("_")]
            names = [name for name in names if not callable(getattr(thing, name))]
            return f"; a {what} has {', '.join(names)}"
    return ""


def line_in(error: BaseException, path: Path) -> str:
    """ ", line N" for the last line of this file that an error passed through, or ""."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).resolve() == path.resolve()
    ]
    return f", line {lines[-1]}" if lines else ""


def reward_function(options: RewardOptions) -> RewardFunction:
    """The reward that the options ask for. ConfigError (one line) if its file can't be used."""
    if not options.reward:
        config = RewardConfig(partial=options.partial, speed=options.speed)
        return RewardFunction(lambda verdict, completion, task: reward(verdict, config), config.noise)
    try:
        return load_reward(options.reward)
    except ValueError as error:
        raise ConfigError(f"--reward {error}") from None


def load_reward(path: str | Path) -> RewardFunction:
    """A user's own reward: a Python file that defines `reward(verdict, completion, task)` -> Value.

    It may define NOISE too, a number (see RewardFunction). It is the user's code and runs in the training
    process. Raises ValueError (one line) when it can't be used.
    """
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{path}: this is a folder; a Python file (.py) is expected")
    if not path.is_file():
        raise ValueError(f"{path}: no such reward file")
    spec = importlib.util.spec_from_file_location("user_reward", path)
    if spec is None:
        raise ValueError(f"{path}: a reward file is a Python file (.py)")
    # entered, because dataclasses and pickle look a module up by its name
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ValueError(told_by(error, path)) from error
    function = getattr(module, "reward", None)
    if not callable(function):
        raise ValueError(f"{path}: must define reward(verdict, completion, task)")
    try:
        inspect.signature(function).bind(None, None, None)
    except TypeError as error:
        raise ValueError(f"{path}: reward(verdict, completion, task): {error}") from None
    noise = getattr(module, "NOISE", 0.0)
    if isinstance(noise, bool) or not isinstance(noise, int | float) or not 0 <= noise < math.inf:
        raise ValueError(f"{path}: NOISE must be a finite number, 0 or above; it is {noise!r}")
    return RewardFunction(function, float(noise), path)
