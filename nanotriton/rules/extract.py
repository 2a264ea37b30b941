"""Which part of a completion is the candidate: one stated rule, so that nothing else can be.

    The candidate is the last fenced Python block after the reasoning that defines the entry point.

- *After the reasoning*: behind the first `</think>`. A text that opens with `<think>` and never closes it has no answer. A chat
  template may have opened the reasoning in the prompt: whoever samples puts `opened_reasoning(prompt)` before the completion.
- *Fenced Python block*: Markdown's rule. A line of three or more backticks or tildes, then nothing or one of python, py, python3; up
  to a line with at least as many of the same character and nothing else, or to the end of the text.
- *Defines the entry point*: a class, function or assignment of that name at the top level. A block that is not Python counts
  when a line starts with `class NAME` or `def NAME`, so that a slip in the answer is a syntax error and not an older draft.
"""

import ast
import re
import warnings

OPEN, CLOSE = "<think>", "</think>"  # of reasoning
_FENCE = re.compile(r"^([ \t]*)(`{3,}|~{3,})[ \t]*([^`\r\n]*)$")
_LANGUAGES = frozenset({"", "python", "py", "python3"})
MAX_CHARS = 200_000  # a longer source is no kernel; it would only cost the parser time


def parse(source: str) -> ast.Module:
    """`ast.parse` with every way of failing turned into SyntaxError (null bytes, surrogates, nesting too deep for the parser)."""
    if len(source) > MAX_CHARS:
        raise SyntaxError(f"source of {len(source)} characters, more than {MAX_CHARS}")
    try:
        with warnings.catch_warnings():
            # "invalid escape sequence" is the candidate's business, not our console's
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except (ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, SyntaxError):
            raise
        raise SyntaxError(str(error) or "nested too deeply") from None


def defines(tree: ast.Module, name: str) -> bool:
    """Whether the module binds `name` at its top level by class, def or assignment."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return True
        targets = (
            node.targets
            if isinstance(node, ast.Assign)
            else [node.target]
            if isinstance(node, ast.AnnAssign)
            else []
        )
        if any(isinstance(t, ast.Name) and t.id == name for t in targets):
            return True
    return False


def python_blocks(text: str) -> list[str]:
    """Every fenced Python block of a Markdown text, in order, without its fences and without their indentation."""
    blocks, lines, opened = [], [], None  # opened: (indentation, fence, is it Python)
    for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        match = _FENCE.match(line)
        if opened is None:
            if match:
                words = match[3].split()
                opened, lines = (
                    (len(match[1]), match[2], (words[0].lower() if words else "") in _LANGUAGES),
                    [],
                )
            continue
        indent, fence, python = opened
        closes = match and not match[3].strip() and match[2][0] == fence[0] and len(match[2]) >= len(fence)
        if closes and len(match[1]) <= indent + 3:  # further in, it is part of a docstring
            if python:
                blocks.append(lines)
            opened = None
        else:
            lines.append(line[min(indent, len(line) - len(line.lstrip(" \t"))) :])
    if opened and opened[2]:
        blocks.append(lines)
    return ["\n".join(block).strip("\n\ufeff") + "\n" for block in blocks]


def _defines_entry(block: str, entry: str) -> bool:
    try:
        return defines(parse(block), entry)
    except SyntaxError:
        return re.search(rf"^(class|def)[ \t]+{re.escape(entry)}\b", block, re.M) is not None


def opened_reasoning(prompt: str) -> str:
    """The `<think>` that a prompt ends with, as in the chat templates of R1's distillations and Qwen3-Thinking, else "".

    Before the completion it makes the model's whole turn, in which a draft that was cut inside the reasoning is no answer.
    """
    return OPEN if prompt.rstrip().endswith(OPEN) else ""


def after_reasoning(completion: str) -> str | None:
    """What is behind the first `</think>`, all of it where nothing is reasoned; None if the reasoning never ends."""
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
    for block in reversed(python_blocks(answer)):
        if entry in block and _defines_entry(block, entry):
            return block
    return None
