"""Our own kernels in Triton's interpreter, which must be chosen before triton is imported: one child for the tests marked so in these files."""

import os
import subprocess
import sys
from pathlib import Path

FILES = [
    "test_adam8.py",
    "test_decode.py",
    "test_heads.py",
    "test_layers.py",
    "test_logprob.py",
    "test_place.py",
]


def test_the_kernels_equal_their_twins():
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-o",
        "addopts=",
        "-p",
        "no:cacheprovider",
        "-m",
        "interpreted",
        *FILES,
    ]
    child = subprocess.run(
        command,
        cwd=Path(__file__).parent,
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert child.returncode == 0, child.stdout[-3000:]
    assert all(f"{name} ." in child.stdout or f"{name} s" in child.stdout for name in FILES), child.stdout
