"""Ports of the loopback at which a test's ranks meet."""

import os
import random
import socket
from pathlib import Path

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
SLICE = 1000  # ports of one process of pytest


def free_ports(count: int) -> list[int]:
    """Ports that are free, and that nobody else takes before a test's ranks listen there.

    A port that the kernel picks may be given, as soon as it is closed, to any other socket that asks for none in
    particular, and Gloo opens many. The first rank then ends, and the second waits for an answer from a stranger. So
    they come from below the range in which the kernel picks, and each process of pytest has its own.
    """
    below = int(RANGE.read_text().split()[0])
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
    end = below - worker * SLICE
    ports = []
    for port in random.SystemRandom().sample(range(end - SLICE, end), SLICE):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError:  # somebody listens there
                continue
        ports.append(port)
        if len(ports) == count:
            return ports
    raise RuntimeError(
        f"only {len(ports)} ports between {end - SLICE} and {end} are free, and {count} are wanted"
    )


def free_port() -> int:
    return free_ports(1)[0]
