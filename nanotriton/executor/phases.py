"""The phases of a candidate. In each a worker has it once (judge/worker.py:MODES).

task      no candidate yet: the task is examined
replay    it is recorded, and the plan is replayed
record    the same, before process mode
process   process mode
script    a whole file that runs its own tests (script.py)
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Phases:
    """Which phases the candidates of one executor go through, and which processes serve these."""

    device: str  # cpu or cuda
    mode: str | None  # as for Executor
    policy: str

    def first(self) -> str:
        """The phase that a candidate begins with."""
        if self.mode != "process":
            return "replay"
        return "record" if self.policy in ("strict", "kernelbench") else "process"

    def after(self, phase: str, status: str, fallback: bool) -> str | None:
        """The phase that follows one which ended with this status, or None: the status is the verdict's.

        fallback: this mode could not run the candidate, and another one may.
        """
        if phase in ("process", "task"):
            return None
        if phase == "record":
            # strict insists on a plan; otherwise a candidate that the recorder can't follow may still run
            goes_on = status == "correct" or (self.policy != "strict" and status != "rule_violation")
        else:
            may_fall_back = self.device != "cpu" and self.mode is None and self.policy != "strict"
            goes_on = may_fall_back and status == "unsupported" and fallback
        return "process" if goes_on else None

    def flavour(self, phase: str) -> str:
        """The flavour of the processes that a phase runs in (sandbox/zygote.py)."""
        if self.device == "cpu":
            return "record"
        if phase == "task":
            phase = self.first()
        return "cuda" if phase == "process" else "gpu"


class ScriptPhases(Phases):
    """A file is run, or recorded and replayed, in one phase."""

    def first(self) -> str:
        return "script"

    def after(self, phase: str, status: str, fallback: bool) -> str | None:
        return None

    def flavour(self, phase: str) -> str:
        return "record" if self.device == "cpu" else "cuda"
