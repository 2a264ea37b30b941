"""Files that outlive a kill: written whole and then renamed, or appended to line by line."""

import json
import os
from collections.abc import Iterable
from pathlib import Path

from nanotriton.config import ConfigError, reason


def folder_for(out: str) -> Path:
    """The folder of --out, made if it is not there. Raises ConfigError (one line)."""
    try:
        Path(out).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {out}: cannot make this folder: {reason(error)}") from None
    if not os.access(out, os.W_OK):
        raise ConfigError(f"--out {out}: cannot write there: Permission denied")
    return Path(out)


def put(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def put_rows(path: Path, rows: Iterable[dict]) -> None:
    """One JSON object a line."""
    put(path, "".join(json.dumps(row) + "\n" for row in rows))


def whole_lines(data: bytes) -> bytes:
    """Without a last line that isn't whole: of a run that was killed while it wrote, or goes on."""
    return data[: data.rfind(b"\n") + 1]


def by_key(lines: bytes) -> dict[str, dict]:
    """The rows of a journal; a later row of a key replaces an earlier one."""
    return {row["key"]: row for row in map(json.loads, lines.splitlines())}


def read_journal(path: Path) -> dict[str, dict]:
    """The rows of a journal by key, as far as they are whole."""
    return by_key(whole_lines(path.read_bytes()))


class Journal:
    """An append-only file of rows with keys."""

    def __init__(self, path: Path):
        self.rows: dict[str, dict] = {}
        if path.exists():
            whole = whole_lines(path.read_bytes())
            os.truncate(path, len(whole))
            self.rows = by_key(whole)
        self.file = open(path, "a", encoding="utf-8")  # noqa: SIM115

    def add(self, row: dict) -> None:
        self.rows[row["key"]] = row
        self.file.write(json.dumps(row) + "\n")
        self.file.flush()
