"""Code and numbers that both the judge and the candidate's child need. Nothing here is secret.

The child is not trusted with anything that it computes by this code: the judge computes it again.

    construct.py   seeds, and constants that are moved while a module is constructed
    limits.py      numbers that several processes must agree on
    probe.py       a candidate that is known to be right
"""
