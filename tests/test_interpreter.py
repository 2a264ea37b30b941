"""Triton's interpreter as mended and guarded by executor/interpreter.py, in a process of its own (see interpreter_cases.py)."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nanotriton.executor.child.interpreter import install

HERE = Path(__file__).parent
CASES = re.findall(r"^def (case_\w+)", (HERE / "interpreter_cases.py").read_text(), re.M)


@pytest.fixture(scope="module")
def results():
    env = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(HERE.parent), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run([sys.executable, str(HERE / "interpreter_cases.py")], env=env, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


@pytest.mark.parametrize("case", CASES)
def test_interpreter(results, case):
    assert results[case] == "", results[case]


def test_without_the_interpreter_there_is_nothing_to_mend():
    with pytest.raises(RuntimeError, match=r"^Triton's interpreter is off: set TRITON_INTERPRET=1 before triton is imported$"):
        install()
