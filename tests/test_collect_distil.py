"""Route distil against a scripted teacher over real HTTP: right, wrong then right, never right, slow,
rate-limited, malformed; killed and started again.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from nanotriton.collect.compose.compose import compose
from nanotriton.collect.distil import converse, knowledge, opening
from nanotriton.config import ConfigError
from nanotriton.endpoint.answer import Later
from nanotriton.endpoint.client import Client
from nanotriton.tasks.task import Task

ROOT = Path(__file__).parents[1]
MODULE = """\
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) * {number}


def get_inputs():
    return [torch.randn(5, 33)]


def get_init_inputs():
    return []
"""
RIGHT, WRONG = "```python\nclass ModelNew: pass\n```", "```python\nclass ModelNew: wrong = 1\n```"


class Server(ThreadingHTTPServer):
    """Answers with what a script says: a text, a status code, raw bytes, or a number of seconds to wait
    before the next.
    """

    daemon_threads = True

    def __init__(self, script):
        self.script, self.seen = script, []
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        models = json.dumps({"data": [{"id": "the-model"}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(models)))
        self.end_headers()
        self.wfile.write(models)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append(body["messages"])
        said = (
            self.server.script(body["messages"])
            if callable(self.server.script)
            else self.server.script.pop(0)
        )
        if isinstance(said, float):
            time.sleep(said)
            said = RIGHT
        if isinstance(said, int):
            self.send_error(said)
            return
        answer = (
            said
            if isinstance(said, bytes)
            else json.dumps(
                {
                    "choices": [{"message": {"content": said}}],
                    "usage": {"prompt_tokens": 7, "completion_tokens": 3},
                }
            ).encode()
        )
        try:
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)
        except OSError:
            pass  # who asked has given up

    def log_message(self, *arguments):
        pass


def judge(code):
    return ("wrong_value", "output[0] is 1; the reference says 2") if "wrong" in code else ("correct", "")


def talk(script, attempts=3, timeout=5.0):
    server = Server(script)
    teacher = Client(server.url, "m", timeout=timeout, backoff=0.01)
    found = converse(teacher, MODULE.format(number=2), judge, attempts)
    server.shutdown()
    return found, server.seen


def test_right_at_once():
    found, seen = talk([RIGHT])
    assert (found.status, found.attempts, found.retries) == ("correct", 1, 0)
    assert found.solution.strip() == "class ModelNew: pass" and (
        found.prompt_tokens,
        found.completion_tokens,
    ) == (7, 3)
    assert seen[0][0]["role"] == "system" and MODULE.format(number=2).strip() in seen[0][-1]["content"]


def test_wrong_then_right_after_the_executors_message():
    found, seen = talk([WRONG, RIGHT])
    assert (found.status, found.attempts, found.completion_tokens) == ("correct", 2, 6)
    assert "the reference says 2" in seen[1][-1]["content"] and "wrong = 1" in seen[1][-2]["content"]


def test_never_right_ends_after_its_attempts_and_has_no_solution():
    found, seen = talk([WRONG, "no code at all", WRONG])
    assert (found.status, found.attempts, found.solution, len(seen)) == ("wrong_value", 3, "", 3)
    assert "no ```python block" in seen[2][-1]["content"]


@pytest.mark.parametrize(
    "trouble",
    [429, 503, b"{not json", b'{"choices": []}', b'{"choices": [{"message": {"content": 3}}]}', 1.5],
)
def test_a_request_that_fails_in_passing_is_made_again(trouble):
    found, _ = talk([trouble, RIGHT], timeout=0.5)
    assert (found.status, found.attempts, found.retries) == ("correct", 1, 1)


def test_an_answer_without_text_is_an_attempt():
    null = b'{"choices": [{"message": {"content": null}, "finish_reason": "length"}]}'
    found, seen = talk([null, RIGHT])
    assert (found.status, found.attempts, found.retries) == ("correct", 2, 0)
    assert "no text (finish_reason length)" in seen[1][-1]["content"] and seen[1][-2]["content"]


def test_a_conversation_that_is_refused_ends_and_the_run_goes_on():
    too_long = lambda messages: 400 if len(messages) > 4 else WRONG  # what is sent back makes it too long
    found, _ = talk(too_long)
    assert (found.status, found.attempts, found.solution) == ("refused", 2, "")


def test_a_server_that_never_answers_and_one_that_refuses_are_errors_of_one_line():
    options = dict(backoff=0.001, retries=2)
    server = Server(lambda messages: 429)
    with pytest.raises(Later, match="HTTP 429"):
        converse(Client(server.url, "m", **options), "x", judge, 1)
    server.script = lambda messages: 401
    with pytest.raises(ConfigError, match="HTTP 401"):
        converse(Client(server.url, "m", **options), "x", judge, 1)
    server.shutdown()
    with pytest.raises(Later, match="refused"):
        converse(Client("http://127.0.0.1:1/v1", "m", **options), "x", judge, 1)


def test_knowledge_is_about_the_operators_at_hand():
    assert (
        "running maximum" in knowledge("F.scaled_dot_product_attention(q, k, v)")
        and knowledge("torch.relu(x)") == ""
    )
    assert [m["role"] for m in opening("x")] == ["system", "user", "assistant", "user"]


def answers(messages):
    """A teacher that knows the composer's answer, and takes half a second."""
    time.sleep(0.5)
    source = messages[-1]["content"].split("```python\n")[1].split("```")[0]
    return f"```python\n{compose(Task('t', source)).source}```"


@pytest.mark.slow
def test_killed_and_started_again_loses_and_repeats_nothing(tmp_path):
    folder = tmp_path / "modules"
    folder.mkdir()
    for i in range(6):
        (folder / f"m{i}.py").write_text(MODULE.format(number=i + 2))
    server = Server(answers)
    command = [
        sys.executable,
        "collect_data.py",
        "--route",
        "distil",
        "--endpoint",
        server.url,
        "--modules",
        str(folder),
        "--out",
        str(tmp_path / "out"),
        "--workers",
        "1",
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL, start_new_session=True
    )
    journal = tmp_path / "out" / "journal.jsonl"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (journal.exists() and journal.read_bytes().count(b"\n") >= 2):
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    done = {json.loads(line)["key"] for line in journal.read_bytes().split(b"\n")[:-1] if line}
    assert len(done) >= 2
    with open(journal, "ab") as f:
        f.write(b'{"key": "half a li')  # as if it had been killed while it wrote
    before = len(server.seen)
    subprocess.run(command, cwd=ROOT, env=environment, check=True, stderr=subprocess.DEVNULL, timeout=200)
    server.shutdown()
    rows = [json.loads(line) for line in (tmp_path / "out" / "journal.jsonl").read_text().splitlines()]
    assert len(rows) == 6 and {r["status"] for r in rows} == {"kept"}
    assert len(server.seen) - before == 6 - len(done)  # nothing that was done is asked again
    pairs = [json.loads(line) for line in (tmp_path / "out" / "sft.jsonl").read_text().splitlines()]
    held = (tmp_path / "out" / "heldout.jsonl").read_text().splitlines()
    assert len(pairs) + len(held) == 6
