"""An Executor that stays warm between commands: `--serve SOCKET` keeps one, `--server SOCKET` asks it.

Starting an executor means importing torch and Triton, and on a GPU making contexts: seconds, for a kernel
that is judged in a fraction of one. A server pays for that once. It listens on a socket in the file system
that only its owner may open, so it is as open as the owner's own files.

A connection carries one request, a line of JSON: {"task": {"name", "source"}, "sources": [candidate, ..]}.
The answer is a line of JSON for each candidate, in order: the fields of its Verdict.
"""

import contextlib
import json
import os
import socket
import threading
from collections.abc import Iterator

from nanotriton.executor.executor import Executor
from nanotriton.tasks.task import Task
from nanotriton.verdict import Verdict


def serve(executor: Executor, path: str) -> None:
    """Answer requests until the process is interrupted.

    Raises OSError where the socket can't be made, FileExistsError if a server already answers there.
    """
    if os.path.exists(path):
        with contextlib.suppress(ConnectionRefusedError), _connected(path):
            raise FileExistsError(f"{path}: a server is there already")
        os.unlink(path)  # one that was killed has left it
    before = os.umask(0o177)
    try:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
    finally:
        os.umask(before)
    with listener:
        listener.listen()
        print(f"executor: ready at {path}", flush=True)
        try:
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=_answer, args=(executor, connection), daemon=True).start()
        finally:
            os.unlink(path)


def _answer(executor: Executor, connection: socket.socket) -> None:
    # whoever asked may go away at any time
    with connection, connection.makefile("rw", encoding="utf-8") as stream, contextlib.suppress(OSError):
        request = json.loads(stream.readline())
        task = Task(**request["task"])
        futures = [executor.submit(task, source) for source in request["sources"]]
        for future in futures:
            stream.write(future.result().to_json() + "\n")
            stream.flush()


def ask(path: str, task: Task, sources: list[str]) -> Iterator[Verdict]:
    """The verdicts of a server, in order.

    Raises ValueError (one line) if none answers at `path`, or if it ends before it has answered.
    """
    try:
        connection = _connected(path)
    except OSError as error:
        raise ValueError(f"no server answers at {path}: {error.strerror}; start one with --serve") from None
    request = {"task": {"name": task.name, "source": task.source}, "sources": sources}
    with connection, connection.makefile("rw", encoding="utf-8") as stream:
        stream.write(json.dumps(request) + "\n")
        stream.flush()
        for _ in sources:
            line = stream.readline()
            if not line:
                raise ValueError(f"the server at {path} ended before it had answered")
            yield Verdict.from_json(line)


def _connected(path: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(path)
    except OSError:
        connection.close()
        raise
    return connection
