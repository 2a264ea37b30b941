"""What holds for all tests: threads, executors, the order.

One thread a process: two test workers with two threads each on two cores fight for them, and take several times as long.
"""

import contextlib
import functools
import os
import signal

# a shell's background job: all that a test starts and interrupts would ignore it too
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported, and for every process that a test starts

import pytest

from nanotriton.executor import Executor

# Longest first: a long file that begins last keeps one core busy and leaves the other idle.
LONGEST = (
    "test_exploits",
    "test_train",
    "test_executor",
    "test_honest",
    "test_bench_kernelbench",
    "test_executor_deaths",
    "test_distributed",
    "test_watch",
)
LONGEST += (
    "test_bench_tritonbench",
    "test_executor_cli",
    "test_weights",
    "test_synthetic",
    "test_interpreted",
)


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))


@pytest.fixture(scope="session")
def executors():
    """options -> an executor, one for all tests of this process that ask for the same: a start takes seconds, for torch's import."""
    with contextlib.ExitStack() as stack:
        yield functools.cache(
            lambda **options: stack.enter_context(Executor(**dict(workers=1, seed=0, timeout=30.0) | options))
        )
