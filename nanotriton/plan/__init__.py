"""The plan: what a candidate's forward would do, written down as data.

This wing is the contract between both sides.

Who runs here. Both sides do: the untrusted child writes a plan, and the trusted worker reads it. The code
parses, checks and describes; it launches nothing, opens no file and starts no process.

What it trusts. It trusts nothing. `Plan.from_bytes` takes bytes from a stranger and raises `PlanError`, in
one line, for anything that is not a well-formed plan within its limits. Plans and trees of tensors travel
as JSON and raw bytes, and are never unpickled, so that reading one cannot run code.

Who may import it. Everybody may: the rules, both sides of the executor, the benchmarks. It imports no other
wing.

    plan.py        the plan, and its way to bytes and back
    parts.py       the dataclasses that it consists of
    validate.py    the checks that a plan must pass
    aten.py        which ATen operators a plan may name, and how their arguments are written as JSON
    signature.py   what a kernel's own signature, read off its TTIR, says about the arguments of a launch
    wire.py        a tree of tensors as a description and bytes, for what processes exchange beside plans
    trees.py       leaves, maps and comparisons over tensors in nested tuples, lists and dicts
    facts.py       what torch did in a plan: which calls compute, which only move, how many bytes and FLOPs
"""
