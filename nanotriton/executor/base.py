"""The base process: it imports torch and triton once, and from then on only forks workers.

Entered by `processes.start_base`, in a fresh interpreter. It holds no secret and never sees a candidate.
"""

import gc
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable

from nanotriton.executor.sandbox import forks, sandbox
from nanotriton.executor.sandbox.protocol import receive, remove_folder, send


def base_main(control_fd: int, parent: int, flavour: str, root: str, card: dict) -> None:
    """The base's life. It ends when the executor does.

    It knows one command: a message with two file descriptors, a worker's socket and beacon, forks that
    worker. card: the GPU that candidates are judged for, the fields of a Card.
    """
    sandbox.die_with_parent(parent, signal.SIGTERM)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    from nanotriton.executor.common.card import Card
    from nanotriton.executor.judge import worker

    control = socket.socket(fileno=control_fd)
    workers: set[int] = set()
    try:
        worker.prepare(flavour, Card(**card))
        gc.collect()
        forks.stop_counting_references()
        gc.freeze()  # keep the collector from touching (and so copying) the pages that all children share
        forks.make_forks_cheap()
        send(control, {"ready": True})
        while True:
            request, fds = receive(control)
            if request is None:
                break
            pid = _fork_worker(control, worker.main, request, fds)
            for fd in fds:
                os.close(fd)
            workers = {p for p in workers if os.waitpid(p, os.WNOHANG) == (0, 0)} | {pid}
            send(control, {"pid": pid})
    finally:
        # a parent that dies closes its socket first: the signal of its death may come at any moment from here
        signal.signal(signal.SIGTERM, lambda *_: end_orphaned(root))
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        if os.getppid() != parent:
            end_orphaned(root)


def end_orphaned(root: str) -> None:
    """End where nobody else is left to remove the executor's folder."""
    remove_folder(root)
    os.killpg(0, signal.SIGKILL)  # this process, and those that a child has left which may fork


def _fork_worker(control: socket.socket, main: Callable, request: dict, fds: list[int]) -> int:
    """Fork a worker that runs `main`, and return its process id."""
    base = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        control.close()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        sandbox.die_with_parent(base)
        main(socket.socket(fileno=fds[0]), fds[1], request)
    except BaseException:
        traceback.print_exc()
    finally:  # never back into the base's own code
        os._exit(0)
