"""The samples of runs, packed for a page.

A page is open at once if it does not read what nobody looks at. So what a list, a filter or a sort needs of
each sample stands in columns of small numbers, and the long texts (completions, verdicts, sources of tasks)
lie in compressed chunks. The page unpacks a chunk when one of its samples is looked at or searched.
"""

import base64
import json
import re
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nanotriton.browse.runs import RunError, read_rows
from nanotriton.rules.extract import after_reasoning, extract_candidate, python_blocks

CHUNK_CHARS = 400_000  # of JSON in one chunk: it is unpacked in a few milliseconds
MESSAGE_CHARS = 240  # of a verdict's message in the list; the whole of it is in the chunk
NEEDED = {"task": str, "completion": str, "verdict": dict}
# Fields of a row that have a column or a place of their own. A page shows any others as they are.
KNOWN = {"step", "split", "group", "task", "task_source", "completion", "verdict", "finish_reason", "tokens"}
KNOWN |= {"reward", "advantage", "count"}


class Table:
    """Distinct values, numbered in the order in which they first come."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.numbers: dict[Any, int] = {}

    def number(self, value: Any) -> int:
        if value not in self.numbers:
            self.numbers[value] = len(self.values)
            self.values.append(value)
        return self.numbers[value]


class Packed:
    """Rows of samples.jsonl, as columns and as compressed chunks."""

    COLUMNS = ("run", "split", "step", "group", "task", "status", "reason", "message", "finish", "tokens")
    COLUMNS += ("reward", "advantage", "speedup", "count")

    def __init__(self) -> None:
        self.columns: dict[str, list] = {name: [] for name in self.COLUMNS}
        self.splits, self.tasks, self.statuses = Table(), Table(), Table()
        self.reasons, self.messages, self.finishes = Table(), Table(), Table()
        self.chunks: list[str] = []
        self.starts: list[int] = []  # the number of each chunk's first sample
        self.waiting: list[str] = []  # the texts of the chunk that is being filled, each as JSON
        self.sources: dict[int, str] = {}  # of its tasks
        self.size = 0
        self.skipped: list[dict] = []  # {run, every}: of a run that is too long, every so many steps are kept

    def __len__(self) -> int:
        return len(self.columns["run"])

    def add_run(self, run: int, files: Iterable[Path], limit: int) -> None:
        """The samples of one run. Of more than `limit` rows only every so many steps are kept, whole."""
        files = list(files)
        every = max(1, -(-sum(map(count_lines, files)) // limit))
        if every > 1:
            self.skipped.append({"run": run, "every": every})
        places: dict[Any, dict[Any, int]] = {}  # split -> step -> how many steps of that split came before
        for file in files:
            for number, row in enumerate(read_rows(file), start=1):
                check_row(row, f"{file}:{number}")
                steps = places.setdefault(row.get("split"), {})
                place = steps.setdefault(row.get("step", 0), len(steps))
                if place % every == 0:
                    self.add(run, row)
        self.close_chunk()

    def add(self, run: int, row: dict) -> None:
        verdict = row["verdict"]
        message = str(verdict.get("message", ""))
        task = self.tasks.number((row["task"], row.get("task_source", "")))
        values = {
            "run": run,
            "split": self.splits.number(str(row.get("split", ""))),
            "step": row.get("step", 0),
            "group": row.get("group", -1),
            "task": task,
            "status": self.statuses.number(verdict["status"]),
            "reason": self.reasons.number(reason_of(verdict["status"], message)),
            "message": self.messages.number(message[:MESSAGE_CHARS]),
            "finish": self.finishes.number(str(row.get("finish_reason", ""))),
            "tokens": row.get("tokens", 0),
            "reward": row.get("reward"),
            "advantage": row.get("advantage"),
            "speedup": verdict.get("speedup"),
            "count": row.get("count", 1),
        }
        for name, value in values.items():
            self.columns[name].append(value)
        self.add_text(task, row)

    def add_text(self, task: int, row: dict) -> None:
        if not self.waiting:
            self.starts.append(len(self) - 1)
        if task not in self.sources:
            self.sources[task] = row.get("task_source", "")
            self.size += len(self.sources[task])
        others = {key: value for key, value in row.items() if key not in KNOWN}
        candidate = candidate_of(row["completion"], row["verdict"]["status"])
        where = place_in(row["completion"], candidate) if candidate else None
        text = json.dumps([row["completion"], row["verdict"], others, where])
        self.waiting.append(text)
        self.size += len(text)
        if self.size > CHUNK_CHARS:
            self.close_chunk()

    def close_chunk(self) -> None:
        """Compress what has gathered.

        The chunk is JSON: {"sources": task -> source, "rows": [row, ...]}, where a row is [completion,
        verdict, other fields, place of the candidate].
        """
        if self.waiting:
            rows = ",".join(self.waiting)
            self.chunks.append(pack(f'{{"sources": {json.dumps(self.sources)}, "rows": [{rows}]}}'))
        self.waiting, self.sources, self.size = [], {}, 0

    def index(self) -> dict[str, Any]:
        """All but the chunks."""
        return {
            "columns": self.columns,
            "splits": self.splits.values,
            "tasks": unlike([name for name, _ in self.tasks.values]),
            "statuses": self.statuses.values,
            "reasons": self.reasons.values,
            "messages": self.messages.values,
            "finishes": self.finishes.values,
            "starts": self.starts,
            "skipped": self.skipped,
        }


def unlike(names: Iterable[str]) -> list[str]:
    """These names, with a number behind each that stood before: of tasks of one name with unlike sources.

    >>> unlike(["a", "b", "a"])
    ['a', 'b', 'a (2)']
    """
    found: dict[str, None] = {}
    for name in names:
        number, told = 1, name
        while told in found:
            number += 1
            told = f"{name} ({number})"
        found[told] = None
    return list(found)


def check_row(row: dict, place: str) -> None:
    """RunError for a row that is no sample."""
    for name, kind in NEEDED.items():
        if not isinstance(row.get(name), kind):
            raise RunError(f"{place}: no sample: its field {name!r} is missing, or no {kind.__name__}")
    if not isinstance(row["verdict"].get("status"), str):
        raise RunError(f"{place}: no sample: its verdict has no status")


def count_lines(path: Path) -> int:
    with open(path, "rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))


def reason_of(status: str, message: str) -> str:
    """A verdict without what is particular to one sample, so that equal causes can be counted.

    >>> reason_of("wrong_value", "output[0, 3] is 2.93; the reference says -0.03 (37 of 376 values differ)")
    'wrong_value: output[#] is #; the reference says # (# of # values differ)'
    """
    text = message.splitlines()[0] if message else ""
    text = re.sub(r"'[^']*'|\"[^\"]*\"|`[^`]*`", "…", text)
    text = re.sub(r"(?<![\w.])[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?(?!\w)|\b(nan|inf)\b", "#", text)
    text = re.sub(r"#(, #)+", "#", text)
    return f"{status}: {text[:140]}" if text else status


def candidate_of(completion: str, status: str) -> str | None:
    """The source that was judged.

    Where only one block can be it, nothing is parsed, which would take most of the time.
    """
    if status == "no_code":
        return None
    blocks = [block for block in python_blocks(after_reasoning(completion) or "") if "ModelNew" in block]
    return blocks[0] if len(blocks) == 1 else extract_candidate(completion)


def place_in(completion: str, candidate: str) -> list[int] | str:
    """[start, end] of a candidate in its completion, in the UTF-16 units of JavaScript; the candidate itself
    where it does not stand there as it is, because its block was indented.

    >>> place_in("😀 class ModelNew: pass", "class ModelNew: pass\\n")
    [3, 23]
    """
    source = candidate.removesuffix("\n")
    start = completion.rfind(source)
    if start < 0:
        return candidate
    first, length = (
        len(text.encode("utf-16-le", "surrogatepass")) // 2 for text in (completion[:start], source)
    )
    return [first, first + length]


def pack(text: str) -> str:
    """Text, compressed (zlib) and in base64: it can stand in a page whatever it holds."""
    return base64.b64encode(zlib.compress(text.encode(), 6)).decode()
