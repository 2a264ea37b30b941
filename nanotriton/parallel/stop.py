"""SIGINT and SIGTERM: what is trained is saved before the process ends.

    leave_at_once()                      # in a script, before torch is imported
    install()                            # once, by whoever starts a run
    with deferred():                     # around the steps: a signal waits ...
        with at_once(world):             # ... except in here, where giving up costs nothing
            groups = rollout(...)
        check(world)                     # after a step: Interrupted on every rank if a signal came to one

Outside of deferred() a signal ends the process at once. Inside it the code that catches Interrupted saves a
checkpoint first; a second Ctrl-C ends at once there too. A rollout is given up in the middle, because no
weight has changed since the last step; updates are finished, because half of them are no step.

This module imports no torch, for the sake of leave_at_once().
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nanotriton.parallel.world import World

ECHO = 2.0  # seconds in which one Ctrl-C may come twice: from the terminal, and from torchrun


class Interrupted(KeyboardInterrupt):
    """The run was told to end, by the signal of this number."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number
        self.told = False  # whether the user knows already


class _State:
    """Signals are the process's, and so is what became of them."""

    came: int = 0  # the first signal's number
    when: float = 0.0  # and its time
    deferred: bool = False
    at_once: bool = False


STATE = _State()


def install() -> None:
    """Handle both signals from now on."""
    STATE.came, STATE.deferred, STATE.at_once = 0, False, False
    on_signals(handle)


def leave_at_once() -> None:
    """Until install(), both signals end the process at once, with status 130 or 143.

    While torch is imported an exception is no way to end it: torch imports numpy, and goes on without numpy
    if that raises anything, KeyboardInterrupt included.
    """
    on_signals(lambda number, frame: os._exit(128 + number))


def on_signals(handler: Callable[[int, FrameType | None], None]) -> None:
    """Both signals call this handler; one that is ignored (a shell's background job) stays ignored."""
    if threading.current_thread() is not threading.main_thread():
        return  # Python lets no other thread handle signals
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


def handle(number: int, frame: object) -> None:
    now = time.monotonic()
    again = STATE.came != 0
    if again and (number == signal.SIGTERM or now - STATE.when < ECHO):
        return  # it is known already
    STATE.came, STATE.when = number, now
    ends_now = again or STATE.at_once or not STATE.deferred
    STATE.at_once = False
    if ends_now:
        raise Interrupted(number)
    if os.environ.get("RANK", "0") == "0":
        # not print(): the handler may have interrupted one
        os.write(2, b"\ninterrupted: this step is finished and saved first; Ctrl-C once more ends at once\n")


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Inside, a signal waits for check() or at_once()."""
    STATE.deferred = True
    try:
        yield
    finally:
        STATE.deferred = False


@contextlib.contextmanager
def at_once(world: "World") -> Iterator[None]:
    """Inside, which must hold no collective operation, a signal ends the work of this rank in the middle.

    At the end all ranks learn of it together: Interrupted on each of them if a signal came to one.
    """
    if not STATE.deferred:
        yield
        return
    with contextlib.suppress(Interrupted):
        STATE.at_once = True
        try:
            if STATE.came:
                raise Interrupted(STATE.came)
            yield
        finally:
            STATE.at_once = False
    check(world)


def check(world: "World") -> None:
    """Interrupted on every rank if a signal came to one of them. All ranks call it together."""
    if number := max(world.gather(STATE.came)):
        raise Interrupted(number)
