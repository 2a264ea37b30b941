"""Candidates from an endpoint: a local server that is slow, fails, limits rates and talks nonsense. Nothing is lost or counted twice."""

import email.utils
import json
import threading
import time

import pytest

from bench.channels.journal import Journal, path_of
from bench.channels.sources import Ask, Endpoint, Sampling, read_jsonl
from nanotriton.config import ConfigError
from nanotriton.endpoint.answer import Later, retry_after
from nanotriton.endpoint.client import Client
from nanotriton.tasks.prompt import of_text
from tests.chat_server import Server

ASKS = [Ask(f"1/{i}", s, of_text(f"problem {i}"), seed=100 * i + s) for i in range(1, 5) for s in range(3)]
ANSWER = {
    "choices": [{"message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}],
    "usage": {"completion_tokens": 1},
}


def good(body: dict) -> str:
    return json.dumps(
        {
            **ANSWER,
            "choices": [{"message": {"content": f"answer to {body['seed']}"}, "finish_reason": "stop"}],
        }
    )


def collect(server: Server, **options) -> tuple[dict, list[str]]:
    """Every ask's answer, and the failures. Saving one twice fails."""
    found = {}

    def save(ask, text, details):
        assert (ask.problem, ask.sample) not in found
        found[ask.problem, ask.sample] = text, details

    options = {"backoff": 0.005, "timeout": 5, "concurrency": 4} | options
    concurrency = options.pop("concurrency")
    endpoint = Endpoint(Client(server.url, "m", **options), Sampling(0.5, 0.9, 77), concurrency)
    return found, endpoint.run(ASKS, save)


def complete(found: dict) -> bool:
    return found.keys() == {(a.problem, a.sample) for a in ASKS} and all(
        found[a.problem, a.sample][0] == f"answer to {a.seed}" for a in ASKS
    )


def test_plain_answers_the_request_and_the_key(monkeypatch):
    monkeypatch.setenv("MY_KEY", "secret")
    with Server(lambda number, body: (200, {}, good(body))) as server:
        found, failures = collect(server, key_env="MY_KEY")
    assert complete(found) and not failures and len(server.requests) == len(ASKS)
    _, body, headers = server.requests[0]  # whichever thread came first
    assert headers["Authorization"] == "Bearer secret"
    asked = [body[k] for k in ("model", "temperature", "top_p", "max_tokens")]
    assert asked == ["m", 0.5, 0.9, 77]
    [ask] = [ask for ask in ASKS if ask.seed == body["seed"]]
    assert body["messages"] == [{"role": "user", "content": f"problem {ask.seed // 100}"}]
    assert found["1/1", 0][1] == {"finish_reason": "stop", "tokens": 1}


BAD = {
    "a server error": (500, {}, "oops"),
    "overloaded": (503, {}, ""),
    "not JSON": (200, {}, "<html>"),
    "half an answer": (200, {"X-Claim": "500"}, '{"choices": ['),
    "no choices": (200, {}, "{}"),
    "a list": (200, {}, "[1]"),
    "text that is none": (200, {}, json.dumps({"choices": [{"message": {"content": 3}}]})),
}


@pytest.mark.parametrize("kind", BAD)
def test_what_fails_is_asked_again(kind):
    with Server(lambda number, body: BAD[kind] if number % 3 == 0 else (200, {}, good(body))) as server:
        found, failures = collect(server, timeout=0.5)
    assert complete(found) and not failures
    assert len(server.requests) > len(ASKS)


def test_a_slow_answer_is_given_up_and_asked_again():
    def reply(number, body):
        if number == 0:
            threading.Event().wait(0.6)
        return 200, {}, good(body)

    with Server(reply) as server:
        found, failures = collect(server, timeout=0.2)
    assert complete(found) and not failures


def test_a_rate_limit_holds_everyone_back():
    pause = 0.3
    limited = []

    def reply(number, body):
        if number == 2:
            limited.append(time.monotonic())
            return 429, {"Retry-After": str(pause)}, "slow down"
        return 200, {}, good(body)

    with Server(reply) as server:
        found, failures = collect(server, concurrency=1)
    assert complete(found) and not failures and len(server.requests) == len(ASKS) + 1
    assert min(t for t, _, _ in server.requests if t > limited[0]) - limited[0] >= pause


def test_our_own_rate_limit():
    with Server(lambda number, body: (200, {}, good(body))) as server:
        found, _ = collect(server, per_minute=60 * 50, concurrency=8)
    times = sorted(t for t, _, _ in server.requests)
    assert complete(found) and times[-1] - times[0] >= 0.9 * (len(ASKS) - 1) / 50


def test_what_never_works_is_reported_and_the_rest_is_kept():
    with Server(
        lambda number, body: (500, {}, "no") if body["seed"] == 201 else (200, {}, good(body))
    ) as server:
        found, failures = collect(server, retries=2)
    assert len(found) == len(ASKS) - 1 and ("1/2", 1) not in found
    assert len(failures) == 1 and failures[0].startswith("problem 1/2, sample 1: HTTP 500: no")
    assert sum(body["seed"] == 201 for _, body, _ in server.requests) == 3


def test_a_refused_prompt_is_an_answer_without_code():
    with Server(
        lambda number, body: (400, {}, "too long") if body["seed"] == 402 else (200, {}, good(body))
    ) as server:
        found, failures = collect(server, concurrency=1)
    assert not failures and found["1/4", 2] == (
        "",
        {"finish_reason": "refused", "tokens": 0, "error": "HTTP 400: too long"},
    )


@pytest.mark.parametrize(
    ("status", "text"), [(401, "no such key"), (404, "no such model"), (400, "bad request")]
)
def test_a_mistake_ends_the_run_at_once(status, text):
    with (
        Server(lambda number, body: (status, {}, text)) as server,
        pytest.raises(ConfigError, match=f"HTTP {status}: {text}"),
    ):
        collect(server, concurrency=1)
    assert len(server.requests) == (2 if status == 400 else 1)  # is a harmless prompt refused as well?


def test_reasoning_comes_before_the_answer():
    message = {"content": "code", "reasoning_content": "hm"}
    with Server(lambda number, body: (200, {}, json.dumps({"choices": [{"message": message}]}))) as server:
        found, _ = collect(server)
    assert found["1/1", 0][0] == "<think>hm</think>\ncode"


def test_the_model_is_the_one_that_the_server_lists():
    with Server(lambda number, body: (200, {}, good(body))) as server:
        assert Client(server.url + "/chat/completions").model == "the-model"
    with pytest.raises(ConfigError, match="name one with --served-model"):
        Client(server.url, timeout=1)
    with pytest.raises(ConfigError, match="a URL such as"):
        Client("localhost:8000", "m")


def test_nobody_listens():
    endpoint = Endpoint(Client("http://127.0.0.1:9/v1", "m", retries=1, backoff=0.001), Sampling())
    failures = endpoint.run(ASKS[:2], lambda *_: pytest.fail("nothing can have come"))
    assert len(failures) == 2 and "refused" in failures[0].lower()


def test_retry_after():
    asked = lambda value: retry_after({"Retry-After": value})
    assert asked("1.5") == 1.5 and asked("-3") == 0.0
    assert 50 < asked(email.utils.formatdate(time.time() + 60, usegmt=True)) <= 61
    assert retry_after({}) is asked("soon") is asked("1e9") is None
    assert retry_after({"Retry-After-Ms": "1500", "Retry-After": "2"}) == 1.5


def test_later_keeps_what_the_server_asked_for():
    assert Later("x", 2.0).wait == 2.0 and Later("x").wait is None


# ---- the journal, and files ----


def line(problem: str, sample: int, **more) -> dict:
    return {"kind": "sample", "problem": problem, "sample": sample, **more}


def test_a_journal_continues_after_half_a_line(tmp_path):
    out = tmp_path / "r.json"
    journal = Journal(out, {"model": "m"})
    journal.append(line("1/1", 0, completion="a"))
    journal.file.close()
    with open(path_of(out, 0), "ab") as file:
        file.write(b'{"kind": "sample", "problem": "1/1", "sam')
    journal = Journal(out, {"model": "m"}).read()
    journal.append(line("1/2", 0, completion="b"))
    journal.append(line("1/1", 0, completion="the first counts"))
    journal.file.close()
    other = Journal(out, {"model": "m"}, rank=1).read()
    assert (
        other.get("sample", "1/1", 0)["completion"] == "a"
        and other.get("sample", "1/2", 0)["completion"] == "b"
    )
    assert other.get("sample", "1/3", 0) is None


def test_a_journal_is_one_run_and_one_process(tmp_path):
    out = tmp_path / "r.json"
    first = Journal(out, {"model": "m"})
    with pytest.raises(ConfigError, match="still going"):
        Journal(out, {"model": "m"})
    first.file.close()
    first = Journal(out, {"model": "mended"}).read()  # nothing had come of the other one
    first.append(line("1/1", 0))
    first.file.close()
    with pytest.raises(ConfigError, match="with --model mended: start it like that"):
        Journal(out, {"model": "other"}).read()
    path_of(out, 3).write_text('{"kind": "sample", "problem": "1/1", "sample": 0}\n')
    assert Journal(out, {"model": "other"}, fresh=True).read().entries == {}
    path_of(out, 2).write_text('{"kind": "sample"}\n')
    with pytest.raises(ConfigError, match=r"journal.2.jsonl line 1: not a line"):
        Journal(out, {"model": "other"}, rank=1).read()
    out.write_text("{}")
    with pytest.raises(ConfigError, match="a file is there"):
        Journal(out / "below.json", {})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": 1}\n{"b": ', "line 2: not JSON (the last line is cut short)"),
        ('{"a": 1}\nnonsense\n{}', "line 2: not JSON"),
        ("", "it is empty"),
        ("3\n", "entry 1: an object is expected"),
        ("[1", "not JSON"),
    ],
)
def test_unreadable_jsonl_is_one_line(tmp_path, text, said):
    path = tmp_path / "f.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError) as caught:
        read_jsonl(path)
    assert said in str(caught.value) and str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_readable_jsonl(tmp_path):
    path = tmp_path / "f.jsonl"
    path.write_text('{"a": 1}\n\n{"a": 2}')
    assert [row["a"] for row in read_jsonl(path)] == [1, 2]
    path.write_text('[{"a": 1}]')
    assert read_jsonl(path) == [{"a": 1}]
    with pytest.raises(ValueError, match="cannot read"):
        read_jsonl(tmp_path / "none.jsonl")
