"""The part of a completion that is the candidate. One stated rule finds it, so that no other part can be it.

    The candidate is the last fenced Python block after the reasoning that defines the entry point and has
    a Triton kernel; where none has a kernel, the last that defines the entry point.

- *After the reasoning*: behind the first `</think>`. A text that opens with `<think>` and never closes it
  has no answer. A chat template may have opened the reasoning in the prompt:
  whoever samples puts `opened_reasoning(prompt)` before the completion.
- *Fenced Python block*: Markdown's rule. It opens with a line of three or more backticks or tildes, then
  nothing or one of python, py, triton, or python with a version. It ends at a line with at least as many of
  the same character and nothing else, or at the end of the text.
- *Defines the entry point*: a class, function or assignment of that name at the top level, or in an `if`,
  `try` or `with` there. A block that is not Python counts when a line starts with `class NAME` or
  `def NAME`. So a slip in the answer is a syntax error, and no older draft is taken instead.
- *Has a Triton kernel*: a line that decorates with `jit`, or a call of `triton.jit`. A version in plain
  PyTorch that is quoted after the answer, to compare with, is not the answer.
"""

import ast
import functools
import re
import warnings
from collections.abc import Iterator

from nanotriton.python_text import plain

OPEN, CLOSE = "<think>", "</think>"  # of reasoning
# No part of it can match what the next one does, so a line is read once, however it ends.
_FENCE = re.compile(r"^([ \t]*+)(`{3,}+|~{3,}+)([^`\r\n]*+)$")
_LANGUAGE = re.compile(r"(python|py|triton)?([23](\.\d+)*)?")
_KERNEL = re.compile(r"^[ \t]*@[ \t]*(\w+\.)*jit\b|\btriton\.jit[ \t]*\(", re.MULTILINE)
MAX_CHARS = 200_000  # a longer source is no kernel; it would only cost the parser time


def parse(source: str) -> ast.Module:
    """`ast.parse` with every way of failing turned into SyntaxError.

    The other ways are null bytes, surrogates, and nesting too deep for the parser.
    """
    if len(source) > MAX_CHARS:
        raise SyntaxError(f"source of {len(source)} characters, more than {MAX_CHARS}")
    try:
        with warnings.catch_warnings():
            # "invalid escape sequence" is the candidate's business, not our console's
            warnings.simplefilter("ignore")
            return ast.parse(plain(source))
    except SyntaxError:
        raise
    except (ValueError, RecursionError, MemoryError) as error:
        raise SyntaxError(str(error) or "nested too deeply") from None


def defines(tree: ast.Module, name: str) -> bool:
    """Whether the module binds `name` by class, def or assignment: at its top level, or in an `if`, `try` or
    `with` there."""
    for node in _statements(tree.body):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found = [node.name]
        elif isinstance(node, ast.Assign):
            found = [target.id for target in node.targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found = [node.target.id]
        else:
            continue
        if name in found:
            return True
    return False


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements, and those in the branches of their `if`, `try` and `with`."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With):
            yield from _statements(node.body)
            yield from _statements(getattr(node, "orelse", []))
            yield from _statements(getattr(node, "finalbody", []))
            for handler in getattr(node, "handlers", []):
                yield from _statements(handler.body)


def python_blocks(text: str) -> list[str]:
    """Every fenced Python block of a Markdown text, in order, without its fences and their indentation."""
    blocks: list[list[str]] = []
    opening: re.Match | None = None  # the fence of the block that we are in
    lines: list[str] = []  # of that block
    for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        fence = _FENCE.match(line)
        if opening is None:
            opening, lines = fence, []
        elif fence and _closes(opening, fence):
            if _is_python(opening):
                blocks.append(lines)
            opening = None
        else:
            indentation = len(line) - len(line.lstrip(" \t"))
            lines.append(line[min(len(opening[1]), indentation) :])
    if opening and _is_python(opening):
        blocks.append(lines)
    return ["\n".join(block).strip("\n\ufeff") + "\n" for block in blocks]


def _closes(opening: re.Match, fence: re.Match) -> bool:
    """Whether a fence closes a block. One that is indented much further is part of a docstring."""
    same = fence[2][0] == opening[2][0] and len(fence[2]) >= len(opening[2])
    return same and not fence[3].strip() and len(fence[1]) <= len(opening[1]) + 3


def _is_python(opening: re.Match) -> bool:
    language = (opening[3].split() or [""])[0]
    return _LANGUAGE.fullmatch(language.lower()) is not None


@functools.lru_cache(maxsize=512)  # of a small model's samples three in four are equal
def _defines_entry(block: str, entry: str) -> bool:
    try:
        return defines(parse(block), entry)
    except SyntaxError:
        return re.search(rf"^[ \t]*(class|def)[ \t]+{re.escape(entry)}\b", block, re.M) is not None


def opened_reasoning(prompt: str) -> str:
    """The `<think>` that a prompt ends with, else "".

    Chat templates of R1's distillations and of Qwen3-Thinking end so. Put before the completion it makes the
    model's whole turn, in which a draft that was cut inside the reasoning is no answer.
    """
    return OPEN if prompt.rstrip().endswith(OPEN) else ""


def after_reasoning(completion: str) -> str | None:
    """The text behind the first `</think>`: all of it without reasoning, None if the reasoning never ends."""
    _, closed, answer = completion.partition(CLOSE)
    if closed:
        return answer
    return None if completion.lstrip().startswith(OPEN) else completion


def extract_candidate(completion: str, entry: str = "ModelNew") -> str | None:
    """The candidate's source, or None when the completion has none. See the rule at the top of this file.

    >>> extract_candidate("<think>maybe</think>\\n```python\\nclass ModelNew: pass\\n```")
    'class ModelNew: pass\\n'
    """
    answer = after_reasoning(completion)
    if answer is None:
        return None
    answer = answer.replace(f"{CLOSE}```", f"{CLOSE}\n```")  # reasoning that had quoted its own end
    without_kernel = None
    for block in reversed(python_blocks(answer)):
        has_kernel = _KERNEL.search(block) is not None
        if entry not in block or (without_kernel and not has_kernel) or not _defines_entry(block, entry):
            continue
        if has_kernel:
            return block
        without_kernel = block
    return without_kernel
