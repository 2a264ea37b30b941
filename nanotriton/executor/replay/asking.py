"""What the evaluator sees of a plan that a GPU runs: races that the GPU's scheduler hides, and promises that
today's compiler makes no use of.

A GPU starts programs in the order of their numbers, and runs all programs of a small launch at once. So a
kernel that reads what another program has just written may be right every time. The evaluator is asked about
kernels with atomics or with promises, where it is quick.
"""

import re

from nanotriton.executor import ttir
from nanotriton.executor.replay.backend import CpuBackend
from nanotriton.executor.replay.replayer import Replay, ReplayError
from nanotriton.plan.plan import Plan

QUICK = 50_000_000  # elements that the evaluator may compute in a launch beside the GPU: 0.1 s
SPEAKS_OF = re.compile(
    r"tt\.atomic|isVolatile|cacheModifier = cv|intr\.assume|"
    r"tt\.(?:divisibility|contiguity|constancy)\w* = dense"
)
TELLING = (ttir.Race, ttir.FalsePromise)


def worth_asking(plan: Plan, chosen: dict[int, int]) -> bool:
    """Whether a kernel that runs has atomics or promises."""
    used = {call.kernel for call in plan.launches(chosen)}
    return any(SPEAKS_OF.search(plan.kernels[number].ttir) for number in used)


def ask(replay: Replay, inputs: list, weights: dict, backend: CpuBackend) -> None:
    """Run a plan in the evaluator, on tensors of the CPU, into `backend`.

    Raises ReplayError with what it finds of TELLING. Returns quietly if it cannot judge the plan, or needs
    too long.
    """
    asked = Replay(replay.plan, backend=backend, known=replay.memory.known)
    asked.chosen = replay.chosen
    try:
        asked.load(inputs, weights)
        asked.execute()
    except ReplayError as error:
        if isinstance(error.__cause__, TELLING):
            raise
    except (ValueError, RuntimeError, MemoryError):
        pass  # it cannot judge this plan
