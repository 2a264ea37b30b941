"""The base process: it imports torch and triton once, and from then on only forks workers.

Entered by `processes.start_base`, in a fresh interpreter. It holds no secret and never sees a candidate.
"""

import contextlib
import gc
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable

from nanotriton.executor.sandbox import forks, sandbox
from nanotriton.executor.sandbox.protocol import receive, remove_folder, send

ENDING = 60.0  # seconds that an executor's process may take to be gone once it ends


def base_main(control_fd: int, parent: int, flavour: str, root: str, card: dict) -> None:
    """The base's life. It ends when the executor does.

    It knows one command: a message with two file descriptors, a worker's socket and beacon, forks that
    worker. card: the GPU that candidates are judged for, the fields of a Card.
    """
    signal.signal(signal.SIGTERM, _end)
    if os.getppid() != parent:  # it ended while this process began
        remove_folder(root)
    sandbox.die_with_parent(parent, signal.SIGTERM)
    workers: set[int] = set()
    try:
        try:
            serve(socket.socket(fileno=control_fd), flavour, card, workers)
        finally:
            # the executor's end closes the socket and sends a signal: the one that comes later must not
            # interrupt what follows
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
    finally:
        for pid in workers:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):  # it has ended just now
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        if outlives(parent):  # nobody else is left to do it
            remove_folder(root)
            os.killpg(0, signal.SIGKILL)  # this process, and any that a child of process mode has left


def _end(*_) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(0)


def serve(control: socket.socket, flavour: str, card: dict, workers: set[int]) -> None:
    """Prepare, and then fork workers until the executor hangs up. workers: those that live are noted here."""
    from nanotriton.executor.common.card import Card
    from nanotriton.executor.judge import start

    start.prepare(flavour, Card(**card))
    gc.collect()
    forks.stop_counting_references()
    gc.freeze()  # keep the collector from touching (and so copying) the pages that all children share
    forks.make_forks_cheap()
    send(control, {"ready": True})
    while True:
        request, fds = receive(control)
        if request is None:
            return
        pid = _fork_worker(control, start.main, request, fds)
        for fd in fds:
            os.close(fd)
        workers.difference_update([p for p in workers if os.waitpid(p, os.WNOHANG) != (0, 0)])
        if pid is not None:
            workers.add(pid)
        send(control, {"pid": pid})


def outlives(parent: int) -> bool:
    """Whether the parent ends. That takes it a moment: this process is told by its closed files before."""
    due = time.monotonic() + ENDING
    while os.getppid() == parent:
        if time.monotonic() > due:
            return False
        time.sleep(0.01)
    return True


def _fork_worker(control: socket.socket, main: Callable, request: dict, fds: list[int]) -> int | None:
    """Fork a worker that runs `main`, and return its process id.

    None if the machine has no process left: the executor sees that the worker's socket is closed.
    """
    base = os.getpid()
    try:
        pid = forks.fork()
    except OSError as error:
        print(f"executor: a worker does not start: {error}", file=sys.stderr, flush=True)
        return None
    if pid:
        return pid
    try:
        control.close()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        sandbox.die_with_parent(base)
        main(socket.socket(fileno=fds[0]), fds[1], request)
    except BaseException as error:
        print(why(error), end="", file=sys.stderr, flush=True)
    finally:  # never back into the base's own code
        os._exit(0)


def why(error: BaseException) -> str:
    """Why a worker ends, for stderr: a traceback, or one line where it says no more than that line."""
    if isinstance(error, RuntimeError) and "out of memory" in str(error):
        return (
            "executor: a worker ends: the GPU has no memory left for it. If a trainer's torch keeps what it "
            "does not use, torch.cuda.empty_cache() gives it back\n"
        )
    return "".join(traceback.format_exception(error))
