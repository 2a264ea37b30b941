"""How long will the rest of a run take? The console's eta."""

import statistics
import time
from collections import deque

RECENT = 10  # steps


class Pace:
    """The steps that are left take as long as the last ten did, and measurements as long as the last one.

    A step's time runs from the end of what came before it, so that saving counts.
    """

    def __init__(self, every: int, minutes: float = 0.0):
        """every: steps between two measurements; one more comes at the end. minutes: when the run will end
        at the latest; 0: whenever its steps are done."""
        self.every, self.minutes = every, minutes
        self.steps: deque[float] = deque(maxlen=RECENT)  # seconds of each
        self.measuring = 0.0  # seconds of the last measurement
        self.start()

    def start(self) -> None:
        """What came before is neither a step nor a measurement."""
        self.last = time.perf_counter()

    def step(self) -> None:
        """A step has ended."""
        self.steps.append(self.lap())

    def measured(self) -> None:
        """A measurement has ended."""
        self.measuring = self.lap()

    def lap(self) -> float:
        before, self.last = self.last, time.perf_counter()
        return self.last - before

    def left(self, step: int, of: int, spent: float) -> float:
        """Seconds after so many steps of all, `spent` seconds after the start."""
        steps = (of - step) * statistics.fmean(self.steps)
        between = (of - 1) // self.every - (step - 1) // self.every
        if self.minutes:
            steps = min(steps, max(60 * self.minutes - spent, 0.0))
        return steps + (between + 1) * self.measuring
