"""Reading the pairs that an arm changes."""

import json

from nanotriton.config import die, reason
from nanotriton.rows import read_lines

NEEDED = ("task", "completion", "solution", "meta")


def read(path: str) -> list[dict]:
    """The rows of a file of collect_data.py's pairs. What is wrong with it ends the program with one line."""
    try:
        rows = [json.loads(line) for line in read_lines(path) if line.strip()]
    except (OSError, ValueError) as error:
        die(f"--data {path}: cannot read: {reason(error)}")
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict) or any(key not in row for key in NEEDED):
            die(f"--data {path}, row {number}: a pair of collect_data.py has {', '.join(NEEDED)}")
    return rows
