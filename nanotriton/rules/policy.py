"""The policies, and the account of a broken rule."""

from dataclasses import dataclass

POLICIES = ("strict", "kernelbench", "autotriton", "none")


@dataclass(frozen=True)
class Violation:
    """Why a candidate is refused."""

    line: int | None  # of its source; None: no line in particular
    message: str  # one line, for a model or a person
    status: str = "rule_violation"  # or syntax_error, no_code

    def __str__(self) -> str:
        return f"line {self.line}: {self.message}" if self.line else self.message


def check_policy(policy: str) -> str:
    """Return `policy`, or raise ValueError (one line)."""
    if policy not in POLICIES:
        raise ValueError(f"unknown policy {policy!r}; one of {', '.join(POLICIES)}")
    return policy
