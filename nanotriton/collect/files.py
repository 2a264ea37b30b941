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


class Journal:
    """An append-only file of rows with keys; a later row of a key replaces an earlier one."""

    def __init__(self, path: Path):
        self.path = path
        self.rows: dict[str, dict] = {}
        if path.exists():
            whole = path.read_bytes()
            end = whole.rfind(b"\n") + 1
            if end < len(whole):  # killed while writing
                os.truncate(path, end)
            for line in whole[:end].splitlines():
                row = json.loads(line)
                self.rows[row["key"]] = row
        self.file = open(path, "a", encoding="utf-8")  # noqa: SIM115

    def add(self, row: dict) -> None:
        self.rows[row["key"]] = row
        self.file.write(json.dumps(row) + "\n")
        self.file.flush()
