"""The rules: what counts as Triton.

They are applied to a candidate's text before it runs, and to its plan afterwards.

Who runs here. The trusted side does: a worker calls `check_source`, `check_plan` and `check_effective`, and
the trainer calls `extract_candidate`. A candidate's Python is parsed here and never executed.

What it trusts. It trusts neither the text nor the plan. The text decides little: the rules on it refuse
only what is certain, make a refusal cheap, and name the line. The plan decides, because it lists every call
that was really made. Rules are no wall either; what a candidate could do to the machine is the sandbox's
matter.

Who may import it. The executor, the trainer, the benchmarks and the audit may. It imports `plan` and
`verdict` only.

    rules.py          the three checks, and the policies strict, kernelbench, autotriton and none
    extract.py        which part of a completion is the candidate
    source.py         a candidate's text, with its imports, definitions and kernels looked up
    source_rules.py   rules on the text
    computing.py      the rule against torch that computes: on every path, and behind a tell
    faces.py          tells: answers that differ between the judge and a card, and what depends on them
    branches.py       what of a function always runs, and what stands behind a tell
    kept.py           what a candidate keeps from call to call and moves on
    tensors.py        which expressions may be tensors
    scopes.py         in which function a name stands, and what binds it
    hidden_code.py    the rule against code that hides what it runs
    texts.py          which texts an expression may be
    constants.py      which expressions of a function hold no data
    standard.py       what Python's own modules offer
    plan_rules.py     rules on the plan
    moves.py          moves of torch's that do a kernel's work
    names.py          the lists of names behind the rules
    policy.py         the names of the policies, and `Violation`
"""
