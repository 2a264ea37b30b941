"""The stopwatch: how long does work on the GPU take, with fresh data and cold caches before every run?

A work is captured as a CUDA graph where that is possible, and timed by CUDA events. Before each timed run
`before(i)` puts fresh inputs in place and poisons the outputs again. Then a buffer of more than twice the L2
cache is written, so that no data is warm. Several works are timed in turns, so that a drifting clock slows
all of them alike.
"""

import functools
import logging
import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch

from nanotriton.executor.common.card import Card

BATCH = 10  # runs of one work before the next has its turn
MIN_RUNS, MAX_RUNS = 20, 100  # of each work; beyond MIN_RUNS there are as many as ENOUGH needs
ENOUGH = 0.005  # the median's standard error, as a share of the median, at which a work has been timed enough
QUICK_RUNS = 5  # of Stopwatch.quick

log = logging.getLogger(__name__)


@dataclass
class Work:
    """Something to time.

    run: launches the work on the current stream, and does nothing else. It is the same every time.
    before: is called with i before run i, and not timed. It puts fresh inputs in place.
    period: unless it is 0, `before` only launches work too, the same for all i that are equal modulo it.
    """

    run: Callable[[], None]
    before: Callable[[int], None]
    period: int = 0


@dataclass
class Ready:
    """A work that has run once. If it could be captured, no Python runs between its launches."""

    run: Callable[[], None]
    before: Callable[[int], None]
    clock: str  # "graph", or "event" for a work that could not be captured


@dataclass
class Timing:
    """How long a work took."""

    us: float  # median, microseconds
    spread: float  # half the interquartile range, as a share of the median
    runs: int
    clock: str  # as in `Ready`


class Stopwatch:
    """One for each process on the GPU. `time` and `quick` measure everything that runs on the GPU meanwhile.

    So their caller holds the GPU's lock (locks.py).
    """

    def __init__(self) -> None:
        l2 = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
        size = max(2 * l2 + (32 << 20), 128 << 20)  # bytes
        self.flush = torch.empty(size // 4, dtype=torch.int32, device="cuda")
        self.aside = torch.cuda.Stream()  # works are captured there

    def quick(self, run: Callable[[], None]) -> float:
        """Microseconds of one call with cold caches, good enough to choose between configurations."""
        run()
        return statistics.median(self._batch(run, lambda i: None, range(QUICK_RUNS)))

    def prepare(self, work: Work) -> Ready:
        """Run the work once, so that all is loaded and allocated, and capture it. This needs no lock."""
        for i in reversed(range(max(work.period, 1))):
            work.before(i)
        work.run()
        torch.cuda.synchronize()
        before = self._captured_before(work)
        before(0)
        if run := self._captured(work.run):
            return Ready(run, before, "graph")
        before(0)
        work.run()  # an error that does not come from capturing is raised here again
        torch.cuda.synchronize()
        return Ready(work.run, before, "event")

    def _captured_before(self, work: Work) -> Callable[[int], None]:
        """`work.before` as replays of CUDA graphs. Where that can't be done, it stays as it is."""
        loads = [self._captured(functools.partial(work.before, i)) for i in range(work.period)]
        if not loads or not all(loads):
            return work.before

        def before(i: int) -> None:
            load = loads[i % len(loads)]
            load()

        return before

    def time(self, works: list[Work | Ready], budget: float = 0.5) -> list[Timing]:
        """Time works in turns of BATCH runs, at least MIN_RUNS of each.

        budget: seconds for all works together. After that no turn starts, once each work has its MIN_RUNS.
        """
        ready = [work if isinstance(work, Ready) else self.prepare(work) for work in works]
        times: list[list[float]] = [[] for _ in works]
        start = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        start.record()
        while True:
            for work, found in zip(ready, times):
                if not _enough(found):
                    found += self._batch(work.run, work.before, range(len(found), len(found) + BATCH))
            end.record()
            end.synchronize()
            seconds = start.elapsed_time(end) / 1e3
            is_over = seconds > budget and all(len(found) >= MIN_RUNS for found in times)
            if is_over or all(_enough(found) for found in times):
                return [_summary(found, work.clock) for found, work in zip(times, ready)]

    def _batch(self, run: Callable[[], None], before: Callable[[int], None], numbers: range) -> list[float]:
        """Microseconds of each of these runs. This process waits for the GPU only at the end."""
        events = []
        for i in numbers:
            before(i)
            start = torch.cuda.Event(enable_timing=True)
            end = torch.cuda.Event(enable_timing=True)
            self.flush.zero_()
            start.record()
            run()
            end.record()
            events.append((start, end))
        torch.cuda.synchronize()
        return [1e3 * start.elapsed_time(end) for start, end in events]

    def _captured(self, call: Callable[[], None]) -> Callable[[], None] | None:
        """The replay of a CUDA graph of `call`, or None where it can't be captured."""
        graph = torch.cuda.CUDAGraph()  # `with torch.cuda.graph` would first empty the allocator's cache
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
    """The time that no run can beat, in microseconds.

    `read` bytes come from cold memory. Of `written` bytes the L2 cache can keep as many as it holds.
    """
    moved = read + max(0, written - card.L2_cache_size)
    return moved / card.bandwidth * 1e6


def _enough(times: list[float]) -> bool:
    """Whether a work has been timed often enough.

    The standard error of a median is 1.2533 sigma / sqrt(n), with sigma = IQR / 1.349 for a normal
    distribution. With spread = IQR / 2 / median that is 1.86 spread / sqrt(n) of the median.
    """
    if len(times) < MIN_RUNS:
        return False
    error = 1.86 * _spread(times) / len(times) ** 0.5
    return error < ENOUGH or len(times) >= MAX_RUNS


def _spread(times: list[float]) -> float:
    """Half the interquartile range, as a share of the median."""
    low, middle, high = statistics.quantiles(times, n=4)
    return (high - low) / 2 / middle


def _summary(times: list[float], clock: str) -> Timing:
    return Timing(statistics.median(times), _spread(times), len(times), clock)
