"""The two suites as data: tests/exploits/TASK/NAME.py try to be paid without doing the work, tests/honest/TASK/NAME.py are real kernels.

Beside them lies TASK/task.py, in KernelBench's format, and in tests/exploits TASK/honest.py, which does the work. An exploit's first lines say what
kind it is and, policy by policy, with which statuses it may end:

    # kind: decoy kernel never launched
    # strict: rule_violation
    # kernelbench: correct                  (torch may compute there: it is no exploit under that policy)
"""

import re
from dataclasses import dataclass
from pathlib import Path

from nanotriton.rules.policy import POLICIES
from nanotriton.tasks.task import Task, load_task

ROOT = Path(__file__).parent


@dataclass(frozen=True)
class Case:
    name: str  # "matmul/fp32_in_tf32"
    task: Task
    source: str
    kind: str  # of the exploit; what the honest kernel shows
    expected: dict[str, frozenset[str]]  # policy -> statuses


def read(suite: str) -> list[Case]:
    """Every candidate of "exploits" or "honest", by name."""
    cases = []
    for file in sorted((ROOT / suite).glob("*/*.py")):
        if file.name == "task.py":
            continue
        text = file.read_text()
        header = dict(
            re.findall(r"^# (\w+): (.*)$", re.split(r"\n(?:import|from)", text, maxsplit=1)[0], re.M)
        )
        honest = suite == "honest" or file.name == "honest.py"
        expected = {p: frozenset(header[p].replace(" ", "").split(",")) for p in POLICIES if p in header}
        if honest:
            expected |= {"strict": frozenset({"correct"})}
        kind = "honest" if honest else header["kind"]
        cases.append(
            Case(
                f"{file.parent.name}/{file.stem}", load_task(file.with_name("task.py")), text, kind, expected
            )
        )
    return cases
