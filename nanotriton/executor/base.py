"""The base process: it imports torch and triton once, and from then on only forks workers.

Entered by `processes.start_base`, in a fresh interpreter. It holds no secret and never sees a candidate.
"""

import gc
import os
import signal
import socket
import sys
import traceback

from nanotriton.executor.sandbox import sandbox
from nanotriton.executor.sandbox.protocol import receive, remove_folder, send


def base_main(control_fd: int, parent: int, flavour: str, root: str, card: dict) -> None:
    """One command: a message with two file descriptors forks a worker (its socket, its beacon). Ends when the executor does.

    card: the GPU that candidates are judged for, the fields of a Card.
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
        sandbox.stop_counting_references()
        gc.freeze()  # keep the collector from touching (and so copying) the pages that all children share
        sandbox.make_forks_cheap()
        send(control, {"ready": True})
        while True:
            request, fds = receive(control)
            if request is None:
                break
            base, pid = os.getpid(), os.fork()
            if not pid:
                try:
                    control.close()
                    signal.signal(signal.SIGTERM, signal.SIG_DFL)
                    sandbox.die_with_parent(base)
                    worker.main(socket.socket(fileno=fds[0]), fds[1], request)
                except BaseException:
                    traceback.print_exc()
                finally:  # never back into the base's own code
                    os._exit(0)
            for fd in fds:
                os.close(fd)
            workers = {p for p in workers | {pid} if p == pid or os.waitpid(p, os.WNOHANG) == (0, 0)}
            send(control, {"pid": pid})
    finally:
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        if os.getppid() != parent:  # nobody else is left to do it
            remove_folder(root)
            os.killpg(0, signal.SIGKILL)  # and whatever a child that may fork has left
