"""Is it Triton: what a candidate may not say (its source, before anything runs) and may not do (its plan, after recording).

Policies:
- `strict`       every value is computed by the candidate's own Triton kernels; torch allocates, views, copies and casts.
- `kernelbench`  torch may compute beside at least one of the candidate's own kernels.
- `autotriton`   the paper's (arXiv 2507.05687): `@triton.jit` stands in the text. For comparison only.
- `none`         no rules.

The rules on the source see text, so they only refuse what is certain: no own kernel on the way from `forward`, an import from
outside the list, code that hides what it runs, torch computing on a path that is always taken. They make refusals cheap and messages
precise; they are no wall. The plan is the truth: it lists every call and every launch, and the executor measures which launches
matter by replaying without them. What a candidate could do to the machine is the sandbox's matter.
"""

from nanotriton.plan.facts import REARRANGE, Facts, facts
from nanotriton.rules.extract import defines, parse
from nanotriton.rules.plan_rules import forbidden_call, strided_answer
from nanotriton.rules.policy import POLICIES, Violation, check_policy
from nanotriton.rules.source_rules import Source

__all__ = [
    "POLICIES",
    "Facts",
    "Violation",
    "check_effective",
    "check_plan",
    "check_policy",
    "check_source",
    "facts",
]


def check_source(source: str, policy: str, entry: str | None = "ModelNew") -> Violation | None:
    """The first rule that `source` breaks, or None. A few milliseconds; nothing is executed.

    entry: the class whose `forward` is judged; None for a file of functions (TritonBench), where every definition is a way in.
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
    module = Source(tree)
    return (
        module.hidden_code()
        or module.foreign_module()
        or module.patched_module()
        or module.no_kernel(entry)
        or (module.torch_computes(entry) if policy == "strict" else None)
    )


def check_plan(plan, policy: str, reference: Facts | None = None) -> Violation | None:
    """The first rule that a recorded plan breaks, or None.

    reference: facts of the reference module's own plan. With them a task that only moves data (the reference computes nothing) is
    recognised, and under strict the moving must then be Triton's too.
    """
    check_policy(policy)
    if policy in ("autotriton", "none"):
        return None
    if not plan.launches():
        return Violation(None, "forward launches no Triton kernel")
    if policy == "kernelbench":
        return None
    layout_task = reference is not None and reference.computing.keys() <= REARRANGE
    return forbidden_call(plan, layout_task) or (
        strided_answer(plan) if layout_task and reference.contiguous else None
    )


def check_effective(effective_launches: int | None, policy: str) -> Violation | None:
    """Under strict and kernelbench at least one launch must matter: replayed without it, the answer changes."""
    check_policy(policy)
    if policy in ("autotriton", "none") or effective_launches:
        return None
    return Violation(None, "no launch changes the answer: the kernels do nothing that counts")
