"""Common: what both sides of the wall need, and what neither side may decide alone.

Who runs here. An untrusted child and a trusted worker do, each with its own copy in its own memory.
Reference and candidate must be built alike, so the code that builds them exists once.

What it trusts. It trusts nothing. No secret is in these files. A seed is an argument, and of all seeds a
child is told only the one of its weights; the seed of the inputs stays with the worker.

Who may import it. Every part of the executor may. It imports `plan` at most.

    construct.py   seeds, and how constants are moved while a module is constructed
    asked.py       what a child is asked to record
    training.py    how a finished module's weights are changed
    probe.py       a candidate that is known to be right, to find out whose fault a crash is
    card.py        the GPU that candidates are judged for, as plain data
    limits.py      numbers that several processes must agree on
"""
