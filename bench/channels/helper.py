"""A process for work that must not happen in this one: it takes the GPU, it may crash, it may hang.

    with Helper("bench.channels.compiled", seconds=300) as helper:
        helper.ask({"source": ...})   # what the module's `answer(request)` returns, or {"error": "one line"}

Requests and answers are JSON, one line each.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Helper:
    """Runs `python -m MODULE ARGUMENTS`, whose main is `serve`.

    The process is killed when it takes more than `seconds` for an answer. One that was killed, or died, is
    started again for the next request.
    """

    def __init__(self, module: str, seconds: float, *arguments: str):
        self.command = [sys.executable, "-m", module, *arguments]
        self.seconds = seconds
        self.process: subprocess.Popen | None = None
        self.due = 0.0  # when the answer to the last request is late, on the monotonic clock

    def __enter__(self) -> "Helper":
        return self

    def __exit__(self, *exc) -> None:
        self.stop()

    def fileno(self) -> int:
        """Of the pipe on which the answer comes."""
        return self.process.stdout.fileno()

    def ask(self, request: dict) -> dict:
        """The module's answer; {"error": one line} where there is none."""
        self.send(request)
        select.select([self], [], [], self.seconds)
        return self.receive()

    def send(self, request: dict) -> None:
        """Begin to ask. `receive` has the answer once there is something to read, or the time is over."""
        if self.process is None:
            self.process = subprocess.Popen(
                self.command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
        self.due = time.monotonic() + self.seconds
        with contextlib.suppress(BrokenPipeError):  # it has died: there is an end to read
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()

    def receive(self) -> dict:
        late = not select.select([self], [], [], 0)[0]
        line = b"" if late else self.process.stdout.readline()
        if line.endswith(b"\n"):
            found = json.loads(line)
            if "CUDA error" in found.get("error", ""):
                self.stop()  # its CUDA context is lost
            return found
        code = self.stop()
        if late:
            return {"error": f"not done after {self.seconds:g} s"}
        return {"error": f"its process died (exit status {code})"}

    def stop(self) -> int | None:
        """End the process and whatever it started -> its exit status."""
        process, self.process = self.process, None
        if process is None:
            return None
        with contextlib.suppress(OSError):
            process.stdin.close()
        if process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.2)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()
        return process.wait()


def ask_all(module: str, seconds: float, requests: dict[str, dict], count: int) -> Iterator[tuple[str, dict]]:
    """(name, answer) of every named request, as they come, from at most `count` helpers at a time."""
    waiting = deque(requests.items())
    asked: dict[Helper, str] = {}
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(Helper(module, seconds)) for _ in range(min(count, len(requests)))]
        while waiting or asked:
            while waiting and idle:
                helper = idle.pop()
                asked[helper], request = waiting.popleft()
                helper.send(request)
            left = min(helper.due for helper in asked) - time.monotonic()
            ready, _, _ = select.select(list(asked), [], [], max(0.0, left))
            for helper in ready or [h for h in asked if h.due <= time.monotonic()]:
                idle.append(helper)
                yield asked.pop(helper), helper.receive()


def serve(answer: Callable[[dict], dict]) -> None:
    """Answer the requests on stdin until it closes, or until nobody reads the answers.

    Whatever else writes to stdout meanwhile is written to stderr instead.
    """
    out = os.dup(1)
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            found = answer(json.loads(line))
        except Exception as error:
            found = {"error": " ".join(f"{type(error).__name__}: {error}".split())[:300]}
        try:
            os.write(out, json.dumps(found).encode() + b"\n")
        except BrokenPipeError:
            return
