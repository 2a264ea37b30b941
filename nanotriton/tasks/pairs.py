"""The pairs that SFT learns from, read from a .jsonl or .jsonl.xz file. A row has one of three forms:

    {"task": a module's source, "completion": text}      asked as GRPO and the benchmarks ask it
    {"prompt": text or messages, "completion": text}     asked as it stands
    {"messages": [..., {"role": "assistant", ...}]}      a conversation, of which the last answer is learned

The source may also be called "task_source", as in the samples.jsonl of a run. Other entries are not read. So
a row of collect_data.py, which has a prompt as well, is asked by its task.
"""

import json
import re

from nanotriton.config import ConfigError, reason
from nanotriton.rows import read_lines, read_object
from nanotriton.tasks.prompt import DEFAULT, Prompt, check_message, of_messages, of_text

FORMS = '{"task" or "prompt": ..., "completion": ...} or {"messages": [...]} is expected'
MODEL = re.compile(r"^class[ \t]+Model\b", re.M)  # what makes a text a task's source, and not its name


def read_pairs(path: str, pattern: Prompt = DEFAULT) -> list[tuple[Prompt, str]]:
    """The (prompt, completion) pairs of a file. pattern: how a task's source is put to the model.

    ConfigError names the first line that is no pair, and why.
    """
    try:
        lines = read_lines(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--data {path}: cannot read: {reason(error)}") from None
    rows = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise ConfigError(f"--data {path}: the file is empty; a line of {FORMS}")
    pairs = []
    for number, line in rows:
        try:
            pairs.append(read_pair(line, pattern))
        except ValueError as error:
            raise ConfigError(f"--data {path}, line {number}: {error}; {FORMS}") from None
    return pairs


def read_pair(line: str, pattern: Prompt) -> tuple[Prompt, str]:
    """One line of the file. ValueError says what is wrong with it."""
    row = read_object(line)
    if "completion" not in row and "messages" in row:
        *asked, answer = messages_of(row, "messages")
        completion = answer_of(answer)
        return of_messages(asked), completion
    prompt = prompt_of(row, pattern)
    if isinstance(row.get("completion"), list):  # as TRL has it: the answer is a message too
        return prompt, answer_of(*messages_of(row, "completion"))
    return prompt, text_of(row, "completion")


def prompt_of(row: dict, pattern: Prompt) -> Prompt:
    """The prompt of a row: its task's in the pattern if it names one, else its own."""
    for key in ("task_source", "task"):
        source = row.get(key)
        if isinstance(source, str) and MODEL.search(source):
            check_text(source, key)
            return pattern.of(source)
    if "prompt" not in row and "task" in row:
        check_text(row["task"], "task")
        raise ValueError("its task is no module's source: it has no class Model")
    if isinstance(row.get("prompt"), list):
        return of_messages(messages_of(row, "prompt"))
    return of_text(text_of(row, "prompt"))


def text_of(row: dict, key: str) -> str:
    """The text under a key. ValueError if there is none."""
    if key not in row:
        raise ValueError(f"it has no {key}" + (f", only {', '.join(row)}"[:100] if row else ""))
    return check_text(row[key], key)


def check_text(text: object, key: str) -> str:
    """The text, if it is one that can be learned. Else ValueError."""
    if not isinstance(text, str):
        raise ValueError(f"its {key} is no string but {json.dumps(text)[:40]}")
    if not text.strip():
        raise ValueError(f"its {key} is empty")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"its {key} has half of a surrogate pair, which is no character") from None
    return text


def messages_of(row: dict, key: str) -> list[dict]:
    """The messages under a key. ValueError if they are none."""
    found = row[key]
    if not isinstance(found, list) or not found:
        raise ValueError(f"its {key} are no list of messages but {json.dumps(found)[:40]}")
    pairs = [check_message(message) for message in found]
    for role, text in pairs:
        check_text(text, f"{role} message")
    return [{"role": role, "content": text} for role, text in pairs]


def answer_of(message: dict, *others: dict) -> str:
    """The text of the one message that is the answer. ValueError if it is none, or not alone."""
    if others:
        raise ValueError("its completion has more than one message")
    if message["role"] != "assistant":
        raise ValueError(f"its last message is the {message['role']}'s; the assistant's is expected")
    return message["content"]
