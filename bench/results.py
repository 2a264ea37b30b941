"""What every benchmark writes beside its figures: where and how they were measured."""

import json
import shlex
import sys
from pathlib import Path

from nanotriton.runs.provenance import environment

__all__ = ["command", "environment", "usual_device", "write_json"]


def usual_device() -> str:
    """Where a benchmark runs if it isn't told: cuda if there is a GPU, else cpu."""
    import torch  # here, as --help and the comparison of results need no torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def command(module: str) -> str:
    """The command line of this process. module: the benchmark's own name, `__spec__.name` in its file."""
    return shlex.join(["python", "-m", module, *sys.argv[1:]])


def write_json(path: str | Path, data: dict) -> None:
    """Write `data` to a temporary file and rename it: a reader sees the old file or the new one, whole."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(data, indent=1) + "\n")
    temporary.replace(path)
