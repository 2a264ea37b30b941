"""What every benchmark writes beside its figures: where and how they were measured."""

import json
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path


def environment() -> dict[str, str | int | None]:
    """The machine, the versions and the commit.

    A tree that came without its history names its commit in the environment variable NANOTRITON_COMMIT.
    """
    import torch  # here, as the benchmarks that only compare files of results need no torch
    import triton

    commit = os.environ.get("NANOTRITON_COMMIT")
    if not commit:
        answer = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            capture_output=True,
            text=True,
            cwd=os.path.dirname(__file__),
        )
        commit = answer.stdout.strip() or None
    return {
        "card": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "commit": commit,
    }


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
