"""Asks a chat-completions server, patiently: what fails in passing is sent again.

    client = Client("http://localhost:8000/v1")
    answer = client.ask([{"role": "user", "content": "Hi"}], max_tokens=100, temperature=1.0)

One client may be used by many threads at once. What the server sends back is read in answer.py.
"""

import http.client
import itertools
import json
import os
import random
import re
import socket
import ssl
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from urllib.parse import urlsplit

from nanotriton.config import ConfigError
from nanotriton.endpoint.answer import (
    SYSTEM,
    Answer,
    Later,
    Refused,
    Unsupported,
    failure,
    parse,
    read,
    retry_after,
)
from nanotriton.tasks.prompt import fold_system

MAX_WAIT = 120.0  # seconds between two tries of one request, at most, unless the server asks for more
MAX_BODY = 100_000  # bytes that are read of a failed request's answer
# Newer servers know the limit on an answer's tokens by the second name only.
RENAMED = {"max_tokens": "max_completion_tokens"}
PROBE = [{"role": "user", "content": "Say hi."}]  # no server has a reason to refuse it


class Client:
    """A server that speaks the chat-completions protocol.

    url: its base, such as http://localhost:8000/v1. model: the model's id there; "": the first that the
    server lists. key_env: the environment variable that holds the key, which is never written anywhere.
    timeout: seconds for one request. retries: how often one is sent again. per_minute: requests a minute, at
    most; 0: no limit. backoff: seconds before a second try; each further wait is twice as long. option: how
    messages name the server. tell: is called with one line for each parameter that the server does not know.
    """

    def __init__(
        self,
        url: str,
        model: str = "",
        *,
        key_env: str = "OPENAI_API_KEY",
        timeout: float = 600.0,
        retries: int = 6,
        per_minute: float = 0.0,
        backoff: float = 1.0,
        option: str = "--endpoint",
        model_option: str = "--served-model",
        tell: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
    ):
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"{option} {url}: a URL such as http://localhost:8000/v1 is expected")
        url, mark, query = url.strip().partition("?")  # Azure wants its ?api-version=... with every request
        self.base = url.rstrip("/").removesuffix("/chat/completions")
        self.query = mark + query
        self.name = f"{option} {self.base}"
        self.key = read_key(key_env)
        self.timeout, self.retries, self.backoff, self.tell = timeout, retries, backoff, tell
        self.pace, self.stop = Pace(per_minute), threading.Event()
        handlers = [SameOrigin]
        if is_local(self.base):  # which no proxy can reach, whatever HTTP_PROXY says
            handlers.append(urllib.request.ProxyHandler({}))
        self.opener = urllib.request.build_opener(*handlers)
        self.lock = threading.Lock()
        self.left_out: dict[str, str] = {}  # what the server does not know, and its words about it
        self.answered = False  # the server has answered something
        self.model = model or self._first_model(model_option)

    def ask(self, messages: list[dict], **parameters) -> Answer:
        """The model's answer; requests that fail in passing are sent again, later and later.

        Raises Refused if the server will never answer this request, Later if it did not in all tries or the
        client was told to `stop`, and ConfigError if it will not answer any.
        """
        for attempt in itertools.count():
            self.pace.wait(self.stop)
            if self.stop.is_set():
                raise Later("stopped")
            try:
                answer = self._try(messages, parameters)
                answer.retries = attempt
                return answer
            except Later as error:
                if attempt == self.retries:
                    raise
                if error.wait:
                    self.pace.hold(error.wait)
                else:
                    pause = self.backoff * 2**attempt * random.uniform(0.5, 1.5)
                    self.stop.wait(min(pause, MAX_WAIT))
            except ConfigError as error:
                raise self._named(error) from None

    # ---- one try ----

    def _try(self, messages: list[dict], parameters: dict) -> Answer:
        """Send a request once; if it is refused, find out whether every one would be."""
        try:
            return self._send(messages, parameters)
        except Refused as error:
            if not self.answered:
                self._probe(parameters, error)
            raise

    def _probe(self, parameters: dict, refusal: Refused) -> None:
        """ConfigError with the words of the refusal if the server refuses a harmless prompt as well."""
        with self.lock:
            try:
                if not self.answered:
                    self._send(PROBE, parameters)
            except Refused:
                raise ConfigError(str(refusal)) from None

    def _send(self, messages: list[dict], parameters: dict) -> Answer:
        """Send a request without what the server does not know, which may take several tries to find out."""
        while True:
            known = self._known(parameters)
            asked = messages
            if SYSTEM in self.left_out and messages[0]["role"] == SYSTEM:
                asked = fold_system(messages)
            has_system = any(message["role"] == SYSTEM for message in asked)
            sent = known | ({SYSTEM: True} if has_system else {})
            request = {"model": self.model, "messages": asked, **known}
            try:
                answer = read(self._call("/chat/completions", request, sent), sent)
            except Unsupported as error:
                self._leave_out(error)
                continue
            self.answered = True
            return answer

    def _known(self, parameters: dict) -> dict:
        """The parameters under the names that the server knows."""
        found = {}
        for name, value in parameters.items():
            if name in self.left_out:
                name = RENAMED.get(name, name)
            if name not in self.left_out:
                found[name] = value
        return found

    def _leave_out(self, error: Unsupported) -> None:
        """Note that the server does not know a parameter, and say so once."""
        name = error.parameter
        if name in RENAMED.values():  # a request without a limit on its tokens could cost any amount
            raise ConfigError(str(error)) from None
        words = str(error)
        if self.left_out.setdefault(name, words) is not words:
            return  # another thread has found it out, and said so
        instead = f"{RENAMED[name]} is sent instead" if name in RENAMED else "it is left out"
        if name == SYSTEM:
            name, instead = "a system message", "its text opens the user's"
        self.tell(f"{self.name} does not take {name}, so {instead}: {words}")

    def _call(self, path: str, body: dict | None, sent: dict) -> bytes:
        """Send one request -> the body of the answer. Raises as answer.py says.

        sent: what of the request the server may not know.
        """
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        data = None if body is None else json.dumps(body).encode()
        try:
            request = urllib.request.Request(self.base + path + self.query, data, headers)
            with self.opener.open(request, timeout=self.timeout) as answer:
                return answer.read()
        except urllib.error.HTTPError as error:
            raise http_failure(error, sent) from None
        except Elsewhere as error:
            raise ConfigError(f"the server sends requests on to {error}; give that server's URL") from None
        except (http.client.InvalidURL, UnicodeError) as error:
            raise ConfigError(f"no URL: {error}") from None
        except (OSError, http.client.HTTPException) as error:
            raise no_connection(error, self.answered) from None

    def _named(self, error: ConfigError) -> ConfigError:
        """The error with the server's name before it."""
        said = str(error)
        if said.startswith("HTTP 404") and not self.answered:
            said += self._hint()
        return ConfigError(f"{self.name}: {said}")

    def _hint(self) -> str:
        """What is likely wrong with a URL that leads nowhere."""
        versioned = re.search(r"/v\d+\w*$", self.base)
        return "" if versioned else " (the URLs of most servers end in /v1)"

    # ---- which model ----

    def _first_model(self, option: str) -> str:
        """The id of the first model that the server lists."""
        try:
            listed = parse(self._call("/models", None, {}))
        except ConfigError as error:
            raise self._named(error) from None
        except (Later, Refused) as error:
            why = f"its list of models can't be read ({error}){self._hint()}"
            raise ConfigError(f"{self.name}: {why}; name one with {option}") from None
        ids = model_ids(listed)
        if not ids:
            why = "it lists no model" if ids == [] else "its list of models has another form"
            raise ConfigError(f"{self.name}: {why}; name one with {option}")
        if len(ids) > 1:
            self.tell(f"{self.name} lists {len(ids)} models; {ids[0]} is asked, {option} names another")
        return ids[0]


def read_key(variable: str) -> str:
    """The key in an environment variable, without the line break that files end with.

    ConfigError if no request could carry it.
    """
    key = os.environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"the key in {variable} has a line break in it, or a character beyond ASCII")
    return key


def model_ids(listed: object) -> list[str] | None:
    """The ids in a list of models; None if it is no list of models."""
    if isinstance(listed, dict):
        listed = listed.get("data", listed.get("models"))
    if not isinstance(listed, list):
        return None
    ids = []
    for entry in listed:
        name = entry.get("id") or entry.get("name") if isinstance(entry, dict) else entry
        if not isinstance(name, str) or not name:
            return None
        ids.append(name)
    return ids


# ---- connections ----


class Elsewhere(Exception):
    """A redirect to another origin."""


class SameOrigin(urllib.request.HTTPRedirectHandler):
    """Follows a redirect within an origin, with the request as it was.

    Another origin gets nothing, as the request carries the key.
    """

    def redirect_request(self, request, file, code, message, headers, url):
        if origin(url) != origin(request.full_url):
            raise Elsewhere(url)
        return urllib.request.Request(url, request.data, request.headers)


def origin(url: str) -> tuple:
    """(scheme, host, port) of a URL."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def is_local(url: str) -> bool:
    """Whether a URL is of this machine."""
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or re.fullmatch(r"127(\.\d+){3}", host) is not None


def http_failure(error: urllib.error.HTTPError, sent: dict) -> Exception:
    """The exception for an answer with an error's status."""
    try:
        body = error.read(MAX_BODY)
    except (OSError, http.client.HTTPException):  # the connection broke: its status is all that is known
        body = b""
    return failure(error.code, body or str(error.reason).encode(), sent, retry_after(error.headers))


def no_connection(error: Exception, answered: bool) -> Exception:
    """The exception for a request that got no answer. answered: an earlier one did."""
    cause = getattr(error, "reason", error)
    if not isinstance(cause, Exception):
        cause = error
    if isinstance(cause, ssl.SSLCertVerificationError):
        why = f"the server's certificate is not trusted ({cause.verify_message})"
        return ConfigError(f"{why}; the variable SSL_CERT_FILE names a file of certificates to trust")
    dropped = isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError)
    if isinstance(cause, ssl.SSLError) and not dropped and not answered:
        return ConfigError(f"no TLS connection ({cause.reason or cause}); does the server speak http://?")
    if isinstance(cause, socket.gaierror) and cause.errno == socket.EAI_NONAME and not answered:
        return ConfigError("no host has this name")
    return Later(f"{type(cause).__name__}: {cause}")


class Pace:
    """When the next request may start: at most `per_minute`, and none while the server wants a pause."""

    def __init__(self, per_minute: float):
        self.lock = threading.Lock()
        self.gap = 60.0 / per_minute if per_minute else 0.0
        self.next = self.not_before = 0.0

    def hold(self, seconds: float) -> None:
        """Let no request start for so long."""
        with self.lock:
            self.not_before = max(self.not_before, time.monotonic() + seconds)

    def wait(self, stop: threading.Event) -> None:
        """Sleep until the caller's request may start, or until `stop` is set."""
        while not stop.is_set():
            with self.lock:
                turn = max(self.next, self.not_before, time.monotonic())
                self.next = turn + self.gap
            stop.wait(max(0.0, turn - time.monotonic()))
            if self.not_before <= turn:
                return
            # The server asked for a pause meanwhile, so this request queues again.
