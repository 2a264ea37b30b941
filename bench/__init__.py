"""Speed and quality, measured. Every figure comes with its environment: card, versions, commit, command."""

import os
import platform
import subprocess


def environment() -> dict[str, str | int | None]:
    """What a figure was measured on. The commit is NANOTRITON_COMMIT where the tree came without its history."""
    import torch
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
