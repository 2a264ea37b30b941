"""Where candidates come from: our own sampler, an OpenAI-compatible endpoint, or files.

The first two take a list of `Ask` and call save(ask, completion, details) once for every one that they have
an answer to, from the calling thread. What could not be had is not saved, and is asked again when the run is
continued.
"""

import contextlib
import hashlib
import json
import queue
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from nanotriton import log
from nanotriton.config import json_object, reason
from nanotriton.endpoint.answer import Later, Refused
from nanotriton.endpoint.client import Client
from nanotriton.rows import read_lines
from nanotriton.rules.extract import CLOSE, OPEN
from nanotriton.runs.provenance import files_of, fingerprint
from nanotriton.search.writers import ModelWriter, Sampling, Written
from nanotriton.tasks.prompt import Prompt


@dataclass
class ServerOptions:
    """The server of --endpoint"""

    served_model: str = ""  # the model's name at the endpoint; empty: the first that the endpoint lists
    key_env: str = "OPENAI_API_KEY"  # environment variable with the endpoint's key, if it wants one
    concurrency: Annotated[int, ">= 1"] = 16  # requests at a time
    per_minute: Annotated[float, ">= 0"] = 0.0  # requests a minute, at most; 0: no limit
    retries: Annotated[int, ">= 0"] = 6  # times a request is sent again
    request_timeout: Annotated[float, "> 0"] = 600.0  # seconds that one request may take


@dataclass(frozen=True)
class Ask:
    """One candidate that is wanted."""

    problem: str
    sample: int  # its number among the problem's samples
    prompt: Prompt
    seed: int


Save = Callable[[Ask, str, dict], None]


# ---- our sampler ----


def model_id(folder: str) -> str:
    """The folder's name and what identifies its files: weights that were trained on are another model's."""
    digest = hashlib.sha256()
    for name, file in files_of("model", folder).items():
        if file.suffix in (".safetensors", ".json", ".jinja"):
            digest.update(f"{name} {fingerprint(file)}\n".encode())
    return f"{folder} ({digest.hexdigest()[:12]})"


def from_model(folder: str, asks: list[Ask], sampling: Sampling, world, save: Save) -> None:
    """Sample with our own sampler on this rank's device; the samples of one prompt share its prefill.

    world: has this rank's device and dtype.
    """
    writer = ModelWriter(folder, world.device, world.dtype, sampling)

    def tell(place: int, written: Written) -> None:
        save(asks[place], written.text, {"finish_reason": written.finish_reason, "tokens": written.tokens})

    with contextlib.closing(writer):  # the judge wants the memory
        writer.write([ask.prompt for ask in asks], [ask.seed for ask in asks], tell)


# ---- an endpoint ----


class Endpoint:
    """Asks a server for candidates, several at a time.

    client: the server. sampling: how its model is sampled.
    """

    def __init__(self, client: Client, sampling: Sampling, concurrency: int = 16):
        self.client, self.sampling, self.concurrency = client, sampling, concurrency

    def ask(self, ask: Ask) -> tuple[str, dict]:
        """(completion, details). A refusal is an answer without text, and says why.

        Raises Later if there is no answer, ConfigError if there is none to any request.
        """
        try:
            answer = self.client.ask(ask.prompt.dicts(), **self.sampling.parameters(ask.seed))
        except Refused as error:
            return "", {"finish_reason": "refused", "tokens": 0, "error": str(error)}
        details = {"finish_reason": answer.finish_reason, "tokens": answer.tokens}
        if answer.model and answer.model != self.client.model:
            details["model"] = answer.model  # a router's choice, or the exact version
        if self.client.left_out:
            details["left_out"] = sorted(self.client.left_out)
        if answer.error:
            details["error"] = answer.error
        return answer.text, details

    def run(self, asks: list[Ask], save: Save) -> list[str]:
        """Ask for all of them -> one line for each that could not be had.

        After a failure that ends the run no request starts, but those on their way are paid for: their
        answers are saved before it is raised.
        """
        waiting: deque[Ask] = deque(asks)
        done: queue.Queue = queue.Queue()
        threads = min(self.concurrency, len(asks))
        for _ in range(threads):
            threading.Thread(target=self._work, args=(waiting, done), daemon=True).start()
        failures: list[str] = []
        fatal = None
        try:
            for ask, answer in log.bar(results(done, threads), total=len(asks), desc="asking"):
                if isinstance(answer, Later):
                    failures.append(f"problem {ask.problem}, sample {ask.sample}: {answer}")
                elif isinstance(answer, Exception):
                    fatal = fatal or answer
                else:
                    save(ask, *answer)
        finally:
            self.client.stop.set()
        if fatal:
            raise fatal
        return failures

    def _work(self, waiting: deque, done: queue.Queue) -> None:
        """One thread: put (ask, its answer or an exception) into `done` for ask after ask, at last None."""
        while not self.client.stop.is_set():
            try:
                ask = waiting.popleft()
            except IndexError:
                break
            try:
                done.put((ask, self.ask(ask)))
            except Later as error:
                done.put((ask, error))
            except Exception as error:  # the thread that waits for this answer raises it
                self.client.stop.set()  # no more requests
                done.put((ask, error))
        done.put(None)


def results(done: queue.Queue, threads: int):
    """What the threads put into the queue, until the last of them has put its None."""
    while threads:
        entry = done.get()
        if entry is None:
            threads -= 1
        else:
            yield entry


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


def make_endpoint(cfg) -> Endpoint:
    """The server that the options name, and how it is to be sampled. cfg: a benchmark's Config."""
    server: ServerOptions = cfg.server
    client = Client(
        cfg.endpoint,
        server.served_model,
        key_env=server.key_env,
        timeout=server.request_timeout,
        retries=server.retries,
        per_minute=server.per_minute,
    )
    return Endpoint(client, sampling_of(cfg), server.concurrency)


def sampling_of(cfg) -> Sampling:
    """How a benchmark's Config wants its model to be sampled."""
    variables = json_object("--template", cfg.template)
    return Sampling(cfg.temperature, cfg.top_p, cfg.max_tokens, variables)


def tell(failures: list[str]) -> int:
    """Say on stderr which candidates are missing -> exit status."""
    for failure in failures[:10]:
        print(failure, file=sys.stderr)
    if failures:
        missing = log.counted(len(failures), "missing candidate")
        print(f"{missing}: the same command tries again", file=sys.stderr)
    return 1 if failures else 0


# ---- files ----


def read_jsonl(path: str | Path) -> list[dict]:
    """The objects of a JSONL file, or of a file with one JSON array.

    Raises ValueError: one line that names the file and the line.
    """
    try:
        text = "\n".join(read_lines(path))
    except (OSError, ValueError) as error:
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
