"""Where candidates come from: our own sampler, an OpenAI-compatible endpoint, or files.

The first two take a list of `Ask` and call save(ask, completion, details) once for every one that they have
an answer to, from the calling thread. What could not be had is not saved, and is asked again when the run is
continued.
"""

import email.utils
import http.client
import itertools
import json
import os
import queue
import random
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nanotriton import log
from nanotriton.config import ConfigError, reason
from nanotriton.rules.extract import CLOSE, OPEN, opened_reasoning

# HTTP statuses of a server that is in trouble, or says "later".
RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
REFUSED = frozenset({400, 413, 422})  # this one request can't be answered: its prompt is too long, say
MAX_WAIT = 120.0  # seconds between two tries of one request, at most, unless the server asks for more
MAX_PAUSE = 86400.0  # seconds: a Retry-After header that asks for more is not believed


@dataclass(frozen=True)
class Ask:
    """One candidate that is wanted."""

    problem: str
    sample: int  # its number among the problem's samples
    messages: tuple[tuple[str, str], ...]  # (role, text)
    plain: str  # the prompt for a model without a chat template
    seed: int


@dataclass(frozen=True)
class Sampling:
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 4096


Save = Callable[[Ask, str, dict], None]


# ---- our sampler ----


def from_model(folder: str, asks: list[Ask], sampling: Sampling, world, save: Save) -> None:
    """Sample with nanotriton.sampler on this rank's device; the samples of one prompt share its prefill."""
    import torch

    from nanotriton.sampler import Request, Sampler
    from nanotriton.tokenizer import Tokenizer
    from nanotriton.weights import load_model

    tokenizer = Tokenizer(folder)
    model, _ = load_model(folder, world.dtype, world.device)
    sampler = Sampler(model.requires_grad_(False), valid_vocab=tokenizer.vocab_size)
    groups: dict[str, list[Ask]] = {}
    for ask in asks:
        groups.setdefault(ask.problem, []).append(ask)
    longest = sampler.config.max_position_embeddings
    # For each prompt: its request, who asked, and the reasoning that the chat template has opened in it.
    requests, wanted, opened = [], [], []
    for group in groups.values():
        messages = [{"role": role, "content": text} for role, text in group[0].messages]
        text = tokenizer.chat(messages) if tokenizer.has_chat_template else group[0].plain
        ids = tokenizer.encode(text)
        if len(ids) >= longest:  # the model has no room to answer: that counts as its answer
            for ask in group:
                save(ask, "", {"finish_reason": "length", "tokens": 0})
            continue
        wanted.append(group)
        opened.append(opened_reasoning(text))
        requests.append(
            Request(
                ids,
                n=len(group),
                max_tokens=min(sampling.max_tokens, longest - len(ids)),
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                stop_ids=frozenset(tokenizer.eos_ids),
                seeds=[a.seed for a in group],
            )
        )
    with log.bar(total=sum(map(len, wanted)), desc="sampling") as progress:

        def finished(sample) -> None:
            ids = sample.ids[:-1] if sample.finish_reason == "stop" else sample.ids
            details = {"finish_reason": sample.finish_reason, "tokens": len(sample.ids)}
            completion = opened[sample.request] + tokenizer.decode(ids)
            save(wanted[sample.request][sample.index], completion, details)
            progress.update()

        try:
            sampler.generate(requests, on_finish=finished)
        except ValueError as error:
            raise ConfigError(f"--model {folder}: {error}") from None
    del sampler, model  # the judge wants the memory
    if world.device.type == "cuda":
        torch.cuda.empty_cache()


# ---- an endpoint ----


class Later(Exception):
    """This try failed; another one may not. wait: the seconds that the server asked for."""

    def __init__(self, message: str, wait: float | None = None):
        super().__init__(message)
        self.wait = wait


class Refused(Exception):
    """The server will not answer this request, however often it is sent."""


class Pace:
    """When the next request may start: at most `per_minute`, and none while the server wants a pause."""

    def __init__(self, per_minute: float):
        self.lock, self.gap = threading.Lock(), 60.0 / per_minute if per_minute else 0.0
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


class Endpoint:
    """A server that speaks the chat-completions protocol.

    The key is read from the environment variable `key_env` and never written anywhere. backoff: seconds
    before the second try of a request; each further wait is twice as long.
    """

    def __init__(
        self,
        url: str,
        model: str,
        sampling: Sampling,
        *,
        key_env: str = "OPENAI_API_KEY",
        timeout: float = 600.0,
        retries: int = 6,
        concurrency: int = 16,
        per_minute: float = 0.0,
        backoff: float = 1.0,
    ):
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"--endpoint {url}: a URL such as http://localhost:8000/v1 is expected")
        self.base = url.rstrip("/").removesuffix("/chat/completions")
        self.sampling, self.timeout, self.retries, self.concurrency = sampling, timeout, retries, concurrency
        self.key, self.pace, self.backoff = os.environ.get(key_env, ""), Pace(per_minute), backoff
        self.answered = False
        self.stop = threading.Event()
        self.model = model or self._only_model()

    def _only_model(self) -> str:
        try:
            return str(self._call("/models")["data"][0]["id"])
        except (Later, Refused, LookupError, TypeError) as error:
            why = f"its list of models can't be read ({error})"
            raise ConfigError(f"--endpoint {self.base}: {why}; name one with --served-model") from None

    def _call(self, path: str, body: dict | None = None) -> dict:
        """Send one request -> the JSON that came back.

        Raises Later, Refused, or ConfigError for what stands in the way of every request to this server.
        """
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, headers)
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as answer:
                text = answer.read()
            return json.loads(text)
        except urllib.error.HTTPError as error:
            said = " ".join(error.read(2000).decode("utf-8", "replace").split())[:300]
            message = f"HTTP {error.code}: {said or error.reason}"
            if error.code in RETRIED:
                raise Later(message, retry_after(error.headers.get("Retry-After"))) from None
            if error.code in REFUSED and self.answered:
                raise Refused(message) from None
            raise ConfigError(f"--endpoint {self.base}: {message}") from None
        except (OSError, http.client.HTTPException) as error:
            raise Later(f"{type(error).__name__}: {error}") from None
        except ValueError:
            raise Later("the answer is not JSON") from None

    def ask(self, ask: Ask) -> tuple[str, dict]:
        """(completion, details). Raises as `_call` does."""
        s = self.sampling
        body = {
            "model": self.model,
            "messages": [{"role": r, "content": t} for r, t in ask.messages],
            "n": 1,
            "seed": ask.seed % 2**31,
            "temperature": s.temperature,
            "top_p": s.top_p,
            "max_tokens": s.max_tokens,
        }
        reply = self._call("/chat/completions", body)
        try:
            choice = reply["choices"][0]
            text, reasoning = choice["message"].get("content"), choice["message"].get("reasoning_content")
            usage = reply.get("usage") or {}
            details = {"finish_reason": choice.get("finish_reason"), "tokens": usage.get("completion_tokens")}
        except (LookupError, TypeError, AttributeError):
            raise Later("the answer has no choices[0].message") from None
        if reasoning and isinstance(reasoning, str):
            text = f"<think>{reasoning}</think>\n{text or ''}"
        if not isinstance(text, str):
            raise Later("the answer's message has no text")
        self.answered = True
        return text, details

    def _persist(self, ask: Ask) -> tuple[str, dict]:
        """`ask` until it is answered or the tries are used up.

        Waits grow exponentially. A wait that the server asked for holds for all threads.
        """
        for attempt in itertools.count():
            self.pace.wait(self.stop)
            if self.stop.is_set():
                raise Later("stopped")
            try:
                return self.ask(ask)
            except Refused as error:
                return "", {"finish_reason": "refused", "tokens": 0, "error": str(error)}
            except Later as error:
                if attempt == self.retries:
                    raise
                if error.wait is not None:
                    self.pace.hold(error.wait)
                else:
                    self.stop.wait(min(self.backoff * 2**attempt * random.uniform(0.5, 1.5), MAX_WAIT))

    def run(self, asks: list[Ask], save: Save) -> list[str]:
        """Ask for all of them, `concurrency` at a time -> one line for each that could not be had."""
        waiting, done, failures = deque(asks), queue.Queue(), []

        def work() -> None:
            while not self.stop.is_set():
                try:
                    ask = waiting.popleft()
                except IndexError:
                    return
                try:
                    done.put((ask, self._persist(ask)))
                except Exception as error:  # the thread that waits for this answer raises it
                    if not isinstance(error, Later):
                        self.stop.set()  # no more requests
                    done.put((ask, error))

        for _ in range(min(self.concurrency, len(asks))):
            threading.Thread(target=work, daemon=True).start()
        try:
            for _ in log.bar(range(len(asks)), desc="asking"):
                ask, answer = done.get()
                if isinstance(answer, Later):
                    failures.append(f"problem {ask.problem}, sample {ask.sample}: {answer}")
                elif isinstance(answer, Exception):
                    raise answer
                else:
                    save(ask, *answer)
        finally:
            self.stop.set()
        return failures


def cut_in_reasoning(samples: list[dict]) -> list[dict]:
    """Those of an endpoint's samples that were cut inside reasoning which the chat template had opened.

    A server doesn't show the prompt that it made. But an answer that closes reasoning without opening it
    tells of such a template. Then an answer that closes none, and did not end by itself, is not through with
    its reasoning.
    """

    def closes_unopened(completion: str) -> bool:
        before, close, _ = completion.partition(CLOSE)
        return bool(close) and OPEN not in before

    if not any(closes_unopened(s["completion"]) for s in samples):
        return []
    return [s for s in samples if CLOSE not in s["completion"] and s.get("finish_reason") != "stop"]


def retry_after(value: str | None) -> float | None:
    """The seconds of a Retry-After header, which holds a number or a date; None where it holds neither."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except ValueError:
            return None
    return max(0.0, seconds) if seconds < MAX_PAUSE else None


def collect(cfg, asks: list[Ask], world, save: Save) -> list[str]:
    """Ask the model or the endpoint that the options name -> a line for each candidate that could not be had.

    cfg: a benchmark's Config.
    """
    sampling = Sampling(cfg.temperature, cfg.top_p, cfg.max_tokens)
    if not asks:
        return []
    if cfg.model:
        from_model(cfg.model, asks, sampling, world, save)
        return []
    endpoint = Endpoint(
        cfg.endpoint,
        cfg.served_model,
        sampling,
        key_env=cfg.key_env,
        timeout=cfg.request_timeout,
        retries=cfg.retries,
        concurrency=cfg.concurrency,
        per_minute=cfg.per_minute,
    )
    return endpoint.run(asks, save)


def tell(failures: list[str]) -> int:
    """Say on stderr which candidates are missing -> exit status."""
    for failure in failures[:10]:
        print(failure, file=sys.stderr)
    if failures:
        print(f"{len(failures)} candidates are missing; the same command tries them again", file=sys.stderr)
    return 1 if failures else 0


# ---- files ----


def read_jsonl(path: str | Path) -> list[dict]:
    """The objects of a JSONL file, or of a file with one JSON array.

    Raises ValueError: one line that names the file and the line.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot read: {reason(error)}") from None
    if text.lstrip().startswith("["):
        try:
            rows = json.loads(text)
        except ValueError as error:
            raise ValueError(f"{path}: not JSON: {error}") from None
    else:
        rows = json_lines(path, text.split("\n"))
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise ValueError(f"{path} entry {number}: an object is expected")
    if not rows:
        raise ValueError(f"{path}: it is empty")
    return rows


def json_lines(path: str | Path, lines: list[str]) -> list:
    """The values in the lines of a file; empty lines are skipped. Raises ValueError."""
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            if line.strip():
                rows.append(json.loads(line))
        except ValueError:
            cut = " (the last line is cut short)" if number == len(lines) else ""
            raise ValueError(f"{path} line {number}: not JSON{cut}") from None
    return rows
