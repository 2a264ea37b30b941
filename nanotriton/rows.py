"""Files with a JSON object a line: .jsonl, or .jsonl.xz, which is the same packed."""

import json
import lzma
from pathlib import Path
from typing import Any

NAMES = (".jsonl", ".jsonl.xz")


def is_rows(path: str | Path) -> bool:
    return str(path).endswith(NAMES)


def read_lines(path: str | Path) -> list[str]:
    """A file's lines, unpacked. They end at line feeds and nothing else: U+2028 may stand inside a string.

    Raises OSError, or ValueError if its bytes are no text.
    """
    data = Path(path).read_bytes()
    if str(path).endswith(".xz"):
        try:
            data = lzma.decompress(data)
        except lzma.LZMAError as error:
            raise ValueError(f"it can't be unpacked: {error}") from None
    return data.decode("utf-8-sig").split("\n")


def read_object(line: str) -> dict[str, Any]:
    """The object in one line. ValueError says what is wrong with it; the caller knows the line's number."""
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:  # whose own message counts lines too, from the start of this one
        raise ValueError(f"not JSON ({error.msg} at character {error.pos + 1})") from None
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None
    if not isinstance(row, dict):
        raise ValueError("not an object")
    return row
