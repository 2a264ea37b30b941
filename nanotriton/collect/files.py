"""Files that outlive a kill: written whole and then renamed, or appended to line by line."""

import json
import os
from collections.abc import Iterable
from pathlib import Path


def put(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def put_rows(path: Path, rows: Iterable[dict]) -> None:
    """One JSON object a line."""
    put(path, "".join(json.dumps(row) + "\n" for row in rows))


def read_journal(path: Path) -> dict[str, dict]:
    """The rows of a journal by key; a later row of a key replaces an earlier one. A last line that isn't
    whole, of a run that was killed or goes on, is left out.
    """
    whole = path.read_bytes()
    rows = map(json.loads, whole[: whole.rfind(b"\n") + 1].splitlines())
    return {row["key"]: row for row in rows}


class Journal:
    """An append-only file of rows with keys."""

    def __init__(self, path: Path):
        self.rows: dict[str, dict] = {}
        if path.exists():
            self.rows = read_journal(path)
            os.truncate(path, path.read_bytes().rfind(b"\n") + 1)  # a run was killed while it wrote a line
        self.file = open(path, "a", encoding="utf-8")  # noqa: SIM115

    def add(self, row: dict) -> None:
        self.rows[row["key"]] = row
        self.file.write(json.dumps(row) + "\n")
        self.file.flush()
