"""The contract between the side that is not trusted and the side that is: a plan, and values on the wire.

The recorder (executor/child) writes a plan from a candidate's forward. The judge checks it and replays
it. This wing holds the data alone: it runs nothing but torch's meta functions, and both sides may import it.
It imports no other part of the project.

    plan.py, parts.py   the plan and its parts
    validate.py         the checks that a plan must pass
    aten.py             the operators that a plan may name, and their arguments as JSON
    signature.py        a kernel's parameters, read off its TTIR
    facts.py            the calls of a plan that touch data, and their bytes and FLOPs
    trees.py, wire.py   tensors in nested containers, and as bytes between processes
"""
