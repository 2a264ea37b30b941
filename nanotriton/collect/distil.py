"""Route distil: a teacher behind an OpenAI-compatible endpoint writes the Triton; the executor's message goes
back to it until it is right.

A module gets `attempts` answers in one conversation: the task with knowledge about the operators at hand
and two shots, then after each failure the executor's message. The first answer that is strictly correct
wins. What each conversation cost in tokens, retries and seconds is kept. A conversation is one line of the
journal, written when it ends, so that a run that is killed repeats no finished one.
"""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass

from nanotriton.rules.extract import extract_candidate
from nanotriton.tasks.kernelbench import EXAMPLE, EXAMPLE_ANSWER
from nanotriton.tasks.prompt import SYSTEM, USER

RETRIES = 5  # of one request, when the server is busy, slow or talks nonsense
WAIT = 1.0  # seconds before the first retry; each next wait is twice as long
KNOWLEDGE = {
    "softmax": "Softmax of a row: subtract the row's maximum before tl.exp; load lanes past the end as -inf.",
    "norm": "A norm's variance is the mean of the squares of (x - mean); set lanes past the end to 0 after subtracting the mean.",  # noqa: E501
    "matmul": 'tl.dot takes blocks of at least 16 a side; accumulate in fp32 and pass input_precision="ieee".',  # noqa: E501
    "linear": "nn.Linear's weight is [out, in]: read it with the roles of its indices exchanged.",
    "conv": "A convolution is a matrix product over (input channel, tap): take k apart with // and %, and mask taps that fall outside the input.",  # noqa: E501
    "pool": "Unroll a pooling window with tl.static_range; the identity of a maximum is -inf.",
    "cumsum": "tl.cumsum scans a block; a longer row needs a carry between blocks.",
    "attention": "Keep a running maximum and sum per query, and rescale the accumulator when the maximum changes.",  # noqa: E501
    "loss": "For a sum over everything, each program adds its part with tl.atomic_add to a result that starts at zero.",  # noqa: E501
}


class TeacherError(Exception):
    """The server can't be used; the message is one line."""


@dataclass
class Conversation:
    """What came of one module."""

    solution: str = ""
    status: str = ""  # of the last answer
    message: str = ""
    attempts: int = 0
    retries: int = 0  # requests that had to be made again
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0


class Teacher:
    """Asks an endpoint for chat completions. Requests that fail in passing are made again, later
    and later."""

    def __init__(self, endpoint: str, model: str, timeout: float = 120.0, wait: float = WAIT):
        self.url = endpoint.rstrip("/") + "/chat/completions"
        self.model, self.timeout, self.wait = model, timeout, wait

    def ask(self, messages: list[dict], conversation: Conversation) -> str:
        """The answer's text. Raises TeacherError when RETRIES requests have failed."""
        body = json.dumps({"model": self.model, "messages": messages}).encode()
        why = ""
        for turn in range(RETRIES):
            if turn:
                conversation.retries += 1
                time.sleep(self.wait * 2 ** (turn - 1))
            request = urllib.request.Request(self.url, body, {"Content-Type": "application/json"})
            try:
                with urllib.request.urlopen(request, timeout=self.timeout) as response:
                    answer = json.load(response)
                text = answer["choices"][0]["message"]["content"]
                if not isinstance(text, str):
                    raise TypeError("its content is no text")
            except urllib.error.HTTPError as error:
                if error.code not in (408, 409, 429) and error.code < 500:
                    raise TeacherError(f"{self.url}: HTTP {error.code} {error.reason}") from None
                why = f"HTTP {error.code}"
            except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
                why = f"{type(error).__name__}: {error}"
            else:
                usage = answer.get("usage") or {}
                conversation.prompt_tokens += usage.get("prompt_tokens", 0)
                conversation.completion_tokens += usage.get("completion_tokens", 0)
                return text
        raise TeacherError(f"{self.url}: no answer after {RETRIES} requests ({why})")


def knowledge(source: str) -> str:
    """What the operators in a module's text need to be known for."""
    low = source.lower()
    lines = [text for word, text in KNOWLEDGE.items() if word in low]
    return "" if not lines else "Worth knowing here:\n" + "\n".join(f"- {line}" for line in lines) + "\n\n"


def opening(source: str) -> list[dict]:
    """The first messages: the system's, one task with its answer, and the task at hand."""
    shot = [
        {"role": "user", "content": USER.format(source=EXAMPLE.strip())},
        {"role": "assistant", "content": f"```python\n{EXAMPLE_ANSWER}```"},
    ]
    return [
        {"role": "system", "content": SYSTEM},
        *shot,
        {"role": "user", "content": knowledge(source) + USER.format(source=source.strip())},
    ]


def converse(
    teacher: Teacher, source: str, judge: Callable[[str], tuple[str, str]], attempts: int
) -> Conversation:
    """Ask until an answer is correct. judge: solution -> (status, message)."""
    start, found, messages = time.monotonic(), Conversation(), opening(source)
    while found.attempts < attempts and found.status != "correct":
        text = teacher.ask(messages, found)
        found.attempts += 1
        code = extract_candidate(text)
        found.status, found.message = (
            judge(code) if code else ("no_code", "the answer has no ```python block with a ModelNew")
        )
        found.solution = code if found.status == "correct" else ""
        feedback = (
            f"That was judged {found.status}: {found.message}\n\nWrite the whole file again, corrected."
        )
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": feedback}]
    found.seconds = round(time.monotonic() - start, 2)
    return found


def meta(conversation: Conversation) -> dict:
    """The conversation's numbers for a row's meta."""
    return {k: v for k, v in asdict(conversation).items() if k not in ("solution", "status", "message")}
