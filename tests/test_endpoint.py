"""The client of chat-completions servers: what they send back, in the forms that servers have, and what it is taken for."""

import json
import ssl
import subprocess
import threading

import pytest

from bench.channels.journal import Journal, path_of
from bench.channels.sources import Ask, Endpoint, Sampling
from nanotriton.config import ConfigError
from nanotriton.endpoint.answer import Later, Refused, read
from nanotriton.endpoint.client import Client, is_local, model_ids
from nanotriton.tasks.prompt import of_text
from tests.chat_server import Server, says

HI = [{"role": "user", "content": "hi"}]
PARAMETERS = {"seed": 7, "temperature": 0.5, "top_p": 0.9, "max_tokens": 77}


def client(server: Server, **options) -> Client:
    return Client(server.url, "m", **({"backoff": 0.001, "retries": 2, "timeout": 5} | options))


def always(*reply):
    return Server(lambda number, body: reply)


# ---- what is an answer ----


@pytest.mark.parametrize(
    ("message", "text", "error"),
    [
        ({"content": "plain"}, "plain", None),
        ({"content": ""}, "", "the answer has no text (finish_reason length)"),
        ({}, "", "the answer has no text (finish_reason length)"),
        ({"content": None, "thinking": "hm"}, "<think>hm", "the answer has no text (finish_reason length)"),
        ({"content": None, "refusal": "I can't"}, "", "the model declined: I can't (finish_reason length)"),
        ({"content": "a", "reasoning_content": "hm"}, "<think>hm</think>\na", None),
        ({"content": "a", "reasoning": "hm", "reasoning_content": None}, "<think>hm</think>\na", None),
        ({"content": "a", "thinking": "hm"}, "<think>hm</think>\na", None),
        ({"content": "a", "reasoning_details": [{"type": "reasoning.text", "text": "hm"}]}, "<think>hm</think>\na", None),
        ({"content": "a", "thinking_blocks": [{"type": "thinking", "thinking": "hm"}]}, "<think>hm</think>\na", None),
        ({"content": [{"type": "text", "text": "a"}, {"type": "output_text", "text": "b"}]}, "ab", None),
        (
            {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "a"}]},
            "<think>hm</think>\na",
            None,
        ),
        ({"content": {"type": "text", "text": {"value": "a"}}}, "a", None),
        ({"content": "cut \ud83d"}, "cut \ufffd", None),
    ],
)  # fmt: skip
def test_an_answer_is_read_in_every_form(message, text, error):
    body = json.dumps({"choices": [{"message": message, "finish_reason": "length"}]}).encode()
    answer = read(body, {})
    assert (answer.text, answer.error, answer.finish_reason) == (text, error, "length")


def test_bytes_that_are_no_text_and_a_mark_in_front_do_not_lose_an_answer():
    marked = b"\xef\xbb\xbf" + says("a").encode()
    assert read(marked, {}).text == "a"
    surrogate = b'{"choices": [{"message": {"content": "cut \xed\xa0\xbd"}}]}'
    assert read(surrogate, {}).text.startswith("cut")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{}", "no choices"),
        (b'{"choices": null}', "no choices"),
        (b'{"choices": [{"message": {"content": 3}}]}', "content is no text"),
        (b'data: {"choices": []}\n\n', "an event stream"),
        (b"<html><title>Sign in\n here</title>", "not JSON but a page: Sign in here"),
        (b"{", "not JSON"),
        (b'{"error": "busy"}', "busy"),
        (b'{"error": {"message": "overloaded", "code": 503}}', "overloaded (503)"),
        (
            b'{"choices": [{"error": {"message": "cut", "code": 502}, "message": {"content": "x"}}]}',
            "cut (502)",
        ),
        (b'{"choices": [{"finish_reason": "error", "message": {"content": "x"}}]}', "broke off"),
        (b'{"object": "error", "message": "engine died"}', "engine died"),
    ],
)
def test_what_is_no_answer_is_asked_again_and_says_what_it_is(body, said):
    with pytest.raises(Later) as error:
        read(body, {})
    assert said in str(error.value)


def test_an_error_inside_a_success_counts_as_the_status_it_names():
    with pytest.raises(Refused, match="too long"):
        read(b'{"error": {"message": "too long", "code": "400"}}', {})
    with pytest.raises(ConfigError, match="no such key"):
        read(b'{"error": {"message": "no such key", "code": 401}}', {})


def test_a_wait_of_nothing_does_not_use_up_the_tries_at_once():
    waits = []
    with Server(
        lambda n, body: (429, {"Retry-After": "0"}, "later") if n < 3 else (200, {}, says("a"))
    ) as server:
        asked = client(server, retries=3, backoff=1.0)
        asked.stop.wait = waits.append
        assert asked.ask(HI).text == "a"
    pauses = [seconds for seconds in waits if seconds > 0]
    assert len(pauses) == 3 and pauses[2] >= 4 * 0.5  # each is twice as long, give or take half


# ---- what is asked again, what is refused, what ends the run ----


@pytest.mark.parametrize("status", [408, 429, 500, 502, 520, 521, 523, 525, 527, 529, 530, 599])
def test_a_server_in_trouble_is_asked_again(status):
    with Server(lambda n, body: (status, {}, "oops") if n < 2 else (200, {}, says("a"))) as server:
        answer = client(server).ask(HI)
    assert (answer.text, answer.retries, len(server.requests)) == ("a", 2, 3)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (429, {"error": {"message": "check your billing", "code": "insufficient_quota"}}),
        (402, {"error": "no money"}),
        (401, {"error": "no such key"}),
        (403, {"detail": "not your model"}),
        (501, {"message": "what is this"}),
    ],
)
def test_what_no_request_mends_ends_the_run_at_once(status, body):
    with always(status, {}, json.dumps(body)) as server, pytest.raises(ConfigError) as error:
        client(server).ask(HI)
    assert str(error.value).startswith(f"--endpoint {server.url}: HTTP {status}: ")
    assert len(server.requests) == 1 and "\n" not in str(error.value)


REFUSALS = [
    (400, json.dumps({"error": {"message": "maximum context length is 10", "param": "messages"}})),
    (413, "too large"),
    (422, json.dumps({"detail": [{"loc": ["body", "messages"], "msg": "too many"}]})),
    (403, json.dumps({"error": {"message": "Your input was flagged", "code": 403}})),
    (500, json.dumps({"error": {"code": 500, "message": "Context size has been exceeded."}})),
    (451, "not here"),
]


@pytest.mark.parametrize(("status", "text"), REFUSALS)
def test_a_refusal_is_that_requests_alone_if_a_harmless_one_is_answered(status, text):
    """Also where it is the first that the server says."""
    reply = lambda n, body: (status, {}, text) if "long" in str(body["messages"]) else (200, {}, says("a"))
    with Server(reply) as server:
        asked = client(server)
        for _ in range(2):
            with pytest.raises(Refused, match=f"HTTP {status}"):
                asked.ask([{"role": "user", "content": "long"}])
        assert asked.ask(HI).text == "a" and len(server.requests) == 4  # one of them finds out
    with always(status, {}, text) as server, pytest.raises(ConfigError, match=f"HTTP {status}"):
        client(server).ask(HI)


# ---- parameters ----


def refuses(names: dict[str, tuple[int, str]]):
    """A server that refuses requests with one of these parameters, with these words."""

    def reply(number, body):
        for name, (status, said) in names.items():
            if name in body:
                return status, {}, said
        return 200, {}, says("a")

    return reply


UNKNOWN = {
    "seed": (400, json.dumps([{"error": {"message": 'Unknown name "seed": Cannot find field.', "code": 400}}])),
    "temperature": (
        400,
        json.dumps({"error": {"message": "Unsupported value: 'temperature' does not support 0.5. Only 1 is.", "param": "temperature"}}),
    ),
    "top_p": (422, json.dumps({"detail": [{"type": "extra_forbidden", "loc": ["body", "top_p"], "msg": "Extra inputs are not permitted"}]})),
    "max_tokens": (400, json.dumps({"error": {"message": "max_tokens is deprecated: use another", "param": None}})),
}  # fmt: skip


def test_what_the_server_does_not_know_is_left_out_and_said_once():
    told = []
    with Server(refuses(UNKNOWN)) as server:
        asked = client(server, tell=told.append, retries=0)
        assert [asked.ask(HI, **PARAMETERS).text for _ in range(2)] == ["a", "a"]
    last = server.requests[-1][1]
    assert last == {"model": "m", "messages": HI, "max_completion_tokens": 77}
    assert len(server.requests) == 2 + 4 and len(told) == 4 and set(asked.left_out) == set(UNKNOWN)
    assert sum("max_completion_tokens is sent instead" in line for line in told) == 1


def test_of_two_that_exclude_each_other_the_less_missed_goes():
    words = "`temperature` and `top_p` cannot both be specified for this model"
    reply = lambda n, body: (
        (400, {}, words) if {"temperature", "top_p"} <= body.keys() else (200, {}, says("a"))
    )
    with Server(reply) as server:
        asked = client(server, tell=lambda line: None)
        asked.ask(HI, **PARAMETERS)
    assert set(asked.left_out) == {"top_p"}


def test_a_value_that_is_too_large_is_no_unknown_parameter():
    words = "max_tokens is too large: 77. This model supports at most 40 completion tokens"
    with always(400, {}, words) as server, pytest.raises(ConfigError, match="too large"):
        client(server).ask(HI, **PARAMETERS)
    both = {
        "max_tokens": UNKNOWN["max_tokens"],
        "max_completion_tokens": (400, "unknown field max_completion_tokens"),
    }
    with Server(refuses(both)) as server, pytest.raises(ConfigError, match="max_completion_tokens"):
        client(server, tell=lambda line: None).ask(HI, max_tokens=3)  # not without any limit


@pytest.mark.parametrize(
    "words",
    [
        "System role not supported",
        "'messages[0].role' does not support 'system'",
        "Conversation roles must alternate user/assistant/user/assistant/...",
    ],
)
def test_a_system_message_that_is_refused_opens_the_users(words):
    refuse = lambda n, body: (
        (400, {}, words) if body["messages"][0]["role"] == "system" else (200, {}, says("a"))
    )
    told = []
    with Server(refuse) as server:
        answer = client(server, tell=told.append).ask([{"role": "system", "content": "Be brief."}, *HI])
    assert answer.text == "a" and len(told) == 1
    assert server.requests[-1][1]["messages"] == [{"role": "user", "content": "Be brief.\n\nhi"}]


# ---- the key, and other addresses ----


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_another_origin_gets_nothing(monkeypatch, status):
    monkeypatch.setenv("MY_KEY", "secret")
    with always(200, {}, says("a")) as other:
        target = f"{other.url}/chat/completions"
        with always(status, {"Location": target}, "") as server, pytest.raises(ConfigError) as error:
            client(server, key_env="MY_KEY").ask(HI)
        moved = (status, {"Location": f"{other.url}/models"}, "")
        with (
            Server(lambda n, body: None, models=moved) as server,
            pytest.raises(ConfigError, match="sends requests on"),
        ):
            Client(server.url, key_env="MY_KEY")
    assert target in str(error.value) and not other.requests and not other.listed


@pytest.mark.parametrize("status", [301, 307, 308])
def test_a_redirect_within_the_origin_is_followed_with_the_request_as_it_was(monkeypatch, status):
    monkeypatch.setenv("MY_KEY", "secret")
    reply = lambda n, body: (
        (status, {"Location": "/v1/chat/completions/"}, "") if n == 0 else (200, {}, says("a"))
    )
    with Server(reply) as server:
        assert client(server, key_env="MY_KEY").ask(HI, seed=3).text == "a"
    first, second = server.requests
    assert first[1] == second[1] and second[2]["Authorization"] == "Bearer secret"


def test_a_key_from_a_file_loses_its_line_break_and_a_broken_one_is_one_line(monkeypatch):
    monkeypatch.setenv("MY_KEY", " secret\r\n")
    with always(200, {}, says("a")) as server:
        client(server, key_env="MY_KEY").ask(HI)
        assert server.requests[0][2]["Authorization"] == "Bearer secret"
        for key in ("two\nlines", "schlüssel"):
            monkeypatch.setenv("MY_KEY", key)
            with pytest.raises(ConfigError, match="the key in MY_KEY") as error:
                client(server, key_env="MY_KEY")
            assert key not in str(error.value)


def test_a_certificate_that_nobody_vouches_for_and_a_server_without_tls_are_said_at_once(tmp_path):
    key, certificate = tmp_path / "k.pem", tmp_path / "c.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate,
         "-days", "2", "-subj", "/CN=127.0.0.1"], check=True, capture_output=True,
    )  # fmt: skip
    server = always(200, {}, says("a"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.http.socket = context.wrap_socket(server.http.socket, server_side=True)
    with server:
        url = server.url.replace("http:", "https:")
        for model in ("", "m"):
            with pytest.raises(ConfigError, match="certificate is not trusted") as error:
                Client(url, model, retries=50, backoff=60).ask(HI)
            assert "--served-model" not in str(error.value)
    with always(200, {}, says("a")) as server, pytest.raises(ConfigError, match="no TLS connection"):
        Client(server.url.replace("http:", "https:"), "m", retries=50, backoff=60).ask(HI)
    with pytest.raises(ConfigError, match="no URL"):
        Client("http://127.0.0.1:port/v1", "m").ask(HI)


def test_a_query_in_the_url_goes_behind_each_path():
    seen = []
    with always(200, {}, says("a")) as server:
        asked = Client(server.url + "/?api-version=7")
        call = asked.opener.open
        asked.opener.open = lambda request, timeout: (
            seen.append(request.full_url) or call(request, timeout=timeout)
        )
        assert asked.ask(HI).text == "a"
    assert seen == [server.url + "/chat/completions?api-version=7"]


def test_no_proxy_stands_before_this_machine(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    with always(200, {}, says("a")) as server:
        assert Client(server.url).ask(HI).text == "a"
    assert is_local("http://localhost:8000/v1") and is_local("http://[::1]:1/v1")
    assert not is_local("http://127.example.org") and not is_local("https://localhost.example.org/v1")


# ---- which model ----


def test_of_several_models_the_first_is_asked_and_that_is_said():
    told = []
    with Server(lambda n, body: None, {"data": [{"id": "a"}, {"id": "b"}]}) as server:
        assert Client(server.url, tell=told.append).model == "a"
    assert told == [f"--endpoint {server.url} lists 2 models; a is asked, --served-model names another"]


def test_a_list_of_models_in_every_form():
    assert (
        model_ids({"data": [{"id": "a"}, {"id": "b"}]}) == model_ids([{"id": "a"}, {"id": "b"}]) == ["a", "b"]
    )
    assert model_ids({"models": [{"name": "a"}]}) == model_ids(["a"]) == ["a"]
    assert model_ids({"data": []}) == []
    assert (
        model_ids({"data": [{"object": "model"}]})
        is model_ids("a")
        is model_ids({"data": {"id": "a"}})
        is None
    )


@pytest.mark.parametrize(
    ("models", "said"),
    [
        ({"data": []}, "it lists no model"),
        ({"data": "a"}, "its list of models has another form"),
        ((200, {}, "<title>llama.cpp</title>"), "a page: llama.cpp"),
        ((404, {}, "Not Found"), "HTTP 404: Not Found"),
    ],
)
def test_an_odd_list_of_models_is_one_line(models, said):
    with Server(lambda n, body: None, models) as server, pytest.raises(ConfigError) as error:
        Client(server.url)
    assert said in str(error.value) and "\n" not in str(error.value)
    assert "--served-model" in str(error.value) or said.startswith("HTTP")


def test_a_url_without_its_version_says_what_is_missing():
    with always(404, {}, json.dumps({"detail": "Not Found"})) as server, pytest.raises(ConfigError) as error:
        Client(server.url.removesuffix("/v1"), "m").ask(HI)
    assert "HTTP 404: Not Found (the URLs of most servers end in /v1)" in str(error.value)


# ---- a benchmark's candidates ----


def test_answers_on_their_way_when_the_run_ends_are_kept():
    arrived = threading.Barrier(3)

    def reply(number, body):
        arrived.wait(5)  # all three are on their way
        if body["seed"] == 1:
            return 401, {}, "the token has expired"
        endpoint.client.stop.wait(5)  # the run ends first, and then this answer comes
        return 200, {}, says(f"answer to {body['seed']}")

    found = {}
    asks = [Ask("1/1", seed, of_text("x"), seed) for seed in range(9)]
    with Server(reply) as server:
        endpoint = Endpoint(client(server), Sampling(), concurrency=3)
        with pytest.raises(ConfigError, match="HTTP 401: the token has expired"):
            endpoint.run(asks, lambda ask, text, details: found.update({ask.sample: text}))
    assert len(server.requests) == 3 and found == {0: "answer to 0", 2: "answer to 2"}


def test_a_sample_says_what_became_of_it():
    seen = []
    replies = {
        0: (200, {}, says(None, "length", reasoning="hm")),
        1: (400, {}, "a filter objects"),
        2: (200, {}, json.dumps(json.loads(says("code")) | {"model": "m-2026"})),
    }
    with Server(
        lambda n, body: replies[body["seed"]] if "Say hi." not in str(body) else replies[2]
    ) as server:
        endpoint = Endpoint(client(server), Sampling(variables={"enable_thinking": False}), concurrency=1)
        asks = [Ask("1/1", seed, of_text("x"), seed) for seed in range(3)]
        assert endpoint.run(asks, lambda ask, text, details: seen.append((text, details))) == []
    (null, null_details), (refused, refusal), (code, details) = seen
    assert null == "<think>hm" and refused == "" and code == "code"
    assert null_details["finish_reason"] == "length" and "no text" in null_details["error"]
    assert refusal == {"finish_reason": "refused", "tokens": 0, "error": "HTTP 400: a filter objects"}
    assert details == {"finish_reason": "stop", "tokens": 5, "model": "m-2026"}
    assert server.requests[0][1]["chat_template_kwargs"] == {"enable_thinking": False}


def test_a_journal_is_of_one_served_model(tmp_path):
    out = tmp_path / "r.json"
    with Journal(out, {"n": 1}) as journal:
        journal.asks("one")
    with Journal(out, {"n": 1}) as journal:  # no answer came of it: another may be asked
        journal.read().asks("two")
        journal.append({"kind": "sample", "problem": "1/1", "sample": 0})
    assert path_of(out, 0).read_text().count('"model"') == 1
    with Journal(out, {"n": 1}) as journal:
        journal.read().asks("two")
        with pytest.raises(ConfigError, match="holds answers of two, and three is asked now"):
            journal.asks("three")
    with Journal(out, {"n": 1}, rank=1) as other, pytest.raises(ConfigError, match="answers of two"):
        other.read().asks("three")
