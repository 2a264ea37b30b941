"""Is a tree of tensors the reference's answer? The tolerance, and what else an answer must be.

Nothing here runs a module or knows a task: there are tensors of a candidate, and those of a reference
beside them.

    compare.py   compares two trees of tensors
    answer.py    a reference's answer, and one tensor of a candidate's beside it
    checks.py    the tolerance, and what else a tensor must be: a table of named checks
    values.py    errors of one output, measured for these checks
    nudging.py   operands moved by what rounding may do, where a reference rounds
    ties.py      which of equal numbers was chosen
"""
