"""What a model is shown and what it should answer.

A model with a chat template gets the task inside instructions, in the spirit of AutoTriton (arXiv 2507.05687). A
pretrained model without a template gets the same text without roles. A model that was trained here from nothing gets
the task's source and nothing else: it has seen nothing but (source, completion) pairs, and the fence that opens the
completion is the separator.

The answer is a fenced Python block in all cases, which is what nanotriton/rules/extract.py looks for.
"""

from typing import TYPE_CHECKING

from nanotriton.tasks.task import Task

if TYPE_CHECKING:
    from nanotriton.tokenizer import Tokenizer

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


def prompt_text(source: str, tokenizer: "Tokenizer") -> str:
    """The prompt for a task's source, up to where the answer begins."""
    task = USER.format(source=source.strip())
    if tokenizer.has_chat_template:
        return tokenizer.chat([{"role": "system", "content": SYSTEM}, {"role": "user", "content": task}])
    return source if tokenizer.reads_source else f"{SYSTEM}\n\n{task}\n\n"


def encode_prompt(text: str, tokenizer: "Tokenizer") -> list[int]:
    """Token ids of a prompt. A raw text for a pretrained model begins as the texts that it was trained on did."""
    if tokenizer.has_chat_template or tokenizer.reads_source:
        return tokenizer.encode(text)
    return tokenizer.encode(text, add_special_tokens=True)


def prompt_ids(source: str, tokenizer: "Tokenizer") -> list[int]:
    """Token ids of the prompt for a task's source."""
    return encode_prompt(prompt_text(source, tokenizer), tokenizer)


def build_prompt(task: Task, tokenizer: "Tokenizer") -> list[int]:
    """Token ids of the prompt for a task."""
    return prompt_ids(task.source, tokenizer)


def build_completion(task: Task) -> str:
    """The text of the right answer to a task that has one. The end token is not part of the text: callers add its id."""
    if task.solution is None:
        raise ValueError(f"task {task.name} has no solution to learn from")
    return f"```python\n{task.solution.rstrip()}\n```"
