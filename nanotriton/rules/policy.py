"""The policies, and what a broken rule is."""

from dataclasses import dataclass

POLICIES = ("strict", "kernelbench", "autotriton", "none")


@dataclass(frozen=True)
class Violation:
    """Why a candidate is refused: the line of its source (None: no line in particular) and one line of text, for a model or a person."""

    line: int | None
    message: str
    status: str = "rule_violation"  # or syntax_error, no_code

    def __str__(self) -> str:
        return f"line {self.line}: {self.message}" if self.line else self.message


def check_policy(policy: str) -> str:
    """Return `policy`, or raise ValueError (one line)."""
    if policy not in POLICIES:
        raise ValueError(f"unknown policy {policy!r}; one of {', '.join(POLICIES)}")
    return policy
