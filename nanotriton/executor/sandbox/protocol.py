"""The executor's processes talk by messages over sockets, and a child answers in a memory file.

A child's answer goes straight to its worker, through a memory file that the worker owns (`Report`), with a
size limit and in a format that is parsed and never unpickled. The zygote between them never looks at it.
"""

import fcntl
import json
import logging
import os
import shutil
import socket
import struct
import time
from dataclasses import dataclass, field

# Memory shared by worker and executor: the job that computes, when it is overdue (monotonic), its stage.
BEACON = struct.Struct("qd16s")
LOG = logging.getLogger(__name__)
LOG_BYTES = 1 << 20  # that a child may print
MESSAGE_BYTES = 128 << 10  # of a message: less than what a Unix socket takes at once, by Linux's default
HEADER_BYTES = 8 << 20  # of a result's header: as Python's objects JSON takes twenty times its size
LENGTH_BYTES = 8  # of the header's length
REMOVING = 10.0  # seconds that it may take to remove a folder
STAGE_BYTES = 16  # a result file opens with the stage that the child is in, padded


class Report:
    """The child's end of its result file.

    The file is `[stage, 16 bytes][length of the header, 8 bytes][header, JSON][payload]`.
    """

    def __init__(self, fd: int):
        self.fd = fd

    def begin(self) -> None:
        """From here on the candidate runs.

        A child that ends before is not the candidate's fault. Nothing that a candidate does can take the
        seal off.
        """
        fcntl.fcntl(2, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL)

    def stage(self, name: str) -> None:
        """Note the stage that the child is in."""
        os.pwrite(self.fd, name.encode().ljust(STAGE_BYTES)[:STAGE_BYTES], 0)

    def finish(self, header: dict, payload: bytes = b"") -> None:
        """Write the answer."""
        text = json.dumps(header).encode()
        data = memoryview(len(text).to_bytes(LENGTH_BYTES, "little") + text + payload)
        offset = STAGE_BYTES
        while data:
            written = os.pwrite(self.fd, data, offset)
            data = data[written:]
            offset += written


@dataclass
class Ended:
    """A child's end as its zygote saw it, and the answer that the child left, which may be anything."""

    id: int
    seconds: float
    cpu: float  # CPU seconds
    code: int | None = None  # exit status
    signal: int | None = None
    killed: str | None = None  # the zygote's reason to kill it: timeout, memory_limit, output_limit, threads
    stage: str = ""
    begun: bool = True  # whether it came to its candidate's code
    header: dict | None = None  # None: it left no answer that can be read
    payload: bytes = field(default=b"", repr=False)

    def read(self, fd: int, limit: int) -> "Ended":
        """Fill in stage, header and payload from a result file of at most `limit` bytes."""
        size = os.fstat(fd).st_size
        data = os.pread(fd, min(size, limit + 1), 0)
        self.stage = data[:STAGE_BYTES].decode("ascii", "replace").strip()
        start = STAGE_BYTES + LENGTH_BYTES
        end = start + int.from_bytes(data[STAGE_BYTES:start], "little")
        if not start < end <= len(data) <= limit or end - start > HEADER_BYTES:
            if size > limit:
                self.killed = self.killed or "output_limit"
            return self
        try:
            header = json.loads(data[start:end])
        except (ValueError, RecursionError):
            return self
        if isinstance(header, dict):
            self.header, self.payload = header, data[end:]
        return self


def send(sock: socket.socket, message: dict, fds: tuple[int, ...] = ()) -> None:
    """Send a message, with file descriptors. ValueError if the other side could not read all of it."""
    data = json.dumps(message).encode()
    if len(data) > MESSAGE_BYTES:
        raise ValueError(f"a message of {len(data)} bytes, more than {MESSAGE_BYTES}")
    socket.send_fds(sock, [data], list(fds))


def receive(sock: socket.socket) -> tuple[dict | None, list[int]]:
    """The next message and its file descriptors; (None, []) when the other side is gone."""
    try:
        data, fds, _, _ = socket.recv_fds(sock, MESSAGE_BYTES, 16)
    except ConnectionError:
        return None, []
    return (json.loads(data) if data else None), fds


def memory_file(name: str, value: dict) -> int:
    """A descriptor of `value` as JSON, to be read from its start: it may be larger than a message."""
    fd = os.memfd_create(name)
    with open(fd, "w", closefd=False) as file:
        json.dump(value, file)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def remove_folder(path: str) -> None:
    """Remove a folder that dying children may still be writing to for a moment."""
    deadline = time.monotonic() + REMOVING
    while os.path.exists(path) and time.monotonic() < deadline:
        shutil.rmtree(path, ignore_errors=True)
