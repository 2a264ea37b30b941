"""TritonBench (arXiv 2502.14752): problems, instructions, and the predictions that people already have.

A problem is a file: an implementation, a line of 146 `#`, and a test that leaves its results in a
variable. Channel G asks for a kernel from a repository, by a description of it; channel T for a Triton
version of PyTorch code. A prediction replaces the implementation, whole.
"""

import ast
import builtins
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nanotriton.config import reason
from nanotriton.python_text import read
from nanotriton.rules.extract import after_reasoning, defines, parse, python_blocks

SEPARATOR = re.compile(r"^#{146}[ \t]*$", re.M)
MAIN = re.compile(r"^if[ \t]+__name__[ \t]*==[ \t]*(['\"])__main__\1[ \t]*:", re.M)
ANSWER = ("result", "test_results")  # what the tests call their results


@dataclass(frozen=True)
class Problem:
    """`output`: the gold implementation as predictions quote it (G).

    `instructions`: by style, simp and comp.
    """

    name: str  # the file's, without .py
    code: str
    test: str
    output: str
    description: str  # T: the functional description, by which predictions are joined
    instructions: dict[str, str]
    difficulty: str = ""

    @property
    def entries(self) -> frozenset[str]:
        """The names that the test takes from the implementation."""
        return free_names(self.test) & top_level(self.code)


def load_problems(data: str, channel: str) -> list[Problem]:
    """All problems of a channel, in the benchmark's order. data: a clone of TritonBench, or its data folder.

    ValueError (one line).
    """
    folder = find_folder(Path(data))
    items = read_json(folder / f"TritonBench_{channel}_v1.{'json' if channel == 'G' else 'jsonl'}")
    styles = {
        style: read_json(path)
        for style in ("simp", "comp")
        if (path := folder / f"TritonBench_{channel}_{style}_alpac_v1.json").exists()
    }
    found, seen = [], set()
    for number, item in enumerate(items):
        try:
            file, description = item["file"], item.get("description", "") if channel == "T" else ""
            output = item["output"] if channel == "G" else ""
        except (KeyError, TypeError):
            lacking = "file or output" if channel == "G" else "file"
            raise ValueError(f"{folder}: item {number + 1} of channel {channel} has no {lacking}") from None
        if file in seen:
            raise ValueError(f"{folder}: two items of channel {channel} are called {file}")
        seen.add(file)
        code, test = split(folder / f"TritonBench_{channel}_v1" / file)
        # The lists of instructions are in the order of the items.
        instructions = {
            style: rows[number]["instruction"] for style, rows in styles.items() if number < len(rows)
        }
        found.append(
            Problem(
                file.removesuffix(".py"),
                code,
                test,
                output,
                description,
                instructions,
                str(item.get("difficulty", "")),
            )
        )
    if not found:
        raise ValueError(f"{folder}: channel {channel} has no items")
    return found


def find_folder(data: Path) -> Path:
    if not data.is_dir():
        raise ValueError(f"{data}: no such folder; give a clone of TritonBench")
    for folder in (data, data / "data"):
        if any(folder.glob("TritonBench_?_v1*")):
            return folder
    raise ValueError(f"{data}: no data/TritonBench_G_v1.json in it; give a clone of TritonBench")


def read_json(path: Path) -> list[dict]:
    try:
        found = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ValueError(f"{path}: cannot read: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{path}: not JSON: {error}") from None
    if not isinstance(found, list):
        raise ValueError(f"{path}: a JSON array is expected")
    return found


def split(path: Path) -> tuple[str, str]:
    """(implementation, test) of a problem's file."""
    try:
        text = read(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: cannot read: {reason(error)}") from None
    parts = SEPARATOR.split(text)
    if len(parts) != 2:
        raise ValueError(
            f"{path}: {len(parts) - 1} lines of 146 # in it; one is expected, between implementation and test"
        )
    return parts[0], parts[1]


def select(problems: list[Problem], ids: Sequence[str] = (), limit: int = 0) -> list[Problem]:
    """Those of these names (or files), and at most `limit` of them; all where neither is given."""
    wanted = {i.removesuffix(".py") for i in ids}
    if absent := sorted(wanted - {p.name for p in problems}):
        raise ValueError(f"no problem is called {', '.join(absent)}")
    chosen = [p for p in problems if not wanted or p.name in wanted]
    return chosen[: limit or None]


# ---- scripts ----


def script(code: str, test: str, seed: int, name: str = "") -> str:
    """An implementation with the test behind it, as one file. name: the file's own, by which some tests
    import the implementation.

    The test draws from `seed` whatever was drawn before it. What it leaves in its own result variable is the
    file's answer, under a name that no implementation has. A test under `if __name__ == "__main__"` runs.
    """
    return joined(code, f"import torch\n\ntorch.manual_seed({seed})\n", test, name)


def paper_script(code: str, test: str, seed: int, name: str = "") -> str:
    """The same file as the paper's harness runs it, with Python from its first line to its last.

    So the implementation's own block under `if __name__ == "__main__"` runs as well, and the test finds torch
    only if one of the two imports it. Where that makes no difference it is the very text of `script`.
    """
    imported = "torch" in top_level(code) | top_level(test)
    if imported and not MAIN.search(code):
        return script(code, test, seed, name)
    return joined(MAIN.sub("if True:", code), f'__import__("torch").manual_seed({seed})\n', test, name)


def joined(code: str, start: str, test: str, name: str) -> str:
    """The implementation, the line between, what the test starts with, and the test."""
    if name.isidentifier() and re.search(rf"^\s*(from|import)\s+{name}\b", test, re.M):
        start += f"import sys\n\nsys.modules[{name!r}] = sys.modules[__name__]\n"
    answer = answer_name(test)
    test = MAIN.sub("if True:", test)
    return f"{code.rstrip()}\n\n{'#' * 146}\n{start}{test.rstrip()}\n\ntest_results_of_this_file = {answer}\n"


def answer_name(test: str) -> str | None:
    """The variable that a test leaves its results in: the last that it assigns at the top level; None if
    there is none."""
    try:
        tree = parse(test)
    except SyntaxError:
        return None
    inside = lambda node: node.body if isinstance(node, ast.If) else [node]
    names = [
        target.id
        for top in tree.body
        for node in inside(top)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id.startswith(ANSWER)
    ]
    return names[-1] if names else None


def top_level(code: str) -> frozenset[str]:
    """Names that a module binds at its top level by class, def, import or assignment."""
    try:
        tree = parse(code)
    except SyntaxError:
        return frozenset()
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(a.asname or a.name).split(".")[0] for a in node.names}
        elif isinstance(node, ast.Assign):
            found |= {t.id for target in node.targets for t in ast.walk(target) if isinstance(t, ast.Name)}
    return frozenset(found)


def free_names(test: str) -> frozenset[str]:
    """Names that a test reads and does not bind anywhere."""
    try:
        tree = parse(test)
    except SyntaxError:
        return frozenset()
    names = [n for n in ast.walk(tree) if isinstance(n, ast.Name)]
    bound = {n.id for n in names if not isinstance(n.ctx, ast.Load)} | {
        a.arg for a in ast.walk(tree) if isinstance(a, ast.arg)
    }
    return frozenset({n.id for n in names} - bound - top_level(test) - set(dir(builtins)))


# ---- predictions ----


def extract(completion: str, entries: frozenset[str]) -> str | None:
    """The implementation in a completion: of the fenced Python blocks after the reasoning the last that
    defines all `entries`, else the last one; without fences the whole text after the reasoning. None if
    nothing is there, or the reasoning never ends."""
    answer = after_reasoning(completion)
    if answer is None:
        return None
    blocks = python_blocks(answer)
    if not blocks:
        return answer.strip("\n") + "\n" if answer.strip() else None
    for block in reversed(blocks):
        try:
            tree = parse(block)
        except SyntaxError:
            continue
        if all(defines(tree, name) for name in entries):
            return block
    return blocks[-1]


def join(rows: list[dict], problems: list[Problem], where: str) -> dict[tuple[str, int], str]:
    """{(problem's name, sample): completion} of prediction rows {instruction or prompt, predict, label}.

    A row belongs to the problem whose instruction it holds, whole; else (G) whose gold output its label
    is part of; else (T) whose description its instruction holds. Several rows of one problem are its
    samples, in order, unless they are numbered (`sample`). Raises ValueError (one line) for a row
    without prediction, of no problem, of more than one, or with a number that was there before.
    """
    found: dict[tuple[str, int], str] = {}
    count: dict[str, int] = {}
    for number, row in enumerate(rows, 1):
        predict = row.get("predict", row.get("completion"))
        if not isinstance(predict, str):
            raise ValueError(f"{where} entry {number}: no text under predict")
        names = owners(row, problems)
        if not names:
            said = " ".join(str(row.get("instruction") or row.get("prompt") or "").split())[-60:]
            said = f"(...{said})" if said else "(it has no instruction)"
            raise ValueError(
                f"{where} entry {number}: a prediction for a problem that is not in the data {said}"
            )
        if len(names) > 1:
            raise ValueError(f"{where} entry {number}: it fits several problems: {', '.join(names)}")
        sample = row.get("sample", row.get("sample_id", count.get(names[0], 0)))
        if type(sample) is not int or sample < 0:
            raise ValueError(f"{where} entry {number}: sample {sample!r}: a number is expected")
        if (names[0], sample) in found:
            raise ValueError(f"{where} entry {number}: problem {names[0]} has a sample {sample} already")
        found[names[0], sample] = predict
        count[names[0]] = count.get(names[0], 0) + 1
    return found


def owners(row: dict, problems: list[Problem]) -> list[str]:
    """The problems that a row may belong to, by the surest sign that it has."""
    if isinstance(row.get("problem"), str):
        return [p.name for p in problems if p.name == row["problem"].removesuffix(".py")]
    text = str(row.get("instruction") or row.get("prompt") or "")
    label = str(row.get("label") or "").strip()
    by_instruction = [
        p.name for p in problems if any(i.strip() and i.strip() in text for i in p.instructions.values())
    ]
    if len(by_instruction) == 1:
        return by_instruction
    if label and (by_label := [p.name for p in problems if label in p.output]):
        return by_label
    found = [p for p in problems if p.description.strip() and p.description.strip() in text]
    longest = max((len(p.description) for p in found), default=0)  # one description may open another
    return [p.name for p in found if len(p.description) == longest] or by_instruction
