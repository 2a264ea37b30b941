"""What a chat-completions server sent back: an answer, or a failure of one of four kinds.

- `Later`: the same request may work when it is sent again.
- `Unsupported`: the server does not know one of the request's parameters; without it the request may work.
- `Refused`: this one request will never be answered. Its prompt is too long, say, or a filter objects.
- `ConfigError`: nothing that is sent to this server will be answered. The key is wrong, say.

Servers agree on little here, so several forms of each are read. An answer without text is an answer: the
model used up its tokens while it reasoned, or it declined. It must not be asked again, because then a model
would be measured on those of its samples that went well.
"""

import email.utils
import json
import re
import time
from dataclasses import dataclass

from nanotriton.config import ConfigError
from nanotriton.rules.extract import CLOSE, OPEN

# HTTP statuses below 500 that mean "not now"; nearly all from 500 on do.
LATER = frozenset({408, 409, 425, 429})
NEVER = frozenset({501, 505})  # "not implemented", and "this version of HTTP is not supported"
REFUSED = frozenset({400, 413, 422, 451})  # this request can't be answered
FILTERED = re.compile(r"moderat|flagged|content.?(filter|policy|management)|safety", re.I)
# How servers say that they do not know a parameter. "It must be at most 100" is not among these.
UNKNOWN = re.compile(
    r"unsupported|not support|unrecogni[sz]ed|unknown (name|field|argument)|unexpected keyword"
    r"|unknown parameter|not permitted|not allowed|extra_forbidden|extra inputs|additional properties"
    r"|cannot both be|deprecated",
    re.I,
)
# What can be left out, the least missed first. A request without the others would ask something else.
DISPENSABLE = ("seed", "top_p", "temperature", "max_tokens", "max_completion_tokens")
SYSTEM = "system"  # the role whose messages some chat templates refuse
NO_SYSTEM = re.compile(
    r"(system.{0,3} (role|message|prompt)|role.{0,40}system).{0,60}not (support|allow)"
    r"|not support.{0,20}system|roles must alternate",
    re.I,
)
# Some servers call a prompt that is too long an error of their own.
TOO_LONG = re.compile(r"context.(size|length|window)|prompt.{0,20}too long|too many tokens", re.I)
MAX_PAUSE = 86400.0  # seconds: a Retry-After header that asks for more is not believed
# Where reasoning stands in a message: at DeepSeek and older vLLM, at newer vLLM and OpenRouter, at Ollama,
# at OpenRouter and at LiteLLM.
REASONING = ("reasoning_content", "reasoning", "thinking", "reasoning_details", "thinking_blocks")
SHOWN = 300  # characters of a server's message that are passed on


class Later(Exception):
    """This try failed; another one may not. wait: the seconds that the server asked for."""

    def __init__(self, message: str, wait: float | None = None):
        super().__init__(message)
        self.wait = wait


class Unsupported(Exception):
    """The server does not know a parameter of the request."""

    def __init__(self, message: str, parameter: str):
        super().__init__(message)
        self.parameter = parameter


class Refused(Exception):
    """The server will not answer this request, however often it is sent."""


@dataclass
class Answer:
    """A model's answer, as the server tells it. What the server does not tell is None."""

    text: str  # the whole turn, with its reasoning in <think> and </think>; may be empty
    finish_reason: str | None = None
    tokens: int | None = None  # of the answer
    prompt_tokens: int | None = None
    model: str | None = None  # the id of the model that answered
    error: str | None = None  # why there is no text behind the reasoning
    retries: int = 0  # requests that failed before this one


@dataclass
class Said:
    """A server's own words about what went wrong."""

    text: str
    code: str = ""  # such as 429 or "insufficient_quota"
    parameter: str = ""  # the parameter of the request that it is about, where the server names it


# ---- failures ----


def failure(status: int, body: bytes, sent: dict, wait: float | None = None) -> Exception:
    """The exception for an answer with an HTTP status of 400 or more. sent: the request's parameters."""
    said = words(body)
    message = f"HTTP {status}: " + said.text.removesuffix(f" ({status})")
    return kind(status, said, message, sent, wait)


def kind(status: int, said: Said, message: str, sent: dict, wait: float | None = None) -> Exception:
    """The exception for what a server said under an HTTP status, or under a code in that range."""
    if status == 402 or said.code == "insufficient_quota":
        return ConfigError(message)
    if status == 500 and TOO_LONG.search(said.text):
        return Refused(message)
    if status in LATER or (status >= 500 and status not in NEVER):
        return Later(message, wait)
    if status in REFUSED:
        parameter = unknown_parameter(said, sent)
        return Unsupported(message, parameter) if parameter else Refused(message)
    if status == 403 and FILTERED.search(said.text):
        return Refused(message)
    return ConfigError(message)


def unknown_parameter(said: Said, sent: dict) -> str:
    """What in the request the server does not know; "" if its message is about nothing of this kind.

    sent: the request's parameters, and SYSTEM if it has a system message.
    """
    if SYSTEM in sent and NO_SYSTEM.search(said.text):
        return SYSTEM
    if not UNKNOWN.search(said.text):
        return ""
    candidates = [name for name in DISPENSABLE if name in sent]
    if said.parameter in candidates:
        return said.parameter
    for name in candidates:
        if re.search(rf"(?<![\w-]){name}(?![\w-])", said.text):
            return name
    return ""


def words(body: bytes) -> Said:
    """What the body of a failed request says, as one line."""
    text = body.decode("utf-8", "replace")
    try:
        found = json.loads(body)
    except ValueError:
        title = re.search(r"<title[^>]*>(.*?)</title>", text, re.I | re.S)
        return Said(one_line(title[1] if title else text))
    if isinstance(found, list) and found:  # Google's form
        found = found[0]
    said = error_of(found)
    return said if said and said.text else Said(one_line(text))


def error_of(reply: object) -> Said | None:
    """The error object in a JSON answer, in any of the usual forms; None if there is none."""
    if not isinstance(reply, dict):
        return None
    error = reply.get("error")
    if not error and not {"choices", "delta"} & reply.keys():
        bare = reply if isinstance(reply.get("message"), str) else None  # vLLM's older form
        error = reply.get("errors") or reply.get("detail") or bare
    if not error:
        return None
    if isinstance(error, list):
        error = error[0]
    if not isinstance(error, dict):
        return Said(one_line(str(error)))
    return from_object(error)


def error_in(choice: object) -> Said | None:
    """The error that a gateway notes in the choice, behind whatever the model had written before it."""
    if not isinstance(choice, dict):
        return None
    if choice.get("error"):
        return error_of({"error": choice["error"]})
    return (
        Said("the answer broke off (finish_reason error)") if choice.get("finish_reason") == "error" else None
    )


def from_object(error: dict) -> Said:
    """The words of an error object: its message, and in brackets its code and the provider's own words."""
    message = error.get("message") or error.get("msg") or error.get("error") or ""
    code = str(error.get("code") or error.get("type") or "")
    metadata = error.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    more = " ".join(str(part) for part in (error.get("code"), raw) if part)
    text = f"{message} ({more})" if message and more else str(message or more or json.dumps(error))
    place = error.get("loc")  # of a field, as pydantic gives it: ["body", "seed"]
    parameter = error.get("param") or (place[-1] if isinstance(place, list) and place else "")
    if parameter and str(parameter) not in text:
        text = f"{parameter}: {text}"
    return Said(one_line(text), code, str(parameter))


def one_line(text: str) -> str:
    return " ".join(text.split())[:SHOWN]


def retry_after(headers) -> float | None:
    """The seconds that a server asks to wait; None if it does not, or asks for nonsense.

    headers: a mapping. Retry-After holds seconds or a date, Retry-After-Ms milliseconds.
    """
    for name, scale in (("Retry-After-Ms", 1e-3), ("Retry-After", 1.0)):
        value = headers.get(name)
        if value is None:
            continue
        try:
            seconds = float(value) * scale
        except ValueError:
            try:
                seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
            except ValueError:  # neither a number nor a date
                continue
        if seconds < MAX_PAUSE:
            return max(0.0, seconds)
    return None


# ---- answers ----


def read(body: bytes, sent: dict) -> Answer:
    """The answer in the body of a request that succeeded. sent: the request's parameters.

    Raises Later for what is no answer; for an error object whatever it stands for.
    """
    reply = parse(body)
    choices = reply.get("choices") if isinstance(reply, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    said = error_of(reply) or error_in(choice)
    if said:  # a gateway says 200, and the provider behind it something else
        status = int(said.code) if re.fullmatch("[45][0-9][0-9]", said.code) else 500
        raise kind(status, said, said.text, sent)
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(message, dict):
        raise Later("the answer has no choices[0].message")
    usage = reply.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    answer = Answer(
        text="",
        finish_reason=choice.get("finish_reason"),
        tokens=usage.get("completion_tokens"),
        prompt_tokens=usage.get("prompt_tokens"),
        model=reply.get("model"),
    )
    text, reasoning = parts(message)
    if text.strip():
        answer.text = f"{OPEN}{reasoning}{CLOSE}\n{text}" if reasoning else text
    else:
        answer.text = OPEN + reasoning if reasoning else ""
        refusal = message.get("refusal")
        why = f"the model declined: {one_line(str(refusal))}" if refusal else "the answer has no text"
        answer.error = f"{why} (finish_reason {answer.finish_reason})"
    return answer


def parse(body: bytes) -> object:
    """The JSON of an answer. Raises Later that says what it is instead."""
    try:
        return json.loads(body)
    except ValueError:
        raise Later(f"the answer is {what_it_is(body)}") from None


def what_it_is(body: bytes) -> str:
    """In words, of a body that is not JSON."""
    start = body[:200].lstrip().lower()
    if start.startswith(b"data:"):
        return "an event stream, which was not asked for"
    if start.startswith(b"<"):
        return f"not JSON but a page: {words(body).text}"
    return "not JSON"


def parts(message: dict) -> tuple[str, str]:
    """(text, reasoning) of a message. Raises Later if its content is neither text nor parts of it."""
    content = message.get("content")
    if content is not None and not isinstance(content, str | list | dict):
        raise Later("the answer's content is no text")
    text, inside = flat(content)
    for name in REASONING:
        outer = "".join(flat(message.get(name)))
        if outer:
            return whole(text), whole(outer)
    return whole(text), whole(inside)


def flat(content: object) -> tuple[str, str]:
    """(text, reasoning) of content that is a text, a part such as {"type": "text", "text": ...}, or a list.

    Reasoning is a part of a type that says so: {"type": "thinking", "thinking": ...}, whose own content may
    be parts again.
    """
    if isinstance(content, str):
        return content, ""
    if isinstance(content, list):
        pairs = [flat(part) for part in content]
        return "".join(text for text, _ in pairs), "".join(reasoning for _, reasoning in pairs)
    if not isinstance(content, dict):
        return "", ""
    reasons = re.search("think|reason", str(content.get("type", ""))) is not None
    for name in ("text", "thinking", "reasoning", "summary", "content", "value"):
        if content.get(name):
            found = "".join(flat(content[name]))
            return ("", found) if reasons else (found, "")
    return "", ""


def whole(text: str) -> str:
    """The text with U+FFFD for every half of a surrogate pair, which no file can hold."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
