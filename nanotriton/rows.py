"""Files with a JSON object a line: .jsonl, or .jsonl.xz, which is the same packed."""

import lzma
from pathlib import Path

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
