"""The executor's judgement of one candidate: one dataclass, the same from every mode, with JSON both ways."""

import json
from dataclasses import asdict, dataclass, field, fields

_STATUSES = """
    correct no_code syntax_error rule_violation import_error runtime_error compile_error out_of_resources
    illegal_memory out_of_bounds timeout crashed memory_limit output_limit wrong_shape wrong_dtype wrong_value
    not_finite input_modified nondeterministic too_fast weak_task unsupported infra_error
"""
STATUSES = frozenset(_STATUSES.split())
# Neither right nor wrong. The sample leaves the batch and is never scored 0, because our failure or the
# task's is not the model's.
UNSCORED = frozenset({"infra_error", "weak_task"})


@dataclass
class Verdict:
    """The judgement of one candidate on one task.

    `speedup` is None when nothing was timed, never 1.0 by default. `cost` maps a stage to its seconds.
    """

    status: str
    stage: str = ""  # where it ended: rules, record, run, judge and so on (docs/glossary.md, "stage")
    message: str = ""  # short, fit to show to a model or a person
    mode: str = ""  # replay or process
    device: str = ""  # cpu or cuda
    recordable: bool | None = None  # None: not tried
    launches: int | None = None
    effective_launches: int | None = None  # launches without which the answer changes; None: not measured
    torch_ops: dict[str, int] = field(default_factory=dict)  # ATen calls by name that touch data
    torch_bytes: int | None = None  # bytes that torch read and wrote to move data (copies, casts, joins)
    # FLOPs of the candidate's ATen calls over the reference's; None: the reference's are unknown or 0
    torch_share: float | None = None
    answer: str = ""  # the memory that the answer lies in: own, input, weight or const
    max_error: float | None = None  # worst |candidate - reference| over the RMS of the reference
    kernelbench_allclose: bool | None = None  # whether it passes KernelBench's own tolerance
    time_us: float | None = None
    reference_us: float | None = None
    speedup: float | None = None
    # arguments that no draw of the task varies, and that could not be moved: a candidate may ignore them
    unvaried: list[str] = field(default_factory=list)
    cost: dict[str, float] = field(default_factory=dict)

    def __post_init__(self):
        if self.status not in STATUSES:
            raise ValueError(f"unknown status {self.status!r}; one of {', '.join(sorted(STATUSES))}")

    def __str__(self) -> str:
        """One line for a person. repr() has every field.

        >>> print(Verdict("correct", launches=2, effective_launches=1, max_error=3e-6, speedup=1.5))
        correct (1.50x, 1 of 2 launches effective, error 3.0e-06)
        >>> print(Verdict("no_code", message="the candidate is empty"))
        no_code: the candidate is empty
        """
        notes = []
        if self.speedup is not None:
            notes.append(f"{self.speedup:.2f}x")
        if self.effective_launches is not None:
            notes.append(f"{self.effective_launches} of {self.launches} launches effective")
        if self.max_error is not None and self.status in ("correct", "wrong_value"):
            notes.append(f"error {self.max_error:.1e}")
        line = self.status
        if notes:
            line += f" ({', '.join(notes)})"
        return f"{line}: {self.message}" if self.message else line

    @property
    def correct(self) -> bool:
        """Whether the candidate computes the same as the reference, and obeyed the executor's policy."""
        return self.status == "correct"

    @property
    def scored(self) -> bool:
        """Whether the verdict says anything of the candidate.

        It does not if we failed, or if the task did (its reference needs too much memory, say).
        `unsupported` is scored 0 where the candidate's own code is what the executor cannot judge: else a
        wrong kernel would leave the batch by a line of inline assembly. Where the task's is, the stage is
        "task".
        """
        return self.status not in UNSCORED and self.stage != "task"

    @property
    def judged(self) -> bool:
        """Whether it was found out if the candidate is right, which is more than that it is scored."""
        return self.scored and self.status != "unsupported"

    def brief(self) -> dict:
        """The status, and the fields that are not at their defaults."""
        plain = vars(Verdict(self.status))
        said = {name: value for name, value in vars(self).items() if value != plain[name]}
        return {"status": self.status} | said

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Verdict":
        data = json.loads(text)
        names = {f.name for f in fields(cls)}
        if unknown := set(data) - names:
            raise ValueError(f"unknown verdict fields {sorted(unknown)}; known: {', '.join(sorted(names))}")
        return cls(**data)


class Fault(Exception):
    """A reason why an answer is wrong: a verdict's status, and one line."""

    def __init__(self, status: str, message: str):
        super().__init__(message)
        self.status, self.message = status, message


class TaskFault(Fault):
    """The task's fault, or ours: it says nothing of the candidate, and is never scored."""


class ValueFault(Fault):
    """Wrong values.

    max_error: the worst difference over the RMS. reduced: the answer is fp32, and as far off as TF32 or half
    precision would be.
    """

    def __init__(self, message: str, max_error: float, reduced: bool = False):
        super().__init__("wrong_value", message)
        self.max_error, self.reduced = max_error, reduced


class HoleFault(Fault):
    """Values that are NaN or infinite where the reference has numbers.

    unwritten: how many of them hold what memory holds before anybody has written to it.
    """

    def __init__(self, message: str, unwritten: int = 0):
        super().__init__("not_finite", message)
        self.unwritten = unwritten


class Unrecordable(Fault):
    """Nothing is wrong with the candidate, except that a plan cannot express it, or a replay not run it."""


def out_of_memory(error: BaseException) -> bool:
    """Whether an error, of Python's or of torch's, says that memory ran out."""
    text = str(error)
    return isinstance(error, MemoryError) or "allocate memory" in text or "out of memory" in text
