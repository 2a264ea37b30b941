"""The rules: does a candidate obey its policy? They judge its text and its plan, and run nothing.

The judge calls rules.py. This wing imports nothing but the plan, and nothing here is secret or hostile.

    rules.py          the entry: source, plan and effective launches against a policy
    policy.py         the policies
    extract.py        the candidate in a completion
    source.py         a candidate's text, with its imports, definitions and kernels looked up
    hidden_code.py, source_rules.py, constants.py, names.py    rules on the text
    plan_rules.py     rules on the plan
"""
