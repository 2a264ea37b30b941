"""Route distil: a teacher behind an OpenAI-compatible endpoint writes the Triton; the executor's message goes
back to it until it is right.

A module gets `attempts` answers in one conversation: the task with knowledge about the operators at hand
and two shots, then after each failure the executor's message. The first answer that is strictly correct
wins. What each conversation cost in tokens, retries and seconds is kept. A conversation is one line of the
journal, written when it ends, so that a run that is killed repeats no finished one.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from nanotriton.endpoint.answer import Answer, Refused
from nanotriton.endpoint.client import Client
from nanotriton.rules.extract import extract_candidate
from nanotriton.tasks.kernelbench import EXAMPLE, EXAMPLE_ANSWER
from nanotriton.tasks.prompt import NO_CODE, SYSTEM, USER, correction, spoken

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
    teacher: Client, source: str, judge: Callable[[str], tuple[str, str]], attempts: int
) -> Conversation:
    """Ask until an answer is correct. judge: solution -> (status, message).

    A conversation that the teacher refuses, because it has become too long, say, ends without a solution.
    Raises Later where the server does not answer, and ConfigError where it never will.
    """
    start = time.monotonic()
    found = Conversation()
    messages = opening(source)
    while found.attempts < attempts and found.status != "correct":
        found.attempts += 1
        try:
            answer = teacher.ask(messages)
        except Refused as error:
            found.status, found.message = "refused", str(error)
            break
        count(answer, found)
        code = extract_candidate(answer.text)
        if code:
            found.status, found.message = judge(code)
        else:
            found.status = "no_code"
            found.message = answer.error or NO_CODE
        found.solution = code if found.status == "correct" else ""
        messages += [
            {"role": "assistant", "content": spoken(answer.text)},
            {"role": "user", "content": correction(found.status, found.message)},
        ]
    found.seconds = round(time.monotonic() - start, 2)
    return found


def count(answer: Answer, conversation: Conversation) -> None:
    """Add what an answer cost."""
    conversation.retries += answer.retries
    conversation.prompt_tokens += answer.prompt_tokens or 0
    conversation.completion_tokens += answer.tokens or 0


def meta(conversation: Conversation) -> dict:
    """The conversation's numbers for a row's meta."""
    return {k: v for k, v in asdict(conversation).items() if k not in ("solution", "status", "message")}
