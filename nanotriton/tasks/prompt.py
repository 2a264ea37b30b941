"""What a model is shown and what it should answer. All prompts are made here: of training, benchmarks, tools.

A model with a chat template gets the task inside instructions, in the spirit of AutoTriton (arXiv
2507.05687). A pretrained model without a template gets the same text without roles. A model that was trained
here from nothing gets the task's source and nothing else: it has seen nothing but (source, completion) pairs,
and the fence that opens the completion is the separator.

The answer is a fenced Python block in all cases, which is what nanotriton/rules/extract.py looks for.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nanotriton.config import ConfigError, reason
from nanotriton.rules.extract import CLOSE, after_reasoning, opened_reasoning
from nanotriton.tasks.task import Task

if TYPE_CHECKING:
    from nanotriton.transformer.tokenizer import Tokenizer

HOLE = "{source}"  # where a task's source goes
ROLES = ("system", "user", "assistant")

SYSTEM = """\
You are an expert in GPU programming who rewrites PyTorch modules with kernels in Triton, OpenAI's language for GPU kernels."""

USER = """\
Rewrite this PyTorch module so that Triton kernels of your own do its computation:

```python
{source}
```

Write a class `ModelNew` whose `__init__` and `forward` take the same arguments as `Model`'s and whose result is the same: \
values, shape and dtype.
- All computation happens in your own `@triton.jit` kernels, launched from `ModelNew.forward`. There, PyTorch may only \
allocate, view and copy tensors: no `torch` or `torch.nn.functional` function and no operator that computes.
- Create parameters in the order, with the names and with the initialisation of `Model`.
- Mask loads and stores: sizes are often no multiple of a block.
- `tl.dot` rounds fp32 inputs to TF32 unless told otherwise, which counts as a wrong result: pass `input_precision="ieee"`.
- Do not write tests, and do not change the inputs.

Answer with one complete Python file, imports included, in a single ```python block."""


@dataclass(frozen=True)
class Prompt:
    """A prompt before it is known which model gets it. With HOLE in its texts it is the pattern of many."""

    messages: tuple[tuple[str, str], ...]  # (role, text), for a model with a chat template and for a server
    plain: str  # for a pretrained model without a chat template
    bare: str  # for a model that was trained here from nothing

    def of(self, source: str) -> "Prompt":
        """The prompt for a task's source. How the source's file begins and ends makes no difference."""
        fill = lambda text: text.replace(HOLE, tidy(source))
        messages = tuple((role, fill(text)) for role, text in self.messages)
        return Prompt(messages, fill(self.plain), fill(self.bare))

    def dicts(self) -> list[dict]:
        """The messages as servers and chat templates take them."""
        return [{"role": role, "content": text} for role, text in self.messages]


def tidy(source: str) -> str:
    """A source without what an editor may add: a byte order mark, other line ends, blank lines around it."""
    return source.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").strip()


# What a task is put into unless the user has a prompt of their own.
DEFAULT = Prompt(
    messages=(("system", SYSTEM), ("user", USER)),
    plain=f"{SYSTEM}\n\n{USER}\n\n",
    bare=f"{HOLE}\n",
)


def of_text(text: str) -> Prompt:
    """The prompt that is this text: one message of the user, or the text as it stands. To a model that was
    trained here from nothing it is a source.
    """
    return Prompt((("user", text),), text, tidy(text) + "\n")


def of_messages(messages: Sequence[dict]) -> Prompt:
    """The prompt that ends a conversation. ValueError for what is none.

    Without a chat template its texts stand one behind the other, with an empty line behind each.
    """
    if not isinstance(messages, list | tuple):
        raise ValueError("no list of messages")
    pairs = tuple(check_message(message) for message in messages)
    if not pairs:
        raise ValueError("there are no messages")
    if pairs[-1][0] != "user":
        raise ValueError(f"the prompt's last message is the {pairs[-1][0]}'s; the user's is expected")
    if len(pairs) == 1:
        return of_text(pairs[0][1])
    plain = "".join(f"{text.strip()}\n\n" for _, text in pairs)
    return Prompt(pairs, plain, plain)


def check_message(message: object) -> tuple[str, str]:
    """(role, text) of a message, whose content is a text or a list of parts that are texts.

    ValueError for what is no message.
    """
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, list) and all(isinstance(part, dict) and "text" in part for part in content):
        content = "".join(str(part["text"]) for part in content)
    if not isinstance(content, str):
        raise ValueError('a message is no {"role": ..., "content": text}: ' + json.dumps(message)[:60])
    role = message.get("role")
    if role not in ROLES:
        raise ValueError(f"the role {json.dumps(role)} of a message is none of {', '.join(ROLES)}")
    return role, content


def read_prompt(path: str) -> Prompt:
    """The user's own prompt from the value of --prompt; DEFAULT for "". ConfigError for what is none.

    A file is the text of one user message, or, if its name ends in .json, a list of messages, in which
    examples may go before the task. HOLE stands where a task's source goes.
    """
    if not path:
        return DEFAULT
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
        if path.endswith(".json"):
            found = of_messages(json.loads(text))
        else:  # a model without a chat template goes on where the file ends
            found = Prompt((("user", text.strip()),), text, text)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--prompt {path}: cannot read: {reason(error)}") from None
    except ValueError as error:
        raise ConfigError(f"--prompt {path}: {error}; a JSON list of messages is expected") from None
    if not any(HOLE in content for _, content in found.messages):
        raise ConfigError(f"--prompt {path}: it has no {HOLE}, where the task's source is to go")
    return found


# ---- as a model reads it ----


def text_of(prompt: Prompt, tokenizer: "Tokenizer") -> str:
    """The prompt as the model reads it, up to where the answer begins."""
    if tokenizer.has_chat_template:
        return chat_text(prompt.dicts(), tokenizer)
    return prompt.bare if tokenizer.reads_source else prompt.plain


def ids_of(prompt: Prompt, tokenizer: "Tokenizer") -> list[int]:
    """Token ids of the prompt."""
    return encode_text(text_of(prompt, tokenizer), tokenizer)


def encode_text(text: str, tokenizer: "Tokenizer") -> list[int]:
    """Token ids of a prompt's text. For a pretrained model it begins as the texts did that it was trained on."""
    if tokenizer.has_chat_template or tokenizer.reads_source:
        return tokenizer.encode(text)
    return tokenizer.encode(text, add_special_tokens=True)


def chat_text(messages: list[dict], tokenizer: "Tokenizer") -> str:
    """The messages in the model's chat template.

    Some templates refuse a system message, and some drop it. Then its text opens the user's message.
    """
    if messages[0]["role"] != "system":
        return tokenizer.chat(messages)
    try:
        text = tokenizer.chat(messages)
    except ValueError:  # the template's own refusal
        return tokenizer.chat(fold_system(messages))
    return text if messages[0]["content"].strip() in text else tokenizer.chat(fold_system(messages))


def fold_system(messages: list[dict]) -> list[dict]:
    """The messages with the system's text before that of the first user message."""
    system, *others = messages
    if not others:
        return [{**system, "role": "user"}]
    first = {**others[0], "content": f"{system['content'].strip()}\n\n{others[0]['content']}"}
    return [first, *others[1:]]


def build_prompt(task: Task, tokenizer: "Tokenizer", prompt: Prompt = DEFAULT) -> list[int]:
    """Token ids of the prompt for a task."""
    return ids_of(prompt.of(task.source), tokenizer)


# ---- what it should answer ----


def build_completion(task: Task) -> str:
    """The text of the right answer to a task that has one.

    The end token is no part of it: callers add its id.
    """
    if task.solution is None:
        raise ValueError(f"task {task.name} has no solution to learn from")
    return f"```python\n{task.solution.rstrip()}\n```"


def after_opened(reasoning: str, completion: str) -> str:
    """What a model is to write where the chat template has opened `reasoning` ("<think>", or "" if it has
    not): a completion without any closes it at once, for nothing before the close counts as an answer; one
    that opens it too must not do so twice."""
    if not reasoning or CLOSE in completion:
        return completion.removeprefix(reasoning)
    return f"\n{CLOSE}\n\n{completion}"


def pair_of(prompt: Prompt, completion: str, tokenizer: "Tokenizer") -> tuple[list[int], list[int]]:
    """Token ids of a prompt and of its completion, without the end token."""
    text = text_of(prompt, tokenizer)
    answer = after_opened(opened_reasoning(text), completion)
    return encode_text(text, tokenizer), tokenizer.encode(answer)


# ---- what it is told of its answer ----

NO_CODE = "the answer has no ```python block with a ModelNew"


def correction(status: str, message: str) -> str:
    """What is said of an answer that was judged wrong."""
    return f"That was judged {status}: {message}\n\nWrite the whole file again, corrected."


def spoken(answer: str) -> str:
    """An answer as it goes back to who gave it. Reasoning stays with the model, as servers want it, and chat
    templates refuse an answer without text.
    """
    return (after_reasoning(answer) or "").strip() or "(no answer)"
