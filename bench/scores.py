"""From verdicts to the figures of a table: rates, pass@k, fast_p, speed-ups, each with an interval; and why the rest failed."""

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.metrics import SPEEDS, bootstrap, fast_p, geometric_mean, mean, pass_at_k
from nanotriton.verdict import UNSCORED

# "Compiled" in KernelBench's sense: the file loads. What a rule refuses never gets there.
NOT_COMPILED = frozenset(
    [
        "no_code",
        "syntax_error",
        "rule_violation",
        "import_error",
        "compile_error",
        "infra_error",
        "unsupported",
        "weak_task",
    ]
)
# An answer came out, right or wrong.
ANSWERED = frozenset(
    [
        "correct",
        "wrong_shape",
        "wrong_dtype",
        "wrong_value",
        "not_finite",
        "input_modified",
        "nondeterministic",
        "too_fast",
    ]
)


@dataclass(frozen=True)
class Outcome:
    """One sample as the scores see it. `loose`: right by the benchmark's own check; None where that was not asked."""

    problem: str
    status: str
    stage: str = ""
    message: str = ""
    compiled: bool = False
    loose: bool | None = None
    speedup: float | None = None

    @property
    def correct(self) -> bool:
        return self.status == "correct"

    @property
    def judged(self) -> bool:
        """Whether the verdict says anything of the candidate, as Verdict.scored: not where the task itself needs too much memory, say."""
        return self.status not in UNSCORED and self.stage != "task"


def score(outcomes: Sequence[Outcome], ks: Sequence[int]) -> dict:
    """The figures of a group of samples, problems weighted alike. A rate is {"value", "low", "high"}; what can't be told is None.

    Samples that could not be judged here count as failures, so that no machine flatters a model, and are counted under `not_judged`.
    """
    problems: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        problems.setdefault(outcome.problem, []).append(outcome)
    groups = list(problems.values())
    smallest = min((len(g) for g in groups), default=0)
    rate = lambda test: interval([mean([float(bool(test(o))) for o in g]) for g in groups])
    right = [o for o in outcomes if o.correct]
    timed = [o.speedup for o in right if o.speedup is not None]
    return {
        "problems": len(groups),
        "samples": len(outcomes),
        "not_judged": sum(not o.judged for o in outcomes),
        "compiled": rate(lambda o: o.compiled),
        "answered": rate(lambda o: o.status in ANSWERED),
        "correct": rate(lambda o: o.correct),
        "loose": rate(lambda o: o.loose) if any(o.loose is not None for o in outcomes) else None,
        "pass_at_k": {
            str(k): interval([pass_at_k(len(g), sum(o.correct for o in g), k) for g in groups])
            for k in ks
            if k <= smallest
        },
        "fast_p": {
            f"{p:g}": interval(fast(groups, p)) if p == 0 or timed or not right else None for p in SPEEDS
        },
        "speedup": speedups(groups),
        "timed": len(timed),
        "statuses": dict(
            Counter(o.status + (" (task)" if o.stage == "task" else "") for o in outcomes).most_common()
        ),
    }


def interval(values: list[float]) -> dict | None:
    if not values:
        return None
    low, high = bootstrap(values) or (None, None)
    return {"value": mean(values), "low": low, "high": high}


def fast(groups: list[list[Outcome]], p: float) -> list[float]:
    """fast_p of each problem. A right sample without a time counts for p = 0 only."""
    as_number = lambda o: 0.0 if not o.correct else math.nan if o.speedup is None else o.speedup
    return [fast_p([as_number(o) for o in g], p) or 0.0 for g in groups]


def speedups(groups: list[list[Outcome]]) -> dict | None:
    """Geometric mean over the right and timed samples: of each problem first, then of the problems."""
    logs = [
        math.log(geometric_mean(found))
        for g in groups
        if (found := [o.speedup for o in g if o.correct and o.speedup])
    ]
    if not logs:
        return None
    whole = interval(logs)
    return {k: None if v is None else math.exp(v) for k, v in whole.items()}


def taxonomy(outcomes: Sequence[Outcome], causes: int = 3) -> list[dict]:
    """How many fail at which stage and why: one row a (stage, status), with its most frequent messages, numbers and names left out."""
    rows: dict[tuple[str, str], list[Outcome]] = {}
    for o in outcomes:
        if not o.correct:
            rows.setdefault((o.stage, o.status), []).append(o)
    found = []
    for (stage, status), group in sorted(rows.items(), key=lambda item: -len(item[1])):
        kinds = Counter(kind_of(o.message) for o in group if o.message)
        found.append(
            {
                "stage": stage,
                "status": status,
                "count": len(group),
                "share": len(group) / len(outcomes),
                "causes": [[text, count] for text, count in kinds.most_common(causes)],
            }
        )
    return found


def kind_of(message: str) -> str:
    """A message without what differs from candidate to candidate: where it was, quoted names, numbers."""
    message = re.sub(r"^line \d+: | \(line \d+.*$", "", message)
    message = re.sub(r"'[^'\s]*'|\"[^\"\s]*\"", "'...'", message)  # what is longer is a sentence
    return re.sub(r"\d+(\.\d+)?(e[+-]?\d+)?", "N", message)[:160]


def tables(
    outcomes: Callable[[str], Sequence[Outcome]],
    policies: Sequence[str],
    group_of: Callable[[str], str],
    weak: dict[str, str],
    ks: Sequence[int],
) -> dict:
    """{policy: {group: {"all": scores, "fair": scores without weak problems, "failures": taxonomy}}}; the group "all" holds every problem."""
    found: dict[str, dict] = {}
    for policy in policies:
        rows = list(outcomes(policy))
        for name in [*sorted({group_of(o.problem) for o in rows}), "all"]:
            inside = [o for o in rows if name in ("all", group_of(o.problem))]
            fair = [o for o in inside if o.problem not in weak]
            found.setdefault(policy, {})[name] = {
                "all": score(inside, ks),
                "fair": score(fair, ks),
                "failures": taxonomy(inside),
            }
    return found
