"""How long does work on the GPU take? CUDA graphs (events where work cannot be captured), cold caches, fresh data before every run.

Before each timed run `before(i)` puts fresh inputs in place and poisons the outputs again, then a buffer of more than twice the L2
is written, so that nothing is warm. Several works are timed in turns, so that clocks that drift drift for all of them.
"""

import logging
import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch

BATCH = 10  # runs of one work before the next has its turn
MIN_RUNS, MAX_RUNS = 20, 200
ENOUGH = 0.005  # stop when the median's standard error is below this share of it

log = logging.getLogger(__name__)


@dataclass
class Work:
    run: Callable[[], None]  # only launches work on the current stream, the same every time
    before: Callable[[int], None]  # not timed: fresh inputs for run i


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

    def quick(self, run: Callable[[], None], runs: int = 5) -> float:
        """Microseconds of one call, cold, for choosing between configurations."""
        run()
        events = [self._timed(run) for _ in range(runs)]
        torch.cuda.synchronize()
        return statistics.median(a.elapsed_time(b) for a, b in events) * 1e3

    def time(self, works: list[Work], budget: float = 0.5) -> list[Timing]:
        """Median times. budget: seconds for all works together, after which no further round starts."""
        calls = [self._capture(w) for w in works]
        times: list[list[float]] = [[] for _ in works]
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        while True:
            for work, (call, _), found in zip(works, calls, times):
                if not _enough(found):
                    events = []
                    for i in range(len(found), len(found) + BATCH):
                        work.before(i)
                        events.append(self._timed(call))
                    torch.cuda.synchronize()
                    found += [a.elapsed_time(b) * 1e3 for a, b in events]
            end.record()
            end.synchronize()
            if all(map(_enough, times)) or (start.elapsed_time(end) / 1e3 > budget and all(len(t) >= MIN_RUNS for t in times)):
                return [_summary(t, clock) for t, (_, clock) in zip(times, calls)]

    def _timed(self, call: Callable[[], None]) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self.flush.zero_()
        start.record()
        call()
        end.record()
        return start, end

    def _capture(self, work: Work) -> tuple[Callable[[], None], str]:
        """The work as one CUDA graph, so that Python's own time is not in it; the work itself where that can't be."""
        work.before(0)
        work.run()  # loads and allocates what is loaded and allocated once
        torch.cuda.synchronize()
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        try:
            with torch.cuda.graph(graph):
                work.run()
        except Exception as error:
            log.debug("not captured: %s", error)
            torch.cuda.set_stream(stream)  # a capture that fails leaves its own behind
            work.before(0)
            work.run()  # what really fails, fails here again
            torch.cuda.synchronize()
            return work.run, "event"
        return graph.replay, "graph"


def floor_us(read: int, written: int, device: int | None = None) -> float:
    """Microseconds that no run can beat: `read` bytes from cold memory, `written` ones less what the L2 can keep.

    The bandwidth is the memory's peak by its clock and width, which nothing reaches.
    """
    p = torch.cuda.get_device_properties(torch.cuda.current_device() if device is None else device)
    peak = 2 * p.memory_clock_rate * 1e3 * p.memory_bus_width / 8  # bytes a second; two transfers a clock
    return (read + max(0, written - p.L2_cache_size)) / peak * 1e6


def _enough(times: list[float]) -> bool:
    if len(times) >= MAX_RUNS:
        return True
    return len(times) >= MIN_RUNS and _spread(times) * 1.86 / len(times) ** 0.5 < ENOUGH  # 1.2533 sigma, sigma = IQR / 1.349


def _spread(times: list[float]) -> float:
    low, middle, high = statistics.quantiles(times, n=4)
    return (high - low) / 2 / middle


def _summary(times: list[float], clock: str) -> Timing:
    return Timing(statistics.median(times), _spread(times), len(times), clock)
