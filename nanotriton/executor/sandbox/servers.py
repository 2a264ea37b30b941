"""Compile servers: sandboxed children that compile one kernel after another, because a fork for each costs as much as half a compilation.

Trusted code on hostile TTIR, so a server may die, and lives for LIFE kernels at most. A kernel whose server died has another try in a fresh
one, which no kernel before it can have left short of memory; that end is its verdict. What is given up: TTIR that took over its server, through a memory error of the compiler's, could forge the binaries of the next LIFE candidates.
"""

import os
import shutil
import signal
import socket
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from nanotriton.executor.sandbox import sandbox
from nanotriton.executor.sandbox.protocol import Ended, memory_file, pair, receive, send
from nanotriton.executor.sandbox.zygote import Zygote

LIFE = 64  # kernels a server compiles before another takes its place


@dataclass(eq=False)
class Order:
    """One kernel to compile. `owner` is handed back with the result."""

    owner: Any
    args: dict  # name, ttir, options, card, as gpu/compile_server.py's compile_one reads them
    limits: sandbox.Limits
    started: float = 0.0
    result: int = -1  # memory file
    again: bool = False  # its first server died


@dataclass(eq=False)
class Server:
    child: int  # its id in the zygote
    sock: socket.socket
    folder: str
    order: Order | None = None
    taken: int = 0  # orders so far
    killed: str | None = None
    gone: bool = False  # it hung up; its zygote will say why


class CompileServers:
    """At most `count` servers of one worker, started when they are needed. Orders wait for a free one."""

    def __init__(self, zygote: Zygote, folder: str, count: int):
        self.zygote, self.folder, self.count = zygote, folder, count
        self.servers: list[Server] = []
        self.waiting: deque[Order] = deque()
        self.started = 0

    def sockets(self) -> dict[int, socket.socket]:
        """By file descriptor: what to wait for."""
        return {s.sock.fileno(): s.sock for s in self.servers if not s.gone}

    def submit(self, owner: Any, args: dict, limits: sandbox.Limits) -> None:
        self.waiting.append(Order(owner, args, limits))
        self._hand_out()

    def patience(self) -> float | None:
        """Seconds until the first order is overdue; None: nothing is being compiled."""
        due = [s.order.started + s.order.limits.seconds for s in self.servers if s.order and not s.killed]
        return max(0.01, min(due) - time.monotonic()) if due else None

    def kill_overdue(self, ready: set[int]) -> None:
        """ready: file descriptors of those that have something to say, which are not late: their worker is."""
        for server in self.servers:
            late = (
                server.order
                and not server.killed
                and time.monotonic() > server.order.started + server.order.limits.seconds
            )
            if late and server.sock.fileno() not in ready and self.zygote.kill(server.child):
                server.killed = "timeout"

    def answered(self, sock: socket.socket) -> tuple[Any, Ended] | None:
        """Read a server's answer: (owner, how it ended). None if it hung up: `ended` will know more."""
        server = next((s for s in self.servers if s.sock is sock), None)
        if server is None:  # its end was reported a moment ago
            return None
        message, _ = receive(sock)
        if message is None or server.order is None:
            server.gone = True
            return None
        order, server.order = server.order, None
        if server.taken >= LIFE:
            self._forget(server)  # it ends when it sees that its socket is closed
        self._hand_out()
        return order.owner, _read(order, Ended(server.child, 0.0, message["cpu"], code=0))

    def ended(self, report: Ended) -> tuple[Any, Ended] | None:
        """A child of the zygote ended: (owner, how) if it was a server that had an order."""
        server = next((s for s in self.servers if s.child == report.id), None)
        if server is None:
            return None
        self._forget(server)
        order, killed = (
            server.order,
            report.killed or server.killed or ("timeout" if report.signal == signal.SIGALRM else None),
        )
        if order and not killed and not order.again:
            os.close(order.result)
            order.again = True
            self.waiting.appendleft(order)
            order = None
        self._hand_out()
        report.killed = killed
        return (order.owner, _read(order, report)) if order else None

    def _hand_out(self) -> None:
        while self.waiting:
            order, idle = self.waiting[0], [s for s in self.servers if s.order is None and not s.gone]
            server = next((s for s in idle if not (order.again and s.taken)), None)
            if server is None:
                if len(self.servers) >= self.count:
                    if not idle:
                        return
                    self._forget(idle[0])
                server = self._start(order.limits)
            self.waiting.popleft()
            order.started, order.result = time.monotonic(), os.memfd_create("result")
            job = memory_file("job", order.args | {"seconds": order.limits.seconds})
            server.order, server.taken = order, server.taken + 1
            try:
                send(server.sock, {}, (job, order.result))
            except OSError:  # it has just died: its zygote's report brings the order back as crashed
                server.gone = True
            os.close(job)

    def _start(self, limits: sandbox.Limits) -> Server:
        self.started += 1
        ours, theirs = pair()
        folder = os.path.join(self.folder, f"compile-{self.started}")
        os.mkdir(folder, 0o700)
        endless = sandbox.Limits(None, limits.memory, output=limits.output, files=limits.files)
        child = self.zygote.spawn(
            "compile", folder, {}, endless, (theirs.fileno(),), write=True, exec_ok=True
        )
        theirs.close()
        self.servers.append(Server(child, ours, folder))
        return self.servers[-1]

    def _forget(self, server: Server) -> None:
        self.servers.remove(server)
        server.sock.close()
        shutil.rmtree(server.folder, ignore_errors=True)


def _read(order: Order, ended: Ended) -> Ended:
    ended.seconds = time.monotonic() - order.started
    ended.read(order.result, order.limits.output)
    os.close(order.result)
    return ended
