"""Where it can't run, the first line says what is supported."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    "script",
    ["import nanotriton", "import train_grpo", "import train_sft", "import nanotriton.executor.__main__"],
)
@pytest.mark.parametrize(
    "broken, says",
    [
        ("sys.platform = 'darwin'", "Triton publishes no wheel for darwin"),
        ("sys.platform = 'win32'", "WSL2"),
        ("import platform; platform.machine = lambda: 'aarch64'", "aarch64"),
        ("sys.version_info = (3, 9, 0)", "Python 3.11 to 3.14"),
        (
            "sys.modules['triton'] = None; import importlib.util as u; f = u.find_spec; u.find_spec = lambda n: None if n == 'triton' else f(n)",
            "triton can't be imported",
        ),
    ],
)
def test_the_first_line_says_what_is_supported(script, broken, says):
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {broken}; {script}"], cwd=ROOT, capture_output=True, text=True
    )
    assert (
        done.returncode == 1
        and says in done.stderr
        and done.stderr.startswith("nanotriton runs on Linux x86-64")
    )
    assert done.stderr.count("\n") == 1 and done.stdout == ""
