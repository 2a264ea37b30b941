"""No honest kernel is rejected: every one is correct under the strictest policy, as measured by launches that matter."""

import pytest

from nanotriton.executor.executor import Executor
from tests.candidates import read

CASES = read("honest")
MAY_BE_UNSUPPORTED = 0  # features that the evaluator on the CPU lacks; at most 5 are allowed


@pytest.fixture(scope="module")
def judged():
    with Executor(policy="strict", timeout=20.0, workers=2) as executor:
        futures = {case.name: executor.submit(case.task, case.source) for case in CASES}
        return {name: future.result() for name, future in futures.items()}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_it_is_correct(case, judged):
    verdict = judged[case.name]
    if verdict.status == "unsupported" and MAY_BE_UNSUPPORTED:
        pytest.skip(verdict.message)
    assert verdict.status == "correct", f"{verdict.status} at {verdict.stage}: {verdict.message}"
    assert verdict.recordable and verdict.launches >= verdict.effective_launches >= 1
    assert verdict.kernelbench_allclose and verdict.speedup is None


def test_the_suite_is_what_it_claims(judged):
    assert len(CASES) >= 60
    assert sum(verdict.status == "unsupported" for verdict in judged.values()) <= MAY_BE_UNSUPPORTED
