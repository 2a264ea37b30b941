"""Is it Triton? Rules on a candidate's source, before anything runs, and on its plan, after it was recorded.

Policies:
- `strict`       the candidate's own Triton kernels compute every value.
                 Torch allocates, views, copies and casts, and adds up small results (plan_rules.are_touches).
- `kernelbench`  torch may compute beside at least one of the candidate's own kernels.
- `autotriton`   the paper's (arXiv 2507.05687): `@triton.jit` stands in the text. For comparison only.
- `none`         no rules.

The rules on the source see text, so they refuse only certain cases: no own kernel on the way from `forward`,
an import from outside the list, code that hides the code it runs, torch computing on a path that is always
taken. They make refusals cheap and messages precise. They are no wall. The plan is the truth: it lists every
call and every launch, and the executor replays it without a launch to measure whether that launch matters.
Harm to the machine is the sandbox's matter.
"""

from nanotriton.plan.facts import REARRANGE, Facts, facts
from nanotriton.rules.computing import torch_computes
from nanotriton.rules.extract import defines, parse
from nanotriton.rules.hidden_code import hidden_code
from nanotriton.rules.plan_rules import forbidden_call, strided_answer
from nanotriton.rules.policy import POLICIES, Violation, check_policy
from nanotriton.rules.source import Source
from nanotriton.rules.source_rules import foreign_module, no_kernel, patched_module

__all__ = [
    "POLICIES",
    "Facts",
    "Violation",
    "check_effective",
    "check_moves",
    "check_plan",
    "check_policy",
    "check_source",
    "facts",
]


def check_source(source: str, policy: str, entry: str | None = "ModelNew") -> Violation | None:
    """The first rule that `source` breaks, or None. A few milliseconds; nothing is executed.

    entry: the class whose `forward` is judged. It is None for a file of functions (TritonBench's), where
    every definition is a way in.
    """
    check_policy(policy)
    try:
        tree = parse(source)
    except SyntaxError as error:
        return Violation(error.lineno, f"not Python: {error.msg}", "syntax_error")
    if policy == "none":
        return None
    if policy == "autotriton":
        return None if "@triton.jit" in source else Violation(None, "the text has no @triton.jit")
    if entry and not defines(tree, entry):
        return Violation(None, f"the code defines no {entry}", "no_code")
    try:
        return _first_broken(Source(tree), policy, entry)
    except SyntaxError as error:  # that Python's parser lets through: `import *` in a function
        return Violation(None, f"not Python: {error.msg}", "syntax_error")
    except RecursionError:  # of Python's own functions on trees, which a parsed text can be too deep for
        return Violation(None, "not Python: nested too deeply", "syntax_error")


def _first_broken(source: Source, policy: str, entry: str | None) -> Violation | None:
    violation = hidden_code(source) or foreign_module(source) or patched_module(source)
    violation = violation or no_kernel(source, entry)
    if violation is None and policy == "strict":
        violation = torch_computes(source, entry)
    return violation


def check_moves(source: str, policy: str, reference: Facts, entry: str = "ModelNew") -> Violation | None:
    """Strict, of a source that has passed `check_source`: where the task only moves data, torch moves none
    behind a tell either. reference: facts of the reference module."""
    if policy != "strict" or not _moves_alone(reference):
        return None
    try:
        return torch_computes(Source(parse(source)), entry, moving=True)
    except RecursionError:
        return Violation(None, "not Python: nested too deeply", "syntax_error")


def _moves_alone(reference: Facts) -> bool:
    return reference.computing.keys() <= REARRANGE


def check_plan(plan, policy: str, reference: Facts | None = None) -> Violation | None:
    """The first rule that a recorded plan breaks, or None.

    reference: facts of the reference module's own plan. They show whether the task only moves data: then the
    reference computes nothing, and under strict Triton must do the moving too.
    """
    check_policy(policy)
    if policy in ("autotriton", "none"):
        return None
    if not plan.launches():
        return Violation(None, "forward launches no Triton kernel: call kernel[grid](...) in it")
    if policy == "kernelbench":
        return None
    layout_task = reference is not None and _moves_alone(reference)
    violation = forbidden_call(plan, layout_task, reference)
    if violation is None and layout_task and reference.contiguous:
        violation = strided_answer(plan)
    return violation


def check_effective(effective_launches: int | None, policy: str) -> Violation | None:
    """Under strict and kernelbench at least one launch must matter: without it the answer changes.

    effective_launches: how many do. None: this was not measured.
    """
    check_policy(policy)
    if policy in ("autotriton", "none") or effective_launches:
        return None
    return Violation(
        None, "no launch changes the answer: the kernels do nothing that counts; return what they store"
    )
