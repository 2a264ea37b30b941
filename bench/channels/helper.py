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
from collections.abc import Callable
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

    def __enter__(self) -> "Helper":
        return self

    def __exit__(self, *exc) -> None:
        self.stop()

    def ask(self, request: dict) -> dict:
        """The module's answer; {"error": one line} where there is none."""
        if self.process is None:
            self.process = subprocess.Popen(
                self.command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
            late = not select.select([self.process.stdout], [], [], self.seconds)[0]
            line = b"" if late else self.process.stdout.readline()
        except BrokenPipeError:
            late, line = False, b""
        if line.endswith(b"\n"):
            return json.loads(line)
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
