"""Compile servers: sandboxed children that compile one kernel after another.

A fork for each kernel would cost as much as half a compilation. A server is trusted code on hostile TTIR,
so it may die, and it lives for LIFE kernels at most. A kernel whose server died has another try in a fresh
one, which no kernel before it can have left short of memory. That end is its verdict. One protection is
given up: TTIR that took over its server, through a memory error of the compiler's, could forge the binaries
of the next LIFE candidates.
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
    """One kernel to compile."""

    owner: Any  # handed back with the result
    args: dict  # name, ttir, options, card, as gpu/compile_server.py's fill_order reads them
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
    killed: str | None = None  # the reason, if we killed it
    gone: bool = False  # it hung up; its zygote will say why

    def late(self) -> bool:
        """Whether its order is overdue, and it was not killed for that yet."""
        if self.order is None or self.killed:
            return False
        return time.monotonic() > self.order.started + self.order.limits.seconds


class CompileServers:
    """At most `count` servers of one worker, started when they are needed. Orders wait for a free one."""

    def __init__(self, zygote: Zygote, folder: str, count: int):
        self.zygote = zygote
        self.folder = folder
        self.count = count
        self.servers: list[Server] = []
        self.waiting: deque[Order] = deque()
        self.started = 0

    def sockets(self) -> dict[int, socket.socket]:
        """The sockets to wait for, by file descriptor."""
        return {s.sock.fileno(): s.sock for s in self.servers if not s.gone}

    def submit(self, owner: Any, args: dict, limits: sandbox.Limits) -> None:
        """Order the compilation of a kernel."""
        self.waiting.append(Order(owner, args, limits))
        self._hand_out()

    def patience(self) -> float | None:
        """Seconds until the first order is overdue, or None if nothing is being compiled."""
        orders = [s.order for s in self.servers if s.order and not s.killed]
        if not orders:
            return None
        due = min(order.started + order.limits.seconds for order in orders)
        return max(0.01, due - time.monotonic())

    def kill_overdue(self, ready: set[int]) -> None:
        """Kill the servers whose order is overdue.

        ready: file descriptors of servers that have something to say. They are not late: their worker is.
        """
        for server in self.servers:
            if server.late() and server.sock.fileno() not in ready and self.zygote.kill(server.child):
                server.killed = "timeout"

    def answered(self, sock: socket.socket) -> tuple[Any, Ended] | None:
        """Read a server's answer: (owner, its end). None if the server hung up: `ended` will know more."""
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
        """A child of the zygote ended: (owner, its end) if it was a server that had an order."""
        server = next((s for s in self.servers if s.child == report.id), None)
        if server is None:
            return None
        self._forget(server)
        order = server.order
        killed = report.killed or server.killed
        if killed is None and report.signal == signal.SIGALRM:
            killed = "timeout"
        if order and not killed and not order.again:
            os.close(order.result)
            order.again = True
            self.waiting.appendleft(order)
            order = None
        self._hand_out()
        report.killed = killed
        return (order.owner, _read(order, report)) if order else None

    def _hand_out(self) -> None:
        """Give the orders that wait to idle servers, as long as there are any or may be more."""
        while self.waiting:
            server = self._server_for(self.waiting[0])
            if server is None:
                return
            order = self.waiting.popleft()
            order.started = time.monotonic()
            order.result = os.memfd_create("result")
            server.order = order
            server.taken += 1
            job = memory_file("job", order.args | {"seconds": order.limits.seconds})
            try:
                send(server.sock, {}, (job, order.result))
            except OSError:  # it has just died: its zygote's report brings the order back as crashed
                server.gone = True
            os.close(job)

    def _server_for(self, order: Order) -> Server | None:
        """An idle server, started if there may be another. Another try gets a fresh one."""
        idle = [s for s in self.servers if s.order is None and not s.gone]
        for server in idle:
            if not (order.again and server.taken):
                return server
        if len(self.servers) >= self.count:
            if not idle:
                return None
            self._forget(idle[0])
        return self._start(order.limits)

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
    """Fill in an end from the order's result file, and close it."""
    ended.seconds = time.monotonic() - order.started
    ended.read(order.result, order.limits.output)
    os.close(order.result)
    return ended
