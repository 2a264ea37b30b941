"""How long does work on the GPU take? CUDA graphs (events where work cannot be captured), cold caches, fresh data before every run.

Before each timed run `before(i)` puts fresh inputs in place and poisons the outputs again, then a buffer of more than twice the L2
is written, so that nothing is warm. Several works are timed in turns, so that clocks that drift drift for all of them.
"""

import logging
import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch

from nanotriton.executor.common.card import Card

BATCH = 10  # runs of one work before the next has its turn
MIN_RUNS, MAX_RUNS = 20, 100
ENOUGH = 0.005  # stop when the median's standard error is below this share of it

log = logging.getLogger(__name__)


@dataclass
class Work:
    run: Callable[[], None]  # only launches work on the current stream, the same every time
    before: Callable[[int], None]  # not timed: fresh inputs for run i
    period: int = 0  # before(i) only launches work too, and the same for equal i modulo this; 0: it doesn't


@dataclass
class Ready:
    """A work that has run once, captured where that was possible: without Python between its launches, and none before them."""

    run: Callable[[], None]
    before: Callable[[int], None]
    clock: str  # graph or event


@dataclass
class Timing:
    us: float  # median
    spread: float  # half the interquartile range over the median
    runs: int
    clock: str  # graph or event


class Stopwatch:
    """One per GPU process. Hold the GPU's lock while using it: anything else that runs there is measured too."""

    def __init__(self) -> None:
        l2 = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
        self.flush = torch.empty(max(2 * l2 + (32 << 20), 128 << 20) // 4, dtype=torch.int32, device="cuda")
        self.aside = torch.cuda.Stream()  # where works are captured

    def quick(self, run: Callable[[], None]) -> float:
        """Microseconds of one call, cold, for choosing between configurations."""
        run()
        events = [self._timed(run) for _ in range(5)]
        torch.cuda.synchronize()
        return statistics.median(a.elapsed_time(b) for a, b in events) * 1e3

    def prepare(self, work: Work) -> Ready:
        """Run it once, so that what is loaded and allocated once is there, and capture it. The lock is not needed for this."""
        for i in reversed(range(max(work.period, 1))):
            work.before(i)
        work.run()
        torch.cuda.synchronize()
        loads = [self._captured(lambda i=i: work.before(i)) for i in range(work.period)]
        before = (lambda i: loads[i % len(loads)]()) if loads and all(loads) else work.before
        before(0)
        if run := self._captured(work.run):
            return Ready(run, before, "graph")
        before(0)
        work.run()  # what really fails, fails here again
        torch.cuda.synchronize()
        return Ready(work.run, before, "event")

    def time(self, works: list[Work | Ready], budget: float = 0.5) -> list[Timing]:
        """Median times. budget: seconds for all works together, after which no further round starts."""
        ready = [w if isinstance(w, Ready) else self.prepare(w) for w in works]
        times: list[list[float]] = [[] for _ in works]
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        while True:
            for work, found in zip(ready, times):
                if not _enough(found):
                    events = []
                    for i in range(len(found), len(found) + BATCH):
                        work.before(i)
                        events.append(self._timed(work.run))
                    torch.cuda.synchronize()
                    found += [a.elapsed_time(b) * 1e3 for a, b in events]
            end.record()
            end.synchronize()
            if all(map(_enough, times)) or (
                start.elapsed_time(end) / 1e3 > budget and all(len(t) >= MIN_RUNS for t in times)
            ):
                return [_summary(t, work.clock) for t, work in zip(times, ready)]

    def _timed(self, call: Callable[[], None]) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self.flush.zero_()
        start.record()
        call()
        end.record()
        return start, end

    def _captured(self, call: Callable[[], None]) -> Callable[[], None] | None:
        """The replay of a CUDA graph of `call`; None where it can't be captured. torch.cuda.graph would empty the allocator's cache first."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        try:
            with torch.cuda.stream(self.aside):
                graph.capture_begin()
                try:
                    call()
                finally:
                    graph.capture_end()
        except Exception as error:
            log.debug("not captured: %s", error)
            torch.cuda.synchronize()
            return None
        return graph.replay


def floor_us(card: Card, read: int, written: int) -> float:
    """Microseconds that no run can beat: `read` bytes from cold memory, `written` ones less what the L2 can keep."""
    return (read + max(0, written - card.L2_cache_size)) / card.bandwidth * 1e6


def _enough(times: list[float]) -> bool:
    if len(times) >= MAX_RUNS:
        return True
    # 1.2533 sigma, sigma = IQR / 1.349
    return len(times) >= MIN_RUNS and _spread(times) * 1.86 / len(times) ** 0.5 < ENOUGH


def _spread(times: list[float]) -> float:
    low, middle, high = statistics.quantiles(times, n=4)
    return (high - low) / 2 / middle


def _summary(times: list[float], clock: str) -> Timing:
    return Timing(statistics.median(times), _spread(times), len(times), clock)
